//! What is wrong with a deployment file, one line a problem.

use std::fmt::{self, Write as _};
use std::io;
use std::path::PathBuf;

/// Why there is no deployment.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{file}: cannot be read: {source}; give the path of a deployment file", file = file.display())]
    Read { file: PathBuf, source: io::Error },
    /// The text breaks a rule; every problem that was found, in the file's order.
    #[error("{}", lines(.0))]
    Invalid(Vec<Finding>),
}

fn lines(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// A key of a deployment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Counted from 1.
    pub line: usize,
    /// With its table, such as `member.path`.
    pub key: String,
}

/// A place in a deployment file and what is to say about it: an error, or a warning beside a deployment that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub file: PathBuf,
    /// Counted from 1.
    pub line: usize,
    /// The key with its table, such as `member.path`.
    pub key: String,
    /// What was expected and what was found.
    pub problem: String,
    /// What to do about it.
    pub advice: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { file, line, key, problem, advice } = self;
        let [key, problem, advice] = [key, problem, advice].map(|text| Excerpt(text));
        write!(f, "{}:{line}: {key}: {problem}; {advice}", file.display())
    }
}

/// As much as a message quotes of the file.
const MAX_CHARS: usize = 300;

/// Text that may come from the file, on one line and cut: a key may hold a line break, and be of any length.
struct Excerpt<'a>(&'a str);

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, char) in self.0.chars().enumerate() {
            if count == MAX_CHARS {
                return f.write_char('…');
            }
            if char.is_control() {
                write!(f, "{}", char.escape_debug())?;
            } else {
                f.write_char(char)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_short_line_whatever_the_file_holds() {
        let finding = Finding {
            file: PathBuf::from("deployment.toml"),
            line: 7,
            key: "member.a\nb\u{85}\u{1b}[2J".to_owned(),
            problem: format!("expected \"a\", found {}", "é".repeat(1000)),
            advice: "correct it".to_owned(),
        };
        let line = finding.to_string();
        assert!(line.starts_with(r#"deployment.toml:7: member.a\nb\u{85}\u{1b}[2J: expected "a", found éé"#), "{line}");
        assert!(line.ends_with("é…; correct it") && line.chars().count() < 500, "{line}");
    }
}
