//! ao-orders: generation orders of a SPEC as `.npy` or JSON lines.

use std::path::PathBuf;

use ao_core::cli::{self, OutputArgs, Progress, Quiet, RunRecord, Seed};
use ao_core::format::atomic::AtomicFile;
use ao_core::orders::{OrderSpec, OrderStream, RowFormat, RowWriter};
use ao_core::{Error, Result};
use serde_json::json;

const HELP: &str = "\
Example:
  ao-orders 'mix:0.1*l2r+0.9*uniform' --block-size 1024 --count 1000 --seed 1 -o orders.npy

Row i depends only on SPEC, --block-size, --seed and i. So --skip and --count cut pieces of one
endless stream.";

const SPECS: &str = "\
SPEC:
  l2r, r2l                 ascending, descending
  uniform                  a fresh random permutation per row
  fixed:SEED, fixed:@FILE  one permutation for all rows, random or the first row of a file
  fractal                  the midpoint, then the midpoints of the halves, and so on
  blocks:B[:inner=l2r|uniform|fixed:SEED|LIST][:outer=l2r|uniform|fixed:SEED]
  mix:0.1*l2r+0.9*uniform  each row draws one of the SPECs; the weights sum to 1
  ramp:A..B:SPEC1->SPEC2   the probability of SPEC2 rises from 0 at row A to 1 at row B

See also: ao-train --orders, ao-score --orders, docs/formats.md";

/// Write generation orders: permutations of 0..T, one per sequence
#[derive(clap::Parser, serde::Serialize)]
#[command(name = "ao-orders", version = cli::VERSION, before_help = HELP, after_help = SPECS)]
struct Args {
    /// Distribution of the rows; see SPEC below
    #[arg(value_name = "SPEC")]
    spec: String,
    /// Tokens per sequence; each row is a permutation of 0..T
    #[arg(long, value_name = "T", default_value_t = 1024)]
    block_size: usize,
    /// Number of rows. Without it, --format jsonl writes rows until it is stopped
    #[arg(long, value_name = "N", value_parser = cli::parse_count)]
    count: Option<u64>,
    /// Number of rows to skip first
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = cli::parse_count)]
    skip: u64,
    /// Output format
    #[arg(long, value_enum, default_value_t = RowFormat::Npy)]
    format: RowFormat,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    #[serde(flatten)]
    seed: Seed,
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
    let spec = OrderSpec::parse(&args.spec)?;
    let stream = OrderStream::new(spec, args.block_size, args.seed.seed)?;
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = args.threads.map_or_else(cores, usize::from);
    let (skip, count, format) = (args.skip, args.count, args.format);
    let writer = RowWriter { stream: &stream, skip, count, format, threads };
    let mut sink = match format {
        RowFormat::Npy => args.out.open_binary()?,
        RowFormat::Jsonl => args.out.open()?,
    };
    let mut progress = Progress::new("rows", count, args.quiet.quiet);
    writer.write(|bytes, rows| {
        progress.add(rows);
        sink.put(bytes)
    })?;
    sink.finish()?;
    progress.finish();
    if args.out.is_stdout() {
        return Ok(());
    }
    write_provenance(&args, &stream)
}

/// `FILE.meta.json`: what made the file.
fn write_provenance(args: &Args, stream: &OrderStream) -> Result<()> {
    if !args.out.output.is_file() {
        return Ok(()); // a device or named pipe
    }
    let config = serde_json::to_value(args).map_err(|e| Error::usage(e.to_string()))?;
    let (seed, device, inputs) = (Some(args.seed.seed), None, Vec::new());
    let mut record = RunRecord { tool: "ao-orders", config, seed, device, inputs }.to_json();
    record["spec"] = json!(stream.spec());
    let mut name = args.out.output.clone().into_os_string();
    name.push(".meta.json");
    AtomicFile::write(&PathBuf::from(name), format!("{record:#}\n").as_bytes(), true)
}
