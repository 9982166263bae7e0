//! The sequences that are scored: blocks of the shards, checked against the model, and how many
//! bytes of text their tokens stand for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ao_core::cli::Input;
use ao_core::tokens::{Blocks, Dataset, Documents, OpenOptions, TextBytes, Tokenizer};
use ao_core::{Error, Result};

use crate::network::Loaded;

/// One sequence to score.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Its number in the set, from 0, whatever was skipped.
    pub index: u64,
    /// Token ids in text order.
    pub tokens: Vec<u32>,
    /// The first token of its document, counted over the shards, where that is known.
    pub document: Option<u64>,
}

/// Which shards are scored, and how much of them.
#[derive(Debug, Clone)]
pub struct Shards {
    /// A folder, one shard, or a raw file.
    pub path: PathBuf,
    /// Whether it is a raw file of u16 tokens.
    pub raw_u16: bool,
    /// Sequences to pass over first.
    pub skip: u64,
    /// Sequences to score at most.
    pub most: Option<u64>,
    /// The tokenizer for bytes of text, where one is named.
    pub tokenizer: Option<String>,
}

/// The sequences of a shard folder, in file order.
pub struct Corpus {
    blocks: Blocks,
    documents: Documents,
    /// Counts bytes of text, where a tokenizer is known.
    bytes: Option<TextBytes>,
    range: std::ops::Range<u64>,
    /// The shards, for the run record.
    pub input: Input,
}

impl Corpus {
    /// Opens the shards that `wanted` names, for the model `loaded`.
    ///
    /// # Errors
    /// When they cannot be read, hold no sequence behind those passed over, or belong to another
    /// tokenizer or a larger vocabulary than the model's.
    pub fn open(wanted: &Shards, loaded: &Loaded) -> Result<Corpus> {
        let path = wanted.path.as_path();
        let options = OpenOptions {
            raw_u16: wanted.raw_u16,
            vocab_size: Some(loaded.vocab_used()),
            ..OpenOptions::default()
        };
        let data = Arc::new(Dataset::open(path, &options)?);
        check_tokenizer(path, &data, loaded)?;
        let blocks = data.blocks(loaded.config.block_size())?;
        if wanted.skip >= blocks.len() {
            let count = blocks.len();
            return Err(if wanted.skip == 0 {
                Error::input_at(path, "has no tokens to score")
            } else {
                Error::usage(format!("--skip {}: the set has {count} sequences", wanted.skip))
            });
        }
        let all = blocks.len();
        let end = wanted.most.map_or(all, |n| wanted.skip.saturating_add(n).min(all));
        let input = if path.is_dir() { Input::of_folder(path)? } else { Input::of_file(path)? };
        let bytes = tokenizer(wanted, &data, loaded)?.map(|of| TextBytes::new(&data, of));
        let documents = Documents::new(blocks.clone());
        Ok(Corpus { blocks, documents, bytes, range: wanted.skip..end, input })
    }

    /// The numbers of the sequences.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.range.clone()
    }

    /// Reads one sequence.
    ///
    /// # Errors
    /// When an id lies outside the vocabulary.
    pub fn read(&self, index: u64) -> Result<Sequence> {
        let mut tokens = Vec::new();
        self.blocks.read(index, &mut tokens)?;
        let document = self.documents.of_block(index, &tokens)?;
        Ok(Sequence { index, tokens, document })
    }

    /// Bytes of text of a sequence's tokens, those at the positions `given` left out; an end token
    /// stands for none. `None` without a tokenizer.
    pub fn bytes(&self, sequence: &Sequence, given: &[u32]) -> Option<u64> {
        let bytes = self.bytes.as_ref()?;
        if given.is_empty() {
            return bytes.count(&sequence.tokens, sequence.index);
        }
        let scored = sequence.tokens.iter().enumerate();
        let scored = scored.filter(|(i, _)| !given.contains(&(*i as u32)));
        bytes.count(&scored.map(|(_, &token)| token).collect::<Vec<_>>(), sequence.index)
    }

    /// Where bytes of text come from ([`TextBytes::source`]), and what a reader has to know of it.
    pub fn bytes_source(&self) -> Option<(&'static str, Option<&'static str>)> {
        self.bytes.as_ref().map(|bytes| (bytes.source(), bytes.note()))
    }
}

fn check_tokenizer(path: &Path, data: &Dataset, loaded: &Loaded) -> Result<()> {
    let of_model = loaded.metadata.as_ref().and_then(|m| m.tokenizer.as_deref());
    if let (Some(shards), Some(model)) = (data.manifest().tokenizer_hash(), of_model)
        && shards != model
    {
        return Err(Error::input_at(
            path,
            format!(
                "its tokenizer is {shards}, the model was trained with {model}; tokenize the text \
                 with the model's tokenizer.json"
            ),
        ));
    }
    let (real, used) = (data.vocab_size(), loaded.vocab_used());
    if real > used {
        return Err(Error::input_at(
            path,
            format!("its vocabulary has {real} ids, the model {used}; tokenize it for this model"),
        ));
    }
    Ok(())
}

/// The tokenizer that counts bytes: the one named, the shards', or the model's.
fn tokenizer(wanted: &Shards, data: &Dataset, loaded: &Loaded) -> Result<Option<Tokenizer>> {
    let hash = data.manifest().tokenizer_hash();
    if let Some(name) = &wanted.tokenizer {
        let tokenizer = Tokenizer::load(name)?;
        if let Some(hash) = hash
            && tokenizer.hash() != hash
        {
            return Err(Error::usage(format!(
                "--tokenizer {name}: {} is not the shards' tokenizer {hash}",
                tokenizer.hash()
            )));
        }
        return Ok(Some(tokenizer));
    }
    let beside = data.path().join("tokenizer.json");
    let candidates = [Some(beside).filter(|p| p.is_file()), loaded.tokenizer.clone()];
    for path in candidates.into_iter().flatten() {
        let tokenizer = Tokenizer::load(&path.to_string_lossy())?;
        let same = hash.is_none_or(|hash| tokenizer.hash() == hash);
        if same && tokenizer.vocab_size() >= data.vocab_size() {
            return Ok(Some(tokenizer));
        }
    }
    Ok(None)
}
