//! The options of `ao-import`, and what it does with them.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Input, OutputArgs, Progress, Quiet, RunRecord};
use crate::format::atomic::{AtomicFolder, is_temporary_name, refuse_existing};
use crate::format::checkpoint::{Kind, Metadata};
use crate::import::{self, OpenOptions, Source, WeightsKind};
use crate::tokens::Tokenizer;
use crate::{Error, Result};

/// What is read and how.
#[derive(Debug, clap::Args, Serialize)]
pub struct ImportArgs {
    /// A .pt file, a Hugging Face folder, a safetensors file, hf:OWNER/NAME, or a name in the hub's
    /// cache such as gpt2-large
    #[arg(value_name = "SOURCE")]
    pub source: String,
    /// Which weights to take [default: the moving average where there is one, else raw]
    #[arg(long, value_name = "raw|ema")]
    pub weights: Option<WeightsKind>,
    /// Model config to follow instead of the source's own
    #[arg(long, value_name = "FILE.json")]
    pub model_config: Option<PathBuf>,
    /// The model's tokenizer, written beside the weights if -o names a folder [default: the one
    /// beside the source]
    #[arg(long, value_name = "gpt2|FILE")]
    pub tokenizer: Option<String>,
    /// Write a folder of this kind instead of a checkpoint
    #[arg(long, value_name = "hf")]
    pub export: Option<Export>,
    /// `-o` and `--force`.
    #[command(flatten)]
    #[serde(flatten)]
    pub out: OutputArgs,
    /// `--quiet`.
    #[command(flatten)]
    #[serde(flatten)]
    pub quiet: Quiet,
}

/// The value of `--export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Export {
    /// A folder that Hugging Face's GPT-2 class loads.
    Hf,
}

/// The files that an import puts into a folder; one with others in it is never replaced.
const OWN_FILES: [&str; 5] =
    ["config.json", "generation_config.json", "model.safetensors", "model.st", "tokenizer.json"];

/// Reads the source and writes what was asked for.
///
/// # Errors
/// One line about the arguments, the source or the target.
pub fn run(args: ImportArgs) -> Result<()> {
    if args.out.is_stdout() {
        return Err(Error::usage("a checkpoint is no stream; give -o FILE or -o FOLDER/"));
    }
    let target = &args.out.output;
    let folder = args.export.is_some()
        || target.is_dir()
        || target.as_os_str().as_encoded_bytes().ends_with(b"/");
    if folder {
        check_folder(target, args.out.force)?;
    } else if target.is_file() {
        refuse_existing(target, args.out.force)?; // before anything is read
    }
    let path = import::locate_with(&args.source, !args.quiet.quiet)?;
    let options = OpenOptions { weights: args.weights, model_config: args.model_config.clone() };
    let source = Source::open(&path, &options)?;
    if args.export.is_some() {
        import::check_exportable(&source)?;
    }
    let mut metadata = source.metadata().clone();
    let tokenizer = tokenizer(&args, &source, &mut metadata)?;
    if !args.quiet.quiet {
        eprintln!("{}", describe(&source, &metadata));
    }
    let mut progress = Progress::new("bytes", Some(source.bytes()), args.quiet.quiet);
    if !folder {
        let map = metadata_map(&args, &source, metadata)?;
        return import::write_checkpoint(&source, target, args.out.force, &map, |n| {
            progress.add(n)
        });
    }
    let whole = AtomicFolder::create(target)?;
    match args.export {
        Some(Export::Hf) => {
            let tokenizer = tokenizer.as_ref();
            import::write_hugging_face(&source, whole.path(), tokenizer, |n| progress.add(n))?;
        }
        None => {
            if let Some(tokenizer) = &tokenizer {
                tokenizer.save(&whole.path().join("tokenizer.json"))?;
            }
            let map = metadata_map(&args, &source, metadata)?;
            let path = whole.path().join("model.st");
            import::write_checkpoint(&source, &path, false, &map, |n| progress.add(n))?;
        }
    }
    whole.commit()
}

/// Refuses a folder that exists, unless it is empty, or `force` and all in it is an import's.
fn check_folder(folder: &Path, force: bool) -> Result<()> {
    let refuse = |what: String| Err(Error::usage(format!("{}: {what}", folder.display())));
    if folder.exists() && !folder.is_dir() {
        return refuse("is a file; name a folder".into());
    }
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let names: Vec<String> = names.filter(|name| !is_temporary_name(name)).collect();
    if let Some(name) = names.iter().find(|name| !OWN_FILES.contains(&name.as_str())) {
        return refuse(format!("holds '{name}', which no import wrote; name another folder"));
    }
    if !names.is_empty() && !force {
        return refuse("exists already; give --force to replace it".into());
    }
    Ok(())
}

/// The tokenizer that was named or lies beside the source; its hash and size go into `metadata`.
fn tokenizer(
    args: &ImportArgs,
    source: &Source,
    metadata: &mut Metadata,
) -> Result<Option<Tokenizer>> {
    let tokenizer = match (&args.tokenizer, source.tokenizer()) {
        (Some(name), _) => Tokenizer::load(name)?,
        (None, Some(path)) => Tokenizer::load(&path.to_string_lossy()).map_err(|e| match e {
            Error::Input { place, message } => {
                Error::Input { place, message: format!("{message}; or give --tokenizer") }
            }
            other => other,
        })?,
        (None, None) => return Ok(None),
    };
    let (ids, rows) = (tokenizer.vocab_size(), source.config().vocab_size());
    if args.tokenizer.is_some() && ids > rows {
        return Err(Error::usage(format!(
            "--tokenizer {}: has {ids} ids, the model's vocabulary {rows}; give its own",
            tokenizer.name()
        )));
    }
    metadata.tokenizer = Some(tokenizer.hash());
    if source.config().mask_id().is_none() && ids < rows {
        metadata.n_vocab_used = Some(ids);
    }
    Ok(Some(tokenizer))
}

/// The metadata map of the checkpoint, with the `run` record under `import_source`.
fn metadata_map(
    args: &ImportArgs,
    source: &Source,
    metadata: Metadata,
) -> Result<std::collections::BTreeMap<String, String>> {
    let created_by = format!("ao-import {}", super::VERSION);
    let mut map = Metadata { created_by, ..metadata }.to_map();
    let config = serde_json::to_value(args).map_err(|e| Error::usage(e.to_string()))?;
    let inputs = source.hashes().into_iter();
    let inputs = inputs.map(|(path, xxh3)| Input { path: path.display().to_string(), xxh3 });
    let inputs = inputs.collect();
    let record = RunRecord { tool: "ao-import", config, seed: None, device: None, inputs };
    map.insert("import_source".into(), record.to_json().to_string());
    Ok(map)
}

/// What was found, in a line.
fn describe(source: &Source, metadata: &Metadata) -> String {
    let config = source.config();
    let weights = match (metadata.kind, metadata.ema_decay) {
        (Kind::Model, _) => "weights".to_owned(),
        (Kind::Ema, Some(decay)) => format!("moving average of decay {decay}"),
        (Kind::Ema, None) => "moving average".to_owned(),
    };
    let step =
        if metadata.step > 0 { format!(" at step {}", metadata.step) } else { String::new() };
    format!(
        "{}: {} parameters, {} layers x {}, {} heads, T {}, vocabulary {}; {weights}{step}",
        config.arch(),
        config.parameter_count(),
        config.n_layer(),
        config.n_embd(),
        config.n_head(),
        config.block_size(),
        config.vocab_size(),
    )
}
