//! ao-import: published checkpoints into this toolkit's, and GPT-2s out of it.

use ao_core::import::{ImportArgs, Job};
use ao_core::{Result, cli};

const HELP: &str = "\
Example:
  ao-import ckpt_250000.pt --weights ema --tokenizer gpt2 -o ao-gpt-small/
  ao-import gpt2-large -o gpt2-large.st
  ao-import --export hf runs/ar/checkpoints/step-00002000/model.st -o gpt2-own/";

const NOTES: &str = "\
Reads .pt files of AO-GPT, sigma-GPT and nanoGPT, Hugging Face folders of GPT-2, SEDD, RADD and
MDLM, and safetensors files. Pickles are read as data: nothing in them is run.
A name is looked for as a path, then in the hub's cache (HF_HUB_CACHE, HF_HOME); a build with
--features hub downloads what neither has. -o FOLDER/ writes model.st with tokenizer.json beside it.

See also: ao-ema, ao-score --ckpt, docs/formats.md";

/// Turn a published checkpoint into one of this toolkit
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
