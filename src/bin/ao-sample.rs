//! ao-sample — draw samples from a model, or fill in the gaps of templates.

use ao_core::{Result, cli};
use ao_torch::sample::{self, SampleArgs};
use clap::Parser;
use serde::Serialize;

const EXAMPLE: &str = "\
Example:
  ao-sample --ckpt runs/a --n 32 --steps 256 --temperature 0.7 --top-p 0.95 > samples.jsonl
  echo '{\"text\":\"The ___ sat\"}' | ao-sample --ckpt runs/a --infill - --n 4
  ao-sample --ckpt radd.st --sampler tweedie --steps 64 > samples.jsonl    # an encoder";

/// Draws samples from a model in any order, or fills in the gaps of templates; one JSON record each.
#[derive(Parser, Serialize)]
#[command(name = "ao-sample", version = cli::VERSION, before_help = EXAMPLE)]
struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    sample: SampleArgs,
}

fn main() {
    cli::run_main(run)
}

fn run(args: Args) -> Result<()> {
    sample::run(args.sample)
}
