//! Models: weights by name, layers, the families, and the head with its loss.

mod ao_gpt;
mod batch;
mod ddit;
mod decoder;
mod encoder;
mod gpt2;
mod gpt_block;
mod head;
mod head_tiles;
mod layers;
mod load;
mod masked;
mod parts;
mod sigma_gpt;
mod weights;

pub use ao_gpt::AoGpt;
pub use batch::Batch;
pub use decoder::{Attend, CausalAttention, Conditioning, Decoder, HandNames, decoder};
pub use encoder::Encoder;
pub use gpt2::Gpt2;
pub use head::{Head, HeadGradients};
pub(crate) use head::{slice, slice_mut};
pub use load::{CheckpointArgs, Loaded, WeightsChoice};
pub use masked::Masked;
pub use parts::{BlockParts, MatrixParts, Parts};
pub use sigma_gpt::SigmaGpt;
pub use weights::Weights;
pub(crate) use weights::write_all;

/// ε of every RMSNorm and LayerNorm of the families here.
pub(crate) const NORM_EPS: f64 = 1e-5;
