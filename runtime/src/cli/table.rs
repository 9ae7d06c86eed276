//! Reports in columns.

use std::fmt::Write as _;

/// Columns as wide as their widest cell, two spaces apart.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            write!(line, "{cell:width$}  ").expect("writing to a string cannot fail");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [["a", "bb"], ["ééé", ""], ["c", "d"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "a    bb\nééé\nc    d\n");
    }
}
