//! Byte-level byte-pair encoding: the merges applied to one piece of text.
//!
//! The rule is that of Sennrich et al. 2016 as GPT-2 uses it: while any adjacent pair has a merge,
//! the pair with the lowest rank is merged, the leftmost first among equals. Words take a plain
//! scan, longer pieces a heap, and pieces of megabytes are encoded in overlapping windows, so that
//! time grows as the length does. All give the ids that Hugging Face's tokenizers gives (tested).
//!
//! Why windows are exact: where merges of a token always come after the merge that makes it, the
//! rule is one pass over the text per rank. Then (1) a boundary between tokens of an encoding was
//! crossed by no merge, so any two neighbours encode to themselves; and (2) a sequence in which any
//! two neighbours do so is the encoding of the whole: the first merge to cross a boundary would
//! cross it in the encoding of the two neighbours alone. If the encodings of two overlapping
//! windows share a token, the first up to it and the second from it on satisfy (2).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use rustc_hash::FxBuildHasher;

/// Pieces above this many bytes are merged through the heap.
const SCAN_LIMIT: usize = 96;
/// Pieces above this many bytes are encoded in windows of as many: their lists stay in the cache.
const WINDOW: usize = 1 << 14;
/// Bytes by which a window reaches back into the one before it.
const OVERLAP: usize = 256;
/// Entries of an encoder's cache of pieces; a power of two.
const CACHE_SLOTS: usize = 1 << 14;
/// Ids that a cache entry can hold.
const CACHE_IDS: usize = 7;
/// The longest piece that is cached, in bytes.
const CACHE_BYTES: usize = 15;
/// The end of a linked list.
const NONE: u32 = u32::MAX;

/// A vocabulary of byte strings and the ranked merges between them.
pub struct ByteBpe {
    /// The bytes of each id, `None` for an id without text of its own.
    tokens: Vec<Option<Box<[u8]>>>,
    /// The id of each single byte, [`NONE`] for one without.
    byte_ids: [u32; 256],
    /// (left, right) as one number → (rank, merged id).
    merges: HashMap<u64, (u32, u32), FxBuildHasher>,
    /// The merges in rank order, for writing the vocabulary out again.
    ranked: Vec<(u32, u32)>,
    /// Whether each merge comes after those that make its parts.
    ordered: bool,
    /// Whether every byte has an id.
    whole: bool,
}

/// Why a vocabulary cannot be used.
pub type Reason = String;

fn key(left: u32, right: u32) -> u64 {
    (u64::from(left) << 32) | u64::from(right)
}

impl ByteBpe {
    /// A vocabulary of `tokens` (index = id) with `merges` in rank order.
    ///
    /// A byte may be without an id of its own; [`ByteBpe::missing_byte`] tells texts that need it.
    ///
    /// # Errors
    /// When a merge names an unknown token.
    pub fn new(tokens: Vec<Option<Box<[u8]>>>, merges: Vec<(u32, u32)>) -> Result<ByteBpe, Reason> {
        let mut ids: HashMap<&[u8], u32, FxBuildHasher> = HashMap::default();
        for (id, bytes) in tokens.iter().enumerate() {
            if let Some(bytes) = bytes {
                ids.entry(bytes).or_insert(id as u32);
            }
        }
        let byte_id = |byte: u8| ids.get([byte].as_slice()).copied().unwrap_or(NONE);
        let byte_ids = std::array::from_fn(|byte| byte_id(byte as u8));
        let mut table = HashMap::with_capacity_and_hasher(merges.len(), FxBuildHasher);
        let mut joined = Vec::new();
        for (rank, &(left, right)) in merges.iter().enumerate() {
            joined.clear();
            for part in [left, right] {
                let bytes = tokens.get(part as usize).and_then(|t| t.as_deref());
                joined.extend_from_slice(
                    bytes.ok_or_else(|| format!("merge {rank} names the unknown id {part}"))?,
                );
            }
            let merged = *ids
                .get(joined.as_slice())
                .ok_or_else(|| format!("merge {rank} makes a token that has no id"))?;
            table.insert(key(left, right), (rank as u32, merged));
        }
        // made[id] is one more than the last rank that makes the token.
        let mut made = vec![0u32; tokens.len()];
        for (rank, &(left, right)) in merges.iter().enumerate() {
            if let Some(&(_, merged)) = table.get(&key(left, right)) {
                made[merged as usize] = rank as u32 + 1;
            }
        }
        let after = |rank: usize, part: u32| made[part as usize] as usize <= rank;
        let ordered =
            merges.iter().enumerate().all(|(r, &(left, right))| after(r, left) && after(r, right));
        let whole = !byte_ids.contains(&NONE);
        Ok(ByteBpe { byte_ids, merges: table, ranked: merges, tokens, ordered, whole })
    }

    /// A vocabulary whose ids are ranks, as tiktoken keeps them: a merge for each token of two
    /// bytes and more, found by encoding it with the merges before it.
    ///
    /// # Errors
    /// When a byte has no id, or a token is not two tokens before it.
    pub fn from_ranks(tokens: Vec<Box<[u8]>>) -> Result<ByteBpe, Reason> {
        let mut bpe = ByteBpe {
            byte_ids: [NONE; 256],
            merges: HashMap::with_capacity_and_hasher(tokens.len(), FxBuildHasher),
            ranked: Vec::with_capacity(tokens.len()),
            tokens: Vec::new(),
            ordered: true,
            whole: true,
        };
        for (id, bytes) in tokens.iter().enumerate() {
            if let [byte] = bytes.as_ref() {
                bpe.byte_ids[usize::from(*byte)] = id as u32;
            }
        }
        if let Some(byte) = bpe.byte_ids.iter().position(|&id| id == NONE) {
            return Err(format!("the vocabulary has no token for byte 0x{byte:02x}"));
        }
        let mut parts = Vec::new();
        for (id, bytes) in tokens.iter().enumerate() {
            if bytes.len() < 2 {
                continue;
            }
            parts.clear();
            bpe.encode_piece(bytes, &mut parts);
            let [left, right] = parts[..] else {
                return Err(format!("token {id} is not a merge of two tokens before it"));
            };
            let rank = bpe.ranked.len() as u32;
            bpe.merges.insert(key(left, right), (rank, id as u32));
            bpe.ranked.push((left, right));
        }
        bpe.tokens = tokens.into_iter().map(Some).collect();
        Ok(bpe)
    }

    /// The bytes of `id`, if it has any.
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize).and_then(|t| t.as_deref())
    }

    /// One more than the largest id.
    pub fn size(&self) -> usize {
        self.tokens.len()
    }

    /// The first byte of `text` that has no id, so that the text cannot be encoded.
    pub fn missing_byte(&self, text: &[u8]) -> Option<u8> {
        if self.whole {
            return None;
        }
        text.iter().copied().find(|&b| self.byte_ids[usize::from(b)] == NONE)
    }

    /// The merges in rank order.
    pub fn merges(&self) -> &[(u32, u32)] {
        &self.ranked
    }

    /// Appends the ids of one piece.
    pub fn encode_piece(&self, piece: &[u8], out: &mut Vec<u32>) {
        match piece {
            [] => {}
            [byte] => out.push(self.byte_ids[usize::from(*byte)]),
            _ if piece.len() <= SCAN_LIMIT => self.encode_by_scan(piece, out),
            _ if piece.len() <= WINDOW || !self.ordered => self.encode_by_heap(piece, out),
            _ => self.encode_by_windows(piece, WINDOW, OVERLAP, out),
        }
    }

    fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        self.merges.get(&key(left, right)).copied()
    }

    /// Looks for the lowest rank again after each merge: quadratic, and best for a word.
    fn encode_by_scan(&self, piece: &[u8], out: &mut Vec<u32>) {
        // ids[i] is a part, ranks[i] the rank and result of merging it with ids[i + 1].
        let mut ids = [0u32; SCAN_LIMIT];
        let mut ranks = [(NONE, 0u32); SCAN_LIMIT];
        let mut n = piece.len();
        for (id, &byte) in ids.iter_mut().zip(piece) {
            *id = self.byte_ids[usize::from(byte)];
        }
        for i in 0..n - 1 {
            ranks[i] = self.merge(ids[i], ids[i + 1]).unwrap_or((NONE, 0));
        }
        while n > 1 {
            let (mut at, mut best) = (0, NONE);
            for (i, &(rank, _)) in ranks[..n - 1].iter().enumerate() {
                if rank < best {
                    (at, best) = (i, rank);
                }
            }
            if best == NONE {
                break;
            }
            ids[at] = ranks[at].1;
            ids.copy_within(at + 2..n, at + 1);
            ranks.copy_within(at + 1..n - 1, at);
            n -= 1;
            ranks[n - 1] = (NONE, 0);
            if at + 1 < n {
                ranks[at] = self.merge(ids[at], ids[at + 1]).unwrap_or((NONE, 0));
            }
            if at > 0 {
                ranks[at - 1] = self.merge(ids[at - 1], ids[at]).unwrap_or((NONE, 0));
            }
        }
        out.extend_from_slice(&ids[..n]);
    }

    /// Encodes windows that overlap and joins them at a token that both have.
    fn encode_by_windows(&self, piece: &[u8], window: usize, overlap: usize, out: &mut Vec<u32>) {
        let first = out.len();
        let mut start = 0; // of the window
        let mut ids = Vec::new();
        // The tokens of the last window that reach into the overlap: (start, id).
        let mut tail: Vec<(usize, u32)> = Vec::new();
        loop {
            let end = piece.len().min(start + window);
            ids.clear();
            self.encode_by_heap(&piece[start..end], &mut ids);
            let mut at = start;
            let mut joined = tail.is_empty();
            let mut next_tail = Vec::new();
            let mut shared = 0; // index into tail
            for &id in &ids {
                if !joined {
                    while tail.get(shared).is_some_and(|&(t, _)| t < at) {
                        shared += 1;
                    }
                    if tail.get(shared) == Some(&(at, id)) {
                        joined = true;
                        out.truncate(out.len() - (tail.len() - shared));
                    }
                }
                if joined {
                    out.push(id);
                    if at + overlap >= end {
                        next_tail.push((at, id));
                    }
                }
                at += self.bytes(id).map_or(1, <[u8]>::len);
            }
            if !joined || next_tail.is_empty() {
                // No token in common, which no text was seen to do: the slow way is right.
                out.truncate(first);
                return self.encode_by_heap(piece, out);
            }
            if end == piece.len() {
                return;
            }
            // The next window starts with a token of this one, so that they fall into step.
            start = next_tail[0].0;
            tail = next_tail;
        }
    }

    /// Keeps the candidates in a heap of (rank, position); one that no longer holds is skipped.
    fn encode_by_heap(&self, piece: &[u8], out: &mut Vec<u32>) {
        // A piece is part of a document held in memory; above 4 GiB it is cut.
        for part in piece.chunks(NONE as usize - 1) {
            self.encode_part_by_heap(part, out);
        }
    }

    fn encode_part_by_heap(&self, piece: &[u8], out: &mut Vec<u32>) {
        let n = piece.len();
        let mut ids: Vec<u32> = piece.iter().map(|&b| self.byte_ids[usize::from(b)]).collect();
        let mut next: Vec<u32> = (1..n as u32).chain([NONE]).collect();
        let mut previous: Vec<u32> = [NONE].into_iter().chain(0..n as u32 - 1).collect();
        let pack = |rank: u32, at: u32| Reverse((u64::from(rank) << 32) | u64::from(at));
        let mut heap: Vec<Reverse<u64>> = Vec::with_capacity(n);
        for at in 0..n - 1 {
            if let Some((rank, _)) = self.merge(ids[at], ids[at + 1]) {
                heap.push(pack(rank, at as u32));
            }
        }
        let mut heap = BinaryHeap::from(heap);
        while let Some(Reverse(candidate)) = heap.pop() {
            let (rank, at) = ((candidate >> 32) as u32, candidate as u32);
            let i = at as usize;
            // A part that was merged away has the id NONE, which no merge knows.
            if ids[i] == NONE || next[i] == NONE {
                continue;
            }
            let right = next[i] as usize;
            let Some((now, merged)) = self.merge(ids[i], ids[right]) else { continue };
            if now != rank {
                continue;
            }
            ids[i] = merged;
            ids[right] = NONE;
            next[i] = next[right];
            if next[i] != NONE {
                previous[next[i] as usize] = at;
                if let Some((rank, _)) = self.merge(merged, ids[next[i] as usize]) {
                    heap.push(pack(rank, at));
                }
            }
            if previous[i] != NONE
                && let Some((rank, _)) = self.merge(ids[previous[i] as usize], merged)
            {
                heap.push(pack(rank, previous[i]));
            }
        }
        out.extend(ids.into_iter().filter(|&id| id != NONE));
    }
}

/// One thread's cache in front of a [`ByteBpe`]: most words of a text have been seen before.
pub struct PieceCache {
    slots: Vec<Slot>,
}

#[derive(Clone, Copy)]
struct Slot {
    /// The piece and, in its last byte, the piece's length; 0 is an empty slot.
    key: u128,
    count: u32,
    ids: [u32; CACHE_IDS],
}

impl Default for PieceCache {
    fn default() -> Self {
        PieceCache { slots: vec![Slot { key: 0, count: 0, ids: [0; CACHE_IDS] }; CACHE_SLOTS] }
    }
}

impl PieceCache {
    /// Appends the ids of `piece`.
    #[inline]
    pub fn encode(&mut self, bpe: &ByteBpe, piece: &[u8], out: &mut Vec<u32>) {
        if piece.len() > CACHE_BYTES || piece.len() < 2 {
            return bpe.encode_piece(piece, out);
        }
        let mut bytes = [0u8; 16];
        bytes[..piece.len()].copy_from_slice(piece);
        bytes[15] = piece.len() as u8;
        let key = u128::from_le_bytes(bytes);
        let folded = (key as u64) ^ ((key >> 64) as u64).rotate_left(23);
        let hash = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let slot = &mut self.slots[hash as usize & (CACHE_SLOTS - 1)];
        if slot.key != key {
            let start = out.len();
            bpe.encode_piece(piece, out);
            let ids = &out[start..];
            if ids.len() <= CACHE_IDS {
                slot.key = key;
                slot.count = ids.len() as u32;
                slot.ids[..ids.len()].copy_from_slice(ids);
            }
            return;
        }
        out.extend_from_slice(&slot.ids[..slot.count as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes 0..256, then "ab" (256), "aba" (257), "bb" (258), merged in this order.
    fn tiny() -> ByteBpe {
        let mut tokens: Vec<Box<[u8]>> = (0..=255u8).map(|b| Box::from([b])).collect();
        tokens.extend([b"ab".as_slice(), b"aba", b"bb"].map(Box::from));
        ByteBpe::from_ranks(tokens).unwrap()
    }

    #[test]
    fn the_lowest_rank_goes_first_and_the_leftmost_among_equals() {
        let bpe = tiny();
        let mut ids = Vec::new();
        bpe.encode_piece(b"ababbb", &mut ids);
        assert_eq!(ids, [256, 256, 258]);
        ids.clear();
        bpe.encode_piece(b"abac", &mut ids);
        assert_eq!(ids, [257, 99]);
    }

    #[test]
    fn heap_and_scan_give_the_same_ids() {
        use crate::rng::{Domain, Stream};
        let bpe = tiny();
        for case in 0..200 {
            let mut stream = Stream::new(1, Domain::Sample, case);
            let n = 2 + stream.below(90) as usize;
            let piece: Vec<u8> = (0..n).map(|_| b'a' + stream.below(3) as u8).collect();
            let (mut scan, mut heap) = (Vec::new(), Vec::new());
            bpe.encode_by_scan(&piece, &mut scan);
            bpe.encode_by_heap(&piece, &mut heap);
            assert_eq!(scan, heap, "{piece:?}");
        }
    }

    #[test]
    fn windows_join_to_the_encoding_of_the_whole() {
        use crate::rng::{Domain, Stream};
        let (tiny, gpt2) = (tiny(), super::super::gpt2::byte_bpe().unwrap());
        for case in 0..60 {
            let mut stream = Stream::new(2, Domain::Sample, case);
            let letters = 1 + stream.below(4);
            let n = 500 + stream.below(500) as usize;
            let piece: Vec<u8> = (0..n).map(|_| b'a' + stream.below(letters) as u8).collect();
            for bpe in [&tiny, &gpt2] {
                let (mut heap, mut windows) = (Vec::new(), Vec::new());
                bpe.encode_by_heap(&piece, &mut heap);
                bpe.encode_by_windows(&piece, 64 + stream.below(64) as usize, 24, &mut windows);
                assert_eq!(heap, windows, "{piece:?}");
            }
        }
    }

    #[test]
    fn a_vocabulary_without_all_bytes_is_refused() {
        let tokens = (0..255u8).map(|b| Box::from([b])).collect();
        assert!(ByteBpe::from_ranks(tokens).is_err());
    }
}
