//! Which id ends each document, and which one begins it.

use super::tokenizer::Tokenizer;
use crate::{Error, Result};

/// The id that ends each document, or begins it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EosChoice {
    /// The tokenizer's; none for ids without a tokenizer.
    Auto,
    /// None.
    None,
    /// This id.
    Id(u32),
    /// The tokenizer's token of this text.
    Token(String),
}

impl std::str::FromStr for EosChoice {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match (text, text.parse()) {
            ("auto", _) => EosChoice::Auto,
            ("none", _) => EosChoice::None,
            (_, Ok(id)) => EosChoice::Id(id),
            _ => EosChoice::Token(text.into()),
        })
    }
}

impl EosChoice {
    /// The id that `flag` named, with the tokenizer and the vocabulary's size known.
    ///
    /// # Errors
    /// When the tokenizer has no such token, or the id is not below `vocab_size`.
    pub fn resolve(
        &self,
        flag: &str,
        tokenizer: Option<&Tokenizer>,
        vocab_size: usize,
    ) -> Result<Option<u32>> {
        let id = match (self, tokenizer) {
            (EosChoice::None, _) | (EosChoice::Auto, None) => return Ok(None),
            (EosChoice::Id(id), _) => *id,
            (EosChoice::Auto, Some(tokenizer)) => tokenizer.eos_id().ok_or_else(|| {
                Error::usage(format!(
                    "{}: names no end-of-text token; give {flag} none, an id or a token",
                    tokenizer.name()
                ))
            })?,
            (EosChoice::Token(text), tokenizer) => {
                tokenizer.and_then(|t| t.added_id(text)).ok_or_else(|| {
                    Error::usage(format!(
                        "{flag} {text}: no such special token; give none, an id or a token of the \
                         tokenizer"
                    ))
                })?
            }
        };
        if id as usize >= vocab_size {
            return Err(Error::usage(format!(
                "{flag} {id}: not below the vocabulary's size {vocab_size}"
            )));
        }
        Ok(Some(id))
    }
}
