//! Text to token ids with the package's own tokenizer (spec: vela.md §5).
//!
//! Invariant: the ids are those of the crate's plain encode: nothing is truncated, padded or added, and text that looks
//! like a special token becomes that token. Whatever the crate does with a text, its caller sees ids or a
//! [`TokenizerError`], never a panic. How long a text may be is decided before it comes here.

mod cache;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokenizers::Encoding;

use self::cache::PieceCache;
use crate::family::CharRange;

/// Token ids of one piece of text.
pub type Ids = Arc<[u32]>;

/// The longest piece that is kept between requests: longer ones are rarely the same twice.
const MAX_CACHED_PIECE_BYTES: usize = 4096;

/// Why a text has no tokens. The text itself is never part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The file is not a tokenizer that the crate reads.
    #[error("tokenizer.json: expected a tokenizer, found: {reason}; export the member again")]
    Load { reason: String },
    /// The crate gave up on a text, for instance because its regular expression met a limit of its own.
    #[error("tokenizer: a text of {text_bytes} bytes cannot be encoded; send a shorter or plainer one")]
    Encode { text_bytes: usize },
}

/// Tokens of a part of the state, with where each of them stands in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartEncoding {
    pub ids: Vec<u32>,
    /// Code points of the original text that each token covers; may be empty, may overlap.
    pub offsets: Vec<CharRange>,
}

/// A member's tokenizer with a bounded memory of the short pieces that requests repeat.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: PieceCache,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`. Truncation and padding that it asks for are switched off.
    ///
    /// # Errors
    /// [`TokenizerError::Load`] when they are not a tokenizer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let failed = |reason: String| TokenizerError::Load { reason };
        let loaded = catch_unwind(|| tokenizers::Tokenizer::from_bytes(bytes))
            .map_err(|_| failed("a panic of the tokenizers crate".to_owned()))?;
        let mut inner = loaded.map_err(|error| failed(error.to_string()))?;
        inner.with_truncation(None).map_err(|error| failed(error.to_string()))?;
        inner.with_padding(None);
        Ok(Tokenizer { inner, pieces: PieceCache::new(cache::Bounds::default()) })
    }

    /// Ids of a piece that stands by itself: a head, an option, a tag.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] when the crate fails on it.
    pub fn encode_piece(&self, text: &str) -> Result<Ids, TokenizerError> {
        let kept = text.len() <= MAX_CACHED_PIECE_BYTES;
        if kept && let Some(ids) = self.pieces.get(text) {
            return Ok(ids);
        }
        let encoding = guarded(text, || self.inner.encode_fast(text, false))?;
        let ids: Ids = encoding.get_ids().into();
        if kept {
            self.pieces.insert(text, &ids);
        }
        Ok(ids)
    }

    /// Ids and code-point offsets of a part of the state.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] when the crate fails on it.
    pub fn encode_part(&self, text: &str) -> Result<PartEncoding, TokenizerError> {
        let encoding = guarded(text, || self.inner.encode_char_offsets(text, false))?;
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| CharRange { start, end }).collect();
        Ok(PartEncoding { ids: encoding.get_ids().to_vec(), offsets })
    }
}

/// Runs the crate on a text. Its `onig` bindings panic where a match exceeds their limits, which a client can provoke.
/// Unwinding is harmless: encoding changes nothing but the crate's own word cache, whose lock it only ever tries.
fn guarded(text: &str, encode: impl FnOnce() -> tokenizers::Result<Encoding>) -> Result<Encoding, TokenizerError> {
    catch_unwind(AssertUnwindSafe(encode))
        .ok()
        .and_then(Result::ok)
        .ok_or(TokenizerError::Encode { text_bytes: text.len() })
}

#[cfg(test)]
mod tests;
