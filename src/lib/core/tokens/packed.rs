//! Packed inputs: gzip, zstd and tar, each recognised by its content and nested as people nest them
//! (`release.tar.gz` of `.txt.zst`).
//!
//! Of a tar archive every regular member is read, also behind the end of a first archive (as
//! `cat a.tar b.tar` makes them) and with the holes of GNU tar's sparse members as NULs. Sparse
//! members in the pax way, whose data begin with a map, and parts of other volumes are refused by
//! name. Directories, labels and global headers hold no text; links and devices are counted.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use tar::EntryType;

use super::choice::{Choice, PassedOver};
use crate::{Error, Result};

/// How much of a stream is looked at to tell what it is.
const PREFIX_BYTES: usize = 1 << 16;
/// How deep archives and compressions may nest.
const MAX_DEPTH: usize = 6;
/// zstd windows up to 2 GiB, as `zstd --long=31` makes them.
const ZSTD_WINDOW_LOG: u32 = 31;
/// An archive ends with two blocks of as many NULs; one without members is nothing else.
const TAR_BLOCK: usize = 512;
/// Where a header says what its member is.
const TYPE_OF_MEMBER: usize = 156;

/// One file of plain bytes.
pub(super) struct Stream<'a> {
    /// What to call it in errors: the path, with `:member` for one of an archive.
    pub place: Arc<str>,
    /// The path, when the bytes are those of a file on the disk.
    pub path: Option<&'a Path>,
    /// Files that were not read between the stream before and this one.
    pub passed_over: PassedOver,
    bytes: Prefixed<&'a mut dyn Read>,
    packed: bool,
}

impl Stream<'_> {
    /// The first bytes, at most 64 KiB, all there are if the stream is shorter.
    pub fn prefix(&self) -> &[u8] {
        &self.bytes.prefix
    }

    /// Passes over the first `n` bytes, which must be within the prefix and not yet be read.
    pub fn skip_in_prefix(&mut self, n: usize) {
        self.bytes.at = n.min(self.bytes.prefix.len());
    }

    /// Appends at least one byte and at most `most`; 0 at the end.
    ///
    /// # Errors
    /// When the file cannot be read or its packing is damaged.
    pub fn read_into(&mut self, most: usize, out: &mut Vec<u8>) -> Result<usize> {
        let start = out.len();
        out.resize(start + most, 0);
        let got = loop {
            match self.bytes.read(&mut out[start..]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        out.truncate(start + *got.as_ref().unwrap_or(&0));
        got.map_err(|e| packed_error(&self.place, self.packed, e))
    }
}

fn packed_error(place: &str, packed: bool, error: io::Error) -> Error {
    if packed && error.raw_os_error().is_none() {
        return Error::input(place, format!("damaged or cut archive: {error}; fetch it again"));
    }
    Error::read(place, error)
}

/// A reader whose first bytes have been looked at.
struct Prefixed<R> {
    prefix: Vec<u8>,
    at: usize,
    inner: R,
}

impl<R: Read> Prefixed<R> {
    fn new(mut inner: R) -> io::Result<Self> {
        let mut prefix = Vec::new();
        inner.by_ref().take(PREFIX_BYTES as u64).read_to_end(&mut prefix)?;
        Ok(Prefixed { prefix, at: 0, inner })
    }
}

impl<R: Read> Read for Prefixed<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let rest = &self.prefix[self.at..];
        if rest.is_empty() {
            return self.inner.read(out);
        }
        let n = rest.len().min(out.len());
        out[..n].copy_from_slice(&rest[..n]);
        self.at += n;
        Ok(n)
    }
}

/// What a stream is, by its first bytes.
#[derive(Debug, PartialEq, Eq)]
enum Packing {
    Gzip,
    Zstd,
    Tar,
    Unread(&'static str),
    Plain,
}

/// First bytes of files that are no text and are not read. None of them can begin a text in UTF-8
/// that anybody would write.
const UNREAD: [(&[u8], &str); 15] = [
    (b"\xfd7zXZ\0", "xz"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\x02\x21\x4c\x18", "lz4"),
    (b"\x1f\x9d", "compress"),
    (b"\xff\x06\0\0sNaPpY", "snappy"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"ARROW1\0", "Arrow"),
    (b"\xff\xff\xff\xff", "Arrow stream"),
    (b"\x93NUMPY", "NumPy"),
    (b"\x89HDF\r\n", "HDF5"),
    (b"SQLite format 3\0", "SQLite"),
    (b"Obj\x01", "Avro"),
];

fn packing(prefix: &[u8]) -> Packing {
    match prefix {
        [0x1f, 0x8b, ..] => return Packing::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => return Packing::Zstd,
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, ..] => {
            return Packing::Unread("bzip2");
        }
        // zlib has a check of its two bytes alone, and `x^` may begin a text.
        [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] if !begins_as_utf8(prefix) => {
            return Packing::Unread("zlib");
        }
        _ => {}
    }
    if let Some((_, kind)) = UNREAD.iter().find(|(magic, _)| prefix.starts_with(magic)) {
        return Packing::Unread(kind);
    }
    let nothing = prefix.len() >= 2 * TAR_BLOCK && prefix[..2 * TAR_BLOCK].iter().all(|&b| b == 0);
    if nothing || is_tar(prefix) { Packing::Tar } else { Packing::Plain }
}

/// Whether the bytes are UTF-8 up to a character that may be cut at their end.
fn begins_as_utf8(prefix: &[u8]) -> bool {
    std::str::from_utf8(prefix).map_or_else(|e| e.error_len().is_none(), |_| true)
}

/// Whether the first 512 bytes are a tar header: its checksum says so, in every dialect.
fn is_tar(prefix: &[u8]) -> bool {
    let Some(header) = prefix.get(..TAR_BLOCK) else { return false };
    let text = String::from_utf8_lossy(&header[148..156]);
    let digits = text.trim_matches([' ', '\0']);
    let sum: u32 = header
        .iter()
        .enumerate()
        .map(|(i, &b)| if (148..156).contains(&i) { 32 } else { u32::from(b) })
        .sum();
    header[0] != 0 && u32::from_str_radix(digits, 8) == Ok(sum)
}

/// Takes files apart down to streams of plain bytes.
pub(super) struct Unpacker<'v> {
    choice: &'v Choice,
    visit: &'v mut dyn FnMut(Stream) -> Result<()>,
    /// Files that were not read since the last stream.
    pub passed_over: PassedOver,
    /// Streams given so far.
    pub streams: u64,
}

impl<'v> Unpacker<'v> {
    /// Gives what `choice` chooses to `visit`.
    pub fn new(choice: &'v Choice, visit: &'v mut dyn FnMut(Stream) -> Result<()>) -> Self {
        Unpacker { choice, visit, passed_over: PassedOver::default(), streams: 0 }
    }

    /// Gives every stream in `input`, which is the file at `path` as it lies there if that is given.
    ///
    /// # Errors
    /// When the packing is damaged or not read, or `visit` fails.
    pub fn open<'a>(
        &mut self,
        place: &str,
        path: Option<&'a Path>,
        input: &'a mut (dyn Read + 'a),
    ) -> Result<()> {
        self.unpack(place, path, input, 0)
    }

    fn unpack<'a>(
        &mut self,
        place: &str,
        path: Option<&'a Path>,
        input: &'a mut (dyn Read + 'a),
        depth: usize,
    ) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::input(place, format!("packed more than {MAX_DEPTH} times over")));
        }
        let packed = depth > 0;
        let failed = |e| packed_error(place, packed, e);
        let mut bytes = Prefixed::new(input).map_err(failed)?;
        match packing(&bytes.prefix) {
            Packing::Gzip => {
                let mut inner = flate2::read::MultiGzDecoder::new(&mut bytes);
                self.unpack(place, None, &mut inner, depth + 1)
            }
            Packing::Zstd => {
                let mut inner = zstd::Decoder::new(&mut bytes).map_err(failed)?;
                inner.window_log_max(ZSTD_WINDOW_LOG).map_err(failed)?;
                self.unpack(place, None, &mut inner, depth + 1)
            }
            Packing::Tar => {
                // GNU tar leaves the size of a label empty, which the crate takes for damage.
                if bytes.prefix.get(TYPE_OF_MEMBER) == Some(&b'V') {
                    bytes.at = TAR_BLOCK;
                }
                self.unpack_tar(place, &mut bytes, depth)
            }
            Packing::Unread(kind) => Err(Error::input(
                place,
                format!(
                    "{kind} data, which is not read here; give text or JSON lines, plain or packed \
                     with gzip, zstd or tar"
                ),
            )),
            Packing::Plain => {
                self.streams += 1;
                let passed_over = std::mem::take(&mut self.passed_over);
                (self.visit)(Stream { place: place.into(), path, passed_over, bytes, packed })
            }
        }
    }

    fn unpack_tar(&mut self, place: &str, input: &mut dyn Read, depth: usize) -> Result<()> {
        let failed = |e| packed_error(place, true, e);
        let mut archive = tar::Archive::new(input);
        archive.set_ignore_zeros(true); // another archive may follow
        for entry in archive.entries().map_err(failed)? {
            let mut entry = entry.map_err(failed)?;
            let sparse = pax_sparse_name(&mut entry).map_err(failed)?;
            let name = sparse.clone().unwrap_or_else(|| entry.path_bytes().into_owned());
            let name = String::from_utf8_lossy(&name).into_owned();
            let member = format!("{place}:{name}");
            match entry.header().entry_type() {
                EntryType::Directory | EntryType::XGlobalHeader => continue,
                // GNU tar's listing of a folder in an incremental dump.
                kind if kind.as_byte() == b'D' => continue,
                EntryType::Regular | EntryType::Continuous if name.ends_with('/') => continue,
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {}
                EntryType::Link
                | EntryType::Symlink
                | EntryType::Char
                | EntryType::Block
                | EntryType::Fifo => {
                    self.passed_over.skipped += 1;
                    continue;
                }
                kind => {
                    return Err(Error::input(
                        member,
                        format!(
                            "a member of type '{}', which is not read here; pack the files again \
                             with tar -c",
                            char::from(kind.as_byte()).escape_default()
                        ),
                    ));
                }
            }
            if name.split('/').any(|part| part.starts_with('.') && !matches!(part, "." | "..")) {
                self.passed_over.skipped += 1;
                continue;
            }
            if !self.choice.chooses(&name) {
                self.passed_over.excluded += 1;
                continue;
            }
            if sparse.is_some() {
                return Err(Error::input(
                    member,
                    "a sparse member in the pax format, which is not read here; pack the files \
                     again without tar's -S, or with --format=gnu",
                ));
            }
            self.unpack(&member, None, &mut entry, depth + 1)?;
        }
        Ok(())
    }
}

/// The name of a member whose pax header says that its data are not the file's own bytes.
fn pax_sparse_name<R: Read>(entry: &mut tar::Entry<R>) -> io::Result<Option<Vec<u8>>> {
    let Some(extensions) = entry.pax_extensions()? else { return Ok(None) };
    let (mut sparse, mut name) = (false, None);
    for extension in extensions {
        let extension = extension?;
        sparse |= extension.key_bytes().starts_with(b"GNU.sparse.");
        if extension.key_bytes() == b"GNU.sparse.name" {
            name = Some(extension.value_bytes().to_vec());
        }
    }
    Ok(sparse.then(|| name.unwrap_or_else(|| entry.path_bytes().into_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Source;
    use std::io::Write;
    use std::sync::atomic::AtomicU64;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    }

    fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            out.append_data(&mut header, name, *bytes).unwrap();
        }
        out.into_inner().unwrap()
    }

    /// A stream's bytes, by the last part of its name.
    type Named = (String, Vec<u8>);

    /// Every stream of one file with these bytes, and how many files of it were passed over.
    fn streams(bytes: &[u8], include: &[&str]) -> Result<(Vec<Named>, u64)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        std::fs::write(&path, bytes).unwrap();
        let include: Vec<String> = include.iter().map(|&p| p.into()).collect();
        let source = Source::new(vec![path], &include, &["*/held/*".into()])?;
        let (mut found, mut passed_over) = (Vec::new(), 0);
        let mut count = |p: PassedOver| passed_over += p.excluded + p.skipped;
        let rest = source.visit(&AtomicU64::new(0), &mut |mut stream| {
            let mut out = Vec::new();
            while stream.read_into(7, &mut out)? > 0 {}
            count(stream.passed_over);
            found.push((stream.place.rsplit('/').next().unwrap_or_default().to_owned(), out));
            Ok(())
        })?;
        count(rest);
        Ok((found, passed_over))
    }

    #[test]
    fn packings_are_told_by_content_and_unpacked_through_each_other() {
        let zst = zstd::encode_all(&b"one\n"[..], 1).unwrap();
        let archive = gzip(&tar(&[("a/x", b"plain"), ("a/y", &zst), ("a/._y", b"junk")]));
        let (found, passed_over) = streams(&archive, &[]).unwrap();
        let bytes: Vec<&[u8]> = found.iter().map(|(_, b)| b.as_slice()).collect();
        assert_eq!((bytes, passed_over), (vec![&b"plain"[..], b"one\n"], 1));
        let two_members = [gzip(b"a"), gzip(b"b")].concat();
        assert_eq!(streams(&two_members, &[]).unwrap().0[0].1, b"ab");
        assert_eq!(streams(b"", &[]).unwrap().0[0].1, b"");
    }

    #[test]
    fn archives_are_chosen_from_by_pattern() {
        let archive = tar(&[("r/train/news-1", b"1"), ("r/held/news-2", b"2"), ("r/README", b"3")]);
        let found = streams(&archive, &["*news*"]).unwrap();
        assert_eq!(found, (vec![("news-1".to_owned(), b"1".to_vec())], 2));
        let error = streams(&archive, &["*.txt"]).unwrap_err().to_string();
        assert!(error.contains("no file in it is chosen"), "{error}");
    }

    #[test]
    fn a_second_archive_behind_the_first_is_read_and_one_without_members_is_no_text() {
        let (a, b) = (tar(&[("a", b"1")]), tar(&[("b", b"2")]));
        let empty = vec![0; 10_240];
        for whole in [[a.clone(), b.clone()].concat(), [empty.clone(), a, b].concat()] {
            let (found, _) = streams(&whole, &[]).unwrap();
            assert_eq!(found.iter().map(|(_, b)| b[0]).collect::<Vec<_>>(), b"12");
        }
        assert_eq!(streams(&empty, &[]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn a_cut_archive_is_an_error_of_the_input() {
        let whole = gzip(&b"text of some length, so that there is something to cut".repeat(50));
        for cut in [3, whole.len() / 2, whole.len() - 1] {
            let error = streams(&whole[..cut], &[]).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{cut}: {error}");
        }
        let zst = zstd::encode_all(&b"some text"[..], 1).unwrap();
        let error = streams(&zst[..zst.len() - 2], &[]).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
    }

    #[test]
    fn what_is_not_read_is_named() {
        let zlib = {
            let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            out.write_all(&b"text ".repeat(99)).unwrap();
            out.finish().unwrap()
        };
        for (bytes, kind) in [
            (&zlib[..], "zlib"),
            (b"\x04\x22\x4d\x18\x64\x40", "lz4"),
            (b"ARROW1\0\0\xff", "Arrow"),
            (b"BZh91AY&SY", "bzip2"),
        ] {
            let error = streams(bytes, &[]).unwrap_err().to_string();
            assert!(error.contains(&format!("{kind} data")), "{error}");
        }
        assert_eq!(streams(b"x^2 + y^2", &[]).unwrap().0[0].1, b"x^2 + y^2");
    }
}
