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

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use synod_config::Deployment;

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

/// Keys of a deployment file that this build reads and does nothing with, whatever their value.
const WITHOUT_EFFECT: [&str; 5] =
    ["member.drift_every_s", "member.gates", "member.on_drift", "member.replay", "queue.batch_window_us"];

/// A line for each key of the file that asks for something that this build does not do. Whoever wrote it should know.
fn without_effect(deployment: &Deployment, file: &Path) -> Vec<String> {
    let idle = deployment.given.iter().filter(|place| WITHOUT_EFFECT.contains(&place.key.as_str()));
    idle.map(|place| format!("{}:{}: {}: has no effect in this build", file.display(), place.line, place.key)).collect()
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

    #[test]
    fn keys_without_effect_are_named_where_they_stand_also_with_their_defaults() {
        let text = "[queue]\nbatch_window_us = 0\nmax_requests = 9\n[[member]]\nname = \"m\"\npath = \"m\"\n\
                    devices = [\"cpu:*\"]\ngates = { logit = 1e-5 }\non_drift = \"quarantine\"\n";
        let (deployment, _) = Deployment::from_toml_with(text, Path::new("x.toml"), |_| true).unwrap();
        assert_eq!(
            without_effect(&deployment, Path::new("x.toml")),
            [
                "x.toml:2: queue.batch_window_us: has no effect in this build",
                "x.toml:8: member.gates: has no effect in this build",
                "x.toml:9: member.on_drift: has no effect in this build",
            ]
        );
    }
}
