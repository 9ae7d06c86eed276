//! What is wrong with a deployment file, one line a problem.

use std::fmt;
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
        write!(f, "{}:{line}: {key}: {problem}; {advice}", file.display())
    }
}
