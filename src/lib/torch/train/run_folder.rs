//! The run folder: the files of a training run, complete at every moment.
//!
//! ```text
//! RUN/config.json            the resolved options
//! RUN/metrics.jsonl
//! RUN/tokenizer.json         the shards' own, if they have one
//! RUN/checkpoints/step-00002000/{model.st, ema-0.9999.st, optimizer.st, trainer.json}
//! RUN/latest                 the name of the newest step folder, written last
//! ```
//!
//! A step folder is written under a temporary name, synced and renamed. Then `latest` is replaced in
//! the same way. A process that is killed at any moment leaves the checkpoint before.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use ao_core::error::IoContext;
use ao_core::format::atomic::{AtomicFile, AtomicFolder, is_temporary_name};
use ao_core::format::run_folder::latest_step;
use ao_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// `trainer.json`: the state of a run that is not tensors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TrainerState {
    /// Version of this file's keys.
    pub version: u32,
    /// Optimizer steps done.
    pub step: u64,
    /// Updates done: steps without those that were skipped as not finite.
    pub updates: u64,
    /// Sequences taken from the data and the orders.
    pub sequences: u64,
    /// Scored targets so far.
    pub tokens: u64,
    /// Seconds of training so far.
    pub seconds: f64,
    /// Updates in a row, up to this step, that were skipped as not finite.
    #[serde(default)]
    pub skipped_in_a_row: u64,
    /// Decays of the averages, as their files are named.
    pub ema: Vec<String>,
    /// Step at which the learning rate's cosine ends; a longer run keeps it.
    #[serde(default)]
    pub decay_steps: Option<u64>,
}

/// A run folder that this process owns.
pub struct RunFolder {
    path: PathBuf,
    _lock: File,
}

/// The state's version.
pub const STATE_VERSION: u32 = 1;

impl RunFolder {
    /// Takes a folder for a new run.
    ///
    /// # Errors
    /// When it already holds a run and `force` is false, or another process trains in it.
    pub fn create(path: &Path, force: bool) -> Result<RunFolder> {
        let used = path.join("config.json").exists() || path.join("checkpoints").exists();
        if used && !force {
            return Err(Error::usage(format!(
                "--out {}: holds a run already; give --resume {} to go on, or --force to start over",
                path.display(),
                path.display()
            )));
        }
        fs::create_dir_all(path).writing(path)?;
        let folder = RunFolder { path: path.into(), _lock: lock(path)? };
        if used {
            // The pointer is removed first. Without it the rest is not a run.
            for name in ["latest", "metrics.jsonl", "config.json"] {
                let _ = fs::remove_file(path.join(name));
            }
            let _ = fs::remove_dir_all(folder.checkpoints());
        }
        fs::create_dir_all(folder.checkpoints()).writing(path)?;
        folder.clear_temporaries();
        Ok(folder)
    }

    /// Takes the folder of an existing run and removes what a killed process left unfinished.
    ///
    /// # Errors
    /// When it is no run folder, has no complete checkpoint, or another process trains in it.
    pub fn resume(path: &Path) -> Result<(RunFolder, PathBuf, TrainerState)> {
        if !path.join("checkpoints").is_dir() {
            return Err(Error::input_at(path, "is no run folder: it has no checkpoints/"));
        }
        let folder = RunFolder { path: path.into(), _lock: lock(path)? };
        folder.clear_temporaries();
        let step = match latest_step(path)? {
            Some(latest) => {
                latest.note.iter().for_each(|note| eprintln!("ao-train: {note}"));
                latest.path
            }
            None => {
                return Err(Error::input_at(
                    path,
                    "was stopped before its first checkpoint; start it again with --out and --force",
                ));
            }
        };
        let file = step.join("trainer.json");
        let bytes = fs::read(&file).reading(&file)?;
        let state: TrainerState = serde_json::from_slice(&bytes)
            .map_err(|e| Error::input_at(&file, format!("not a trainer state: {e}")))?;
        if state.version != STATE_VERSION {
            return Err(Error::input_at(
                &file,
                format!("version {}, this tool reads {STATE_VERSION}", state.version),
            ));
        }
        Ok((folder, step, state))
    }

    /// A file of the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Saves a step. `write` writes the tensors into the folder that it gets.
    ///
    /// # Errors
    /// When the disk refuses; the checkpoints before stay.
    pub fn save(
        &self,
        state: &TrainerState,
        write: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let name = format!("step-{:08}", state.step);
        let target = self.checkpoints().join(&name);
        let folder = AtomicFolder::create(&target)?;
        write(folder.path())?;
        let tokenizer = self.file("tokenizer.json");
        if tokenizer.is_file() {
            let copy = folder.path().join("tokenizer.json");
            fs::copy(&tokenizer, &copy).writing(&copy)?;
        }
        let json = serde_json::to_vec_pretty(state)
            .map_err(|e| Error::usage(format!("trainer.json: {e}")))?;
        AtomicFile::write(&folder.path().join("trainer.json"), &json, false)?;
        folder.commit()?;
        AtomicFile::write(&self.file("latest"), format!("{name}\n").as_bytes(), true)?;
        Ok(target)
    }

    /// Removes checkpoints up to the one that `latest` names, except for the newest `keep_last` and
    /// those whose step is a multiple of `keep_every`. It never removes that one.
    ///
    /// # Errors
    /// When the folder cannot be read; a folder that cannot be removed is left.
    pub fn rotate(&self, keep_last: u64, keep_every: u64) -> Result<()> {
        let latest = fs::read_to_string(self.file("latest")).unwrap_or_default();
        let mut steps = Vec::new();
        let folder = self.checkpoints();
        for entry in fs::read_dir(&folder).reading(&folder)? {
            let name = entry.reading(&folder)?.file_name().to_string_lossy().into_owned();
            if let Some(step) = name.strip_prefix("step-").and_then(|s| s.parse::<u64>().ok()) {
                steps.push((step, name));
            }
        }
        steps.sort();
        // A run that was set back to an older step has later checkpoints, which it will replace.
        // They do not count as its newest.
        if let Some(newest) = steps.iter().position(|(_, name)| name == latest.trim()) {
            steps.truncate(newest + 1);
        }
        let extra = steps.len().saturating_sub(keep_last as usize);
        for (step, name) in &steps[..extra] {
            let kept = keep_every > 0 && step % keep_every == 0;
            if !kept && name != latest.trim() {
                let _ = fs::remove_dir_all(folder.join(name));
            }
        }
        Ok(())
    }

    fn clear_temporaries(&self) {
        for folder in [self.path.clone(), self.checkpoints()] {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                if is_temporary_name(&entry.file_name().to_string_lossy()) {
                    let path = entry.path();
                    let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
                }
            }
        }
    }
}

/// Locks the folder for this process. The lock ends with the process.
fn lock(path: &Path) -> Result<File> {
    let file_path = path.join(".lock");
    let file = File::create(&file_path).writing(&file_path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(Error::usage(format!(
            "{}: another ao-train works in this folder; stop it or choose another --out",
            path.display()
        ))),
        Err(fs::TryLockError::Error(e)) => Err(Error::write(file_path, e)),
    }
}
