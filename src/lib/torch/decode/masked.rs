//! A bidirectional network as decoding asks it: texts with masks where no token is yet.

use ao_core::Result;
use tch::Tensor;

use super::predictor::{Ask, Predictor, Reader};
use super::sequence::Sequence;
use crate::network::{MaskedText, Network, asked_rows, masks};

/// A bidirectional network.
pub struct MaskedPredictor {
    network: Box<dyn Network>,
    rows_forwarded: u64,
}

impl MaskedPredictor {
    /// Nothing asked yet.
    pub fn new(network: Box<dyn Network>) -> MaskedPredictor {
        MaskedPredictor { network, rows_forwarded: 0 }
    }
}

impl Predictor for MaskedPredictor {
    fn start(&mut self, _: &[Sequence]) {
        self.rows_forwarded = 0;
    }

    fn predict(&mut self, sequences: &[Sequence], asks: &[Ask]) -> Result<Tensor> {
        let mask = masks(self.network.as_ref()).id as u32;
        let asked = sequences.iter().zip(asks).filter(|(_, ask)| !ask.positions.is_empty());
        let copies: Vec<MaskedText> = asked
            .map(|(sequence, ask)| MaskedText {
                tokens: sequence.text(mask),
                asked: ask.positions.clone(),
                sigma: ask.sigma,
            })
            .collect();
        self.rows_forwarded += copies.iter().map(|c| c.tokens.len() as u64).sum::<u64>();
        Ok(asked_rows(self.network.as_ref(), &copies.iter().collect::<Vec<_>>()))
    }

    fn choose(&mut self, _: usize, _: usize) {}

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
        None
    }
}
