//! One run of `ao-import`: what is typed, checked and opened; then the files, written.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::args::{Export, ImportArgs};
use super::{
    OpenOptions, Source, check_exportable, locate_with, write_checkpoint, write_hugging_face,
};
use crate::cli::{Input, Progress, RunRecord, VERSION};
use crate::format::atomic::{AtomicFolder, is_temporary_name, refuse_existing};
use crate::format::checkpoint::{Kind, Metadata};
use crate::tokens::Tokenizer;
use crate::{Error, Result};

/// The files that an import puts into a folder; one with others in it is never replaced.
const OWN_FILES: [&str; 5] =
    ["config.json", "generation_config.json", "model.safetensors", "model.st", "tokenizer.json"];

/// Where the result goes, and as what.
enum Target {
    /// One checkpoint.
    File { path: PathBuf, force: bool },
    /// A folder of a checkpoint and its tokenizer, or of another library's files.
    Folder { path: PathBuf, export: Option<Export> },
}

/// An opened source, what is known of its weights, and where they go.
pub struct Job {
    source: Source,
    metadata: Metadata,
    tokenizer: Option<Tokenizer>,
    target: Target,
    quiet: bool,
    /// The flags as they were typed, for the record.
    typed: Value,
}

impl TryFrom<ImportArgs> for Job {
    type Error = Error;

    /// Checks the target, then opens the source.
    fn try_from(args: ImportArgs) -> Result<Job> {
        let typed = serde_json::to_value(&args).map_err(|e| Error::usage(e.to_string()))?;
        let path = args.out.file("a checkpoint")?.to_owned();
        let force = args.out.force;
        let folder = args.export.is_some()
            || path.is_dir()
            || path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let target = if folder {
            check_folder(&path, force)?;
            Target::Folder { path, export: args.export }
        } else {
            if path.is_file() {
                refuse_existing(&path, force)?; // before anything is read
            }
            Target::File { path, force }
        };
        let quiet = args.quiet.quiet;
        let place = locate_with(&args.source, !quiet)?;
        let options = OpenOptions { weights: args.weights, model_config: args.model_config };
        let source = Source::open(&place, &options)?;
        if args.export.is_some() {
            check_exportable(&source)?;
        }
        let mut metadata = source.metadata().clone();
        let tokenizer = tokenizer(args.tokenizer.as_deref(), &source, &mut metadata)?;
        Ok(Job { source, metadata, tokenizer, target, quiet, typed })
    }
}

impl Job {
    /// Says what was found, and writes it.
    ///
    /// # Errors
    /// A damaged tensor, a weight that is not finite, or a target that cannot be written.
    pub fn run(self) -> Result<()> {
        let Job { source, quiet, .. } = &self;
        if !quiet {
            eprintln!("{}", describe(source, &self.metadata));
            if let Some(line) = passed_over(source.passed_over()) {
                eprintln!("{line}");
            }
        }
        let mut progress = Progress::new("bytes", Some(source.bytes()), *quiet);
        let done = |n| progress.add(n);
        match &self.target {
            Target::File { path, force } => {
                write_checkpoint(source, path, *force, &self.metadata_map(), done)
            }
            Target::Folder { path, export } => {
                let whole = AtomicFolder::create(path)?;
                match (export, &self.tokenizer) {
                    (Some(Export::Hf), tokenizer) => {
                        write_hugging_face(source, whole.path(), tokenizer.as_ref(), done)?;
                    }
                    (None, tokenizer) => {
                        if let Some(tokenizer) = tokenizer {
                            tokenizer.save(&whole.path().join("tokenizer.json"))?;
                        }
                        let path = whole.path().join("model.st");
                        write_checkpoint(source, &path, false, &self.metadata_map(), done)?;
                    }
                }
                whole.commit()
            }
        }
    }

    /// The metadata map of the checkpoint, with the `run` record under `import_source`.
    fn metadata_map(&self) -> std::collections::BTreeMap<String, String> {
        let created_by = format!("ao-import {VERSION}");
        let mut map = Metadata { created_by, ..self.metadata.clone() }.to_map();
        let inputs = self.source.hashes().into_iter();
        let inputs = inputs.map(|(path, xxh3)| Input { path: path.display().to_string(), xxh3 });
        let (config, inputs) = (self.typed.clone(), inputs.collect());
        let record = RunRecord { tool: "ao-import", config, seed: None, device: None, inputs };
        map.insert("import_source".into(), record.to_json().to_string());
        map
    }
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
    named: Option<&str>,
    source: &Source,
    metadata: &mut Metadata,
) -> Result<Option<Tokenizer>> {
    let tokenizer = match (named, source.tokenizer()) {
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
    if named.is_some() && ids > rows {
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

/// The objects that were not read, in a line; none if there were none.
fn passed_over(objects: &[(String, usize)]) -> Option<String> {
    const NAMED: usize = 6;
    if objects.is_empty() {
        return None;
    }
    let times = |count: &usize| if *count > 1 { format!(" ({count})") } else { String::new() };
    let named = objects.iter().take(NAMED);
    let mut words: Vec<String> = named.map(|(name, n)| format!("{name}{}", times(n))).collect();
    if objects.len() > NAMED {
        words.push(format!("{} more kinds", objects.len() - NAMED));
    }
    Some(format!("passed over, as it is no tensor, nothing of it run: {}", words.join(", ")))
}
