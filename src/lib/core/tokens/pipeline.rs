//! Reader → workers → writer over bounded channels. What comes out does not depend on how many
//! workers there are, and memory is bounded by the number of batches under way.
//!
//! Neither reader nor workers are waited for when the job is to stop: at a signal one may hang on a
//! pipe that brings nothing more, another be in the middle of a document of a gigabyte.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::encode::{Encoded, Rule};
use super::reader::{Batch, Cursor, ReadOptions, read_batches};
use super::source::Source;
use super::tokenizer::{Encoder, Tokenizer};
use crate::{Error, Result};

/// Who follows a long job along, and may stop it.
pub trait Watch {
    /// The inputs are about to be encoded: from here on a stop can be gone on from.
    fn begin(&mut self) {}
    /// So many bytes of the inputs have been read and so many tokens made.
    fn progress(&mut self, bytes: u64, tokens: u64);
    /// A document was left out, for this reason.
    fn complain(&mut self, reason: &str);
    /// Something that people have to know.
    fn note(&mut self, text: &str);
    /// An error to stop with, at the next batch.
    ///
    /// # Errors
    /// When the job is to stop.
    fn stop(&mut self) -> Result<()>;
}

/// What goes through the pipeline, and how.
pub struct Pipeline {
    /// The inputs.
    pub source: Source,
    /// How they are read.
    pub read: ReadOptions,
    /// What becomes of each document.
    pub rule: Rule,
    /// The tokenizer; none for given ids.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Encoding threads; 0 does everything in the calling thread.
    pub threads: usize,
}

impl Pipeline {
    /// Gives every batch after those of `after` to `write`, encoded and in order.
    ///
    /// # Errors
    /// The first in the order of the inputs, once everything before it was given; or that of
    /// `write` or `watch`.
    pub fn run(
        &self,
        after: Cursor,
        watch: &mut dyn Watch,
        write: &mut dyn FnMut(Encoded) -> Result<()>,
    ) -> Result<()> {
        let count = Arc::new(AtomicU64::new(0));
        if self.threads == 0 {
            let mut encoder = self.tokenizer.as_deref().map(Encoder::new);
            return read_batches(&self.source, &self.read, after, &count, &mut |batch| {
                watch.stop()?;
                write(self.rule.encode(&batch, encoder.as_mut())?)
            });
        }
        let under_way = 3 * self.threads + 2;
        let (permit_back, permits) = bounded::<()>(under_way);
        for _ in 0..under_way {
            let _ = permit_back.send(()); // there is room for all of them
        }
        let (to_workers, batches) = bounded::<Batch>(under_way);
        let (to_writer, encoded) = bounded::<(u64, Result<Encoded>)>(under_way);
        let (reader_done, outcome_of_reader) = bounded::<Result<()>>(1);
        let (source, read) = (self.source.clone(), self.read.clone());
        let reader_count = Arc::clone(&count);
        std::thread::spawn(move || {
            let outcome = read_batches(&source, &read, after, &reader_count, &mut |batch| {
                // The other ends are gone only when the writer has stopped with an error.
                permits.recv().map_err(|_| Error::BrokenPipe)?;
                to_workers.send(batch).map_err(|_| Error::BrokenPipe)
            });
            let _ = reader_done.send(outcome);
        });
        for _ in 0..self.threads {
            let (batches, to_writer) = (batches.clone(), to_writer.clone());
            let (rule, tokenizer) = (self.rule.clone(), self.tokenizer.clone());
            std::thread::spawn(move || work(&rule, tokenizer.as_deref(), &batches, &to_writer));
        }
        // Only the workers hold their ends, so that one side knows when the other is gone.
        drop((to_writer, batches));
        write_in_order(&encoded, &permit_back, &count, watch, write)?;
        let lost = || Err(Error::usage("the reading thread failed"));
        outcome_of_reader.recv().unwrap_or_else(|_| lost())
    }
}

/// Encodes batches until there are no more, or nobody wants them.
fn work(
    rule: &Rule,
    tokenizer: Option<&Tokenizer>,
    batches: &Receiver<Batch>,
    to_writer: &Sender<(u64, Result<Encoded>)>,
) {
    let mut encoder = tokenizer.map(Encoder::new);
    for batch in batches {
        // A batch that is lost would be waited for; the panic has printed its line.
        let outcome = catch_unwind(AssertUnwindSafe(|| rule.encode(&batch, encoder.as_mut())))
            .unwrap_or_else(|_| Err(Error::input(&batch.place, "encoding it failed")));
        if to_writer.send((batch.sequence, outcome)).is_err() {
            break;
        }
    }
}

/// Gives the batches to `write` in their order, and each one's permit back to the reader.
fn write_in_order(
    encoded: &Receiver<(u64, Result<Encoded>)>,
    permit_back: &Sender<()>,
    count: &AtomicU64,
    watch: &mut dyn Watch,
    write: &mut dyn FnMut(Encoded) -> Result<()>,
) -> Result<()> {
    let mut waiting = BTreeMap::new();
    let (mut next, mut tokens) = (0, 0);
    loop {
        watch.stop()?;
        match encoded.recv_timeout(Duration::from_millis(100)) {
            Ok((sequence, outcome)) => waiting.insert(sequence, outcome),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        while let Some(outcome) = waiting.remove(&next) {
            let batch = outcome?;
            next += 1;
            batch.complaints.iter().for_each(|reason| watch.complain(reason));
            tokens += batch.ids.len() as u64;
            write(batch)?;
            watch.progress(count.load(Ordering::Relaxed), tokens);
            let _ = permit_back.send(()); // fails when the reader is at its end
        }
    }
}
