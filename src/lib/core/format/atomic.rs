//! Files and folders that appear whole or not at all.
//!
//! A file is written as `.NAME.tmp-PID` beside its target, flushed, synced and renamed. A folder is
//! built as `.NAME.tmp-PID` and renamed. What is dropped without `commit` is removed, and so it is
//! when a signal ends the process. What a killed process left is removed by the next one that
//! writes the same target: each holds its temporary locked, and a lock goes with its process.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::IoContext;
use crate::{Error, Result};

/// Unfinished files and folders of this process, for the end that a signal brings.
static TEMPORARIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn register_temporary(path: &Path) {
    if let Ok(mut list) = TEMPORARIES.lock() {
        list.push(path.to_owned());
    }
}

fn forget_temporary(path: &Path) {
    if let Ok(mut list) = TEMPORARIES.lock() {
        list.retain(|p| p != path);
    }
}

/// Removes what is unfinished; for the end of the process only.
pub fn remove_temporaries() {
    if let Ok(list) = TEMPORARIES.lock() {
        for path in list.iter() {
            let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
        }
    }
}

/// A file that has its name only after [`AtomicFile::commit`].
///
/// A target that exists and is not a regular file (`/dev/null`, a named pipe) is written directly.
pub struct AtomicFile {
    target: PathBuf,
    temporary: Option<PathBuf>,
    writer: BufWriter<File>,
}

impl AtomicFile {
    /// Starts a file that will be `target`.
    ///
    /// # Errors
    /// [`Error::Usage`] when the target exists and `force` is false; [`Error::Write`] when it
    /// cannot be created.
    pub fn create(target: &Path, force: bool) -> Result<AtomicFile> {
        let special = fs::metadata(target).is_ok_and(|m| !m.is_file() && !m.is_dir());
        if special {
            let file = File::options().write(true).open(target).writing(target)?;
            let writer = BufWriter::with_capacity(1 << 16, file);
            return Ok(AtomicFile { target: target.into(), temporary: None, writer });
        }
        refuse_existing(target, force)?;
        let temporary = temporary_name(target)?;
        clear_abandoned(target);
        let file = held(&temporary, |path| File::create(path)).writing(target)?;
        register_temporary(&temporary);
        let writer = BufWriter::with_capacity(1 << 16, file);
        Ok(AtomicFile { target: target.into(), temporary: Some(temporary), writer })
    }

    /// Writes `bytes` as the whole of `target`.
    ///
    /// # Errors
    /// As [`AtomicFile::create`] and [`AtomicFile::commit`].
    pub fn write(target: &Path, bytes: &[u8], force: bool) -> Result<()> {
        let mut file = AtomicFile::create(target, force)?;
        file.put(bytes)?;
        file.commit()
    }

    /// The name that the file will have.
    pub fn path(&self) -> &Path {
        &self.target
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// [`Error::Write`], for instance when the disk is full.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).writing(&self.target)
    }

    /// Hands what is buffered to the system.
    ///
    /// # Errors
    /// As [`AtomicFile::put`].
    pub fn flush(&mut self) -> Result<()> {
        self.writer.flush().writing(&self.target)
    }

    /// Goes back to the start of the file, for a header whose numbers are known only at the end.
    ///
    /// # Errors
    /// As [`AtomicFile::put`].
    pub fn rewrite_start(&mut self, bytes: &[u8]) -> Result<()> {
        use std::io::Seek;
        self.writer.flush().writing(&self.target)?;
        let file = self.writer.get_mut();
        file.rewind().writing(&self.target)?;
        file.write_all(bytes).writing(&self.target)?;
        file.seek(std::io::SeekFrom::End(0)).writing(&self.target)?;
        Ok(())
    }

    /// Flushes, syncs to the disk and gives the file its name.
    ///
    /// # Errors
    /// As [`AtomicFile::put`]; the temporary file is removed.
    pub fn commit(mut self) -> Result<()> {
        self.writer.flush().writing(&self.target)?;
        let Some(temporary) = self.temporary.clone() else { return Ok(()) };
        self.writer.get_ref().sync_all().writing(&self.target)?;
        fs::rename(&temporary, &self.target).writing(&self.target)?;
        forget_temporary(&temporary);
        self.temporary = None;
        sync_parent(&self.target)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let _ = fs::remove_file(&temporary);
            forget_temporary(&temporary);
        }
    }
}

/// A folder that has its name only after [`AtomicFolder::commit`].
pub struct AtomicFolder {
    target: PathBuf,
    temporary: Option<PathBuf>,
    /// Holds the lock of the temporary folder.
    _held: File,
}

impl AtomicFolder {
    /// Starts a folder that will be `target`, whose parent must exist.
    ///
    /// # Errors
    /// [`Error::Write`] when it cannot be created.
    pub fn create(target: &Path) -> Result<AtomicFolder> {
        let temporary = temporary_name(target)?;
        clear_abandoned(target);
        let create = |path: &Path| {
            let _ = fs::remove_dir_all(path);
            fs::create_dir(path)?;
            File::open(path)
        };
        let held = held(&temporary, create).writing(target)?;
        register_temporary(&temporary);
        Ok(AtomicFolder { target: target.into(), temporary: Some(temporary), _held: held })
    }

    /// Where to put the folder's files until it is committed.
    pub fn path(&self) -> &Path {
        self.temporary.as_deref().unwrap_or(&self.target)
    }

    /// Syncs and renames the folder; an older one of the same name is replaced.
    ///
    /// # Errors
    /// [`Error::Write`]; the temporary folder is removed.
    pub fn commit(mut self) -> Result<()> {
        let Some(temporary) = self.temporary.clone() else { return Ok(()) };
        File::open(&temporary).and_then(|d| d.sync_all()).writing(&self.target)?;
        if self.target.exists() {
            fs::remove_dir_all(&self.target).writing(&self.target)?;
        }
        fs::rename(&temporary, &self.target).writing(&self.target)?;
        forget_temporary(&temporary);
        self.temporary = None;
        sync_parent(&self.target)
    }
}

impl Drop for AtomicFolder {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let _ = fs::remove_dir_all(&temporary);
            forget_temporary(&temporary);
        }
    }
}

/// Refuses a target that exists, unless `force`.
///
/// # Errors
/// [`Error::Usage`] that names `--force`.
pub fn refuse_existing(target: &Path, force: bool) -> Result<()> {
    if target.is_dir() {
        return Err(Error::usage(format!("{}: is a folder; name a file", target.display())));
    }
    if !force && target.exists() {
        return Err(Error::usage(format!(
            "{}: exists already; give --force to overwrite it",
            target.display()
        )));
    }
    Ok(())
}

/// `.NAME.tmp-PID` beside `target`.
fn temporary_name(target: &Path) -> Result<PathBuf> {
    let stem = stem(target)
        .ok_or_else(|| Error::usage(format!("{}: names no file; give one", target.display())))?;
    Ok(target.with_file_name(format!("{stem}{}", std::process::id())))
}

/// `.NAME.tmp-`, which all temporaries of `target` begin with.
fn stem(target: &Path) -> Option<String> {
    Some(format!(".{}.tmp-", target.file_name()?.to_string_lossy()))
}

/// Creates a temporary and locks it. A process that clears may come between the two and remove it,
/// so it is made again until the name leads to what is locked.
fn held(path: &Path, create: impl Fn(&Path) -> std::io::Result<File>) -> std::io::Result<File> {
    loop {
        let file = create(path)?;
        // Where the file system has no locks, nothing is cleared either.
        let locked = file.try_lock().is_ok();
        let same = fs::metadata(path).is_ok_and(|m| {
            file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (m.dev(), m.ino()))
        });
        if same || !locked {
            return Ok(file);
        }
    }
}

/// Temporaries that lay in a folder when this process first wrote to it, by folder: large folders
/// are listed once, not for every file.
static FOUND: Mutex<Option<HashMap<PathBuf, Vec<String>>>> = Mutex::new(None);

/// Removes what killed processes left of `target`. What another process still writes is locked.
fn clear_abandoned(target: &Path) {
    let (Some(stem), Ok(mut found)) = (stem(target), FOUND.lock()) else { return };
    let folder = target.parent().unwrap_or(Path::new(""));
    let list = || {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| is_temporary_name(name)).collect()
    };
    let names: &mut Vec<String> =
        found.get_or_insert_default().entry(folder.to_owned()).or_insert_with(list);
    names.retain(|name| {
        let pid = name.strip_prefix(&stem).unwrap_or_default();
        if pid.is_empty() || !pid.bytes().all(|b| b.is_ascii_digit()) {
            return true;
        }
        let path = target.with_file_name(name);
        // The lock is held while the name goes, so that nobody can have taken it up in between.
        if let Ok(file) = File::open(&path)
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
            return false;
        }
        true
    });
}

/// Whether `name` is that of an unfinished file or folder of this toolkit.
pub fn is_temporary_name(name: &str) -> bool {
    name.starts_with('.') && name.contains(".tmp-")
}

/// Makes a rename in the folder of `path` durable.
fn sync_parent(path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    // Some file systems refuse to sync a folder; the rename itself has succeeded.
    let _ = File::open(parent).and_then(|d| d.sync_all());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_dropped_before_commit_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a");
        let mut file = AtomicFile::create(&target, false).unwrap();
        file.put(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_existing_target_needs_force() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a");
        AtomicFile::write(&target, b"one", false).unwrap();
        assert_eq!(AtomicFile::write(&target, b"two", false).unwrap_err().exit_code(), 2);
        assert_eq!(fs::read(&target).unwrap(), b"one");
        AtomicFile::write(&target, b"two", true).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"two");
    }

    #[test]
    fn a_committed_folder_replaces_the_older_one() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("step");
        for text in ["one", "two"] {
            let folder = AtomicFolder::create(&target).unwrap();
            fs::write(folder.path().join("x"), text).unwrap();
            folder.commit().unwrap();
        }
        assert_eq!(fs::read_to_string(target.join("x")).unwrap(), "two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_process_left_of_the_same_target_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        for name in [".a.tmp-1", ".a.tmp-2", ".a.tmp-2x", ".b.tmp-1", "a.tmp-1"] {
            fs::write(place(name), "half").unwrap();
        }
        fs::create_dir_all(place(".a.tmp-3/deep")).unwrap();
        let alive = File::open(place(".a.tmp-2")).unwrap();
        alive.lock().unwrap();
        AtomicFile::write(&place("a"), b"whole", false).unwrap();
        let mut left: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [".a.tmp-2", ".a.tmp-2x", ".b.tmp-1", "a", "a.tmp-1"]);
    }

    #[test]
    fn a_process_does_not_clear_what_it_writes_itself() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a");
        let mut first = AtomicFile::create(&target, false).unwrap();
        first.put(b"one").unwrap();
        clear_abandoned(&target);
        first.commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"one");
        let folder = AtomicFolder::create(&dir.path().join("f")).unwrap();
        clear_abandoned(&dir.path().join("f"));
        folder.commit().unwrap();
        assert!(dir.path().join("f").is_dir());
    }
}
