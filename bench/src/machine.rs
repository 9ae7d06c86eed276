//! What a figure was measured on.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// The processor, the cores that are used, and the day (UTC).
pub fn line(cores: &[usize], isa: &str) -> String {
    let model = fs::read_to_string("/proc/cpuinfo").ok().and_then(|info| processor(&info));
    let model = model.unwrap_or_else(|| "unknown processor".to_owned());
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    format!("{model}, {} cores in use, {isa}, {}", cores.len(), date(seconds / 86_400))
}

/// The first processor's name in `/proc/cpuinfo`.
fn processor(info: &str) -> Option<String> {
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// A day since 1970-01-01 as `YYYY-MM-DD`, counting from March so that leap days come last (Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms", `civil_from_days`).
fn date(day: u64) -> String {
    let day = day + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + 400 * era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day_of_month:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Days from Python's `date.toordinal`.
    #[test]
    fn days_are_dates() {
        for (day, expected) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_786, "2026-11-29"),
        ] {
            assert_eq!(date(day), expected);
        }
    }

    #[test]
    fn the_processor_is_named() {
        let info = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n";
        assert_eq!(processor(info).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(processor("processor\t: 0\n"), None);
    }
}
