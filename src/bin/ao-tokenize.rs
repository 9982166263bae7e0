//! ao-tokenize — text to token shards and back. See `ao_core::format::shard` and `manifest`.

use ao_core::tokens::{self, TokenizeArgs};
use ao_core::{Result, cli};
use clap::Parser;
use serde::Serialize;

const EXAMPLE: &str = "\
Example:
  ao-tokenize --tokenizer gpt2 -o data/toy testdata/toy/stories.txt

More examples:
  ao-tokenize --train-tokenizer 4096 --split val=0.005 -o data corpus.txt
  ao-tokenize --field data.body -o data/train posts.jsonl.gz
  ao-tokenize --detokenizer lm1b --include '*training*/news*' -o data/train lm1b.tar.gz
  ao-tokenize --ids --vocab-size 96 --eos none --pack document -o data/x ids.jsonl
  ao-tokenize --tokenizer bert.json --bos '[CLS]' --eos '[SEP]' --pack pad -o data/x lm1b
  ao-tokenize --decode data/train
  ao-tokenize --decode --tokenizer data/train/tokenizer.json < ids.jsonl
  ao-tokenize --inspect data/train";

const NOTES: &str = "\
Inputs are text (one document a line), JSON lines, folders, gzip, zstd and tar. The content tells
which, and so does the name .jsonl. '-' is standard input. Input that looks like JSON and is not
JSON lines is an error, unless --as text says that it is text. The text of special tokens is plain
text. A shard folder is complete when its manifest.json says so.

See also: ao-train, ao-score, docs/formats.md";

/// Convert text to token shards, and ids back to text
#[derive(Parser, Serialize)]
#[command(name = "ao-tokenize", version = cli::VERSION, before_help = EXAMPLE, after_help = NOTES)]
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
