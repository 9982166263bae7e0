//! Ids back to text.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use super::detokenize::Detokenizer;
use super::encode::Rule;
use super::reader::{Progress, ReadOptions, read_batches};
use super::source::Source;
use super::tokenizer::Tokenizer;
use crate::format::manifest::{FILE_NAME, Manifest};
use crate::{Error, Result};

/// Gives the text of each document in `source` to `give`: JSON lines of ids, shards, or shard
/// folders. The end token behind a document is no text.
///
/// # Errors
/// When the inputs hold no ids, or ids outside the tokenizer's vocabulary.
pub fn decode(
    source: &Source,
    read: &ReadOptions,
    tokenizer: &Tokenizer,
    give: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let source = Source { paths: with_shards(&source.paths)?, ..source.clone() };
    let rule = Rule {
        field: String::new(),
        keep_newline: false,
        strip: false,
        keep_empty: true,
        lossy: false,
        skip_bad: false,
        detokenizer: Detokenizer::None,
        eos: None,
        vocab_size: tokenizer.vocab_size(),
        val_share: 0.0,
    };
    read_batches(&source, read, Progress::default(), &AtomicU64::new(0), &mut |batch| {
        let encoded = rule.encode(&batch, None)?;
        let mut start = 0;
        for document in &encoded.documents {
            let end = start + document.tokens as usize;
            let mut ids = &encoded.ids[start..end];
            if let Some((last, rest)) = ids.split_last()
                && Some(*last) == tokenizer.eos_id()
            {
                ids = rest;
            }
            give(&tokenizer.decode(ids))?;
            start = end;
        }
        Ok(())
    })
}

/// Shard folders as the shards that their manifests list.
fn with_shards(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for path in paths {
        if path.join(FILE_NAME).is_file() {
            let manifest = Manifest::read(path)?;
            if !manifest.complete {
                return Err(Error::input_at(path, "the manifest says incomplete"));
            }
            out.extend(manifest.shards.iter().map(|s| path.join(&s.file)));
        } else {
            out.push(path.clone());
        }
    }
    Ok(out)
}
