//! Models: weights by name, layers, the families, and the head with its loss.

mod ao_gpt;
mod batch;
mod ddit;
mod decoder;
mod encoder;
mod gpt2;
mod head;
mod head_tiles;
mod layers;
mod load;
mod masked;
mod sigma_gpt;
mod tensor_slice;
mod transformer;
mod weights;

pub use batch::Batch;
pub use decoder::{Attend, CausalAttention, Conditioning, Decoder, HandNames, decoder};
pub use encoder::Encoder;
pub use head::{Head, HeadGradients};
pub(crate) use layers::Linear;
pub use load::{CheckpointArgs, Loaded, WeightsChoice};
pub use masked::Masked;
pub(crate) use tensor_slice::{Stored, TensorSlice, slice, slice_mut};
pub use transformer::Transformer;
pub(crate) use transformer::{Norm, NormKind, Target};
pub use weights::Weights;
pub(crate) use weights::write_all;

/// ε of every RMSNorm and LayerNorm of the families here.
pub(crate) const NORM_EPS: f64 = 1e-5;
