//! The run: from options to the last checkpoint.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

use ao_core::cli::{self, Progress, signals};
use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::{Kind, Metadata};
use ao_core::format::jsonl;
use ao_core::process::Objective;
use ao_core::score;
use ao_core::{Error, Result};

use super::data::{Loader, StepData};
use super::evaluate::Validation;
use super::flops::{Ceiling, PeakTflops};
use super::metrics::{Metrics, StepRecord, SummaryRecord};
use super::optimizer::Optimizer;
use super::options::{LossPer, TrainArgs};
use super::plan::Plan;
use super::requirements::Requirements;
use super::run_folder::{RunFolder, TrainerState};
use super::schedule::Schedule;
use super::settings::RunSettings;
use crate::clock::{Clock, Phase};
use crate::device::{self, Runtime};
use crate::family::{Learner, Micro, Model};
use crate::network::Weights;

/// Trains as `args` says, or prints the plan with `--dry-run`.
///
/// # Errors
/// Wrong or unusable options and inputs, before anything is written; a full disk; a loss or a
/// gradient that is not finite; a signal, after saving.
pub fn run(args: TrainArgs) -> Result<()> {
    let runtime = Runtime::start(&args.compute)?;
    let plan = Plan::new(&args, &runtime)?;
    let requirements = Requirements::of(&args, &plan);
    let say = |line: &str| {
        if !args.quiet.quiet {
            eprintln!("{line}");
        }
    };
    requirements.lines(&args, &plan).iter().for_each(|line| say(line));
    let peak = args.save.peak_tflops.or(args.dry_run.then_some(PeakTflops::Measure));
    let ceiling = peak.map(|peak| Ceiling::of(peak, &runtime));
    if let Some(ceiling) = &ceiling {
        say(&format!(
            "matrix products in {}: {}; a step takes at least {:.3} s, the run {:.0} s",
            args.compute.dtype,
            ceiling.describe(),
            requirements.least_seconds(ceiling),
            requirements.least_seconds(ceiling) * args.size.steps as f64
        ));
    }
    if let (true, Some(ceiling)) = (args.dry_run, &ceiling) {
        let line = jsonl::line(&requirements.record(&args, &plan, ceiling))?;
        return std::io::stdout().write_all(&line).map_err(|e| Error::write("stdout", e));
    }
    if let Some(memory) = device::memory_bytes().filter(|_| !runtime.device.is_cuda()) {
        requirements.check_memory(&args, memory)?;
    }
    signals::finish_on_signal();
    Trainer::start(args, plan, runtime, ceiling)?.train()
}

/// A run in progress.
pub(super) struct Trainer {
    pub(super) settings: RunSettings,
    pub(super) runtime: Runtime,
    pub(super) config: ModelConfig,
    pub(super) objective: Objective,
    pub(super) estimate: score::Estimate,
    pub(super) learner: Box<dyn Learner>,
    pub(super) weights: Weights,
    pub(super) optimizer: Optimizer,
    pub(super) schedule: Schedule,
    pub(super) names: Vec<String>,
    pub(super) folder: RunFolder,
    pub(super) metrics: Metrics,
    pub(super) loader: Loader,
    pub(super) validation: Option<Validation>,
    pub(super) tokenizer_hash: Option<String>,
    pub(super) vocab_used: usize,
    pub(super) state: TrainerState,
    pub(super) saved: Option<u64>,
    pub(super) ceiling: Option<Ceiling>,
    pub(super) flops_per_token: f64,
    pub(super) clock: Clock,
    /// Steps and scored targets before this start.
    pub(super) before: (u64, u64),
}

impl Trainer {
    fn train(mut self) -> Result<()> {
        let quiet = self.settings.quiet;
        let mut progress = Progress::new("steps", Some(self.settings.steps), quiet);
        progress.begin_at(self.state.step, self.state.tokens);
        let mut logged = (Instant::now(), self.state.tokens);
        let stopped_by = loop {
            if let Some(reason) = self.reason_to_stop() {
                break reason;
            }
            let started = Instant::now();
            self.clock.skip(); // records and words
            let step = self.loader.next().and_then(|data| {
                self.clock.lap(Phase::Data);
                self.step(data)
            });
            let mut record = match step {
                Ok(record) => record,
                // Save the training before the data failed.
                Err(error @ (Error::Input { .. } | Error::Usage(_))) => {
                    if self.state.step > self.before.0 {
                        self.save()?;
                    }
                    return Err(error);
                }
                Err(error) => return Err(error),
            };
            self.state.seconds += started.elapsed().as_secs_f64();
            let step = self.state.step;
            let ends = signals::interrupted().is_err() || self.reason_to_stop().is_some();
            if ends || step.is_multiple_of(self.settings.log_every) {
                let seconds = logged.0.elapsed().as_secs_f64();
                record.seconds = self.state.seconds;
                record.tokens_per_second = (self.state.tokens - logged.1) as f64 / seconds;
                record.mfu = self.mfu(record.tokens_per_second);
                self.metrics.step(&record)?;
                logged = (Instant::now(), self.state.tokens);
            }
            progress.also("tokens", self.state.tokens);
            progress.set(step, &format!("loss {:.3}", record.loss_nats));
            if signals::interrupted().is_err() {
                break "signal";
            }
            let every = self.settings.eval_every;
            if every > 0 && step.is_multiple_of(every) {
                self.evaluate(&progress)?;
                logged.0 = Instant::now();
            }
            if step.is_multiple_of(self.settings.save_every) {
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

    /// The reason to stop, if there is one.
    fn reason_to_stop(&self) -> Option<&'static str> {
        self.settings.reached(&self.state, self.flops_per_token)
    }

    /// Tokens a second as a fraction of the peak.
    fn mfu(&self, tokens_per_second: f64) -> Option<f64> {
        let ceiling = self.ceiling?.tflops * 1e12;
        Some(tokens_per_second * self.flops_per_token / ceiling)
    }

    /// Writes the last record and prints it.
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
            peak_memory_bytes: cli::peak_memory_bytes(),
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
        let given = usize::from(!self.config.predicts_first());
        let lengths = data.micro.iter().flatten().map(Vec::len);
        let counted: usize = lengths.map(|length| length.saturating_sub(given)).sum();
        let of_tokens = 1.0 / counted.max(1) as f64;
        let dropout = self.config.dropout();
        let first = self.state.sequences;
        let count: u64 = data.micro.iter().map(|texts| texts.len() as u64).sum();
        let scale = match self.settings.loss_per {
            LossPer::Token => of_tokens,
            LossPer::Sequence => 1.0 / count.max(1) as f64,
        };
        let mut sum = 0.0;
        let mut taken = first;
        for (i, texts) in data.micro.iter().enumerate() {
            if dropout > 0.0 {
                tch::manual_seed(dropout_seed(self.settings.seed, self.state.step, i as u64));
            }
            let micro = Micro { texts, index: taken, first, count, scale, dropout };
            let gradients = self.optimizer.gradients();
            sum += self.learner.accumulate(micro, gradients, &mut self.clock)?;
            taken += texts.len() as u64;
        }
        self.state.sequences = taken;
        let loss = sum * of_tokens;
        let lr = self.schedule.at(self.state.step);
        let norm = self.optimizer.gradient_norm();
        let number = self.state.step + 1;
        let mut note = None;
        if loss.is_finite() && norm.is_finite() {
            self.optimizer.step(&self.weights, lr, norm);
            self.state.skipped_in_a_row = 0;
        } else {
            self.state.skipped_in_a_row += 1;
            if self.state.skipped_in_a_row > self.settings.skip_nonfinite {
                let error = self.nonfinite(number, loss, norm);
                let note = Some("not finite: the run stops here".to_owned());
                let tokens = self.state.tokens + counted as u64;
                self.metrics.step(&self.record(number, loss, lr, norm, tokens, note))?;
                return Err(error);
            }
            self.optimizer.clear_gradients();
            note = Some("not finite: this update was left out".to_owned());
        }
        self.state.step = number;
        self.state.updates = self.optimizer.count;
        self.state.tokens += counted as u64;
        self.clock.lap(Phase::Optimizer);
        Ok(self.record(number, loss, lr, norm, self.state.tokens, note))
    }

    /// The record of a step, without its times.
    fn record(
        &self,
        step: u64,
        loss_nats: f64,
        lr: f64,
        grad_norm: f64,
        tokens: u64,
        note: Option<String>,
    ) -> StepRecord {
        StepRecord {
            r#type: "step",
            step,
            objective: self.objective,
            estimate: self.estimate,
            loss_nats,
            lr,
            grad_norm,
            tokens,
            seconds: self.state.seconds,
            tokens_per_second: 0.0,
            flops: tokens as f64 * self.flops_per_token,
            mfu: None,
            note,
        }
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
            let model = Model { config: &self.config, weights, runtime: &self.runtime };
            for record in validation.run(model, self.objective, step, &name)? {
                progress.say(&format!(
                    "step {step}, {name}: {} {:.4} nats a token",
                    record.what(),
                    record.nll_nats_per_token
                ));
                self.metrics.evaluation(&record)?;
            }
        }
        self.clock.lap(Phase::Evaluate);
        Ok(())
    }

    fn save(&mut self) -> Result<()> {
        if self.saved == Some(self.state.step) {
            return Ok(());
        }
        // Every reader would refuse such weights. The checkpoint before stays.
        if let Some(name) = self.weights.first_nonfinite() {
            return Err(Error::NonFinite(format!(
                "step {}: tensor '{name}' has values that are not finite, so the step is not saved; \
                 go on from the checkpoint before with a lower --lr",
                self.state.step
            )));
        }
        let metadata = |kind: Kind, decay: Option<f64>| -> BTreeMap<String, String> {
            Metadata {
                config: self.config.to_json(),
                tokenizer: self.tokenizer_hash.clone(),
                n_vocab_used: Some(self.vocab_used),
                kind,
                ema_decay: decay,
                ema_warmup: decay.map(|_| self.settings.ema_warmup),
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
        self.folder.rotate(self.settings.keep_last, self.settings.keep_every)?;
        self.clock.lap(Phase::Save);
        Ok(())
    }
}

/// The seed of a micro-step's dropout masks, a function of its coordinates alone.
fn dropout_seed(seed: u64, step: u64, micro: u64) -> i64 {
    use ao_core::rng::{Domain, Stream};
    Stream::new(seed ^ micro.rotate_left(32), Domain::Dropout, step).next_u64() as i64
}
