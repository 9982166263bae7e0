//! The run: from options to the last checkpoint.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use ao_core::cli::{self, Progress, RunRecord, signals};
use ao_core::config::ModelConfig;
use ao_core::ema::EmaDecay;
use ao_core::error::IoContext;
use ao_core::format::atomic::AtomicFile;
use ao_core::format::checkpoint::{CheckpointFile, Kind, Metadata};
use ao_core::format::events::EventWriter;
use ao_core::format::jsonl;
use ao_core::objective::Objective;
use ao_core::score;
use ao_core::{Error, Result};
use serde_json::json;

use super::clock::{Clock, Phase};
use super::data::{Loader, StepData};
use super::estimate::Estimate;
use super::evaluate::Validation;
use super::flops::{self, Ceiling, PeakTflops};
use super::learner::{self, Learner, Micro};
use super::metrics::{Metrics, StepRecord, SummaryRecord, peak_memory};
use super::optimizer::Optimizer;
use super::options::TrainArgs;
use super::plan::Plan;
use super::run_folder::{RunFolder, STATE_VERSION, TrainerState};
use super::schedule::Schedule;
use crate::device::Place;
use crate::model::Weights;

/// Trains as `args` says, or with `--dry-run` says what that would be.
///
/// # Errors
/// Wrong or unusable options and inputs, before anything is written; a full disk; a loss or a
/// gradient that is not finite; a signal, after saving.
pub fn run(args: TrainArgs) -> Result<()> {
    let place = Place::start(&args.compute)?;
    let plan = Plan::new(&args, &place)?;
    let estimate = Estimate::of(&args, &plan);
    let say = |line: &str| {
        if !args.quiet.quiet {
            eprintln!("{line}");
        }
    };
    estimate.lines(&args, &plan).iter().for_each(|line| say(line));
    let peak = args.save.peak_tflops.or(args.dry_run.then_some(PeakTflops::Measure));
    let ceiling = peak.map(|peak| Ceiling::of(peak, &place));
    if let Some(ceiling) = &ceiling {
        say(&format!(
            "matrix products in {}: {}; a step takes at least {:.3} s, the run {:.0} s",
            args.compute.dtype,
            ceiling.describe(),
            estimate.least_seconds(ceiling),
            estimate.least_seconds(ceiling) * args.size.steps as f64
        ));
    }
    if let (true, Some(ceiling)) = (args.dry_run, &ceiling) {
        let line = jsonl::line(&estimate.record(&args, &plan, ceiling))?;
        return std::io::stdout().write_all(&line).map_err(|e| Error::write("stdout", e));
    }
    signals::finish_on_signal();
    Trainer::start(args, plan, place, ceiling)?.train()
}

struct Trainer {
    args: TrainArgs,
    place: Place,
    config: ModelConfig,
    objective: Objective,
    estimate: score::Estimate,
    learner: Box<dyn Learner>,
    weights: Weights,
    optimizer: Optimizer,
    schedule: Schedule,
    names: Vec<String>,
    folder: RunFolder,
    metrics: Metrics,
    loader: Loader,
    validation: Option<Validation>,
    tokenizer_hash: Option<String>,
    vocab_used: usize,
    state: TrainerState,
    saved: Option<u64>,
    ceiling: Option<Ceiling>,
    flops_per_token: f64,
    clock: Clock,
    /// Steps and targets before this start.
    before: (u64, u64),
}

impl Trainer {
    fn start(
        args: TrainArgs,
        plan: Plan,
        place: Place,
        ceiling: Option<Ceiling>,
    ) -> Result<Trainer> {
        let weights = match (&plan.resumed, &args.init) {
            (Some((_, step, _)), _) => read_weights(&plan.model, &step.join("model.st"))?,
            (None, Some(path)) => read_weights(&plan.model, path)?,
            (None, None) => Weights::init(&plan.model, args.seed.seed, tch::Device::Cpu),
        }
        .to_device(place.device);
        let names: Vec<String> = plan.decays.iter().map(|(name, _)| name.clone()).collect();
        let decays: Vec<EmaDecay> = plan.decays.iter().map(|&(_, d)| d).collect();
        let by_hand = learner::by_hand(&plan.model).list();
        let gradients = weights.require_gradients(&by_hand);
        let mut optimizer =
            Optimizer::new(plan.optimizer, &weights, gradients, &decays, place.threads);
        let dataset = plan.sequences.datasets().next();
        let tokenizer_hash = dataset.and_then(|d| d.manifest().tokenizer_hash()).map(String::from);
        let tokenizer_file = dataset.map(|d| d.path().join("tokenizer.json"));
        let vocab_used = plan.sequences.vocab_size();

        let mut saved = None;
        let (folder, state) = match plan.resumed {
            Some((folder, step, state)) => {
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
        record["estimate"] = json!(plan.estimate);
        record["orders"] = plan.order_facts;
        record["step"] = json!(state.step);
        record["peak"] = json!(ceiling);
        metrics.write(&record)?;

        let size = &args.size;
        let loader = Loader::start(
            plan.sequences,
            size.steps.saturating_sub(state.step),
            size.batch_size as usize,
            size.accumulate as usize,
        )?;
        Ok(Trainer {
            before: (state.step, state.tokens),
            ceiling,
            flops_per_token: flops::per_token(&plan.model),
            clock: Clock::start(),
            objective: plan.objective,
            estimate: plan.estimate,
            learner: learner::learner(
                &plan.model,
                plan.objective,
                &weights,
                &place,
                args.seed.seed,
            )?,
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
            place,
            args,
        })
    }

    fn train(mut self) -> Result<()> {
        let quiet = self.args.quiet.quiet;
        let mut progress = Progress::new("steps", Some(self.args.size.steps), quiet);
        let mut logged = (Instant::now(), self.state.tokens);
        let stopped_by = loop {
            if let Some(reason) = self.reason_to_stop() {
                break reason;
            }
            let started = Instant::now();
            self.clock.skip(); // records and words
            let data = self.loader.next()?;
            self.clock.lap(Phase::Data);
            let mut record = self.step(data)?;
            self.state.seconds += started.elapsed().as_secs_f64();
            let step = self.state.step;
            let ends = signals::interrupted().is_err() || self.reason_to_stop().is_some();
            if ends || step.is_multiple_of(self.args.save.log_every) {
                let seconds = logged.0.elapsed().as_secs_f64();
                record.seconds = self.state.seconds;
                record.tokens_per_second = (self.state.tokens - logged.1) as f64 / seconds;
                record.mfu = self.mfu(record.tokens_per_second);
                self.metrics.step(&record)?;
                logged = (Instant::now(), self.state.tokens);
            }
            progress.set(step, &format!("loss {:.4} nats", record.loss_nats));
            if signals::interrupted().is_err() {
                break "signal";
            }
            let every = self.args.eval.eval_every;
            if every > 0 && step.is_multiple_of(every) {
                self.evaluate(&progress)?;
                logged.0 = Instant::now();
            }
            if step.is_multiple_of(self.args.save.save_every) {
                self.save()?;
                logged.0 = Instant::now();
            }
        };
        let signal = signals::interrupted();
        // A signal leaves no time for a validation.
        if signal.is_ok() && self.metrics.evaluated != Some(self.state.step) {
            self.evaluate(&progress)?;
        }
        self.save()?;
        self.summarise(stopped_by, &progress)?;
        progress.finish();
        signal
    }

    /// Why no further step is to be made.
    fn reason_to_stop(&self) -> Option<&'static str> {
        let (size, state) = (&self.args.size, &self.state);
        let flops = state.tokens as f64 * self.flops_per_token;
        if state.step >= size.steps {
            Some("steps")
        } else if size.max_tokens.is_some_and(|most| state.tokens >= most) {
            Some("max_tokens")
        } else if size.max_seconds.is_some_and(|most| state.seconds >= most) {
            Some("max_seconds")
        } else if size.max_flops.is_some_and(|most| flops >= most) {
            Some("max_flops")
        } else {
            None
        }
    }

    /// The share of the ceiling that so many tokens a second are.
    fn mfu(&self, tokens_per_second: f64) -> Option<f64> {
        let ceiling = self.ceiling?.tflops * 1e12;
        Some(tokens_per_second * self.flops_per_token / ceiling)
    }

    /// Writes the last record and says it.
    fn summarise(&mut self, stopped_by: &'static str, progress: &Progress) -> Result<()> {
        let (clock, state) = (&self.clock, &self.state);
        let training =
            [Phase::Data, Phase::Forward, Phase::Head, Phase::Backward, Phase::Optimizer];
        let seconds: f64 = training.iter().map(|&phase| clock.of(phase)).sum();
        let steps = state.step - self.before.0;
        let rate = (state.tokens - self.before.1) as f64 / seconds;
        let rate = Some(rate).filter(|_| steps > 0);
        let record = SummaryRecord {
            r#type: "summary",
            step: state.step,
            stopped_by,
            tokens: state.tokens,
            seconds: state.seconds,
            flops: state.tokens as f64 * self.flops_per_token,
            flops_per_token: self.flops_per_token,
            steps_of_start: steps,
            tokens_per_second: rate,
            mfu: rate.and_then(|rate| self.mfu(rate)),
            peak_memory_bytes: peak_memory(),
            seconds_of: clock.all().map(|(name, s)| (format!("{name}_seconds"), s)).collect(),
        };
        if let Some(rate) = rate {
            let shares = clock.all().filter(|&(_, s)| s > 0.0);
            let shares: Vec<_> = shares.map(|(name, s)| format!("{name} {s:.1} s")).collect();
            progress.say(&format!(
                "saved step {} ({stopped_by}): {rate:.0} tokens a second{}, {:.0} MiB at most; {}",
                state.step,
                record.mfu.map_or(String::new(), |m| format!(", {:.1} % of the peak", 100.0 * m)),
                record.peak_memory_bytes.unwrap_or(0) as f64 / f64::from(1 << 20),
                shares.join(", ")
            ));
        }
        self.metrics.write(&record)
    }

    /// One optimizer step. The loss is that of the weights before it.
    fn step(&mut self, data: StepData) -> Result<StepRecord> {
        let scale = 1.0 / data.counted.max(1) as f64;
        let dropout = self.config.dropout();
        let first = self.state.sequences;
        let count = data.micro.iter().map(|batch| batch.sequences as u64).sum();
        let mut sum = 0.0;
        for (i, batch) in data.micro.iter().enumerate() {
            if dropout > 0.0 {
                tch::manual_seed(dropout_seed(self.args.seed.seed, self.state.step, i as u64));
            }
            let index = self.state.sequences;
            let micro = Micro { batch, index, first, count, scale, dropout };
            let gradients = self.optimizer.gradients();
            sum += self.learner.accumulate(micro, gradients, &mut self.clock)?;
            self.state.sequences += batch.sequences as u64;
        }
        let loss = sum * scale;
        let lr = self.schedule.at(self.state.step);
        let norm = self.optimizer.gradient_norm();
        let number = self.state.step + 1;
        let mut note = None;
        if loss.is_finite() && norm.is_finite() {
            self.optimizer.step(&self.weights, lr, norm);
            self.state.skipped_in_a_row = 0;
        } else {
            self.state.skipped_in_a_row += 1;
            if self.state.skipped_in_a_row > self.args.optimizer.skip_nonfinite {
                return Err(self.nonfinite(number, loss, norm));
            }
            self.optimizer.clear_gradients();
            note = Some("not finite: this update was left out".to_owned());
        }
        self.state.step = number;
        self.state.updates = self.optimizer.count;
        self.state.tokens += data.counted as u64;
        self.clock.lap(Phase::Optimizer);
        Ok(StepRecord {
            r#type: "step",
            step: number,
            objective: self.objective,
            estimate: self.estimate,
            loss_nats: loss,
            lr,
            grad_norm: norm,
            tokens: self.state.tokens,
            seconds: 0.0,
            tokens_per_second: 0.0,
            flops: self.state.tokens as f64 * self.flops_per_token,
            mfu: None,
            note,
        })
    }

    fn nonfinite(&self, step: u64, loss: f64, norm: f64) -> Error {
        let what = if loss.is_finite() { "gradient norm" } else { "loss" };
        let value = if loss.is_finite() { norm } else { loss };
        let last = match self.saved {
            Some(step) => format!("the checkpoint of step {step} is whole"),
            None => "no checkpoint was written yet".into(),
        };
        Error::NonFinite(format!(
            "step {step}: the {what} is {value}; {last}; lower --lr, or leave such updates out \
             with --skip-nonfinite N"
        ))
    }

    fn evaluate(&mut self, progress: &Progress) -> Result<()> {
        let Some(validation) = &self.validation else { return Ok(()) };
        let step = self.state.step;
        let mut kinds = vec![("raw".to_owned(), &self.weights)];
        for (name, average) in self.names.iter().zip(&self.optimizer.averages) {
            kinds.push((format!("ema:{name}"), &average.weights));
        }
        for (name, weights) in kinds {
            let record =
                validation.run(&self.config, self.objective, weights, &self.place, step, &name)?;
            progress.say(&format!(
                "step {step}, {name}: {} {:.4} nats a token",
                record.what(),
                record.nll_nats_per_token
            ));
            self.metrics.evaluation(&record)?;
        }
        self.clock.lap(Phase::Evaluate);
        Ok(())
    }

    fn save(&mut self) -> Result<()> {
        if self.saved == Some(self.state.step) {
            return Ok(());
        }
        let metadata = |kind: Kind, decay: Option<f64>| -> BTreeMap<String, String> {
            Metadata {
                config: self.config.to_json(),
                tokenizer: self.tokenizer_hash.clone(),
                n_vocab_used: Some(self.vocab_used),
                kind,
                ema_decay: decay,
                ema_warmup: decay.map(|_| !self.args.optimizer.no_ema_warmup),
                step: self.state.step,
                tokens_seen: self.state.tokens,
                created_by: format!("ao-train {}", cli::VERSION),
            }
            .to_map()
        };
        self.folder.save(&self.state, |folder| {
            self.weights.write(&folder.join("model.st"), &metadata(Kind::Model, None), false)?;
            for (name, average) in self.names.iter().zip(&self.optimizer.averages) {
                let metadata = metadata(Kind::Ema, Some(average.decay.decay));
                average.weights.write(&folder.join(format!("ema-{name}.st")), &metadata, false)?;
            }
            self.optimizer.write(&folder.join("optimizer.st"), &metadata(Kind::Model, None))
        })?;
        self.saved = Some(self.state.step);
        self.folder.rotate(self.args.save.keep_last, self.args.save.keep_every)?;
        self.clock.lap(Phase::Save);
        Ok(())
    }
}

fn read_weights(config: &ModelConfig, path: &Path) -> Result<Weights> {
    Weights::read(config, &CheckpointFile::open(path)?, path)
}

/// The seed of a micro-step's dropout masks, a function of its coordinates alone.
fn dropout_seed(seed: u64, step: u64, micro: u64) -> i64 {
    use ao_core::rng::{Domain, Stream};
    Stream::new(seed ^ micro.rotate_left(32), Domain::Dropout, step).next_u64() as i64
}
