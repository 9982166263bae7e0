//! Averages of weights: exponential decay during training and over files, means, and averages
//! reconstructed after training.

mod args;
mod average;
mod decay;
mod job;
mod profile;
mod rule;

pub use args::{EmaArgs, RuleArgs};
pub use average::{check_alike, decay_coefficients, normalised, write_average};
pub use decay::EmaDecay;
pub use job::Job;
pub use profile::{Profile, Reconstruction, Snapshot, gamma_of_sigma, reconstruct};
pub use rule::{Average, Rule};
