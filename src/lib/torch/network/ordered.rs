//! Texts in generation order, as a causal network sees them.
//!
//! Row k holds the token of step k − 1 and predicts that of step k; row 0 holds the [None] token.
//! Networks without a [None] token have no row 0: the first token of an order is given.

use ao_core::{Error, Result};
use tch::Device;

use super::rows::{NONE, Rows};

/// Sequences in generation order, padded at the end to a common length.
///
/// Row-major (B, T). Padded entries have the target −1 and are never scored; causality keeps them
/// from the entries before them.
#[derive(Debug, Clone, Default)]
pub struct OrderedTexts {
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

impl OrderedTexts {
    /// Puts texts into generation order: `texts[i]` revealed in `orders[i]`, which must be a
    /// permutation of `0..texts[i].len()`.
    ///
    /// # Errors
    /// When a row's order has another length than its text.
    pub fn new(texts: &[&[u32]], orders: &[&[u32]]) -> Result<OrderedTexts> {
        let length = texts.iter().map(|t| t.len()).max().unwrap_or(0);
        let size = texts.len() * length;
        let mut all = OrderedTexts {
            sequences: texts.len(),
            length,
            tokens: vec![0; size],
            order: vec![0; size],
            targets: vec![-1; size],
        };
        for (i, (tokens, order)) in texts.iter().zip(orders).enumerate() {
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
                all.tokens[at] = token;
                all.targets[at] = token;
                all.order[at] = i64::from(position);
            }
        }
        Ok(all)
    }

    /// The rows of a network that is given the first `given` tokens of each, (B, T − given).
    pub fn rows(&self, given: usize, device: Device) -> Rows {
        let t = self.length;
        let mut parts: [Vec<i64>; 3] = Default::default();
        for (tokens, order) in self.tokens.chunks(t.max(1)).zip(self.order.chunks(t.max(1))) {
            for step in given..t {
                let held = step.checked_sub(1);
                parts[0].push(held.map_or(NONE, |k| tokens[k]));
                parts[1].push(held.map_or(NONE, |k| order[k]));
                parts[2].push(order[step]);
            }
        }
        Rows::new(self.sequences, parts.each_ref().map(Vec::as_slice), device)
    }

    /// `targets` without the first `given` of each sequence, (B, T − given).
    pub fn targets_after(&self, given: usize) -> Vec<i64> {
        self.targets.chunks(self.length.max(1)).flat_map(|t| t[given..].iter().copied()).collect()
    }
}
