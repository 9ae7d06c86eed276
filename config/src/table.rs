//! Reading TOML tables key by key, with a line for everything that is wrong.
//!
//! A [`Table`] is asked for its keys and told at the end that this was all: what nobody asked for is unknown. A
//! missing or wrong value is reported and read as absent, so that one pass finds every problem of a file. Serde is
//! absent on purpose: it stops at the first problem and does not say which key a wrong value belongs to.

use std::ops::{Range, RangeInclusive};
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{Finding, Place};

/// Collects what is to say about a file.
pub(crate) struct Report<'a> {
    file: &'a Path,
    text: &'a str,
    pub(crate) errors: Vec<Finding>,
    pub(crate) warnings: Vec<Finding>,
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Placed<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
}

impl<'a> Report<'a> {
    pub(crate) fn new(file: &'a Path, text: &'a str) -> Self {
        Self { file, text, errors: Vec::new(), warnings: Vec::new() }
    }

    /// The line of a byte offset, from 1.
    pub(crate) fn line(&self, offset: usize) -> usize {
        1 + self.text.char_indices().take_while(|&(at, _)| at < offset).filter(|&(_, c)| c == '\n').count()
    }

    pub(crate) fn error(&mut self, place: &Place, problem: impl Into<String>, advice: impl Into<String>) {
        let finding = self.finding(place, problem.into(), advice.into());
        self.errors.push(finding);
    }

    pub(crate) fn warning(&mut self, place: &Place, problem: impl Into<String>, advice: impl Into<String>) {
        let finding = self.finding(place, problem.into(), advice.into());
        self.warnings.push(finding);
    }

    fn finding(&self, place: &Place, problem: String, advice: String) -> Finding {
        let Place { line, key } = place.clone();
        Finding { file: self.file.to_owned(), line, key, problem, advice }
    }
}

/// What a key's value must be: in words, and as an example for the advice.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    pub(crate) what: &'static str,
    pub(crate) example: &'static str,
}

/// One TOML table while it is read.
pub(crate) struct Table<'t, 'i> {
    /// With a dot at its end, so that a key follows; empty for the file itself.
    prefix: &'static str,
    line: usize,
    entries: &'t DeTable<'i>,
    asked: Vec<&'static str>,
}

impl<'t, 'i> Table<'t, 'i> {
    pub(crate) fn new(prefix: &'static str, line: usize, entries: &'t DeTable<'i>) -> Self {
        Self { prefix, line, entries, asked: Vec::new() }
    }

    /// The place of a key that is absent: its table's own line.
    pub(crate) fn place(&self, key: &str) -> Place {
        Place { line: self.line, key: format!("{}{key}", self.prefix) }
    }

    /// Whether the file gives the key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(name, _)| name.get_ref() == key)
    }

    /// A value as it stands in the file.
    pub(crate) fn raw(&mut self, report: &mut Report, key: &'static str) -> Option<Placed<&'t DeValue<'i>>> {
        self.asked.push(key);
        let (name, value) = self.entries.iter().find(|(name, _)| name.get_ref() == key)?;
        let place = Place { line: report.line(name.span().start), key: format!("{}{key}", self.prefix) };
        Some(Placed { value: value.get_ref(), place })
    }

    /// A value as `read` understands it; absent if it is not there or not what is wanted.
    pub(crate) fn get<T>(
        &mut self,
        report: &mut Report,
        key: &'static str,
        want: Want,
        read: impl FnOnce(&DeValue) -> Option<T>,
    ) -> Option<Placed<T>> {
        let Placed { value, place } = self.raw(report, key)?;
        if let Some(value) = read(value) {
            return Some(Placed { value, place });
        }
        let problem = format!("expected {}, found {}", want.what, found(value));
        report.error(&place, problem, format!("write for instance {key} = {}", want.example));
        None
    }

    /// [`Table::get`] for a key that must be there.
    pub(crate) fn require<T>(
        &mut self,
        report: &mut Report,
        key: &'static str,
        want: Want,
        read: impl FnOnce(&DeValue) -> Option<T>,
    ) -> Option<Placed<T>> {
        if !self.has(key) {
            self.asked.push(key);
            let advice = format!("write for instance {key} = {}", want.example);
            report.error(&self.place(key), format!("expected {}, found nothing", want.what), advice);
            return None;
        }
        self.get(report, key, want, read)
    }

    /// A list whose items `read` understands, each with a place of its own; absent if it is not there or an item is
    /// not what is wanted.
    pub(crate) fn list<T>(
        &mut self,
        report: &mut Report,
        key: &'static str,
        want: Want,
        read: impl Fn(&DeValue) -> Option<T>,
    ) -> Option<Placed<Vec<Placed<T>>>> {
        let Placed { value, place } = self.raw(report, key)?;
        let advice = format!("write for instance {key} = [{}]", want.example);
        let Some(items) = value.as_array() else {
            report.error(&place, format!("expected a list, found {}", found(value)), advice);
            return None;
        };
        let mut list = Vec::new();
        for item in items {
            let place = Place { line: report.line(item.span().start), ..place.clone() };
            if let Some(value) = read(item.get_ref()) {
                list.push(Placed { value, place });
            } else {
                let problem = format!("expected {}, found {}", want.what, found(item.get_ref()));
                report.error(&place, problem, advice.clone());
            }
        }
        (list.len() == items.len()).then_some(Placed { value: list, place })
    }

    /// The table `[KEY]`.
    pub(crate) fn table(
        &mut self,
        report: &mut Report,
        key: &'static str,
        prefix: &'static str,
        advice: &str,
    ) -> Option<Table<'t, 'i>> {
        let Placed { value, place } = self.raw(report, key)?;
        if let Some(entries) = value.as_table() {
            return Some(Table::new(prefix, place.line, entries));
        }
        report.error(&place, format!("expected a table, found {}", found(value)), advice);
        None
    }

    /// The tables `[[KEY]]`, none if the file has none; absent if the key holds something else.
    pub(crate) fn tables(
        &mut self,
        report: &mut Report,
        key: &'static str,
        prefix: &'static str,
    ) -> Option<Vec<Table<'t, 'i>>> {
        let Some(Placed { value, place }) = self.raw(report, key) else { return Some(Vec::new()) };
        let tables = value.as_array().and_then(|items| {
            let table = |item: &'t Spanned<DeValue<'i>>| {
                item.get_ref().as_table().map(|entries| Table::new(prefix, report.line(item.span().start), entries))
            };
            items.iter().map(table).collect::<Option<Vec<_>>>()
        });
        if tables.is_none() {
            let problem = format!("expected [[{key}]] tables, found {}", found(value));
            report.error(&place, problem, format!("write [[{key}]] above each one's keys"));
        }
        tables
    }

    /// Reports every key that was not asked for.
    pub(crate) fn finish(self, report: &mut Report) {
        for (name, _) in self.entries {
            if self.asked.contains(&name.get_ref().as_ref()) {
                continue;
            }
            let Range { start, .. } = name.span();
            let place = Place { line: report.line(start), key: format!("{}{}", self.prefix, name.get_ref()) };
            report.error(&place, "unknown key", format!("known here: {}", self.asked.join(", ")));
        }
    }
}

/// A value for a message: short texts as they are, else its type.
fn found(value: &DeValue) -> String {
    match value {
        DeValue::String(text) if text.chars().count() <= 80 => format!("{text:?}"),
        DeValue::String(_) => "a longer text".to_owned(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date or time".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// A text that is not blank and has no control characters: names go into logs and metrics.
pub(crate) fn text(value: &DeValue) -> Option<String> {
    let text = value.as_str()?;
    (!text.trim().is_empty() && !text.chars().any(char::is_control)).then(|| text.to_owned())
}

/// A whole number of a range.
pub(crate) fn whole(range: RangeInclusive<u64>) -> impl Fn(&DeValue) -> Option<u64> {
    move |value| {
        let number = value.as_integer()?;
        u64::from_str_radix(number.as_str(), number.radix()).ok().filter(|number| range.contains(number))
    }
}

/// A finite number above 0, whole or not.
pub(crate) fn positive(value: &DeValue) -> Option<f64> {
    let number: f64 = match value {
        DeValue::Integer(_) => return whole(1..=u64::from(u32::MAX))(value).map(|number| number as f64),
        DeValue::Float(number) => number.as_str().parse().ok()?,
        _ => return None,
    };
    (number.is_finite() && number > 0.0).then_some(number)
}

/// `true` or `false`.
pub(crate) fn boolean(value: &DeValue) -> Option<bool> {
    value.as_bool()
}
