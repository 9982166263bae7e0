//! JSON lines: one object a line, each with `"type"`.
//!
//! - A writer puts one record on one line and only ever adds keys. Non-finite numbers are `null`
//!   (serde_json writes them so) and the record carries a `note`.
//! - A reader skips types and keys that it does not know; a line that is no JSON object is an error
//!   that names the line.
//! - An append-only file is locked and cut to its last whole line before it is continued, so that
//!   two programs never write one file.

use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::IoContext;
use crate::{Error, Result};

/// One record as its line, newline included.
///
/// # Errors
/// When the value cannot be JSON, which is a mistake of the caller.
pub fn line<T: Serialize>(record: &T) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(record)
        .map_err(|e| Error::usage(format!("a record cannot be written as JSON: {e}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Reads objects line by line. Empty lines are skipped.
pub struct Reader<R> {
    input: R,
    path: PathBuf,
    line: u64,
    buffer: Vec<u8>,
}

impl Reader<Box<dyn BufRead + Send>> {
    /// Opens `path`; `-` is stdin.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            let stdin: Box<dyn BufRead + Send> = Box::new(BufReader::new(std::io::stdin()));
            return Ok(Reader::new(stdin, Path::new("stdin")));
        }
        let file = File::open(path).reading(path)?;
        let file: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(1 << 16, file));
        Ok(Reader::new(file, path))
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads from `input`; `path` is named in errors.
    pub fn new(input: R, path: &Path) -> Self {
        Reader { input, path: path.into(), line: 0, buffer: Vec::new() }
    }

    /// Where the last record came from, for an error: `path, line N`.
    pub fn place(&self) -> String {
        format!("{}, line {}", self.path.display(), self.line)
    }

    /// The next line that is not empty, as JSON; `None` at the end.
    ///
    /// # Errors
    /// When reading fails or the line is not JSON; the error names the line.
    pub fn next_value(&mut self) -> Result<Option<Value>> {
        loop {
            self.buffer.clear();
            let read = self.input.read_until(b'\n', &mut self.buffer).reading(&self.path)?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            if self.buffer.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            return match serde_json::from_slice(&self.buffer) {
                Ok(value) => Ok(Some(value)),
                Err(e) => Err(Error::input(self.place(), format!("not JSON: {e}"))),
            };
        }
    }

    /// The next object; `None` at the end.
    ///
    /// # Errors
    /// As [`Reader::next_value`], and when the line is not an object.
    pub fn next_object(&mut self) -> Result<Option<Map<String, Value>>> {
        match self.next_value()? {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(_) => Err(Error::input(self.place(), "not a JSON object; give one object a line")),
        }
    }
}

/// Opens an append-only file, cut to its last whole line; creates it if missing. The file is locked
/// for this process until it is closed.
///
/// # Errors
/// When the file cannot be read or written, or another program has it open for appending.
pub fn open_append(path: &Path) -> Result<File> {
    let mut file = File::options().read(true).append(true).create(true).open(path).writing(path)?;
    // A file system without locks has no such protection, and is no reason to stop.
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        return Err(Error::usage(format!(
            "{}: another program is appending to it; wait for it, or name another file",
            path.display()
        )));
    }
    let length = file.metadata().reading(path)?.len();
    let whole = end_of_last_line(&mut file, length).reading(path)?;
    if whole < length {
        file.set_len(whole).writing(path)?;
    }
    file.flush().writing(path)?;
    Ok(file)
}

/// The offset behind the last newline among the first `length` bytes, looked for from the end.
fn end_of_last_line(file: &mut File, length: u64) -> std::io::Result<u64> {
    use std::io::{Read, Seek, SeekFrom};
    let mut end = length;
    let mut block = vec![0; 4096];
    while end > 0 {
        let start = end.saturating_sub(4096);
        let part = &mut block[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|&b| b == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_append_only_file_loses_its_broken_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.jsonl");
        let long = "x".repeat(10_000);
        std::fs::write(&path, format!("{{\"a\":1}}\n{{\"b\":\"{long}")).unwrap();
        let mut file = open_append(&path).unwrap();
        file.write_all(b"{\"c\":2}\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"a\":1}\n{\"c\":2}\n");
    }

    #[test]
    fn a_file_is_appended_to_by_one_program_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.jsonl");
        std::fs::write(&path, "{\"a\":1}\n{\"b\"").unwrap();
        let first = File::options().append(true).open(&path).unwrap();
        first.lock().unwrap();
        let error = open_append(&path).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("another program is appending to it"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"a\":1}\n{\"b\"");
        drop(first);
        open_append(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"a\":1}\n");
    }

    #[test]
    fn a_line_that_is_no_object_is_named() {
        let mut reader = Reader::new(&b"{\"a\":1}\n\n[2]\n"[..], Path::new("f"));
        assert!(reader.next_object().unwrap().is_some());
        let text = reader.next_object().unwrap_err().to_string();
        assert!(text.starts_with("f, line 3: not a JSON object"), "{text}");
    }
}
