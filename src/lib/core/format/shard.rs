//! Token shards: files of token ids in the llm.c layout.
//!
//! | offset | type | meaning |
//! |---|---|---|
//! | 0 | i32 LE | magic: 20240520 for u16 tokens, 20240801 for u32 tokens |
//! | 4 | i32 LE | version: 1 for u16, 7 for u32 |
//! | 8 | i32 LE | count: the number of tokens, 0 ..= 2^31 − 1 |
//! | 12 | 61 × (4 bytes) | zero; readers ignore them |
//! | 1024 | u16 or u32 LE × count | token ids |
//!
//! - The file's size MUST be 1024 + count · width. A reader refuses anything else.
//! - A raw file (nanoGPT's `train.bin`) is u16 tokens alone, of an even size.
//! - `shard-NNNNNN.len`, where there is one, holds the documents' lengths in tokens as u32 LE; the
//!   sum MUST be the shard's count.
//!
//! Layout: karpathy/llm.c, `llmc/dataloader.h` and `dev/data/data_common.py`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Mapped, map_file};
use crate::error::IoContext;
use crate::{Error, Result};

/// Bytes before the first token.
pub const HEADER_BYTES: usize = 1024;
/// The most tokens a shard can hold: its count is an i32.
pub const MAX_TOKENS: u64 = i32::MAX as u64;

/// How wide a token is in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Width {
    /// Two bytes: vocabularies up to 65,536 ids.
    U16,
    /// Four bytes.
    U32,
}

impl Width {
    /// The narrowest width that holds ids below `vocab_size`.
    pub fn for_vocab(vocab_size: usize) -> Width {
        if vocab_size <= 1 << 16 { Width::U16 } else { Width::U32 }
    }

    /// Bytes per token.
    pub fn bytes(self) -> usize {
        match self {
            Width::U16 => 2,
            Width::U32 => 4,
        }
    }

    fn magic(self) -> [i32; 2] {
        match self {
            Width::U16 => [20240520, 1],
            Width::U32 => [20240801, 7],
        }
    }

    /// Appends `ids` as this width's bytes.
    ///
    /// # Errors
    /// The first id that does not fit.
    pub fn append(self, ids: &[u32], out: &mut Vec<u8>) -> Result<(), u32> {
        out.reserve(ids.len() * self.bytes());
        for &id in ids {
            match self {
                Width::U16 => out.extend(u16::try_from(id).map_err(|_| id)?.to_le_bytes()),
                Width::U32 => out.extend(id.to_le_bytes()),
            }
        }
        Ok(())
    }
}

/// The header of a shard of `count` tokens.
pub fn header(width: Width, count: u64) -> [u8; HEADER_BYTES] {
    debug_assert!(count <= MAX_TOKENS, "a writer starts a new shard before this");
    let mut bytes = [0; HEADER_BYTES];
    let [magic, version] = width.magic();
    for (word, value) in bytes.chunks_exact_mut(4).zip([magic, version, count as i32]) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// XXH3 (64 bits, hexadecimal) of the file at `path`.
///
/// # Errors
/// When the file cannot be read.
pub fn hash_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).reading(path)?;
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer).reading(path)? {
            0 => return Ok(format!("{:016x}", hasher.digest())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// A shard's tokens, memory-mapped.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    map: Mapped,
    start: usize,
    width: Width,
    count: u64,
}

impl Shard {
    /// Maps a shard with a header and checks magic, version and size.
    ///
    /// # Errors
    /// When the file cannot be read or is no whole shard; the error names the byte.
    pub fn open(path: &Path) -> Result<Shard> {
        let map = map_file(path)?;
        let bad = |message: String| Err(Error::input_at(path, message));
        if map.len() < HEADER_BYTES {
            return bad(format!(
                "{} bytes, a shard's header alone has {HEADER_BYTES}; the file is cut or not a \
                 shard (raw u16 tokens need --raw-u16)",
                map.len()
            ));
        }
        let word = |i: usize| {
            let bytes = [map[4 * i], map[4 * i + 1], map[4 * i + 2], map[4 * i + 3]];
            i32::from_le_bytes(bytes)
        };
        let [magic, version, count] = [word(0), word(1), word(2)];
        let width = match magic {
            20240520 => Width::U16,
            20240801 => Width::U32,
            _ => {
                return bad(format!(
                    "byte 0: magic {magic}, a token shard has 20240520 (u16) or 20240801 (u32); \
                     raw u16 tokens need --raw-u16"
                ));
            }
        };
        if version != width.magic()[1] {
            return bad(format!(
                "byte 4: version {version}, this tool reads version {} of magic {magic}",
                width.magic()[1]
            ));
        }
        let Ok(count) = u64::try_from(count) else {
            return bad(format!("byte 8: negative token count {count}"));
        };
        // count < 2^31 and width <= 4: no overflow in u64.
        let expected = HEADER_BYTES as u64 + count * width.bytes() as u64;
        if map.len() as u64 != expected {
            let found = (map.len() - HEADER_BYTES) / width.bytes();
            let end = map.len().min(usize::try_from(expected).unwrap_or(usize::MAX));
            return bad(format!(
                "byte {end}: {count} tokens in the header make {expected} bytes, the file has {} \
                 ({found} tokens); rebuild it with ao-tokenize",
                map.len()
            ));
        }
        Ok(Shard { path: path.into(), map, start: HEADER_BYTES, width, count })
    }

    /// Maps a raw file of u16 tokens, as nanoGPT writes it.
    ///
    /// # Errors
    /// When the file cannot be read or its size is odd.
    pub fn open_raw_u16(path: &Path) -> Result<Shard> {
        let map = map_file(path)?;
        if map.len() % 2 != 0 {
            return Err(Error::input_at(
                path,
                format!("byte {}: an odd size for raw u16 tokens; the file is cut", map.len()),
            ));
        }
        let count = map.len() as u64 / 2;
        Ok(Shard { path: path.into(), map, start: 0, width: Width::U16, count })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How wide its tokens are.
    pub fn width(&self) -> Width {
        self.width
    }

    /// The number of tokens.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether it holds no token.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// XXH3 of the whole file, as the manifest has it. Read, not mapped, so that the check of a
    /// large corpus takes no memory.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn hash(&self) -> Result<String> {
        hash_file(&self.path)
    }

    /// Appends tokens `start .. start + count`, each below `vocab_size`.
    ///
    /// # Errors
    /// When the range leaves the shard or an id is too large; the error names the byte.
    pub fn read(
        &self,
        start: u64,
        count: usize,
        vocab_size: usize,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let end = start.checked_add(count as u64).filter(|&end| end <= self.count);
        let Some(end) = end else {
            return Err(Error::input_at(
                &self.path,
                format!("tokens {start} to {start} + {count} asked of {}", self.count),
            ));
        };
        let width = self.width.bytes();
        // Within the map: start and end are at most `count`, whose bytes were checked on opening.
        let bytes =
            &self.map[self.start + start as usize * width..self.start + end as usize * width];
        let first = out.len();
        match self.width {
            Width::U16 => out
                .extend(bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]])))),
            Width::U32 => out.extend(
                bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            ),
        }
        match out[first..].iter().position(|&id| id as usize >= vocab_size) {
            None => Ok(()),
            Some(i) => {
                let byte = self.start + (start as usize + i) * width;
                let id = out[first + i];
                out.truncate(first);
                Err(Error::input_at(
                    &self.path,
                    format!(
                        "byte {byte}: token id {id}, the vocabulary has {vocab_size}; the shard \
                         belongs to another tokenizer or is damaged"
                    ),
                ))
            }
        }
    }
}

/// The documents' lengths of a shard, memory-mapped.
#[derive(Debug)]
pub struct Lengths {
    path: PathBuf,
    map: Mapped,
}

impl Lengths {
    /// Maps a `.len` file.
    ///
    /// # Errors
    /// When it cannot be read or its size is no multiple of 4.
    pub fn open(path: &Path) -> Result<Lengths> {
        let map = map_file(path)?;
        if map.len() % 4 != 0 {
            return Err(Error::input_at(
                path,
                format!("byte {}: not a whole number of u32 lengths; the file is cut", map.len()),
            ));
        }
        Ok(Lengths { path: path.into(), map })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of documents.
    pub fn len(&self) -> usize {
        self.map.len() / 4
    }

    /// Whether it holds no document.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Tokens of document `i`, which must be below `len()`.
    pub fn get(&self, i: usize) -> u32 {
        let b = &self.map[4 * i..4 * i + 4];
        u32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }

    /// All lengths, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.map.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.bin");
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    fn shard(width: Width, ids: &[u32]) -> Vec<u8> {
        let mut bytes = header(width, ids.len() as u64).to_vec();
        width.append(ids, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_shard_reads_back_in_both_widths() {
        for (width, ids) in [(Width::U16, vec![0, 65_535, 7]), (Width::U32, vec![65_536, 1])] {
            let (_dir, path) = file(&shard(width, &ids));
            let shard = Shard::open(&path).unwrap();
            let mut out = Vec::new();
            shard.read(0, ids.len(), 1 << 17, &mut out).unwrap();
            assert_eq!((out, shard.width()), (ids, width));
        }
        assert_eq!(Width::U16.append(&[65_536], &mut Vec::new()), Err(65_536));
    }

    #[test]
    fn every_cut_and_every_extra_byte_is_refused() {
        let whole = shard(Width::U16, &[1, 2, 3]);
        for cut in 0..whole.len() {
            let (_dir, path) = file(&whole[..cut]);
            assert_eq!(Shard::open(&path).unwrap_err().exit_code(), 2, "{cut}");
        }
        let (_dir, path) = file(&[whole, vec![0]].concat());
        let text = Shard::open(&path).unwrap_err().to_string();
        assert!(text.contains("byte 1030: 3 tokens in the header"), "{text}");
    }

    #[test]
    fn an_id_above_the_vocabulary_names_its_byte() {
        let (_dir, path) = file(&shard(Width::U16, &[1, 2, 50]));
        let error = Shard::open(&path).unwrap().read(1, 2, 50, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("byte 1028: token id 50"), "{error}");
    }
}
