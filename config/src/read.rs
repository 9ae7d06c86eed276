//! From a file's text to a [`Deployment`]: each table by itself, then the rules that join them.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use crate::deployment::sha256_from_hex;
use crate::error::{ConfigError, Finding, Place};
use crate::read_member::{Paths, read_member};
use crate::rules::{Names, check_access, check_placements, resolve_keys};
use crate::table::{Placed, Report, Table, Want, boolean, positive, text, whole};
use crate::{Deployment, Limits, Queue, Server};

/// The longest time that a key may name, in its own unit: a bound that no clock arithmetic can overflow.
pub(crate) const MAX_TIME: u64 = 1_000_000_000;
/// The largest count or size that a key may name.
const MAX_COUNT: u64 = 1_000_000_000;

impl Deployment {
    /// Reads a deployment file. Relative paths in it start at its folder.
    ///
    /// # Errors
    /// [`ConfigError::Read`] when the file cannot be read, else as [`Deployment::from_toml`].
    pub fn load(file: &Path) -> Result<(Deployment, Vec<Finding>), ConfigError> {
        let text =
            std::fs::read_to_string(file).map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
        Self::from_toml(&text, file)
    }

    /// Reads the text of a deployment file; `file` is named in messages, and relative paths start at its folder. The
    /// second value holds warnings: what was changed to keep a rule, with the deployment standing.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every broken rule, in the file's order: the text is no TOML, an unknown key, a
    /// value of the wrong kind, a name twice, a model that is not there, devices that overlap, a path that does not
    /// exist, an open server that others can reach.
    pub fn from_toml(text: &str, file: &Path) -> Result<(Deployment, Vec<Finding>), ConfigError> {
        Self::from_toml_with(text, file, Path::exists)
    }

    /// [`Deployment::from_toml`] with another answer to whether a path exists, for files that are written on one
    /// machine and used on another.
    ///
    /// # Errors
    /// As [`Deployment::from_toml`].
    pub fn from_toml_with(
        text: &str,
        file: &Path,
        exists: impl Fn(&Path) -> bool,
    ) -> Result<(Deployment, Vec<Finding>), ConfigError> {
        let mut report = Report::new(file, text);
        let deployment = match DeTable::parse(text) {
            Ok(root) => {
                let paths = Paths { folder: file.parent().unwrap_or(Path::new("")), exists: &exists };
                read_root(root.get_ref(), &paths, &mut report)
            }
            Err(error) => {
                let line = report.line(error.span().map_or(0, |span| span.start));
                let problem = error.message().lines().collect::<Vec<_>>().join(", ");
                let place = Place { line, key: "syntax".to_owned() };
                report.error(&place, problem, "correct the TOML at this line");
                None
            }
        };
        report.errors.sort_by_key(|finding| finding.line);
        match deployment {
            Some(deployment) if report.errors.is_empty() => Ok((deployment, report.warnings)),
            _ => Err(ConfigError::Invalid(report.errors)),
        }
    }
}

/// Reads every table. Absent if something is missing that has been reported.
fn read_root(root: &DeTable, paths: &Paths, report: &mut Report) -> Option<Deployment> {
    let mut root = Table::new("", 1, root);
    let server = match root.table(report, "server", "server.", "write [server] above its keys") {
        Some(table) => read_server(table, report),
        None => RawServer::default(),
    };
    let keys = root.tables(report, "key", "key.").unwrap_or_default();
    let keys: Vec<_> = keys.into_iter().map(|table| read_key(table, report)).collect();
    let queue = match root.table(report, "queue", "queue.", "write [queue] above its keys") {
        Some(table) => read_queue(table, report),
        None => Queue::default(),
    };
    let members = root.tables(report, "member", "member.");
    if members.as_ref().is_some_and(Vec::is_empty) {
        report.error(&root.place("member"), "expected at least one", "add a [[member]] with name, path and devices");
    }
    let members: Vec<_> =
        members.unwrap_or_default().into_iter().map(|table| read_member(table, paths, report)).collect();
    root.finish(report);

    let names = Names::of(&members, report);
    check_placements(&members, report);
    check_access(&server, keys.is_empty(), report);
    let default_model = server.default_model.and_then(|model| names.resolve(&model, report));
    let keys = resolve_keys(keys, &names, report);
    Some(Deployment {
        server: Server { default_model, ..server.server },
        keys: keys?,
        queue,
        members: members.into_iter().map(|member| member.member).collect::<Option<_>>()?,
    })
}

const ADDRESS: Want = Want { what: "an IP address with a port", example: "\"127.0.0.1:8100\"" };
pub(crate) const FLAG: Want = Want { what: "true or false", example: "true" };
pub(crate) const NAME: Want = Want { what: "a name", example: "\"vela-4b\"" };

/// `[server]` before its default model is resolved.
pub(crate) struct RawServer {
    pub(crate) server: Server,
    /// Where `bind` stands, or the file's first line.
    pub(crate) bind: Place,
    default_model: Option<Placed<String>>,
}

impl Default for RawServer {
    fn default() -> Self {
        let server = Server {
            bind: SocketAddr::from(([127, 0, 0, 1], 8100)),
            admin: None,
            workers: None,
            open: false,
            default_model: None,
            drain: Duration::from_secs(30),
            request_timeout: Duration::from_mins(2),
            limits: Limits::default(),
        };
        Self { server, bind: Place { line: 1, key: "server.bind".to_owned() }, default_model: None }
    }
}

fn read_server(mut table: Table, report: &mut Report) -> RawServer {
    let mut raw = RawServer::default();
    let server = &mut raw.server;
    let address = |value: &DeValue| value.as_str()?.parse::<SocketAddr>().ok();
    if let Some(bind) = table.get(report, "bind", ADDRESS, address) {
        server.bind = bind.value;
        raw.bind = bind.place;
    }
    if let Some(admin) = table.get(report, "admin", ADDRESS, address) {
        server.admin = Some(admin.value);
        if !admin.value.ip().is_loopback() {
            let problem = format!("{} asks for no key: who reaches it may load the deployment again", admin.value);
            report.warning(&admin.place, problem, "let only the machines of your operators reach it");
        }
        if admin.value == server.bind && admin.value.port() != 0 {
            report.error(&admin.place, "the same address as server.bind", "give another port, or leave it out");
        }
    }
    let want = Want { what: "a whole number from 1 to 1024", example: "4" };
    let workers = table.get(report, "workers", want, whole(1..=1024));
    server.workers = workers.and_then(|workers| NonZeroUsize::new(workers.value as usize));
    if let Some(open) = table.get(report, "open", FLAG, boolean) {
        server.open = open.value;
    }
    raw.default_model = table.get(report, "default_model", NAME, text);
    let want = Want { what: "a whole number of seconds up to 1000000000", example: "30" };
    if let Some(seconds) = table.get(report, "drain_s", want, whole(0..=MAX_TIME)) {
        server.drain = Duration::from_secs(seconds.value);
    }
    let want = Want { what: "a whole number of milliseconds from 1 to 1000000000", example: "120_000" };
    if let Some(ms) = table.get(report, "request_timeout_ms", want, whole(1..=MAX_TIME)) {
        server.request_timeout = Duration::from_millis(ms.value);
    }
    server.limits = read_limits(&mut table, report);
    table.finish(report);
    raw
}

fn read_limits(table: &mut Table, report: &mut Report) -> Limits {
    let mut limits = Limits::default();
    let want = Want { what: "a whole number of MiB from 1 to 1024", example: "8" };
    if let Some(mib) = table.get(report, "max_body_mib", want, whole(1..=1024)) {
        limits.max_body_bytes = (mib.value as usize) << 20;
    }
    // Deeper than the reader of the runtime goes, nothing may be allowed.
    let want = Want { what: "a whole number from 1 to 128", example: "128" };
    if let Some(depth) = table.get(report, "max_json_depth", want, whole(1..=128)) {
        limits.max_json_depth = depth.value as usize;
    }
    let want = Want { what: "a whole number from 1 to 65536", example: "256" };
    if let Some(questions) = table.get(report, "max_questions", want, whole(1..=65_536)) {
        limits.max_questions = questions.value as usize;
    }
    let want = Want { what: "a whole number from 1 to 4096", example: "64" };
    if let Some(states) = table.get(report, "max_states", want, whole(1..=4096)) {
        limits.max_states = states.value as usize;
    }
    // A refusal repeats no more of an id than this.
    let want = Want { what: "a whole number from 1 to 1024", example: "256" };
    if let Some(chars) = table.get(report, "max_question_id_chars", want, whole(1..=1024)) {
        limits.max_question_id_chars = chars.value as usize;
    }
    // A choice has two options or more, a score two levels. Above the defaults no member was trained.
    let want = Want { what: "a whole number from 2 to 255", example: "255" };
    if let Some(options) = table.get(report, "max_options", want, whole(2..=255)) {
        limits.max_options = options.value as usize;
    }
    let want = Want { what: "a whole number from 2 to 10", example: "10" };
    if let Some(levels) = table.get(report, "max_score_levels", want, whole(2..=10)) {
        limits.max_score_levels = levels.value as usize;
    }
    limits
}

/// `[[key]]` before its models are resolved.
pub(crate) struct RawKey {
    pub(crate) sha256: Option<Placed<[u8; 32]>>,
    pub(crate) name: Option<Placed<String>>,
    pub(crate) models: Option<Placed<Vec<Placed<String>>>>,
    pub(crate) weight: u32,
    pub(crate) rate: Option<f64>,
}

fn read_key(mut table: Table, report: &mut Report) -> RawKey {
    let name = table.require(report, "name", Want { what: "a name", example: "\"router\"" }, text);
    let raw = RawKey {
        sha256: read_sha256(&mut table, report),
        name,
        models: table.list(report, "models", NAME, text),
        weight: {
            let want = Want { what: "a whole number from 1 to 1000000", example: "4" };
            table.get(report, "weight", want, whole(1..=1_000_000)).map_or(1, |weight| weight.value as u32)
        },
        rate: {
            let want = Want { what: "a number of requests per second above 0", example: "200" };
            table.get(report, "rate", want, positive).map(|rate| rate.value)
        },
    };
    table.finish(report);
    raw
}

/// Read apart from other texts: a key written where its digest belongs must not appear in a message.
fn read_sha256(table: &mut Table, report: &mut Report) -> Option<Placed<[u8; 32]>> {
    let advice = "write the digest, as in: printf %s \"$KEY\" | sha256sum";
    let Some(Placed { value, place }) = table.raw(report, "sha256") else {
        report.error(&table.place("sha256"), "expected 64 hex digits, found nothing", advice);
        return None;
    };
    let digest = value.as_str().and_then(sha256_from_hex);
    if digest.is_none() {
        let found = value.as_str().map_or("no text".to_owned(), |text| format!("{} characters", text.chars().count()));
        report.error(&place, format!("expected 64 hex digits, found {found}"), advice);
    }
    digest.map(|value| Placed { value, place })
}

fn read_queue(mut table: Table, report: &mut Report) -> Queue {
    let mut queue = Queue::default();
    let want = Want { what: "a whole number from 1 to 1000000000", example: "1024" };
    if let Some(requests) = table.get(report, "max_requests", want, whole(1..=MAX_COUNT)) {
        queue.max_requests = requests.value as usize;
    }
    let want = Want { example: "2_000_000", ..want };
    if let Some(tokens) = table.get(report, "max_tokens", want, whole(1..=MAX_COUNT)) {
        queue.max_tokens = tokens.value as usize;
    }
    let want = Want { example: "24_576", ..want };
    let batch_tokens = table.get(report, "batch_tokens", want, whole(1..=MAX_COUNT));
    if let Some(tokens) = &batch_tokens {
        queue.batch_tokens = tokens.value as usize;
    }
    if queue.batch_tokens > queue.max_tokens {
        let place = batch_tokens.map_or(table.place("batch_tokens"), |tokens| tokens.place);
        let problem = format!("{} is above max_tokens, {}", queue.batch_tokens, queue.max_tokens);
        report.error(&place, problem, "a batch holds no more than the queue: lower it or raise max_tokens");
    }
    let want = Want { what: "a whole number of microseconds up to 1000000000", example: "0" };
    if let Some(us) = table.get(report, "batch_window_us", want, whole(0..=MAX_TIME)) {
        queue.batch_window = Duration::from_micros(us.value);
    }
    table.finish(report);
    queue
}
