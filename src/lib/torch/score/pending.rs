//! Sequences on their way to a record: sums along the orders scored so far.

use ao_core::score::{Design, Estimate, SequenceRecord, Totals};

use super::set::Item;
use crate::family::Scored;

/// A sequence some of whose orders are still to be scored.
pub struct Open {
    /// Which of the scored sequences it is, from 0.
    pub nth: usize,
    /// The sequence.
    pub item: Item,
    /// Bytes of text of its scored tokens.
    pub bytes: Option<u64>,
    /// What its numbers are.
    pub estimate: Estimate,
    /// The sum along each order so far.
    pub sums: Vec<f64>,
    /// Σ over orders, for each size of the ensemble.
    curve: Option<Vec<f64>>,
    /// Scored positions, and Σ over orders of the variance that their choice brings.
    subset: Option<(u64, f64)>,
    /// NLL of its tokens, order after order.
    pub nll: Vec<f64>,
}

impl Open {
    /// Nothing scored yet.
    pub fn new(nth: usize, item: Item, bytes: Option<u64>, estimate: Estimate) -> Open {
        let (sums, nll) = (Vec::new(), Vec::new());
        Open { nth, item, bytes, estimate, sums, curve: None, subset: None, nll }
    }

    /// Adds the outcome along one more order; `keep` its tokens' NLL.
    pub fn add(&mut self, scored: Scored, keep: bool) {
        self.sums.push(scored.sum);
        if let Some(curve) = scored.curve {
            let sums = self.curve.get_or_insert_with(|| vec![0.0; curve.len()]);
            sums.iter_mut().zip(curve).for_each(|(sum, x)| *sum += x);
        }
        if let Some((count, error)) = scored.subset {
            let (_, variance) = self.subset.unwrap_or_default();
            self.subset = Some((count, variance + error * error));
        }
        if keep {
            self.nll.extend(scored.nll);
        }
    }

    /// Its record, once every order is scored.
    pub fn record(self, per_token: bool) -> SequenceRecord {
        let index = self.item.sequence.index;
        let orders = self.sums.len() as f64;
        let mut record =
            SequenceRecord::new(index, self.item.count, self.estimate, self.sums, self.bytes);
        record.document = self.item.sequence.document;
        record.spans = self.item.spans;
        record.nll_nats_curve = self.curve.map(|c| c.iter().map(|sum| sum / orders).collect());
        record.positions_scored = self.subset.map(|(count, _)| count);
        let of_positions = self.subset.map(|(_, v)| v.sqrt() / orders);
        record.std_error_positions_nats = of_positions.map(|e| Some(e).filter(|e| e.is_finite()));
        record.token_nll_nats = per_token.then_some(self.nll);
        record
    }
}

/// The standard error per token that the choice of orders brings; `None` while there are too few of
/// them to tell ([`Totals::order_noise`]).
pub fn order_noise(open: &[Open], design: Design) -> Option<f64> {
    let mut totals = Totals::new(design);
    for o in open {
        let index = o.item.sequence.index;
        totals.add(&SequenceRecord::new(index, o.item.count, o.estimate, o.sums.clone(), None));
    }
    totals.order_noise()
}
