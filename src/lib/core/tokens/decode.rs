//! Ids back to text.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use super::detokenize::Detokenizer;
use super::encode::Rule;
use super::reader::{Cursor, ReadOptions, read_batches};
use super::source::Source;
use super::{Dataset, OpenOptions, Tokenizer};
use crate::format::manifest::{FILE_NAME, Manifest};
use crate::{Error, Result};

/// The most tokens of one document, as it is held in memory as a whole.
const MAX_DOCUMENT_TOKENS: u64 = 1 << 28;

/// Gives the text of each document in `source` to `give`: JSON lines of ids, shards, or shard
/// folders. The end token behind a document is no text.
///
/// A shard folder is decoded with its own tokenizer, and its documents are kept apart by their
/// lengths where it has them, else by the end token. Other ids are decoded with the tokenizer that
/// is `named`, by default GPT-2's.
///
/// # Errors
/// When the inputs hold no ids, or ids outside the tokenizer's vocabulary, or the tokenizer that is
/// named is not the folder's.
pub fn decode(
    source: &Source,
    read: &ReadOptions,
    named: Option<&str>,
    give: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    for path in &source.paths {
        match folder_of(path, read.raw_u16) {
            Some((folder, shard)) => decode_folder(&folder, shard.as_deref(), named, give)?,
            None => {
                let tokenizer = Tokenizer::load(named.unwrap_or("gpt2"))?;
                decode_ids(&source.only(path), read, &tokenizer, give)?;
            }
        }
    }
    Ok(())
}

/// The shard folder that `path` is, or that lists the file at `path`, and that file's name.
fn folder_of(path: &Path, raw: bool) -> Option<(PathBuf, Option<String>)> {
    if raw {
        return None;
    }
    if path.join(FILE_NAME).is_file() {
        return Some((path.into(), None));
    }
    let folder = path.parent()?;
    let folder = if folder == Path::new("") { Path::new(".") } else { folder };
    let name = path.file_name()?.to_str()?;
    let manifest = Manifest::read(folder).ok()?;
    let listed = manifest.complete && manifest.shards.iter().any(|s| s.file == name);
    listed.then(|| (folder.into(), Some(name.into())))
}

/// The tokenizer of a shard folder: the one beside the shards, or the one that is `named`, which must
/// be the same. `None` where the folder has none and none is named.
///
/// # Errors
/// When a tokenizer is damaged or is not the one that made the shards.
pub(super) fn folder_tokenizer(
    folder: &Path,
    manifest: &Manifest,
    named: Option<&str>,
) -> Result<Option<Tokenizer>> {
    let hash = manifest.tokenizer_hash();
    let beside = folder.join("tokenizer.json");
    let (tokenizer, place) = match (named, hash) {
        (Some(name), _) => (Tokenizer::load(name)?, format!("--tokenizer {name}")),
        (None, None) => return Ok(None),
        (None, Some(_)) if beside.is_file() => {
            let path = beside.to_string_lossy();
            (Tokenizer::load(&path)?, path.into_owned())
        }
        (None, Some(_)) => {
            (Tokenizer::gpt2()?, format!("gpt2, as {} is missing", beside.display()))
        }
    };
    match hash {
        Some(hash) if hash != tokenizer.hash() => Err(Error::input(
            place,
            format!(
                "{} is not the tokenizer {hash} that made {}; leave --tokenizer out, or give that one",
                tokenizer.hash(),
                folder.display()
            ),
        )),
        _ if tokenizer.vocab_size() < manifest.vocab_size => Err(Error::input(
            place,
            format!(
                "it has {} ids, {} has {}; give the tokenizer that made them",
                tokenizer.vocab_size(),
                folder.display(),
                manifest.vocab_size
            ),
        )),
        _ => Ok(Some(tokenizer)),
    }
}

fn decode_folder(
    folder: &Path,
    only: Option<&str>,
    named: Option<&str>,
    give: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let data = Dataset::open(folder, &OpenOptions::default())?;
    let tokenizer = folder_tokenizer(folder, data.manifest(), named)?.ok_or_else(|| {
        Error::input_at(folder, "its ids came without a tokenizer; name theirs with --tokenizer")
    })?;
    let (bos, eos) = (data.manifest().packing.bos_id(), data.eos_id());
    let mut first = 0;
    for (i, (shard, entry)) in data.shards().iter().zip(&data.manifest().shards).enumerate() {
        let start = first;
        first += shard.len();
        if only.is_some_and(|name| name != entry.file) {
            continue;
        }
        let mut document = |ids: &[u32]| {
            let text = ids.split_last().filter(|(last, _)| Some(**last) == eos);
            let ids = text.map_or(ids, |(_, rest)| rest);
            let text = ids.split_first().filter(|(first, _)| Some(**first) == bos);
            give(&tokenizer.decode(text.map_or(ids, |(_, rest)| rest)))
        };
        match data.lengths().get(i) {
            Some(lengths) => by_length(&data, start, lengths.iter(), &mut document)?,
            None => by_end(&data, start..first, &mut document)?,
        }
    }
    Ok(())
}

fn by_length(
    data: &Dataset,
    mut at: u64,
    lengths: impl Iterator<Item = u32>,
    document: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<()> {
    let mut ids = Vec::new();
    for length in lengths {
        if u64::from(length) > MAX_DOCUMENT_TOKENS {
            return Err(too_long(data.path()));
        }
        ids.clear();
        data.read(at, length as usize, &mut ids)?;
        document(&ids)?;
        at += u64::from(length);
    }
    Ok(())
}

/// Documents that end with the end token; without one all tokens of a shard are one.
fn by_end(
    data: &Dataset,
    range: std::ops::Range<u64>,
    document: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<()> {
    let (mut at, mut open) = (range.start, Vec::new());
    while at < range.end {
        let part = (range.end - at).min(1 << 14);
        let seen = open.len();
        data.read(at, part as usize, &mut open)?;
        at += part;
        let mut start = 0;
        for i in seen..open.len() {
            if Some(open[i]) == data.eos_id() {
                document(&open[start..=i])?;
                start = i + 1;
            }
        }
        open.drain(..start);
        if open.len() as u64 > MAX_DOCUMENT_TOKENS {
            return Err(too_long(data.path()));
        }
    }
    if open.is_empty() { Ok(()) } else { document(&open) }
}

fn too_long(path: &Path) -> Error {
    Error::input_at(path, format!("a document of more than {MAX_DOCUMENT_TOKENS} tokens"))
}

/// Ids that come without a manifest.
fn decode_ids(
    source: &Source,
    read: &ReadOptions,
    tokenizer: &Tokenizer,
    give: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let read = ReadOptions { ids: true, eos: tokenizer.eos_id(), ..read.clone() };
    let rule = Rule {
        field: String::new(),
        keep_newline: false,
        strip: false,
        keep_empty: true,
        lossy: false,
        skip_bad: false,
        detokenizer: Detokenizer::None,
        bos: None,
        eos: None,
        most_ids: None,
        vocab_size: tokenizer.vocab_size(),
        val_share: 0.0,
    };
    read_batches(source, &read, Cursor::default(), &AtomicU64::new(0), &mut |batch| {
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
