//! A causal network as decoding asks it: sequences over one cache.
//!
//! Row 0 of a sequence holds the [None] token, row k the token of step k − 1; row k predicts the
//! token of step k, conditioned on its position. The keys and values of a row depend on that position too, so
//! a row is final only once the position of the next step is.

use ao_core::{Error, Result};
use tch::Tensor;

use super::few_row::FewRow;
use super::predictor::{Ask, Predictor, Reader, Reading};
use super::sequence::Sequence;
use crate::network::attention::{Cache, CachedRow};
use crate::network::{Network, cached_pass};

/// A causal network over a cache.
pub struct CausalPredictor {
    network: Box<dyn Network>,
    /// Makes the passes, where there is one; else libtorch does.
    few_row: Option<FewRow>,
    cache: Option<Cache>,
    /// Rows of each sequence in the cache.
    cached: Vec<usize>,
    rows_forwarded: u64,
}

impl CausalPredictor {
    /// Over a frozen network; nothing read yet.
    pub fn new(network: Box<dyn Network>) -> CausalPredictor {
        let few_row = FewRow::new(network.as_ref());
        CausalPredictor::with_passes(network, few_row)
    }

    /// As [`CausalPredictor::new`], with passes by `few_row`, made from the same network, or else by
    /// libtorch.
    pub fn with_passes(network: Box<dyn Network>, few_row: Option<FewRow>) -> CausalPredictor {
        CausalPredictor { network, few_row, cache: None, cached: Vec::new(), rows_forwarded: 0 }
    }

    /// The first row that the network has: 0, or 1 where there is no [None].
    fn first(&self) -> usize {
        self.network.base().given()
    }

    /// The keys and values so far, for tests.
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// The network.
    pub fn network(&self) -> &dyn Network {
        self.network.as_ref()
    }
}

impl Reader for CausalPredictor {
    fn read(&mut self, sequences: &[Sequence], readings: &[Reading]) -> Result<Tensor> {
        let first = self.first();
        let (mut rows, mut wanted) = (Vec::new(), Vec::new());
        for (r, (sequence, reading)) in sequences.iter().zip(readings).enumerate() {
            let cached = self.cached[r];
            let own = reading.until.saturating_sub(cached);
            let count = own + reading.copies.len();
            let fits = reading.until <= sequence.tokens.len() + 1
                && cached + count <= sequence.order.len()
                && reading.wanted <= count
                && (own > 0 || reading.copies.is_empty());
            if readings.len() != sequences.len() || !fits {
                return Err(Error::usage(format!(
                    "decoding asks for {count} rows after {} of {} steps; this is a fault of the \
                     program",
                    sequence.tokens.len(),
                    sequence.order.len()
                )));
            }
            let start = cached - first;
            for j in 0..count {
                let (held, aim) = row_of(sequence, reading, cached + j);
                let slot = start + j;
                let visible = if j < own { slot } else { start + own - 1 };
                rows.push(CachedRow { sequence: r, slot, visible, held, aim });
            }
            wanted.extend(rows.len() - reading.wanted..rows.len());
            self.cached[r] = cached.max(reading.until);
        }
        self.rows_forwarded += rows.len() as u64;
        let cache = self.cache.as_mut().expect("a pass follows a start");
        Ok(match &self.few_row {
            Some(few_row) => few_row.pass(&rows, &wanted, cache),
            None => cached_pass(self.network.as_ref(), &rows, &wanted, cache),
        })
    }

    fn keep_rows(&mut self, r: usize, count: usize) {
        self.cached[r] = self.cached[r].min(count);
    }
}

impl Predictor for CausalPredictor {
    fn start(&mut self, sequences: &[Sequence]) {
        // A row that does not exist is never missing.
        self.cached = vec![self.first(); sequences.len()];
        self.rows_forwarded = 0;
        let slots = sequences.iter().map(|s| s.order.len()).max().unwrap_or(0);
        let base = self.network.base();
        let (shape, kind) = (self.network.cache_shape(), base.compute);
        self.cache = Some(Cache::new(shape, sequences.len(), slots, kind, base.device()));
    }

    fn predict(&mut self, sequences: &[Sequence], asks: &[Ask]) -> Result<Tensor> {
        let readings: Vec<Reading> = sequences
            .iter()
            .zip(asks)
            .map(|(sequence, ask)| match ask.positions.as_slice() {
                [] => Reading::default(),
                [_, copies @ ..] => {
                    let wanted = ask.positions.len();
                    Reading { until: sequence.tokens.len() + 1, copies, wanted }
                }
            })
            .collect();
        self.read(sequences, &readings)
    }

    /// Puts the keys and values of the chosen copy in the place of the newest row, as if that had
    /// been conditioned on the copy's position.
    fn choose(&mut self, r: usize, chosen: usize) {
        if chosen > 0 {
            let slot = self.cached[r] - self.first() - 1;
            if let Some(cache) = &mut self.cache {
                cache.move_slot(r, slot + chosen, slot);
            }
        }
    }

    fn logits(&self, hidden: &Tensor, out: &mut [f32]) {
        self.network.base().head.logits_into(hidden, out);
    }

    fn vocab_size(&self) -> usize {
        self.network.base().head.vocab_size()
    }

    fn rows_forwarded(&self) -> u64 {
        self.rows_forwarded
    }

    fn reader(&mut self) -> Option<&mut dyn Reader> {
        Some(self)
    }
}

/// What row `row` of a pass holds, a token and its position or [None], and the position it predicts.
fn row_of(sequence: &Sequence, reading: &Reading, row: usize) -> (Option<(u32, u32)>, u32) {
    let copy = row.checked_sub(reading.until);
    let row = row.min(reading.until - 1);
    let aim = copy.map_or(sequence.order[row], |c| reading.copies[c]);
    (row.checked_sub(1).map(|step| (sequence.tokens[step], sequence.order[step])), aim)
}
