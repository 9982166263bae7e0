//! nanoGPT's block, which σ-GPT and GPT-2 share: LayerNorm before attention and before the MLP.

use ao_core::family::Activation;
use tch::{Kind, Tensor};

use super::decoder::Attend;
use super::layers::{Attention, LayerNorm, Mlp, cast, drop};
use super::weights::Weights;

struct Block {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

/// All blocks and the final norm.
pub(super) struct Blocks {
    blocks: Vec<Block>,
    ln_f: LayerNorm,
}

impl Blocks {
    pub fn new(
        weights: &Weights,
        n_layer: usize,
        n_head: usize,
        activation: Activation,
        compute: Kind,
    ) -> Blocks {
        let block = |i: usize| {
            let name = |part: &str| format!("transformer.h.{i}.{part}");
            Block {
                ln_1: LayerNorm::new(weights, &name("ln_1")),
                attn: Attention::new(weights, &name("attn"), n_head, compute),
                ln_2: LayerNorm::new(weights, &name("ln_2")),
                mlp: Mlp::new(weights, &name("mlp"), activation, compute),
            }
        };
        Blocks {
            blocks: (0..n_layer).map(block).collect(),
            ln_f: LayerNorm::new(weights, "transformer.ln_f"),
        }
    }

    pub fn freeze(&mut self) {
        for block in &mut self.blocks {
            block.attn.freeze();
            block.mlp.freeze();
        }
    }

    /// Rows (B, R, C) to the head's input (B, R, C).
    pub fn forward(&self, rows: &Tensor, attend: &mut dyn Attend, dropout: f64) -> Tensor {
        let mut x = drop(rows, dropout);
        for (layer, block) in self.blocks.iter().enumerate() {
            let a = block.attn.forward(layer, &block.ln_1.forward(&x), attend);
            x = &x + drop(&cast(&a, x.kind()), dropout);
            let m = block.mlp.forward(&block.ln_2.forward(&x));
            x = &x + drop(&cast(&m, x.kind()), dropout);
        }
        self.ln_f.forward(&x)
    }
}
