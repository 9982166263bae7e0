//! Validation while training. It gives what `ao-score` would report for the checkpoint, for raw and
//! averaged weights, along the orders trained along or those of `--val-orders`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ao_core::family::ModelConfig;
use ao_core::orders::OrderSource;
use ao_core::process::Objective;
use ao_core::score::{Design, Levels, SequenceRecord, Totals};
use ao_core::tokens::{Blocks, Dataset, Documents, OpenOptions};
use ao_core::{Error, Result};

use super::metrics::EvalRecord;
use super::options::TrainArgs;
use crate::family::{self, Model, ScoreSettings, Training, Work};
use crate::score::Orders;

/// Seed of orders and masks. It does not depend on the run's seed, so that runs can be compared.
const SEED: u64 = 0;

/// The validation set: its first sequences in file order, and the ways in which they are scored.
pub struct Validation {
    blocks: Blocks,
    sequences: u64,
    batch_size: usize,
    ways: Vec<ScoreSettings>,
}

impl Validation {
    /// Opens the shards, which must have the training shards' tokenizer.
    ///
    /// # Errors
    /// When they cannot be read, are empty, or differ in tokenizer; or when the orders cannot be used
    /// for validation.
    pub fn open(
        path: &Path,
        args: &TrainArgs,
        config: &ModelConfig,
        tokenizer: Option<&str>,
        training: &dyn Training,
    ) -> Result<Validation> {
        let dataset = Arc::new(Dataset::open(path, &OpenOptions::default())?);
        if dataset.manifest().tokenizer_hash() != tokenizer {
            return Err(Error::input_at(
                path,
                "has another tokenizer than --shards; tokenize both with one",
            ));
        }
        let blocks = dataset.blocks(config.block_size())?;
        if blocks.is_empty() {
            return Err(Error::input_at(path, "has no tokens to validate on"));
        }
        let sequences = args.eval.val_sequences.min(blocks.len());
        let batch_size = args.size.batch_size as usize;
        let own = training.validation();
        let own =
            ScoreSettings { mc: args.eval.val_mc.unwrap_or(own.mc), batch_size, seed: SEED, ..own };
        let along = |orders: &String| ScoreSettings {
            orders: Some(orders.clone()),
            bound: None,
            mc: args.eval.val_mc.unwrap_or(1),
            ..own.clone()
        };
        let mut ways: Vec<ScoreSettings> = args.eval.val_orders.iter().map(along).collect();
        for way in &mut ways {
            let named = way.orders.as_deref().unwrap_or_default();
            let named = config.orders(Some(named), named)?;
            let source = OrderSource::open(&named, config.block_size(), SEED)
                .map_err(|e| Error::usage(format!("--val-orders: {e}")))?;
            if source.is_pipe() {
                return Err(Error::usage(
                    "--val-orders -: a pipe gives its rows once, and there are many validations; \
                     name a SPEC or a file",
                ));
            }
            if source.is_one_order() {
                way.mc = 1;
            }
            source.require_rows(sequences.saturating_mul(way.mc))?;
        }
        if ways.is_empty() {
            ways.push(own);
        }
        Ok(Validation { blocks, sequences, batch_size, ways })
    }

    /// The set's shards.
    pub fn dataset(&self) -> &Arc<Dataset> {
        self.blocks.dataset()
    }

    /// The set's real vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.blocks.dataset().vocab_size()
    }

    /// Scores one kind of weights in every way.
    ///
    /// # Errors
    /// When the shards cannot be read, or hold what the model cannot read.
    pub fn run(
        &self,
        model: Model,
        objective: Objective,
        step: u64,
        name: &str,
    ) -> Result<Vec<EvalRecord>> {
        let family = family::of(model.config)?;
        let record = |way: &ScoreSettings| {
            let started = Instant::now();
            let mut scorer = family.scorer(model, way)?;
            let along = scorer.orders().map(str::to_owned);
            let named = along.as_deref().unwrap_or("l2r");
            let source = OrderSource::open(named, model.config.block_size(), SEED)?;
            let mut orders = Orders::new(source, way.mc);
            let estimate = scorer.estimate().unwrap_or_else(|| orders.estimate());
            let manner = scorer.manner();
            let levels = manner.bound.as_ref().map(|_| Levels::new(SEED));
            let mut totals = Totals::new(Design { levels, cluster: None });
            let documents = Documents::new(self.blocks.clone());
            self.batches(|first, texts| {
                let mut works = Vec::new();
                for (index, tokens) in (first..).zip(texts) {
                    for k in 0..way.mc {
                        let order = orders.row(index, k, tokens.len())?;
                        works.push(Work::whole(index, orders.number(index, k), tokens, order));
                    }
                }
                let mut scored = scorer.score(&works)?.into_iter();
                for (index, tokens) in (first..).zip(texts) {
                    let sums = scored.by_ref().take(way.mc as usize).map(|s| s.sum).collect();
                    let count = tokens.len().saturating_sub(scorer.given()) as u64;
                    let mut record = SequenceRecord::new(index, count, estimate, sums, None);
                    record.document = documents.of_block(index, tokens)?;
                    totals.add(&record);
                }
                Ok(())
            })?;
            let (mean, errors) = (totals.mean(), totals.errors());
            let masks = manner.bound.as_ref().map(|form| format!("{form}, {} a sequence", way.mc));
            Ok(EvalRecord {
                r#type: "eval",
                step,
                weights: name.into(),
                objective,
                estimate,
                orders: along,
                masks,
                manner,
                nll_nats_per_token: mean,
                std_error: errors.all,
                perplexity: mean.exp(),
                sequences: totals.sequences(),
                token_count: totals.tokens(),
                seconds: started.elapsed().as_secs_f64(),
            })
        };
        self.ways.iter().map(record).collect()
    }

    /// Calls `each` with the number of the first sequence of every batch, and the batch's texts.
    fn batches(&self, mut each: impl FnMut(u64, &[Vec<u32>]) -> Result<()>) -> Result<()> {
        let mut at = 0;
        while at < self.sequences {
            let n = (self.sequences - at).min(self.batch_size as u64);
            let mut texts = vec![Vec::new(); n as usize];
            for (index, text) in (at..).zip(&mut texts) {
                self.blocks.read(index, text)?;
            }
            each(at, &texts)?;
            at += n;
        }
        Ok(())
    }
}
