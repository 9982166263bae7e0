//! ao-sample — draw samples from a model, or fill in the gaps of templates.

use ao_core::{Result, cli};
use ao_torch::sample::{self, SampleArgs};
use clap::Parser;
use serde::Serialize;

const EXAMPLE: &str = "\
Example (after make pipelines/toy):
  ao-sample --ckpt runs/toy/train --n 4 --order l2r > samples.jsonl

More examples:
  ao-sample --ckpt runs/a --n 32 --steps 256 --temperature 0.7 --top-p 0.95 > samples.jsonl
  echo '{\"text\":\"The ___ sat\"}' | ao-sample --ckpt runs/a --infill - --n 4
  ao-sample --ckpt radd.st --sampler tweedie --steps 64 > samples.jsonl    # an encoder";

/// Draw samples from a model in any order, or fill in the gaps of templates
#[derive(Parser, Serialize)]
#[command(name = "ao-sample", version = cli::VERSION, before_help = EXAMPLE)]
struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    sample: SampleArgs,
}

fn main() {
    cli::run_main_with(ao_torch::libraries, run)
}

fn run(args: Args) -> Result<()> {
    sample::run(args.sample)
}
