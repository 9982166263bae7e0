//! From paths to streams of plain bytes: files, folders and standard input, unpacked by
//! [`super::packed`].
//!
//! - Folders are walked in byte order of their paths, tar archives in their own order.
//! - Names that start with a dot, links to folders and devices are passed over in both, and counted.
//! - `include` and `exclude` patterns (`*` matches anything, `/` too) choose among the files of
//!   folders and archives by their path inside. What they leave out is counted too.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use walkdir::WalkDir;

use super::choice::{Choice, PassedOver};
use super::packed::{Stream, Unpacker};
use crate::error::IoContext;
use crate::{Error, Result};

/// What to read, in order.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// Files, folders and `-`.
    pub paths: Vec<PathBuf>,
    choice: Choice,
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

impl Source {
    /// Everything under `paths` that the patterns choose.
    ///
    /// # Errors
    /// When a pattern is malformed.
    pub fn new(paths: Vec<PathBuf>, include: &[String], exclude: &[String]) -> Result<Source> {
        Ok(Source { paths, choice: Choice::new(include, exclude)? })
    }

    /// The same choice of the files under one path.
    pub(super) fn only(&self, path: &Path) -> Source {
        Source { paths: vec![path.into()], choice: self.choice.clone() }
    }

    /// The size on the disk of everything named, or `None` when standard input is among it.
    pub fn total_bytes(&self) -> Option<u64> {
        let mut total = 0;
        for path in &self.paths {
            if path == Path::new("-") {
                return None;
            }
            for file in self.files(path, &mut PassedOver::default()).ok()? {
                total += std::fs::metadata(&file).ok()?.len();
            }
        }
        Some(total)
    }

    /// Whether standard input is read, which cannot be read twice.
    pub fn reads_stdin(&self) -> bool {
        self.paths.iter().any(|p| p == Path::new("-"))
    }

    /// Gives each stream to `visit`, in order; what was passed over behind the last one is returned.
    /// `count` grows by the bytes read from the disk.
    ///
    /// # Errors
    /// When a path cannot be read, a packing is damaged or not read, nothing of a folder or archive
    /// is chosen, or `visit` fails.
    pub(super) fn visit(
        &self,
        count: &AtomicU64,
        visit: &mut dyn FnMut(Stream) -> Result<()>,
    ) -> Result<PassedOver> {
        let mut unpacker = Unpacker::new(&self.choice, visit);
        for path in &self.paths {
            let before = unpacker.streams;
            if path == Path::new("-") {
                let mut input = Counted { inner: io::stdin().lock(), count };
                unpacker.open("stdin", None, &mut input)?;
            } else {
                for path in self.files(path, &mut unpacker.passed_over)? {
                    let file = File::open(&path).reading(&path)?;
                    let file = BufReader::with_capacity(1 << 16, file);
                    let mut input = Counted { inner: file, count };
                    unpacker.open(&path.display().to_string(), Some(&path), &mut input)?;
                }
            }
            if unpacker.streams == before {
                return Err(Error::input_at(
                    path,
                    "no file in it is chosen; check --include and --exclude",
                ));
            }
        }
        Ok(unpacker.passed_over)
    }

    /// The files under `path`, which may be a file itself.
    fn files(&self, path: &Path, passed_over: &mut PassedOver) -> Result<Vec<PathBuf>> {
        if !std::fs::metadata(path).reading(path)?.is_dir() {
            return Ok(vec![path.into()]);
        }
        let mut found = Vec::new();
        let mut walk = WalkDir::new(path).min_depth(1).into_iter();
        while let Some(entry) = walk.next() {
            let entry = entry.map_err(|e| {
                let at = e.path().unwrap_or(path).to_owned();
                Error::read(at, e.into_io_error().unwrap_or_else(|| io::ErrorKind::Other.into()))
            })?;
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if entry.file_type().is_dir() {
                if hidden {
                    passed_over.skipped += 1;
                    walk.skip_current_dir();
                }
                continue;
            }
            let child = entry.path();
            let name = child.strip_prefix(path).unwrap_or(child).to_string_lossy();
            // A link to a file is that file; a link to a folder may lead round in a circle.
            if hidden || !std::fs::metadata(child).reading(child)?.is_file() {
                passed_over.skipped += 1;
            } else if !self.choice.chooses(&name) {
                passed_over.excluded += 1;
            } else {
                found.push(entry.into_path());
            }
        }
        found.sort_unstable_by(|a, b| {
            a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes())
        });
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chooses(pattern: &str, name: &str) -> bool {
        Choice::new(&[pattern.into()], &[]).unwrap().chooses(name)
    }

    #[test]
    fn stars_match_across_folders() {
        assert!(chooses("*.txt", "a/b.txt") && chooses("a*c", "abbc") && chooses("b.*", "a/b.txt"));
        assert!(!chooses("*.txt", "a/b.txt.gz") && !chooses("b/*", "a/b/c"));
        assert!(chooses("b?d*", "a/bcd") && chooses("*", "") && chooses("{a,b}/*", "b/c"));
        let error = Choice::new(&["[".into()], &[]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().starts_with("--include"), "{error}");
    }

    #[test]
    fn what_a_folder_holds_is_read_or_counted() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b/x", "b-c", ".git/x", "a.log", ".hidden"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        std::os::unix::fs::symlink("b", dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink("b/x", dir.path().join("y")).unwrap();
        let source = Source::new(vec![dir.path().into()], &[], &["*.log".into()]).unwrap();
        let mut found = Vec::new();
        let rest = source.visit(&AtomicU64::new(0), &mut |stream| {
            found.push((stream.place.rsplit('/').next().unwrap().to_owned(), stream.passed_over));
            Ok(())
        });
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b-c", "x", "y"], "byte order of paths: - comes before /");
        assert_eq!(found[0].1, PassedOver { excluded: 1, skipped: 3 });
        assert_eq!(rest.unwrap(), PassedOver::default());
    }
}
