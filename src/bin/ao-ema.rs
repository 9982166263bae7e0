//! ao-ema: averages of checkpoints, and averages reconstructed after training.

use ao_core::ema::{EmaArgs, Job};
use ao_core::{Result, cli};

const HELP: &str = "\
Example (after make pipelines/toy):
  ao-ema --mean runs/toy/train/checkpoints/*/model.st -o mean.st

More examples:
  ao-ema --decay 0.999 runs/a/checkpoints/*/model.st -o ema.st
  ao-ema --posthoc sigma:0.1 runs/a/checkpoints/*/ema-*.st -o posthoc.st";

const NOTES: &str = "\
--posthoc reads model.st and ema-*.st of several steps of one run. It builds the average that a run
with another decay would have kept:
  decay:B   an exponential average with decay B and the trainer's warm-up
  power:G   step t has a weight that grows as t^G
  sigma:S   a power function with relative standard deviation S, as in EDM2

Sums are made in f64 and stored as F32. One file alone comes out bit for bit, in its own types.

See also: ao-train --ema, docs/formats.md";

/// Average the weights of checkpoints, by tensor name
#[derive(clap::Parser, serde::Serialize)]
#[command(name = "ao-ema", version = cli::VERSION, before_help = HELP, after_help = NOTES)]
struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    ema: EmaArgs,
}

fn main() {
    cli::run_main(run)
}

fn run(args: Args) -> Result<()> {
    Job::try_from(args.ema)?.run()
}
