//! Learning a vocabulary from the inputs, ahead of encoding them.

use std::sync::atomic::AtomicU64;

use crossbeam_channel::bounded;

use super::encode::Rule;
use super::reader::{Progress, ReadOptions, read_batches};
use super::source::Source;
use super::tokenizer::Tokenizer;
use crate::{Error, Result};

/// Learns a vocabulary of `size` ids from the first `most_bytes` bytes of text, those held out for
/// validation excepted.
///
/// # Errors
/// When the inputs cannot be read (twice: standard input cannot) or `size` is too small.
pub fn train_tokenizer(
    source: &Source,
    read: &ReadOptions,
    rule: &Rule,
    size: usize,
    most_bytes: u64,
) -> Result<Tokenizer> {
    if source.reads_stdin() {
        return Err(Error::usage(
            "--train-tokenizer reads the inputs twice, which standard input does not allow; give \
             files",
        ));
    }
    let (give, texts) = bounded::<String>(1024);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut left = most_bytes;
            read_batches(source, read, Progress::default(), &AtomicU64::new(0), &mut |batch| {
                for text in rule.training_texts(&batch)? {
                    let bytes = text.len() as u64;
                    if bytes > left || give.send(text).is_err() {
                        return Err(Error::BrokenPipe); // enough text
                    }
                    left -= bytes;
                }
                Ok(())
            })
        });
        let learned = Tokenizer::train(texts.into_iter(), size);
        match reader.join().unwrap_or_else(|_| Err(Error::usage("the reading thread failed"))) {
            Err(error) if !matches!(error, Error::BrokenPipe) => Err(error),
            _ => learned,
        }
    })
}
