//! The readings of a case's questions: what the trees read, and the one record that each reading has.

use std::collections::BTreeMap;

use super::difference::Difference;
use super::record::{BlockRecord, Entries, HeadInputsRecord, LogitsRecord, Real, TreeRecord, Values};
use crate::family::{Block, Logits, Plan, Readout, SpanHead, Tree};
use crate::model::HeadInputs;

/// One reading of one question: in a row, or in one window of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    question: String,
    row: usize,
    window: Option<(usize, usize)>,
    /// Whether its rows are words.
    is_span: bool,
    /// Of its logits.
    rows: usize,
    columns: usize,
}

/// The trees that read anything, and what each block's call is.
pub(super) fn plan(trees: &[TreeRecord]) -> Result<(Plan, Vec<Vec<Call>>), Difference> {
    let (mut plan, mut calls) = (Plan::default(), Vec::new());
    for (index, record) in trees.iter().enumerate() {
        let mut tree = Tree { prefix: record.prefix.as_slice().into(), blocks: Vec::new() };
        let mut of_tree = Vec::new();
        for block in record.read() {
            let at = format!("trees[{index}], question {}", block.question);
            tree.blocks.push(Block { ids: block.ids.clone(), readout: readout(block, &at)? });
            let is_span = block.kind == "span";
            let (rows, columns) = if is_span { (block.words.len(), block.ends.len()) } else { (block.ends.len(), 1) };
            let (question, row, window) = (block.question.clone(), record.row, record.window);
            of_tree.push(Call { question, row, window, is_span, rows, columns });
        }
        if !tree.blocks.is_empty() {
            plan.trees.push(tree);
            calls.push(of_tree);
        }
    }
    Ok((plan, calls))
}

/// Where a recorded block is read. Positions are checked to be inside the block, and pieces to have tokens.
fn readout(block: &BlockRecord, at: &str) -> Result<Readout, Difference> {
    if block.starts.len() != block.ends.len() {
        return Err(Difference::new(at, format!("{} ends", block.starts.len()), block.ends.len()));
    }
    let len = block.ids.len();
    let pieces = block.starts.iter().zip(&block.ends);
    if let Some((start, end)) = pieces.clone().find(|(start, end)| start >= end || **end as usize > len) {
        return Err(Difference::new(at, format!("a piece in a block of {len} tokens"), format!("[{start}, {end})")));
    }
    if let Some((_, word)) = block.words.iter().find(|(_, word)| *word as usize >= len) {
        return Err(Difference::new(at, format!("a word in a block of {len} tokens"), word));
    }
    let head = match block.head.as_deref() {
        Some("router") => Some(SpanHead::Router),
        Some("broad") => Some(SpanHead::Broad),
        None => None,
        Some(other) => return Err(Difference::new(at, "the head router or broad", other)),
    };
    match (block.kind.as_str(), head) {
        ("span", Some(head)) => {
            let labels = pieces.map(|(&start, &end)| start..end).collect();
            Ok(Readout::Spans { head, words: block.words.iter().map(|word| word.1).collect(), labels })
        }
        ("choice" | "score" | "set", None) if len > 0 => {
            let options = block.ends.iter().map(|end| end - 1).collect();
            Ok(Readout::Candidates { options, query: len as u32 - 1, set_bias: block.kind == "set" })
        }
        (kind, _) => Err(Difference::new(at, "choice, score or set, or a span with its head", kind)),
    }
}

/// A record of one call.
pub(super) trait CallRecord {
    /// Row and window.
    fn place(&self) -> (usize, Option<(usize, usize)>);
}

impl CallRecord for LogitsRecord {
    fn place(&self) -> (usize, Option<(usize, usize)>) {
        (self.row, self.window)
    }
}

impl CallRecord for HeadInputsRecord {
    fn place(&self) -> (usize, Option<(usize, usize)>) {
        (self.row, self.window)
    }
}

/// The record of every call, `[tree][block]`: each call has one and each record is of one.
pub(super) fn take_each<R: CallRecord>(
    key: &str,
    calls: &[Vec<Call>],
    records: Entries<Vec<R>>,
) -> Result<Vec<Vec<R>>, Difference> {
    let mut of_question: BTreeMap<String, std::vec::IntoIter<R>> = BTreeMap::new();
    for (question, records) in records.0 {
        let at = format!("{key}.{question}");
        let expected = calls.iter().flatten().filter(|call| call.question == question).count();
        if expected == 0 {
            return Err(Difference::new(key, "only questions that the trees read", format!("question {question}")));
        }
        if expected != records.len() {
            return Err(Difference::new(at, format!("{expected} calls"), records.len()));
        }
        if of_question.insert(question, records.into_iter()).is_some() {
            return Err(Difference::new(at, "the question once", "it twice"));
        }
    }
    let mut take = |call: &Call| {
        let missing = || Difference::new(key, format!("question {}", call.question), "none");
        let record = of_question.get_mut(&call.question).and_then(Iterator::next).ok_or_else(missing)?;
        let place = |(row, window): (usize, Option<(usize, usize)>)| match window {
            Some((start, end)) => format!("row {row}, window [{start}, {end})"),
            None => format!("row {row}"),
        };
        if record.place() != (call.row, call.window) {
            let at = format!("{key}.{}", call.question);
            return Err(Difference::new(at, place((call.row, call.window)), place(record.place())));
        }
        Ok(record)
    };
    calls.iter().map(|tree| tree.iter().map(&mut take).collect()).collect()
}

/// Reads the record of every call.
pub(super) fn for_each_call<R, T>(
    records: Vec<Vec<R>>,
    calls: &[Vec<Call>],
    read: impl Fn(R, &Call) -> Result<T, Difference>,
) -> Result<Vec<Vec<T>>, Difference> {
    let of_tree =
        |(records, calls): (Vec<R>, &Vec<Call>)| records.into_iter().zip(calls).map(|(r, c)| read(r, c)).collect();
    records.into_iter().zip(calls).map(of_tree).collect()
}

impl Call {
    /// Its place under `key`, as `logits.domain, row 0`.
    pub(super) fn at(&self, key: &str) -> String {
        let window = self.window.map_or_else(String::new, |(start, end)| format!(", window [{start}, {end})"));
        format!("{key}.{}, row {}{window}", self.question, self.row)
    }

    /// Checks dimensions and finiteness of logits, wherever they come from.
    pub(super) fn check(&self, key: &str, logits: &Logits) -> Result<(), Difference> {
        let at = self.at(key);
        let expected = self.rows * self.columns;
        if logits.values.len() != expected {
            return Err(Difference::new(at, format!("{expected} values"), logits.values.len()));
        }
        if expected > 0 && logits.columns != self.columns {
            return Err(Difference::new(at, format!("{} columns", self.columns), logits.columns));
        }
        match logits.values.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(place) => Err(Difference::new(self.value_at(key, place), "a finite number", logits.values[place])),
        }
    }

    /// The place of one of its logits.
    pub(super) fn value_at(&self, key: &str, place: usize) -> String {
        let at = self.at(key);
        if self.is_span {
            format!("{at}: word {}, label {}", place / self.columns, place % self.columns)
        } else {
            format!("{at}: option {place}")
        }
    }

    /// Its logits, once dimensions and finiteness have been checked.
    pub(super) fn logits(&self, values: Values) -> Result<Logits, Difference> {
        let at = self.at("logits");
        let values: Vec<f32> = match (values, self.is_span) {
            (Values::Options(values), _) if self.rows == 0 || !self.is_span => reals(&values).collect(),
            (Values::Words(words), true) => {
                if let Some(row) = words.iter().position(|row| row.len() != self.columns) {
                    let expected = format!("{} values", self.columns);
                    return Err(Difference::new(format!("{at}: word {row}"), expected, words[row].len()));
                }
                if words.len() != self.rows {
                    return Err(Difference::new(at, format!("{} words", self.rows), words.len()));
                }
                words.iter().flat_map(|row| reals(row)).collect()
            }
            (Values::Options(_), _) => return Err(Difference::new(at, "a list per word", "a list of numbers")),
            (Values::Words(_), false) => return Err(Difference::new(at, "a number per option", "lists")),
        };
        let logits = Logits { values, columns: self.columns };
        self.check("logits", &logits)?;
        Ok(logits)
    }

    /// Whether its block is computed at all: a window without words is not.
    pub(super) fn is_read(&self) -> bool {
        self.rows > 0
    }

    /// Its head inputs, checked likewise. Where nothing is read, nothing was recorded.
    pub(super) fn head_inputs(&self, record: HeadInputsRecord) -> Result<HeadInputs, Difference> {
        let at = self.at("head_inputs");
        let labels = if self.is_read() { self.columns } else { 0 };
        let sides = match (self.is_span, record) {
            (false, HeadInputsRecord { options: Some(options), query: Some(query), words: None, labels: None, .. }) => {
                [("option", self.rows, options), ("query", 1, vec![query])]
            }
            (true, HeadInputsRecord { words: Some(words), labels: Some(states), options: None, query: None, .. }) => {
                [("word", self.rows, words), ("label", labels, states)]
            }
            (is_span, _) => {
                let expected = if is_span { "words and labels" } else { "options and query" };
                return Err(Difference::new(at, expected, "other keys"));
            }
        };
        let width = sides[1].2.first().map_or(0, Vec::len);
        let mut inputs = HeadInputs::default();
        for ((name, rows, states), side) in sides.into_iter().zip([&mut inputs.left, &mut inputs.right]) {
            if states.len() != rows {
                return Err(Difference::new(at, format!("{rows} states, one per {name}"), states.len()));
            }
            for (row, state) in states.iter().enumerate() {
                let at = format!("{at}: {name} {row}");
                if state.len() != width {
                    return Err(Difference::new(at, format!("{width} values"), state.len()));
                }
                if let Some(Real(value)) = state.iter().find(|Real(value)| !value.is_finite()) {
                    return Err(Difference::new(at, "finite numbers", value));
                }
                side.extend(reals(state));
            }
        }
        Ok(inputs)
    }
}

fn reals(values: &[Real]) -> impl Iterator<Item = f32> {
    values.iter().map(|&Real(value)| value)
}
