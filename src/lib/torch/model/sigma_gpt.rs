//! σ-GPT: nanoGPT whose rows are told, in the input, which position they predict.
//!
//! Two forms. AO-GPT's authors built one to compare with: own positions from a table with a row for
//! [None], targets from a second table of full width, and every token predicted. σ-GPT's own
//! (arXiv 2404.09562 and its code) has one table of half width that is looked up twice, own
//! position first, and no [None]: the first token of an order is given.

use ao_core::config::{Activation, ModelConfig};
use tch::Kind;

use super::transformer::{NormKind, Pieces, Target, Transformer};
use super::weights::Weights;

/// The model over `weights`, multiplying matrices in `compute`.
pub(super) fn sigma_gpt(config: &ModelConfig, weights: &Weights, compute: Kind) -> Transformer {
    let table = weights.find("transformer.wtpe.weight");
    let target = table.map_or(Target::Halves, Target::Input);
    let (norm, last) = (NormKind::Layer, "transformer.ln_f");
    let pieces = Pieces { norm, activation: Activation::Gelu, last, target };
    Transformer::new(config, weights, compute, pieces)
}
