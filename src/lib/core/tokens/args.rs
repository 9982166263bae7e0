//! What is typed: the flags of `ao-tokenize`. [`super::run()`] makes settings of them.

use std::path::PathBuf;

use serde::Serialize;

use super::detokenize::Detokenizer;
use super::reader::{DocumentUnit, InputFormat};
use crate::cli;

/// The flags of `ao-tokenize`.
#[derive(Debug, clap::Args, Serialize)]
pub struct TokenizeArgs {
    /// Files, folders, archives, or '-' for standard input
    #[arg(value_name = "INPUT", default_value = "-")]
    pub(super) inputs: Vec<PathBuf>,
    /// The shard folder to write (with --write raw-u16, --decode or --inspect: a file, or '-')
    #[arg(long, short, value_name = "PATH")]
    pub(super) output: Option<PathBuf>,
    /// gpt2 (built in), or a tokenizer.json [default: gpt2; none with --ids; --decode and --inspect
    /// take the shard folder's]
    #[arg(long, value_name = "gpt2|FILE")]
    pub(super) tokenizer: Option<String>,
    /// Learn a byte-level BPE vocabulary of N ids from the inputs first
    #[arg(long, value_name = "N", conflicts_with = "tokenizer")]
    pub(super) train_tokenizer: Option<usize>,
    /// Text that --train-tokenizer learns from, at most this many bytes
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = cli::parse_count)]
    pub(super) train_bytes: u64,
    /// Let the text of special tokens become these tokens
    #[arg(long)]
    pub(super) allow_special: bool,
    /// Turn a benchmark's cut words into running text, as the published loaders do
    #[arg(long, value_enum, default_value = "none")]
    pub(super) detokenizer: Detokenizer,
    /// What the inputs are. auto takes for JSON lines what is called .jsonl or looks like JSON, and
    /// all inputs where --field is given
    #[arg(long = "as", alias = "input-format", value_enum, default_value = "auto")]
    pub(super) input_format: InputFormat,
    /// What a document of a text is
    #[arg(long, value_enum, default_value = "line")]
    pub(super) document: DocumentUnit,
    /// Field of JSON lines (a.b is field b of field a), or column of a Parquet file, that holds the
    /// text [default: text]
    #[arg(long)]
    pub(super) field: Option<String>,
    /// Read only files whose path in a folder or archive matches ('*' matches anything)
    #[arg(long, value_name = "PATTERN")]
    pub(super) include: Vec<String>,
    /// Pass over files whose path in a folder or archive matches
    #[arg(long, value_name = "PATTERN")]
    pub(super) exclude: Vec<String>,
    /// Keep the line feed in a line's text; a line of white space is an empty document then
    #[arg(long)]
    pub(super) keep_newline: bool,
    /// Take white space off both ends of each document
    #[arg(long)]
    pub(super) strip: bool,
    /// Keep documents of no text, as an end token alone
    #[arg(long)]
    pub(super) keep_empty: bool,
    /// Replace what is not UTF-8 by U+FFFD and count it, instead of stopping
    #[arg(long)]
    pub(super) lossy: bool,
    /// Leave out documents that cannot be read, count them and name the first, instead of stopping
    #[arg(long)]
    pub(super) skip_bad: bool,
    /// Inputs are ids: one JSON array a line, or token files
    #[arg(long)]
    pub(super) ids: bool,
    /// Number of ids, for --ids without a tokenizer
    #[arg(long, value_name = "N")]
    pub(super) vocab_size: Option<usize>,
    /// Token files are raw u16 without a header, as nanoGPT writes them
    #[arg(long)]
    pub(super) raw_u16: bool,
    /// The id behind each document: auto (the tokenizer's), none, an id, or a special token
    #[arg(long, default_value = "auto")]
    pub(super) eos: String,
    /// How documents become blocks when they are read
    #[arg(long, value_enum, default_value = "stream")]
    pub(super) pack: Pack,
    /// Documents in a batch of --pack compat
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) compat_rows: u64,
    /// Processes that --pack compat imitates
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) compat_procs: u64,
    /// Hold out this share of the documents, chosen by hash: writes OUTPUT/train and OUTPUT/val
    #[arg(long, value_name = "val=SHARE", value_parser = parse_split)]
    pub(super) split: Option<f64>,
    /// What to write: a shard folder, or one raw file as nanoGPT reads it
    #[arg(long, value_enum, default_value = "shards")]
    pub(super) write: Write,
    /// Begin a new shard at the first document end at or past this many tokens
    #[arg(long, value_name = "N", default_value = "100M", value_parser = cli::parse_count)]
    pub(super) shard_tokens: u64,
    /// Encoding threads; the shards do not depend on it [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(super) threads: Option<u64>,
    /// Go on with an unfinished folder
    #[arg(long)]
    pub(super) resume: bool,
    /// Overwrite an existing target, which stays until the new one is whole
    #[arg(long)]
    pub(super) force: bool,
    /// Print the text of ids instead, one document a line
    #[arg(long, conflicts_with_all = ["train_tokenizer", "inspect"])]
    pub(super) decode: bool,
    /// Print what shards or shard folders hold and check them whole; exit 0 if they are
    #[arg(long)]
    pub(super) inspect: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) quiet: cli::Quiet,
}

/// The value of `--pack`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pack {
    /// One after another; the last block may be short
    Stream,
    /// A block never crosses a document
    Document,
    /// The published loaders' rule: the remainder of each batch of rows is dropped
    Compat,
}

/// The value of `--write`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Write {
    Shards,
    RawU16,
}

fn parse_split(text: &str) -> Result<f64, String> {
    let share = text.strip_prefix("val=").and_then(|s| s.parse::<f64>().ok());
    share
        .filter(|s| *s > 0.0 && *s < 1.0)
        .ok_or_else(|| "expected val=SHARE with a share between 0 and 1, such as val=0.005".into())
}
