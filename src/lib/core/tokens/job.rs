//! A whole run of `ao-tokenize`: from inputs to a shard folder, or to a train and a val folder, that
//! is complete, or can be gone on with, or is not there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::encode::{Encoded, Rule};
use super::eos::EosChoice;
use super::folder::{FolderState, FolderWriter};
use super::pipeline::{Pipeline, Watch};
use super::reader::{Cursor, ReadOptions};
use super::source::Source;
use super::tokenizer::Tokenizer;
use crate::error::IoContext;
use crate::format::atomic::{AtomicFile, AtomicFolder};
use crate::format::manifest::{FILE_NAME, Manifest, Packing, TokenizerEntry, Totals, VERSION};
use crate::format::shard::Width;
use crate::{Error, Result};

/// Where an unfinished run notes how far it came.
const RESUME_FILE: &str = "resume.json";
/// How often it does.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(20);

/// Everything that decides what a shard folder holds.
pub struct Job {
    /// The inputs.
    pub source: Source,
    /// How they are read.
    pub read: ReadOptions,
    /// What becomes of each document.
    pub rule: Rule,
    /// What ends each document.
    pub eos: EosChoice,
    /// Which id each document begins with.
    pub bos: EosChoice,
    /// How documents become blocks.
    pub packing: Packing,
    /// A shard is closed at the first document end at or past this many tokens.
    pub shard_tokens: u64,
    /// Encoding threads.
    pub threads: usize,
    /// Whether there is a validation folder.
    pub split: bool,
    /// Tool and version.
    pub created_by: String,
    /// The command line.
    pub argv: Vec<String>,
    /// The resolved options; those that change no byte of the shards left out.
    pub config: Value,
}

/// What to do with a folder that is there already.
#[derive(Debug, Clone, Copy)]
pub struct Existing {
    /// Replace it.
    pub force: bool,
    /// Go on with it.
    pub resume: bool,
}

/// `resume.json`: a state of all folders that belongs together.
#[derive(Serialize, Deserialize)]
struct ResumeState {
    version: u32,
    config: Value,
    progress: Cursor,
    folders: Vec<FolderState>,
}

impl Job {
    /// Runs the job; the manifests of train and, with a split, val.
    ///
    /// `tokenizer` is called once, unless the folder to go on with holds the tokenizer already.
    ///
    /// # Errors
    /// Of the inputs, the disk, or `watch`. A folder that this run began is removed again, unless
    /// a checkpoint was written, which `--resume` goes on from.
    pub fn run(
        &mut self,
        output: &Path,
        existing: Existing,
        tokenizer: impl FnOnce(&Job) -> Result<Option<Tokenizer>>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<Manifest>> {
        match state_of(output)? {
            State::Missing => {}
            State::Foreign => {
                return Err(Error::usage(format!(
                    "{}: exists and is no shard folder; name another with -o",
                    output.display()
                )));
            }
            State::Complete if existing.resume && !existing.force => {
                let manifests: Vec<Manifest> = self
                    .folders(output)
                    .iter()
                    .map(|f| Manifest::read(f))
                    .collect::<Result<_>>()?;
                if manifests.iter().any(|m| m.config != self.config) {
                    return Err(self.other_options(output));
                }
                return Ok(manifests);
            }
            State::Unfinished if existing.resume && !existing.force => {
                return self.go_on(output, tokenizer, watch);
            }
            State::Complete | State::Unfinished if existing.force => {
                let folder = AtomicFolder::create(output)?;
                let manifests = self.start(folder.path(), tokenizer, watch)?;
                folder.commit()?;
                return Ok(manifests);
            }
            State::Complete => {
                return Err(Error::usage(format!(
                    "{}: exists already; give --force to overwrite it",
                    output.display()
                )));
            }
            State::Unfinished => {
                return Err(Error::usage(format!(
                    "{}: holds an unfinished run; give --resume to go on with it or --force to \
                     start over",
                    output.display()
                )));
            }
        }
        let made_by_us = !output.exists();
        std::fs::create_dir_all(output).writing(output)?;
        let outcome = self.start(output, tokenizer, watch);
        if outcome.is_err() && !has_checkpoint(output) {
            for name in ["train", "val", "tokenizer.json", FILE_NAME, RESUME_FILE] {
                let path = output.join(name);
                let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
            }
            remove_shards(output);
            if made_by_us {
                let _ = std::fs::remove_dir(output);
            }
        }
        outcome
    }

    /// Train and val, or the one folder.
    fn folders(&self, output: &Path) -> Vec<PathBuf> {
        match self.split {
            true => vec![output.join("train"), output.join("val")],
            false => vec![output.into()],
        }
    }

    fn other_options(&self, output: &Path) -> Error {
        Error::usage(format!(
            "--resume: {} was begun with other options; give the same ones, or --force to start \
             over",
            output.display()
        ))
    }

    fn start(
        &mut self,
        output: &Path,
        tokenizer: impl FnOnce(&Job) -> Result<Option<Tokenizer>>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<Manifest>> {
        let template = self.manifest(None);
        let folders = self.folders(output);
        for folder in &folders {
            std::fs::create_dir_all(folder).writing(folder)?;
            template.write(folder)?;
        }
        let tokenizer = tokenizer(self)?;
        self.adopt(tokenizer.as_ref())?;
        let mut writers = Vec::new();
        for folder in &folders {
            if let Some(tokenizer) = &tokenizer {
                tokenizer.save(&folder.join("tokenizer.json"))?;
            }
            let manifest = self.manifest(tokenizer.as_ref());
            writers.push(FolderWriter::start(folder, manifest, self.shard_tokens)?);
        }
        self.write(output, Cursor::default(), writers, tokenizer, watch)
    }

    /// Takes vocabulary and end token from the tokenizer, where the options left them open.
    ///
    /// # Errors
    /// When there is no such end token.
    pub fn adopt(&mut self, tokenizer: Option<&Tokenizer>) -> Result<()> {
        if let Some(tokenizer) = tokenizer {
            self.rule.vocab_size = tokenizer.vocab_size();
        }
        self.rule.eos = self.eos.resolve("--eos", tokenizer, self.rule.vocab_size)?;
        self.rule.bos = self.bos.resolve("--bos", tokenizer, self.rule.vocab_size)?;
        if let Packing::Pad { length, bos_id } = &mut self.packing {
            *bos_id = self.rule.bos;
            self.rule.most_ids = usize::try_from(*length).ok();
            if *length <= [self.rule.bos, self.rule.eos].iter().flatten().count() as u64 {
                return Err(Error::usage(format!(
                    "--pad-length {length}: leaves no room for text beside --bos and --eos"
                )));
            }
        }
        self.read.eos = self.rule.eos;
        Ok(())
    }

    fn go_on(
        &mut self,
        output: &Path,
        tokenizer: impl FnOnce(&Job) -> Result<Option<Tokenizer>>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<Manifest>> {
        let path = output.join(RESUME_FILE);
        if !path.exists() {
            // Stopped before its first checkpoint: nothing to keep.
            remove_shards(output);
            return self.start(output, tokenizer, watch);
        }
        let bytes = std::fs::read(&path).reading(&path)?;
        let state: ResumeState = serde_json::from_slice(&bytes)
            .map_err(|e| Error::input_at(&path, format!("{e}; start over with --force")))?;
        if state.version != VERSION {
            return Err(Error::input_at(&path, "of another version; start over with --force"));
        }
        let folders = self.folders(output);
        if state.config != self.config || state.folders.len() != folders.len() {
            return Err(self.other_options(output));
        }
        let mut writers = Vec::new();
        let mut entry = None;
        for (folder, state) in folders.iter().zip(state.folders) {
            entry = state.manifest.tokenizer.clone();
            writers.push(FolderWriter::resume(folder, state, self.shard_tokens)?);
        }
        let tokenizer = match &entry {
            None => None,
            Some(entry) => {
                let path = folders[0].join("tokenizer.json");
                let tokenizer = Tokenizer::load(&path.to_string_lossy())?;
                if tokenizer.hash() != entry.hash {
                    return Err(Error::input_at(
                        &path,
                        "is not the run's; start over with --force",
                    ));
                }
                Some(tokenizer.allow_special(self.config["allow_special"] == true))
            }
        };
        self.adopt(tokenizer.as_ref())?;
        self.write(output, state.progress, writers, tokenizer, watch)
    }

    fn manifest(&self, tokenizer: Option<&Tokenizer>) -> Manifest {
        Manifest {
            format: "ao-shards".into(),
            version: VERSION,
            complete: false,
            created_by: self.created_by.clone(),
            tokenizer: tokenizer.map(|t| TokenizerEntry {
                name: t.name().into(),
                hash: t.hash(),
                lossy: Some(t.lossy()),
            }),
            vocab_size: self.rule.vocab_size,
            eos_id: self.rule.eos,
            token_type: Width::for_vocab(self.rule.vocab_size),
            packing: self.packing,
            detokenizer: self.rule.detokenizer.name().into(),
            totals: Totals::default(),
            shards: Vec::new(),
            argv: self.argv.clone(),
            config: self.config.clone(),
        }
    }

    /// The pipeline of this job; what people have to know of the tokenizer is noted.
    pub fn pipeline(&self, tokenizer: Option<Tokenizer>, watch: &mut dyn Watch) -> Pipeline {
        if let Some(tokenizer) = &tokenizer {
            let name = tokenizer.name();
            tokenizer.notes().iter().for_each(|note| watch.note(&format!("{name}: {note}")));
            if tokenizer.lossy() {
                watch.note(&format!(
                    "{name}: may rewrite the text; the manifest counts the bytes of the text itself"
                ));
            }
        }
        Pipeline {
            source: self.source.clone(),
            read: self.read.clone(),
            rule: self.rule.clone(),
            tokenizer: tokenizer.map(Arc::new),
            threads: self.threads,
        }
    }

    /// The pipeline into the writers, with checkpoints, to the end.
    fn write(
        &self,
        output: &Path,
        after: Cursor,
        mut writers: Vec<FolderWriter>,
        tokenizer: Option<Tokenizer>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<Manifest>> {
        let pipeline = self.pipeline(tokenizer, watch);
        watch.begin();
        let mut progress = after;
        let mut last = Instant::now();
        let outcome = pipeline.run(after, watch, &mut |batch| {
            write_batch(&mut writers, &batch)?;
            progress = batch.progress;
            if last.elapsed() >= CHECKPOINT_EVERY {
                last = Instant::now();
                self.checkpoint(output, progress, &mut writers)?;
            }
            Ok(())
        });
        match outcome {
            Ok(()) => {}
            // What is asked for by a signal, or a bad line hours into the inputs, loses nothing.
            Err(error @ (Error::Interrupted(_) | Error::Input { .. }))
                if matches!(error, Error::Interrupted(_)) || has_checkpoint(output) =>
            {
                self.checkpoint(output, progress, &mut writers)?;
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        if writers.iter().all(|w| w.manifest().totals.documents == 0) {
            return Err(Error::usage("the inputs hold no document; check the paths and --include"));
        }
        let manifests =
            writers.into_iter().map(FolderWriter::finish).collect::<Result<Vec<_>>>()?;
        match std::fs::remove_file(output.join(RESUME_FILE)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).writing(output)?,
            _ => Ok(manifests),
        }
    }

    fn checkpoint(
        &self,
        output: &Path,
        progress: Cursor,
        writers: &mut [FolderWriter],
    ) -> Result<()> {
        let state = ResumeState {
            version: VERSION,
            config: self.config.clone(),
            progress,
            folders: writers.iter_mut().map(FolderWriter::checkpoint).collect::<Result<_>>()?,
        };
        let bytes = serde_json::to_vec(&state)
            .map_err(|e| Error::usage(format!("{RESUME_FILE} cannot be written: {e}")))?;
        AtomicFile::write(&output.join(RESUME_FILE), &bytes, true)
    }
}

fn write_batch(writers: &mut [FolderWriter], batch: &Encoded) -> Result<()> {
    let mut start = 0;
    for document in &batch.documents {
        let end = start + document.tokens as usize;
        let writer = usize::from(document.val).min(writers.len() - 1);
        writers[writer].push(&batch.ids[start..end], u64::from(document.bytes))?;
        start = end;
    }
    // What was dropped belongs to the inputs, not to a side of the split; train's manifest has it.
    writers[0].manifest_mut().totals.add_repairs(&batch.repairs);
    Ok(())
}

/// What lies where the output is to be.
enum State {
    Missing,
    Foreign,
    Unfinished,
    Complete,
}

fn state_of(output: &Path) -> Result<State> {
    if !output.exists() {
        return Ok(State::Missing);
    }
    if !output.is_dir() {
        return Ok(State::Foreign);
    }
    let mut entries = std::fs::read_dir(output).reading(output)?;
    if entries.next().is_none() {
        return Ok(State::Missing);
    }
    let folders = [output.into(), output.join("train"), output.join("val")];
    let found: Vec<_> = folders.iter().filter(|f| f.join(FILE_NAME).is_file()).collect();
    if found.is_empty() {
        return Ok(State::Foreign);
    }
    let complete = |f: &&PathBuf| Manifest::read(f).is_ok_and(|m| m.complete);
    let unfinished = output.join(RESUME_FILE).exists() || !found.iter().all(complete);
    Ok(if unfinished { State::Unfinished } else { State::Complete })
}

fn has_checkpoint(output: &Path) -> bool {
    output.join(RESUME_FILE).exists()
}

/// Removes shards and their unfinished parts, whose names only this tool gives.
fn remove_shards(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with("shard-") {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
