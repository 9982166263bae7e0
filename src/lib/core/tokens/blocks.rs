//! Documents to blocks: which tokens block i holds, under each packing rule.
//!
//! Under document and compat packing a sparse index is kept: an entry for every
//! [`STRIDE`] documents, or for every batch of rows, never one for every document.

use std::sync::Arc;

use super::Dataset;
use crate::format::manifest::Packing;
use crate::{Error, Result};

/// Documents between two entries of the index.
const STRIDE: u64 = 1024;

/// The blocks of a [`Dataset`] for one block size.
#[derive(Debug, Clone)]
pub struct Blocks {
    data: Arc<Dataset>,
    block_size: usize,
    count: u64,
    index: Arc<[Entry]>,
}

/// Where a stretch of the documents starts.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The first block of the stretch.
    block: u64,
    /// The first token, counted over the folder.
    token: u64,
    /// The shard of the first document and its number there.
    shard: usize,
    document: usize,
}

impl Blocks {
    pub(super) fn new(data: Arc<Dataset>, block_size: usize) -> Result<Blocks> {
        if block_size == 0 {
            return Err(Error::usage("--block-size 0: need at least 1 token a block"));
        }
        let (count, index) = match data.manifest().packing {
            Packing::Stream => (data.token_count().div_ceil(block_size as u64), Vec::new()),
            Packing::Pad { length, .. } if length > block_size as u64 => {
                return Err(Error::input_at(
                    data.path(),
                    format!(
                        "has rows of up to {length} tokens, asked for blocks of {block_size}; \
                         tokenize it with --pad-length {block_size}"
                    ),
                ));
            }
            Packing::Document | Packing::Pad { .. } => {
                by_stretch(&data, block_size as u64, strides(&data), true)
            }
            Packing::Compat { rows, procs } => {
                let batches = batches(document_count(&data), rows, procs);
                by_stretch(&data, block_size as u64, batches, false)
            }
        };
        Ok(Blocks { data, block_size, count, index: index.into() })
    }

    /// How many blocks there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Tokens of a whole block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.data
    }

    /// Fills `out` with the tokens of block `index`: 1 to `block_size` ids, each below the
    /// vocabulary's size.
    ///
    /// # Errors
    /// When `index` is not below `len()` or an id is too large.
    pub fn read(&self, index: u64, out: &mut Vec<u32>) -> Result<()> {
        out.clear();
        if index >= self.count {
            return Err(Error::input_at(
                self.data.path(),
                format!("block {index} asked of {}", self.count),
            ));
        }
        let (start, count) = self.span(index);
        self.data.read(start, count, out)
    }

    /// The first token of the document that most tokens of a block are of, by the documents'
    /// lengths; not for stream packing, which has none.
    pub(super) fn longest_document(&self, index: u64) -> Option<u64> {
        let (start, count) = self.span(index);
        let end = start + count as u64;
        let entry = self.index[self.index.partition_point(|e| e.block <= index) - 1];
        let mut best = (0, None);
        let mut token = entry.token;
        for length in documents_from(&self.data, entry.shard, entry.document) {
            if token >= end {
                break;
            }
            let within = (token + length).min(end).saturating_sub(token.max(start));
            if within > best.0 {
                best = (within, Some(token));
            }
            token += length;
        }
        best.1
    }

    /// The first token of block `index` and how many it holds.
    fn span(&self, index: u64) -> (u64, usize) {
        let size = self.block_size as u64;
        if self.data.manifest().packing == Packing::Stream {
            let start = index * size;
            return (start, size.min(self.data.token_count() - start) as usize);
        }
        // The last entry at or before the block; the first entry's block is 0.
        let entry = self.index[self.index.partition_point(|e| e.block <= index) - 1];
        let mut left = index - entry.block;
        if let Packing::Compat { .. } = self.data.manifest().packing {
            return (entry.token + left * size, self.block_size);
        }
        let mut token = entry.token;
        for length in documents_from(&self.data, entry.shard, entry.document) {
            let blocks = length.div_ceil(size);
            if left < blocks {
                let skipped = left * size;
                return (token + skipped, size.min(length - skipped) as usize);
            }
            left -= blocks;
            token += length;
        }
        unreachable!("the index was made of these lengths, and they are mapped read-only")
    }
}

fn document_count(data: &Dataset) -> u64 {
    data.lengths().iter().map(|l| l.len() as u64).sum()
}

/// The lengths of all documents from one on.
fn documents_from(data: &Dataset, shard: usize, first: usize) -> impl Iterator<Item = u64> + '_ {
    data.lengths()[shard..].iter().enumerate().flat_map(move |(i, lengths)| {
        let start = if i == 0 { first } else { 0 };
        (start..lengths.len()).map(move |d| u64::from(lengths.get(d)))
    })
}

/// Sizes of the stretches of document packing.
fn strides(data: &Dataset) -> Vec<u64> {
    let documents = document_count(data);
    let whole = documents / STRIDE;
    let mut sizes = vec![STRIDE; whole as usize];
    sizes.extend((!documents.is_multiple_of(STRIDE)).then_some(documents % STRIDE));
    sizes
}

/// Sizes of the batches that the published loaders map over: `procs` contiguous parts, the first
/// ones longer by one document where it does not divide, each cut into batches of `rows`.
fn batches(documents: u64, rows: u64, procs: u64) -> Vec<u64> {
    let mut sizes = Vec::new();
    for part in 0..procs.min(documents.max(1)) {
        let mut left = documents / procs + u64::from(part < documents % procs);
        while left > 0 {
            sizes.push(left.min(rows));
            left -= left.min(rows);
        }
    }
    sizes
}

/// Walks the documents once and notes where each stretch starts. With `each_document` a document
/// makes its own blocks, the last of them short; without, the stretch as a whole makes whole ones.
fn by_stretch(
    data: &Dataset,
    size: u64,
    stretches: Vec<u64>,
    each_document: bool,
) -> (u64, Vec<Entry>) {
    let mut index = Vec::with_capacity(stretches.len());
    let (mut block, mut token) = (0u64, 0u64);
    let (mut shard, mut document) = (0, 0);
    for documents in stretches {
        let (mut blocks, mut tokens) = (0, 0);
        let start = Entry { block, token, shard, document };
        for _ in 0..documents {
            while data.lengths().get(shard).is_some_and(|l| document >= l.len()) {
                (shard, document) = (shard + 1, 0);
            }
            let length = data.lengths().get(shard).map_or(0, |l| u64::from(l.get(document)));
            blocks += length.div_ceil(size);
            tokens += length;
            document += 1;
        }
        if !each_document {
            blocks = tokens / size;
        }
        if blocks > 0 {
            index.push(start);
        }
        (block, token) = (block + blocks, token + tokens);
    }
    (block, index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::manifest::{Manifest, Totals, VERSION};
    use crate::format::shard::Width;
    use crate::rng::{Domain, Stream};
    use crate::tokens::folder::FolderWriter;
    use crate::tokens::{Documents, OpenOptions};
    use std::path::Path;

    /// Documents of 0 to 40 tokens, each token telling its place.
    fn documents(count: usize) -> Vec<Vec<u32>> {
        let mut stream = Stream::new(4, Domain::Sample, 0);
        let mut next = 0;
        let document = |_| {
            let length = stream.below(41);
            next += length;
            (next - length..next).collect()
        };
        (0..count).map(document).collect()
    }

    fn write(folder: &Path, packing: Packing, documents: &[Vec<u32>]) {
        let vocab_size = 1 << 20;
        let manifest = Manifest {
            format: "ao-shards".into(),
            version: VERSION,
            complete: false,
            created_by: "test".into(),
            tokenizer: None,
            vocab_size,
            eos_id: None,
            token_type: Width::for_vocab(vocab_size),
            packing,
            detokenizer: "none".into(),
            totals: Totals::default(),
            shards: Vec::new(),
            argv: Vec::new(),
            config: serde_json::Value::Null,
        };
        let mut writer = FolderWriter::start(folder, manifest, 9000).unwrap();
        for document in documents {
            writer.push(document, 0).unwrap();
        }
        writer.finish().unwrap();
    }

    /// What the reader gives for `packing`, against `expected`.
    fn check(packing: Packing, documents: &[Vec<u32>], size: usize, expected: &[Vec<u32>]) {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), packing, documents);
        let options = OpenOptions { verify: true, ..OpenOptions::default() };
        let data = Arc::new(Dataset::open(dir.path(), &options).unwrap());
        assert!(data.shards().len() > 3, "{}", data.shards().len());
        let blocks = data.blocks(size).unwrap();
        assert_eq!(blocks.len(), expected.len() as u64, "{packing:?} {size}");
        let mut out = Vec::new();
        let known = Documents::new(blocks.clone());
        // Tokens tell their place, and so do documents.
        let begins: Vec<u32> = documents.iter().filter_map(|d| d.first().copied()).collect();
        for (i, block) in expected.iter().enumerate() {
            blocks.read(i as u64, &mut out).unwrap();
            assert_eq!(&out, block, "{packing:?} {size}: block {i}");
            if packing != Packing::Stream {
                let of = |token: &u32| begins[begins.partition_point(|b| b <= token) - 1];
                let mut most = (0, 0);
                for part in block.chunk_by(|a, b| of(a) == of(b)) {
                    if part.len() > most.0 {
                        most = (part.len(), of(&part[0]));
                    }
                }
                let found = known.of_block(i as u64, block).unwrap();
                assert_eq!(found, Some(u64::from(most.1)), "{packing:?} {size}: block {i}");
            }
        }
        assert_eq!(blocks.read(blocks.len(), &mut out).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn stream_packing_loses_nothing_and_crosses_shards() {
        let documents = documents(2500);
        for size in [1, 7, 1024] {
            let all: Vec<u32> = documents.concat();
            let expected: Vec<Vec<u32>> = all.chunks(size).map(<[u32]>::to_vec).collect();
            check(Packing::Stream, &documents, size, &expected);
        }
    }

    #[test]
    fn document_packing_never_crosses_a_document() {
        let documents = documents(2500);
        for size in [1, 16, 64, 4096] {
            let expected: Vec<Vec<u32>> =
                documents.iter().flat_map(|d| d.chunks(size).map(<[u32]>::to_vec)).collect();
            check(Packing::Document, &documents, size, &expected);
            let length = documents.iter().map(|d| d.len() as u64).max().unwrap_or(0);
            if length <= size as u64 {
                check(Packing::Pad { length, bos_id: None }, &documents, size, &expected);
            }
        }
    }

    #[test]
    fn compat_packing_drops_the_remainder_of_each_batch_of_each_part() {
        let documents = documents(2503);
        for (rows, procs, size) in [(1000, 1, 1024), (100, 4, 64), (1, 3, 16)] {
            // Contiguous parts as the datasets library shards them, the first ones longer by one.
            let mut expected = Vec::new();
            let mut rest = documents.as_slice();
            for part in 0..procs {
                let length = documents.len() / procs + usize::from(part < documents.len() % procs);
                let (mine, others) = rest.split_at(length);
                rest = others;
                for batch in mine.chunks(rows) {
                    let tokens = batch.concat();
                    expected.extend(tokens.chunks_exact(size).map(<[u32]>::to_vec));
                }
            }
            let packing = Packing::Compat { rows: rows as u64, procs: procs as u64 };
            check(packing, &documents, size, &expected);
        }
    }
}
