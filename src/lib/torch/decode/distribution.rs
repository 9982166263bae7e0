//! From a row of logits and a filter to a distribution, and from a distribution to a token.
//!
//! A distribution is a softmax in f64 over the real ids that the filter leaves; a draw inverts its cumulative
//! sum, in id order, at one uniform of 53 bits. Filters apply in the order: repetition penalty,
//! bans, temperature, top-k, top-p, min-p.

use std::cmp::Ordering;

use ao_core::{Error, Result};

use super::filter::{Filter, TopPRule};
use crate::kernels::categorical::{self, SPAN};

/// How draws are made, for the record.
pub const DRAW: &str = "f64 softmax, inverse CDF, one 53-bit uniform a token";

/// The distribution of one token.
pub enum Distribution<'a> {
    /// A softmax of scaled logits over all real ids.
    Whole {
        /// Logits of the real ids.
        row: &'a [f32],
        /// The largest of them.
        max: f32,
        /// Their factor: 1 / temperature.
        scale: f64,
        /// Σ exp((logit − max)·scale) of each span of ids.
        sums: &'a [f64],
        /// The sum of `sums`.
        total: f64,
    },
    /// What a filter leaves: ids ascending with weights, and the sum of these.
    Kept(&'a [(u32, f64)], f64),
}

impl Distribution<'_> {
    /// The probability of `id`.
    pub fn probability(&self, id: u32) -> f64 {
        match *self {
            Distribution::Whole { row, max, scale, total, .. } => {
                row.get(id as usize).map_or(0.0, |&x| weight(x, max, scale) / total)
            }
            Distribution::Kept(kept, total) => {
                kept.binary_search_by_key(&id, |k| k.0).map_or(0.0, |at| kept[at].1 / total)
            }
        }
    }

    /// The token at which the cumulative probability, in id order, passes `u` in [0, 1).
    pub fn draw(&self, u: f64) -> u32 {
        match *self {
            Distribution::Whole { row, max, scale, sums, total } => {
                invert_row(row, max, scale, sums, u * total)
            }
            Distribution::Kept(kept, total) => {
                let mut left = u * total;
                for &(id, weight) in kept {
                    left -= weight;
                    if left < 0.0 {
                        return id;
                    }
                }
                // Rounding may leave a hair; the last token with weight takes it.
                kept.iter().rev().find(|k| k.1 > 0.0).map_or(0, |k| k.0)
            }
        }
    }

    /// Adds `factor` times each id's probability to `out`.
    fn add_to(&self, factor: f64, out: &mut [f64]) {
        match *self {
            Distribution::Whole { row, max, scale, total, .. } => {
                categorical::add_weights(row, max, scale, factor / total, out);
            }
            Distribution::Kept(kept, total) => {
                for &(id, weight) in kept {
                    out[id as usize] += factor * weight / total;
                }
            }
        }
    }
}

#[inline(always)]
fn weight(x: f32, max: f32, scale: f64) -> f64 {
    categorical::exp((f64::from(x) - f64::from(max)) * scale)
}

/// The memory that one distribution needs.
#[derive(Default)]
struct Buffers {
    row: Vec<f32>,
    sums: Vec<f64>,
    kept: Vec<(u32, f64)>,
}

/// Draws tokens; holds the memory that draws need.
#[derive(Default)]
pub struct Drawer {
    first: Buffers,
    second: Buffers,
    sums: Vec<f64>,
    dense: Vec<f64>,
}

/// A drawn token and −ln of its probability under the unfiltered model, over all rows of the head.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// The id.
    pub token: u32,
    /// `−ln softmax(logits)[token]`, nats.
    pub nll: f64,
    /// The likeliest real ids with ln of their probability, where they were asked for.
    pub candidates: Vec<(u32, f64)>,
}

/// A distribution that a token was drawn from before the model's own was known.
#[derive(Debug, Clone, Copy)]
pub struct Proposal<'a> {
    /// The logits that it is of.
    pub logits: &'a [f32],
    /// The tokens that its filter took for those already there.
    pub seen: &'a [u32],
    /// What was drawn.
    pub token: u32,
    /// With which probability.
    pub probability: f64,
}

impl Drawer {
    /// Draws from `logits` (V) at `u` in [0, 1); `seen` are the tokens already in the sequence.
    ///
    /// # Errors
    /// [`Error::NonFinite`] when a logit is NaN or infinite.
    pub fn draw(&mut self, filter: &Filter, logits: &[f32], seen: &[u32], u: f64) -> Result<Draw> {
        let max = finite_max(logits)?;
        let distribution = self.first.distribution(filter, logits, seen);
        let token = distribution.draw(u);
        let nll = match distribution {
            // The distribution is the model's own over the real ids: only padding is missing in its sum.
            Distribution::Whole { row, max, scale: 1.0, total, .. } if !filter.touches() => {
                let padding = logits[row.len()..].iter();
                let sum: f64 = padding.map(|&x| (f64::from(x) - f64::from(max)).exp()).sum();
                (total + sum).ln() + f64::from(max) - f64::from(logits[token as usize])
            }
            _ => self.nll(logits, max, token),
        };
        Ok(Draw { token, nll, candidates: Vec::new() })
    }

    /// A draw at `u` and its probability under the filtered distribution.
    ///
    /// # Errors
    /// As [`Drawer::draw`].
    pub fn propose(
        &mut self,
        filter: &Filter,
        logits: &[f32],
        seen: &[u32],
        u: f64,
    ) -> Result<(u32, f64)> {
        finite_max(logits)?;
        let distribution = self.first.distribution(filter, logits, seen);
        let token = distribution.draw(u);
        Ok((token, distribution.probability(token)))
    }

    /// Puts a proposed token to the test of the distribution q of `logits`: it stays with probability
    /// min(1, q/p), decided by `coin`; else another is drawn, at `u`, from what q has more than p,
    /// max(q − p, 0) normalised. Either way the outcome has the distribution q. Whether the token stayed,
    /// and the outcome.
    ///
    /// # Errors
    /// As [`Drawer::draw`].
    pub fn verify(
        &mut self,
        filter: &Filter,
        logits: &[f32],
        seen: &[u32],
        proposal: Proposal,
        (coin, u): (f64, f64),
    ) -> Result<(bool, Draw)> {
        let max = finite_max(logits)?;
        let distribution = self.first.distribution(filter, logits, seen);
        let stays = coin * proposal.probability < distribution.probability(proposal.token);
        let token = if stays {
            proposal.token
        } else {
            let other = self.second.distribution(filter, proposal.logits, proposal.seen);
            self.dense.clear();
            self.dense.resize(logits.len(), 0.0);
            distribution.add_to(1.0, &mut self.dense);
            other.add_to(-1.0, &mut self.dense);
            // Nothing is left only where rounding made equal distributions differ: then q itself serves.
            invert_positive(&self.dense, u).unwrap_or_else(|| distribution.draw(u))
        };
        Ok((stays, Draw { token, nll: self.nll(logits, max, token), candidates: Vec::new() }))
    }

    /// The chance min(1, q/p) that [`Drawer::verify`] keeps a token with, and −ln of its
    /// probability under the unfiltered model.
    ///
    /// # Errors
    /// As [`Drawer::draw`].
    pub fn judge(
        &mut self,
        filter: &Filter,
        logits: &[f32],
        seen: &[u32],
        (token, probability): (u32, f64),
    ) -> Result<(f64, Draw)> {
        let max = finite_max(logits)?;
        let ratio = self.first.distribution(filter, logits, seen).probability(token) / probability;
        let nll = self.nll(logits, max, token);
        Ok((ratio.min(1.0), Draw { token, nll, candidates: Vec::new() }))
    }

    /// Refuses logits that are not finite.
    ///
    /// # Errors
    /// As [`Drawer::draw`].
    pub fn check(&self, logits: &[f32]) -> Result<()> {
        finite_max(logits).map(|_| ())
    }

    /// −ln softmax(logits)[token] over all rows of the head, nats.
    fn nll(&mut self, logits: &[f32], max: f32, token: u32) -> f64 {
        categorical::span_sums(logits, max, 1.0, &mut self.sums);
        let sum: f64 = self.sums.iter().sum();
        sum.ln() + f64::from(max) - f64::from(logits[token as usize])
    }

    /// The `count` likeliest of the real ids under the unfiltered model, likeliest first and of
    /// equal ones the lowest id first, with ln of their probability over all rows of the head.
    pub fn candidates(&mut self, filter: &Filter, logits: &[f32], count: usize) -> Vec<(u32, f64)> {
        let real = &logits[..filter.vocab_used.min(logits.len())];
        let mut ids: Vec<u32> = (0..real.len() as u32).collect();
        let likelier =
            |a: &u32, b: &u32| real[*b as usize].total_cmp(&real[*a as usize]).then(a.cmp(b));
        if count == 0 {
            return Vec::new();
        }
        if count < ids.len() {
            ids.select_nth_unstable_by(count - 1, likelier);
            ids.truncate(count);
        }
        ids.sort_unstable_by(likelier);
        let Some(&first) = ids.first() else { return Vec::new() };
        let (max, _) = categorical::row_max(logits);
        let sum = self.nll(logits, max, first) + f64::from(logits[first as usize]); // ln Σ exp
        ids.into_iter().map(|id| (id, f64::from(logits[id as usize]) - sum)).collect()
    }

    /// `draw` with its candidates, where any are asked for.
    pub fn with_candidates(
        &mut self,
        mut draw: Draw,
        filter: &Filter,
        logits: &[f32],
        count: usize,
    ) -> Draw {
        if count > 0 {
            draw.candidates = self.candidates(filter, logits, count);
        }
        draw
    }

    /// The distribution that [`Drawer::draw`] draws from: ids ascending with their probabilities.
    pub fn probabilities(
        &mut self,
        filter: &Filter,
        logits: &[f32],
        seen: &[u32],
    ) -> Vec<(u32, f64)> {
        let distribution = self.first.distribution(filter, logits, seen);
        let ids = 0..filter.vocab_used.min(logits.len()) as u32;
        ids.map(|id| (id, distribution.probability(id))).filter(|k| k.1 > 0.0).collect()
    }
}

/// The largest logit of a row.
fn finite_max(logits: &[f32]) -> Result<f32> {
    let (max, bad) = categorical::row_max(logits);
    if bad || max == f32::NEG_INFINITY {
        return Err(Error::NonFinite(
            "the model gave a logit that is not finite; are its weights sound?".into(),
        ));
    }
    Ok(max)
}

impl Buffers {
    fn distribution<'a>(
        &'a mut self,
        filter: &Filter,
        logits: &'a [f32],
        seen: &[u32],
    ) -> Distribution<'a> {
        let used = filter.vocab_used.min(logits.len());
        let row = if filter.touches() {
            self.row.clear();
            self.row.extend_from_slice(&logits[..used]);
            filter.touch(&mut self.row, seen);
            self.row.as_slice()
        } else {
            &logits[..used]
        };
        let (max, _) = categorical::row_max(row);
        if filter.temperature == 0.0 {
            self.kept.clear();
            self.kept.push((row.iter().position(|&x| x == max).unwrap_or(0) as u32, 1.0));
        } else {
            let scale = 1.0 / filter.temperature;
            if filter.keeps_all() {
                categorical::span_sums(row, max, scale, &mut self.sums);
                let total = self.sums.iter().sum();
                return Distribution::Whole { row, max, scale, sums: &self.sums, total };
            }
            keep(&mut self.kept, filter, row, max, scale);
        }
        Distribution::Kept(&self.kept, self.kept.iter().map(|k| k.1).sum())
    }
}

/// What the filter leaves: ids ascending with weights that are not normalised.
fn keep(kept: &mut Vec<(u32, f64)>, filter: &Filter, row: &[f32], max: f32, scale: f64) {
    kept.clear();
    let all = row.iter().enumerate().map(|(id, &x)| (id as u32, weight(x, max, scale)));
    kept.extend(all.filter(|k| k.1 > 0.0));
    if filter.top_k > 0 && filter.top_k < kept.len() {
        kept.select_nth_unstable_by(filter.top_k - 1, likelier);
        kept.truncate(filter.top_k);
    }
    if filter.top_p < 1.0 {
        let need = filter.top_p * kept.iter().map(|k| k.1).sum::<f64>();
        // Only the likeliest are sorted: those above a floor that falls until they suffice.
        let mut floor: f64 = 0.02;
        let mut front;
        loop {
            front = partition(kept, floor);
            let mass: f64 = kept[..front].iter().map(|k| k.1).sum();
            if mass >= need || front == kept.len() {
                break;
            }
            floor *= 0.02;
        }
        kept[..front].sort_unstable_by(likelier);
        let mut mass = 0.0;
        let crossing = kept[..front].iter().position(|k| {
            mass += k.1;
            mass >= need
        });
        let crossing = crossing.unwrap_or(front - 1);
        let size = match filter.top_p_rule {
            TopPRule::Smallest => crossing + 1,
            // It keeps what has a cumulative probability of at most p.
            TopPRule::Published if mass <= need => crossing + 1,
            TopPRule::Published => crossing.max(1),
        };
        kept.truncate(size);
    }
    if filter.min_p > 0.0 {
        kept.retain(|k| k.1 >= filter.min_p); // the likeliest has weight 1
    }
    kept.sort_unstable_by_key(|k| k.0);
}

fn likelier(a: &(u32, f64), b: &(u32, f64)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Moves entries of at least `floor` to the front; how many they are.
fn partition(kept: &mut [(u32, f64)], floor: f64) -> usize {
    let mut front = 0;
    for i in 0..kept.len() {
        if kept[i].1 >= floor || floor < 1e-300 {
            kept.swap(front, i);
            front += 1;
        }
    }
    front
}

/// The id at which the cumulative weight passes `left`.
fn invert_row(row: &[f32], max: f32, scale: f64, sums: &[f64], mut left: f64) -> u32 {
    let mut last = 0;
    for (span, &sum) in sums.iter().enumerate() {
        if left >= sum {
            left -= sum;
            continue;
        }
        let start = span * SPAN;
        for (id, &x) in row.iter().enumerate().skip(start).take(SPAN) {
            let weight = weight(x, max, scale);
            left -= weight;
            if weight > 0.0 {
                last = id as u32;
            }
            if left < 0.0 {
                return id as u32;
            }
        }
        // The span's sum was added up in another order; a hair remains, its last token takes it.
        return last;
    }
    row.iter().rposition(|&x| x > f32::NEG_INFINITY).unwrap_or(0) as u32
}

/// The index at which the cumulative sum of the positive entries passes `u` of their total; none
/// where no entry is positive.
fn invert_positive(entries: &[f64], u: f64) -> Option<u32> {
    let mut left = u * entries.iter().filter(|x| **x > 0.0).sum::<f64>();
    let mut last = None;
    for (id, &x) in entries.iter().enumerate().filter(|(_, x)| **x > 0.0) {
        left -= x;
        last = Some(id as u32);
        if left < 0.0 {
            break;
        }
    }
    last
}

#[cfg(test)]
#[path = "distribution_tests.rs"]
mod tests;
