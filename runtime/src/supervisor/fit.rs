//! Whether placements fit into the memory of what they are placed on.
//!
//! Policy alone: what each placement needs and what there is come in, a decision goes out. Nothing here looks at a
//! machine. Every placement has weights and a workspace of its own, those of one member too.

use synod_config as config;

use crate::family::vela::layout::LayoutParameters;
use crate::member::{MemberConfig, MemberFiles};
use crate::model::memory::{self, Hardware, MemoryNeed, Setting, mib};

/// A member as its package has it and as its deployment wants it: what its need follows from.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub config: MemberConfig,
    pub has_broad_head: bool,
    pub setting: Setting,
}

impl Wanted {
    /// `batch_tokens` and `max_options` are those of the deployment.
    pub fn of(member: &config::Member, files: &MemberFiles, batch_tokens: usize, max_options: usize) -> Self {
        let tree = LayoutParameters::of_config(files.config()).tree_bounds(max_options);
        let prefix_cache_bytes = member.prefix_cache_bytes;
        let setting = Setting { profile: member.profile, batch_tokens, tree, prefix_cache_bytes };
        Self { config: files.config().clone(), has_broad_head: files.has_broad_head(), setting }
    }

    /// What it takes on one device.
    pub fn need(&self, hardware: Hardware) -> MemoryNeed {
        memory::need(&self.config, self.has_broad_head, &self.setting, hardware)
    }
}

/// What one placement needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    pub member: String,
    /// As the deployment writes it.
    pub device: String,
    pub need: MemoryNeed,
}

/// The first placement for which those before it leave no room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "member {}: {}: memory: expected {} MiB available ({}), found {}{}; free memory, lower prefix_cache_mib or serve it \
     elsewhere, as synod plan shows",
    .demand.member, .demand.device, mib(.demand.need.total()), .demand.need, .available_bytes >> 20, beside(*.before_bytes)
)]
pub struct Shortage {
    pub demand: Demand,
    /// In all, before any placement has its share.
    pub available_bytes: u64,
    /// What the placements before it need.
    pub before_bytes: u64,
}

fn beside(before_bytes: u64) -> String {
    if before_bytes == 0 { String::new() } else { format!(", of which other placements need {}", mib(before_bytes)) }
}

/// `Ok` if all `demands` fit into `available_bytes` together.
///
/// # Errors
/// [`Shortage`], for the first one that does not.
pub fn check_room(demands: &[Demand], available_bytes: u64) -> Result<(), Box<Shortage>> {
    let mut before_bytes: u64 = 0;
    for demand in demands {
        let after_bytes = before_bytes.saturating_add(demand.need.total());
        if after_bytes > available_bytes {
            return Err(Box::new(Shortage { demand: demand.clone(), available_bytes, before_bytes }));
        }
        before_bytes = after_bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(member: &str, linear_mib: u64) -> Demand {
        let need = MemoryNeed { linear: linear_mib << 20, workspace: 1 << 20, ..MemoryNeed::default() };
        Demand { member: member.to_owned(), device: "cpu:0-3".to_owned(), need }
    }

    #[test]
    fn placements_share_what_there_is() {
        let demands = [demand("a", 9), demand("b", 19), demand("c", 4)];
        assert_eq!(check_room(&demands, 35 << 20), Ok(()));
        let shortage = check_room(&demands, (35 << 20) - 1).unwrap_err();
        assert_eq!((shortage.demand.member.as_str(), shortage.before_bytes), ("c", 30 << 20));
        assert_eq!(check_room(&demands, 29 << 20).unwrap_err().demand.member, "b");
        assert_eq!(check_room(&demands, 0).unwrap_err().demand.member, "a");
        assert_eq!(check_room(&[], 0), Ok(()));
    }

    #[test]
    fn a_shortage_says_what_is_needed_for_what() {
        let demands = [demand("a", 9), demand("b", 19)];
        let messages = [25, 5].map(|mib| check_room(&demands, mib << 20).unwrap_err().to_string());
        let advice = "free memory, lower prefix_cache_mib or serve it elsewhere, as synod plan shows";
        assert_eq!(
            messages,
            [
                format!(
                    "member b: cpu:0-3: memory: expected 20 MiB available (linear 19 + workspace 1), found 25, of which \
                     other placements need 10; {advice}"
                ),
                format!(
                    "member a: cpu:0-3: memory: expected 10 MiB available (linear 9 + workspace 1), found 5; {advice}"
                ),
            ]
        );
    }
}
