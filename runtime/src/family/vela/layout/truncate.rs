//! How much of each part fits a tree (spec: vela.md §6, "Truncation").

/// An unread part keeps this much before parts that are read have to give.
const UNREAD_TOKENS: usize = 64;
/// No member's budget is smaller.
const LEAST_BUDGET_TOKENS: usize = 64;

/// The figures of a tree's truncation, in tokens, as the spec names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub fixed: usize,
    pub schema: usize,
    pub overhead: usize,
    pub budget: usize,
    /// By how much everything exceeds the budget; negative where there is room.
    pub over: i64,
    /// By part, before truncation.
    pub lengths: Vec<usize>,
}

impl Numbers {
    pub(super) fn new(max_length: usize, schema: usize, overhead: usize, lengths: Vec<usize>) -> Self {
        let fixed = 3 + lengths.len();
        let budget = max_length.saturating_sub(overhead).max(LEAST_BUDGET_TOKENS);
        let wanted = fixed + schema + lengths.iter().sum::<usize>();
        Numbers { fixed, schema, overhead, budget, over: wanted as i64 - budget as i64, lengths }
    }

    /// Kept tokens by part; `None` if the questions alone do not fit. `is_read` says whether a question of the row
    /// reads a part.
    pub(super) fn kept(&self, is_read: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        let mut kept = self.lengths.clone();
        let mut over = usize::try_from(self.over).unwrap_or(0);
        let mut shrink = |part: usize, least: usize| {
            let length = kept[part];
            kept[part] = length.saturating_sub(over).max(least.min(length));
            over -= length - kept[part];
        };
        // Only the first unread part shrinks; another one keeps its length.
        if let Some(unread) = (0..self.lengths.len()).find(|&part| !is_read(part)) {
            shrink(unread, UNREAD_TOKENS);
            shrink(unread, 1);
        }
        for part in (0..self.lengths.len()).filter(|&part| is_read(part)) {
            shrink(part, 1);
        }
        (over == 0).then_some(kept)
    }
}
