//! Learning a vocabulary from the inputs, ahead of encoding them.

use std::sync::atomic::AtomicU64;

use crossbeam_channel::bounded;

use super::bpe::ByteBpe;
use super::encode::Rule;
use super::pieces::Pieces;
use super::reader::{Cursor, ReadOptions, read_batches};
use super::source::Source;
use super::tokenizer::Tokenizer;
use super::tokenizer_json;
use crate::{Error, Result};

/// Pieces longer than this many bytes teach a vocabulary nothing and cost much.
const LONGEST_LEARNED: usize = 256;

impl Tokenizer {
    /// Learns a byte-level BPE vocabulary of `size` ids (or fewer, when the text has no more pairs
    /// that occur twice): 256 bytes, merges, and the end of text as the last id.
    ///
    /// Pieces above 256 bytes are left out of the counts.
    ///
    /// # Errors
    /// When `size` is below 257.
    pub fn train(texts: impl Iterator<Item = String> + Send, size: usize) -> Result<Self> {
        use tokenizers::Trainer;
        use tokenizers::models::bpe::{BPE, BpeTrainer};
        if size < 257 {
            return Err(Error::usage(format!(
                "--train-tokenizer {size}: need at least 257 (256 bytes and the end of text)"
            )));
        }
        let failed = |e: tokenizers::Error| Error::usage(format!("learning a tokenizer: {e}"));
        let table = tokenizer_json::byte_chars();
        let mut trainer = BpeTrainer::builder()
            .vocab_size(size - 1)
            .min_frequency(2)
            .show_progress(false)
            .initial_alphabet(table.into_iter().collect())
            .build();
        let words = |text: &str| {
            let words = Pieces::new(text)
                .filter(|p| p.len() <= LONGEST_LEARNED)
                .map(|p| tokenizer_json::bytes_to_text(p.as_bytes(), &table));
            Ok(words.collect())
        };
        trainer.feed(texts, words).map_err(failed)?;
        let mut model = BPE::default();
        trainer.train(&mut model).map_err(failed)?;
        let mut tokens: Vec<(u32, String)> =
            model.get_vocab().into_iter().map(|(text, id)| (id, text)).collect();
        tokens.sort_unstable();
        // In id order, an id is its merge's rank.
        let chars = tokenizer_json::char_bytes();
        let bytes = tokens
            .iter()
            .map(|(_, text)| tokenizer_json::text_to_bytes(text, &chars).unwrap_or_default())
            .collect();
        let bpe = ByteBpe::from_ranks(bytes)
            .map_err(|e| Error::usage(format!("learning a tokenizer: {e}")))?;
        let eos = bpe.size() as u32;
        Self::of_bpe("trained", bpe, eos)
    }
}

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
            read_batches(source, read, Cursor::default(), &AtomicU64::new(0), &mut |batch| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learned_vocabulary_has_the_size_asked_for_and_loses_nothing() {
        let text = "the cat sat on the mat and the cat sat again\n".repeat(20);
        let learned = Tokenizer::train([text.clone()].into_iter(), 270).unwrap();
        assert_eq!((learned.vocab_size(), learned.eos_id()), (270, Some(269)));
        let odd = format!("{text} Ünïcode 日本 \u{0} end");
        let ids = learned.encode(&odd).unwrap();
        assert!(ids.len() < odd.len());
        assert_eq!(learned.decode(&ids), odd.as_bytes());
        let bytes = learned.token_bytes().unwrap();
        assert_eq!(ids.iter().map(|&id| bytes[id as usize] as usize).sum::<usize>(), odd.len());
        assert_eq!(bytes[269], 0);
    }
}
