//! Where records go: a sink, or the file of an interrupted run; and when to stop.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use ao_core::cli::{Progress, Sink};
use ao_core::format::jsonl;
use ao_core::score::{Design, SequenceRecord, Totals};
use ao_core::{Error, Result};
use serde::Serialize;

/// A place for records.
pub enum Out {
    /// Stdout, or a file that appears whole.
    Sink(Sink),
    /// A file that grows record by record (`--resume`).
    Append(PathBuf, BufWriter<File>),
}

impl Out {
    /// Goes on with a file.
    pub fn append(path: &Path, file: File) -> Out {
        Out::Append(path.into(), BufWriter::with_capacity(1 << 16, file))
    }

    /// Writes a record as a line.
    ///
    /// # Errors
    /// As [`Sink::put`].
    pub fn put<T: Serialize>(&mut self, record: &T) -> Result<()> {
        let line = jsonl::line(record)?;
        match self {
            Out::Sink(sink) => sink.put(&line),
            Out::Append(path, file) => {
                file.write_all(&line).map_err(|e| Error::write(path.as_path(), e))
            }
        }
    }

    /// Hands on what is buffered.
    ///
    /// # Errors
    /// As [`Sink::put`].
    pub fn flush(&mut self) -> Result<()> {
        match self {
            Out::Sink(sink) => sink.flush(),
            Out::Append(path, file) => file.flush().map_err(|e| Error::write(path.as_path(), e)),
        }
    }

    /// Makes the file whole.
    ///
    /// # Errors
    /// As [`Sink::put`].
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        match self {
            Out::Sink(sink) => sink.finish(),
            Out::Append(path, file) => {
                file.get_ref().sync_all().map_err(|e| Error::write(path.as_path(), e))
            }
        }
    }
}

/// Takes finished sequences: writes them, adds them up, tells people.
pub struct Emitter {
    out: Out,
    /// The sums so far.
    pub totals: Totals,
    progress: Progress,
    emitted: u64,
    tokens: u64,
    /// The standard error at which enough sequences are scored.
    target: Option<f64>,
    /// Whether it is reached.
    pub reached: bool,
    /// The standard error when it was last looked at.
    error: Option<f64>,
}

impl Emitter {
    /// Over `left` sequences of the design given, behind those `done` before.
    pub fn new(
        out: Out,
        design: Design,
        done: &[SequenceRecord],
        left: u64,
        target: Option<f64>,
        quiet: bool,
    ) -> Emitter {
        let mut totals = Totals::new(design);
        done.iter().for_each(|record| totals.add(record));
        let progress = Progress::new("sequences", Some(left), quiet);
        Emitter {
            out,
            totals,
            progress,
            emitted: 0,
            tokens: 0,
            target,
            reached: false,
            error: None,
        }
    }

    /// Writes records in order; those behind the one that reaches the target are dropped.
    ///
    /// # Errors
    /// A score that is not finite, or a sink that cannot be written.
    pub fn emit(&mut self, records: Vec<SequenceRecord>) -> Result<()> {
        for record in records {
            if self.reached {
                break;
            }
            if !record.nll_nats.is_finite() {
                return Err(Error::NonFinite(format!(
                    "sequence {}: its NLL is {}; check the weights, or score in f32",
                    record.index, record.nll_nats
                )));
            }
            self.totals.add(&record);
            self.out.put(&record)?;
            self.emitted += 1;
            self.tokens += record.token_count;
            if let Some((target, error)) = self.target.zip(self.totals.whole_error()) {
                self.reached = error <= target;
                self.error = Some(error);
            }
        }
        let error = self.error.map_or(String::new(), |e| format!("  standard error {e:.5}"));
        self.tell(&format!("{:.4} nats/token{error}", self.totals.mean()));
        self.out.flush()
    }

    /// Progress without a finished sequence.
    pub fn tell(&mut self, message: &str) {
        self.progress.also("tokens", self.tokens);
        self.progress.set(self.emitted, message);
    }

    /// Ends with the summary.
    ///
    /// # Errors
    /// As [`Out::finish`].
    pub fn finish<T: Serialize>(mut self, summary: &T) -> Result<()> {
        self.progress.finish();
        self.out.put(summary)?;
        self.out.finish()
    }
}
