//! Models: weights by name, layers, the families, and the head with its loss.

mod ao_gpt;
mod batch;
mod head;
mod layers;
mod load;
mod weights;

pub use ao_gpt::{AoGpt, Attend, CausalAttention, Conditioning};
pub use batch::Batch;
pub use head::{Head, HeadGradients};
pub(crate) use head::{slice, slice_mut};
pub use load::{CheckpointArgs, Loaded, WeightsChoice};
pub use weights::Weights;
pub(crate) use weights::write_all;

/// ε of every RMSNorm and LayerNorm of the families here.
pub(crate) const NORM_EPS: f64 = 1e-5;
