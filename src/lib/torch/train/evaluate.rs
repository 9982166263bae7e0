//! Validation while training: any-order NLL of raw and averaged weights.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ao_core::config::{Family, ModelConfig};
use ao_core::orders::OrderSource;
use ao_core::stats;
use ao_core::tokens::{Blocks, Dataset, OpenOptions};
use ao_core::{Error, Result};

use super::metrics::EvalRecord;
use crate::device::Place;
use crate::model::{Batch, Weights, decoder};

/// The orders that validation scores along: one uniform row a sequence.
const ORDERS: &str = "uniform";

/// Seed of those orders: the same whatever the run's seed, so that runs can be compared.
const ORDER_SEED: u64 = 0;

/// The validation set, its first sequences in file order.
pub struct Validation {
    blocks: Blocks,
    sequences: u64,
    batch_size: usize,
}

impl Validation {
    /// Opens the shards, which must have the training shards' tokenizer.
    ///
    /// # Errors
    /// When they cannot be read, are empty, or differ in tokenizer.
    pub fn open(
        path: &Path,
        block_size: usize,
        sequences: u64,
        batch_size: usize,
        tokenizer: Option<&str>,
    ) -> Result<Validation> {
        let dataset = Arc::new(Dataset::open(path, &OpenOptions::default())?);
        if dataset.manifest().tokenizer_hash() != tokenizer {
            return Err(Error::input_at(
                path,
                "has another tokenizer than --shards; tokenize both with one",
            ));
        }
        let blocks = dataset.blocks(block_size)?;
        if blocks.is_empty() {
            return Err(Error::input_at(path, "has no tokens to validate on"));
        }
        let sequences = sequences.min(blocks.len());
        Ok(Validation { blocks, sequences, batch_size })
    }

    /// The set's real vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.blocks.dataset().vocab_size()
    }

    /// Scores one kind of weights.
    ///
    /// # Errors
    /// When the shards cannot be read.
    pub fn run(
        &self,
        config: &ModelConfig,
        weights: &Weights,
        place: &Place,
        step: u64,
        name: &str,
    ) -> Result<EvalRecord> {
        let started = Instant::now();
        let mut model = decoder(config, weights, place.compute, place.threads)?;
        model.freeze();
        let conditioning = tch::no_grad(|| model.conditioning());
        let orders_name = if config.family() == Family::LeftToRight { "l2r" } else { ORDERS };
        let mut orders = OrderSource::open(orders_name, config.block_size(), ORDER_SEED)?;
        let given = model.given();
        let (mut sums, mut counts) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < self.sequences {
            let n = (self.sequences - at).min(self.batch_size as u64);
            let (mut tokens, mut rows) = (Vec::new(), Vec::new());
            for index in at..at + n {
                let (mut block, mut row) = (Vec::new(), Vec::new());
                self.blocks.read(index, &mut block)?;
                orders.row(index, block.len(), &mut row)?;
                tokens.push(block);
                rows.push(row);
            }
            let tokens: Vec<&[u32]> = tokens.iter().map(Vec::as_slice).collect();
            let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
            let batch = Batch::new(&tokens, &rows)?;
            let nll = model.nll(&batch, &conditioning);
            for (tokens, nll) in tokens.iter().zip(nll.chunks(batch.length)) {
                sums.push(nll.iter().sum());
                counts.push(tokens.len().saturating_sub(given) as u64);
            }
            at += n;
        }
        let mean = stats::mean_per_token(&sums, &counts);
        Ok(EvalRecord {
            r#type: "eval",
            step,
            weights: name.into(),
            orders: orders_name.into(),
            nll_nats_per_token: mean.mean,
            std_error: Some(mean.std_error).filter(|e| e.is_finite()),
            perplexity: mean.mean.exp(),
            sequences: mean.sequences,
            token_count: mean.tokens,
            seconds: started.elapsed().as_secs_f64(),
        })
    }
}
