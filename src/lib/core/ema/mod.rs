//! Averages of weights: exponential decay during training and over files, means, and averages
//! reconstructed after training.

mod average;
mod decay;
mod profile;

pub use average::{check_alike, decay_coefficients, normalised, write_average};
pub use decay::EmaDecay;
pub use profile::{Profile, Reconstruction, Snapshot, gamma_of_sigma, reconstruct};
