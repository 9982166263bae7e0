//! Text to ids and back.
//!
//! Byte-level BPE vocabularies (GPT-2's, and those learned here) go through this crate's own
//! encoder, which gives the same ids as Hugging Face's at several times the speed (`bpe.rs` has the
//! figures); any other `tokenizer.json` goes through the tokenizers crate.

use std::ops::Range;
use std::path::Path;

use serde_json::Value;

use super::added::{AddedToken, Finder, Part};
use super::bpe::{ByteBpe, PieceCache};
use super::foreign::Foreign;
use super::gpt2;
use super::pieces::Pieces;
use super::tokenizer_json as format;
use crate::error::IoContext;
use crate::format::atomic::AtomicFile;
use crate::{Error, Result};

/// Texts of end-of-document tokens, looked for in this order among the special tokens.
const END_TOKENS: [&str; 5] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"];

/// Most ids of a vocabulary. Tables of them are kept in memory, and one damaged id must not fill it.
const MAX_VOCABULARY: usize = 1 << 24;

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
    notes: Vec<String>,
}

enum Engine {
    Bytes(Box<ByteBpe>, Finder),
    Foreign(Box<Foreign>),
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
        Self::of_bpe("gpt2", bpe, eos)
    }

    pub(super) fn of_bpe(name: &str, bpe: ByteBpe, eos: u32) -> Result<Self> {
        let content = gpt2::END_OF_TEXT.to_owned();
        let added = vec![AddedToken::end_of_text(eos, &content)];
        let finder = Finder::new(&added).map_err(|e| Error::input(name, e))?;
        Ok(Tokenizer {
            name: name.into(),
            json: format::write(&bpe, (&content, eos)),
            vocab_size: bpe.size().max(eos as usize + 1),
            engine: Engine::Bytes(Box::new(bpe), finder),
            added,
            eos: Some((content, eos)),
            allow_special: false,
            notes: Vec::new(),
        })
    }

    /// A tokenizer out of the bytes of a `tokenizer.json`; `name` is kept for manifests and errors.
    ///
    /// # Errors
    /// When the bytes are no tokenizer.
    pub fn from_json(name: &str, bytes: Vec<u8>) -> Result<Self> {
        let bad = |e: String| Error::input(name, format!("not a tokenizer.json: {e}"));
        let mut json: Value = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        if !json["model"].is_object() {
            return Err(bad(
                "it has no model; give a file that Hugging Face's tokenizers wrote".into()
            ));
        }
        let notes = format::settle(&mut json);
        let (engine, vocab_size, added) = match format::read(&json).map_err(bad)? {
            Some(bpe) => {
                let added = AddedToken::listed(&json);
                let largest = added.iter().map(|t| t.id as usize + 1).max().unwrap_or(0);
                let size = bpe.size().max(largest);
                let finder = Finder::new(&added).map_err(bad)?;
                (Engine::Bytes(Box::new(bpe), finder), size, added)
            }
            None => {
                let foreign = Foreign::new(&json).map_err(bad)?;
                let (size, added) = (foreign.vocab_size(), foreign.added());
                (Engine::Foreign(Box::new(foreign)), size, added)
            }
        };
        let end = |text: &&str| added.iter().find(|t| t.special && t.content == **text);
        let eos = END_TOKENS.iter().find_map(end);
        let eos = eos.map(|t| (t.content.clone(), t.id));
        let name = name.into();
        let (json, allow_special) = (bytes, false);
        if vocab_size > MAX_VOCABULARY {
            return Err(bad(format!(
                "has an id {}, and ids are below {MAX_VOCABULARY}; give its tokens ids that lie together",
                vocab_size - 1
            )));
        }
        Ok(Tokenizer { name, engine, added, eos, vocab_size, json, allow_special, notes })
    }

    /// Lets the text of special tokens become these tokens; by default it is plain text.
    pub fn allow_special(mut self, allow: bool) -> Self {
        self.allow_special = allow;
        if let Engine::Foreign(foreign) = &mut self.engine {
            foreign.library.set_encode_special_tokens(!allow);
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

    /// What is not done as the file says, for people.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether ids may stand for other bytes than those of the text: true where a tokenizer may
    /// rewrite the text (lower case, normal forms, blanks taken or put in), replaces what it does
    /// not know, or is not byte-level, so that this cannot be told.
    pub fn lossy(&self) -> bool {
        let strips = |t: &AddedToken| (t.lstrip || t.rstrip) && (!t.special || self.allow_special);
        let rewrites = match &self.engine {
            Engine::Bytes(..) => false,
            Engine::Foreign(foreign) => foreign.rewrites || !foreign.byte_level,
        };
        rewrites || self.added.iter().any(strips)
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
    /// When the tokenizer has no token for a byte of it, or the tokenizers crate fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        Encoder::new(self).encode_into(text, &mut out)?;
        Ok(out)
    }

    /// The ids of `text` and the bytes of it that each stands for; some tokenizers leave blanks to
    /// no id.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub(super) fn encode_spans(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        match &self.engine {
            Engine::Foreign(foreign) => {
                let encoding =
                    foreign.guarded(&self.name, |library| library.encode(text, false))?;
                let spans = encoding.get_offsets().iter().map(|&(start, end)| start..end);
                Ok(encoding.get_ids().iter().copied().zip(spans).collect())
            }
            Engine::Bytes(bpe, finder) => {
                let mut encoder = Encoder::new(self);
                let (mut ids, mut out) = (Vec::new(), Vec::new());
                finder.split(text, self.allow_special, &mut |part| {
                    match part {
                        Part::Added(id, range) => out.push((id, range)),
                        Part::Text(range) => {
                            ids.clear();
                            encoder.plain(bpe, &text[range.clone()], &mut ids)?;
                            let mut at = range.start;
                            out.extend(ids.iter().map(|&id| {
                                let start = at;
                                at += bpe.bytes(id).map_or(0, <[u8]>::len);
                                (id, start..at)
                            }));
                        }
                    }
                    Ok::<(), Error>(())
                })?;
                Ok(out)
            }
        }
    }

    /// The bytes that `ids` stand for. An id outside the vocabulary has none; the end of text and
    /// other added tokens are their text.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        match &self.engine {
            Engine::Foreign(foreign) => foreign
                .guarded(&self.name, |library| library.decode(ids, false))
                .unwrap_or_default()
                .into_bytes(),
            Engine::Bytes(bpe, _) => {
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
        let ids = 0..self.vocab_size as u32;
        let mut lengths: Vec<u32> = match &self.engine {
            Engine::Bytes(bpe, _) => {
                ids.map(|id| bpe.bytes(id).map_or(0, |b| b.len() as u32)).collect()
            }
            Engine::Foreign(foreign) if foreign.byte_level => {
                let chars = format::char_bytes();
                ids.map(|id| foreign.token_length(id, &chars)).collect()
            }
            Engine::Foreign(_) => {
                return Err(Error::input(
                    &self.name,
                    "not a byte-level BPE tokenizer, so an id has no length in bytes of its own",
                ));
            }
        };
        for token in &self.added {
            if let Some(length) = lengths.get_mut(token.id as usize) {
                *length = if token.special { 0 } else { token.content.len() as u32 };
            }
        }
        Ok(lengths)
    }

    /// The vocabulary's text of an id of a foreign tokenizer.
    #[cfg(test)]
    pub(super) fn piece(&self, id: u32) -> String {
        match &self.engine {
            Engine::Bytes(..) => self.decode_lossy(&[id]),
            Engine::Foreign(foreign) => foreign.library.id_to_token(id).unwrap_or_default(),
        }
    }

    /// Whether this crate's own encoder serves it.
    #[cfg(test)]
    pub(super) fn has_own_engine(&self) -> bool {
        matches!(self.engine, Engine::Bytes(..))
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
    /// As [`Tokenizer::encode`].
    pub fn encode_into(&mut self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let (name, allow) = (&self.tokenizer.name, self.tokenizer.allow_special);
        match &self.tokenizer.engine {
            Engine::Foreign(foreign) => {
                let encoding = foreign.guarded(name, |library| library.encode_fast(text, false))?;
                out.extend_from_slice(encoding.get_ids());
                Ok(())
            }
            Engine::Bytes(bpe, finder) => finder.split(text, allow, &mut |part| match part {
                Part::Added(id, _) => {
                    out.push(id);
                    Ok(())
                }
                Part::Text(range) => self.plain(bpe, &text[range], out),
            }),
        }
    }

    fn plain(&mut self, bpe: &ByteBpe, text: &str, out: &mut Vec<u32>) -> Result<()> {
        if let Some(byte) = bpe.missing_byte(text.as_bytes()) {
            return Err(Error::input(
                &self.tokenizer.name,
                format!("the vocabulary has no token for byte 0x{byte:02x} of the text"),
            ));
        }
        for piece in Pieces::new(text) {
            self.cache.encode(bpe, piece.as_bytes(), out);
        }
        Ok(())
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
        assert!(again.has_own_engine());
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

    /// A byte-level vocabulary of these bytes alone.
    fn of_bytes(bytes: &[u8], change: impl Fn(&mut Value)) -> Result<Tokenizer> {
        let table = format::byte_chars();
        let vocab: serde_json::Map<String, Value> = bytes
            .iter()
            .enumerate()
            .map(|(id, &b)| (table[usize::from(b)].to_string(), id.into()))
            .collect();
        let mut json: Value = serde_json::from_slice(Tokenizer::gpt2().unwrap().json()).unwrap();
        json["added_tokens"] = Value::Array(Vec::new());
        json["model"]["vocab"] = vocab.into();
        json["model"]["merges"] = Value::Array(Vec::new());
        change(&mut json);
        Tokenizer::from_json("t", serde_json::to_vec(&json).unwrap())
    }

    #[test]
    fn a_byte_without_a_token_matters_only_to_a_text_that_has_it() {
        let letters: Vec<u8> = (b'a'..=b'z').collect();
        let tokenizer = of_bytes(&letters, |_| {}).unwrap();
        assert!(tokenizer.has_own_engine());
        assert_eq!(tokenizer.encode("cab").unwrap(), [2, 0, 1]);
        let error = tokenizer.encode("a b").unwrap_err().to_string();
        assert!(error.contains("0x20"), "{error}");
        let unknown = of_bytes(&letters, |json| json["model"]["unk_token"] = "a".into()).unwrap();
        assert_eq!(unknown.encode("c b").unwrap(), [2, 0, 1], "as the library has it");
        assert!(unknown.lossy() && !tokenizer.lossy());
    }

    #[test]
    fn dropout_is_off_and_said_to_be() {
        let all: Vec<u8> = (0..=255).collect();
        let tokenizer = of_bytes(&all, |json| json["model"]["dropout"] = 0.5.into()).unwrap();
        assert!(tokenizer.has_own_engine());
        assert!(tokenizer.notes()[0].contains("dropout of 0.5 is off"), "{:?}", tokenizer.notes());
    }

    #[test]
    fn a_tokenizer_that_rewrites_the_text_is_lossy_and_a_byte_level_one_has_lengths() {
        let all: Vec<u8> = (0..=255).collect();
        let split = of_bytes(&all, |json| {
            json["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
        })
        .unwrap();
        assert!(!split.has_own_engine() && !split.lossy());
        let text = "Ünïcode a\u{200d}b 日本";
        let (ids, lengths) = (split.encode(text).unwrap(), split.token_bytes().unwrap());
        assert_eq!(ids.iter().map(|&id| lengths[id as usize] as usize).sum::<usize>(), text.len());
        let lower =
            of_bytes(&all, |json| json["normalizer"] = serde_json::json!({"type": "Lowercase"}));
        assert!(lower.unwrap().lossy());
    }

    #[test]
    fn an_id_far_beyond_the_others_is_refused() {
        let json = r#"{"added_tokens":[],"model":{"type":"WordLevel","unk_token":"a",
                       "vocab":{"a":0,"b":4000000000}}}"#;
        let error = Tokenizer::from_json("t", json.into()).err().unwrap();
        assert!(error.to_string().contains("has an id 4000000000"), "{error}");
    }
}
