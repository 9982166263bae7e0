//! GPT-2's vocabulary, built in: the r50k ranks that tiktoken-rs carries.

use super::bpe::ByteBpe;
use crate::{Error, Result};

/// The end-of-text token, the last id.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// Byte strings of GPT-2's vocabulary; the end-of-text token comes after them.
const TOKENS: u32 = 50_256;

/// GPT-2's merges.
///
/// # Errors
/// Only when the carried ranks are not GPT-2's.
pub fn byte_bpe() -> Result<ByteBpe> {
    let bad = |e: String| Error::usage(format!("the built-in gpt2 vocabulary is damaged: {e}"));
    let ranks = tiktoken_rs::r50k_base().map_err(|e| bad(e.to_string()))?;
    let tokens = (0..TOKENS)
        .map(|id| ranks.decode_bytes(&[id]).map(Vec::into_boxed_slice))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| bad(format!("{e:?}")))?;
    ByteBpe::from_ranks(tokens).map_err(bad)
}
