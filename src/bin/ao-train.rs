//! ao-train — train a model from token shards and generation orders.

use ao_core::{Result, cli};
use ao_torch::train::{self, TrainArgs};
use clap::Parser;
use serde::Serialize;

/// Train a model from token shards and generation orders
///
///   ao-train --model configs/toy.json --shards data/train --out runs/a
#[derive(Parser, Serialize)]
#[command(name = "ao-train", version = cli::VERSION, verbatim_doc_comment)]
struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    train: TrainArgs,
}

fn main() {
    cli::run_main(run)
}

fn run(args: Args) -> Result<()> {
    train::run(args.train)
}
