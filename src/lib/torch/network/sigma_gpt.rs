//! σ-GPT: nanoGPT whose rows are told, in the input, which position they predict.
//!
//! Two forms. AO-GPT's authors built one to compare with: own positions from a table with a row for
//! [None], targets from a second table of full width, and every token predicted. σ-GPT's own
//! (arXiv 2404.09562 and its code) has one table of half width that is looked up twice, own
//! position first, and no [None]: the first token of an order is given.

use ao_core::family::{Activation, ModelConfig};
use tch::{Kind, Tensor};

use super::decoder::{Attend, Base, Conditioning, Decoder, base};
use super::gpt_block::Blocks;
use super::weights::Weights;

/// The model over views of its weights.
pub struct SigmaGpt {
    base: Base,
    wpe: Tensor,
    positions: Positions,
    blocks: Blocks,
}

enum Positions {
    /// Tables (T + 1, C) and (T, C), and [None]'s embedding (1, C).
    Tables { wtpe: Tensor, wnonee: Tensor },
    /// One table (T, C/2).
    Halves,
}

impl SigmaGpt {
    /// The model over `weights`, multiplying matrices in `compute`.
    pub fn new(config: &ModelConfig, weights: &Weights, compute: Kind, threads: usize) -> SigmaGpt {
        let base = base(config, weights, compute, threads);
        let tables = weights.find("transformer.wtpe.weight");
        let positions = match tables.zip(weights.find("transformer.wnonee.weight")) {
            Some((wtpe, wnonee)) => Positions::Tables { wtpe, wnonee },
            None => Positions::Halves,
        };
        let (layers, heads) = (config.n_layer(), config.n_head());
        let blocks = Blocks::new(weights, layers, heads, Activation::Gelu, base.compute);
        SigmaGpt { base, wpe: weights.get("transformer.wpe.weight"), positions, blocks }
    }

    /// Rows of the half-width table, in the half of the width that `own` says: (…) to (…, C).
    fn half(&self, positions: &Tensor, own: bool) -> Tensor {
        let half = Tensor::embedding(&self.wpe, positions, -1, false, false);
        let width = *half.size().last().unwrap_or(&0);
        half.constant_pad_nd(if own { [0, width] } else { [width, 0] })
    }
}

impl Decoder for SigmaGpt {
    fn base(&self) -> &Base {
        &self.base
    }

    fn freeze(&mut self) {
        self.blocks.freeze();
        self.base.head.freeze();
    }

    fn none_row(&self) -> Option<Tensor> {
        match &self.positions {
            Positions::Tables { wnonee, .. } => Some(wnonee + self.wpe.narrow(0, 0, 1)),
            Positions::Halves => None,
        }
    }

    fn position_rows(&self, positions: &Tensor) -> Tensor {
        match &self.positions {
            Positions::Tables { .. } => {
                Tensor::embedding(&self.wpe, &(positions + 1), -1, false, false)
            }
            Positions::Halves => self.half(positions, true),
        }
    }

    fn target_rows(&self, targets: &Tensor) -> Option<Tensor> {
        Some(match &self.positions {
            Positions::Tables { wtpe, .. } => Tensor::embedding(wtpe, targets, -1, false, false),
            Positions::Halves => self.half(targets, false),
        })
    }

    fn forward(
        &self,
        rows: &Tensor,
        _: &Tensor,
        _: &Conditioning,
        attend: &mut dyn Attend,
        dropout: f64,
    ) -> Tensor {
        self.blocks.forward(rows, attend, dropout)
    }
}
