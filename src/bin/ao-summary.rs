//! The report at the end of a pipeline, from what the stages wrote.

use std::path::PathBuf;

use ao_core::cli::{self, OutputArgs};
use ao_core::error::IoContext;
use ao_core::report::{Report, Sources, score_table};
use ao_core::{Error, Result};
use clap::Parser;
use serde::Serialize;

const EXAMPLE: &str = "\
Example (after make pipelines/toy):
  ao-summary --show runs/toy/summary.json

More examples:
  ao-summary --corpus stories --shards data/train --val-shards data/val --run runs/a \\
    --samples samples.jsonl -o summary.json scores/*.jsonl
  ao-summary --table scores/*.jsonl";

/// Gather corpus, model, scores, speeds and samples of a run into one JSON report
#[derive(Parser, Serialize)]
#[command(name = "ao-summary", version = cli::VERSION, before_help = EXAMPLE)]
struct Args {
    /// Print an existing report as text, and stop
    #[arg(long, value_name = "FILE", conflicts_with_all = ["corpus", "shards", "val_shards", "run", "samples", "scores"])]
    show: Option<PathBuf>,
    /// Print only the scores, as a Markdown table with standard errors, and stop
    #[arg(long, requires = "scores", conflicts_with_all = ["show", "corpus", "shards", "val_shards", "run", "samples"])]
    table: bool,
    /// Name of the corpus, for the first line of the report
    #[arg(long, value_name = "TEXT", default_value = "not named")]
    corpus: String,
    /// Folder of the training shards
    #[arg(long, value_name = "FOLDER", required_unless_present_any = ["show", "table"])]
    shards: Option<PathBuf>,
    /// Folder of the held-out shards
    #[arg(long, value_name = "FOLDER", required_unless_present_any = ["show", "table"])]
    val_shards: Option<PathBuf>,
    /// Run folder of ao-train
    #[arg(long, value_name = "FOLDER", required_unless_present_any = ["show", "table"])]
    run: Option<PathBuf>,
    /// Records of ao-sample
    #[arg(long, value_name = "FILE", required_unless_present_any = ["show", "table"])]
    samples: Option<PathBuf>,
    /// Records of ao-score, one file per set of weights and orders
    #[arg(value_name = "SCORES")]
    scores: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

fn main() {
    cli::run_main(run)
}

fn run(args: Args) -> Result<()> {
    let mut sink = args.output.open()?;
    if let Some(path) = &args.show {
        let bytes = std::fs::read(path).reading(path)?;
        let report: Report = serde_json::from_slice(&bytes)
            .map_err(|e| Error::input_at(path, format!("not a report of ao-summary: {e}")))?;
        sink.put(report.to_text().as_bytes())?;
        return sink.finish();
    }
    if args.table {
        sink.put(score_table(&args.scores)?.as_bytes())?;
        return sink.finish();
    }
    // Clap has seen to it that these four are there.
    let sources = Sources {
        corpus: args.corpus,
        shards: args.shards.unwrap_or_default(),
        val_shards: args.val_shards.unwrap_or_default(),
        run: args.run.unwrap_or_default(),
        samples: args.samples.unwrap_or_default(),
        scores: args.scores,
    };
    let report = Report::gather(&sources)?;
    let mut json = serde_json::to_vec_pretty(&report)
        .map_err(|e| Error::usage(format!("the report cannot be JSON: {e}")))?;
    json.push(b'\n');
    sink.put(&json)?;
    sink.finish()
}
