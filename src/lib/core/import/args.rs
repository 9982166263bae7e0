//! What is typed: the flags of `ao-import`.

use std::path::PathBuf;

use serde::Serialize;

use super::WeightsKind;
use crate::cli::{Quiet, TargetArgs};

/// What is read and how.
#[derive(Debug, clap::Args, Serialize)]
pub struct ImportArgs {
    /// Checkpoint to read: a .pt file, a Hugging Face folder, a safetensors file, hf:OWNER/NAME, or
    /// a name in the hub's cache such as gpt2-large
    #[arg(value_name = "SOURCE")]
    pub source: String,
    /// Which weights to take [default: ema if the file has a moving average, else raw]
    #[arg(long, value_name = "raw|ema")]
    pub weights: Option<WeightsKind>,
    /// Model config to use instead of the checkpoint's own
    #[arg(long, value_name = "FILE.json")]
    pub model_config: Option<PathBuf>,
    /// The model's tokenizer. It is written beside the weights if -o names a folder [default: the
    /// tokenizer.json beside the source]
    #[arg(long, value_name = "gpt2|FILE")]
    pub tokenizer: Option<String>,
    /// Write a folder in this format instead of a checkpoint
    #[arg(long, value_name = "hf")]
    pub export: Option<Export>,
    /// `-o` and `--force`.
    #[command(flatten)]
    #[serde(flatten)]
    pub out: TargetArgs,
    /// `--quiet`.
    #[command(flatten)]
    #[serde(flatten)]
    pub quiet: Quiet,
}

/// The value of `--export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Export {
    /// A folder that Hugging Face's GPT-2 class loads.
    Hf,
}
