//! The manifest of a shard folder, `manifest.json`.
//!
//! - It is written first with `"complete": false`, again at every checkpoint of the writer, and last
//!   with `"complete": true`. A reader refuses a folder that is not complete.
//! - Unknown keys are skipped; a version above [`VERSION`] is refused.
//! - Shard names are plain file names of the folder.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::atomic::AtomicFile;
use super::shard::Width;
use crate::error::IoContext;
use crate::{Error, Result};

/// The file's name in its folder.
pub const FILE_NAME: &str = "manifest.json";
/// The version that this tool writes.
pub const VERSION: u32 = 1;

/// What a shard folder holds and what made it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// `ao-shards`.
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Whether every shard is there; written last.
    pub complete: bool,
    /// Tool and version that wrote it.
    pub created_by: String,
    /// The tokenizer; `None` for ids that came without one.
    pub tokenizer: Option<TokenizerEntry>,
    /// Real ids: every token is below it.
    pub vocab_size: usize,
    /// The id that ends each document; `None` where documents end without one.
    pub eos_id: Option<u32>,
    /// How wide tokens are in the shards.
    pub token_type: Width,
    /// How documents become blocks.
    pub packing: Packing,
    /// The detokenizer that the text went through, or `none`.
    #[serde(default)]
    pub detokenizer: String,
    /// Documents, tokens, bytes and whatever was dropped or repaired.
    pub totals: Totals,
    /// The shards, in reading order.
    pub shards: Vec<ShardEntry>,
    /// The command line.
    #[serde(default)]
    pub argv: Vec<String>,
    /// The resolved options.
    #[serde(default)]
    pub config: serde_json::Value,
}

/// The tokenizer of a shard folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizerEntry {
    /// `gpt2`, or the file it was read from.
    pub name: String,
    /// XXH3 (64 bits, hexadecimal) of the folder's `tokenizer.json`.
    pub hash: String,
    /// Whether ids may stand for other bytes than those of the text, as where a tokenizer lower-cases
    /// or normalises. Absent in folders of version 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lossy: Option<bool>,
}

/// How documents become blocks of `block_size` tokens when they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "lowercase")]
pub enum Packing {
    /// Documents one after another, cut every `block_size` tokens; the last block may be short.
    Stream,
    /// A block holds tokens of one document only; longer ones make several blocks.
    Document,
    /// The published loaders' rule: batches of `rows` documents, in each of `procs` contiguous
    /// parts, are cut into whole blocks and the remainder of each batch is dropped.
    Compat {
        /// Documents per batch.
        rows: u64,
        /// Parts the documents are first split into.
        procs: u64,
    },
    /// A block is one document, cut to `length` tokens when it was written; readers pad it.
    Pad {
        /// Most tokens of a document, those at its ends included.
        length: u64,
        /// The id that each document begins with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bos_id: Option<u32>,
    },
}

impl Packing {
    /// Whether the documents' lengths lie beside the shards.
    pub fn needs_lengths(self) -> bool {
        self != Packing::Stream
    }

    /// The id that each document begins with.
    pub fn bos_id(self) -> Option<u32> {
        if let Packing::Pad { bos_id, .. } = self { bos_id } else { None }
    }
}

/// Counts that add up: every input document is written, or is in one of the dropped counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Documents written.
    pub documents: u64,
    /// Tokens written, with each document's end token.
    pub tokens: u64,
    /// Bytes of text (UTF-8, after the detokenizer) that the tokens stand for.
    pub bytes_of_text: u64,
    /// Documents that were cut to the length of a row.
    pub documents_cut: u64,
    /// Documents of no text that were left out.
    pub empty_documents_dropped: u64,
    /// Lines of given ids that held none: empty lines and records of another type.
    pub records_skipped: u64,
    /// Documents that could not be read and were left out (`--skip-bad`).
    pub bad_documents_skipped: u64,
    /// Byte sequences that were not UTF-8, and halves of surrogate pairs in JSON, that became U+FFFD.
    pub invalid_utf8_replaced: u64,
    /// Byte-order marks taken off the start of inputs.
    pub byte_order_marks_removed: u64,
    /// Line ends of carriage return and line feed that were taken for a line feed.
    pub carriage_returns_removed: u64,
    /// Files of folders and archives that `--include` and `--exclude` left out.
    pub files_excluded: u64,
    /// Files of folders and archives that were passed over: names that start with a dot, links and
    /// special files.
    pub files_skipped: u64,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    /// The file's name in the folder.
    pub file: String,
    /// Tokens in it.
    pub tokens: u64,
    /// Documents that end in it.
    pub documents: u64,
    /// Bytes of text of these documents.
    pub bytes_of_text: u64,
    /// XXH3 (64 bits, hexadecimal) of the file.
    pub xxh3: String,
}

impl Totals {
    /// Adds what was dropped, cut and repaired; documents, tokens and bytes are counted on writing.
    pub fn add_repairs(&mut self, other: &Totals) {
        self.documents_cut += other.documents_cut;
        self.empty_documents_dropped += other.empty_documents_dropped;
        self.records_skipped += other.records_skipped;
        self.bad_documents_skipped += other.bad_documents_skipped;
        self.invalid_utf8_replaced += other.invalid_utf8_replaced;
        self.byte_order_marks_removed += other.byte_order_marks_removed;
        self.carriage_returns_removed += other.carriage_returns_removed;
        self.files_excluded += other.files_excluded;
        self.files_skipped += other.files_skipped;
    }
}

impl Manifest {
    /// Hash of the tokenizer, `None` for a corpus of bare ids.
    pub fn tokenizer_hash(&self) -> Option<&str> {
        self.tokenizer.as_ref().map(|t| t.hash.as_str())
    }

    /// Reads the manifest of `folder`, complete or not.
    ///
    /// # Errors
    /// When it is missing, is no manifest, is of a later version or names a file outside the
    /// folder.
    pub fn read(folder: &Path) -> Result<Manifest> {
        let path = folder.join(FILE_NAME);
        let bytes = match std::fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && folder.is_dir() => {
                let hint = if folder.join("train").join(FILE_NAME).is_file() {
                    "; it has train and val folders, name one of them"
                } else {
                    "; make the folder with ao-tokenize -o"
                };
                return Err(Error::input_at(
                    folder,
                    format!("no {FILE_NAME}, so not a shard folder{hint}"),
                ));
            }
            other => other.reading(&path)?,
        };
        Manifest::parse(&path, &bytes)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Manifest> {
        #[derive(Deserialize)]
        struct Head {
            format: Option<String>,
            version: Option<u32>,
        }
        let bad = |message: String| Error::input_at(path, message);
        let head: Head = serde_json::from_slice(bytes)
            .map_err(|e| bad(format!("not a manifest: {e}; rebuild the folder")))?;
        if head.format.as_deref() != Some("ao-shards") {
            return Err(bad("not a manifest of token shards (format is not ao-shards)".into()));
        }
        if head.version != Some(VERSION) {
            return Err(bad(format!(
                "version {}, this tool reads version {VERSION}; rebuild the folder with this \
                 version's ao-tokenize",
                head.version.map_or("missing".into(), |v| v.to_string())
            )));
        }
        let manifest: Manifest = serde_json::from_slice(bytes)
            .map_err(|e| bad(format!("not a manifest: {e}; rebuild the folder")))?;
        for shard in &manifest.shards {
            let plain = Path::new(&shard.file).file_name().is_some_and(|n| *n == *shard.file);
            if !plain {
                return Err(bad(format!("'{}' is no plain file name", shard.file)));
            }
        }
        if let Packing::Compat { rows, procs } = manifest.packing
            && (rows == 0 || procs == 0)
        {
            return Err(bad("compat packing needs rows and procs of at least 1".into()));
        }
        if let Packing::Pad { length: 0, .. } = manifest.packing {
            return Err(bad("pad packing needs a length of at least 1".into()));
        }
        for (key, id) in [("eos_id", manifest.eos_id), ("bos_id", manifest.packing.bos_id())] {
            if let Some(id) = id.filter(|&id| id as usize >= manifest.vocab_size) {
                let size = manifest.vocab_size;
                return Err(bad(format!("{key} {id} lies outside the vocabulary of {size}")));
            }
        }
        Ok(manifest)
    }

    /// Writes the manifest into `folder`, whole or not at all, over an older one.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn write(&self, folder: &Path) -> Result<()> {
        let mut bytes = serde_json::to_vec_pretty(self)
            .map_err(|e| Error::usage(format!("the manifest cannot be written: {e}")))?;
        bytes.push(b'\n');
        AtomicFile::write(&folder.join(FILE_NAME), &bytes, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_versions_and_paths_out_of_the_folder_are_refused() {
        let path = Path::new("m");
        let parse = |text: &str| Manifest::parse(path, text.as_bytes()).unwrap_err().to_string();
        assert!(parse("{\"format\":\"ao-shards\",\"version\":2}").contains("version 2"));
        assert!(parse("{}").contains("not a manifest"));
        assert!(parse("[").contains("not a manifest"));
        let escape = "{\"format\":\"ao-shards\",\"version\":1,\"complete\":true,\"created_by\":\"x\",\
            \"vocab_size\":2,\"eos_id\":null,\"tokenizer\":null,\"token_type\":\"u16\",\
            \"packing\":{\"rule\":\"stream\"},\"totals\":{},\"shards\":[{\"file\":\"../x\",\
            \"tokens\":0,\"documents\":0,\"bytes_of_text\":0,\"xxh3\":\"\"}]}";
        assert!(parse(escape).contains("no plain file name"));
    }
}
