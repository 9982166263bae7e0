//! ao-score — how well a model predicts text, with error bars.

use ao_core::{Result, cli};
use ao_torch::score::{self, ScoreArgs};
use clap::Parser;
use serde::Serialize;

/// Score token shards: NLL along orders, in nats, with standard errors over sequences
///
///   ao-score --ckpt runs/a --shards data/val --orders uniform --mc 10
///   ao-score --ckpt runs/a --shards data/val --ensemble 8 --ensemble-curve
///   ao-sample --ckpt runs/a --n 100 | ao-score --ref runs/b --protocol mdlm
///   ao-score --ckpt radd.st --shards data/val --elbo k --mc 16    # an encoder's bound
///   ao-score --compare a.jsonl b.jsonl
#[derive(Parser, Serialize)]
#[command(name = "ao-score", version = cli::VERSION, verbatim_doc_comment)]
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
