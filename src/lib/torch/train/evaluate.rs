//! Validation while training: NLL along orders, or the bound on it, of raw and averaged weights.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ao_core::config::{Family, ModelConfig};
use ao_core::masking::{Draw, Level, stratified_draws};
use ao_core::objective::Objective;
use ao_core::orders::OrderSource;
use ao_core::rng::{Domain, Stream};
use ao_core::score::Estimate;
use ao_core::stats;
use ao_core::tokens::{Blocks, Dataset, OpenOptions};
use ao_core::{Error, Result};

use super::masked::Noised;
use super::metrics::EvalRecord;
use crate::device::Place;
use crate::model::{Batch, Encoder, Weights, decoder};

/// The orders that validation scores along: one uniform row a sequence.
const ORDERS: &str = "uniform";

/// Masks of a sequence, by which encoders are scored.
const DRAWS: usize = 4;

/// Seed of orders and masks: the same whatever the run's seed, so that runs can be compared.
const SEED: u64 = 0;

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

    /// The set's shards.
    pub fn dataset(&self) -> &Arc<Dataset> {
        self.blocks.dataset()
    }

    /// The set's real vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.blocks.dataset().vocab_size()
    }

    /// Scores one kind of weights.
    ///
    /// # Errors
    /// When the shards cannot be read, or hold an encoder's mask id.
    pub fn run(
        &self,
        config: &ModelConfig,
        objective: Objective,
        weights: &Weights,
        place: &Place,
        step: u64,
        name: &str,
    ) -> Result<EvalRecord> {
        let started = Instant::now();
        let scored = match config.family() {
            Family::Encoder => self.by_masks(config, weights, place)?,
            _ if objective == Objective::L2r => self.along("l2r", config, weights, place)?,
            _ => self.along(ORDERS, config, weights, place)?,
        };
        let mean = stats::mean_per_token(&scored.sums, &scored.counts);
        Ok(EvalRecord {
            r#type: "eval",
            step,
            weights: name.into(),
            objective,
            estimate: scored.estimate,
            orders: scored.orders,
            masks: scored.masks,
            nll_nats_per_token: mean.mean,
            std_error: Some(mean.std_error).filter(|e| e.is_finite()),
            perplexity: mean.mean.exp(),
            sequences: mean.sequences,
            token_count: mean.tokens,
            seconds: started.elapsed().as_secs_f64(),
        })
    }

    /// A decoder along orders, one row a sequence.
    fn along(
        &self,
        orders_name: &str,
        config: &ModelConfig,
        weights: &Weights,
        place: &Place,
    ) -> Result<Scored> {
        let mut model = decoder(config, weights, place.compute, place.threads)?;
        model.freeze();
        let conditioning = tch::no_grad(|| model.conditioning());
        let mut orders = OrderSource::open(orders_name, config.block_size(), SEED)?;
        let given = model.given();
        let mut scored = Scored {
            orders: Some(orders_name.into()),
            estimate: if orders_name == "l2r" { Estimate::Exact } else { Estimate::Bound },
            ..Scored::default()
        };
        self.batches(|first, tokens| {
            let mut rows = vec![Vec::new(); tokens.len()];
            for ((index, row), tokens) in (first..).zip(&mut rows).zip(tokens) {
                orders.row(index, tokens.len(), row)?;
            }
            let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
            let batch = Batch::new(tokens, &rows)?;
            let nll = model.nll(&batch, &conditioning);
            for (tokens, nll) in tokens.iter().zip(nll.chunks(batch.length)) {
                scored.sums.push(nll.iter().sum());
                scored.counts.push(tokens.len().saturating_sub(given) as u64);
            }
            Ok(())
        })?;
        Ok(scored)
    }

    /// An encoder by masks at stratified noise levels; over the number of masked tokens where the
    /// family's output allows it, which has the least variance.
    fn by_masks(&self, config: &ModelConfig, weights: &Weights, place: &Place) -> Result<Scored> {
        let mut model = Encoder::new(config, weights, place.compute, place.threads)?;
        model.freeze();
        let (level, name) = match config {
            ModelConfig::Sedd(_) => (Level::Time, "score-entropy: strata of t"),
            _ => (Level::Count, "k-dce: strata of k"),
        };
        let mut scored = Scored {
            masks: Some(format!("{name}, {DRAWS} a sequence")),
            estimate: Estimate::Bound,
            ..Scored::default()
        };
        self.batches(|first, tokens| {
            let draws: Vec<Vec<Draw>> = (first..)
                .zip(tokens)
                .map(|(index, tokens)| {
                    let mut stream = Stream::new(SEED, Domain::Masking, index);
                    stratified_draws(level, model.noise(), DRAWS, tokens.len(), &mut stream)
                })
                .collect();
            let rows: Vec<Vec<u32>> =
                tokens.iter().map(|tokens| (0..tokens.len() as u32).collect()).collect();
            let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
            let batch = Batch::new(tokens, &rows)?;
            let mut sums = vec![0.0; tokens.len()];
            for m in 0..DRAWS {
                let draws: Vec<Draw> = draws.iter().map(|d| d[m].clone()).collect();
                let bounds = Noised::new(&model, &batch, &draws)?.bounds(&model);
                sums.iter_mut().zip(bounds).for_each(|(sum, b)| *sum += b / DRAWS as f64);
            }
            scored.sums.extend(sums);
            scored.counts.extend(tokens.iter().map(|tokens| tokens.len() as u64));
            Ok(())
        })?;
        Ok(scored)
    }

    /// Calls `each` with the number of the first sequence of every batch, and the batch's texts.
    fn batches(&self, mut each: impl FnMut(u64, &[&[u32]]) -> Result<()>) -> Result<()> {
        let mut at = 0;
        while at < self.sequences {
            let n = (self.sequences - at).min(self.batch_size as u64);
            let mut texts = vec![Vec::new(); n as usize];
            for (index, text) in (at..).zip(&mut texts) {
                self.blocks.read(index, text)?;
            }
            let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
            each(at, &texts)?;
            at += n;
        }
        Ok(())
    }
}

/// The sums and counts of the sequences, and how they were come by.
struct Scored {
    sums: Vec<f64>,
    counts: Vec<u64>,
    orders: Option<String>,
    masks: Option<String>,
    estimate: Estimate,
}

impl Default for Scored {
    fn default() -> Scored {
        Scored {
            sums: Vec::new(),
            counts: Vec::new(),
            orders: None,
            masks: None,
            estimate: Estimate::Bound,
        }
    }
}
