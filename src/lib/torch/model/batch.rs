//! A batch of sequences as a decoder sees it: tokens in generation order.

use ao_core::{Error, Result};
use tch::{Device, Tensor};

/// Sequences in generation order, padded at the end to a common length.
///
/// Row-major (B, T). Padded entries have the target −1 and are never scored; causality keeps them
/// from the entries before them.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Sequences B.
    pub sequences: usize,
    /// Padded length T of the longest.
    pub length: usize,
    /// The token revealed at each step, (B, T); 0 where padded.
    pub tokens: Vec<i64>,
    /// The text position revealed at each step, (B, T): the order; 0 where padded.
    pub order: Vec<i64>,
    /// As `tokens`, with −1 where padded, (B, T).
    pub targets: Vec<i64>,
}

impl Batch {
    /// Puts sequences into generation order: `tokens[i]` in text order, revealed in `orders[i]`,
    /// which must be a permutation of `0..tokens[i].len()`.
    ///
    /// # Errors
    /// When a row's order has another length than its tokens.
    pub fn new(tokens: &[&[u32]], orders: &[&[u32]]) -> Result<Batch> {
        let length = tokens.iter().map(|t| t.len()).max().unwrap_or(0);
        let size = tokens.len() * length;
        let mut batch = Batch {
            sequences: tokens.len(),
            length,
            tokens: vec![0; size],
            order: vec![0; size],
            targets: vec![-1; size],
        };
        for (i, (tokens, order)) in tokens.iter().zip(orders).enumerate() {
            if tokens.len() != order.len() {
                return Err(Error::usage(format!(
                    "an order of {} positions for a sequence of {} tokens; give one as long",
                    order.len(),
                    tokens.len()
                )));
            }
            for (k, &position) in order.iter().enumerate() {
                let token = i64::from(tokens[position as usize]);
                let at = i * length + k;
                batch.tokens[at] = token;
                batch.targets[at] = token;
                batch.order[at] = i64::from(position);
            }
        }
        Ok(batch)
    }

    /// Number of scored targets of a model that is given the first `given` tokens of each.
    pub fn counted(&self, given: usize) -> usize {
        self.targets_after(given).iter().filter(|&&t| t >= 0).count()
    }

    /// `targets` without the first `given` of each sequence, (B, T − given).
    pub fn targets_after(&self, given: usize) -> Vec<i64> {
        self.targets.chunks(self.length.max(1)).flat_map(|t| t[given..].iter().copied()).collect()
    }

    /// Values (B, T − given) as (B, T), 0 where given.
    pub fn with_given(&self, given: usize, values: Vec<f64>) -> Vec<f64> {
        if given == 0 {
            return values;
        }
        let mut all = vec![0.0; self.targets.len()];
        let own = values.chunks(self.length - given);
        for (all, own) in all.chunks_mut(self.length).zip(own) {
            all[given..].copy_from_slice(own);
        }
        all
    }

    /// `tokens` as a tensor, i64 (B, T).
    pub fn tokens_tensor(&self, device: Device) -> Tensor {
        self.tensor(&self.tokens, device)
    }

    /// `order` as a tensor, i64 (B, T).
    pub fn order_tensor(&self, device: Device) -> Tensor {
        self.tensor(&self.order, device)
    }

    fn tensor(&self, values: &[i64], device: Device) -> Tensor {
        Tensor::from_slice(values)
            .view([self.sequences as i64, self.length as i64])
            .to_device(device)
    }
}
