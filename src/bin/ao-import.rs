//! ao-import: published checkpoints into this toolkit's, and GPT-2s out of it.

use ao_core::import::{ImportArgs, Job};
use ao_core::{Result, cli};

const HELP: &str = "\
Example:
  ao-import testdata/golden/gpt2-hf -o gpt2-tiny.st

More examples:
  ao-import ckpt_250000.pt --weights ema --tokenizer gpt2 -o ao-gpt-small/
  ao-import gpt2-large -o gpt2-large.st
  ao-import --export hf runs/ar/checkpoints/step-00002000/model.st -o gpt2-own/";

const NOTES: &str = "\
Sources: .pt files of AO-GPT, sigma-GPT and nanoGPT; Hugging Face folders of GPT-2, SEDD, RADD and
MDLM; safetensors files. Pickles are read as data, and nothing in them is run.
SOURCE is tried as a path first, then as a name in the hub's cache (HF_HUB_CACHE, HF_HOME). A build
with --features hub downloads a model that is in neither place.
-o FOLDER/ writes model.st and tokenizer.json into the folder.

See also: ao-ema, ao-score --ckpt, docs/formats.md";

/// Convert a published checkpoint to this toolkit's format
#[derive(clap::Parser, serde::Serialize)]
#[command(name = "ao-import", version = cli::VERSION, before_help = HELP, after_help = NOTES)]
struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    import: ImportArgs,
}

fn main() {
    cli::run_main(run)
}

fn run(args: Args) -> Result<()> {
    Job::try_from(args.import)?.run()
}
