//! The graphics cards, as NVML reports them.
//!
//! NVML comes with the driver and is loaded at run time: a machine without a card, without a driver or with a broken
//! one is a state with a message, never an error. It may also block for as long as the driver does, so that a thread of
//! its own asks it, and everybody else reads what it said last. Nothing of what it says is taken for granted: a card
//! whose figures contradict each other is shown with what is wrong with it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use tokio::sync::watch;

/// The name that every driver installs; the one without a number comes with its development files only.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Between two looks at cards.
const PERIOD: Duration = Duration::from_secs(5);
/// Between two looks where none were found: a driver may be loaded later.
const PERIOD_WITHOUT: Duration = Duration::from_mins(1);
/// More is a library that lies: no machine holds as many.
const MOST_CARDS: u32 = 1024;

/// What NVML said when it was asked last.
#[derive(Clone, Debug, PartialEq)]
pub enum Cards {
    /// It was not asked yet, or has not answered.
    Unknown,
    /// There are none to be had, for this reason.
    Absent { reason: String },
    /// What there is, by index.
    Present { driver: Option<String>, cards: Vec<Card> },
}

/// One card.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Card {
    /// As NVML counts, which is by PCI bus.
    pub index: u32,
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub total_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    /// Major and minor.
    pub compute_capability: Option<(u32, u32)>,
    /// Whether memory is checked and corrected.
    pub ecc: Option<bool>,
    /// What keeps its clocks down now, but for idling.
    pub throttled_by: Vec<String>,
    /// Of the last sampling period of the driver, 0 to 1.
    pub utilization_ratio: Option<f64>,
    pub celsius: Option<u32>,
    pub watts: Option<f64>,
    /// What is wrong with it or with what is said of it; no placement can be there.
    pub defect: Option<String>,
}

/// Who asks NVML, on a thread of its own until the last receiver is dropped.
pub struct Sensors;

impl Sensors {
    /// Starts asking. Cards are [`Cards::Unknown`] until NVML has answered for the first time.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start() -> std::io::Result<watch::Receiver<Arc<Cards>>> {
        let (sender, receiver) = watch::channel(Arc::new(Cards::Unknown));
        thread::Builder::new().name("nvml".to_owned()).spawn(move || ask(&sender))?;
        Ok(receiver)
    }
}

fn ask(sender: &watch::Sender<Arc<Cards>>) {
    let mut nvml = None;
    while !sender.is_closed() {
        let cards = look(&mut nvml);
        let period = if matches!(cards, Cards::Present { .. }) { PERIOD } else { PERIOD_WITHOUT };
        sender.send_if_modified(|known| {
            let is_news = **known != cards;
            if is_news {
                say(known, &cards);
                *known = Arc::new(cards);
            }
            is_news
        });
        thread::sleep(period);
    }
}

/// Looks at the cards, through a library that is loaded once it can be.
fn look(nvml: &mut Option<Nvml>) -> Cards {
    let opened = match nvml.take() {
        Some(opened) => Ok(opened),
        None => Nvml::builder().lib_path(OsStr::new(LIBRARY)).init(),
    };
    let found = opened.and_then(|opened| {
        let opened = nvml.insert(opened);
        let count = opened.device_count()?.min(MOST_CARDS);
        Ok(Cards::Present { driver: opened.sys_driver_version().ok(), cards: all(opened, count) })
    });
    found.unwrap_or_else(|error| {
        // A library that fails as a whole is opened anew: its driver may have been restarted.
        *nvml = None;
        Cards::Absent { reason: why(&error) }
    })
}

fn all(nvml: &Nvml, count: u32) -> Vec<Card> {
    let mut uuids = HashSet::new();
    let cards = (0..count).map(|index| match nvml.device_by_index(index) {
        Ok(device) => Card { index, ..card(&device) },
        Err(error) => Card { index, defect: Some(why(&error)), ..Card::default() },
    });
    cards
        .map(|mut card| {
            let is_new = card.uuid.clone().is_none_or(|uuid| uuids.insert(uuid));
            card.defect = card.defect.or_else(|| (!is_new).then(|| "another card has the same UUID".to_owned()));
            card
        })
        .collect()
}

fn card(device: &Device) -> Card {
    let memory = device.memory_info();
    let uuid = device.uuid();
    let defect = match (&memory, &uuid) {
        (Err(error), _) | (_, Err(error)) => Some(why(error)),
        (Ok(memory), _) if memory.total == 0 => Some("its memory is said to be 0 bytes".to_owned()),
        (Ok(memory), _) if memory.free > memory.total => {
            Some(format!("{} of {} bytes of its memory are said to be free", memory.free, memory.total))
        }
        _ => None,
    };
    let memory = memory.ok();
    let throttled = device.current_throttle_reasons().unwrap_or(ThrottleReasons::NONE) - ThrottleReasons::GPU_IDLE;
    Card {
        index: 0,
        uuid: uuid.ok(),
        name: device.name().ok(),
        total_bytes: memory.as_ref().map(|memory| memory.total),
        free_bytes: memory.as_ref().map(|memory| memory.free),
        compute_capability: device
            .cuda_compute_capability()
            .ok()
            .and_then(|found| Some((found.major.try_into().ok()?, found.minor.try_into().ok()?))),
        ecc: device.is_ecc_enabled().ok().map(|state| state.currently_enabled),
        throttled_by: throttled.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect(),
        utilization_ratio: device.utilization_rates().ok().map(|rates| f64::from(rates.gpu.min(100)) / 100.0),
        celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        watts: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1000.0),
        defect,
    }
}

/// What an error means here.
fn why(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) => format!("{LIBRARY}, which comes with a driver, cannot be loaded: {error}"),
        NvmlError::DriverNotLoaded => "the NVIDIA driver is not loaded".to_owned(),
        NvmlError::GpuLost => "it fell off the bus or is otherwise lost".to_owned(),
        NvmlError::LibRmVersionMismatch => {
            "the driver and its library are of different versions; restart it".to_owned()
        }
        other => other.to_string().lines().next().unwrap_or_default().trim_end_matches('.').to_owned(),
    }
}

/// Logs what is new, leaving out what changes all the time.
fn say(known: &Cards, cards: &Cards) {
    match (known, cards) {
        (_, Cards::Absent { reason }) => tracing::info!(reason, "no cards"),
        (_, Cards::Unknown) => {}
        (Cards::Present { cards: known, .. }, Cards::Present { cards, .. }) => {
            let of_now = cards.iter().filter(|card| !known.iter().any(|old| old.is_same(card)));
            of_now.for_each(Card::say);
        }
        (_, Cards::Present { driver, cards }) => {
            tracing::info!(driver, count = cards.len(), "cards");
            cards.iter().for_each(Card::say);
        }
    }
}

impl Card {
    fn is_same(&self, other: &Card) -> bool {
        let lasting = |card: &Card| (card.index, card.uuid.clone(), card.total_bytes, card.defect.clone());
        lasting(self) == lasting(other)
    }

    fn say(&self) {
        let Card { index, name, uuid, total_bytes, free_bytes, .. } = self;
        match &self.defect {
            None => tracing::info!(index, name, uuid, total_bytes, free_bytes, "card"),
            Some(defect) => tracing::warn!(index, name, uuid, defect, "card cannot be used"),
        }
    }
}
