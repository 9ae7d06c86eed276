//! The command line: what the arguments mean, and one line on stderr for whatever goes wrong.
//!
//! Each command is a module with its own arguments and `run`. Exit codes: 0 for success, 1 for a command that failed,
//! 2 for arguments that make no command. Results go to stdout, everything else to stderr.

mod anchor;
mod ask;
mod check;
mod export;
mod key;
pub mod local;
mod plan;
pub mod progress;
mod replay;
mod serve;
mod synth;
mod table;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Serves System One decision models.
#[derive(Parser)]
#[command(name = "synod", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Serve),
    Ask(ask::Ask),
    Check(check::Check),
    Plan(plan::Plan),
    Export(export::Export),
    Verify(verify::Verify),
    Replay(replay::Replay),
    Key(key::Key),
    Synth(synth::Synth),
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Ask(ask) => ask.run(),
        Command::Check(check) => check.run(),
        Command::Plan(plan) => plan.run(),
        Command::Export(export) => export.run(),
        Command::Verify(verify) => verify.run(),
        Command::Replay(replay) => replay.run(),
        Command::Key(key) => key.run(),
        Command::Synth(synth) => synth.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with what caused it. Many errors name their cause themselves, so what a neighbour says is left out.
fn one_line(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        match parts.last_mut() {
            Some(last) if last.contains(&cause) => {}
            Some(last) if cause.contains(last.as_str()) => *last = cause,
            _ => parts.push(cause),
        }
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn an_error_says_everything_once() {
        let check = |error: anyhow::Error, expected: &str| assert_eq!(one_line(&error), expected);
        check(anyhow!("a: not found"), "a: not found");
        check(anyhow!("not found").context("a: not found; look").context("read"), "read: a: not found; look");
        check(anyhow!("a: not found").context("a"), "a: not found");
    }
}
