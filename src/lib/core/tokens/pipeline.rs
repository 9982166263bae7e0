//! Reader → workers → writer over bounded channels. What comes out does not depend on how many
//! workers there are, and memory is bounded by the number of batches under way.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::encode::{Encoded, Rule};
use super::reader::{Batch, Progress, ReadOptions, read_batches};
use super::source::Source;
use super::tokenizer::{Encoder, Tokenizer};
use crate::{Error, Result};

/// Who follows a long job along, and may stop it.
pub trait Watch {
    /// So many bytes of the inputs have been read and so many tokens made.
    fn progress(&mut self, bytes: u64, tokens: u64);
    /// An error to stop with, at the next batch.
    ///
    /// # Errors
    /// When the job is to stop.
    fn stop(&mut self) -> Result<()>;
}

/// What goes through the pipeline, and how.
pub struct Pipeline<'a> {
    /// The inputs.
    pub source: &'a Source,
    /// How they are read.
    pub read: &'a ReadOptions,
    /// What becomes of each document.
    pub rule: &'a Rule,
    /// The tokenizer; none for given ids.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Encoding threads.
    pub threads: usize,
}

impl Pipeline<'_> {
    /// Gives every batch after those of `after` to `write`, encoded and in order.
    ///
    /// # Errors
    /// The first in the order of the inputs, once everything before it was given; or that of
    /// `write` or `watch`.
    pub fn run(
        &self,
        after: Progress,
        watch: &mut dyn Watch,
        write: &mut dyn FnMut(Encoded) -> Result<()>,
    ) -> Result<()> {
        let threads = self.threads.max(1);
        let under_way = 3 * threads + 2;
        let count = AtomicU64::new(0);
        let (permit_back, permits) = bounded::<()>(under_way);
        for _ in 0..under_way {
            let _ = permit_back.send(()); // there is room for all of them
        }
        let (to_workers, batches) = bounded::<Batch>(under_way);
        let (to_writer, encoded) = bounded::<(u64, Result<Encoded>)>(under_way);
        std::thread::scope(|scope| {
            let count = &count;
            let reader = scope.spawn(move || {
                read_batches(self.source, self.read, after, count, &mut |batch| {
                    // The other ends are gone only when the writer has stopped with an error.
                    permits.recv().map_err(|_| Error::BrokenPipe)?;
                    to_workers.send(batch).map_err(|_| Error::BrokenPipe)
                })
            });
            for _ in 0..threads {
                let (batches, to_writer) = (batches.clone(), to_writer.clone());
                scope.spawn(move || {
                    let mut encoder = self.tokenizer.map(Encoder::new);
                    for batch in batches {
                        let outcome = self.rule.encode(&batch, encoder.as_mut());
                        if to_writer.send((batch.sequence, outcome)).is_err() {
                            break;
                        }
                    }
                });
            }
            drop((batches, to_writer));
            let mut waiting = BTreeMap::new();
            let (mut next, mut tokens) = (0, 0);
            loop {
                watch.stop()?;
                match encoded.recv_timeout(Duration::from_millis(100)) {
                    Ok((sequence, outcome)) => waiting.insert(sequence, outcome),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                while let Some(outcome) = waiting.remove(&next) {
                    let batch = outcome?;
                    next += 1;
                    tokens += batch.ids.len() as u64;
                    write(batch)?;
                    watch.progress(count.load(Ordering::Relaxed), tokens);
                    let _ = permit_back.send(()); // fails when the reader is at its end
                }
            }
            drop(encoded);
            reader.join().unwrap_or_else(|_| Err(Error::usage("the reading thread failed")))
        })
    }
}
