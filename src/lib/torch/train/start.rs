//! The start of a run: weights, optimizer state, run folder, records, loader.

use std::path::Path;

use ao_core::cli::RunRecord;
use ao_core::ema::EmaDecay;
use ao_core::error::IoContext;
use ao_core::family::ModelConfig;
use ao_core::format::atomic::AtomicFile;
use ao_core::format::checkpoint::CheckpointFile;
use ao_core::format::events::EventWriter;
use ao_core::{Error, Result};
use serde_json::json;

use super::data::Loader;
use super::flops::Ceiling;
use super::metrics::Metrics;
use super::optimizer::Optimizer;
use super::options::TrainArgs;
use super::plan::Plan;
use super::run_folder::{RunFolder, STATE_VERSION, TrainerState};
use super::settings::RunSettings;
use super::trainer::Trainer;
use crate::clock::Clock;
use crate::device::Runtime;
use crate::network::Weights;

impl Trainer {
    /// Reads the weights and the state, takes the run folder, and starts the loader.
    ///
    /// # Errors
    /// Weights that do not fit the model, a folder that is in use, a full disk.
    pub(super) fn start(
        args: TrainArgs,
        plan: Plan,
        runtime: Runtime,
        ceiling: Option<Ceiling>,
    ) -> Result<Trainer> {
        // The record names the folder in use, wherever it lay when the run began.
        let args = TrainArgs { out: args.resume.clone().or(args.out), ..args };
        let weights = match (&plan.resumed, &args.init) {
            (Some((_, step, _)), _) => read_weights(&plan.model, &step.join("model.st"))?,
            (None, Some(path)) => read_weights(&plan.model, path)?,
            (None, None) => Weights::init(&plan.model, args.seed.seed, tch::Device::Cpu),
        }
        .to_device(runtime.device);
        let names: Vec<String> = plan.decays.iter().map(|(name, _)| name.clone()).collect();
        let decays: Vec<EmaDecay> = plan.decays.iter().map(|&(_, d)| d).collect();
        let (estimate, orders) = (plan.training.estimate(), plan.training.describe());
        let (learner, gradients) = plan.training.learner(&weights, &runtime)?;
        let mut optimizer = Optimizer::new(plan.optimizer, &weights, gradients, &decays);
        let dataset = plan.sequences.datasets().next();
        let tokenizer_hash = dataset.and_then(|d| d.manifest().tokenizer_hash()).map(String::from);
        let tokenizer_file = dataset.map(|d| d.path().join("tokenizer.json"));
        let vocab_used = plan.sequences.vocab_size();

        let mut saved = None;
        let (folder, state) = match plan.resumed {
            Some((folder, step, mut state)) => {
                state.decay_steps = Some(plan.schedule.decay_steps);
                optimizer.read(&step.join("optimizer.st"), state.updates)?;
                for (average, name) in optimizer.averages.iter().zip(&names) {
                    let path = step.join(format!("ema-{name}.st"));
                    let file = CheckpointFile::open(&path)?;
                    average.weights.read_prefixed("", &file, &path)?;
                }
                saved = Some(state.step);
                (folder, state)
            }
            None => {
                let path = plan.folder.as_deref().unwrap_or(Path::new("."));
                let folder = RunFolder::create(path, args.force)?;
                let state = TrainerState {
                    version: STATE_VERSION,
                    step: 0,
                    updates: 0,
                    sequences: 0,
                    tokens: 0,
                    seconds: 0.0,
                    skipped_in_a_row: 0,
                    ema: names.clone(),
                    decay_steps: Some(plan.schedule.decay_steps),
                };
                if let Some(source) = tokenizer_file.filter(|f| f.is_file()) {
                    let bytes = std::fs::read(&source).reading(&source)?;
                    AtomicFile::write(&folder.file("tokenizer.json"), &bytes, true)?;
                }
                (folder, state)
            }
        };
        let options =
            serde_json::to_value(&args).map_err(|e| Error::usage(format!("config.json: {e}")))?;
        let pretty = serde_json::to_vec_pretty(&options).unwrap_or_default();
        AtomicFile::write(&folder.file("config.json"), &pretty, true)?;

        let events = match &args.save.tensorboard {
            Some(into) if state.step > 0 => Some(EventWriter::resume(into, state.step)?),
            Some(into) => Some(EventWriter::create(into)?),
            None => None,
        };
        let mut metrics = Metrics::open(&folder.file("metrics.jsonl"), state.step, events)?;
        let mut record = RunRecord {
            tool: "ao-train",
            config: options,
            seed: Some(args.seed.seed),
            device: Some(plan.device),
            inputs: plan.inputs,
        }
        .to_json();
        record["model"] = plan.model.to_json();
        record["parameters"] = json!(plan.model.parameter_count());
        record["objective"] = json!(plan.objective);
        record["estimate"] = json!(estimate);
        record["orders"] = orders;
        record["step"] = json!(state.step);
        record["peak"] = json!(ceiling);
        metrics.write(&record)?;

        let settings = RunSettings::of(&args);
        let loader = Loader::start(
            plan.sequences,
            settings.steps.saturating_sub(state.step),
            settings.batch_size,
            settings.accumulate,
        )?;
        Ok(Trainer {
            before: (state.step, state.tokens),
            ceiling,
            flops_per_token: plan.model.flops_per_token(),
            clock: Clock::start(),
            objective: plan.objective,
            estimate,
            learner,
            config: plan.model,
            weights,
            optimizer,
            schedule: plan.schedule,
            names,
            folder,
            metrics,
            loader,
            validation: plan.validation,
            tokenizer_hash,
            vocab_used,
            state,
            saved,
            runtime,
            settings,
        })
    }
}

fn read_weights(config: &ModelConfig, path: &Path) -> Result<Weights> {
    Weights::read(config, &CheckpointFile::open(path)?, path)
}
