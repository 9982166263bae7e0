//! GPT-2: nanoGPT's and OpenAI's, which differ in their GELU. Reads from left to right; its first
//! token is given, so a sequence of T tokens has T − 1 targets.

use ao_core::family::{Gpt2Config, ModelConfig};
use tch::{Kind, Tensor};

use super::decoder::{Attend, Base, Conditioning, Decoder, base};
use super::gpt_block::Blocks;
use super::weights::Weights;

/// The model over views of its weights.
pub struct Gpt2 {
    base: Base,
    wpe: Tensor,
    blocks: Blocks,
}

impl Gpt2 {
    /// The model over `weights`, multiplying matrices in `compute`.
    pub fn new(config: &ModelConfig, weights: &Weights, compute: Kind, threads: usize) -> Gpt2 {
        let whole = config;
        let config: &Gpt2Config = whole.of().expect("of this family");
        let base = base(whole, weights, compute, threads);
        let (layers, heads) = (config.n_layer, config.n_head);
        let blocks = Blocks::new(weights, layers, heads, config.activation, base.compute);
        Gpt2 { base, wpe: weights.get("transformer.wpe.weight"), blocks }
    }
}

impl Decoder for Gpt2 {
    fn base(&self) -> &Base {
        &self.base
    }

    fn freeze(&mut self) {
        self.blocks.freeze();
        self.base.head.freeze();
    }

    fn none_row(&self) -> Option<Tensor> {
        None
    }

    fn position_rows(&self, positions: &Tensor) -> Tensor {
        Tensor::embedding(&self.wpe, positions, -1, false, false)
    }

    fn target_rows(&self, _: &Tensor) -> Option<Tensor> {
        None // the next position, always
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
