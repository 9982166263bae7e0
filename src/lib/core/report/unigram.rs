//! The unigram baseline: the best score that needs no context.

use serde::{Deserialize, Serialize};

use crate::tokens::Dataset;
use crate::{Error, Result};

/// Tokens read at a time.
const CHUNK: u64 = 1 << 20;

/// The score of the training text's token frequencies on held-out text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unigram {
    /// Cross-entropy on the held-out tokens.
    pub nll_nats_per_token: f64,
    /// exp of it.
    pub perplexity: f64,
    /// Bits for each byte of held-out text, where the manifest counts them.
    pub bits_per_byte: Option<f64>,
}

/// Scores all tokens of `val` by the frequencies of `train`, each id counted once more than seen
/// (Laplace), so that an id which training lacks costs ln(N + V) and not infinity.
///
/// # Errors
/// When a shard cannot be read, a folder is empty, or the vocabularies differ in size.
pub fn unigram_baseline(train: &Dataset, val: &Dataset) -> Result<Unigram> {
    let ids = train.vocab_size();
    if val.vocab_size() != ids {
        return Err(Error::input_at(
            val.path(),
            format!(
                "vocab_size {}, the training shards have {ids}; give shards of one tokenizer",
                val.vocab_size()
            ),
        ));
    }
    for data in [train, val] {
        if data.token_count() == 0 {
            return Err(Error::input_at(
                data.path(),
                "holds no tokens; tokenize some text into it",
            ));
        }
    }
    let seen = counts(train)?;
    let total = (train.token_count() + ids as u64) as f64;
    let nats: f64 = counts(val)?
        .iter()
        .zip(&seen)
        .map(|(&held_out, &seen)| held_out as f64 * (total / (seen + 1) as f64).ln())
        .sum();
    let mean = nats / val.token_count() as f64;
    let bytes = val.manifest().totals.bytes_of_text;
    let bits_per_byte = (bytes > 0).then(|| nats / std::f64::consts::LN_2 / bytes as f64);
    Ok(Unigram { nll_nats_per_token: mean, perplexity: mean.exp(), bits_per_byte })
}

/// How often each id occurs.
fn counts(data: &Dataset) -> Result<Vec<u64>> {
    let mut counts = vec![0u64; data.vocab_size()];
    let mut ids = Vec::new();
    let mut at = 0;
    while at < data.token_count() {
        let part = CHUNK.min(data.token_count() - at);
        ids.clear();
        data.read(at, part as usize, &mut ids)?; // refuses ids at or above vocab_size
        for &id in &ids {
            counts[id as usize] += 1;
        }
        at += part;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::shard::{Width, header};
    use crate::tokens::OpenOptions;

    /// A single shard file with these ids.
    fn shard(folder: &std::path::Path, name: &str, ids: &[u32], vocab_size: usize) -> Dataset {
        let mut bytes = header(Width::U16, ids.len() as u64).to_vec();
        Width::U16.append(ids, &mut bytes).unwrap();
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        let options = OpenOptions { vocab_size: Some(vocab_size), ..OpenOptions::default() };
        Dataset::open(&path, &options).unwrap()
    }

    #[test]
    fn an_evenly_used_vocabulary_costs_its_logarithm() {
        let dir = tempfile::tempdir().unwrap();
        let train = shard(dir.path(), "train.bin", &[0, 1, 2, 3], 4);
        let val = shard(dir.path(), "val.bin", &[3, 3, 1], 4);
        let unigram = unigram_baseline(&train, &val).unwrap();
        assert!((unigram.nll_nats_per_token - 4f64.ln()).abs() < 1e-12);
        assert!((unigram.perplexity - 4.0).abs() < 1e-9);
    }

    #[test]
    fn an_id_unseen_in_training_costs_ln_n_plus_v() {
        let dir = tempfile::tempdir().unwrap();
        let train = shard(dir.path(), "train.bin", &[0, 0, 0], 3);
        let val = shard(dir.path(), "val.bin", &[2], 3);
        let unigram = unigram_baseline(&train, &val).unwrap();
        assert!((unigram.nll_nats_per_token - 6f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn vocabularies_of_two_sizes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let train = shard(dir.path(), "train.bin", &[0], 3);
        let val = shard(dir.path(), "val.bin", &[0], 4);
        let error = unigram_baseline(&train, &val).unwrap_err();
        assert!(error.to_string().contains("vocab_size 4"), "{error}");
    }
}
