//! ao-tokenize — text to token shards and back. See `ao_core::format::shard` and `manifest`.

use std::path::PathBuf;

use ao_core::cli::{self, Sink};
use ao_core::format::manifest::Packing;
use ao_core::format::shard::Width;
use ao_core::tokens::detokenize::Detokenizer;
use ao_core::tokens::{
    self, DocumentUnit, EosChoice, Existing, InputFormat, Job, OpenOptions, Pipeline, Progress,
    ReadOptions, Rule, Source, Tokenizer, Watch,
};
use ao_core::{Error, Result};
use serde::Serialize;

const LONG_ABOUT: &str = "\
Example: ao-tokenize --tokenizer gpt2 -o data/train corpus.txt

Turns text into token shards that ao-train and ao-score map into memory, and token ids back into
text. Inputs are text (one document a line), JSON lines, folders, gzip, zstd and tar, each told by
its content; '-' is standard input. Text of special tokens is plain text. The folder is complete
when its manifest.json says so.";

const EXAMPLES: &str = "\
More examples:
  ao-tokenize --train-tokenizer 4096 --split val=0.005 -o data corpus.txt
  ao-tokenize --detokenizer lm1b --include '*training*/news*' -o data/train lm1b.tar.gz
  ao-tokenize --ids --vocab-size 96 --eos none --pack document -o data/x ids.jsonl
  ao-tokenize --decode --tokenizer data/train/tokenizer.json < ids.jsonl
  ao-tokenize --inspect data/train

See also: ao-train(1), ao-score(1), docs/formats.md";

/// Documents left out that are named on stderr; the manifest counts them all.
const MAX_COMPLAINTS: usize = 10;

/// Text to token shards, and ids back to text
#[derive(clap::Parser, Serialize)]
#[command(name = "ao-tokenize", version = cli::VERSION, long_about = LONG_ABOUT,
    after_help = EXAMPLES)]
struct Args {
    /// Files, folders, archives, or '-' for standard input
    #[arg(value_name = "INPUT", default_value = "-")]
    inputs: Vec<PathBuf>,
    /// The shard folder to write (with --write raw-u16, --decode or --inspect: a file, or '-')
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,
    /// gpt2 (built in), or a tokenizer.json [default: gpt2; none with --ids]
    #[arg(long, value_name = "gpt2|FILE")]
    tokenizer: Option<String>,
    /// Learn a byte-level BPE vocabulary of N ids from the inputs first
    #[arg(long, value_name = "N", conflicts_with = "tokenizer")]
    train_tokenizer: Option<usize>,
    /// Text that --train-tokenizer learns from, at most this many bytes
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = cli::parse_count)]
    train_bytes: u64,
    /// Let the text of special tokens become these tokens
    #[arg(long)]
    allow_special: bool,
    /// Turn a benchmark's cut words into running text, as the published loaders do
    #[arg(long, value_enum, default_value = "none")]
    detokenizer: Detokenizer,
    /// What the inputs are; auto looks at the content
    #[arg(long, value_enum, default_value = "auto")]
    input_format: InputFormat,
    /// What a document of a text is
    #[arg(long, value_enum, default_value = "line")]
    document: DocumentUnit,
    /// Field of JSON lines, or column of a Parquet file, that holds the text
    #[arg(long, default_value = "text")]
    field: String,
    /// Read only files whose path in a folder or archive matches ('*' matches anything)
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Pass over files whose path in a folder or archive matches
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Keep the line feed in a line's text; a line of white space is an empty document then
    #[arg(long)]
    keep_newline: bool,
    /// Take white space off both ends of each document
    #[arg(long)]
    strip: bool,
    /// Keep documents of no text, as an end token alone
    #[arg(long)]
    keep_empty: bool,
    /// Replace bytes that are not UTF-8 by U+FFFD and count them, instead of stopping
    #[arg(long)]
    lossy: bool,
    /// Leave out documents that cannot be read, count them and name the first, instead of stopping
    #[arg(long)]
    skip_bad: bool,
    /// Inputs are ids: one JSON array a line, or token files
    #[arg(long)]
    ids: bool,
    /// Number of ids, for --ids without a tokenizer
    #[arg(long, value_name = "N")]
    vocab_size: Option<usize>,
    /// Token files are raw u16 without a header, as nanoGPT writes them
    #[arg(long)]
    raw_u16: bool,
    /// The id behind each document: auto (the tokenizer's), none, an id, or a special token
    #[arg(long, default_value = "auto")]
    eos: String,
    /// How documents become blocks when they are read
    #[arg(long, value_enum, default_value = "stream")]
    pack: Pack,
    /// Documents in a batch of --pack compat
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    compat_rows: u64,
    /// Processes that --pack compat imitates
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    compat_procs: u64,
    /// Hold out this share of the documents, chosen by hash: writes OUTPUT/train and OUTPUT/val
    #[arg(long, value_name = "val=SHARE", value_parser = parse_split)]
    split: Option<f64>,
    /// What to write: a shard folder, or one raw file as nanoGPT reads it
    #[arg(long, value_enum, default_value = "shards")]
    write: Write,
    /// Begin a new shard at the first document end at or past this many tokens
    #[arg(long, value_name = "N", default_value = "100M", value_parser = cli::parse_count)]
    shard_tokens: u64,
    /// Encoding threads; the shards do not depend on it [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
    /// Go on with an unfinished folder
    #[arg(long)]
    resume: bool,
    /// Overwrite an existing target, which stays until the new one is whole
    #[arg(long)]
    force: bool,
    /// Print the text of ids instead, one document a line
    #[arg(long, conflicts_with_all = ["train_tokenizer", "inspect"])]
    decode: bool,
    /// Print what shards or shard folders hold and check them whole; exit 0 if they are
    #[arg(long)]
    inspect: bool,
    #[command(flatten)]
    quiet: cli::Quiet,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Pack {
    /// One after another; the last block may be short
    Stream,
    /// A block never crosses a document
    Document,
    /// The published loaders' rule: the remainder of each batch of rows is dropped
    Compat,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Write {
    Shards,
    RawU16,
}

fn parse_split(text: &str) -> Result<f64, String> {
    let share = text.strip_prefix("val=").and_then(|s| s.parse::<f64>().ok());
    share
        .filter(|s| *s > 0.0 && *s < 1.0)
        .ok_or_else(|| "expected val=SHARE with a share between 0 and 1, such as val=0.005".into())
}

fn main() {
    cli::run_main(run)
}

fn run(args: Args) -> Result<()> {
    if args.inspect {
        return inspect(&args);
    }
    if args.decode {
        return decode(&args);
    }
    let mut job = job(&args)?;
    let progress = cli::Progress::new("bytes", job.source.total_bytes(), args.quiet.quiet);
    let mut watch = Follow { progress, complaints: 0 };
    if args.write == Write::RawU16 {
        return write_raw(&args, &mut job, &mut watch);
    }
    let output = args.output.as_deref().ok_or_else(|| {
        Error::usage("-o is missing; name the shard folder to write, such as -o data/train")
    })?;
    if output == std::path::Path::new("-") {
        return Err(Error::usage("-o -: a shard folder cannot go to stdout; try --write raw-u16"));
    }
    let existing = Existing { force: args.force, resume: args.resume };
    let manifests = job.run(output, existing, |job| tokenizer(&args, job), &mut watch)?;
    for manifest in manifests {
        let t = &manifest.totals;
        watch.progress.say(&format!(
            "{} documents, {} tokens, {} bytes of text; left out {} empty and {} bad ones, replaced \
             {} bytes that were not UTF-8",
            t.documents,
            t.tokens,
            t.bytes_of_text,
            t.empty_documents_dropped,
            t.bad_documents_skipped,
            t.invalid_utf8_replaced
        ));
    }
    Ok(())
}

fn source(args: &Args) -> Source {
    Source {
        paths: args.inputs.clone(),
        include: args.include.clone(),
        exclude: args.exclude.clone(),
    }
}

fn read_options(args: &Args, ids: bool, eos: Option<u32>) -> ReadOptions {
    ReadOptions {
        format: args.input_format,
        unit: args.document,
        field: args.field.clone(),
        ids,
        eos,
        raw_u16: args.raw_u16,
    }
}

fn job(args: &Args) -> Result<Job> {
    if args.ids && args.train_tokenizer.is_some() {
        return Err(Error::usage("--train-tokenizer learns from text; leave out --ids"));
    }
    if args.ids && args.tokenizer.is_none() && args.vocab_size.unwrap_or(0) == 0 {
        return Err(Error::usage("--ids needs --vocab-size N (or --tokenizer), the number of ids"));
    }
    if args.raw_u16 && !args.ids {
        return Err(Error::usage("--raw-u16 is about token files; add --ids"));
    }
    if !args.ids && args.vocab_size.is_some() {
        return Err(Error::usage("--vocab-size is for --ids; text has its tokenizer's size"));
    }
    // What changes no byte of the shards does not keep a run from being gone on with.
    let mut config = serde_json::to_value(args).unwrap_or_default();
    if let Some(object) = config.as_object_mut() {
        for key in ["threads", "quiet", "resume", "force", "output", "decode", "inspect"] {
            object.remove(key);
        }
    }
    Ok(Job {
        source: source(args),
        read: read_options(args, args.ids, None),
        rule: Rule {
            field: args.field.clone(),
            keep_newline: args.keep_newline,
            strip: args.strip,
            keep_empty: args.keep_empty,
            lossy: args.lossy,
            skip_bad: args.skip_bad,
            detokenizer: args.detokenizer,
            eos: None,
            vocab_size: args.vocab_size.unwrap_or(0),
            val_share: args.split.unwrap_or(0.0),
        },
        eos: args.eos.parse().unwrap_or(EosChoice::Auto),
        packing: match args.pack {
            Pack::Stream => Packing::Stream,
            Pack::Document => Packing::Document,
            Pack::Compat => Packing::Compat { rows: args.compat_rows, procs: args.compat_procs },
        },
        shard_tokens: args.shard_tokens,
        threads: threads(args),
        split: args.split.is_some(),
        created_by: format!("ao-tokenize {}", cli::VERSION),
        argv: std::env::args().collect(),
        config,
    })
}

fn threads(args: &Args) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    args.threads.map_or_else(cores, |n| n as usize) // at most 1024
}

fn tokenizer(args: &Args, job: &Job) -> Result<Option<Tokenizer>> {
    let tokenizer = match (&args.tokenizer, args.train_tokenizer) {
        (_, Some(size)) => {
            tokens::train_tokenizer(&job.source, &job.read, &job.rule, size, args.train_bytes)?
        }
        (Some(name), None) => Tokenizer::load(name)?,
        (None, None) if args.ids => return Ok(None),
        (None, None) => Tokenizer::gpt2()?,
    };
    Ok(Some(tokenizer.allow_special(args.allow_special)))
}

/// All tokens into one raw file.
fn write_raw(args: &Args, job: &mut Job, watch: &mut Follow) -> Result<()> {
    if args.split.is_some() || args.resume || args.pack != Pack::Stream {
        return Err(Error::usage("--write raw-u16 makes one file: no --split, --resume or --pack"));
    }
    let tokenizer = tokenizer(args, job)?;
    job.adopt(tokenizer.as_ref())?;
    let Width::U16 = Width::for_vocab(job.rule.vocab_size) else {
        return Err(Error::usage(format!(
            "--write raw-u16: a vocabulary of {} does not fit 16 bits; write shards",
            job.rule.vocab_size
        )));
    };
    let path = args.output.clone().unwrap_or_else(|| "-".into());
    let mut sink = cli::OutputArgs { output: path, force: args.force }.open_binary()?;
    let pipeline = Pipeline {
        source: &job.source,
        read: &job.read,
        rule: &job.rule,
        tokenizer: tokenizer.as_ref(),
        threads: job.threads,
    };
    let mut bytes = Vec::new();
    pipeline.run(Progress::default(), watch, &mut |batch| {
        bytes.clear();
        // Ids are below the vocabulary's size, which fits.
        Width::U16
            .append(&batch.ids, &mut bytes)
            .map_err(|id| Error::usage(format!("token id {id} does not fit 16 bits")))?;
        sink.put(&bytes)
    })?;
    sink.finish()
}

fn decode(args: &Args) -> Result<()> {
    let tokenizer = Tokenizer::load(args.tokenizer.as_deref().unwrap_or("gpt2"))?;
    let read = read_options(args, true, tokenizer.eos_id());
    let output = args.output.clone().unwrap_or_else(|| "-".into());
    let mut sink = Sink::open(&output, args.force)?;
    tokens::decode(&source(args), &read, &tokenizer, &mut |text| {
        sink.put(text)?;
        sink.put(b"\n")
    })?;
    sink.finish()
}

fn inspect(args: &Args) -> Result<()> {
    let mut sink = Sink::open(&args.output.clone().unwrap_or_else(|| "-".into()), args.force)?;
    let options = OpenOptions { verify: true, raw_u16: args.raw_u16, vocab_size: args.vocab_size };
    for path in &args.inputs {
        sink.put(tokens::inspect(path, &options, args.tokenizer.as_deref())?.as_bytes())?;
    }
    sink.finish()
}

/// Shows progress and complaints, and stops at a signal.
struct Follow {
    progress: cli::Progress,
    complaints: usize,
}

impl Watch for Follow {
    fn begin(&mut self) {
        cli::signals::finish_on_signal();
    }
    fn progress(&mut self, bytes: u64, tokens: u64) {
        self.progress.set(bytes, &format!("{tokens} tokens"));
    }
    fn complain(&mut self, reason: &str) {
        self.complaints += 1;
        if self.complaints <= MAX_COMPLAINTS {
            self.progress.say(&format!("left out: {reason}"));
        }
    }
    fn stop(&mut self) -> Result<()> {
        cli::signals::interrupted()
    }
}
