//! Families: what a model can do, as objects that the drivers use without knowing which it is.
//!
//! A family is a network with a process: [`by_order`] for causal networks along orders,
//! [`by_mask`] for bidirectional ones that restore masked texts. Training asks for a [`Training`]
//! and then a [`Learner`], `ao-score` and validation for a [`Scorer`], `ao-sample` and `ao-bench`
//! for a [`Sampler`]; whatever a family cannot do, it says why in one line.

pub mod by_mask;
pub mod by_order;
mod engine_sampler;
mod list;
mod traits;

pub use engine_sampler::{EngineSampler, Method};
pub use list::{of, register};
pub use traits::*;
