//! Which of a member's two span heads reads a question (spec: vela.md §8).

use std::collections::BTreeSet;

use super::Question;
use crate::family::SpanHead;
use crate::family::vela::calibration::Calibration;
use crate::family::vela::unicode::is_space;

/// The label that the router head was trained on, and what it means where the member does not say.
const UNSUPPORTED: &str = "unsupported";
const UNSUPPORTED_DESCRIPTION: &str = "a claim not supported by the context";

/// Chooses the head of a span question, and shows the label `unsupported` to a router head in place of an alias of it.
/// Answers keep the caller's label: `names` stay as they are.
pub(super) fn route(question: &mut Question, own_head: Option<SpanHead>, calibration: &Calibration) {
    question.head = own_head.unwrap_or_else(|| choose_head(&question.key, &question.names, calibration));
    if question.head == SpanHead::Router && names_unsupported(&question.names) && question.names[0] != UNSUPPORTED {
        let schema = calibration.halu_schema.iter().flat_map(|schema| &schema.options);
        let described = schema.into_iter().find(|(name, text)| name == UNSUPPORTED && !text.is_empty());
        let description = described.map_or(UNSUPPORTED_DESCRIPTION, |(_, text)| text);
        question.options = vec![(UNSUPPORTED.to_owned(), description.to_owned())];
    }
}

fn choose_head(key: &str, names: &[String], calibration: &Calibration) -> SpanHead {
    let router_label_sets = calibration.broad_head.iter().flat_map(|broad| &broad.router_label_sets);
    let is_router = matches!(key, "pii" | "halu" | "toxic")
        || router_label_sets.into_iter().any(|set| set.len() == names.len() && all_in(names, set))
        || !names.is_empty() && all_in(names, &calibration.pii_types)
        || names_unsupported(names);
    if is_router { SpanHead::Router } else { SpanHead::Broad }
}

fn all_in(names: &[String], set: &BTreeSet<String>) -> bool {
    names.iter().all(|name| set.contains(name))
}

/// Whether a question's one label is a name for unsupported claims, however it is spaced and cased. None of them has
/// a letter that Python's `lower` makes of a non-ASCII one, so ASCII case is enough.
fn names_unsupported(names: &[String]) -> bool {
    let [name] = names else { return false };
    let plain: String =
        name.chars().filter(|&c| !is_space(c) && !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect();
    matches!(
        plain.as_str(),
        "unsupported"
            | "unsupportedclaim"
            | "hallucinated"
            | "hallucination"
            | "hallucinatedspan"
            | "notsupported"
            | "unsupportedspan"
            | "fabricated"
            | "fabrication"
    )
}
