//! Whole requests in this process, from their JSON to the response's.

use std::fmt::Arguments;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};
use serde_json::{Value, json};
use synod::cli::local::compute;
use synod::family::{Readout, Rendered};
use synod::model::Forward;
use synod::wire::json as wire;
use synod::wire::request::{Limits, Request, Strictness};
use synod::wire::response::write_decision;

use super::{Bench, percentile};

/// One request, from its bytes to the response's text.
struct Run {
    total: Duration,
    render: Duration,
    finish: Duration,
    input_tokens: usize,
    computed_tokens: u64,
    operations: u64,
}

/// Prints the columns of [`measure`].
pub(super) fn head() {
    println!(
        "\nrequests; render is from the JSON to the tokens, finish from the logits to the response (both at the median)"
    );
    println!(
        "{:24} {:>7} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7}",
        "request", "tokens", "computed", "p50 ms", "p95 ms", "render ms", "finish ms", "GFLOP/s", "% peak"
    );
}

/// Prints the figures of a request, and returns them with the lengths of its trees. One run before the measured ones fills
/// the caches of tokenised texts.
pub(super) fn measure(bench: &mut Bench, name: &str, body: &[u8], runs: u32) -> Result<Value> {
    run(bench, body)?;
    let runs = (0..runs).map(|_| run(bench, body)).collect::<Result<Vec<_>>>()?;
    let sorted = |time: fn(&Run) -> Duration| {
        let mut times: Vec<_> = runs.iter().map(time).collect();
        times.sort_unstable();
        times
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let totals = sorted(|run| run.total);
    let total = percentile(&totals, 50);
    let rate = runs[0].operations as f64 / total.as_secs_f64();
    println!(
        "{name:24} {:>7} {:>8} {:>9.1} {:>9.1} {:>9.2} {:>9.2} {:>8.1} {:>7.1}",
        runs[0].input_tokens,
        runs[0].computed_tokens,
        ms(total),
        ms(percentile(&totals, 95)),
        ms(percentile(&sorted(|run| run.render), 50)),
        ms(percentile(&sorted(|run| run.finish), 50)),
        rate / 1e9,
        100.0 * rate / bench.peak
    );
    Ok(json!({
        "request": name,
        "input_tokens": runs[0].input_tokens,
        "computed_tokens": runs[0].computed_tokens,
        "p50_ms": ms(total),
        "trees": lengths(bench, body)?,
    }))
}

/// Of every tree: the tokens of its prefix, and of each block the tokens and how many positions are read.
fn lengths(bench: &Bench, body: &[u8]) -> Result<Vec<Value>> {
    let rendered = render(bench, body)?;
    let positions = |readout: &Readout| match readout {
        Readout::Candidates { options, .. } => options.len() + 1,
        Readout::Spans { words, labels, .. } => words.len() + labels.iter().map(ExactSizeIterator::len).sum::<usize>(),
    };
    let trees = rendered.plan.trees.iter().map(|tree| {
        let blocks =
            tree.blocks.iter().map(|block| json!({"tokens": block.ids.len(), "read": positions(&block.readout)}));
        json!({"prefix": tree.prefix.len(), "blocks": blocks.collect::<Vec<_>>()})
    });
    Ok(trees.collect())
}

fn render(bench: &Bench, body: &[u8]) -> Result<Rendered> {
    let request = Request::read(wire::parse(body)?, &Limits::default())
        .map_err(|problem| refused(format_args!("{:?}", problem.into_details(|_| None))))?;
    let family = bench.member.family();
    let rendered = family.render(&request.state, &request.questions, Strictness::AllOrNothing);
    rendered.map_err(|refusal| refused(format_args!("{refusal:?}")))
}

fn refused(reason: Arguments<'_>) -> Error {
    anyhow!("the request is refused: {reason}")
}

fn run(bench: &mut Bench, body: &[u8]) -> Result<Run> {
    let before = bench.model.tally().tokens_computed;
    bench.account.take();
    let started = Instant::now();
    let rendered = render(bench, body)?;
    let render_time = started.elapsed();
    let logits = compute(&mut bench.model, &rendered)?;
    let computed = Instant::now();
    let decision = rendered.pending.finish(&logits).map_err(|refusal| refused(format_args!("{refusal:?}")))?;
    let response = write_decision(bench.member.package().model_name(), &decision);
    let (total, finish) = (started.elapsed(), computed.elapsed());
    std::hint::black_box(response);
    Ok(Run {
        total,
        render: render_time,
        finish,
        input_tokens: decision.input_tokens,
        computed_tokens: bench.model.tally().tokens_computed - before,
        operations: bench.account.take().iter().map(|cost| cost.operations).sum(),
    })
}
