//! ao-bench — time whole generations of a model on this machine.

use ao_core::{Result, cli};
use ao_torch::bench::{self, BenchArgs};
use clap::Parser;
use serde::Serialize;

const EXAMPLE: &str = "\
Example:
  ao-bench generate --model configs/ao-gpt-toy.json --batch-size 8 --steps 16,32

More examples:
  ao-bench generate --ckpt runs/a --batch-size 32,1 --steps 64,128,256 > speed.jsonl
  ao-bench generate --model configs/ao-gpt-bench.json --batch-size 8 --dtype bf16

See also: ao-sample, ao-score --ref, docs/formats.md";

/// Time the generation of whole samples, at several batch sizes and numbers of steps
#[derive(Parser, Serialize)]
#[command(name = "ao-bench", version = cli::VERSION, before_help = EXAMPLE)]
struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    bench: BenchArgs,
}

fn main() {
    cli::run_main_with(ao_torch::libraries, run)
}

fn run(args: Args) -> Result<()> {
    bench::run(args.bench)
}
