//! The forward passes: NLL along orders.

use ao_core::Result;
use ao_core::score::Cost;

use super::ensemble::Ensemble;
use super::set::Work;
use crate::model::{Batch, Conditioning, Decoder};

/// What a piece of work came to.
#[derive(Debug, Clone)]
pub struct Scored {
    /// Which of the scored sequences it is of.
    pub nth: usize,
    /// Its NLL, nats: the sum, or what a random subset says of it.
    pub sum: f64,
    /// The same for each size of the ensemble.
    pub curve: Option<Vec<f64>>,
    /// Where a random subset was scored: how many tokens, and the standard error of the sum.
    pub subset: Option<(u64, f64)>,
    /// NLL of the scored tokens, nats, in generation order.
    pub nll: Vec<f64>,
}

/// A model, and what it has cost so far.
pub struct Scorer {
    /// The model.
    pub model: Box<dyn Decoder>,
    /// Its tables.
    pub conditioning: Conditioning,
    /// Each sequence goes through the model by itself ([`crate::model::Loaded::alone`]).
    pub alone: bool,
    /// Orderings of each context, where it is not the given one alone.
    pub ensemble: Option<Ensemble>,
    /// Rows forwarded, padding not counted.
    pub cost: Cost,
}

impl Scorer {
    /// Scores a batch of works.
    ///
    /// # Errors
    /// When an order does not fit its tokens.
    pub fn score(&mut self, works: &[Work]) -> Result<Vec<Scored>> {
        match &self.ensemble {
            None => self.chain(works),
            Some(ensemble) => {
                let (model, cost) = (self.model.as_ref(), &mut self.cost);
                ensemble.score(model, &self.conditioning, works, self.alone, cost)
            }
        }
    }

    /// Along their orders.
    fn chain(&mut self, works: &[Work]) -> Result<Vec<Scored>> {
        let mut scored = Vec::with_capacity(works.len());
        for part in works.chunks(if self.alone { 1 } else { works.len().max(1) }) {
            let tokens: Vec<&[u32]> = part.iter().map(|w| w.tokens.as_slice()).collect();
            let orders: Vec<&[u32]> = part.iter().map(|w| w.order.as_slice()).collect();
            let mut batch = Batch::new(&tokens, &orders)?;
            let length = batch.length;
            for (work, targets) in part.iter().zip(batch.targets.chunks_mut(length)) {
                leave_out(work, targets);
            }
            let nll = self.model.nll(&batch, &self.conditioning);
            let given = self.model.given();
            for (at, work) in part.iter().enumerate() {
                let rows = at * length + given..at * length + work.tokens.len();
                let pairs = batch.targets[rows.clone()].iter().zip(&nll[rows.clone()]);
                let nll: Vec<f64> = pairs.filter(|(t, _)| **t >= 0).map(|(_, &x)| x).collect();
                self.cost.rows_forwarded += rows.len() as u64;
                self.cost.rows_through_head += nll.len() as u64;
                let sum = nll.iter().sum();
                scored.push(Scored { nth: work.nth, sum, curve: None, subset: None, nll });
            }
        }
        Ok(scored)
    }
}

/// Takes the targets out that a work does not score.
fn leave_out(work: &Work, targets: &mut [i64]) {
    let Some(held) = &work.held else { return };
    for (position, target) in work.order.iter().zip(targets) {
        if held.binary_search(position).is_err() {
            *target = -1;
        }
    }
}
