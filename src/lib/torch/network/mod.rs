//! Networks: weights by name, layers, what each family computes, and the head with its loss.
//!
//! A [`Network`] turns rows into the head's input. It knows neither orders nor masks, and leaves it
//! to an [`attention::Attention`] which rows see which: so training, scoring and decoding share it.

pub mod attention;
mod ao_gpt;
mod base;
mod ddit;
mod decoder;
mod gpt2;
mod gpt_block;
mod head;
mod head_tiles;
mod layers;
mod load;
mod masked;
mod ordered;
mod parts;
mod rows;
mod sigma_gpt;
mod weights;

pub use base::{Base, HandNames, Network, cached_pass};
pub use ddit::ddit;
pub use decoder::wrapped;
pub use head::{Head, HeadGradients};
pub(crate) use head::{slice, slice_mut};
pub use load::{CheckpointArgs, Loaded, WeightsChoice};
pub use masked::{MaskedText, asked_rows, forward_masked, masks};
pub use ordered::OrderedTexts;
pub use rows::{NONE, Rows, TokenTable};
pub use weights::Weights;
pub(crate) use weights::write_all;
