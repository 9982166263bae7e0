//! Averages of weights: exponential decay during training and over files, means, and averages
//! reconstructed after training.

mod decay;

pub use decay::EmaDecay;
