//! AO-GPT: a decoder-only transformer that predicts text in any order.
//!
//! Sources: arXiv 2506.19935 and its published code. Row k of a sequence with order σ holds the
//! token at σ_{k−1} (row 0 the [None] token) and predicts the one at σ_k, conditioned on σ_k by adaLN: a
//! table over target positions modulates every norm. Row n of the published model, whose logits are
//! thrown away and which nothing sees, is not computed. The paper's other ways of telling the
//! target (figure 5 of its v1, a to c) keep the block and leave out adaLN.

use ao_core::family::{Activation, AoGptConfig, ModelConfig, PositionEncoding};
use tch::Tensor;

use super::base::Network;
use super::layers::Linear;
use super::transformer::{NormKind, Pieces, Target};
use super::transformer_network::TransformerNetwork;
use super::weights::Weights;
use crate::device::Runtime;

/// The network of an AO-GPT.
///
/// # Panics
/// When `config` is of another family: a mistake in the list of families.
pub fn ao_gpt(config: &ModelConfig, weights: &Weights, runtime: &Runtime) -> Box<dyn Network> {
    let sizes = config.of::<AoGptConfig>().expect("an AO-GPT");
    let blocks = 0..sizes.n_layer;
    let table = || weights.get("transformer.wtpe.weight");
    // Codes are few, one a position: they are exact.
    let code = |name: &str| Linear::new(weights, name, weights.flat().kind());
    let target = match sizes.position_encoding {
        PositionEncoding::Input => Target::Input(table()),
        PositionEncoding::EveryBlock => Target::Blocks(blocks.map(|_| table()).collect()),
        PositionEncoding::PerBlock => {
            let own = |i| -> Tensor { weights.get(&format!("transformer.h.{i}.wtpe.weight")) };
            Target::Blocks(blocks.map(own).collect())
        }
        PositionEncoding::Adaln => Target::Adaln {
            codes: table(),
            blocks: blocks.map(|i| code(&format!("transformer.h.{i}.adaLN.1"))).collect(),
            last: code("transformer.final_layer.adaLN_final.1"),
        },
    };
    let (norm, last) = (NormKind::Rms, "transformer.final_layer.ln_f");
    let pieces = Pieces { norm, activation: Activation::Gelu, last, target };
    Box::new(TransformerNetwork::new(config, weights, runtime, pieces))
}
