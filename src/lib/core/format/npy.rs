//! NumPy `.npy` tables of integers: what order files are.
//!
//! - Bytes 0..6 are `\x93NUMPY`, then the version (ours is 1.0; 2.0 and 3.0 are read), then the
//!   header's length as a little-endian u16 (u32 from version 2.0), then the header.
//! - The header is a Python dict of `descr`, `fortran_order` and `shape`, padded with spaces and a
//!   newline so that the data begins at a multiple of 64 bytes.
//! - The data is shape (rows, width), row by row: `<u2`, or `<u4` where an entry may pass 65,535.
//!   Readers also take the other integer types of NumPy, and a one-dimensional array as one row.
//! - The length of a file is exactly that of header and data. A stream may go on behind its data.
//!
//! It is our own: `npyz` 0.9, the common crate, brings 21 others for types and layouts that orders
//! never have.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::Mapped;
use crate::error::IoContext;
use crate::{Error, Result};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The longest header that is read.
const MAX_HEADER: usize = 1 << 16;

/// Bytes of one entry in tables that we write: 2, or 4 for rows of more than 65,536.
pub fn entry_size(width: usize) -> usize {
    if width <= 1 << 16 { 2 } else { 4 }
}

/// Everything before the data, for `rows` rows that permute 0..width.
pub fn header(rows: u64, width: usize) -> Vec<u8> {
    let size = entry_size(width);
    let mut dict =
        format!("{{'descr': '<u{size}', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    let padding = (64 - (MAGIC.len() + 4 + dict.len() + 1) % 64) % 64;
    dict.extend(std::iter::repeat_n(' ', padding));
    dict.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend((dict.len() as u16).to_le_bytes()); // about 118 bytes
    bytes.extend(dict.as_bytes());
    bytes
}

/// Appends a row of entries below 65,536 or any, in [`entry_size`] bytes each.
pub fn put_row(row: &[u32], entry_size: usize, out: &mut Vec<u8>) {
    if entry_size == 2 {
        out.extend(row.iter().flat_map(|&x| (x as u16).to_le_bytes()));
    } else {
        out.extend(row.iter().flat_map(|&x| x.to_le_bytes()));
    }
}

/// What a header says, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    size: usize,
    signed: bool,
    rows: u64,
    width: usize,
    /// Bytes of a row, which fit the address space.
    row_bytes: usize,
}

impl Layout {
    /// Entries of row `index`, from exactly `row_bytes` bytes.
    fn decode(&self, path: &Path, index: u64, bytes: &[u8], out: &mut Vec<u32>) -> Result<()> {
        out.clear();
        if self.size == 2 && !self.signed {
            out.extend(bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))));
            return Ok(());
        }
        for (k, chunk) in bytes.chunks_exact(self.size).enumerate() {
            let mut word = [0; 8];
            word[..self.size].copy_from_slice(chunk);
            let negative = self.signed && chunk[self.size - 1] & 0x80 != 0;
            match u32::try_from(u64::from_le_bytes(word)) {
                Ok(entry) if !negative => out.push(entry),
                _ => {
                    let what = if negative { "is negative" } else { "does not fit 32 bits" };
                    return Err(Error::input(
                        format!("{}, row {index}", path.display()),
                        format!("entry {k} {what}; entries count positions from 0"),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Whether bytes begin like an `.npy` file.
pub fn is_npy(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Reads up to `count` bytes, fewer at the end; memory grows with what arrives.
fn read_up_to(input: &mut impl Read, count: usize, out: &mut Vec<u8>) -> std::io::Result<()> {
    out.clear();
    input.take(count as u64).read_to_end(out).map(|_| ())
}

/// Reads and checks everything before the data. Returns the layout and the bytes consumed.
fn read_header(input: &mut impl Read, path: &Path) -> Result<(Layout, usize)> {
    let bad = |message: &str| Error::input_at(path, message);
    let mut bytes = Vec::new();
    read_up_to(input, MAGIC.len() + 2, &mut bytes).reading(path)?;
    if bytes.len() < MAGIC.len() + 2 || !is_npy(&bytes) {
        return Err(bad("not an .npy file: the magic bytes \\x93NUMPY are missing"));
    }
    let wide = match bytes[MAGIC.len()] {
        1 => false,
        2 | 3 => true,
        n => return Err(bad(&format!("npy version {n}; versions 1 to 3 are read"))),
    };
    let size = if wide { 4 } else { 2 };
    read_up_to(input, size, &mut bytes).reading(path)?;
    if bytes.len() < size {
        return Err(bad("the npy header is cut short"));
    }
    let length = bytes.iter().rev().fold(0usize, |n, &b| n << 8 | usize::from(b));
    if length > MAX_HEADER {
        return Err(bad(&format!(
            "an npy header of {length} bytes; at most {MAX_HEADER} are read"
        )));
    }
    read_up_to(input, length, &mut bytes).reading(path)?;
    if bytes.len() < length {
        return Err(bad("the npy header is cut short"));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| bad("the npy header is not UTF-8"))?;
    let layout = parse_header(text).map_err(|message| bad(&message))?;
    Ok((layout, MAGIC.len() + 2 + size + length))
}

fn parse_header(text: &str) -> Result<Layout, String> {
    let dict = parse_dict(text).ok_or_else(|| {
        "the npy header is no dict of descr, fortran_order and shape; save the array again"
            .to_owned()
    })?;
    let (size, signed) = match dict.descr.as_str() {
        "|u1" | "<u1" => (1, false),
        "<u2" => (2, false),
        "<u4" => (4, false),
        "<u8" => (8, false),
        "|i1" | "<i1" => (1, true),
        "<i2" => (2, true),
        "<i4" => (4, true),
        "<i8" => (8, true),
        other => {
            return Err(format!(
                "npy dtype '{other}'; orders are little-endian integers, save as uint16 or uint32"
            ));
        }
    };
    if dict.fortran_order {
        return Err("npy array in Fortran order; save numpy.ascontiguousarray(array)".into());
    }
    let (rows, width) = match dict.shape[..] {
        [width] => (1, width),
        [rows, width] => (rows, width),
        _ => {
            let dimensions = dict.shape.len();
            return Err(format!("npy array of {dimensions} dimensions; orders are (rows, width)"));
        }
    };
    if width == 0 {
        return Err("npy array with rows of no entries".into());
    }
    let row_bytes = usize::try_from(width)
        .ok()
        .and_then(|w| Some((w, w.checked_mul(size)?)))
        .filter(|(_, bytes)| rows.checked_mul(*bytes as u64).is_some());
    let Some((width, row_bytes)) = row_bytes else {
        return Err(format!("npy shape ({rows}, {width}) does not fit 64 bits"));
    };
    Ok(Layout { size, signed, rows, width, row_bytes })
}

#[derive(Default)]
struct Dict {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// The dict literal, keys in any order, each once; `None` for anything else.
fn parse_dict(text: &str) -> Option<Dict> {
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    let mut rest = text.trim().strip_prefix('{')?.trim_start();
    while !rest.starts_with('}') {
        let (key, after) = quoted(rest)?;
        rest = after.trim_start().strip_prefix(':')?.trim_start();
        match key {
            "descr" if descr.is_none() => {
                let (value, after) = quoted(rest)?;
                descr = Some(value.to_owned());
                rest = after;
            }
            "fortran_order" if fortran_order.is_none() => {
                let value = rest.starts_with("True");
                rest = rest.strip_prefix("True").or_else(|| rest.strip_prefix("False"))?;
                fortran_order = Some(value);
            }
            "shape" if shape.is_none() => {
                let (inside, after) = rest.strip_prefix('(')?.split_once(')')?;
                let inside = inside.trim();
                let inside = inside.strip_suffix(',').unwrap_or(inside);
                let numbers: Option<Vec<u64>> = match inside.is_empty() {
                    true => Some(Vec::new()),
                    false => inside.split(',').map(|n| n.trim().parse().ok()).collect(),
                };
                shape = Some(numbers?);
                rest = after;
            }
            _ => return None,
        }
        rest = rest.trim_start();
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start(),
            None if rest.starts_with('}') => {}
            None => return None,
        }
    }
    if !rest[1..].trim().is_empty() {
        return None;
    }
    Some(Dict { descr: descr?, fortran_order: fortran_order?, shape: shape? })
}

/// A quoted word without escapes, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let (word, rest) = text[1..].split_once(quote)?;
    (!word.contains('\\')).then_some((word, rest))
}

/// A mapped table, rows at random.
#[derive(Debug)]
pub struct NpyFile {
    path: PathBuf,
    map: Mapped,
    layout: Layout,
    data: usize,
}

impl NpyFile {
    /// Maps and checks the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read, is no table of integers, or its length is not that of its shape.
    pub fn open(path: &Path) -> Result<NpyFile> {
        let map = super::map_file(path)?;
        let (layout, data) = read_header(&mut &map[..], path)?;
        let need = layout.rows * layout.row_bytes as u64; // checked in parse_header
        let have = (map.len() - data) as u64;
        if have != need {
            let Layout { rows, width, .. } = layout;
            return Err(Error::input_at(
                path,
                format!(
                    "holds {have} bytes of data where shape ({rows}, {width}) takes {need}; the \
                     file is {}, write it again",
                    if have < need { "cut short" } else { "too long" }
                ),
            ));
        }
        Ok(NpyFile { path: path.into(), map, layout, data })
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.layout.rows
    }

    /// Entries of a row.
    pub fn width(&self) -> usize {
        self.layout.width
    }

    /// The whole file, for a hash.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Puts the entries of row `index` into `out`, not checked to be a permutation.
    ///
    /// # Errors
    /// When there is no such row, or an entry is negative or does not fit 32 bits.
    pub fn row(&self, index: u64, out: &mut Vec<u32>) -> Result<()> {
        if index >= self.layout.rows {
            let have = self.layout.rows;
            return Err(Error::input_at(&self.path, format!("holds {have} rows, no row {index}")));
        }
        let start = self.data + index as usize * self.layout.row_bytes; // inside the file: checked
        let bytes = &self.map[start..start + self.layout.row_bytes];
        self.layout.decode(&self.path, index, bytes, out)
    }
}

/// A table that arrives in a stream, row after row.
pub struct NpyReader<R> {
    input: R,
    path: PathBuf,
    layout: Layout,
    next: u64,
    buffer: Vec<u8>,
}

impl<R: Read> NpyReader<R> {
    /// Reads the header; `path` is named in errors.
    ///
    /// # Errors
    /// When the stream is no table of integers.
    pub fn new(mut input: R, path: &Path) -> Result<NpyReader<R>> {
        let (layout, _) = read_header(&mut input, path)?;
        Ok(NpyReader { input, path: path.into(), layout, next: 0, buffer: Vec::new() })
    }

    /// Number of rows that the header announces.
    pub fn rows(&self) -> u64 {
        self.layout.rows
    }

    /// Entries of a row.
    pub fn width(&self) -> usize {
        self.layout.width
    }

    /// Puts the next row into `out`; false at the end.
    ///
    /// # Errors
    /// When the stream ends before its last row, or an entry is unusable.
    pub fn next_row(&mut self, out: &mut Vec<u32>) -> Result<bool> {
        if self.next == self.layout.rows {
            return Ok(false);
        }
        let need = self.layout.row_bytes;
        read_up_to(&mut self.input, need, &mut self.buffer).reading(&self.path)?;
        if self.buffer.len() < need {
            let (rows, next) = (self.layout.rows, self.next);
            return Err(Error::input_at(
                &self.path,
                format!("ends in row {next} of the {rows} that its header announces"),
            ));
        }
        self.layout.decode(&self.path, self.next, &self.buffer, out)?;
        self.next += 1;
        Ok(true)
    }
}

#[cfg(test)]
#[path = "npy_tests.rs"]
mod tests;
