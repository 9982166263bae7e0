//! Passes of the network over masked copies, the head on the asked rows, and draws from them.

use std::sync::Mutex;
use std::time::Instant;

use ao_core::Result;
use tch::Tensor;

use super::{Counters, Settings};
use crate::decode::filter::Filter;
use crate::decode::generate::share;
use crate::decode::law::{Draw, Sampler};
use crate::model::{Encoder, Masked};

/// Most bytes of logits that exist at a time.
const LOGIT_BYTES: usize = 64 << 20;

/// An encoder with what drawing from it needs.
pub(super) struct Network<'a> {
    pub encoder: &'a Encoder,
    filter: &'a Filter,
    candidates: usize,
    /// Samplers that no thread uses at the moment.
    samplers: Mutex<Vec<Sampler>>,
    /// Logits of the rows at hand.
    logits: Vec<f32>,
    pub counters: Counters,
}

impl<'a> Network<'a> {
    pub fn new(encoder: &'a Encoder, settings: &'a Settings) -> Network<'a> {
        Network {
            encoder,
            filter: &settings.filter,
            candidates: settings.candidates,
            samplers: Mutex::default(),
            logits: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// A draw from each hidden row (N, C), by one uniform each; row i is of copy `owners[i]`.
    pub fn draw(
        &mut self,
        hidden: &Tensor,
        owners: &[usize],
        seen: &[Vec<u32>],
        uniforms: &[f64],
    ) -> Result<Vec<Draw>> {
        let (filter, count) = (self.filter, self.candidates);
        self.rows(hidden, &|at, logits, sampler| {
            let draw = sampler.draw(filter, logits, &seen[owners[at]], uniforms[at])?;
            Ok(sampler.with_candidates(draw, filter, logits, count))
        })
    }

    /// The tokens that each copy shows, where a filter asks for them.
    pub fn seen(&self, copies: &[Masked]) -> Vec<Vec<u32>> {
        let mask = self.encoder.mask();
        let shown = |copy: &Masked| match self.filter.repetition_penalty == 1.0 {
            true => Vec::new(),
            false => copy.tokens.iter().copied().filter(|&t| t != mask).collect(),
        };
        copies.iter().map(shown).collect()
    }

    /// A pass over the copies: the hidden rows (N, C) of what they ask, one copy after the other.
    pub fn pass(&mut self, copies: &[Masked]) -> Tensor {
        let started = Instant::now();
        let hidden = self.encoder.asked_rows(&copies.iter().collect::<Vec<_>>());
        self.counters.trunk += started.elapsed();
        self.counters.passes += 1;
        self.counters.rows_forwarded += copies.iter().map(|c| c.tokens.len() as u64).sum::<u64>();
        hidden
    }

    /// Which copy each asked row is of.
    pub fn owners(copies: &[Masked]) -> Vec<usize> {
        let of = |(owner, copy): (usize, &Masked)| std::iter::repeat_n(owner, copy.asked.len());
        copies.iter().enumerate().flat_map(of).collect()
    }

    /// Calls `work` with the number and the logits of each hidden row (N, C), on several threads
    /// where that pays. Outcomes in order.
    pub fn rows<T: Send>(
        &mut self,
        hidden: &Tensor,
        work: &(impl Fn(usize, &[f32], &mut Sampler) -> Result<T> + Sync),
    ) -> Result<Vec<T>> {
        let all = hidden.size()[0] as usize;
        self.counters.rows_through_head += all as u64;
        let vocab = self.encoder.head().vocab_size();
        let most = (LOGIT_BYTES / (4 * vocab)).max(1);
        let mut outcomes = Vec::with_capacity(all);
        for start in (0..all).step_by(most) {
            let count = most.min(all - start);
            let started = Instant::now();
            let rows = hidden.narrow(0, start as i64, count as i64);
            self.logits.resize(self.logits.len().max(count * vocab), 0.0);
            tch::no_grad(|| self.encoder.head().logits_into(&rows, &mut self.logits));
            let between = Instant::now();
            self.counters.head += between - started;
            let values = &self.logits;
            outcomes.extend(share(count, vocab, &self.samplers, &|i, sampler| {
                work(start + i, &values[i * vocab..(i + 1) * vocab], sampler)
            })?);
            self.counters.sampling += between.elapsed();
        }
        Ok(outcomes)
    }
}
