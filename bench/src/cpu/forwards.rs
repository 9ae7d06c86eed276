//! Whole forwards of one tree, by its tokens and by phase.

use std::time::{Duration, Instant};

use anyhow::Result;
use synod::family::{Block, Readout, Tree};
use synod::model::Forward;

use super::timed::{Cost, Phase};
use super::{Bench, percentile};

/// Tokens of the last part of a tree, which questions share evenly.
const BLOCKS_TOKENS: usize = 128;
const BLOCKS: usize = 4;
/// Options of each question.
const OPTIONS: u32 = 4;

/// Prints time, rate and the phases' shares of forwards of so many tokens.
pub(super) fn measure(bench: &mut Bench, tokens: &[usize], runs: u32) -> Result<()> {
    println!(
        "\nforwards of a state and {BLOCKS} questions of {} tokens; % of the time, and GFLOP/s, by phase",
        BLOCKS_TOKENS / BLOCKS
    );
    print!("{:>7} {:>9} {:>9} {:>8} {:>8} {:>7}", "tokens", "p50 ms", "p95 ms", "tokens/s", "GFLOP/s", "% peak");
    for phase in Phase::ALL {
        print!(" {:>11}", phase.name());
    }
    println!();
    for &tokens in tokens {
        let tree = tree(tokens.max(2 * BLOCKS_TOKENS));
        bench.model.forward(&[&tree], &|| true)?;
        bench.account.take();
        let mut runs = (0..runs).map(|_| run(bench, &tree)).collect::<Result<Vec<_>>>()?;
        runs.sort_unstable_by_key(|(time, _)| *time);
        let times: Vec<_> = runs.iter().map(|(time, _)| *time).collect();
        let (p50, p95) = (percentile(&times, 50), percentile(&times, 95));
        let costs = runs[times.partition_point(|time| *time < p50)].1;
        let rate = costs.iter().map(|cost| cost.operations).sum::<u64>() as f64 / p50.as_secs_f64();
        print!(
            "{:>7} {:>9.1} {:>9.1} {:>8.0} {:>8.1} {:>7.1}",
            tree.tokens(),
            p50.as_secs_f64() * 1e3,
            p95.as_secs_f64() * 1e3,
            tree.tokens() as f64 / p50.as_secs_f64(),
            rate / 1e9,
            100.0 * rate / bench.peak
        );
        for Cost { time, operations } in costs {
            let share = 100.0 * time.as_secs_f64() / p50.as_secs_f64();
            let rate = operations as f64 / time.as_secs_f64() / 1e9;
            let shown = if operations > 0 { format!("{share:.1} ({rate:.0})") } else { format!("{share:.1}") };
            print!(" {shown:>11}");
        }
        println!();
    }
    Ok(())
}

fn run(bench: &mut Bench, tree: &Tree) -> Result<(Duration, [Cost; Phase::ALL.len()])> {
    let start = Instant::now();
    bench.model.forward(&[tree], &|| true)?;
    Ok((start.elapsed(), bench.account.take()))
}

/// A tree of so many tokens, at least those of its blocks.
fn tree(tokens: usize) -> Tree {
    // Ids that any vocabulary has, spread so that few are equal.
    let ids = |start: usize, len: usize| (start..start + len).map(|token| (token * 7919 % 1999) as u32);
    let len = BLOCKS_TOKENS / BLOCKS;
    let prefix = tokens - BLOCKS_TOKENS;
    let readout = || Readout::Candidates { options: (1..=OPTIONS).collect(), query: len as u32 - 1, set_bias: false };
    let blocks = (0..BLOCKS).map(|block| Block { ids: ids(prefix + block * len, len).collect(), readout: readout() });
    Tree { prefix: ids(0, prefix).collect(), blocks: blocks.collect() }
}
