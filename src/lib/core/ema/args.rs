//! What is typed: the flags of `ao-ema`.

use std::path::PathBuf;

use serde::Serialize;

use crate::cli::{Quiet, TargetArgs};

/// Files, rule and target.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct EmaArgs {
    /// Checkpoints, oldest first
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Which average.
    #[command(flatten)]
    #[serde(flatten)]
    pub rule: RuleArgs,
    /// `-o` and `--force`.
    #[command(flatten)]
    #[serde(flatten)]
    pub out: TargetArgs,
    /// `--quiet`.
    #[command(flatten)]
    #[serde(flatten)]
    pub quiet: Quiet,
}

/// Exactly one way to average.
#[derive(Debug, Clone, Default, clap::Args, Serialize)]
#[group(id = "rule", required = true, multiple = false)]
pub struct RuleArgs {
    /// Exponential average with decay B. The first file starts it, and each further file is one
    /// update
    #[arg(long, value_name = "B", group = "rule")]
    pub decay: Option<f64>,
    /// Plain mean of the files
    #[arg(long, group = "rule")]
    pub mean: bool,
    /// Weighted mean: one weight per file, such as 1,2,3. The weights are scaled to sum to 1
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', group = "rule")]
    pub coefficients: Vec<f64>,
    /// Reconstruct the average that training with another decay would have kept. PROFILE is
    /// decay:B, power:G or sigma:S
    #[arg(long, value_name = "PROFILE", group = "rule")]
    pub posthoc: Option<String>,
}
