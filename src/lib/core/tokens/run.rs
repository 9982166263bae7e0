//! What `ao-tokenize` does: flags become one of four tasks, checked, and the task is done.

use std::path::{Path, PathBuf};

use super::args::{Pack, TokenizeArgs, Write};
use super::decode::decode;
use super::detokenize::Detokenizer;
use super::encode::Rule;
use super::eos::EosChoice;
use super::inspect::inspect;
use super::job::{Existing, Job};
use super::pipeline::Watch;
use super::reader::{Cursor, DEFAULT_FIELD, DocumentUnit, ReadOptions};
use super::sniff::InputFormat;
use super::train::train_tokenizer;
use super::{OpenOptions, Source, Tokenizer};
use crate::cli::{self, Sink};
use crate::format::manifest::Packing;
use crate::format::shard::Width;
use crate::{Error, Result};

/// Documents left out that are named on stderr; the manifest counts them all.
const MAX_COMPLAINTS: usize = 10;

/// What is to be done, with everything checked that needs no input.
enum Task {
    Shards {
        job: Box<Job>,
        vocabulary: Vocabulary,
        output: PathBuf,
        existing: Existing,
    },
    Raw {
        job: Box<Job>,
        vocabulary: Vocabulary,
        sink: cli::OutputArgs,
    },
    Decode {
        source: Source,
        read: ReadOptions,
        tokenizer: Option<String>,
        sink: cli::OutputArgs,
    },
    Inspect {
        paths: Vec<PathBuf>,
        options: OpenOptions,
        tokenizer: Option<String>,
        sink: cli::OutputArgs,
    },
}

/// Where the tokenizer comes from.
struct Vocabulary {
    choice: Choice,
    allow_special: bool,
}

enum Choice {
    /// Given ids have none.
    None,
    Named(String),
    Learned {
        size: usize,
        most_bytes: u64,
    },
}

/// Does what the flags ask for.
///
/// # Errors
/// Of the flags, the inputs or the disk.
pub fn run(args: TokenizeArgs) -> Result<()> {
    let quiet = args.quiet.quiet;
    match Task::resolve(args)? {
        Task::Inspect { paths, options, tokenizer, sink } => {
            let mut sink = sink.open()?;
            for path in &paths {
                sink.put(inspect(path, &options, tokenizer.as_deref())?.as_bytes())?;
            }
            sink.finish()
        }
        Task::Decode { source, read, tokenizer, sink } => {
            let mut sink = Sink::open(&sink.output, sink.force)?;
            decode(&source, &read, tokenizer.as_deref(), &mut |text| {
                sink.put(text)?;
                sink.put(b"\n")
            })?;
            sink.finish()
        }
        Task::Raw { mut job, vocabulary, sink } => {
            let mut watch = Follow::new(&job.source, quiet);
            write_raw(&mut job, &vocabulary, &sink, &mut watch)
        }
        Task::Shards { mut job, vocabulary, output, existing } => {
            let mut watch = Follow::new(&job.source, quiet);
            let manifests = job.run(&output, existing, |job| vocabulary.load(job), &mut watch)?;
            for manifest in manifests {
                let t = &manifest.totals;
                watch.note(&format!(
                    "{} documents, {} tokens, {} bytes of text; cut {}, left out {} empty and {} bad \
                     ones, replaced {} bytes that were not UTF-8, passed over {} files",
                    t.documents,
                    t.tokens,
                    t.bytes_of_text,
                    t.documents_cut,
                    t.empty_documents_dropped,
                    t.bad_documents_skipped,
                    t.invalid_utf8_replaced,
                    t.files_skipped + t.files_excluded
                ));
            }
            Ok(())
        }
    }
}

impl Task {
    fn resolve(args: TokenizeArgs) -> Result<Task> {
        let sink = cli::OutputArgs {
            output: args.output.clone().unwrap_or_else(|| "-".into()),
            force: args.force,
        };
        let tokenizer = args.tokenizer.clone();
        check(&args)?;
        if args.inspect {
            let (raw_u16, vocab_size) = (args.raw_u16, args.vocab_size);
            let options = OpenOptions { verify: true, raw_u16, vocab_size };
            return Ok(Task::Inspect { paths: args.inputs, options, tokenizer, sink });
        }
        let source = Source::new(args.inputs.clone(), &args.include, &args.exclude)?;
        let read = ReadOptions {
            format: args.input_format,
            unit: args.document,
            field: args.field.clone(),
            ids: args.ids,
            eos: None,
            raw_u16: args.raw_u16,
        };
        if args.decode {
            return Ok(Task::Decode { source, read, tokenizer, sink });
        }
        let vocabulary = Vocabulary {
            choice: match (tokenizer, args.train_tokenizer) {
                (_, Some(size)) => {
                    Choice::Learned { size, most_bytes: args.train_bytes.unwrap_or(1_000_000_000) }
                }
                (Some(name), None) => Choice::Named(name),
                (None, None) if args.ids => Choice::None,
                (None, None) => Choice::Named("gpt2".into()),
            },
            allow_special: args.allow_special,
        };
        let existing = Existing { force: args.force, resume: args.resume };
        let (write, output) = (args.write, args.output.clone());
        let job = Box::new(job(args, source, read));
        if write == Write::RawU16 {
            return Ok(Task::Raw { job, vocabulary, sink });
        }
        let output = output.ok_or_else(|| {
            Error::usage("-o is missing; name the shard folder to write, such as -o data/train")
        })?;
        if output == Path::new("-") {
            return Err(Error::usage(
                "-o -: a shard folder cannot go to stdout; try --write raw-u16",
            ));
        }
        Ok(Task::Shards { job, vocabulary, output, existing })
    }
}

/// Refuses flags that do not go together, or that what is asked for does not listen to.
fn check(args: &TokenizeArgs) -> Result<()> {
    let raw = args.write == Write::RawU16;
    let of_reading = [
        ("--train-tokenizer", args.train_tokenizer.is_some()),
        ("--as", args.input_format != InputFormat::Auto),
        ("--include", !args.include.is_empty()),
        ("--exclude", !args.exclude.is_empty()),
        ("--ids", args.ids),
    ];
    let of_text = [
        ("--field", args.field.is_some()),
        ("--document", args.document != DocumentUnit::Line),
        ("--allow-special", args.allow_special),
        ("--detokenizer", args.detokenizer != Detokenizer::None),
        ("--keep-newline", args.keep_newline),
        ("--strip", args.strip),
        ("--lossy", args.lossy),
    ];
    let of_shards = [
        ("--split", args.split.is_some()),
        ("--resume", args.resume),
        ("--pack", args.pack != Pack::Stream),
        ("--shard-tokens", args.shard_tokens.is_some()),
    ];
    let of_compat = [
        ("--compat-rows", args.compat_rows.is_some()),
        ("--compat-procs", args.compat_procs.is_some()),
    ];
    let of_pad = [("--pad-length", args.pad_length.is_some()), ("--bos", args.bos != "none")];
    let of_tokens = [
        ("--eos", args.eos != "auto"),
        ("--keep-empty", args.keep_empty),
        ("--skip-bad", args.skip_bad),
        ("--write", raw),
    ];
    let made = || {
        let packed = of_shards.iter().chain(&of_compat).chain(&of_pad);
        of_text.iter().chain(&of_tokens).chain(packed)
    };
    if args.inspect {
        return cli::refuse_idle("--inspect", of_reading.iter().chain(made()));
    }
    if args.decode {
        return cli::refuse_idle("--decode", made());
    }
    cli::refuse(&[
        (
            args.ids && args.train_tokenizer.is_some(),
            "--train-tokenizer learns from text; leave out --ids",
        ),
        (
            args.ids && args.tokenizer.is_none() && args.vocab_size.unwrap_or(0) == 0,
            "--ids needs --vocab-size N (or --tokenizer), the number of ids",
        ),
        (args.raw_u16 && !args.ids, "--raw-u16 is about token files; add --ids"),
        (
            !args.ids && args.vocab_size.is_some(),
            "--vocab-size is for --ids; text has its tokenizer's size",
        ),
        (
            args.field.is_some() && args.input_format == InputFormat::Text,
            "--field is for JSON lines and Parquet; leave it or --as text out",
        ),
        (
            args.keep_newline && args.document == DocumentUnit::File,
            "--keep-newline is about lines; leave it or --document file out",
        ),
    ])?;
    if args.ids {
        cli::refuse_idle("--ids", &of_text)?;
    }
    if raw {
        cli::refuse_idle("--write raw-u16, which makes one file,", &of_shards)?;
    }
    if args.pack != Pack::Compat {
        cli::refuse_idle("a --pack other than compat", &of_compat)?;
    }
    if args.pack != Pack::Pad {
        cli::refuse_idle("a --pack other than pad", &of_pad)?;
    }
    Ok(())
}

fn job(args: TokenizeArgs, source: Source, read: ReadOptions) -> Job {
    // What changes no byte of the shards does not keep a run from being gone on with.
    let mut config = serde_json::to_value(&args).unwrap_or_default();
    if let Some(object) = config.as_object_mut() {
        for key in ["threads", "quiet", "resume", "force", "output", "decode", "inspect"] {
            object.remove(key);
        }
    }
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    Job {
        source,
        read,
        rule: Rule {
            field: args.field.unwrap_or_else(|| DEFAULT_FIELD.into()),
            keep_newline: args.keep_newline,
            strip: args.strip,
            keep_empty: args.keep_empty,
            lossy: args.lossy,
            skip_bad: args.skip_bad,
            detokenizer: args.detokenizer,
            bos: None,
            eos: None,
            most_ids: None,
            vocab_size: args.vocab_size.unwrap_or(0),
            val_share: args.split.unwrap_or(0.0),
        },
        eos: args.eos.parse().unwrap_or(EosChoice::Auto),
        bos: args.bos.parse().unwrap_or(EosChoice::None),
        packing: match args.pack {
            Pack::Stream => Packing::Stream,
            Pack::Document => Packing::Document,
            Pack::Compat => Packing::Compat {
                rows: args.compat_rows.unwrap_or(1000),
                procs: args.compat_procs.unwrap_or(1),
            },
            Pack::Pad => Packing::Pad { length: args.pad_length.unwrap_or(128), bos_id: None },
        },
        shard_tokens: args.shard_tokens.unwrap_or(100_000_000),
        threads: args.threads.map_or_else(cores, |n| n as usize), // at most 1024
        split: args.split.is_some(),
        created_by: format!("ao-tokenize {}", cli::VERSION),
        argv: std::env::args().collect(),
        config,
    }
}

impl Vocabulary {
    fn load(&self, job: &Job) -> Result<Option<Tokenizer>> {
        let tokenizer = match &self.choice {
            Choice::None => return Ok(None),
            Choice::Named(name) => Tokenizer::load(name)?,
            Choice::Learned { size, most_bytes } => {
                train_tokenizer(&job.source, &job.read, &job.rule, *size, *most_bytes)?
            }
        };
        Ok(Some(tokenizer.allow_special(self.allow_special)))
    }
}

/// All tokens into one raw file.
fn write_raw(
    job: &mut Job,
    vocabulary: &Vocabulary,
    sink: &cli::OutputArgs,
    watch: &mut Follow,
) -> Result<()> {
    let tokenizer = vocabulary.load(job)?;
    job.adopt(tokenizer.as_ref())?;
    let Width::U16 = Width::for_vocab(job.rule.vocab_size) else {
        return Err(Error::usage(format!(
            "--write raw-u16: a vocabulary of {} does not fit 16 bits; write shards",
            job.rule.vocab_size
        )));
    };
    let mut sink = sink.open_binary()?;
    let pipeline = job.pipeline(tokenizer, watch);
    let mut bytes = Vec::new();
    pipeline.run(Cursor::default(), watch, &mut |batch| {
        bytes.clear();
        // Ids are below the vocabulary's size, which fits.
        Width::U16
            .append(&batch.ids, &mut bytes)
            .map_err(|id| Error::usage(format!("token id {id} does not fit 16 bits")))?;
        sink.put(&bytes)
    })?;
    sink.finish()
}

/// Shows progress and complaints, and stops at a signal.
struct Follow {
    progress: cli::Progress,
    complaints: usize,
}

impl Follow {
    fn new(source: &Source, quiet: bool) -> Self {
        let progress = cli::Progress::new("bytes", source.total_bytes(), quiet);
        Follow { progress, complaints: 0 }
    }
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
            self.note(&format!("left out: {reason}"));
        }
    }
    fn note(&mut self, text: &str) {
        self.progress.say(text);
    }
    fn stop(&mut self) -> Result<()> {
        cli::signals::interrupted()
    }
}
