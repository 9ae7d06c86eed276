//! The recorded files under `tests/fixtures`.
//!
//! A case is what the oracle recorded for one request to one member: the body's exact text, and the response's exact
//! text or the refusal. A file that is missing or malformed fails the test that asked for it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

/// The four random members in the released package format.
pub const MEMBERS: [&str; 4] = ["tiny-08b", "tiny-4b", "tiny-router", "tiny-short"];

/// A path below `tests/fixtures`.
pub fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(relative)
}

/// The text of a fixture.
///
/// # Panics
/// If the file is missing or not UTF-8.
pub fn text(relative: &str) -> String {
    let path = path(relative);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The anchor of a package or a bundle: `sha256:HEX` of its `MODEL_MANIFEST.json` or its `manifest.json`.
///
/// # Panics
/// If there is neither.
pub fn anchor(member: &Path) -> String {
    let of_package = member.join("MODEL_MANIFEST.json");
    let manifest = if of_package.exists() { of_package } else { member.join("manifest.json") };
    let bytes = fs::read(&manifest).unwrap_or_else(|error| panic!("{}: {error}", manifest.display()));
    format!("sha256:{}", sha256(&bytes))
}

/// A digest in lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// One recorded request.
pub struct Case {
    /// `MEMBER/CASE`, for messages.
    pub name: String,
    /// The folder of the member, which the tests also use as its served name.
    pub member: String,
    /// The body as sent to the oracle, without `model`.
    pub request_text: String,
    /// What came of it.
    pub outcome: Outcome,
    /// The smallest distance of a decision to another one; infinite where nothing is decided.
    pub margin: f64,
}

/// What the oracle recorded for a request.
pub enum Outcome {
    /// The exact text of the response; its `model` is the package's name.
    Answered(String),
    /// The status and the body.
    Refused {
        /// The code of the status line.
        status: u16,
        /// An object with `detail` or `error`.
        body: Value,
    },
}

impl Case {
    /// Reads `tests/fixtures/{folder}/{file}`.
    fn read(folder: &str, member: &str, file: &Path) -> Self {
        let name = format!("{member}/{}", file.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default());
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{folder}/{name}: {error}"));
        let recorded: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{folder}/{name}: {error}"));
        let string =
            |key: &str| recorded[key].as_str().unwrap_or_else(|| panic!("{folder}/{name}: no {key}")).to_owned();
        let outcome = match recorded.get("error") {
            Some(error) => Outcome::refused(error),
            None => Outcome::Answered(string("response_text")),
        };
        let margin = recorded["margin"]["value"].as_f64().unwrap_or(f64::INFINITY);
        Self { request_text: string("request_text"), member: member.to_owned(), name, outcome, margin }
    }

    /// The body with `"model"` as its first key and every other byte as recorded.
    pub fn request_for(&self, model: &str) -> String {
        with_model(&self.request_text, model)
    }
}

impl Outcome {
    /// The wire form of a recorded refusal: everything else in `error` is the oracle's own account of it.
    fn refused(error: &Value) -> Self {
        let status = error["status"].as_u64().expect("a recorded refusal has a status") as u16;
        let key = if error.get("detail").is_some() { "detail" } else { "error" };
        Self::Refused { status, body: serde_json::json!({ key: error[key] }) }
    }
}

/// Puts `"model"` in front of the keys of a request's text.
///
/// # Panics
/// If the text is not that of an object.
pub fn with_model(request_text: &str, model: &str) -> String {
    let rest = request_text.trim_start().strip_prefix('{').expect("a request is an object");
    format!("{{\"model\":{},{rest}", Value::from(model))
}

/// Every recorded case of the fixture members, by name.
///
/// # Panics
/// If a folder cannot be read or holds no case.
pub fn vela_cases() -> Vec<Case> {
    MEMBERS.iter().flat_map(|member| cases_in("vela", member)).collect()
}

/// The recorded cases in `tests/fixtures/{folder}/{member}`, by name.
///
/// # Panics
/// If the folder cannot be read or holds no case.
pub fn cases_in(folder: &str, member: &str) -> Vec<Case> {
    let directory = path(folder).join(member);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap_or_else(|error| panic!("{}: {error}", directory.display())).path())
        .filter(|file| is_case(file))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{}: no case", directory.display());
    files.iter().map(|file| Case::read(folder, member, file)).collect()
}

/// Every JSON file but the tables of digests, whose names end in `.sha256.json`.
fn is_case(file: &Path) -> bool {
    let has_extension = |path: &Path, wanted: &str| path.extension().is_some_and(|extension| extension == wanted);
    has_extension(file, "json") && !file.file_stem().is_some_and(|stem| has_extension(Path::new(stem), "sha256"))
}
