//! The unigram baseline: the best score that needs no context.

use std::sync::Arc;

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
    /// Bits for each byte of held-out text, where bytes are counted.
    pub bits_per_byte: Option<f64>,
    /// Tokens scored: those that the models score.
    #[serde(default)]
    pub token_count: u64,
}

/// Which tokens of the held-out shards are scored.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldOut {
    /// Tokens of a block.
    pub block_size: usize,
    /// The blocks; all where `None`.
    pub blocks: Option<Vec<u64>>,
    /// Leading tokens of each block that are not scored.
    pub given: usize,
    /// Bytes of text of the scored tokens; where `None` and all are scored, the manifest's.
    pub bytes: Option<u64>,
}

/// Scores the `held_out` tokens of `val` by the frequencies of `train`, each id counted once more than
/// seen (Laplace), so that an id which training lacks costs ln(N + V) and not infinity.
///
/// # Errors
/// When a shard cannot be read, a folder is empty, the vocabularies differ in size, or a block is
/// none of `val`.
pub fn unigram_baseline(
    train: &Dataset,
    val: &Arc<Dataset>,
    held_out: &HeldOut,
) -> Result<Unigram> {
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
    for data in [train, val.as_ref()] {
        if data.token_count() == 0 {
            return Err(Error::input_at(
                data.path(),
                "holds no tokens; tokenize some text into it",
            ));
        }
    }
    let scored = match &held_out.blocks {
        None => counts(val)?,
        Some(blocks) => counts_of_blocks(val, held_out, blocks)?,
    };
    let seen = counts(train)?;
    let total = (train.token_count() + ids as u64) as f64;
    let nats: f64 = scored
        .iter()
        .zip(&seen)
        .map(|(&held_out, &seen)| held_out as f64 * (total / (seen + 1) as f64).ln())
        .sum();
    let token_count: u64 = scored.iter().sum();
    let mean = nats / token_count as f64;
    let whole = token_count == val.token_count();
    let of_manifest = Some(val.manifest().totals.bytes_of_text).filter(|_| whole);
    let bytes = held_out.bytes.or(of_manifest).filter(|&bytes| bytes > 0);
    let bits_per_byte = bytes.map(|bytes| nats / std::f64::consts::LN_2 / bytes as f64);
    Ok(Unigram { nll_nats_per_token: mean, perplexity: mean.exp(), bits_per_byte, token_count })
}

/// How often each id occurs among the scored tokens of `blocks`.
fn counts_of_blocks(data: &Arc<Dataset>, held_out: &HeldOut, blocks: &[u64]) -> Result<Vec<u64>> {
    let mut counts = vec![0u64; data.vocab_size()];
    let all = data.blocks(held_out.block_size)?;
    let mut ids = Vec::new();
    for &block in blocks {
        all.read(block, &mut ids)?;
        for &id in ids.iter().skip(held_out.given) {
            counts[id as usize] += 1;
        }
    }
    Ok(counts)
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
    fn shard(folder: &std::path::Path, name: &str, ids: &[u32], vocab_size: usize) -> Arc<Dataset> {
        let mut bytes = header(Width::U16, ids.len() as u64).to_vec();
        Width::U16.append(ids, &mut bytes).unwrap();
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        let options = OpenOptions { vocab_size: Some(vocab_size), ..OpenOptions::default() };
        Arc::new(Dataset::open(&path, &options).unwrap())
    }

    const ALL: HeldOut = HeldOut { block_size: 2, blocks: None, given: 0, bytes: None };

    #[test]
    fn an_evenly_used_vocabulary_costs_its_logarithm() {
        let dir = tempfile::tempdir().unwrap();
        let train = shard(dir.path(), "train.bin", &[0, 1, 2, 3], 4);
        let val = shard(dir.path(), "val.bin", &[3, 3, 1], 4);
        let unigram = unigram_baseline(&train, &val, &ALL).unwrap();
        assert!((unigram.nll_nats_per_token - 4f64.ln()).abs() < 1e-12);
        assert!((unigram.perplexity - 4.0).abs() < 1e-9);
    }

    #[test]
    fn an_id_unseen_in_training_costs_ln_n_plus_v() {
        let dir = tempfile::tempdir().unwrap();
        let train = shard(dir.path(), "train.bin", &[0, 0, 0], 3);
        let val = shard(dir.path(), "val.bin", &[2], 3);
        let unigram = unigram_baseline(&train, &val, &ALL).unwrap();
        assert!((unigram.nll_nats_per_token - 6f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn vocabularies_of_two_sizes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let train = shard(dir.path(), "train.bin", &[0], 3);
        let val = shard(dir.path(), "val.bin", &[0], 4);
        let error = unigram_baseline(&train, &val, &ALL).unwrap_err();
        assert!(error.to_string().contains("vocab_size 4"), "{error}");
    }

    #[test]
    fn only_the_tokens_that_models_score_count() {
        let dir = tempfile::tempdir().unwrap();
        let train = shard(dir.path(), "train.bin", &[0, 0, 0], 3);
        let val = shard(dir.path(), "val.bin", &[2, 0, 2, 2, 1, 0], 3);
        let score = |blocks: &[u64], given| {
            let blocks = Some(blocks.to_vec());
            let held_out = HeldOut { blocks, given, bytes: Some(4), ..ALL };
            unigram_baseline(&train, &val, &held_out).unwrap()
        };
        // Block 0 is 2 and 0: one unseen id and one seen three times.
        let found = score(&[0], 0);
        let nats = 6f64.ln() + 1.5f64.ln();
        assert!((found.nll_nats_per_token - nats / 2.0).abs() < 1e-12);
        assert!((found.bits_per_byte.unwrap() - nats / 2f64.ln() / 4.0).abs() < 1e-12);
        // Behind the first of each of the blocks 0 and 2 stands a 0.
        let found = score(&[0, 2], 1);
        assert_eq!(found.token_count, 2);
        assert!((found.nll_nats_per_token - 1.5f64.ln()).abs() < 1e-12);
    }
}
