//! What is scored of each sequence, and along which order.

use ao_core::Result;

use super::corpus::{Corpus, Sequence};
use super::orders::Orders;

/// One sequence along one order.
#[derive(Debug, Clone)]
pub struct Work {
    /// Which of the scored sequences it is, from 0; those left out do not count.
    pub nth: usize,
    /// Row of the orders: the sequence's number times K, plus k.
    pub row: u64,
    /// Token ids in text order.
    pub tokens: Vec<u32>,
    /// The order, a permutation of their positions.
    pub order: Vec<u32>,
    /// Tokens that are scored.
    pub scored: u64,
}

/// The scored sequences of a corpus.
pub struct Set<'a> {
    /// Where they come from.
    pub corpus: &'a Corpus,
    /// The orders that they are scored along.
    pub orders: Orders,
    /// Leading tokens of an order that the model is given.
    pub given: usize,
    /// Sequences without a token to score.
    pub left_out: u64,
}

/// A sequence in the set.
#[derive(Debug, Clone)]
pub struct Item {
    /// The sequence.
    pub sequence: Sequence,
    /// Tokens that are scored.
    pub count: u64,
}

impl Set<'_> {
    /// Sequence `index`, `None` where it has nothing to score.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn item(&mut self, index: u64) -> Result<Option<Item>> {
        let sequence = self.corpus.read(index)?;
        let count = sequence.tokens.len().saturating_sub(self.given) as u64;
        if count == 0 {
            self.left_out += 1;
            return Ok(None);
        }
        Ok(Some(Item { sequence, count }))
    }

    /// The order of row k of a sequence.
    ///
    /// # Errors
    /// As [`Orders::row`].
    pub fn work(&mut self, nth: usize, item: &Item, k: u64) -> Result<Work> {
        let tokens = item.sequence.tokens.clone();
        let order = self.orders.row(item.sequence.index, k, tokens.len())?;
        let row = self.orders.number(item.sequence.index, k);
        Ok(Work { nth, row, tokens, order, scored: item.count })
    }

    /// Bytes of text of the tokens that are scored along `order`.
    pub fn bytes(&self, item: &Item, order: &[u32]) -> Option<u64> {
        self.corpus.bytes(&item.sequence, &order[..self.given.min(order.len())])
    }
}
