//! `ao-score`: from shards and orders to records.

use std::time::Instant;

use ao_core::cli::{Progress, RunRecord, Sink};
use ao_core::format::jsonl;
use ao_core::orders::OrderSource;
use ao_core::{Error, Result};

use super::ScoreArgs;
use super::corpus::{Corpus, Sequence};
use super::orders::Orders;
use super::record::{Estimate, SequenceRecord, Setting, Totals};
use crate::device::Place;
use crate::model::{Batch, Conditioning, Decoder, Loaded};

/// Scores what `args` names and writes the records.
///
/// # Errors
/// Unusable input, an NLL that is not finite, or a sink that cannot be written.
pub fn run(args: ScoreArgs) -> Result<()> {
    let mut sink = args.output.open()?;
    let place = Place::start(&args.compute)?;
    let loaded = Loaded::open(&args.model, &place)?;
    let corpus = Corpus::open(&args, &loaded)?;
    let orders = loaded.config.orders(args.orders.as_deref(), "uniform")?;
    let source = OrderSource::open(&orders, loaded.config.block_size(), args.seed.seed)?;
    source.require_rows(corpus.range().end.saturating_mul(u64::from(args.mc)))?;
    let described = source.describe();
    let record = RunRecord {
        tool: "ao-score",
        config: serde_json::to_value(&args).unwrap_or_default(),
        seed: Some(args.seed.seed),
        device: Some(place.device_name()),
        inputs: vec![loaded.input.clone(), corpus.input.clone()],
    };
    sink.put(&jsonl::line(&record.to_json())?)?;

    let started = Instant::now();
    let model = loaded.decoder(&place)?;
    let mut scorer = Scorer {
        conditioning: tch::no_grad(|| model.conditioning()),
        model,
        orders: Orders::new(source, u64::from(args.mc)),
        mc: u64::from(args.mc),
        batch_size: args.batch_size as usize,
        per_token: args.per_token,
        alone: loaded.alone,
        rows_forwarded: 0,
    };
    let range = corpus.range();
    let mut progress = Progress::new("sequences", Some(range.end - range.start), args.quiet.quiet);
    let mut totals = Totals::new();
    scorer.score(&corpus, |records| {
        write(&mut sink, &mut totals, &records)?;
        let message = format!("{:.4} nats a token", totals.mean().mean);
        progress.set(totals.mean().sequences, &message);
        Ok(())
    })?;
    progress.finish();
    let estimate = if scorer.orders.are_one() { Estimate::Exact } else { Estimate::Bound };
    let setting = Setting {
        orders_per_sequence: scorer.mc,
        ensemble: 1,
        given_tokens: scorer.model.given() as u64,
        estimate,
        orders: described,
    };
    let seconds = started.elapsed().as_secs_f64();
    sink.put(&jsonl::line(&totals.summary(setting, seconds, scorer.rows_forwarded))?)?;
    sink.finish()
}

fn write(sink: &mut Sink, totals: &mut Totals, records: &[SequenceRecord]) -> Result<()> {
    for record in records {
        if !record.nll_nats.is_finite() {
            return Err(Error::NonFinite(format!(
                "sequence {}: its NLL is {}; check the weights, or score in f32",
                record.index, record.nll_nats
            )));
        }
        totals.add(record);
        sink.put(&jsonl::line(record)?)?;
    }
    sink.flush()
}

/// Scores sequences along their orders.
struct Scorer {
    model: Box<dyn Decoder>,
    conditioning: Conditioning,
    orders: Orders,
    mc: u64,
    batch_size: usize,
    per_token: bool,
    /// Each sequence goes through the model by itself ([`Loaded::alone`]).
    alone: bool,
    rows_forwarded: u64,
}

impl Scorer {
    /// Hands finished sequences to `done`, in order.
    fn score(
        &mut self,
        corpus: &Corpus,
        mut done: impl FnMut(Vec<SequenceRecord>) -> Result<()>,
    ) -> Result<()> {
        let mut open: Vec<Open> = Vec::new();
        let mut batch: Vec<(u64, Vec<u32>, Vec<u32>)> = Vec::new();
        for index in corpus.range() {
            let sequence = corpus.read(index)?;
            for k in 0..self.mc {
                let order = self.orders.row(index, k, sequence.tokens.len())?;
                if k == 0 {
                    // Where the first token is given, it is neither scored nor are its bytes.
                    let given = &order[..self.model.given().min(order.len())];
                    open.push(Open::new(&sequence, given, corpus));
                }
                batch.push((index, sequence.tokens.clone(), order));
                if batch.len() == self.batch_size {
                    self.forward(&mut batch, &mut open)?;
                    done(self.finished(&mut open))?;
                }
            }
        }
        self.forward(&mut batch, &mut open)?;
        done(self.finished(&mut open))
    }

    /// Scores the batch and adds its sums to the sequences that they belong to.
    fn forward(
        &mut self,
        batch: &mut Vec<(u64, Vec<u32>, Vec<u32>)>,
        open: &mut [Open],
    ) -> Result<()> {
        let (Some(first), false) = (open.first().map(|o| o.index), batch.is_empty()) else {
            return Ok(());
        };
        for part in batch.chunks(if self.alone { 1 } else { batch.len() }) {
            let tokens: Vec<&[u32]> = part.iter().map(|(_, t, _)| t.as_slice()).collect();
            let rows: Vec<&[u32]> = part.iter().map(|(_, _, o)| o.as_slice()).collect();
            let input = Batch::new(&tokens, &rows)?;
            let nll = self.model.nll(&input, &self.conditioning);
            for ((index, tokens, _), nll) in part.iter().zip(nll.chunks(input.length)) {
                let nll = &nll[self.model.given().min(tokens.len())..tokens.len()];
                // Sequences are opened one after the other, so their numbers are consecutive.
                let open = &mut open[(index - first) as usize];
                open.sums.push(nll.iter().sum());
                if self.per_token {
                    open.nll.extend_from_slice(nll);
                }
                self.rows_forwarded += nll.len() as u64;
            }
        }
        batch.clear();
        Ok(())
    }

    /// Takes the sequences whose orders are all scored.
    fn finished(&self, open: &mut Vec<Open>) -> Vec<SequenceRecord> {
        let whole = open.iter().take_while(|o| o.sums.len() as u64 == self.mc).count();
        open.drain(..whole)
            .map(|o| {
                let mut record = SequenceRecord::new(o.index, o.tokens, o.sums, o.bytes);
                record.token_nll_nats = self.per_token.then_some(o.nll);
                record
            })
            .collect()
    }
}

/// A sequence some of whose orders are still to be scored.
struct Open {
    index: u64,
    tokens: u64,
    bytes: Option<u64>,
    sums: Vec<f64>,
    nll: Vec<f64>,
}

impl Open {
    fn new(sequence: &Sequence, given: &[u32], corpus: &Corpus) -> Open {
        Open {
            index: sequence.index,
            tokens: (sequence.tokens.len() - given.len()) as u64,
            bytes: corpus.bytes(sequence, given),
            sums: Vec::new(),
            nll: Vec::new(),
        }
    }
}
