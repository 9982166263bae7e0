//! torch
pub use tch;
