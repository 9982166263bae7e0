//! A shard folder opened for reading: memory-mapped tokens that are asked for block by block.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::blocks::Blocks;
use crate::format::manifest::{Manifest, Packing, ShardEntry, Totals, VERSION};
use crate::format::shard::{Lengths, Shard};
use crate::{Error, Result};

/// GPT-2's vocabulary, which a shard or raw file without a manifest is taken to have: it is the
/// one that nanoGPT and llm.c write.
const GPT2_VOCAB: usize = 50_257;

/// Tokens read at a time when all are read.
const CHUNK: u64 = 1 << 20;

/// How a dataset is opened.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Read every shard once and compare its hash with the manifest's.
    pub verify: bool,
    /// The path is a raw file of u16 tokens without a header (nanoGPT's `.bin`).
    pub raw_u16: bool,
    /// Real ids of a file that has no manifest; GPT-2's 50,257 if left out.
    pub vocab_size: Option<usize>,
}

/// A shard folder, a single shard or a raw file, mapped into memory.
#[derive(Debug)]
pub struct Dataset {
    path: PathBuf,
    manifest: Manifest,
    shards: Vec<Shard>,
    lengths: Vec<Lengths>,
    /// starts[s] is the first token of shard s counted over the folder; one more entry at the end.
    starts: Vec<u64>,
}

impl Dataset {
    /// Opens `path`, a folder with a manifest or a single file of tokens.
    ///
    /// # Errors
    /// When the folder is not complete, or a shard or length file is missing, damaged or not the
    /// one that the manifest lists; the error names the shard and the byte.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Dataset> {
        if options.raw_u16 {
            return Self::of_file(path, Shard::open_raw_u16(path)?, options);
        }
        if path.is_dir() {
            return Self::open_folder(path, options);
        }
        Self::of_file(path, Shard::open(path)?, options)
    }

    fn of_file(path: &Path, shard: Shard, options: &OpenOptions) -> Result<Dataset> {
        let vocab_size = options.vocab_size.unwrap_or(GPT2_VOCAB);
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let manifest = Manifest {
            format: "ao-shards".into(),
            version: VERSION,
            complete: true,
            created_by: "a file without a manifest".into(),
            tokenizer: None,
            vocab_size,
            eos_id: (vocab_size == GPT2_VOCAB).then_some(GPT2_VOCAB as u32 - 1),
            token_type: shard.width(),
            packing: Packing::Stream,
            detokenizer: String::new(),
            totals: Totals { tokens: shard.len(), ..Totals::default() },
            shards: vec![ShardEntry {
                file: name,
                tokens: shard.len(),
                documents: 0,
                bytes_of_text: 0,
                xxh3: shard.hash()?,
            }],
            argv: Vec::new(),
            config: serde_json::Value::Null,
        };
        let starts = vec![0, shard.len()];
        Ok(Dataset { path: path.into(), manifest, shards: vec![shard], lengths: vec![], starts })
    }

    fn open_folder(folder: &Path, options: &OpenOptions) -> Result<Dataset> {
        let manifest = Manifest::read(folder)?;
        if !manifest.complete {
            return Err(Error::input_at(
                folder,
                "the manifest says incomplete: ao-tokenize was stopped; run it again with --resume",
            ));
        }
        let mut starts = vec![0u64];
        let (mut shards, mut lengths) = (Vec::new(), Vec::new());
        for entry in &manifest.shards {
            let path = folder.join(&entry.file);
            let shard = Shard::open(&path)?;
            let differs = |what: &str, found: String, listed: &str| {
                Error::input_at(
                    &path,
                    format!("{what} {found}, the manifest says {listed}; rebuild the folder"),
                )
            };
            if shard.len() != entry.tokens {
                let found = shard.len().to_string();
                return Err(differs("token count", found, &entry.tokens.to_string()));
            }
            if options.verify {
                let hash = shard.hash()?;
                if hash != entry.xxh3 {
                    return Err(differs("hash", hash, &entry.xxh3));
                }
            }
            if manifest.packing.needs_lengths() {
                lengths.push(open_lengths(&path, entry)?);
            }
            // A shard's count fits 31 bits, so the sum over any number of files fits 64.
            starts.push(starts[starts.len() - 1] + shard.len());
            shards.push(shard);
        }
        Ok(Dataset { path: folder.into(), manifest, shards, lengths, starts })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the folder says about itself; made up for a single file.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Real ids: every token is below it.
    pub fn vocab_size(&self) -> usize {
        self.manifest.vocab_size
    }

    /// The id that ends each document.
    pub fn eos_id(&self) -> Option<u32> {
        self.manifest.eos_id
    }

    /// Mean bytes of text for each token but the ends of documents, as counted when the text was
    /// tokenized; `None` for ids that came without text.
    pub fn bytes_per_token(&self) -> Option<f64> {
        let totals = &self.manifest.totals;
        let ends = [self.manifest.packing.bos_id(), self.eos_id()];
        let ends = ends.iter().flatten().count() as u64 * totals.documents;
        let tokens = totals.tokens.checked_sub(ends).filter(|&n| n > 0)?;
        (totals.bytes_of_text > 0).then(|| totals.bytes_of_text as f64 / tokens as f64)
    }

    /// Tokens in all shards.
    pub fn token_count(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }

    /// The shards, in order.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The documents' lengths by shard; empty under stream packing.
    pub(super) fn lengths(&self) -> &[Lengths] {
        &self.lengths
    }

    /// Cuts the tokens into blocks of at most `block_size`, as the manifest's packing says.
    ///
    /// # Errors
    /// When `block_size` is 0, or the documents' lengths do not add up.
    pub fn blocks(self: &Arc<Self>, block_size: usize) -> Result<Blocks> {
        Blocks::new(Arc::clone(self), block_size)
    }

    /// The place of the first token `id`, counted over the folder; all is read where there is none.
    ///
    /// # Errors
    /// As [`Dataset::read`].
    pub fn find(&self, id: u32) -> Result<Option<u64>> {
        let mut ids = Vec::new();
        let mut at = 0;
        while at < self.token_count() {
            let part = CHUNK.min(self.token_count() - at);
            ids.clear();
            self.read(at, part as usize, &mut ids)?;
            if let Some(found) = ids.iter().position(|&x| x == id) {
                return Ok(Some(at + found as u64));
            }
            at += part;
        }
        Ok(None)
    }

    /// Appends tokens `start .. start + count`, counted over the folder.
    ///
    /// # Errors
    /// When the range leaves the folder or an id is not below `vocab_size`.
    pub fn read(&self, start: u64, count: usize, out: &mut Vec<u32>) -> Result<()> {
        let end = start.checked_add(count as u64).filter(|&end| end <= self.token_count());
        if end.is_none() {
            return Err(Error::input_at(
                &self.path,
                format!("tokens {start} to {start} + {count} asked of {}", self.token_count()),
            ));
        }
        let mut at = start;
        let mut left = count as u64;
        let mut s = self.starts.partition_point(|&first| first <= at).saturating_sub(1);
        while left > 0 {
            let within = at - self.starts[s];
            let part = left.min(self.shards[s].len() - within);
            self.shards[s].read(within, part as usize, self.vocab_size(), out)?;
            (at, left, s) = (at + part, left - part, s + 1);
        }
        Ok(())
    }
}

/// Maps the lengths beside `shard` and checks that they add up to it.
fn open_lengths(shard: &Path, entry: &ShardEntry) -> Result<Lengths> {
    let lengths = Lengths::open(&shard.with_extension("len"))?;
    let sum: u64 = lengths.iter().map(u64::from).sum();
    if lengths.len() as u64 != entry.documents || sum != entry.tokens {
        return Err(Error::input_at(
            lengths.path(),
            format!(
                "{} lengths that add up to {sum} tokens, the manifest says {} documents and {} \
                 tokens; rebuild the folder",
                lengths.len(),
                entry.documents,
                entry.tokens
            ),
        ));
    }
    Ok(lengths)
}
