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
            Packing::Document => by_stretch(&data, block_size as u64, strides(&data), true),
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
    sizes.extend((documents % STRIDE > 0).then_some(documents % STRIDE));
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
