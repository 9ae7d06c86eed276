//! `--cards` and `--host`: machines that are not here, as text.

use std::fmt;

use crate::member::Excerpt;

/// Far more cards than a machine has, and more memory than any has: bounds on what is believed.
const MAX_CARDS: usize = 1024;
const MAX_BYTES: u64 = 1 << 50;
const MAX_TFLOPS: f64 = 1e6;

/// A card that somebody has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Card {
    pub(super) bytes: u64,
    /// Floating-point operations per second.
    pub(super) rate: Option<f64>,
}

/// A text that is no list of cards, or no size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    option: &'static str,
    expected: &'static str,
    found: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found \"{}\"", self.option, self.expected, Excerpt(&self.found))
    }
}

impl std::error::Error for Malformed {}

/// Reads a list such as `4x24GiB,80GiB@990TFLOPS`: the cards in the order of their numbers.
pub(super) fn read_cards(text: &str) -> Result<Vec<Card>, Malformed> {
    let malformed = |expected, found: &str| Malformed { option: "--cards", expected, found: found.to_owned() };
    let mut cards = Vec::new();
    for item in text.split(',') {
        let (count, card) = cards_of(item.trim())
            .ok_or_else(|| malformed("cards such as 4x24GiB or 24576MiB@120TFLOPS, separated by commas", item))?;
        if count > MAX_CARDS - cards.len() {
            return Err(malformed("at most 1024 cards", text));
        }
        cards.resize(cards.len() + count, card);
    }
    Ok(cards)
}

/// Reads the memory of a host, such as `64GiB`.
pub(super) fn read_host(text: &str) -> Result<u64, Malformed> {
    let malformed =
        || Malformed { option: "--host", expected: "a size such as 64GiB or 65536MiB", found: text.to_owned() };
    size(text.trim()).ok_or_else(malformed)
}

/// `COUNTxSIZE`, or `SIZE` for a single one, either with `@RATE`.
fn cards_of(item: &str) -> Option<(usize, Card)> {
    let (memory, rate) = match item.split_once('@') {
        Some((memory, rate)) => (memory, Some(flops(rate)?)),
        None => (item, None),
    };
    let (count, memory) = memory.split_once('x').unwrap_or(("1", memory));
    let count = digits(count)?.parse().ok().filter(|&count| count > 0)?;
    Some((count, Card { bytes: size(memory)?, rate }))
}

/// Whole `GiB` or `MiB`, more than none.
fn size(text: &str) -> Option<u64> {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20)];
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let bytes = digits(number)?.parse::<u64>().ok()?.checked_mul(*unit)?;
    (1..=MAX_BYTES).contains(&bytes).then_some(bytes)
}

/// `TFLOPS`, whole or with a decimal point.
fn flops(text: &str) -> Option<f64> {
    let number = text.strip_suffix("TFLOPS")?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    digits(whole)?;
    digits(fraction)?;
    let tflops: f64 = number.parse().ok()?;
    (tflops > 0.0 && tflops <= MAX_TFLOPS).then_some(tflops * 1e12)
}

/// The text, if it is decimal digits and nothing else: a sign or an exponent is no size.
fn digits(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn cards_are_listed_by_number() {
        let card = |gib: u64, rate| Card { bytes: gib * GIB, rate };
        for (text, expected) in [
            ("24GiB", vec![card(24, None)]),
            ("2x24GiB", vec![card(24, None); 2]),
            ("2x24GiB, 80GiB", vec![card(24, None), card(24, None), card(80, None)]),
            ("2048MiB", vec![card(2, None)]),
            ("1x80GiB@989.5TFLOPS", vec![card(80, Some(989.5e12))]),
            ("1024x1GiB", vec![card(1, None); 1024]),
        ] {
            assert_eq!(read_cards(text).as_ref(), Ok(&expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_of_cards_is_refused_in_one_line() {
        for text in [
            "",
            ",",
            "24GiB,",
            "4",
            "4x",
            "x24GiB",
            "0x24GiB",
            "-1x24GiB",
            "+1x24GiB",
            "4x24",
            "4x24GB",
            "4x24gib",
            "4x0GiB",
            "4x2.5GiB",
            "4 x 24GiB",
            "4x24GiB@",
            "4x24GiB@120",
            "4x24GiB@0TFLOPS",
            "4x24GiB@-1TFLOPS",
            "4x24GiB@1e3TFLOPS",
            "4x24GiB@infTFLOPS",
            "4x24GiB@.5TFLOPS",
            "4x24GiB@9999999TFLOPS",
            "1025x1GiB",
            "1024x1GiB,1GiB",
            "99999999999999999999x1GiB",
            "1x99999999999999999999GiB",
            "1x18446744073709551615GiB",
            "1x\n2GiB",
        ] {
            let message = read_cards(text).expect_err(text).to_string();
            assert!(message.starts_with("--cards: expected ") && message.lines().count() == 1, "{message}");
        }
        assert_eq!(
            read_cards("2x24GiB,4x24GB").unwrap_err().to_string(),
            "--cards: expected cards such as 4x24GiB or 24576MiB@120TFLOPS, separated by commas, found \"4x24GB\""
        );
    }

    #[test]
    fn a_host_has_one_size() {
        assert_eq!(read_host("64GiB"), Ok(64 * GIB));
        assert_eq!(read_host("512MiB"), Ok(GIB / 2));
        for text in ["", "64", "64GB", "2x64GiB", "0GiB", "64GiB@1TFLOPS"] {
            assert!(read_host(text).is_err(), "{text}");
        }
    }
}
