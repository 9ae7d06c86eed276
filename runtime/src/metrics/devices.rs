//! The `synod_device_*` metrics: what cards say of themselves, and what memory is counted for members.
//!
//! Where a card stops saying something its series ends: an old value would be taken for a new one.

use prometheus::{GaugeVec, IntGaugeVec, Opts, Registry};

use crate::model::memory::MemoryNeed;
use crate::supervisor::{Card, Cards};

/// The device that the memory of the machine itself is shown as.
const HOST: &str = "host";

pub(super) struct Devices {
    memory: IntGaugeVec,
    utilization: GaugeVec,
    celsius: GaugeVec,
    watts: GaugeVec,
}

impl Devices {
    pub(super) fn register(registry: &Registry) -> Self {
        let gauge = |name: &str, help: &str| {
            super::register(registry, GaugeVec::new(Opts::new(name, help), &["device", "uuid"]))
        };
        Devices {
            memory: super::gauges(
                registry,
                "synod_device_memory_bytes",
                "Memory of a device (total, used), and what is counted of it for a member (weights, workspace, cache).",
                &["member", "device", "kind"],
            ),
            utilization: gauge("synod_device_utilization_ratio", "Share of time that a card computed, 0 to 1."),
            celsius: gauge("synod_device_temperature_celsius", "Temperature of a card."),
            watts: gauge("synod_device_power_watts", "Power that a card draws."),
        }
    }

    /// Forgets what was shown, and shows the host and `cards` as they are now.
    pub(super) fn show(&self, host: (Option<u64>, Option<u64>), cards: &Cards) {
        for family in [&self.utilization, &self.celsius, &self.watts] {
            family.reset();
        }
        self.memory.reset();
        self.show_room(HOST, host);
        if let Cards::Present { cards, .. } = cards {
            for card in cards {
                self.show_card(card);
            }
        }
    }

    fn show_card(&self, card: &Card) {
        let device = format!("cuda:{}", card.index);
        self.show_room(&device, (card.total_bytes, card.free_bytes));
        let place = [device.as_str(), card.uuid.as_deref().unwrap_or_default()];
        let sensors = [
            (&self.utilization, card.utilization_ratio),
            (&self.celsius, card.celsius.map(f64::from)),
            (&self.watts, card.watts),
        ];
        for (family, value) in sensors {
            if let Some(value) = value {
                family.with_label_values(&place).set(value);
            }
        }
    }

    fn show_room(&self, device: &str, (total, free): (Option<u64>, Option<u64>)) {
        if let Some(total) = total {
            self.set("", device, "total", total);
            if let Some(free) = free {
                self.set("", device, "used", total.saturating_sub(free));
            }
        }
    }

    /// Shows what is counted for `member` on `device`.
    pub(super) fn show_member(&self, member: &str, device: &str, need: &MemoryNeed) {
        let workspace = need.workspace + need.context + need.library;
        let weights = need.total() - workspace - need.prefix_cache;
        for (kind, bytes) in [("weights", weights), ("workspace", workspace), ("cache", need.prefix_cache)] {
            self.set(member, device, kind, bytes);
        }
    }

    fn set(&self, member: &str, device: &str, kind: &str, bytes: u64) {
        self.memory.with_label_values(&[member, device, kind]).set(bytes as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each line of a scrape says, comments left out.
    fn lines(registry: &Registry) -> Vec<String> {
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn a_card_is_shown_as_it_is_now_and_not_as_it_was() {
        let registry = Registry::new();
        let devices = Devices::register(&registry);
        let card = Card {
            index: 1,
            uuid: Some("GPU-1".to_owned()),
            total_bytes: Some(100),
            free_bytes: Some(30),
            utilization_ratio: Some(0.5),
            celsius: Some(40),
            watts: Some(70.25),
            ..Card::default()
        };
        let cards = |cards| Cards::Present { driver: None, cards };
        devices.show((Some(10), Some(4)), &cards(vec![card.clone()]));
        devices.show_member(
            "m",
            "cpu:0",
            &MemoryNeed { linear: 7, workspace: 2, prefix_cache: 1, ..MemoryNeed::default() },
        );
        assert_eq!(
            lines(&registry),
            [
                r#"synod_device_memory_bytes{device="cpu:0",kind="cache",member="m"} 1"#,
                r#"synod_device_memory_bytes{device="cpu:0",kind="weights",member="m"} 7"#,
                r#"synod_device_memory_bytes{device="cpu:0",kind="workspace",member="m"} 2"#,
                r#"synod_device_memory_bytes{device="cuda:1",kind="total",member=""} 100"#,
                r#"synod_device_memory_bytes{device="cuda:1",kind="used",member=""} 70"#,
                r#"synod_device_memory_bytes{device="host",kind="total",member=""} 10"#,
                r#"synod_device_memory_bytes{device="host",kind="used",member=""} 6"#,
                r#"synod_device_power_watts{device="cuda:1",uuid="GPU-1"} 70.25"#,
                r#"synod_device_temperature_celsius{device="cuda:1",uuid="GPU-1"} 40"#,
                r#"synod_device_utilization_ratio{device="cuda:1",uuid="GPU-1"} 0.5"#,
            ]
        );
        let lost = Card { index: 1, defect: Some("lost".to_owned()), ..Card::default() };
        devices.show((None, None), &cards(vec![lost]));
        assert_eq!(lines(&registry), [""; 0]);
    }
}
