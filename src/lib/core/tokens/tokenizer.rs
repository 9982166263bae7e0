//! Text to ids and back.
//!
//! Byte-level BPE vocabularies (GPT-2's, and those learned here) go through this crate's own
//! encoder, which gives the same ids as Hugging Face's at several times the speed; any other
//! `tokenizer.json` goes through the tokenizers crate.

use std::path::Path;

use serde_json::Value;

use super::bpe::{ByteBpe, PieceCache};
use super::gpt2;
use super::pieces::Pieces;
use super::tokenizer_json::{self as format, AddedToken};
use crate::error::IoContext;
use crate::format::atomic::AtomicFile;
use crate::{Error, Result};

/// Texts of end-of-document tokens, looked for in this order among the special tokens.
const END_TOKENS: [&str; 5] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"];
/// Pieces longer than this many bytes teach a vocabulary nothing and cost much.
const LONGEST_LEARNED: usize = 256;

/// A vocabulary with the rule that turns text into its ids.
pub struct Tokenizer {
    name: String,
    engine: Engine,
    added: Vec<AddedToken>,
    eos: Option<(String, u32)>,
    vocab_size: usize,
    /// The bytes of `tokenizer.json`.
    json: Vec<u8>,
    allow_special: bool,
}

enum Engine {
    Bytes(Box<ByteBpe>),
    Foreign(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// `gpt2`, or the `tokenizer.json` (or a folder with one) at this path.
    ///
    /// # Errors
    /// When the file is missing or no tokenizer.
    pub fn load(name_or_path: &str) -> Result<Self> {
        if name_or_path == "gpt2" {
            return Self::gpt2();
        }
        let mut path = Path::new(name_or_path).to_owned();
        if path.is_dir() {
            path.push("tokenizer.json");
        }
        if !path.exists() {
            return Err(Error::input(
                name_or_path,
                "no such tokenizer; give gpt2 or the path of a tokenizer.json",
            ));
        }
        let bytes = std::fs::read(&path).reading(&path)?;
        Self::from_json(name_or_path, bytes)
    }

    /// GPT-2's vocabulary: 50,257 ids, the last one the end of text.
    ///
    /// # Errors
    /// Only when the built-in ranks are damaged.
    pub fn gpt2() -> Result<Self> {
        let bpe = gpt2::byte_bpe()?;
        let eos = bpe.size() as u32;
        Ok(Self::of_bpe("gpt2", bpe, eos))
    }

    fn of_bpe(name: &str, bpe: ByteBpe, eos: u32) -> Self {
        let content = gpt2::END_OF_TEXT.to_owned();
        Tokenizer {
            name: name.into(),
            json: format::write(&bpe, (&content, eos)),
            vocab_size: bpe.size().max(eos as usize + 1),
            engine: Engine::Bytes(Box::new(bpe)),
            added: vec![AddedToken { id: eos, content: content.clone(), special: true }],
            eos: Some((content, eos)),
            allow_special: false,
        }
    }

    /// A tokenizer out of the bytes of a `tokenizer.json`; `name` is kept for manifests and errors.
    ///
    /// # Errors
    /// When the bytes are no tokenizer.
    pub fn from_json(name: &str, bytes: Vec<u8>) -> Result<Self> {
        let bad = |e: String| Error::input(name, format!("not a tokenizer.json: {e}"));
        let json: Value = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        if !json["model"].is_object() {
            return Err(bad(
                "it has no model; give a file that Hugging Face's tokenizers wrote".into()
            ));
        }
        let added = format::added_tokens(&json);
        let (engine, vocab_size) = match format::read(&json).map_err(bad)? {
            Some(bpe) => {
                let size = bpe.size();
                (Engine::Bytes(Box::new(bpe)), size)
            }
            None => {
                let mut foreign =
                    tokenizers::Tokenizer::from_bytes(&bytes).map_err(|e| bad(e.to_string()))?;
                foreign.set_encode_special_tokens(true);
                // A file made for one model's inputs may cut or fill up every text.
                foreign.with_truncation(None).map_err(|e| bad(e.to_string()))?.with_padding(None);
                let largest = foreign.get_vocab(true).values().copied().max();
                let size = largest.map_or(0, |id| id as usize + 1);
                (Engine::Foreign(Box::new(foreign)), size)
            }
        };
        let end = |text: &&str| added.iter().find(|t| t.special && t.content == **text);
        let eos = END_TOKENS.iter().find_map(end);
        let eos = eos.map(|t| (t.content.clone(), t.id));
        Ok(Tokenizer {
            name: name.into(),
            engine,
            added,
            eos,
            vocab_size,
            json: bytes,
            allow_special: false,
        })
    }

    /// Learns a byte-level BPE vocabulary of `size` ids (or fewer, when the text has no more pairs
    /// that occur twice): 256 bytes, merges, and the end of text as the last id.
    ///
    /// Pieces above 256 bytes are left out of the counts.
    ///
    /// # Errors
    /// When `size` is below 257.
    pub fn train(texts: impl Iterator<Item = String> + Send, size: usize) -> Result<Self> {
        use tokenizers::Trainer;
        use tokenizers::models::bpe::{BPE, BpeTrainer};
        if size < 257 {
            return Err(Error::usage(format!(
                "--train-tokenizer {size}: need at least 257 (256 bytes and the end of text)"
            )));
        }
        let failed = |e: tokenizers::Error| Error::usage(format!("learning a tokenizer: {e}"));
        let table = format::byte_chars();
        let mut trainer = BpeTrainer::builder()
            .vocab_size(size - 1)
            .min_frequency(2)
            .show_progress(false)
            .initial_alphabet(table.into_iter().collect())
            .build();
        let words = |text: &str| {
            let words = Pieces::new(text)
                .filter(|p| p.len() <= LONGEST_LEARNED)
                .map(|p| format::bytes_to_text(p.as_bytes(), &table));
            Ok(words.collect())
        };
        trainer.feed(texts, words).map_err(failed)?;
        let mut model = BPE::default();
        trainer.train(&mut model).map_err(failed)?;
        let mut tokens: Vec<(u32, String)> =
            model.get_vocab().into_iter().map(|(text, id)| (id, text)).collect();
        tokens.sort_unstable();
        Self::from_learned(tokens)
    }

    /// The vocabulary out of the learned tokens in id order: an id is its merge's rank.
    fn from_learned(tokens: Vec<(u32, String)>) -> Result<Self> {
        let chars: std::collections::HashMap<char, u8> =
            format::byte_chars().into_iter().zip(0..=255u8).collect();
        let bytes = tokens
            .iter()
            .map(|(_, text)| text.chars().filter_map(|c| chars.get(&c).copied()).collect())
            .collect();
        let bpe = ByteBpe::from_ranks(bytes)
            .map_err(|e| Error::usage(format!("learning a tokenizer: {e}")))?;
        let eos = bpe.size() as u32;
        Ok(Self::of_bpe("trained", bpe, eos))
    }

    /// Lets the text of special tokens become these tokens; by default it is plain text.
    pub fn allow_special(mut self, allow: bool) -> Self {
        self.allow_special = allow;
        if let Engine::Foreign(foreign) = &mut self.engine {
            foreign.set_encode_special_tokens(!allow);
        }
        self
    }

    /// `gpt2`, or the path it was loaded from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Real ids: one more than the largest.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The token that ends a document.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos.as_ref().map(|(_, id)| *id)
    }

    /// The id of a special or added token by its text.
    pub fn added_id(&self, text: &str) -> Option<u32> {
        self.added.iter().find(|t| t.content == text).map(|t| t.id)
    }

    /// XXH3 (64 bits, hexadecimal) of the `tokenizer.json`.
    pub fn hash(&self) -> String {
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&self.json))
    }

    /// The bytes of the `tokenizer.json`.
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// Writes the `tokenizer.json`, over an older one.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn save(&self, path: &Path) -> Result<()> {
        AtomicFile::write(path, &self.json, true)
    }

    /// The ids of `text`.
    ///
    /// # Errors
    /// Only from a foreign tokenizer.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        Encoder::new(self).encode_into(text, &mut out)?;
        Ok(out)
    }

    /// The bytes that `ids` stand for. An id outside the vocabulary has none; the end of text and
    /// other added tokens are their text.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        match &self.engine {
            Engine::Foreign(foreign) => foreign.decode(ids, false).unwrap_or_default().into_bytes(),
            Engine::Bytes(bpe) => {
                let mut out = Vec::with_capacity(4 * ids.len());
                for &id in ids {
                    let added = || self.added.iter().find(|t| t.id == id);
                    match bpe.bytes(id) {
                        Some(bytes) => out.extend_from_slice(bytes),
                        None => out.extend(added().map_or("", |t| &t.content).bytes()),
                    }
                }
                out
            }
        }
    }

    /// The text that `ids` stand for; bytes that are not UTF-8 become U+FFFD.
    pub fn decode_lossy(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.decode(ids)).into_owned()
    }

    /// The number of bytes of text that each id stands for; special tokens stand for none.
    ///
    /// # Errors
    /// When the tokenizer is not byte-level, so that an id alone has no length.
    pub fn token_bytes(&self) -> Result<Vec<u32>> {
        let Engine::Bytes(bpe) = &self.engine else {
            return Err(Error::input(
                &self.name,
                "not a byte-level BPE tokenizer, so an id has no length in bytes of its own",
            ));
        };
        let mut lengths: Vec<u32> = (0..self.vocab_size as u32)
            .map(|id| bpe.bytes(id).map_or(0, |b| b.len() as u32))
            .collect();
        for token in self.added.iter().filter(|t| !t.special) {
            lengths[token.id as usize] = token.content.len() as u32;
        }
        Ok(lengths)
    }
}

/// One thread's encoder: a tokenizer and a cache of the words seen.
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    cache: PieceCache,
}

impl<'a> Encoder<'a> {
    /// An encoder with an empty cache.
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        Encoder { tokenizer, cache: PieceCache::default() }
    }

    /// Appends the ids of `text`.
    ///
    /// # Errors
    /// Only from a foreign tokenizer.
    pub fn encode_into(&mut self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        match &self.tokenizer.engine {
            Engine::Foreign(foreign) => {
                let encoding = foreign.encode_fast(text, false).map_err(|e| {
                    Error::input(&self.tokenizer.name, format!("the tokenizer failed: {e}"))
                })?;
                out.extend_from_slice(encoding.get_ids());
            }
            Engine::Bytes(bpe) => {
                let mut rest = text;
                while let Some((at, token)) = self.first_added(rest) {
                    self.plain(bpe, &rest[..at], out);
                    out.push(token.id);
                    rest = &rest[at + token.content.len()..];
                }
                self.plain(bpe, rest, out);
            }
        }
        Ok(())
    }

    fn plain(&mut self, bpe: &ByteBpe, text: &str, out: &mut Vec<u32>) {
        for piece in Pieces::new(text) {
            self.cache.encode(bpe, piece.as_bytes(), out);
        }
    }

    /// The first added token in `text`, the longest of those that start there. Special ones count
    /// only where they are allowed.
    fn first_added(&self, text: &str) -> Option<(usize, &'a AddedToken)> {
        let tokens = self.tokenizer.added.iter();
        tokens
            .filter(|t| !t.content.is_empty() && (!t.special || self.tokenizer.allow_special))
            .filter_map(|t| text.find(&t.content).map(|at| (at, t)))
            .min_by_key(|(at, t)| (*at, std::cmp::Reverse(t.content.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> Value {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata/golden/tokenizer/gpt2.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn gpt2_gives_the_published_ids_and_back() {
        let plain = Tokenizer::gpt2().unwrap();
        let special = Tokenizer::gpt2().unwrap().allow_special(true);
        let golden = golden();
        assert_eq!(golden["n_vocab"], plain.vocab_size());
        assert_eq!(golden["eos_id"].as_u64(), plain.eos_id().map(u64::from));
        for case in golden["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let ids = plain.encode(text).unwrap();
            assert_eq!(serde_json::json!(ids), case["ids"], "{text:?}");
            assert_eq!(plain.decode(&ids), text.as_bytes(), "{text:?}");
            let ids = special.encode(text).unwrap();
            assert_eq!(serde_json::json!(ids), case["ids_allow_special"], "{text:?}");
        }
    }

    #[test]
    fn the_written_json_gives_the_same_ids_here_and_in_hugging_face_tokenizers() {
        let gpt2 = Tokenizer::gpt2().unwrap();
        let again = Tokenizer::from_json("x", gpt2.json().to_vec()).unwrap();
        assert!(matches!(again.engine, Engine::Bytes(_)));
        let mut foreign = tokenizers::Tokenizer::from_bytes(gpt2.json()).unwrap();
        foreign.set_encode_special_tokens(true);
        let long = "ab".repeat(5000) + &"x".repeat(3000) + "日本語".repeat(400).as_str();
        let mixed = "It's 12 o'clock\r\n\n  — naïve <|endoftext|> ";
        for text in [long.as_str(), mixed, ""] {
            let ids = gpt2.encode(text).unwrap();
            assert_eq!(again.encode(text).unwrap(), ids);
            assert_eq!(foreign.encode(text, false).unwrap().get_ids(), ids);
            assert_eq!(gpt2.decode(&ids), text.as_bytes());
        }
        assert_eq!((again.eos_id(), again.vocab_size()), (gpt2.eos_id(), gpt2.vocab_size()));
    }

    #[test]
    fn a_foreign_tokenizer_neither_cuts_nor_fills_up() {
        let json = r#"{"version":"1.0",
            "truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
            "padding":{"strategy":{"Fixed":9},"direction":"Right","pad_to_multiple_of":null,
                "pad_id":0,"pad_type_id":0,"pad_token":"[UNK]"},
            "added_tokens":[{"id":3,"content":"[SEP]","single_word":false,"lstrip":false,
                "rstrip":false,"normalized":false,"special":true}],
            "normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":null,
            "decoder":null,
            "model":{"type":"WordLevel","vocab":{"[UNK]":0,"a":1,"b":2,"[SEP]":3},
                "unk_token":"[UNK]"}}"#;
        let foreign = Tokenizer::from_json("t", json.as_bytes().to_vec()).unwrap();
        assert_eq!(foreign.encode("a b a x").unwrap(), [1, 2, 1, 0]);
        assert_eq!((foreign.eos_id(), foreign.vocab_size()), (Some(3), 4));
        assert_eq!(foreign.token_bytes().unwrap_err().exit_code(), 2);
    }

    #[test]
    fn a_learned_vocabulary_has_the_size_asked_for_and_loses_nothing() {
        let text = "the cat sat on the mat and the cat sat again\n".repeat(20);
        let learned = Tokenizer::train([text.clone()].into_iter(), 270).unwrap();
        assert_eq!((learned.vocab_size(), learned.eos_id()), (270, Some(269)));
        let odd = format!("{text} Ünïcode 日本 \u{0} end");
        let ids = learned.encode(&odd).unwrap();
        assert!(ids.len() < odd.len());
        assert_eq!(learned.decode(&ids), odd.as_bytes());
        let bytes = learned.token_bytes().unwrap();
        assert_eq!(ids.iter().map(|&id| bytes[id as usize] as usize).sum::<usize>(), odd.len());
        assert_eq!(bytes[269], 0);
    }
}
