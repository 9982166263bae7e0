//! Which document a block is of: blocks cut from one text are not independent.
//!
//! Under document and compat packing the shards' lengths say where documents begin; under stream
//! packing each ends with the manifest's end token, and without one nothing is known. A document
//! goes by the place of its first token, counted over the folder, which is the same whatever blocks
//! are asked for. Rows of a compat folder are its documents.
//!
//! A block that holds several is of the one that most of its tokens are of. Linking blocks by every
//! document that they share would make one chain of a stream; by the majority only the short ends
//! that reach into a neighbour are left out, whose share of both blocks is below a half.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::Blocks;
use crate::Result;
use crate::format::manifest::Packing;

/// Tokens read at a time on the way back to a document's begin.
const CHUNK: u64 = 1 << 16;

/// The documents of a folder's blocks.
#[derive(Debug)]
pub struct Documents {
    blocks: Blocks,
    /// A document's begin, and the tokens from there on that are known to hold no end.
    known: Mutex<Range<u64>>,
}

impl Documents {
    /// Those of `blocks`.
    pub fn new(blocks: Blocks) -> Documents {
        Documents { blocks, known: Mutex::new(0..0) }
    }

    /// The first token of the document that most tokens of block `index` are of, the first of equal
    /// ones; `None` where the shards do not tell documents apart. `tokens` are the block's.
    ///
    /// # Errors
    /// When tokens before the block cannot be read.
    pub fn of_block(&self, index: u64, tokens: &[u32]) -> Result<Option<u64>> {
        let data = self.blocks.dataset();
        if data.manifest().packing != Packing::Stream {
            return Ok(self.blocks.longest_document(index));
        }
        let Some(end) = data.eos_id() else { return Ok(None) };
        let start = index * self.blocks.block_size() as u64;
        let (mut at, mut best) = (0, 0..0);
        for part in tokens.split_inclusive(|&token| token == end) {
            if part.len() > best.len() {
                best = at..at + part.len();
            }
            at += part.len();
        }
        match best.start {
            0 => self.begin_of(start, end).map(Some),
            within => Ok(Some(start + within as u64)),
        }
    }

    /// The begin of the document that token `at` is of.
    fn begin_of(&self, at: u64, end: u32) -> Result<u64> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ids = Vec::new();
        let mut right = at;
        let begin = loop {
            if (known.start..=known.end).contains(&right) {
                break known.start;
            }
            if right == 0 {
                break 0;
            }
            let mut left = right.saturating_sub(CHUNK);
            if known.end < right {
                left = left.max(known.end);
            }
            ids.clear();
            self.blocks.dataset().read(left, (right - left) as usize, &mut ids)?;
            if let Some(found) = ids.iter().rposition(|&id| id == end) {
                break left + found as u64 + 1;
            }
            right = left;
        };
        *known = begin..at;
        Ok(begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::shard::{Width, header};
    use crate::rng::{Domain, Stream};
    use crate::tokens::{Dataset, OpenOptions};
    use std::sync::Arc;

    const END: u32 = 50_256; // GPT-2's, which a shard without a manifest is taken to have

    #[test]
    fn blocks_of_a_stream_are_of_the_document_that_most_of_their_tokens_are_of() {
        let mut stream = Stream::new(1, Domain::Sample, 0);
        let (mut ids, mut owners) = (Vec::new(), Vec::new());
        // Short ones, and one of several chunks.
        for length in (0..300).map(|i| if i == 150 { 200_000 } else { stream.below(40) }) {
            let begin = ids.len() as u64;
            ids.extend((0..length).map(|i| i % 50_000).chain([END]));
            owners.resize(ids.len(), begin);
        }
        let mut bytes = header(Width::U16, ids.len() as u64).to_vec();
        Width::U16.append(&ids, &mut bytes).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        std::fs::write(&path, bytes).unwrap();
        let data = Arc::new(Dataset::open(&path, &OpenOptions::default()).unwrap());
        for size in [16, 64] {
            let blocks = data.blocks(size).unwrap();
            let documents = Documents::new(blocks.clone());
            let mut tokens = Vec::new();
            let mut check = |index: u64| {
                blocks.read(index, &mut tokens).unwrap();
                let own = &owners[index as usize * size..][..tokens.len()];
                let mut most = (0, 0);
                for part in own.chunk_by(|a, b| a == b) {
                    if part.len() > most.0 {
                        most = (part.len(), part[0]);
                    }
                }
                let found = documents.of_block(index, &tokens).unwrap();
                assert_eq!(found, Some(most.1), "block {index} of {size}");
            };
            // In order, backwards, and to and fro.
            (0..blocks.len()).for_each(&mut check);
            (0..blocks.len()).rev().step_by(7).for_each(&mut check);
            (0..blocks.len()).for_each(|i| {
                if i % 100 < 5 {
                    check(i * 7919 % blocks.len())
                }
            });
        }
    }
}
