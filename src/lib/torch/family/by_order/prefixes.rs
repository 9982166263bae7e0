//! Predictions after many orderings of growing contexts, each made from the one before.
//!
//! A prefix is one sequence under one line of orderings. To predict a token after an ordering π of i
//! tokens takes the rows of π's tokens and, in the last row, the logits. A row's keys and values
//! depend on the tokens before it and on its own target, the token that follows in π: so of the
//! ordering before, the rows stay valid whose tokens and targets are the same, and only those behind
//! are forwarded. Many prefixes share a pass over one cache, and only the last row of each goes
//! through the head.

use ao_core::Result;
use ao_core::score::Cost;
use ao_core::score::orderings::Ordering;
use tch::{Device, Kind};

use crate::decode::few_row::FewRow;
use crate::network::attention::{Cache, CachedRow};
use crate::network::{Network, cached_pass};

/// Rows of a pass that matrix products are large enough with.
const ROWS: usize = 2048;
/// Most bytes of keys and values that are held.
const CACHE_BYTES: usize = 1 << 30;

/// A network, and its passes by the toolkit's own kernels where they serve it.
pub type Passes<'a> = (&'a dyn Network, Option<&'a FewRow>);

/// Where a prefix's orderings come from.
pub enum Orderings {
    /// Drawn: entries are steps of the order.
    Drawn(Ordering),
    /// Given: for each step asked for, in turn, the positions before it.
    Given(std::vec::IntoIter<Vec<u32>>),
}

/// One sequence under one line of orderings.
pub struct Prefix<'a> {
    /// Token ids in text order.
    pub tokens: &'a [u32],
    /// The order, whose step t is predicted after orderings of its first t positions.
    pub order: &'a [u32],
    /// The steps that are predicted, ascending.
    pub steps: &'a [usize],
    /// The orderings.
    pub orderings: Orderings,
}

impl Prefix<'_> {
    /// Rows of its longest context.
    pub fn longest(&self) -> usize {
        self.steps.last().map_or(0, |&step| step + 1)
    }

    /// The positions before step `step`, then the one that it predicts.
    fn path(&mut self, step: usize) -> Vec<u32> {
        let mut path: Vec<u32> = match &mut self.orderings {
            Orderings::Drawn(line) => {
                line.of(step).iter().map(|&s| self.order[s as usize]).collect()
            }
            Orderings::Given(contexts) => contexts.next().unwrap_or_default(),
        };
        path.push(self.order[step]);
        path
    }
}

/// How many prefixes whose longest context has `length` rows go through the model together.
pub fn at_once(network: &dyn Network, length: usize) -> usize {
    let base = network.base();
    let bytes = if base.compute == Kind::Float { 4 } else { 2 };
    let prefix = network.cache_shape().row() * length.max(1) * bytes;
    // A prefix forwards about a quarter of its length a step.
    let rows = if base.device() == Device::Cpu { ROWS } else { 8 * ROWS };
    (4 * rows / length.max(1)).clamp(1, 256).min((CACHE_BYTES / prefix.max(1)).max(1))
}

/// NLL in nats of each prefix's predicted tokens, in the order of its steps; passes are made by
/// `few_row` where there is one.
///
/// # Errors
/// Only from libtorch.
pub fn predict(
    (network, few_row): Passes,
    prefixes: &mut [Prefix],
    cost: &mut Cost,
) -> Result<Vec<Vec<f64>>> {
    let base = network.base();
    let slots = prefixes.iter().map(Prefix::longest).max().unwrap_or(0);
    let passes = prefixes.iter().map(|s| s.steps.len()).max().unwrap_or(0);
    let first = base.given();
    let (compute, device) = (base.compute, base.device());
    let mut cache = Cache::new(network.cache_shape(), prefixes.len(), slots, compute, device);
    let mut cached: Vec<Vec<u32>> = vec![Vec::new(); prefixes.len()];
    let mut nll = vec![Vec::new(); prefixes.len()];
    for pass in 0..passes {
        let (mut rows, mut last) = (Vec::new(), Vec::new());
        let (mut live, mut targets) = (Vec::new(), Vec::new());
        for (sequence, prefix) in prefixes.iter_mut().enumerate() {
            let Some(&step) = prefix.steps.get(pass) else { continue };
            let path = prefix.path(step);
            // Row k depends on path[..=k]; the last one's logits are wanted, so it runs anew.
            let same = cached[sequence].iter().zip(&path).take_while(|(a, b)| a == b).count();
            for k in same.clamp(first, path.len() - 1)..path.len() {
                let position = k.checked_sub(1).map(|k| path[k]);
                let held = position.map(|p| (prefix.tokens[p as usize], p));
                let slot = k - first;
                rows.push(CachedRow { sequence, slot, visible: slot, held, aim: path[k] });
            }
            last.push(rows.len() - 1);
            targets.push(i64::from(prefix.tokens[prefix.order[step] as usize]));
            cached[sequence] = path;
            live.push(sequence);
        }
        cost.rows_forwarded += rows.len() as u64;
        cost.rows_through_head += live.len() as u64;
        let hidden = match few_row {
            Some(few_row) => few_row.pass(&rows, &last, &mut cache),
            None => cached_pass(network, &rows, &last, &mut cache),
        };
        let scores = base.head.nll(&hidden, &targets);
        for (sequence, score) in live.into_iter().zip(scores) {
            nll[sequence].push(score);
        }
    }
    Ok(nll)
}
