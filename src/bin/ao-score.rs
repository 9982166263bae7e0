//! ao-score — how well a model predicts text, with error bars.

use ao_core::{Result, cli};
use ao_torch::score::{self, ScoreArgs};
use clap::Parser;
use serde::Serialize;

const EXAMPLE: &str = "\
Example (after make pipelines/toy):
  ao-score --ckpt runs/toy/train --shards runs/toy/shards/val --orders uniform --mc 4

More examples:
  ao-score --ckpt runs/a --shards data/val --ensemble 8 --ensemble-curve
  ao-sample --ckpt runs/a --n 100 | ao-score --ref runs/b --protocol mdlm
  ao-score --ckpt radd.st --shards data/val --elbo k --mc 16    # an encoder's bound
  ao-score --compare a.jsonl b.jsonl";

/// Score text with a model: negative log-likelihood in nats, with standard errors
#[derive(Parser, Serialize)]
#[command(name = "ao-score", version = cli::VERSION, before_help = EXAMPLE)]
struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    score: ScoreArgs,
}

fn main() {
    cli::run_main_with(ao_torch::libraries, run)
}

fn run(args: Args) -> Result<()> {
    score::run(args.score)
}
