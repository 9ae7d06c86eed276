//! The pieces of text that are tokenised by themselves, word for word (spec: vela.md §6).

use crate::family::vela::questions::{Kind, Question};
use crate::family::vela::state::Role;
use crate::family::vela::tokens::{Ids, Tokenizer, TokenizerError};
use crate::wire::canonical::canonical;
use crate::wire::json::{Object, Value};

const CONTEXT: &str = "Context:\n";
const CLOSE: &str = "\n</segment>\n";
const TEXT: &str = "\n\nText:\n";
const ONE: &str = "\n\nSelect the single option best supported by the context and instructions.\nDecision:";
const EVERY: &str = "\n\nSelect every option supported by the context and instructions.\nDecision:";
const MARK: &str = "\n\nMark every span of the target text that carries one of the labels.\nSpans:";
const ABSTAIN: (&str, &str) = ("[ABS]", "None of the shown options applies.");

/// The pieces that every request of a member has, tokenised once.
pub(super) struct SharedPieces {
    pub(super) context: Ids,
    pub(super) close: Ids,
    /// The head of a span's repeat.
    pub(super) text: Ids,
    open: [(Role, Ids); 3],
    abstain: Ids,
    /// Suffixes of a choice or score, a set, and a span.
    one: Ids,
    every: Ids,
    mark: Ids,
}

/// A question's own pieces, in the order of its block.
pub(super) struct QuestionPieces {
    pub(super) head: Ids,
    /// The options (abstain last) or labels.
    pub(super) options: Vec<Ids>,
    pub(super) suffix: Ids,
}

impl SharedPieces {
    /// Tokenises them.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<Self, TokenizerError> {
        let piece = |text: &str| tokenizer.encode_piece(text);
        let open = |role: Role| Ok((role, piece(&format!("<segment role=\"{}\">\n", role.name()))?));
        Ok(SharedPieces {
            context: piece(CONTEXT)?,
            close: piece(CLOSE)?,
            text: piece(TEXT)?,
            open: [open(Role::User)?, open(Role::Context)?, open(Role::Answer)?],
            abstain: piece(&option_text("option", ABSTAIN.0, ABSTAIN.1))?,
            one: piece(ONE)?,
            every: piece(EVERY)?,
            mark: piece(MARK)?,
        })
    }

    /// What opens a part.
    pub(super) fn open(&self, role: Role) -> &Ids {
        let (_, open) = self.open.iter().find(|(of, _)| *of == role).expect("every role has its piece");
        open
    }
}

impl QuestionPieces {
    pub(super) fn new(
        tokenizer: &Tokenizer,
        shared: &SharedPieces,
        question: &Question,
    ) -> Result<Self, TokenizerError> {
        let tag = if question.kind == Kind::Span { "label" } else { "option" };
        let mut options = question
            .options
            .iter()
            .map(|(key, description)| tokenizer.encode_piece(&option_text(tag, key, description)))
            .collect::<Result<Vec<_>, _>>()?;
        if question.abstain {
            options.push(Ids::clone(&shared.abstain));
        }
        let suffix = match question.kind {
            Kind::Choice | Kind::Noul | Kind::Score => &shared.one,
            Kind::Set => &shared.every,
            Kind::Span => &shared.mark,
        };
        let head = tokenizer.encode_piece(&head_text(question))?;
        Ok(QuestionPieces { head, options, suffix: Ids::clone(suffix) })
    }

    /// Tokens of the head and the suffix.
    pub(super) fn frame_tokens(&self) -> usize {
        self.head.len() + self.suffix.len()
    }

    /// All of its tokens.
    pub(super) fn tokens(&self) -> usize {
        self.frame_tokens() + self.options.iter().map(|option| option.len()).sum::<usize>()
    }

    /// Tokens of the options or labels, and one for each.
    pub(super) fn option_tokens(&self) -> usize {
        self.options.iter().map(|option| 1 + option.len()).sum()
    }
}

fn head_text(question: &Question) -> String {
    let roles: Vec<&str> = question.roles.iter().map(|role| role.name()).collect();
    let shown = if question.kind == Kind::Span { "Labels:" } else { "Options:" };
    format!(
        "\n\nTask type: {}\nTarget: {}\nQuestion:\n{}\n{shown}",
        question.kind.engine(),
        roles.join(", "),
        question.text
    )
}

fn option_text(tag: &str, key: &str, description: &str) -> String {
    let mut shown = Object::new();
    shown.insert("key".to_owned(), Value::Text(key.to_owned()));
    shown.insert("description".to_owned(), Value::Text(description.to_owned()));
    format!("\n<{tag}>\n{}\n</{tag}>", canonical(&Value::Object(shown)))
}
