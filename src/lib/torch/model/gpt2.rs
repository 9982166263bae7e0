//! GPT-2: nanoGPT's and OpenAI's, which differ in their GELU. Reads from left to right; its first
//! token is given, so a sequence of T tokens has T − 1 targets.

use ao_core::config::{Gpt2Config, ModelConfig};
use tch::Kind;

use super::transformer::{NormKind, Pieces, Target, Transformer};
use super::weights::Weights;

/// The model over `weights`, multiplying matrices in `compute`.
pub(super) fn gpt2(config: &Gpt2Config, weights: &Weights, compute: Kind) -> Transformer {
    let (norm, activation, last) = (NormKind::Layer, config.activation, "transformer.ln_f");
    let pieces = Pieces { norm, activation, last, target: Target::Next };
    Transformer::new(&ModelConfig::Gpt2(config.clone()), weights, compute, pieces)
}
