//! Runs inputs against a target for a bounded time.
//!
//! Inputs run on a thread of their own, so that one that hangs is noticed; the thread is then left behind, and the process ends
//! with the test.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::mutate::mutate;

/// As long as a refusal's line may be.
const MAX_LINE_BYTES: usize = 1000;
/// Far more than the slowest input takes, on a machine that is busy with other tests.
const HANG: Duration = Duration::from_secs(30);
/// As much of an input as a failure shows.
const SHOWN_BYTES: usize = 4000;

/// What a target says of an input: accepted, or its refusal.
pub(crate) type Verdict = Result<(), String>;
pub(crate) type TryInput = Box<dyn FnMut(&[u8]) -> Verdict + Send>;

/// How long to run, and from where.
pub(crate) struct Fuzz {
    pub(crate) seed: u64,
    pub(crate) duration: Duration,
    pub(crate) hang: Duration,
}

/// What a run without failure did.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) inputs: u64,
    pub(crate) accepted: u64,
    seconds: f64,
}

/// An input that broke the property.
pub(crate) struct Failure {
    seed: u64,
    number: u64,
    what: String,
    input: Vec<u8>,
}

impl Fuzz {
    /// `SYNOD_TEST_SEED`, printed, and `SYNOD_FUZZ_SECONDS`.
    pub(crate) fn from_environment() -> Self {
        let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a whole number"));
        let seed: u64 = number("SYNOD_TEST_SEED").unwrap_or_else(rand::random);
        println!("SYNOD_TEST_SEED={seed}");
        let duration = Duration::from_secs(number("SYNOD_FUZZ_SECONDS").unwrap_or(5));
        Self { seed, duration, hang: HANG }
    }
}

/// Hands changed `seeds` to `try_input` until the time is over; the sound ones come first.
pub(crate) fn fuzz(fuzz: &Fuzz, seeds: &[Vec<u8>], mut try_input: TryInput) -> Result<Report, Failure> {
    let (inputs, inbox) = channel::<Vec<u8>>();
    let (outbox, verdicts) = channel();
    thread::spawn(move || {
        for input in inbox {
            let verdict = catch_unwind(AssertUnwindSafe(|| try_input(&input)));
            if outbox.send(verdict.map_err(|panic| panic_text(&*panic))).is_err() {
                break;
            }
        }
    });
    let started = Instant::now();
    let (mut number, mut accepted) = (0, 0);
    while started.elapsed() < fuzz.duration || number < seeds.len() as u64 {
        let input = match seeds.get(number as usize) {
            Some(seed) => seed.clone(),
            None => input(fuzz.seed, number, seeds),
        };
        let what = judge(&inputs, &verdicts, &input, fuzz.hang);
        let is_sound = number < seeds.len() as u64;
        match what {
            Ok(true) => accepted += 1,
            Ok(false) if is_sound => return Err(failure(fuzz, number, "a sound seed was refused".to_owned(), input)),
            Ok(false) => {}
            Err(what) => return Err(failure(fuzz, number, what, input)),
        }
        number += 1;
    }
    Ok(Report { inputs: number, accepted, seconds: started.elapsed().as_secs_f64() })
}

fn failure(fuzz: &Fuzz, number: u64, what: String, input: Vec<u8>) -> Failure {
    Failure { seed: fuzz.seed, number, what, input }
}

/// Input `number` of the run from `seed`.
fn input(seed: u64, number: u64, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let mut input = seeds[random.random_range(0..seeds.len())].clone();
    for _ in 0..random.random_range(1..=4) {
        let other = &seeds[random.random_range(0..seeds.len())];
        mutate(&mut input, other, &mut random);
    }
    input
}

/// Whether an input was accepted; what it did that it must not.
fn judge(
    inputs: &Sender<Vec<u8>>,
    verdicts: &Receiver<Result<Verdict, String>>,
    input: &[u8],
    hang: Duration,
) -> Result<bool, String> {
    inputs.send(input.to_vec()).map_err(|_| "the thread has ended".to_owned())?;
    match verdicts.recv_timeout(hang) {
        Err(RecvTimeoutError::Timeout) => Err(format!("no end after {hang:?}")),
        Err(RecvTimeoutError::Disconnected) => Err("the thread has ended".to_owned()),
        Ok(Err(panic)) => Err(format!("a panic: {panic}")),
        Ok(Ok(Ok(()))) => Ok(true),
        Ok(Ok(Err(refusal))) if refusal.is_empty() => Err("a refusal without a word".to_owned()),
        Ok(Ok(Err(refusal))) if refusal.contains(char::is_control) => Err(format!("control characters: {refusal:?}")),
        Ok(Ok(Err(refusal))) if refusal.len() >= MAX_LINE_BYTES => Err(format!("a long refusal: {refusal}")),
        Ok(Ok(Err(_))) => Ok(false),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inputs, accepted, seconds } = self;
        let rate = *inputs as f64 / seconds;
        write!(f, "{inputs} inputs in {seconds:.1} s, {rate:.0} a second; {accepted} accepted")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, number, what, input } = self;
        let shown = input[..input.len().min(SHOWN_BYTES)].escape_ascii();
        write!(f, "SYNOD_TEST_SEED={seed}, input {number} ({} bytes): {what}\n{shown}", input.len())
    }
}

/// A harness that finds nothing would pass for a product without defects.
mod tests {
    use super::*;

    fn failure(limit: Duration, try_input: impl FnMut(&[u8]) -> Verdict + Send + 'static) -> String {
        let bounds = Fuzz { seed: 1, duration: Duration::from_mins(1), hang: limit };
        let seeds = vec![br#"{"a":[1,2],"b":"text"}"#.to_vec()];
        let failure = fuzz(&bounds, &seeds, Box::new(try_input)).expect_err("a defect was planted");
        assert_eq!(
            failure.input,
            if failure.number == 0 { seeds[0].clone() } else { input(1, failure.number, &seeds) }
        );
        failure.to_string()
    }

    fn planted(limit: Duration, defect: impl Fn() -> Verdict + Send + 'static) -> String {
        failure(limit, move |input| if input.starts_with(b"{") && !input.ends_with(b"}") { defect() } else { Ok(()) })
    }

    #[test]
    fn planted_defects_are_found() {
        let long = Duration::from_mins(1);
        assert!(planted(long, || panic!("planted")).contains("a panic: planted"));
        assert!(planted(long, || Err("two\nlines".to_owned())).contains("control characters"));
        assert!(planted(long, || Err("x".repeat(1000))).contains("a long refusal"));
        assert!(planted(long, || Err(String::new())).contains("a refusal without a word"));
        let (keep, never) = channel::<()>();
        let found = failure(Duration::from_millis(50), move |input| {
            if input.starts_with(b"{") && input.ends_with(b"}") {
                return Ok(());
            }
            let _ = never.recv();
            Ok(())
        });
        assert!(found.contains("no end after 50ms"), "{found}");
        drop(keep);
        assert!(failure(long, |_| Err("refused".to_owned())).contains("a sound seed was refused"));
    }
}
