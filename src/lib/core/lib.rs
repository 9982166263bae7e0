//! The light half of the toolkit: file formats, orders, tokens, model configurations and
//! command-line manners. Nothing here names a tensor library, so a tool built on this crate alone
//! starts in milliseconds.
//!
//! Rooms, from the top; a room may use those listed after it, never one before it:
//!
//! | room | owns |
//! |---|---|
//! | [`report`] | the report at the end of a pipeline, gathered from what the stages wrote |
//! | [`score`] | records of scores; comparing, joining and resuming evaluations |
//! | [`import`] | published checkpoints, read and turned into this toolkit's; what `ao-import` does |
//! | [`ema`] | averages of weights, during training and over checkpoints; what `ao-ema` does |
//! | [`family`] | model configurations: parameters, published names, capabilities, FLOPs |
//! | [`process`] | objectives; how texts are destroyed and restored: orders, masks, scores |
//! | [`orders`] | permutations: the SPEC grammar, generation, validation |
//! | [`tokens`] | tokenizers, documents, blocks and their position in a corpus |
//! | [`cli`] | shared flags, `run_main`, exit codes, progress, signals, run records |
//! | [`mod@format`] | every byte that is written: shards, orders, checkpoints, records |
//! | [`rng`] | the frozen counter-based generator behind every draw |
//! | [`stats`] | means over tokens with standard errors over sequences |
//! | [`error`] | the error type and its exit codes |

pub mod cli;
pub mod ema;
pub mod error;
pub mod family;
pub mod format;
pub mod import;
pub mod orders;
pub mod process;
pub mod report;
pub mod rng;
pub mod score;
pub mod stats;
pub mod tokens;

pub use error::{Error, Result};
