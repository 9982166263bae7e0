//! The plan of a run: options are checked and inputs are opened before anything is written.

use std::path::{Path, PathBuf};

use ao_core::cli::{Input, refuse};
use ao_core::ema::EmaDecay;
use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::CheckpointFile;
use ao_core::format::events::EventWriter;

use ao_core::process::Objective;
use ao_core::{Error, Result};
use serde_json::Value;

use super::data::{Sequences, parse_shards};
use super::evaluate::Validation;
use super::optimizer::AdamW;
use super::options::{EVAL_EVERY, TrainArgs, VAL_SEQUENCES};
use super::run_folder::{RunFolder, TrainerState};
use super::schedule::Schedule;
use crate::device::Runtime;
use crate::family::{self, Training, TrainingSettings};

/// The plan of a run: checked options and open inputs.
pub struct Plan {
    /// Architecture and sizes.
    pub model: ModelConfig,
    /// What is minimised.
    pub objective: Objective,
    /// How the family is trained.
    pub training: Box<dyn Training>,
    /// The new run's folder.
    pub folder: Option<PathBuf>,
    /// The run to continue, its step folder, and its state.
    pub resumed: Option<(RunFolder, PathBuf, TrainerState)>,
    /// The training data, at the position where the run starts.
    pub sequences: Sequences,
    /// The validation set.
    pub validation: Option<Validation>,
    /// The learning rate.
    pub schedule: Schedule,
    /// The learning rate of the run so far, where one is gone on with.
    pub schedule_before: Option<Schedule>,
    /// The optimizer's settings.
    pub optimizer: AdamW,
    /// The averages, by decay as written.
    pub decays: Vec<(String, EmaDecay)>,
    /// Hashes of the inputs.
    pub inputs: Vec<Input>,
    /// The device's name.
    pub device: String,
}

impl Plan {
    /// Checks the options and opens the inputs.
    ///
    /// # Errors
    /// Options out of range, and inputs that are missing or do not fit the model.
    pub fn new(args: &TrainArgs, runtime: &Runtime) -> Result<Plan> {
        check_effects(args)?;
        let resumed = args.resume.as_deref().map(RunFolder::resume).transpose()?;
        let mut inputs = Vec::new();
        let model = match (&resumed, &args.model, &args.init) {
            (Some((_, step, _)), _, _) => config_in(&step.join("model.st"))?,
            (None, Some(path), _) => ModelConfig::load(path)?,
            (None, None, Some(path)) => config_in(path)?,
            (None, None, None) => {
                return Err(Error::usage("--model: give a model config, or weights with --init"));
            }
        };
        if let (None, Some(path)) = (&resumed, &args.init) {
            inputs.push(Input::of_file(path)?);
        }
        let shards = parse_shards(args.shards.as_deref().unwrap_or_default())
            .map_err(|e| Error::usage(format!("--shards: {e}")))?;
        let block_size = model.block_size();
        let objective = model.objective(args.objective)?;
        let settings = TrainingSettings {
            objective,
            orders: args.orders.clone(),
            sequences: args.size.sequences(),
            seed: args.seed.seed,
        };
        let training = family::of(&model)?.training(&model, &settings)?;
        let shuffled = !args.size.no_shuffle;
        let mut sequences = Sequences::open(&shards, block_size, args.seed.seed, shuffled)?;
        for shard in &shards {
            inputs.extend(Input::of_folder(&shard.path).ok());
        }
        if sequences.vocab_size() > model.vocab_size() {
            return Err(Error::usage(format!(
                "--shards: ids up to {} do not fit the model's vocab_size {}; \
                 set it to at least {}",
                sequences.vocab_size() - 1,
                model.vocab_size(),
                sequences.vocab_size()
            )));
        }
        if let Some((_, _, state)) = &resumed {
            sequences.skip(state.sequences);
        }
        if let Some((_, step, state)) = &resumed {
            check_resumed(args, step, state, &sequences)?;
        }
        let tokenizer = sequences.datasets().next().and_then(|d| d.manifest().tokenizer_hash());
        let validation = match &args.eval.val_shards {
            Some(path) => Some(Validation::open(path, args, &model, tokenizer, training.as_ref())?),
            None => None,
        };
        if validation.as_ref().is_some_and(|v| v.vocab_size() > model.vocab_size()) {
            return Err(Error::usage("--val-shards: its ids do not fit the model's vocab_size"));
        }
        let validated = validation.iter().map(|v| v.dataset());
        for dataset in sequences.datasets().chain(validated) {
            training.check(dataset)?;
        }
        for (flag, most) in
            [("--max-seconds", args.size.max_seconds), ("--max-flops", args.size.max_flops)]
        {
            at_least_zero(flag, most.unwrap_or(0.0))?;
        }
        if let (None, Some(folder)) = (&resumed, &args.save.tensorboard) {
            EventWriter::refuse_used(folder, args.force)?;
        }
        let schedule_before =
            resumed.as_ref().and_then(|(folder, _, state)| schedule_of_run(folder, state));
        Ok(Plan {
            schedule: schedule(args, schedule_before)?,
            schedule_before,
            optimizer: optimizer(args)?,
            decays: decays(&args.optimizer.ema, !args.optimizer.no_ema_warmup)?,
            folder: args.out.clone(),
            model,
            objective,
            training,
            resumed,
            sequences,
            validation,
            inputs,
            device: runtime.device_name(),
        })
    }
}

fn config_in(path: &Path) -> Result<ModelConfig> {
    let value = CheckpointFile::open(path)?
        .config()?
        .ok_or_else(|| Error::input_at(path, "carries no model config; give --model FILE.json"))?;
    ModelConfig::from_json(&value).map_err(|e| Error::input_at(path, format!("its config: {e}")))
}

/// Refuses flags of a new run that change nothing beside the others.
fn check_effects(args: &TrainArgs) -> Result<()> {
    let (eval, o) = (&args.eval, &args.optimizer);
    let validates = args.resume.is_some() || eval.val_shards.is_some();
    refuse(&[
        (
            !validates && ![0, EVAL_EVERY].contains(&eval.eval_every),
            "--eval-every: there is nothing to validate on; give --val-shards too",
        ),
        (
            !validates && eval.val_sequences != VAL_SEQUENCES,
            "--val-sequences: there is nothing to validate on; give --val-shards too",
        ),
        (
            args.resume.is_none() && o.no_ema_warmup && o.ema == "none",
            "--no-ema-warmup: --ema none keeps no average; leave one out",
        ),
    ])
}

/// Refuses data and averages that contradict the run to continue.
fn check_resumed(
    args: &TrainArgs,
    step: &Path,
    state: &TrainerState,
    sequences: &Sequences,
) -> Result<()> {
    let path = step.join("model.st");
    let of_run = CheckpointFile::open(&path)?.ao_metadata()?.and_then(|m| m.tokenizer);
    let of_shards = sequences.datasets().next().and_then(|d| d.manifest().tokenizer_hash());
    if of_run.as_deref() != of_shards {
        let word = |hash: Option<&str>| hash.unwrap_or("none").to_owned();
        return Err(Error::usage(format!(
            "--shards: their tokenizer is {}, that of the run {}; resume with shards of the same \
             tokenizer, or start a new run with --init",
            word(of_shards),
            word(of_run.as_deref())
        )));
    }
    let wanted: Vec<String> =
        decays(&args.optimizer.ema, true)?.into_iter().map(|(name, _)| name).collect();
    match wanted.iter().find(|name| !state.ema.contains(name)) {
        None => Ok(()),
        Some(name) => Err(Error::usage(format!(
            "--ema {name}: the run keeps {}; a resumed run cannot begin another average",
            if state.ema.is_empty() { "none".to_owned() } else { state.ema.join(", ") }
        ))),
    }
}

/// The learning rate that a run has had so far, by its options and by the end of the decay in its
/// state.
fn schedule_of_run(folder: &RunFolder, state: &TrainerState) -> Option<Schedule> {
    let bytes = std::fs::read(folder.file("config.json")).ok()?;
    let options: Value = serde_json::from_slice(&bytes).ok()?;
    let float = |key: &str| options.get(key)?.as_f64();
    let whole = |key: &str| options.get(key)?.as_u64();
    let lr = float("lr")?;
    Some(Schedule {
        lr,
        min_lr: float("min_lr").unwrap_or(lr / 10.0),
        warmup: whole("warmup")?,
        decay_steps: state.decay_steps.or(whole("decay_steps")).or(whole("steps"))?,
    })
}

/// The learning rate. A resumed run keeps the step at which its cosine ends, unless the flags name
/// another. A later end would raise the rate.
fn schedule(args: &TrainArgs, before: Option<Schedule>) -> Result<Schedule> {
    let o = &args.optimizer;
    let lr = at_least_zero("--lr", o.lr)?;
    let kept = before.map(|schedule| schedule.decay_steps);
    Ok(Schedule {
        lr,
        min_lr: at_least_zero("--min-lr", o.min_lr.unwrap_or(lr / 10.0))?,
        warmup: o.warmup,
        decay_steps: o.decay_steps.or(kept).unwrap_or(args.size.steps),
    })
}

fn optimizer(args: &TrainArgs) -> Result<AdamW> {
    let o = &args.optimizer;
    for (flag, beta) in [("--beta1", o.beta1), ("--beta2", o.beta2)] {
        if !(0.0..1.0).contains(&beta) {
            return Err(Error::usage(format!("{flag} {beta}: must be at least 0 and below 1")));
        }
    }
    Ok(AdamW {
        beta1: o.beta1,
        beta2: o.beta2,
        eps: at_least_zero("--eps", o.eps)?,
        weight_decay: at_least_zero("--weight-decay", o.weight_decay)?,
        grad_clip: at_least_zero("--grad-clip", o.grad_clip)?,
    })
}

fn at_least_zero(flag: &str, value: f64) -> Result<f64> {
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(Error::usage(format!("{flag} {value}: must be a finite number, at least 0")))
}

/// Reads `--ema`: decays as they were written, which name the files.
fn decays(text: &str, warmup: bool) -> Result<Vec<(String, EmaDecay)>> {
    if text == "none" {
        return Ok(Vec::new());
    }
    let mut list: Vec<(String, EmaDecay)> = Vec::new();
    for part in text.split(',').map(str::trim) {
        match part.parse::<f64>() {
            Ok(decay) if (0.0..1.0).contains(&decay) => {
                if list.iter().any(|(_, d)| d.decay == decay) {
                    return Err(Error::usage(format!("--ema: {part} is named twice")));
                }
                list.push((part.into(), EmaDecay { decay, warmup }));
            }
            _ => {
                return Err(Error::usage(format!(
                    "--ema: '{part}' must be at least 0 and below 1, or none"
                )));
            }
        }
    }
    Ok(list)
}
