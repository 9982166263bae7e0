//! GPT-2: nanoGPT's and OpenAI's, which differ in their GELU. Reads from left to right; its first
//! token is given, so a sequence of T tokens has T − 1 targets.

use ao_core::family::{Gpt2Config, ModelConfig};

use super::base::Network;
use super::transformer::{NormKind, Pieces, Target};
use super::transformer_network::TransformerNetwork;
use super::weights::Weights;
use crate::device::Runtime;

/// The network of a GPT-2.
///
/// # Panics
/// When `config` is of another family: a mistake in the list of families.
pub fn gpt2(config: &ModelConfig, weights: &Weights, runtime: &Runtime) -> Box<dyn Network> {
    let activation = config.of::<Gpt2Config>().expect("a GPT-2").activation;
    let (norm, last) = (NormKind::Layer, "transformer.ln_f");
    let pieces = Pieces { norm, activation, last, target: Target::Next };
    Box::new(TransformerNetwork::new(config, weights, runtime, pieces))
}
