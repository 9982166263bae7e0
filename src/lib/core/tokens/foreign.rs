//! Tokenizers that are left to the tokenizers crate.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;

use super::added::AddedToken;
use super::tokenizer_json as format;
use crate::{Error, Result};

/// A tokenizer of the tokenizers crate.
pub struct Foreign {
    pub library: tokenizers::Tokenizer,
    /// Whether ids stand for bytes of their own, as in byte-level vocabularies.
    pub byte_level: bool,
    /// Whether the text may be rewritten ahead of encoding.
    pub rewrites: bool,
}

impl Foreign {
    /// Out of a `tokenizer.json`.
    ///
    /// # Errors
    /// When the crate cannot read it.
    pub fn new(json: &Value) -> Result<Foreign, String> {
        let bytes = serde_json::to_vec(json).map_err(|e| e.to_string())?;
        // The crate asserts what its own files hold, so hostile ones may make it panic.
        let library = catch_unwind(|| tokenizers::Tokenizer::from_bytes(&bytes))
            .map_err(|_| "the tokenizers crate cannot read it".to_owned())?;
        let mut library = library.map_err(|e| e.to_string())?;
        // A file made for one model's inputs may cut or fill up every text.
        library.with_truncation(None).map_err(|e| e.to_string())?.with_padding(None);
        library.set_encode_special_tokens(true);
        let byte_level = json["decoder"]["type"] == "ByteLevel";
        let prefixes = json["pre_tokenizer"].to_string().contains(r#""add_prefix_space":true"#);
        let unknown = json["model"]["unk_token"].is_string();
        let rewrites = !json["normalizer"].is_null() || prefixes || (byte_level && unknown);
        Ok(Foreign { library, byte_level, rewrites })
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        let largest = self.library.get_vocab(true).values().copied().max();
        largest.map_or(0, |id| id as usize + 1)
    }

    /// The added tokens under the ids that the library gives them.
    pub fn added(&self) -> Vec<AddedToken> {
        let mut added: Vec<AddedToken> = self
            .library
            .get_added_tokens_decoder()
            .iter()
            .map(|(&id, t)| AddedToken {
                id,
                content: t.content.clone(),
                special: t.special,
                single_word: t.single_word,
                lstrip: t.lstrip,
                rstrip: t.rstrip,
                normalized: t.normalized,
            })
            .collect();
        added.sort_by_key(|t| t.id);
        added
    }

    /// Calls the library.
    ///
    /// # Errors
    /// Those of the library, and what makes it panic.
    pub fn guarded<T>(
        &self,
        name: &str,
        call: impl FnOnce(&tokenizers::Tokenizer) -> tokenizers::Result<T>,
    ) -> Result<T> {
        let failed = |e: String| Error::input(name, format!("the tokenizer failed: {e}"));
        // The library keeps nothing between calls but a cache of words.
        catch_unwind(AssertUnwindSafe(|| call(&self.library)))
            .map_err(|_| failed("the tokenizers crate cannot encode this text".into()))?
            .map_err(|e| failed(e.to_string()))
    }

    /// Bytes of one id of a byte-level vocabulary.
    pub fn token_length(&self, id: u32, chars: &HashMap<char, u8>) -> u32 {
        let Some(text) = self.library.id_to_token(id) else { return 0 };
        format::text_to_bytes(&text, chars).map_or(text.len(), |bytes| bytes.len()) as u32
    }
}
