//! Networks: weights by name, layers, what each family computes, and the head with its loss.
//!
//! A [`Network`] turns rows into the head's input. It knows neither orders nor masks, and leaves it
//! to an [`attention::Attention`] which rows see which: so training, scoring and decoding share it.

mod ao_gpt;
pub mod attention;
mod base;
mod ddit;
mod gpt2;
mod head;
mod head_tiles;
mod layers;
mod load;
mod masked;
mod ordered;
mod rows;
mod sigma_gpt;
mod tensor_slice;
mod transformer;
mod transformer_network;
mod weights;

pub use ao_gpt::ao_gpt;
pub use base::{Base, HandNames, Network, cached_pass};
pub use ddit::ddit;
pub use gpt2::gpt2;
pub use head::{Head, HeadGradients};
pub(crate) use layers::{Linear, NORM_EPS};
pub use load::{CheckpointArgs, Loaded, WeightsChoice};
pub use masked::{MaskedText, asked_rows, forward_masked, masks};
pub use ordered::OrderedTexts;
pub use rows::{NONE, Rows, TokenTable};
pub use sigma_gpt::sigma_gpt;
pub(crate) use tensor_slice::{Stored, TensorSlice, slice, slice_mut};
pub use transformer::Transformer;
pub(crate) use transformer::{Norm, NormKind, Target};
pub use weights::Weights;
pub(crate) use weights::write_all;
