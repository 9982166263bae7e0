//! The report at the end of a pipeline: what was trained, on what, and how well it scores.
//!
//! [`Report::gather`] reads only what the stages wrote (manifests, `metrics.jsonl`, a checkpoint's
//! header, score and sample records) and the shards, for the unigram baseline. All scores in it are of
//! the same tokens, the baseline's too. `docs/formats.md`
//! names the keys; [`Report::to_text`] is the same for people. [`score_table`] sets scores alone.

mod gather;
mod set;
mod table;
mod text;
mod unigram;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use gather::Sources;
pub use table::score_table;
pub use unigram::{HeldOut, Unigram, unigram_baseline};

/// Everything that `summary.json` holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Always `report`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Version of the toolkit that gathered it.
    pub version: String,
    /// Which text this is, in the words of the pipeline.
    pub corpus: String,
    /// The training shards.
    pub train: Text,
    /// The held-out shards.
    pub val: Text,
    /// The trained model.
    pub model: Model,
    /// The best guess that looks at no context.
    pub unigram: Unigram,
    /// Held-out scores, one for each set of weights and each order.
    pub scores: Vec<Score>,
    /// How training went.
    pub training: Training,
    /// How sampling went.
    pub sampling: Sampling,
    /// The text of the first samples.
    pub samples: Vec<String>,
}

/// The size of a shard folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Text {
    /// Tokens, document ends included.
    pub tokens: u64,
    /// Documents.
    pub documents: u64,
    /// Bytes of text behind the tokens.
    pub bytes_of_text: u64,
    /// The vocabulary's name.
    pub tokenizer: String,
    /// Real ids.
    pub vocab_size: u64,
}

/// The trained model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Numbers in all tensors.
    pub parameters: u64,
    /// The model config.
    pub config: Value,
}

/// One `summary` record of `ao-score` with what it is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// `raw`, `ema:0.99`, or the stem of a checkpoint file.
    pub weights: String,
    /// The order SPEC, or `random masks`.
    pub orders: String,
    /// What the number is: `exact`, or the bound by its form and number of draws.
    #[serde(default)]
    pub estimate: String,
    /// Blocks scored.
    pub sequences: u64,
    /// Tokens scored.
    pub token_count: u64,
    /// Tokens of these blocks that the model was given.
    #[serde(default)]
    pub given_token_count: u64,
    /// Mean over tokens; for several orders the any-order bound.
    pub nll_nats_per_token: f64,
    /// Its standard error.
    pub std_error: Option<f64>,
    /// exp of the mean.
    pub perplexity: f64,
    /// Bits for each byte of the decoded text.
    pub bits_per_byte: Option<f64>,
}

/// How training went, from the last `step` record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// Optimizer steps done.
    pub steps: u64,
    /// Tokens seen.
    pub tokens: u64,
    /// Seconds of training.
    pub seconds: f64,
    /// Tokens by seconds.
    pub tokens_per_second: f64,
    /// `cpu`, `cuda:0`.
    pub device: Option<String>,
    /// Precision of matrix products.
    pub dtype: Option<String>,
}

/// How sampling went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Samples drawn.
    pub samples: u64,
    /// Tokens drawn.
    pub tokens: u64,
    /// Seconds, without loading.
    pub seconds: f64,
    /// Tokens by seconds.
    pub tokens_per_second: f64,
}
