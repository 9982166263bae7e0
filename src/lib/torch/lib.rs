//! The half of the toolkit that needs tensors: models, training, decoding and scoring on libtorch.
//!
//! Rooms, from the top; a room may use those listed after it, never one before it:
//!
//! | room | owns |
//! |---|---|
//! | [`mod@bench`] | whole generations, timed |
//! | [`score`] | NLL along orders, averages and ensembles, reports |
//! | [`decode`] | samplers, unmasking schedules, the decoding loop over the KV cache |
//! | [`train`] | step loop, optimizer, schedules, accumulation, checkpoints and resume |
//! | [`model`] | weights by name, layers, families, KV cache, the head and its loss |
//! | [`kernels`] | loops over plain slices that libtorch has no good operation for |
//! | [`device`] | threads, devices and precision, chosen once at the start |

pub mod bench;
pub mod decode;
pub mod device;
pub mod kernels;
pub mod model;
pub mod score;
pub mod train;

pub use tch;

/// The libtorch that these bindings are made for, and link to no other.
pub const LIBTORCH: &str = "2.11.0";

/// What `--version` says below the tool's own: libtorch, and the instruction sets of this processor.
pub fn libraries() -> String {
    format!("libtorch {LIBTORCH}\ninstruction sets: {}\n", ao_core::cli::instruction_sets())
}
