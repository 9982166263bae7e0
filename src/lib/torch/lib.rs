//! The half of the toolkit that needs tensors: models, training, decoding and scoring on libtorch.
//!
//! Rooms, from the top; a room may use those listed after it, never one before it:
//!
//! | room | owns |
//! |---|---|
//! | [`mod@bench`] | `ao-bench`: whole generations, timed |
//! | [`sample`] | `ao-sample`: flags, batches, records |
//! | [`train`] | `ao-train`: step loop, optimizer, schedules, checkpoints and resume, validation |
//! | [`score`] | `ao-score`: texts to score, orders, reports |
//! | [`family`] | what a model can do, as objects: learners, scorers, samplers |
//! | [`decode`] | the decoding engine: plans of steps, filters, draws |
//! | [`network`] | weights by name, layers, networks, attention and its cache, the head |
//! | [`kernels`] | loops over plain slices that libtorch has no good operation for |
//! | [`device`], [`clock`] | threads, devices and precision, chosen once at the start; time |

pub mod bench;
pub mod clock;
pub mod decode;
pub mod device;
pub mod family;
pub mod kernels;
pub mod network;
pub mod sample;
pub mod score;
pub mod train;

pub use tch;

/// The libtorch that these bindings are made for, and link to no other.
pub const LIBTORCH: &str = "2.11.0";

/// What `--version` says below the tool's own: libtorch, and the instruction sets of this processor.
pub fn libraries() -> String {
    format!("libtorch {LIBTORCH}\ninstruction sets: {}\n", ao_core::cli::instruction_sets())
}
