//! ao-ema: averages of checkpoints, and averages reconstructed after training.

use std::path::PathBuf;

use ao_core::cli::{self, OutputArgs, Progress, Quiet, ema::Rule};
use ao_core::ema::write_average;
use ao_core::format::checkpoint::CheckpointFile;
use ao_core::{Error, Result};

const HELP: &str = "\
Example:
  ao-ema --decay 0.999 runs/a/checkpoints/*/model.st -o ema.st
  ao-ema --posthoc sigma:0.1 runs/a/checkpoints/*/ema-*.st -o posthoc.st";

const NOTES: &str = "\
--posthoc takes the model.st and ema-*.st of several steps of one run and builds the average that a
run with another decay would have kept: decay:B (with the trainer's warm-up), power:G (weights grow
as t^G) or sigma:S (a power function by its relative standard deviation, as in EDM2).

See also: ao-train --ema, docs/formats.md";

/// Average the weights of checkpoints, by tensor name
#[derive(clap::Parser, serde::Serialize)]
#[command(name = "ao-ema", version = cli::VERSION, before_help = HELP, after_help = NOTES)]
struct Args {
    /// Checkpoints, the oldest first
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    rule: Rule,
    #[command(flatten)]
    #[serde(flatten)]
    out: OutputArgs,
    #[command(flatten)]
    #[serde(flatten)]
    quiet: Quiet,
}

fn main() {
    cli::run_main(run)
}

fn run(args: Args) -> Result<()> {
    if args.out.is_stdout() {
        return Err(Error::usage("a checkpoint is no stream; give -o FILE"));
    }
    let files = args.files.iter().map(|path| CheckpointFile::open(path));
    let files = files.collect::<Result<Vec<_>>>()?;
    let average = args.rule.resolve(&files)?;
    let config = serde_json::to_value(&args).map_err(|e| Error::usage(e.to_string()))?;
    let metadata = average.metadata(&files, config)?;
    if !args.quiet.quiet {
        average.describe(&files).iter().for_each(|line| eprintln!("{line}"));
    }
    let count: u64 = files[0]
        .names()
        .filter_map(|name| files[0].tensor(name))
        .filter(|view| view.dtype.is_float())
        .map(|view| view.element_count() as u64)
        .sum();
    let mut progress = Progress::new("weights", Some(count), args.quiet.quiet);
    let (output, force) = (&args.out.output, args.out.force);
    write_average(&files, &average.factors, output, force, &metadata, |n| progress.add(n))
}
