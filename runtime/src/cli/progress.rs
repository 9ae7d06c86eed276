//! Bars for work that takes a while, for people at a terminal.

use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::member::Progress;

/// Work that ends sooner shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);
/// What is done, how fast, and when it ends.
const TEMPLATE: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// A bar on stderr over bytes that are read or written; nothing where stderr is no terminal. It goes when dropped.
pub struct Bar {
    bar: ProgressBar,
    started: OnceLock<Instant>,
}

impl Bar {
    /// A bar that says what is going on.
    pub fn new(message: &'static str) -> Self {
        // Falls back to another look, should the template ever be spoiled.
        let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self { bar: bar.with_style(style).with_message(message), started: OnceLock::new() }
    }
}

impl Progress for Bar {
    fn start(&self, total_bytes: u64) {
        self.bar.set_length(total_bytes);
        self.started.get_or_init(Instant::now);
    }

    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
        let is_long = self.started.get().is_some_and(|started| started.elapsed() >= PATIENCE);
        if is_long && self.bar.is_hidden() && stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
