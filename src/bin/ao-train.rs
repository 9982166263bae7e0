//! ao-train — train a model from token shards and generation orders.

use ao_core::{Result, cli};
use ao_torch::train::{self, TrainArgs};
use clap::Parser;
use serde::Serialize;

const EXAMPLE: &str = "\
Example (after make pipelines/toy):
  ao-train --model configs/ao-gpt-toy.json --shards runs/toy/shards/train --steps 20 --warmup 2 --out runs/a";

/// Train a model from token shards and generation orders
#[derive(Parser, Serialize)]
#[command(name = "ao-train", version = cli::VERSION, before_help = EXAMPLE)]
struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    train: TrainArgs,
}

fn main() {
    cli::run_main_with(ao_torch::libraries, run)
}

fn run(args: Args) -> Result<()> {
    train::run(args.train)
}
