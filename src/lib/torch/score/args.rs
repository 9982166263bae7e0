//! What `ao-score` can be told.

use std::path::PathBuf;

use ao_core::cli::{Compute, OutputArgs, Quiet, Seed};
use serde::Serialize;

use crate::model::CheckpointArgs;

/// The options of `ao-score`.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct ScoreArgs {
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub model: CheckpointArgs,
    /// Token shards: a folder, one shard, or a raw file with --raw-u16
    #[arg(long, value_name = "DIR|FILE")]
    pub shards: PathBuf,
    /// Generation orders: a SPEC, an .npy or .jsonl file, or - [default: uniform; l2r for gpt2]
    #[arg(long, alias = "order", value_name = "SPEC|FILE|-")]
    pub orders: Option<String>,
    /// Orders per sequence; sequence s takes rows s·K to s·K+K−1
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub mc: u32,
    /// Add each token's NLL to the records, in generation order
    #[arg(long)]
    pub per_token: bool,
    /// Sequences to pass over first
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip: u64,
    /// Sequences to score at most [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_sequences: Option<u64>,
    /// Sequences a forward pass; changes speed and memory only
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: u32,
    /// The shard is a raw file of u16 tokens without a header
    #[arg(long)]
    pub raw_u16: bool,
    /// Tokenizer for bits per byte [default: the shards', else the checkpoint's]
    #[arg(long, value_name = "gpt2|FILE")]
    pub tokenizer: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub seed: Seed,
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub compute: Compute,
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub quiet: Quiet,
}
