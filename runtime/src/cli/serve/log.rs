//! The server's log, on stderr: ids, counts and times, never a text of a request.
//!
//! A thread of its own writes it. Where nobody reads stderr, lines are lost, and the event loops go on.

use std::io::{IsTerminal, stderr};
use std::panic;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// What is logged where `RUST_LOG` says nothing. What actix says of its threads helps nobody who serves.
const DEFAULT_FILTER: &str = "info,actix_server=warn";

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LogFormat {
    /// For people, with colours at a terminal.
    Human,
    /// One JSON object a line.
    Json,
}

/// Lines that wait to be written; what comes beyond them is lost.
const WAITING_LINES: usize = 8192;

/// Starts the log, and keeps panic messages out of it. What waits is written when the guard is dropped.
pub(super) fn start(format: LogFormat) -> WorkerGuard {
    let (writer, guard) =
        NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_LINES).finish(stderr());
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Human => builder.with_ansi(stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().init(),
    }
    // A panic's message may quote the text that it failed on (a slice off a character's boundary does); its place
    // says as much about the defect and nothing about the request.
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current();
        tracing::error!(place, thread = thread.name().unwrap_or_default(), "panicked");
    }));
    guard
}
