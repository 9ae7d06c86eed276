//! `synod-bench`: figures of this program on this machine.
//!
//! Every report begins with the machine that it was made on. Figures of different runs or machines are not comparable.

mod cpu;
mod front;
mod hash;
mod load_command;

use clap::{Parser, Subcommand};

/// Measures Synod on this machine.
#[derive(Parser)]
#[command(name = "synod-bench", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Cpu(cpu::Cpu),
    Front(front::Front),
    Hash(hash::Hash),
    Load(load_command::Load),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Cpu(cpu) => cpu.run(),
        Command::Front(front) => front.run(),
        Command::Hash(hash) => hash.run(),
        Command::Load(load) => load.run(),
    }
}
