//! How far an interrupted evaluation came.
//!
//! `--resume FILE.jsonl` appends to the file in place. A file that a kill left is cut to its last
//! whole line; its run record must be that of the run at hand in all that decides numbers.

use std::fs::File;
use std::path::Path;

use serde_json::{Map, Value};

use super::{Fingerprint, ScoreFile, SequenceRecord};
use crate::error::IoContext;
use crate::format::jsonl;
use crate::{Error, Result};

/// A file to go on with.
#[derive(Debug)]
pub struct Resumed {
    /// The file, at its end.
    pub file: File,
    /// What it holds already.
    pub done: Vec<SequenceRecord>,
    /// Whether nothing is in it yet, not even a run record.
    pub empty: bool,
    /// Whether it has its summary: nothing is left to do.
    pub complete: bool,
}

/// Opens `path` to go on with the run that `run` describes, whose sequences have the numbers
/// `first`, `first + 1`, …; a missing file is a new one.
///
/// # Errors
/// When the file cannot be read or written, is of another configuration, or its sequences are not
/// these.
pub fn resume(path: &Path, run: &Map<String, Value>) -> Result<Resumed> {
    let known = path.exists();
    if known && !path.is_file() {
        return Err(Error::usage(format!("--resume {}: is no regular file", path.display())));
    }
    let file = jsonl::open_append(path)?;
    if file.metadata().reading(path)?.len() == 0 {
        return Ok(Resumed { file, done: Vec::new(), empty: true, complete: false });
    }
    let found = ScoreFile::read(path)?;
    let (theirs, ours) = (Fingerprint::of(&found.run, true), Fingerprint::of(run, true));
    if let Some((key, a, b)) = theirs.difference(&ours) {
        return Err(Error::input_at(
            path,
            format!(
                "was begun with {key} {a}, now it is {b}; give the same options or another file"
            ),
        ));
    }
    if let Some(pair) = found.sequences.windows(2).find(|w| w[1].index <= w[0].index) {
        return Err(Error::input_at(
            path,
            format!(
                "sequence {} stands behind {}; it was not written by one run",
                pair[1].index, pair[0].index
            ),
        ));
    }
    let complete = found.summary.is_some();
    Ok(Resumed { file, done: found.sequences, empty: false, complete })
}
