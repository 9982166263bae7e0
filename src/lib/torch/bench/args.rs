//! The flags of `ao-bench`.

use std::path::PathBuf;

use ao_core::cli::{Compute, OutputArgs, Quiet, Seed};
use ao_core::{Error, Result};
use clap::ArgGroup;
use serde::Serialize;

use crate::network::CheckpointArgs;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Whole samples, from nothing to their last token.
    Generate,
}

/// The flags of `ao-bench`.
#[derive(Debug, Clone, clap::Args, Serialize)]
#[command(group(ArgGroup::new("subject").required(true).args(["ckpt", "model"])))]
pub struct BenchArgs {
    /// What to time
    #[arg(value_enum)]
    pub what: What,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) checkpoint: CheckpointArgs,
    /// Model config. The weights are random, which does not change the speed
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["ckpt", "model_config", "weights"])]
    pub model: Option<PathBuf>,
    /// Batch sizes: samples drawn together
    #[arg(long, value_name = "B,B", value_delimiter = ',', default_value = "32,1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub batch_size: Vec<u64>,
    /// Numbers of steps per sample [default: 64, 128, … and one step per token]
    #[arg(long, value_name = "S,S", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Vec<u64>,
    /// Also time speculative decoding with up to K drafts per pass, as ao-sample --speculative K
    #[arg(long, value_name = "K,K", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub speculative: Vec<u64>,
    /// Tokens per sample [default: the model's block size]
    #[arg(long, value_name = "T")]
    pub length: Option<usize>,
    /// Timed rounds. Figures are medians over them
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub repeats: u64,
    /// Rounds that run first and are not timed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub warmup: u64,
    /// Reference model. The records then also state the quality of the samples, as ao-score --ref
    /// does with --protocol sedd
    #[arg(long, value_name = "FILE|RUN|NAME")]
    pub r#ref: Option<PathBuf>,
    /// Sampling temperature: divides the logits. 0 takes the most likely token
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub temperature: f64,
    /// Draw from the most likely tokens that together have probability P. 1 turns this off
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f64,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) seed: Seed,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) compute: Compute,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) quiet: Quiet,
}

/// One way to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Samples drawn together.
    pub batch_size: usize,
    /// Steps of a sample; one a token where drafts are tested.
    pub steps: usize,
    /// Most drafts a pass.
    pub speculative: Option<usize>,
}

impl BenchArgs {
    /// Tokens of a sample of a model with `block_size`.
    ///
    /// # Errors
    /// When they are none or more than the model reads.
    pub(super) fn tokens(&self, block_size: usize) -> Result<usize> {
        let length = self.length.unwrap_or(block_size);
        if length == 0 || length > block_size {
            return Err(Error::usage(format!(
                "--length {length}: must be 1 to the model's {block_size}"
            )));
        }
        Ok(length)
    }

    /// Every batch size with every number of steps up to `free`, the tokens that are drawn, and with
    /// every depth of drafts.
    pub(super) fn points(&self, free: usize) -> Vec<Point> {
        let small = |n: &u64| usize::try_from(*n).unwrap_or(usize::MAX);
        let mut steps: Vec<usize> = self.steps.iter().map(|s| small(s).min(free)).collect();
        if steps.is_empty() {
            steps = std::iter::successors(Some(64), |s| Some(s * 2))
                .take_while(|&s| s < free)
                .collect();
            steps.push(free);
        }
        steps.dedup();
        let mut points = Vec::new();
        for batch_size in self.batch_size.iter().map(small) {
            let at = |steps, speculative| Point { batch_size, steps, speculative };
            points.extend(steps.iter().map(|&s| at(s, None)));
            points.extend(self.speculative.iter().map(|k| at(free, Some(small(k)))));
        }
        points
    }
}
