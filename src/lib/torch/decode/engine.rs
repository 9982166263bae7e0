//! The decoding engine: sequences in the making, passes of the network, the head on the rows that
//! are asked for, and a draw for each; for causal and for bidirectional networks alike.
//!
//! Which positions a step reveals is a plan's affair ([`super::plan`], [`super::adaptive`],
//! [`super::analytic`], [`super::speculative`], [`super::rejection`]); how the network is asked is a
//! [`Predictor`]'s.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ao_core::process::Masks;
use ao_core::rng::Stream;
use ao_core::{Error, Result};
use tch::Tensor;

use super::causal::CausalPredictor;
use super::distribution::{Draw, Drawer};
use super::filter::Filter;
use crate::kernels::pool;

/// Most bytes of logits that exist at a time.
const LOGIT_BYTES: usize = 64 << 20;
/// Logits from which on the draws of a step are shared among threads.
const THREADED: usize = 1 << 17;

/// What one sample starts from.
#[derive(Debug, Clone)]
pub struct Request {
    /// The whole permutation, given positions first.
    pub order: Vec<u32>,
    /// Tokens of the first positions of `order`, which are given.
    pub given: Vec<u32>,
    /// The sample's own draws.
    pub stream: Stream,
}

/// A sequence in the making.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Positions in generation order: first those that have their token, then those to come.
    pub order: Vec<u32>,
    /// Tokens of the first positions of `order`.
    pub tokens: Vec<u32>,
    /// The sample's own draws.
    pub stream: Stream,
    /// What was drawn, in generation order.
    pub drawn: Vec<Draw>,
    /// The time of each reveal, where there is one.
    pub times: Vec<f64>,
    /// Passes that its tokens took.
    pub steps: usize,
    /// Passes that it took part in.
    pub network_calls: usize,
}

impl Sequence {
    fn new(request: Request) -> Sequence {
        let Request { order, given, stream } = request;
        Sequence {
            order,
            tokens: given,
            stream,
            drawn: Vec::new(),
            times: Vec::new(),
            steps: 0,
            network_calls: 0,
        }
    }

    /// Positions without a token, in the order in which they are to come.
    pub fn free(&self) -> &[u32] {
        &self.order[self.tokens.len()..]
    }

    /// The same, ascending.
    pub fn free_ascending(&self) -> Vec<u32> {
        let mut free = self.free().to_vec();
        free.sort_unstable();
        free
    }

    /// Lets the free positions `next` come first, in this order; the others keep theirs.
    pub fn put_next(&mut self, next: &[u32]) {
        let tail = &mut self.order[self.tokens.len()..];
        if tail.starts_with(next) {
            return;
        }
        let rest: Vec<u32> = tail.iter().copied().filter(|p| !next.contains(p)).collect();
        tail[..next.len()].copy_from_slice(next);
        tail[next.len()..].copy_from_slice(&rest);
    }

    /// Gives the next position its token.
    pub fn push(&mut self, draw: Draw, time: Option<f64>) {
        self.tokens.push(draw.token);
        self.drawn.push(draw);
        self.times.extend(time);
    }

    /// The text, `hidden` where a position has no token.
    pub fn text(&self, hidden: u32) -> Vec<u32> {
        let mut text = vec![hidden; self.order.len()];
        for (&position, &token) in self.order.iter().zip(&self.tokens) {
            text[position as usize] = token;
        }
        text
    }

    fn finish(self) -> Sample {
        let text = self.text(0);
        let listed = self.drawn.iter().any(|d| !d.candidates.is_empty());
        Sample {
            tokens: text,
            order: Some(self.order),
            nll: self.drawn.iter().map(|d| d.nll).collect(),
            candidates: match listed {
                true => self.drawn.into_iter().map(|d| d.candidates).collect(),
                false => Vec::new(),
            },
            steps: self.steps,
            network_calls: self.network_calls,
            times: self.times,
        }
    }
}

/// A finished sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// Tokens in text order.
    pub tokens: Vec<u32>,
    /// Positions in the order of their steps, given ones first; `None` where the sequence grew, and
    /// positions moved.
    pub order: Option<Vec<u32>>,
    /// −ln of the unfiltered model's probability of each drawn token, nats, in generation order.
    pub nll: Vec<f64>,
    /// The likeliest tokens of each drawn position in generation order, with ln of their
    /// probability under the unfiltered model; empty unless asked for.
    pub candidates: Vec<Vec<(u32, f64)>>,
    /// Passes that its tokens took.
    pub steps: usize,
    /// Passes of the network that it took part in.
    pub network_calls: usize,
    /// The time t of each reveal, in generation order; empty where the order is given.
    pub times: Vec<f64>,
}

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

/// What a sequence asks the network for; nothing where it takes no part in a pass.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// Positions that are to be predicted, each given the tokens so far alone. The first is the next
    /// in the sequence's order.
    pub positions: Vec<u32>,
    /// σ̄, for networks that are conditioned on the time.
    pub sigma: f64,
}

/// The sequence of each of the rows that a pass gives, as many of each as `counts` says.
pub fn owners(counts: impl Iterator<Item = usize>) -> Vec<usize> {
    counts.enumerate().flat_map(|(r, count)| std::iter::repeat_n(r, count)).collect()
}

/// A network as decoding asks it.
pub trait Predictor {
    /// Forgets what it knows of sequences before, and makes room for these.
    fn start(&mut self, sequences: &[Sequence]);

    /// Hidden rows that predict what each sequence asks for, (N, C), sequence by sequence.
    ///
    /// # Errors
    /// When a sequence asks for what it has not.
    fn predict(&mut self, sequences: &[Sequence], asks: &[Ask]) -> Result<Tensor>;

    /// After a pass, lets position `chosen` of those that sequence `r` asked for be the one that its
    /// newest row predicts.
    fn choose(&mut self, r: usize, chosen: usize);

    /// Logits of hidden rows (N, C), f32 (N, V), into the first N·V of `out`; row i is of sequence
    /// `owners[i]`.
    fn logits(&self, hidden: &Tensor, owners: &[usize], out: &mut [f32]);

    /// Logits of a row V.
    fn vocab_size(&self) -> usize;

    /// Rows forwarded since the start, padding not counted.
    fn rows_forwarded(&self) -> u64;

    /// The causal network behind it, which can also read drafts.
    fn causal(&mut self) -> Option<&mut CausalPredictor>;
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
    /// As [`Predictor::predict`].
    pub fn predict(&mut self, sequences: &mut [Sequence], asks: &[Ask]) -> Result<Tensor> {
        for (sequence, ask) in sequences.iter_mut().zip(asks) {
            sequence.network_calls += usize::from(!ask.positions.is_empty());
        }
        self.timed(|engine| engine.predictor.predict(sequences, asks))
    }

    /// A pass of the network, counted and timed.
    pub fn timed<T>(&mut self, pass: impl FnOnce(&mut Engine) -> T) -> T {
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
        self.each_row(hidden, owners, &|i, logits, drawer| {
            let draw = drawer.draw(&filter, logits, &sequences[owners[i]].tokens, uniforms[i])?;
            Ok(drawer.with_candidates(draw, &filter, logits, count))
        })
    }

    /// Calls `work` with the number and the logits of each hidden row (N, C), on several threads;
    /// outcomes in order. Row i is of sequence `owners[i]`.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn each_row<T: Send>(
        &mut self,
        hidden: &Tensor,
        owners: &[usize],
        work: &(impl Fn(usize, &[f32], &mut Drawer) -> Result<T> + Sync),
    ) -> Result<Vec<T>> {
        let count = owners.len();
        let vocab = self.predictor.vocab_size();
        let most = (LOGIT_BYTES / (4 * vocab)).max(1);
        self.tally.rows_through_head += count as u64;
        let mut outcomes = Vec::with_capacity(count);
        for Range { start, end } in cut(owners, most) {
            let rows = end - start;
            let started = Instant::now();
            let mut values = std::mem::take(&mut self.logits);
            if values.len() < rows * vocab {
                values.resize(rows * vocab, 0.0);
            }
            let part = hidden.narrow(0, start as i64, rows as i64);
            self.predictor.logits(&part, &owners[start..end], &mut values);
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

    /// The causal network, for ways to decode that read drafts.
    ///
    /// # Errors
    /// When the network is none.
    pub fn causal(&mut self) -> Result<&mut CausalPredictor> {
        self.predictor
            .causal()
            .ok_or_else(|| Error::usage("drafts need a causal network; take another way to decode"))
    }
}

/// Cuts rows of sequences `owners` into parts of at most `most`. How a sequence's rows are cut does
/// not depend on the others.
fn cut(owners: &[usize], most: usize) -> Vec<Range<usize>> {
    let (mut parts, mut at): (Vec<Range<usize>>, usize) = (Vec::new(), 0);
    for piece in owners.chunk_by(|a, b| a == b).flat_map(|own| own.chunks(most)) {
        let end = at + piece.len();
        match parts.last_mut() {
            Some(part) if end - part.start <= most => part.end = end,
            _ => parts.push(at..end),
        }
        at = end;
    }
    parts
}

/// What a mutex holds; a thread that panicked has left nothing half done in it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_sequence_are_cut_alike_whatever_comes_before_them() {
        let pieces =
            |counts: &[usize]| -> Vec<Range<usize>> { cut(&owners(counts.iter().copied()), 4) };
        assert_eq!(pieces(&[1, 2, 1, 3]), [0..4, 4..7]);
        assert_eq!(pieces(&[2, 3, 0, 9]), [0..2, 2..5, 5..9, 9..13, 13..14]);
        assert!(pieces(&[]).is_empty());
    }
}
