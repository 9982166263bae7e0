//! The directory of a zip archive, as far as `torch.save` needs it: entries that are stored whole.
//!
//! From the end of the file: the end record `PK\5\6` (22 bytes and a comment that reaches to the
//! last byte); before it, in a zip64 archive, the locator `PK\6\7` and the zip64 end record
//! `PK\6\6`; before these the central directory, one `PK\1\2` header for each entry; and at the
//! place that it names the entry's local header `PK\3\4`, then its bytes.
//!
//! What is refused, as it never comes from `torch.save` and is how archives lie: compressed or
//! encrypted entries, entries that overlap or reach out of their place, one name twice, a
//! directory that is not where the end record says, local headers that tell another name.

use std::collections::BTreeMap;
use std::ops::Range;

/// The most entries that are read; the largest published models have some thousands.
const MAX_ENTRIES: usize = 1 << 20;

/// Where an entry's bytes lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Place in the file.
    pub bytes: Range<usize>,
    /// CRC-32 of the bytes as the directory has it, 0 where it was not computed.
    pub crc32: u32,
}

impl Entry {
    /// Checks the bytes in `file` against their checksum. One of 0 was not computed: `torch.save`
    /// writes it with its `compute_crc32` option off.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify(&self, file: &[u8]) -> Result<(), String> {
        if self.crc32 == 0 {
            return Ok(());
        }
        let mut crc = flate2::Crc::new();
        crc.update(&file[self.bytes.clone()]);
        if crc.sum() == self.crc32 {
            return Ok(());
        }
        Err("its checksum differs, so the file is damaged; fetch it again".into())
    }
}

/// The entries of an archive by name.
#[derive(Debug, Default)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

/// Reads little-endian numbers at a place, or tells that the file ends before.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn slice(&self, start: usize, length: usize) -> Result<&'a [u8], String> {
        start
            .checked_add(length)
            .and_then(|end| self.0.get(start..end))
            .ok_or_else(|| format!("the archive is cut short or damaged at byte {start}"))
    }
    fn array<const N: usize>(&self, start: usize) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.slice(start, N)?);
        Ok(array)
    }
    fn u16(&self, start: usize) -> Result<usize, String> {
        Ok(u16::from_le_bytes(self.array(start)?).into())
    }
    fn u32(&self, start: usize) -> Result<usize, String> {
        Ok(u32::from_le_bytes(self.array(start)?) as usize)
    }
    fn u64(&self, start: usize) -> Result<usize, String> {
        usize::try_from(u64::from_le_bytes(self.array(start)?))
            .map_err(|_| format!("a number at byte {start} passes the address space"))
    }
    fn is_at(&self, signature: &[u8; 4], start: usize) -> bool {
        self.0.get(start..).is_some_and(|rest| rest.starts_with(signature))
    }
}

/// Place and length of the central directory, and the number of its entries.
struct Directory {
    start: usize,
    end: usize,
    count: usize,
}

impl Archive {
    /// Reads the directory of the archive that `file` is.
    ///
    /// # Errors
    /// One sentence that names what is wrong and, where it is one entry, which.
    pub fn read(file: &[u8]) -> Result<Archive, String> {
        let bytes = Bytes(file);
        let directory = directory(&bytes)?;
        let mut entries = BTreeMap::new();
        let mut places = Vec::new();
        let mut at = directory.start;
        while at < directory.end {
            let (name, entry, header, next) = entry(&bytes, at, directory.start)?;
            at = next;
            places.push((header, entry.bytes.end));
            if entries.len() >= MAX_ENTRIES {
                return Err(format!("more than {MAX_ENTRIES} entries; no checkpoint has as many"));
            }
            if entries.insert(name.clone(), entry).is_some() {
                return Err(format!("entry '{name}' stands there twice; the archive is damaged"));
            }
        }
        if at != directory.end || places.len() != directory.count {
            return Err(format!(
                "the directory holds {} entries and announces {}; the archive is damaged",
                places.len(),
                directory.count
            ));
        }
        places.sort_unstable();
        if let Some(pair) = places.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            return Err(format!("entries overlap at byte {}; the archive is damaged", pair[1].0));
        }
        Ok(Archive { entries })
    }

    /// The entry of this name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// All names in byte order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }
}

/// Finds the central directory by the records at the end of the file.
fn directory(bytes: &Bytes) -> Result<Directory, String> {
    const END: usize = 22;
    let total = bytes.0.len();
    let earliest = total.saturating_sub(END + usize::from(u16::MAX));
    let end = (earliest..=total.saturating_sub(END))
        .rev()
        .find(|&at| {
            bytes.is_at(b"PK\x05\x06", at)
                && bytes.u16(at + 20).is_ok_and(|comment| at + END + comment == total)
        })
        .ok_or("the end of the archive is missing: the file is cut short; fetch it again")?;
    let mut count = bytes.u16(end + 10)?;
    let mut size = bytes.u32(end + 12)?;
    let mut start = bytes.u32(end + 16)?;
    let disks = (bytes.u16(end + 4)?, bytes.u16(end + 6)?);
    if !matches!(disks, (0, 0) | (0xffff, 0xffff)) {
        return Err("the archive is one of several parts; join them first".into());
    }
    let mut behind = end;
    let locator = end.wrapping_sub(20);
    if end >= 20 && bytes.is_at(b"PK\x06\x07", locator) {
        let record = bytes.u64(locator + 8)?;
        let damaged = || format!("its zip64 end record at byte {record} is damaged");
        if !bytes.is_at(b"PK\x06\x06", record) || record.checked_add(56) != Some(locator) {
            return Err(damaged());
        }
        let wide = (bytes.u64(record + 32)?, bytes.u64(record + 40)?, bytes.u64(record + 48)?);
        // Two directories in one file would be read by different programs as different archives.
        let same = |narrow: usize, most: usize, wide: usize| narrow == most || narrow == wide;
        if !same(count, 0xffff, wide.0)
            || !same(size, 0xffff_ffff, wide.1)
            || !same(start, 0xffff_ffff, wide.2)
        {
            return Err(damaged());
        }
        (count, size, start) = wide;
        behind = record;
    }
    if start.checked_add(size) != Some(behind) {
        return Err(format!(
            "its directory of {size} bytes at byte {start} does not end at byte {behind}; the \
             archive is damaged"
        ));
    }
    Ok(Directory { start, end: behind, count })
}

/// Reads the central header at `at`: the name, the entry, where its local header begins, and
/// where the next central header does.
fn entry(bytes: &Bytes, at: usize, limit: usize) -> Result<(String, Entry, usize, usize), String> {
    const CENTRAL: usize = 46;
    const LOCAL: usize = 30;
    if !bytes.is_at(b"PK\x01\x02", at) {
        return Err(format!("the directory is damaged at byte {at}"));
    }
    let flags = bytes.u16(at + 8)?;
    let method = bytes.u16(at + 10)?;
    let crc32 = u32::from_le_bytes(bytes.array(at + 16)?);
    let mut packed = bytes.u32(at + 20)?;
    let mut length = bytes.u32(at + 24)?;
    let (name_length, extra_length) = (bytes.u16(at + 28)?, bytes.u16(at + 30)?);
    let mut header = bytes.u32(at + 42)?;
    let name = bytes.slice(at + CENTRAL, name_length)?;
    let extra = bytes.slice(at + CENTRAL + name_length, extra_length)?;
    let next = at + CENTRAL + name_length + extra_length + bytes.u16(at + 32)?;
    let Ok(text) = std::str::from_utf8(name) else {
        return Err(format!("the name of an entry at byte {at} is not UTF-8"));
    };
    let bad = |what: &str| format!("entry '{text}' {what}");
    // Bits 0, 6 and 13: encrypted, strongly encrypted, masked headers.
    if flags & 0x2041 != 0 {
        return Err(bad("is encrypted; save the checkpoint anew with torch.save"));
    }
    if method != 0 {
        return Err(bad(&format!(
            "is compressed (method {method}); torch.save stores its entries, save it anew"
        )));
    }
    // The zip64 field holds, in this order, those numbers whose 32-bit field is full.
    let mut wide = zip64_field(extra).map_err(|()| bad("has a damaged extra field"))?;
    for field in [&mut length, &mut packed, &mut header] {
        if *field == 0xffff_ffff {
            let (head, rest) = wide.split_first_chunk::<8>().ok_or_else(|| {
                bad("has a length or place that does not fit its fields; the archive is damaged")
            })?;
            wide = rest;
            *field = usize::try_from(u64::from_le_bytes(*head))
                .map_err(|_| bad("passes the address space"))?;
        }
    }
    if packed != length {
        return Err(bad("is stored, but in another length than it has; the archive is damaged"));
    }
    if !bytes.is_at(b"PK\x03\x04", header) {
        return Err(bad(&format!("does not begin at byte {header}; the archive is damaged")));
    }
    let (local_name, local_extra) = (bytes.u16(header + 26)?, bytes.u16(header + 28)?);
    if bytes.u16(header + 8)? != method || bytes.slice(header + LOCAL, local_name)? != name {
        return Err(bad("is told otherwise by its own header; the archive is damaged"));
    }
    let start = header + LOCAL + local_name + local_extra;
    match start.checked_add(length) {
        Some(end) if end <= limit => {
            Ok((text.to_owned(), Entry { bytes: start..end, crc32 }, header, next))
        }
        _ => Err(bad("reaches past the place of the entries; the archive is damaged")),
    }
}

/// The body of the zip64 field among the extra fields; empty where there is none.
fn zip64_field(mut extra: &[u8]) -> Result<&[u8], ()> {
    while !extra.is_empty() {
        let (head, rest) = extra.split_first_chunk::<4>().ok_or(())?;
        let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let body = rest.get(..length).ok_or(())?;
        if head[..2] == [1, 0] {
            return Ok(body);
        }
        extra = &rest[length..];
    }
    Ok(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive of stored entries, as zip writers make it; `edit` changes it before it is read.
    fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let (mut file, mut directory) = (Vec::new(), Vec::new());
        for (name, bytes) in entries {
            let header = file.len() as u32;
            let length = (bytes.len() as u32).to_le_bytes();
            let sizes = [length, length].concat();
            let names = [(name.len() as u16).to_le_bytes(), [0; 2]].concat();
            file.extend(
                [&b"PK\x03\x04\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0"[..], &sizes, &names].concat(),
            );
            file.extend([name.as_bytes(), bytes].concat());
            directory.extend(
                [&b"PK\x01\x02\x0a\0\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0"[..], &sizes, &names].concat(),
            );
            directory.extend([0; 10]);
            directory.extend(header.to_le_bytes());
            directory.extend(name.as_bytes());
        }
        let (start, size) = (file.len() as u32, directory.len() as u32);
        let count = (entries.len() as u16).to_le_bytes();
        file.extend(directory);
        file.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count].concat());
        file.extend([size.to_le_bytes(), start.to_le_bytes()].concat());
        file.extend([0; 2]);
        file
    }

    fn find(file: &[u8], what: &[u8]) -> usize {
        file.windows(what.len()).position(|window| window == what).unwrap()
    }

    #[test]
    fn stored_entries_are_found_by_name() {
        let file = archive(&[("a/x", b"hello"), ("b", b""), ("c", b"\0\x01")]);
        let archive = Archive::read(&file).unwrap();
        assert_eq!(archive.names().collect::<Vec<_>>(), ["a/x", "b", "c"]);
        assert_eq!(&file[archive.get("a/x").unwrap().bytes.clone()], b"hello");
        assert_eq!(&file[archive.get("c").unwrap().bytes.clone()], b"\0\x01");
        assert!(archive.get("d").is_none());
        let mut commented = file.clone();
        let at = commented.len() - 2;
        commented[at] = 5;
        commented.extend(b"PK\x05\x06!"); // a comment that looks like an end record
        Archive::read(&commented).unwrap();
    }

    #[test]
    fn archives_that_lie_are_refused() {
        let file = archive(&[("aa", b"hello"), ("bb", b"world")]);
        let first = find(&file, b"PK\x01\x02");
        let second = first + find(&file[first + 1..], b"PK\x01\x02") + 1;
        let end = find(&file, b"PK\x05\x06");
        for (at, bytes, want) in [
            (first + 8, &b"\x01\0"[..], "'aa' is encrypted"),
            (first + 10, b"\x08\0", "'aa' is compressed (method 8)"),
            (first + 20, b"\x04\0\0\0", "in another length"),
            (first + 20, b"\xff\xff\xff\x7f\xff\xff\xff\x7f", "reaches past"),
            (first + 42, b"\x01\0\0\0", "does not begin at byte 1"),
            (first + 42, b"\xff\xff\xff\xff", "does not fit its fields"),
            (first + 46, b"ab", "told otherwise"),
            (first + 46, b"\xff\xff", "not UTF-8"),
            (8, b"\x08\0", "told otherwise"),
            (second + 42, b"\0\0\0\0", "told otherwise"),
            (end + 10, b"\x03\0", "holds 2 entries and announces 3"),
            (end + 16, b"\0\0\0\0", "does not end at byte"),
            (end + 4, b"\x01\0", "one of several parts"),
        ] {
            let mut file = file.clone();
            file[at..at + bytes.len()].copy_from_slice(bytes);
            let text = Archive::read(&file).unwrap_err();
            assert!(text.contains(want), "{want}: {text}");
        }
        let twice = archive(&[("aa", b"hello"), ("aa", b"world")]);
        assert!(Archive::read(&twice).unwrap_err().contains("'aa' stands there twice"));
        // The first entry made long enough to hold the second one.
        let mut over = file.clone();
        over[first + 20..first + 28].copy_from_slice(b"\x09\0\0\0\x09\0\0\0");
        assert!(Archive::read(&over).unwrap_err().contains("entries overlap"));
        for length in 0..file.len() {
            assert!(Archive::read(&file[..length]).is_err());
        }
    }
}
