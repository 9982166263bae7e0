//! σ-GPT: nanoGPT whose input conditions each row on the position that it predicts.
//!
//! Two forms. AO-GPT's authors built one to compare with: own positions from a table with a row for
//! [None], targets from a second table of full width, and every token predicted. σ-GPT's own
//! (arXiv 2404.09562 and its code) has one table of half width that is looked up twice, own
//! position first, and no [None]: the first token of an order is given.

use ao_core::family::{Activation, ModelConfig};

use super::base::Network;
use super::transformer::{NormKind, Pieces, Target};
use super::transformer_network::TransformerNetwork;
use super::weights::Weights;
use crate::device::Runtime;

/// The network of a σ-GPT of either form.
pub fn sigma_gpt(config: &ModelConfig, weights: &Weights, runtime: &Runtime) -> Box<dyn Network> {
    let table = weights.find("transformer.wtpe.weight");
    let target = table.map_or(Target::Halves, Target::Input);
    let (norm, last) = (NormKind::Layer, "transformer.ln_f");
    let pieces = Pieces { norm, activation: Activation::Gelu, last, target };
    Box::new(TransformerNetwork::new(config, weights, runtime, pieces))
}
