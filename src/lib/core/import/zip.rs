//! The directory of a zip archive, as far as `torch.save` needs it: entries that are stored whole.
//!
//! The crate `zip` finds and reads the records. It forgives what two readers could take for two
//! different archives, so the rest is checked here, against the bytes. Refused are compressed or
//! encrypted entries, entries that overlap or reach out of their place, one name twice, headers
//! with bytes between them, a directory that is not where the end record says, and local headers
//! that tell another name.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::ops::Range;

use zip::ZipArchive;
use zip::read::{ArchiveOffset, Config};

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

/// A little-endian number of N bytes, or what is wrong.
fn number<const N: usize>(file: &[u8], at: usize) -> Result<usize, String> {
    let bytes = at.checked_add(N).and_then(|end| file.get(at..end));
    let bytes = bytes.ok_or_else(|| format!("the archive is cut short at byte {at}"))?;
    Ok(bytes.iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte)))
}

impl Archive {
    /// Reads the directory of the archive that `file` is.
    ///
    /// # Errors
    /// One sentence that names what is wrong and, where it is one entry, which.
    pub fn read(file: &[u8]) -> Result<Archive, String> {
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let zip = ZipArchive::with_config(config, Cursor::new(file)).map_err(|e| {
            format!("the archive is cut short or damaged ({e}); fetch it or save it again")
        })?;
        if zip.len() > MAX_ENTRIES {
            return Err(format!("more than {MAX_ENTRIES} entries; no checkpoint has as many"));
        }
        let start = zip.central_directory_start() as usize;
        let (metadata, comment) = (zip.metadata(), zip.comment().len());
        let mut entries = BTreeMap::new();
        let mut places = Vec::new();
        let mut next = start;
        for i in 0..metadata.len() {
            let entry = metadata.entry(i).map_err(|e| e.to_string())?;
            let header = entry.central_header_start() as usize;
            let Ok(name) = std::str::from_utf8(entry.name_raw()) else {
                return Err(format!("the name of an entry at byte {header} is not UTF-8"));
            };
            let bad = |what: &str| format!("entry '{name}' {what}");
            if header != next {
                // The crate keeps the last of two entries of one name, in the place of the first.
                return Err(bad("stands there twice; the archive is damaged"));
            }
            let lengths = [28, 30, 32].map(|at| number::<2>(file, header + at));
            next = lengths.into_iter().try_fold(header + 46, |at, n| Ok::<_, String>(at + n?))?;
            // Bits 0, 6 and 13: encrypted, strongly encrypted, masked headers.
            if number::<2>(file, header + 8)? & 0x2041 != 0 {
                return Err(bad("is encrypted; save the checkpoint anew with torch.save"));
            }
            let method = number::<2>(file, header + 10)?;
            if method != 0 {
                return Err(bad(&format!(
                    "is compressed (method {method}); torch.save stores its entries, save it anew"
                )));
            }
            if entry.compressed_size() != entry.size() {
                return Err(bad("is stored, but in another length than it has"));
            }
            let bytes = stored(file, &entry, start).map_err(|what| bad(&what))?;
            places.push((entry.header_start() as usize, bytes.end));
            entries.insert(name.to_owned(), Entry { bytes, crc32: entry.crc32() });
        }
        check_end(file, start..next, metadata.len(), comment)?;
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

/// Where the bytes of an entry lie, by its local header, which must tell the same; before `limit`.
fn stored(
    file: &[u8],
    entry: &zip::read::ZipFileEntry,
    limit: usize,
) -> Result<Range<usize>, String> {
    let header = usize::try_from(entry.header_start()).unwrap_or(usize::MAX);
    if !file.get(header..).is_some_and(|rest| rest.starts_with(b"PK\x03\x04")) {
        return Err(format!("does not begin at byte {header}; the archive is damaged"));
    }
    let (name, extra) = (number::<2>(file, header + 26)?, number::<2>(file, header + 28)?);
    let same = file.get(header + 30..header + 30 + name) == Some(entry.name_raw());
    if number::<2>(file, header + 8)? != 0 || !same {
        return Err("is told otherwise by its own header; the archive is damaged".into());
    }
    let start = header + 30 + name + extra;
    let end = usize::try_from(entry.size()).ok().and_then(|length| start.checked_add(length));
    match end {
        Some(end) if end <= limit => Ok(start..end),
        _ => Err("reaches past the place of the entries; the archive is damaged".into()),
    }
}

/// Checks that behind the directory lie the end records and the comment, and nothing else, and
/// that the end record's numbers are those of the directory wherever they fit it.
fn check_end(
    file: &[u8],
    directory: Range<usize>,
    count: usize,
    comment: usize,
) -> Result<(), String> {
    const END: usize = 22;
    const ZIP64: usize = 56 + 20; // the zip64 end record and its locator
    let end = file.len().saturating_sub(END + comment);
    let numbers =
        [number::<2>(file, end + 10)?, number::<4>(file, end + 12)?, number::<4>(file, end + 16)?];
    let own = [count, directory.len(), directory.start];
    let most = [0xffff, 0xffff_ffff, 0xffff_ffff];
    let wide = directory.end + ZIP64 == end;
    let fits = (0..3).all(|i| numbers[i] == own[i] || wide && numbers[i] == most[i]);
    if fits && (wide || directory.end == end) {
        return Ok(());
    }
    Err(format!(
        "its directory of {count} entries at byte {} does not end at byte {end} as the end record \
         says; the archive is damaged",
        directory.start
    ))
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
            (first + 42, b"\xff\xff\xff\xff", "does not begin at byte 4294967295"),
            (first + 46, b"ab", "told otherwise"),
            (first + 46, b"\xff\xff", "not UTF-8"),
            (8, b"\x08\0", "told otherwise"),
            (second + 42, b"\0\0\0\0", "told otherwise"),
            (end + 10, b"\x03\0", "damaged"),
            (end + 10, b"\x01\0", "damaged"),
            (end + 16, b"\0\0\0\0", "damaged"),
            (end + 4, b"\x01\0", "Multi-disk"),
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

    /// The archive with zip64 end records of `count` entries, its narrow ones as `narrow`.
    fn zip64(count: u64, narrow: u16) -> Vec<u8> {
        let mut file = archive(&[("aa", b"hello"), ("bb", b"world")]);
        let end = find(&file, b"PK\x05\x06");
        let mut tail = file.split_off(end);
        let start = find(&file, b"PK\x01\x02") as u64;
        file.extend(b"PK\x06\x06");
        file.extend(44u64.to_le_bytes());
        file.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for number in [count, count, end as u64 - start, start] {
            file.extend(number.to_le_bytes());
        }
        file.extend(b"PK\x06\x07\0\0\0\0");
        file.extend((end as u64).to_le_bytes());
        file.extend([1, 0, 0, 0]);
        tail[8..10].copy_from_slice(&narrow.to_le_bytes());
        tail[10..12].copy_from_slice(&narrow.to_le_bytes());
        file.extend(tail);
        file
    }

    #[test]
    fn zip64_archives_are_read_and_may_not_be_two_archives_in_one() {
        for narrow in [2, 0xffff] {
            let archive = Archive::read(&zip64(2, narrow)).unwrap();
            assert_eq!(archive.names().collect::<Vec<_>>(), ["aa", "bb"]);
        }
        // A reader of the narrow numbers alone would see one entry.
        assert!(Archive::read(&zip64(2, 1)).unwrap_err().contains("damaged"));
        // No memory is set aside for entries that are only announced.
        for count in [1 << 20, 1 << 40, u64::MAX] {
            assert!(Archive::read(&zip64(count, 0xffff)).unwrap_err().contains("damaged"));
        }
    }
}
