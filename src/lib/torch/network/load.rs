//! From `--ckpt` to weights: a checkpoint file, a step folder, a run folder, or a published model.

use std::path::{Path, PathBuf};

use ao_core::cli::Input;
use ao_core::error::IoContext;
use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::{CheckpointFile, Metadata};
use ao_core::format::run_folder::latest_step;
use ao_core::import::{self, Source, WeightsKind};
use ao_core::{Error, Result};
use serde::Serialize;

use super::weights::Weights;
use crate::device::Runtime;

/// `--ckpt`, `--model-config` and `--weights`, the same in every tool that reads a model.
#[derive(Debug, Clone, Default, clap::Args, Serialize)]
pub struct CheckpointArgs {
    /// Model to load: a .st file, a run folder (its latest step), or a published model (a .pt file,
    /// a Hugging Face folder, hf:OWNER/NAME)
    #[arg(long, value_name = "FILE|RUN|NAME")]
    pub ckpt: Option<PathBuf>,
    /// Model config, for a safetensors file without one
    #[arg(long, value_name = "FILE.json")]
    pub model_config: Option<PathBuf>,
    /// Which weights of a run folder or .pt file [default: the EMA with the largest decay, else raw]
    #[arg(long, value_name = "raw|ema|ema:DECAY")]
    pub weights: Option<WeightsChoice>,
}

impl CheckpointArgs {
    /// The checkpoint of a name, with the weights that it would be scored with.
    pub fn of(name: &Path) -> CheckpointArgs {
        CheckpointArgs { ckpt: Some(name.into()), ..CheckpointArgs::default() }
    }
}

/// Which of a run's weights to take.
#[derive(Debug, Clone, PartialEq)]
pub enum WeightsChoice {
    /// The weights that the optimizer moves.
    Raw,
    /// The moving average of the longest memory.
    Ema,
    /// The moving average of this decay, as it is written in the file's name.
    EmaOf(String),
}

impl std::str::FromStr for WeightsChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "raw" => Ok(WeightsChoice::Raw),
            "ema" => Ok(WeightsChoice::Ema),
            _ => match text.strip_prefix("ema:") {
                Some(decay) if decay.parse::<f64>().is_ok() => {
                    Ok(WeightsChoice::EmaOf(decay.into()))
                }
                _ => Err("allowed are raw, ema and ema:DECAY".into()),
            },
        }
    }
}

impl std::fmt::Display for WeightsChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            WeightsChoice::Raw => write!(f, "raw"),
            WeightsChoice::Ema => write!(f, "ema"),
            WeightsChoice::EmaOf(decay) => write!(f, "ema:{decay}"),
        }
    }
}

impl Serialize for WeightsChoice {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// A model read from disk.
pub struct Loaded {
    /// The file that the weights came from.
    pub path: PathBuf,
    /// The files of weights and their hashes.
    pub inputs: Vec<Input>,
    /// Architecture and sizes.
    pub config: ModelConfig,
    /// The parameters, f32, on the device asked for.
    pub weights: Weights,
    /// What the file says of itself; a plain safetensors file says nothing.
    pub metadata: Option<Metadata>,
    /// A `tokenizer.json` found beside the weights.
    pub tokenizer: Option<PathBuf>,
}

impl Loaded {
    /// Reads what `args` names.
    ///
    /// # Errors
    /// A path that is missing, a run without a complete checkpoint, weights that do not fit the
    /// config: one line with what to do.
    pub fn open(args: &CheckpointArgs, runtime: &Runtime) -> Result<Loaded> {
        let Some(ckpt) = &args.ckpt else {
            return Err(Error::usage("--ckpt: name a checkpoint"));
        };
        if let Some(path) = import::published(ckpt)? {
            return Loaded::import(&path, args, runtime);
        }
        let path = resolve(ckpt, args.weights.as_ref())?;
        let file = CheckpointFile::open(&path)?;
        let config = match (&args.model_config, file.config()?) {
            (Some(config), _) => ModelConfig::load(config)?,
            (None, Some(value)) => ModelConfig::from_json(&value)
                .map_err(|e| Error::input_at(&path, format!("its config: {e}")))?,
            (None, None) => {
                return Err(Error::input_at(
                    &path,
                    "carries no model config; give --model-config FILE.json",
                ));
            }
        };
        let metadata = file.ao_metadata()?;
        let weights = Weights::read(&config, &file, &path)?.to_device(runtime.device);
        let tokenizer = path
            .parent()
            .map(|folder| folder.join("tokenizer.json"))
            .filter(|candidate| candidate.is_file());
        let inputs = vec![Input::of_file(&path)?];
        Ok(Loaded { path, inputs, config, weights, metadata, tokenizer })
    }

    /// Reads a published model, without a file of this toolkit in between.
    fn import(path: &Path, args: &CheckpointArgs, runtime: &Runtime) -> Result<Loaded> {
        let weights = match &args.weights {
            None => None,
            Some(WeightsChoice::Raw) => Some(WeightsKind::Raw),
            Some(WeightsChoice::Ema) => Some(WeightsKind::Ema),
            Some(WeightsChoice::EmaOf(decay)) => {
                return Err(Error::usage(format!(
                    "--weights ema:{decay}: {} has one average at most; say ema or raw",
                    path.display()
                )));
            }
        };
        let model_config = args.model_config.clone();
        let options = import::OpenOptions { weights, model_config };
        let source = Source::open(path, &options)?;
        let config = source.config().clone();
        let weights = Weights::import(&source)?.to_device(runtime.device);
        let input =
            |(path, xxh3): (&Path, String)| Input { path: path.display().to_string(), xxh3 };
        Ok(Loaded {
            path: path.into(),
            inputs: source.hashes().into_iter().map(input).collect(),
            config,
            weights,
            metadata: Some(source.metadata().clone()),
            tokenizer: source.tokenizer().map(Path::to_owned),
        })
    }

    /// Real ids of the vocabulary: those at and above are padding.
    pub fn vocab_used(&self) -> usize {
        self.metadata
            .as_ref()
            .and_then(|m| m.n_vocab_used)
            .unwrap_or(self.config.vocab_size())
            .min(self.config.vocab_size())
    }
}

/// The weights file that `--ckpt` and `--weights` name.
fn resolve(ckpt: &Path, choice: Option<&WeightsChoice>) -> Result<PathBuf> {
    if !ckpt.is_dir() {
        if choice.is_some() && ckpt.exists() {
            return Err(Error::usage(format!(
                "--weights: {} is one file of weights; name its run folder to choose among them",
                ckpt.display()
            )));
        }
        return Ok(ckpt.to_owned());
    }
    let folder = if ckpt.join("checkpoints").is_dir() {
        let latest = latest_step(ckpt)?.ok_or_else(|| {
            Error::input_at(ckpt, "has no whole checkpoint: none was saved in it yet")
        })?;
        latest.note.iter().for_each(|note| eprintln!("warning: {note}"));
        latest.path
    } else if ckpt.join("model.st").is_file() {
        ckpt.to_owned()
    } else {
        return Err(Error::input_at(
            ckpt,
            "has neither 'checkpoints' nor 'model.st': no checkpoint was saved in it yet",
        ));
    };
    let averages = averages_of(&folder)?;
    let listed = || {
        let names: Vec<_> = averages.iter().map(|(d, _)| format!("ema:{d}")).collect();
        if names.is_empty() { "raw only".to_owned() } else { format!("raw, {}", names.join(", ")) }
    };
    match choice {
        Some(WeightsChoice::Raw) => Ok(folder.join("model.st")),
        None => Ok(averages.last().map_or_else(|| folder.join("model.st"), |(_, p)| p.clone())),
        Some(WeightsChoice::Ema) => averages.last().map(|(_, p)| p.clone()).ok_or_else(|| {
            Error::input_at(&folder, "has no EMA weights; it has raw only (--weights raw)")
        }),
        Some(WeightsChoice::EmaOf(decay)) => averages
            .iter()
            .find(|(d, _)| d == decay || d.parse::<f64>().ok() == decay.parse::<f64>().ok())
            .map(|(_, p)| p.clone())
            .ok_or_else(|| {
                Error::input_at(&folder, format!("has no ema:{decay}; it has {}", listed()))
            }),
    }
}

/// The averages of a step folder by rising decay: (as written in the name, path).
fn averages_of(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).reading(folder)? {
        let path = entry.reading(folder)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(decay) = name.strip_prefix("ema-").and_then(|n| n.strip_suffix(".st"))
            && let Ok(value) = decay.parse::<f64>()
        {
            found.push((value, decay.to_owned(), path));
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(found.into_iter().map(|(_, decay, path)| (decay, path)).collect())
}
