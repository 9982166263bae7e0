//! From paths to streams of plain bytes: files, folders, standard input, gzip, zstd and tar, each
//! recognised by its content and nested as people nest them (`release.tar.gz` of `.txt.zst`).
//!
//! - Folders are walked in byte order of their paths, tar archives in their own order; names that
//!   start with a dot are passed over in both.
//! - `include` and `exclude` patterns (`*` matches anything, `/` too) choose among the files of
//!   folders and archives by their path inside.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::IoContext;
use crate::{Error, Result};

/// How much of a stream is looked at to tell what it is.
const PREFIX_BYTES: usize = 1 << 16;
/// How deep archives and compressions may nest.
const MAX_DEPTH: usize = 6;
/// zstd windows up to 2 GiB, as `zstd --long=31` makes them.
const ZSTD_WINDOW_LOG: u32 = 31;

/// What to read, in order.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// Files, folders and `-`.
    pub paths: Vec<PathBuf>,
    /// Patterns of which a file in a folder or archive must match one, if there are any.
    pub include: Vec<String>,
    /// Patterns of which it must match none.
    pub exclude: Vec<String>,
}

/// One file of plain bytes.
pub struct Stream<'a> {
    /// What to call it in errors: the path, with `:member` for one of an archive.
    pub place: Arc<str>,
    /// The path, when the bytes are those of a file on the disk.
    pub path: Option<&'a Path>,
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

/// Counts the bytes that pass, for progress over packed inputs.
struct Counted<'a, R> {
    inner: R,
    count: &'a AtomicU64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(out)?;
        self.count.fetch_add(n as u64, Ordering::Relaxed);
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

fn packing(prefix: &[u8]) -> Packing {
    match prefix {
        [0x1f, 0x8b, ..] => Packing::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Packing::Zstd,
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, ..] => Packing::Unread("bzip2"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Packing::Unread("xz"),
        [b'P', b'K', 3, 4, ..] => Packing::Unread("zip"),
        _ if is_tar(prefix) => Packing::Tar,
        _ => Packing::Plain,
    }
}

/// Whether the first 512 bytes are a tar header: its checksum says so, in every dialect.
fn is_tar(prefix: &[u8]) -> bool {
    let Some(header) = prefix.get(..512) else { return false };
    let text = String::from_utf8_lossy(&header[148..156]);
    let digits = text.trim_matches([' ', '\0']);
    let sum: u32 = header
        .iter()
        .enumerate()
        .map(|(i, &b)| if (148..156).contains(&i) { 32 } else { u32::from(b) })
        .sum();
    header[0] != 0 && u32::from_str_radix(digits, 8) == Ok(sum)
}

impl Source {
    /// The size on the disk of everything named, or `None` when standard input is among it.
    pub fn total_bytes(&self) -> Option<u64> {
        let mut total = 0;
        for path in &self.paths {
            if path == Path::new("-") {
                return None;
            }
            let mut files = Vec::new();
            self.files(path, &mut files).ok()?;
            for file in files {
                total += std::fs::metadata(&file).ok()?.len();
            }
        }
        Some(total)
    }

    /// Whether standard input is read, which cannot be read twice.
    pub fn reads_stdin(&self) -> bool {
        self.paths.iter().any(|p| p == Path::new("-"))
    }

    /// Gives each stream to `visit`, in order. `count` grows by the bytes read from the disk.
    ///
    /// # Errors
    /// When a path cannot be read, a packing is damaged or not read, or `visit` fails.
    pub fn visit(
        &self,
        count: &AtomicU64,
        visit: &mut dyn FnMut(Stream) -> Result<()>,
    ) -> Result<()> {
        for path in &self.paths {
            if path == Path::new("-") {
                let mut input = Counted { inner: io::stdin().lock(), count };
                self.open("stdin", None, &mut input, false, 0, visit)?;
                continue;
            }
            let mut files = Vec::new();
            self.files(path, &mut files)?;
            if files.is_empty() {
                return Err(Error::input_at(path, "no file in this folder is chosen"));
            }
            for path in files {
                let file = File::open(&path).reading(&path)?;
                let mut input = Counted { inner: BufReader::with_capacity(1 << 16, file), count };
                let place = path.display().to_string();
                self.open(&place, Some(&path), &mut input, false, 0, visit)?;
            }
        }
        Ok(())
    }

    /// The files under `path`, which may be a file itself.
    fn files(&self, path: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
        let metadata = std::fs::metadata(path).reading(path)?;
        if !metadata.is_dir() {
            out.push(path.into());
            return Ok(());
        }
        let mut folders = vec![path.to_owned()];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).reading(&folder)? {
                let entry = entry.reading(&folder)?;
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                let child = entry.path();
                let metadata = std::fs::metadata(&child).reading(&child)?;
                if metadata.is_dir() && !entry.file_type().reading(&child)?.is_symlink() {
                    folders.push(child);
                } else if metadata.is_file()
                    && self.chooses(&child.strip_prefix(path).unwrap_or(&child).to_string_lossy())
                {
                    found.push(child);
                }
            }
        }
        found.sort_unstable_by(|a, b| {
            a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes())
        });
        out.append(&mut found);
        Ok(())
    }

    fn chooses(&self, name: &str) -> bool {
        let any =
            |patterns: &[String]| patterns.iter().any(|p| matches(p.as_bytes(), name.as_bytes()));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }

    fn open<'a>(
        &self,
        place: &str,
        path: Option<&'a Path>,
        input: &'a mut (dyn Read + 'a),
        packed: bool,
        depth: usize,
        visit: &mut dyn FnMut(Stream) -> Result<()>,
    ) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::input(place, format!("packed more than {MAX_DEPTH} times over")));
        }
        let failed = |e| packed_error(place, packed, e);
        let mut bytes = Prefixed::new(input).map_err(failed)?;
        match packing(&bytes.prefix) {
            Packing::Gzip => {
                let mut inner = flate2::read::MultiGzDecoder::new(&mut bytes);
                self.open(place, None, &mut inner, true, depth + 1, visit)
            }
            Packing::Zstd => {
                let mut inner = zstd::Decoder::new(&mut bytes).map_err(failed)?;
                inner.window_log_max(ZSTD_WINDOW_LOG).map_err(failed)?;
                self.open(place, None, &mut inner, true, depth + 1, visit)
            }
            Packing::Tar => self.open_tar(place, &mut bytes, depth, visit),
            Packing::Unread(kind) => Err(Error::input(
                place,
                format!(
                    "{kind} data, which is not read here; unpack it, or pack it with gzip or zstd"
                ),
            )),
            Packing::Plain => {
                let bytes = Prefixed { prefix: bytes.prefix, at: 0, inner: bytes.inner };
                visit(Stream { place: place.into(), path, bytes, packed })
            }
        }
    }

    fn open_tar(
        &self,
        place: &str,
        input: &mut dyn Read,
        depth: usize,
        visit: &mut dyn FnMut(Stream) -> Result<()>,
    ) -> Result<()> {
        let failed = |e| packed_error(place, true, e);
        let mut archive = tar::Archive::new(input);
        for entry in archive.entries().map_err(failed)? {
            let mut entry = entry.map_err(failed)?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let hidden = name.split('/').any(|part| part.starts_with('.') && part.len() > 1);
            if !entry.header().entry_type().is_file() || hidden || !self.chooses(&name) {
                continue;
            }
            self.open(&format!("{place}:{name}"), None, &mut entry, true, depth + 1, visit)?;
        }
        Ok(())
    }
}

/// Whether `name` matches `pattern`, in which `*` stands for any bytes and `?` for one. A pattern
/// without `/` may also match the last part of the path alone.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if whole_match(pattern, name) {
        return true;
    }
    let last = name.rsplit(|&b| b == b'/').next().unwrap_or(name);
    !pattern.contains(&b'/') && whole_match(pattern, last)
}

fn whole_match(pattern: &[u8], name: &[u8]) -> bool {
    // The last star and the place in the name up to which it has matched.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, from)) => {
                    (p, n) = (at + 1, from + 1);
                    star = Some((at, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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

    /// Every stream of one file with these bytes: (place without the folder, bytes).
    fn streams(name: &str, bytes: &[u8], source: Source) -> Result<Vec<(String, Vec<u8>)>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let source = Source { paths: vec![path], ..source };
        let mut found = Vec::new();
        source.visit(&AtomicU64::new(0), &mut |mut stream| {
            let mut out = Vec::new();
            while stream.read_into(7, &mut out)? > 0 {}
            let place = stream.place.rsplit("dir/").next().unwrap_or_default();
            found.push((place.rsplit('/').next().unwrap_or_default().to_owned(), out));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn packings_are_told_by_content_and_unpacked_through_each_other() {
        let zst = zstd::encode_all(&b"one\n"[..], 1).unwrap();
        let archive = gzip(&tar(&[("a/x", b"plain"), ("a/y", &zst), ("a/._y", b"junk")]));
        let found = streams("misnamed.txt", &archive, Source::default()).unwrap();
        let bytes: Vec<&[u8]> = found.iter().map(|(_, b)| b.as_slice()).collect();
        assert_eq!(bytes, [&b"plain"[..], b"one\n"]);
        let two_members = [gzip(b"a"), gzip(b"b")].concat();
        assert_eq!(streams("t", &two_members, Source::default()).unwrap()[0].1, b"ab");
        assert_eq!(streams("t", b"", Source::default()).unwrap()[0].1, b"");
    }

    #[test]
    fn archives_are_chosen_from_by_pattern() {
        let archive = tar(&[("r/train/news-1", b"1"), ("r/held/news-2", b"2"), ("r/README", b"3")]);
        let source = Source {
            include: vec!["*news*".into()],
            exclude: vec!["*/held/*".into()],
            ..Source::default()
        };
        let found = streams("t", &archive, source).unwrap();
        assert_eq!(found, [("news-1".to_owned(), b"1".to_vec())]);
    }

    #[test]
    fn a_cut_archive_is_an_error_of_the_input() {
        let whole = gzip(&b"text of some length, so that there is something to cut".repeat(50));
        for cut in [3, whole.len() / 2, whole.len() - 1] {
            let error = streams("t", &whole[..cut], Source::default()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{cut}: {error}");
        }
        let zst = zstd::encode_all(&b"some text"[..], 1).unwrap();
        let error = streams("t", &zst[..zst.len() - 2], Source::default()).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
    }

    #[test]
    fn stars_match_across_folders() {
        assert!(matches(b"*.txt", b"a/b.txt") && matches(b"a*c", b"abbc"));
        assert!(!matches(b"*.txt", b"a/b.txt.gz") && !matches(b"b/*", b"a/b/c"));
        assert!(matches(b"b?d*", b"a/bcd") && matches(b"*", b""));
    }
}
