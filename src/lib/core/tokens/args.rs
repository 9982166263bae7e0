//! What is typed: the flags of `ao-tokenize`. [`super::run()`] makes settings of them.

use std::path::PathBuf;

use serde::Serialize;

use super::detokenize::Detokenizer;
use super::reader::DocumentUnit;
use super::sniff::InputFormat;
use crate::cli;

/// The flags of `ao-tokenize`.
#[derive(Debug, clap::Args, Serialize)]
pub struct TokenizeArgs {
    /// Files, folders or archives to read; '-' is standard input
    #[arg(value_name = "INPUT", default_value = "-")]
    pub(super) inputs: Vec<PathBuf>,
    /// Shard folder to write. With --write raw-u16, --decode or --inspect it is a file, or '-'
    #[arg(long, short, value_name = "PATH")]
    pub(super) output: Option<PathBuf>,
    /// gpt2 (built in), or a tokenizer.json [default: gpt2; none with --ids; the shard folder's with
    /// --decode and --inspect]
    #[arg(long, value_name = "gpt2|FILE")]
    pub(super) tokenizer: Option<String>,
    /// Train a byte-level BPE tokenizer with N ids on the inputs, and use it
    #[arg(long, value_name = "N", conflicts_with = "tokenizer")]
    pub(super) train_tokenizer: Option<usize>,
    /// Largest amount of text that --train-tokenizer reads [default: 1G]
    #[arg(long, value_name = "BYTES", value_parser = cli::parse_count)]
    #[arg(requires = "train_tokenizer")]
    pub(super) train_bytes: Option<u64>,
    /// Turn the text of special tokens into these tokens
    #[arg(long)]
    pub(super) allow_special: bool,
    /// Undo a benchmark's tokenization, as the published loaders do
    #[arg(long, value_enum, default_value = "none")]
    pub(super) detokenizer: Detokenizer,
    /// Format of the inputs. auto reads as JSON lines what is named .jsonl or looks like JSON, and
    /// everything if --field is given
    #[arg(long = "as", alias = "input-format", value_enum, default_value = "auto")]
    pub(super) input_format: InputFormat,
    /// Unit of text that is one document
    #[arg(long, value_enum, default_value = "line")]
    pub(super) document: DocumentUnit,
    /// Field of JSON lines with the text (a.b is field b of field a), or column of a Parquet file
    /// [default: text]
    #[arg(long)]
    pub(super) field: Option<String>,
    /// Read only files whose path in a folder or archive matches. '*' matches anything
    #[arg(long, value_name = "PATTERN")]
    pub(super) include: Vec<String>,
    /// Skip files whose path in a folder or archive matches
    #[arg(long, value_name = "PATTERN")]
    pub(super) exclude: Vec<String>,
    /// Keep the line feed in the text of a line. A line of white space is then an empty document
    #[arg(long)]
    pub(super) keep_newline: bool,
    /// Remove white space at both ends of each document
    #[arg(long)]
    pub(super) strip: bool,
    /// Keep empty documents, as an end token alone
    #[arg(long)]
    pub(super) keep_empty: bool,
    /// Replace invalid UTF-8 by U+FFFD and count it, instead of stopping
    #[arg(long)]
    pub(super) lossy: bool,
    /// Skip documents that cannot be read, instead of stopping. They are counted, and the first ones
    /// are named
    #[arg(long)]
    pub(super) skip_bad: bool,
    /// Read ids instead of text: one JSON array a line, or token files
    #[arg(long)]
    pub(super) ids: bool,
    /// Number of ids in the vocabulary, for --ids without a tokenizer
    #[arg(long, value_name = "N")]
    pub(super) vocab_size: Option<usize>,
    /// The token files are raw u16 without a header, as nanoGPT writes them
    #[arg(long)]
    pub(super) raw_u16: bool,
    /// Token after each document: auto (the tokenizer's), none, an id, or a special token
    #[arg(long, default_value = "auto")]
    pub(super) eos: String,
    /// With --pack pad: token before each document: none, an id, or a special token
    #[arg(long, default_value = "none")]
    pub(super) bos: String,
    /// Rule by which readers cut documents into blocks
    #[arg(long, value_enum, default_value = "stream")]
    pub(super) pack: Pack,
    /// With --pack compat: documents per batch [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) compat_rows: Option<u64>,
    /// With --pack compat: number of processes to imitate [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) compat_procs: Option<u64>,
    /// With --pack pad: most tokens of a document, with those of --bos and --eos [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) pad_length: Option<u64>,
    /// Hold out a fraction of the documents, chosen by hash. Writes OUTPUT/train and OUTPUT/val
    #[arg(long, value_name = "val=SHARE", value_parser = parse_split)]
    pub(super) split: Option<f64>,
    /// Output: a shard folder, or one raw file as nanoGPT reads it
    #[arg(long, value_enum, default_value = "shards")]
    pub(super) write: Write,
    /// Start a new shard at the first end of a document at or after this many tokens
    /// [default: 100M]
    #[arg(long, value_name = "N", value_parser = cli::parse_count)]
    pub(super) shard_tokens: Option<u64>,
    /// Encoding threads. The shards do not depend on it [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(super) threads: Option<u64>,
    /// Continue an unfinished folder
    #[arg(long)]
    pub(super) resume: bool,
    /// Overwrite the output if it exists. The old one stays until the new one is complete
    #[arg(long)]
    pub(super) force: bool,
    /// Print the text of ids, one document a line
    #[arg(long, conflicts_with_all = ["train_tokenizer", "inspect"])]
    pub(super) decode: bool,
    /// Print what shards or shard folders hold, and check them. The exit status is 0 if they are whole
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
    /// Documents one after another; the last block may be short
    Stream,
    /// Each block holds tokens of one document
    Document,
    /// The published loaders' rule, which drops the rest of each batch
    Compat,
    /// One document a block, cut to --pad-length tokens and padded when it is read
    Pad,
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
