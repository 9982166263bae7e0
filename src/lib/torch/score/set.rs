//! What is scored of each sequence, and along which order.

use ao_core::Result;
use ao_core::score::{Estimate, GivenOrderings, SpanSpec, held_out};
use serde_json::{Value, json};

use super::corpus::{Corpus, Sequence};
use super::orders::Orders;
use crate::family::Work;

/// Spans that are held out, and what a model is given of the rest.
#[derive(Debug, Clone, Copy)]
pub struct Cloze {
    /// How much is held out.
    pub spec: SpanSpec,
    /// Where the spans lie.
    pub seed: u64,
    /// Whether the context is only the tokens before, as for a model that reads from left to right.
    /// Otherwise it is all that is not held out, then the spans in ascending order.
    pub left: bool,
}

/// The scored sequences of a corpus.
pub struct Set<'a> {
    /// Where they come from.
    pub corpus: &'a Corpus,
    /// The orders that they are scored along.
    pub orders: Orders,
    /// Leading tokens of an order that the model is given.
    pub given: usize,
    /// Orderings of contexts, where they are given.
    pub orderings: Option<GivenOrderings>,
    /// Spans to score instead of whole sequences.
    pub cloze: Option<Cloze>,
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
    /// The held-out spans.
    pub spans: Option<Vec<[u64; 2]>>,
}

impl Set<'_> {
    /// Sequence `index`, `None` where it has nothing to score.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn item(&mut self, index: u64) -> Result<Option<Item>> {
        let sequence = self.corpus.read(index)?;
        let length = sequence.tokens.len();
        let (count, spans) = match self.cloze {
            None => (length.saturating_sub(self.given), None),
            Some(cloze) => match cloze.spec.place(cloze.seed, index, length) {
                None => (0, None),
                Some(spans) => (held_out(&spans).len(), Some(spans)),
            },
        };
        if count == 0 {
            self.left_out += 1;
            return Ok(None);
        }
        Ok(Some(Item { sequence, count: count as u64, spans }))
    }

    /// The order of row k of a sequence.
    ///
    /// # Errors
    /// As [`Orders::row`].
    pub fn work(&mut self, nth: usize, item: &Item, k: u64) -> Result<Work> {
        let tokens = item.sequence.tokens.clone();
        if let (Some(cloze), Some(spans)) = (self.cloze, &item.spans) {
            let held = held_out(spans);
            let mut order: Vec<u32> = (0..tokens.len() as u32).collect();
            if !cloze.left {
                order.sort_by_key(|position| held.binary_search(position).is_ok()); // stable
            }
            let row = item.sequence.index;
            let held = Some(held);
            return Ok(Work { nth, row, tokens, order, held, contexts: None });
        }
        let order = self.orders.row(item.sequence.index, k, tokens.len())?;
        let row = self.orders.number(item.sequence.index, k);
        let contexts = match &mut self.orderings {
            Some(given) => Some(given.read(item.sequence.index, &order)?),
            None => None,
        };
        Ok(Work { nth, row, tokens, order, held: None, contexts })
    }

    /// Bytes of text of the tokens that a work scores.
    pub fn bytes(&self, item: &Item, work: &Work) -> Option<u64> {
        let given: Vec<u32> = match &work.held {
            None => work.order[..self.given.min(work.order.len())].to_vec(),
            Some(held) => {
                let all = 0..work.order.len() as u32;
                all.filter(|position| held.binary_search(position).is_err()).collect()
            }
        };
        self.corpus.bytes(&item.sequence, &given)
    }

    /// What the numbers are.
    pub fn estimate(&self) -> Estimate {
        if self.cloze.is_some() { Estimate::Exact } else { self.orders.estimate() }
    }

    /// The orders, for the summary.
    pub fn describe(&self) -> Value {
        match self.cloze {
            Some(cloze) => json!({"cloze": cloze.spec, "seed": cloze.seed}),
            None => self.orders.describe(),
        }
    }

    /// What held-out spans are given, for the summary.
    pub fn conditioning(&self) -> Option<String> {
        self.cloze.map(|cloze| if cloze.left { "left" } else { "both" }.to_owned())
    }
}
