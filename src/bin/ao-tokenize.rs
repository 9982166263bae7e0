//! ao-tokenize — text to token shards and back. See `ao_core::format::shard` and `manifest`.

use ao_core::tokens::{self, TokenizeArgs};
use ao_core::{Result, cli};
use clap::Parser;
use serde::Serialize;

const LONG_ABOUT: &str = "\
Example: ao-tokenize --tokenizer gpt2 -o data/train corpus.txt

Turns text into token shards that ao-train and ao-score map into memory, and token ids back into
text. Inputs are text (one document a line), JSON lines, folders, gzip, zstd and tar. Each is told
by its content, JSON lines also by the name .jsonl; '-' is standard input. Input that looks like
JSON and is not JSON lines is an error, unless --as text says that it is text. The text of special
tokens is plain text. The folder is complete when its manifest.json says so.";

const EXAMPLES: &str = "\
More examples:
  ao-tokenize --train-tokenizer 4096 --split val=0.005 -o data corpus.txt
  ao-tokenize --field data.body -o data/train posts.jsonl.gz
  ao-tokenize --detokenizer lm1b --include '*training*/news*' -o data/train lm1b.tar.gz
  ao-tokenize --ids --vocab-size 96 --eos none --pack document -o data/x ids.jsonl
  ao-tokenize --decode data/train
  ao-tokenize --decode --tokenizer data/train/tokenizer.json < ids.jsonl
  ao-tokenize --inspect data/train

See also: ao-train(1), ao-score(1), docs/formats.md";

/// Text to token shards, and ids back to text
#[derive(Parser, Serialize)]
#[command(name = "ao-tokenize", version = cli::VERSION, long_about = LONG_ABOUT,
    after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    tokenize: TokenizeArgs,
}

fn main() {
    cli::run_main(run)
}

fn run(args: Args) -> Result<()> {
    tokens::run(args.tokenize)
}
