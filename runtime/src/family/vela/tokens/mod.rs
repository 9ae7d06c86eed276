//! Text to token ids with the package's own tokenizer (spec: vela.md §5).
//!
//! Invariant: the ids are those of the crate's plain encode: nothing is truncated, padded or added, and text that looks
//! like a special token becomes that token. Whatever the crate does with a text, its caller sees ids or a
//! [`TokenizerError`], never a panic. How long a text may be is decided before it comes here.

mod cache;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokenizers::Encoding;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use self::cache::TextCache;
use crate::family::CharRange;

/// Token ids of one piece of text.
pub type Ids = Arc<[u32]>;

/// The longest piece that is kept between requests: longer ones are rarely the same twice.
const MAX_CACHED_PIECE_BYTES: usize = 4096;

/// Words that the crate remembers in each thread that encodes. It forgets none, and a word of its longest, 255 bytes,
/// takes 8 KiB: its own 10,000 would let clients fill 80 MB a thread.
const CACHED_WORDS: usize = 1_000;

/// Why a text has no tokens. The text itself is never part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The file is not a tokenizer that the crate reads.
    #[error("tokenizer.json: expected a tokenizer, found: {reason}; export the member again")]
    Load { reason: String },
    /// A token that the model has no embedding for.
    #[error(
        "tokenizer.json: token ids: expected below {vocab_size}, the vocab_size of config.json, found {found}; export the member again"
    )]
    TokenId { vocab_size: usize, found: u32 },
    /// A byte that no text may hold, because it would have no tokens.
    #[error("tokenizer.json: expected a token for every byte, found none for {symbol:?}; export the member again")]
    Byte { symbol: char },
    /// The crate gave up on a text, for instance because its regular expression met a limit of its own, or found no
    /// token in it.
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

/// A member's tokenizer with bounded memories of the texts that requests repeat: short pieces, and parts of a state that
/// is asked again.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: TextCache<Ids>,
    parts: TextCache<Arc<PartEncoding>>,
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
        let mut model = inner.get_model().clone();
        model.resize_cache(CACHED_WORDS);
        inner.with_model(model);
        let (pieces, parts) = (TextCache::new(cache::Bounds::default()), TextCache::new(cache::Bounds::default()));
        Ok(Tokenizer { inner, pieces, parts })
    }

    /// Checks that every token has its row among `vocab_size` embeddings, and every byte its token, so that no text is
    /// lost and none fails in the model.
    ///
    /// # Errors
    /// [`TokenizerError::TokenId`] with the largest id, [`TokenizerError::Byte`] with the first symbol without a token.
    pub fn check_vocabulary(&self, vocab_size: usize) -> Result<(), TokenizerError> {
        let largest = self.inner.get_vocab(true).into_values().max();
        if let Some(found) = largest.filter(|&id| id as usize >= vocab_size) {
            return Err(TokenizerError::TokenId { vocab_size, found });
        }
        let missing =
            ByteLevel::alphabet().into_iter().filter(|symbol| self.inner.token_to_id(&symbol.to_string()).is_none());
        missing.min().map_or(Ok(()), |symbol| Err(TokenizerError::Byte { symbol }))
    }

    /// Ids of a piece that stands by itself: a head, an option, a tag. A piece with text has at least one.
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
        if ids.is_empty() && !text.is_empty() {
            return Err(TokenizerError::Encode { text_bytes: text.len() });
        }
        if kept {
            self.pieces.insert(text, &ids);
        }
        Ok(ids)
    }

    /// Ids and code-point offsets of a part of the state.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] when the crate fails on it.
    pub fn encode_part(&self, text: &str) -> Result<Arc<PartEncoding>, TokenizerError> {
        if let Some(part) = self.parts.get(text) {
            return Ok(part);
        }
        let encoding = guarded(text, || self.inner.encode_char_offsets(text, false))?;
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| CharRange { start, end }).collect();
        let part = Arc::new(PartEncoding { ids: encoding.get_ids().to_vec(), offsets });
        self.parts.insert(text, &part);
        Ok(part)
    }
}

/// Runs the crate on a text. Its `onig` bindings panic where a match exceeds their limits, which a client can provoke.
/// Unwinding is harmless: encoding changes nothing but the crate's memory of words, which is the thread's own.
fn guarded(text: &str, encode: impl FnOnce() -> tokenizers::Result<Encoding>) -> Result<Encoding, TokenizerError> {
    catch_unwind(AssertUnwindSafe(encode))
        .ok()
        .and_then(Result::ok)
        .ok_or(TokenizerError::Encode { text_bytes: text.len() })
}

#[cfg(test)]
mod tests;
