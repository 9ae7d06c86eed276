//! A member to order, for tests: what its forward does is written in the tokens that it is given.
//!
//! No test sleeps. A forward that finds [`HOLD`] says so and waits until the test lets it go, so that a test knows
//! what is running and what is queued.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use synod_config::{Gates, OnDrift};
use synod_kernels::KernelError;
use tokio::sync::{mpsc, watch};

use crate::executor::{Batching, Cases, Drift, Face, Factory, Loaded, Occupied, OpenCase, Replay, Unopened};
use crate::family::{Block, Family, Logits, Pending, Plan, Readout, Rendered, Tree};
use crate::member::Progress;
use crate::model::{Forward, ModelError, Tally};
use crate::supervisor::{Listing, Placement, Policy, Seat, Settings};
use crate::wire::json::Value;
use crate::wire::request::{Question, Strictness};
use crate::wire::response::{Answer, Decision, Detail, Loc, Refusal};

/// A token that makes the forward panic.
pub(crate) const PANIC: u32 = 1;
/// A token that makes the device fail.
pub(crate) const ERROR: u32 = 2;
/// A token that makes the forward say that it has begun, and wait.
pub(crate) const HOLD: u32 = 3;
/// A token that makes the forward give no logits.
pub(crate) const SHORT: u32 = 4;
/// A token that makes the forward say that it has begun, and go from pass to pass until nobody wants it any more.
pub(crate) const ENDLESS: u32 = 5;
/// A token that is not in the vocabulary.
pub(crate) const UNKNOWN: u32 = 6;
/// The token of the warm-up, of which nothing is counted.
const WARM_UP: u32 = 7;
/// The first token without a meaning.
pub(crate) const PLAIN: u32 = 10;

/// A member's strings, in the test's hand.
pub(crate) struct Puppet {
    /// How many of the next loads fail.
    pub(crate) failing_loads: AtomicUsize,
    pub(crate) loads: AtomicUsize,
    /// How many of the next loads end their own thread.
    pub(crate) fatal_loads: AtomicUsize,
    /// How many of the next warm-ups fail.
    pub(crate) failing_warm_ups: AtomicUsize,
    /// How many warm-ups were computed, none of them with kept prefixes.
    pub(crate) warm_ups: AtomicUsize,
    /// The prefixes' first tokens of every other call of the forward, in order.
    pub(crate) calls: Mutex<Vec<Vec<u32>>>,
    /// How many of the calls may have used kept prefixes.
    pub(crate) cached_calls: AtomicUsize,
    /// Whether recorded cases are out of their gates.
    pub(crate) is_off: AtomicBool,
    /// Whether recorded cases cannot be read.
    pub(crate) is_unreadable: AtomicBool,
    /// Whether the embedding file is no longer the one that was verified: forwards fail, and a load makes it good.
    pub(crate) is_altered: AtomicBool,
    /// How many forwards have been dropped.
    drops: watch::Sender<usize>,
    entered: mpsc::UnboundedSender<()>,
    release: Receiver<()>,
}

impl Puppet {
    /// Says that it holds, and waits until the test lets it go.
    fn hold(&self) {
        self.entered.send(()).unwrap();
        self.release.recv().unwrap();
    }
}

/// The other ends of a [`Puppet`]'s strings.
pub(crate) struct Strings {
    pub(crate) puppet: Arc<Puppet>,
    entered: mpsc::UnboundedReceiver<()>,
    release: Sender<()>,
    /// Of the seats that are made next.
    pub(crate) fingerprint: String,
    pub(crate) window: Duration,
    pub(crate) replay: Option<Replay>,
}

impl Strings {
    pub(crate) fn new() -> Self {
        let (entered_sender, entered) = mpsc::unbounded_channel();
        let (release, release_receiver) = unbounded();
        let puppet = Arc::new(Puppet {
            failing_loads: AtomicUsize::new(0),
            loads: AtomicUsize::new(0),
            fatal_loads: AtomicUsize::new(0),
            failing_warm_ups: AtomicUsize::new(0),
            warm_ups: AtomicUsize::new(0),
            calls: Mutex::default(),
            cached_calls: AtomicUsize::new(0),
            is_off: AtomicBool::new(false),
            is_unreadable: AtomicBool::new(false),
            is_altered: AtomicBool::new(false),
            drops: watch::Sender::new(0),
            entered: entered_sender,
            release: release_receiver,
        });
        Strings { puppet, entered, release, fingerprint: "first".into(), window: Duration::ZERO, replay: None }
    }

    /// Has the seats that are made next replay a case of each of these tokens.
    pub(crate) fn record(&mut self, tokens: &[u32], every: Duration, on_drift: OnDrift) {
        let cases = PuppetCases {
            puppet: Arc::clone(&self.puppet),
            names: tokens.iter().map(|token| format!("case-{token}")).collect(),
            plans: tokens.iter().map(|&token| plan(token, 5)).collect(),
        };
        self.replay = Some(Replay { cases: Arc::new(cases), every, on_drift });
    }

    /// Waits until a forward holds.
    pub(crate) async fn held(&mut self) {
        self.entered.recv().await.unwrap();
    }

    /// Lets one held forward go, now or once it holds.
    pub(crate) fn let_go(&self) {
        self.release.send(()).unwrap();
    }

    /// Waits until `count` forwards have been dropped.
    pub(crate) async fn dropped(&self, count: usize) {
        self.puppet.drops.subscribe().wait_for(|drops| *drops >= count).await.unwrap();
    }

    pub(crate) fn calls(&self) -> Vec<Vec<u32>> {
        self.puppet.calls.lock().unwrap().clone()
    }

    /// The member on one device.
    pub(crate) fn seat(&self, name: &str) -> Seat {
        self.seat_on(name, &["cpu:0"])
    }

    pub(crate) fn seat_on(&self, name: &str, devices: &[&str]) -> Seat {
        let listing = Listing {
            name: name.into(),
            aliases: vec![format!("{name}-latest")],
            description: "a puppet".into(),
            release_date: "2026-10-01".into(),
            profile: "fp32".into(),
            required: true,
        };
        let place = |device: &&str| Placement {
            device: (*device).into(),
            fingerprint: self.fingerprint.clone(),
            demand: None,
            batching: Batching { tokens: 100, window: self.window },
            factory: factory(&self.puppet, self.replay.clone()),
        };
        Seat { listing, placements: devices.iter().map(place).collect() }
    }
}

/// Settings under which a failed executor is built again at once.
pub(crate) fn settings() -> Settings {
    settings_with_pause(Duration::ZERO)
}

/// Settings under which a failed executor stays as it is while a test looks at it.
pub(crate) fn patient_settings() -> Settings {
    settings_with_pause(Duration::from_hours(1))
}

fn settings_with_pause(pause: Duration) -> Settings {
    let backoff = Policy { first: pause, longest: pause, forgiven_after: Duration::from_hours(1), ..Policy::default() };
    Settings { default_model: None, backoff }
}

fn factory(puppet: &Arc<Puppet>, replay: Option<Replay>) -> Factory {
    let puppet = Arc::clone(puppet);
    Arc::new(move |progress| {
        puppet.loads.fetch_add(1, Ordering::SeqCst);
        puppet.is_altered.store(false, Ordering::SeqCst);
        let fails = |left: usize| left.checked_sub(1);
        if puppet.fatal_loads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            actix::Arbiter::current().stop();
            return Err("the thread is about to end".into());
        }
        progress.start(100);
        progress.advance(40);
        if puppet.failing_loads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err("model.safetensors: expected a file, found none".into());
        }
        let face = Face {
            family: Arc::new(PuppetFamily(Arc::clone(&puppet))),
            family_name: "puppet",
            model_name: "fakes/puppet".into(),
            digest: "sha256:00".into(),
        };
        Ok(Loaded {
            forward: Box::new(PuppetForward { puppet: Arc::clone(&puppet), tally: Tally::default(), is_cached: true }),
            face: Arc::new(face),
            replay: replay.clone(),
        })
    })
}

struct PuppetForward {
    puppet: Arc<Puppet>,
    tally: Tally,
    is_cached: bool,
}

impl PuppetForward {
    fn warm_up(&self) -> Result<Vec<Vec<Logits>>, ModelError> {
        assert!(!self.is_cached, "a warm-up keeps nothing");
        let fails = |left: usize| left.checked_sub(1);
        if self.puppet.failing_warm_ups.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err(no_memory());
        }
        self.puppet.warm_ups.fetch_add(1, Ordering::SeqCst);
        Ok(vec![vec![Logits { values: vec![0.0], columns: 1 }]])
    }
}

fn no_memory() -> ModelError {
    KernelError::Resource { op: "linear", message: "no memory".into() }.into()
}

impl Drop for PuppetForward {
    fn drop(&mut self) {
        self.puppet.drops.send_modify(|drops| *drops += 1);
    }
}

impl Forward for PuppetForward {
    fn forward(&mut self, trees: &[&Tree], keep_going: &dyn Fn() -> bool) -> Result<Vec<Vec<Logits>>, ModelError> {
        let firsts: Vec<u32> = trees.iter().map(|tree| tree.prefix[0]).collect();
        if firsts == [WARM_UP] {
            return self.warm_up();
        }
        self.puppet.calls.lock().unwrap().push(firsts.clone());
        self.puppet.cached_calls.fetch_add(usize::from(self.is_cached), Ordering::SeqCst);
        if firsts.contains(&HOLD) {
            self.puppet.hold();
        }
        if firsts.contains(&ENDLESS) {
            self.puppet.entered.send(()).unwrap();
            while keep_going() {
                std::thread::yield_now();
            }
        }
        if !keep_going() {
            return Err(ModelError::Abandoned);
        }
        assert!(!firsts.contains(&PANIC), "the test asked for a panic");
        if firsts.contains(&UNKNOWN) {
            return Err(ModelError::TokenId { id: UNKNOWN, vocab_size: 6 });
        }
        if self.puppet.is_altered.load(Ordering::SeqCst) {
            return Err(KernelError::Rows { op: "embedding_gather", message: "row 7".into() }.into());
        }
        if firsts.contains(&ERROR) {
            return Err(no_memory());
        }
        if firsts.contains(&SHORT) {
            return Ok(Vec::new());
        }
        let prefixes: HashSet<&[u32]> = trees.iter().map(|tree| &*tree.prefix).collect();
        let blocks = trees.iter().map(|tree| tree.tokens() - tree.prefix.len()).sum::<usize>();
        self.tally.tokens_computed += (prefixes.into_iter().map(<[u32]>::len).sum::<usize>() + blocks) as u64;
        self.tally.prefix_cache_bytes = self.tally.tokens_computed;
        Ok(trees.iter().map(|tree| vec![Logits { values: vec![tree.prefix[0] as f32], columns: 1 }]).collect())
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn use_prefix_cache(&mut self, is_used: bool) {
        self.is_cached = is_used;
    }
}

/// One case a token. Its forward must give the token itself, unless the test has it off.
struct PuppetCases {
    puppet: Arc<Puppet>,
    names: Vec<String>,
    plans: Vec<Plan>,
}

struct PuppetCase<'a> {
    puppet: &'a Puppet,
    plan: &'a Plan,
}

impl Cases for PuppetCases {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn gates(&self) -> Gates {
        Gates { logit: 0.25, answer: 0.125 }
    }

    fn open(&self, number: usize) -> Result<Option<Box<dyn OpenCase + '_>>, Unopened> {
        if self.puppet.is_unreadable.load(Ordering::SeqCst) {
            return Err(Unopened::Unreadable("case.json: no such file".into()));
        }
        Ok(Some(Box::new(PuppetCase { puppet: &self.puppet, plan: &self.plans[number] })))
    }
}

impl OpenCase for PuppetCase<'_> {
    fn plan(&self) -> &Plan {
        self.plan
    }

    fn judge(&self, logits: &[Vec<Logits>]) -> Drift {
        assert_eq!(logits[0][0].values[0] as u32, self.plan.trees[0].prefix[0]);
        let is_off = self.puppet.is_off.load(Ordering::SeqCst);
        let difference = is_off.then(|| "logits.q, row 0: option 0: expected 1 within 2.5e-1, found 1.5".to_owned());
        Drift { logit: Some(if is_off { 0.5 } else { 0.0625 }), answer: Some(0.0), difference }
    }
}

/// What a request occupies that nobody counts.
pub(crate) fn nothing() -> Occupied {
    Arc::new(())
}

/// A plan of `tokens` tokens (at least two) whose forward gives `first`.
pub(crate) fn plan(first: u32, tokens: usize) -> Plan {
    let mut prefix = vec![0; tokens - 1];
    prefix[0] = first;
    let readout = Readout::Candidates { options: vec![0], query: 0, set_bias: false };
    Plan { trees: vec![Tree { prefix: prefix.into(), blocks: vec![Block { ids: vec![0], readout }] }] }
}

/// Reads `state` as what its forward should do.
struct PuppetFamily(Arc<Puppet>);

impl Family for PuppetFamily {
    fn render(&self, state: &Value, questions: &[(String, Question)], _: Strictness) -> Result<Rendered, Refusal> {
        let word = state.as_str().unwrap_or_default();
        let first = match word {
            "panic" => PANIC,
            "error" => ERROR,
            "unknown" => UNKNOWN,
            "hold" => HOLD,
            "short" => SHORT,
            "endless" => ENDLESS,
            "render hold" => {
                self.0.hold();
                PLAIN
            }
            "render panic" => panic!("the test asked for a panic over {word}"),
            "invalid" => {
                let loc = vec![Loc::Key("body".into()), Loc::Key("state".into())];
                return Err(Refusal::Invalid(vec![Detail { loc, msg: "must not be invalid".into(), code: "type" }]));
            }
            "too long" => return Err(Refusal::TooLong { message: "the questions do not fit".into() }),
            // A number is a token itself.
            _ => word.parse().unwrap_or(PLAIN),
        };
        let plan = if word == "nothing" { Plan::default() } else { plan(first, 50) };
        let ids = questions.iter().map(|(id, _)| id.clone()).collect();
        Ok(Rendered { plan, pending: Box::new(PuppetPending { ids, not_finite: word == "not finite" }) })
    }

    fn warm_up(&self) -> Result<Plan, Refusal> {
        Ok(plan(WARM_UP, 5))
    }

    fn question_kind(&self, question: &Question) -> Option<&'static str> {
        (question.as_object()?.get("type")?.as_str()? == "noul").then_some("noul")
    }

    fn question_types(&self) -> &'static [&'static str] {
        &["noul"]
    }

    fn max_length_tokens(&self) -> usize {
        100
    }
}

struct PuppetPending {
    ids: Vec<String>,
    not_finite: bool,
}

impl Pending for PuppetPending {
    fn finish(self: Box<Self>, logits: &[Vec<Logits>]) -> Result<Decision, Refusal> {
        if self.not_finite {
            return Err(Refusal::InvalidModelOutput { question: self.ids[0].clone() });
        }
        let noul = logits.first().map_or(0.0, |tree| f64::from(tree[0].values[0]));
        let answers = self.ids.into_iter().map(|id| (id, Answer::Noul { noul, abstain_probability: None })).collect();
        Ok(Decision {
            answers,
            input_tokens: 50,
            spans: Vec::new(),
            span_heads: Vec::new(),
            sets: Vec::new(),
            thresholds: Vec::new(),
        })
    }
}
