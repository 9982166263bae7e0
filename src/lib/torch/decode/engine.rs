//! The decoding engine: passes of the network, the head on the rows that are asked for, and a draw
//! for each; for causal and for bidirectional networks alike.
//!
//! Which positions a step reveals is a plan's affair ([`super::plan`], [`super::adaptive`],
//! [`super::analytic`], [`super::speculative`], [`super::rejection`]); how the network is asked is a
//! [`Predictor`]'s.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ao_core::cli::signals;
use ao_core::process::Masks;
use ao_core::{Error, Result};
use tch::Tensor;

use super::distribution::{Draw, Drawer};
use super::filter::Filter;
use super::predictor::{Ask, Predictor, Reader};
use super::sequence::{Request, Sample, Sequence};
use crate::kernels::pool;

/// Most bytes of logits that exist at a time.
const LOGIT_BYTES: usize = 64 << 20;
/// Logits from which on the draws of a step are shared among threads.
const THREADED: usize = 1 << 17;

/// What was done so far, for all samples, and where the time went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// Rows that went through the blocks, padding not counted.
    pub rows_forwarded: u64,
    /// Rows that went through the head.
    pub rows_through_head: u64,
    /// Passes through the blocks, each over a batch.
    pub passes: u64,
    /// Passes of the network, summed over samples.
    pub network_calls: u64,
    /// Tokens that were drafted.
    pub drafted: u64,
    /// Of these, tokens that were put to the test: none behind the first that failed.
    pub tested: u64,
    /// Of these, tokens that stayed.
    pub accepted: u64,
    /// Time in the blocks.
    pub trunk: Duration,
    /// Time in the output layer.
    pub head: Duration,
    /// Time in filters and draws.
    pub sampling: Duration,
}

/// Draws samples from a network.
pub struct Engine {
    /// How the network is asked.
    pub predictor: Box<dyn Predictor>,
    /// The masks of a bidirectional network.
    pub masks: Option<Masks>,
    /// Which tokens may be drawn, and how.
    pub filter: Filter,
    /// How many likeliest tokens of every drawn position are listed.
    pub candidates: usize,
    /// What was done so far.
    pub tally: Tally,
    /// Drawers that no thread uses at the moment.
    drawers: Mutex<Vec<Drawer>>,
    /// Logits of the rows at hand.
    logits: Vec<f32>,
}

impl Engine {
    /// An engine with the distributions of `filter`.
    pub fn new(
        predictor: Box<dyn Predictor>,
        masks: Option<Masks>,
        filter: Filter,
        candidates: usize,
    ) -> Engine {
        Engine {
            predictor,
            masks,
            filter,
            candidates,
            tally: Tally::default(),
            drawers: Mutex::default(),
            logits: Vec::new(),
        }
    }

    /// A batch of which nothing is drawn yet.
    pub fn start(&mut self, requests: Vec<Request>) -> Vec<Sequence> {
        let sequences: Vec<Sequence> = requests.into_iter().map(Sequence::new).collect();
        self.predictor.start(&sequences);
        sequences
    }

    /// The samples of a batch whose every position has its token.
    pub fn finish(&mut self, sequences: Vec<Sequence>) -> Vec<Sample> {
        self.tally.rows_forwarded += self.predictor.rows_forwarded();
        self.tally.network_calls += sequences.iter().map(|s| s.network_calls as u64).sum::<u64>();
        sequences.into_iter().map(Sequence::finish).collect()
    }

    /// σ̄ of a sequence along an order.
    pub fn sigma_of_count(&self, sequence: &Sequence) -> f64 {
        let (left, all) = (sequence.free().len(), sequence.order.len());
        self.masks.map_or(0.0, |masks| masks.sigma_of_count(left, all))
    }

    /// A pass of the network over what the sequences ask for.
    ///
    /// # Errors
    /// As [`Predictor::predict`] and [`Engine::timed`].
    pub fn predict(&mut self, sequences: &mut [Sequence], asks: &[Ask]) -> Result<Tensor> {
        for (sequence, ask) in sequences.iter_mut().zip(asks) {
            sequence.network_calls += usize::from(!ask.positions.is_empty());
        }
        self.timed(|engine| engine.predictor.predict(sequences, asks))
    }

    /// A pass of the network, counted and timed.
    ///
    /// # Errors
    /// Those of `pass`, and [`Error::Interrupted`] once a signal has come that the program is to
    /// finish on.
    pub fn timed<T>(&mut self, pass: impl FnOnce(&mut Engine) -> Result<T>) -> Result<T> {
        signals::interrupted()?;
        let started = Instant::now();
        let result = pass(self);
        self.tally.trunk += started.elapsed();
        self.tally.passes += 1;
        result
    }

    /// A draw from each hidden row (N, C), one uniform each; row i is of sequence `owners[i]`.
    ///
    /// # Errors
    /// [`Error::NonFinite`] when the model's logits are not finite.
    pub fn draw(
        &mut self,
        sequences: &mut [Sequence],
        hidden: &Tensor,
        owners: &[usize],
    ) -> Result<Vec<Draw>> {
        let uniforms: Vec<f64> = owners.iter().map(|&r| sequences[r].stream.uniform()).collect();
        let sequences = &*sequences;
        let (filter, count) = (self.filter.clone(), self.candidates);
        self.each_row(hidden, &|i, logits, drawer| {
            let draw = drawer.draw(&filter, logits, &sequences[owners[i]].tokens, uniforms[i])?;
            Ok(drawer.with_candidates(draw, &filter, logits, count))
        })
    }

    /// Calls `work` with the number and the logits of each hidden row (N, C), on several threads;
    /// outcomes in order.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn each_row<T: Send>(
        &mut self,
        hidden: &Tensor,
        work: &(impl Fn(usize, &[f32], &mut Drawer) -> Result<T> + Sync),
    ) -> Result<Vec<T>> {
        let count = hidden.size()[0] as usize;
        let vocab = self.predictor.vocab_size();
        let most = (LOGIT_BYTES / (4 * vocab)).max(1);
        self.tally.rows_through_head += count as u64;
        let mut outcomes = Vec::with_capacity(count);
        for start in (0..count).step_by(most) {
            let rows = most.min(count - start);
            let started = Instant::now();
            let mut values = std::mem::take(&mut self.logits);
            if values.len() < rows * vocab {
                values.resize(rows * vocab, 0.0);
            }
            self.predictor.logits(&hidden.narrow(0, start as i64, rows as i64), &mut values);
            self.tally.head += started.elapsed();
            let part = self.each_of(rows, vocab, &|i, drawer| {
                work(start + i, &values[i * vocab..(i + 1) * vocab], drawer)
            });
            self.logits = values;
            outcomes.extend(part?);
        }
        Ok(outcomes)
    }

    /// Calls `work` for `count` rows of `width` logits each, on several threads where it pays;
    /// outcomes in order.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn each_of<T: Send>(
        &mut self,
        count: usize,
        width: usize,
        work: &(impl Fn(usize, &mut Drawer) -> Result<T> + Sync),
    ) -> Result<Vec<T>> {
        let started = Instant::now();
        let unit = if count * width < THREADED { count.max(1) } else { 1 };
        let done = Mutex::new(Vec::new());
        pool::split(count, unit, usize::MAX, &|range: Range<usize>, _| {
            let mut drawer = lock(&self.drawers).pop().unwrap_or_default();
            let part: Vec<Result<T>> = range.clone().map(|i| work(i, &mut drawer)).collect();
            lock(&self.drawers).push(drawer);
            lock(&done).push((range.start, part));
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|part| part.0);
        self.tally.sampling += started.elapsed();
        done.into_iter().flat_map(|part| part.1).collect()
    }

    /// The network as a reader of drafts.
    ///
    /// # Errors
    /// When it is none.
    pub fn reader(&mut self) -> Result<&mut dyn Reader> {
        self.predictor
            .reader()
            .ok_or_else(|| Error::usage("drafts need a causal network; take another way to decode"))
    }
}

/// Which (sequence, number among its rows) each of the rows is of that a pass gives.
pub fn owners(counts: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
    counts.enumerate().flat_map(|(r, count)| (0..count).map(move |j| (r, j))).collect()
}

/// What a mutex holds; a thread that panicked has left nothing half done in it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
