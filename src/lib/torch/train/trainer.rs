//! The run: from options to the last checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ao_core::cli::{self, Input, Progress, RunRecord, signals};
use ao_core::config::ModelConfig;
use ao_core::ema::EmaDecay;
use ao_core::error::IoContext;
use ao_core::format::atomic::AtomicFile;
use ao_core::format::checkpoint::{CheckpointFile, Kind, Metadata};
use ao_core::orders::OrderSource;
use ao_core::{Error, Result};
use serde_json::{Value, json};

use super::data::{Loader, Sequences, StepData, parse_shards};
use super::evaluate::Validation;
use super::metrics::{Metrics, StepRecord};
use super::optimizer::{AdamW, Optimizer};
use super::options::TrainArgs;
use super::run_folder::{RunFolder, STATE_VERSION, TrainerState};
use super::schedule::Schedule;
use super::step;
use crate::device::Place;
use crate::model::{Decoder, HandNames, Weights, decoder};

/// Trains as `args` says.
///
/// # Errors
/// Wrong or unusable options and inputs, before anything is written; a full disk; a loss or a
/// gradient that is not finite; a signal, after saving.
pub fn run(args: TrainArgs) -> Result<()> {
    let place = Place::start(&args.compute)?;
    let plan = Plan::new(&args, &place)?;
    plan.announce(&args);
    if args.dry_run {
        return Ok(());
    }
    signals::finish_on_signal();
    Trainer::start(args, plan, place)?.train()
}

/// What will be done: options checked, inputs opened.
struct Plan {
    model: ModelConfig,
    folder: Option<PathBuf>,
    resumed: Option<(RunFolder, PathBuf, TrainerState)>,
    sequences: Sequences,
    orders: String,
    order_facts: Value,
    validation: Option<Validation>,
    schedule: Schedule,
    optimizer: AdamW,
    decays: Vec<(String, EmaDecay)>,
    inputs: Vec<Input>,
    device: String,
}

impl Plan {
    fn new(args: &TrainArgs, place: &Place) -> Result<Plan> {
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
        let spec = model.orders(args.orders.as_deref(), "mix:0.1*l2r+0.9*uniform")?;
        let orders = OrderSource::open(&spec, block_size, args.seed.seed)?;
        let order_facts = orders.describe();
        let mut sequences = Sequences::open(
            &shards,
            block_size,
            orders,
            args.seed.seed,
            !args.size.no_shuffle,
            usize::from(!model.predicts_first()),
        )?;
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
            sequences.skip(state.sequences)?;
        }
        let tokenizer = sequences.datasets().next().and_then(|d| d.manifest().tokenizer_hash());
        let validation = args
            .eval
            .val_shards
            .as_deref()
            .map(|path| {
                Validation::open(
                    path,
                    block_size,
                    args.eval.val_sequences,
                    args.size.batch_size as usize,
                    tokenizer,
                )
            })
            .transpose()?;
        if validation.as_ref().is_some_and(|v| v.vocab_size() > model.vocab_size()) {
            return Err(Error::usage("--val-shards: its ids do not fit the model's vocab_size"));
        }
        Ok(Plan {
            schedule: schedule(args)?,
            optimizer: optimizer(args)?,
            decays: decays(&args.optimizer.ema, !args.optimizer.no_ema_warmup)?,
            folder: args.out.clone(),
            model,
            resumed,
            sequences,
            orders: spec,
            order_facts,
            validation,
            inputs,
            device: place.device_name(),
        })
    }

    /// Prints everything that defines the run.
    fn announce(&self, args: &TrainArgs) {
        if args.quiet.quiet {
            return;
        }
        let c = &self.model;
        let size = &args.size;
        let tokens = size.batch_size * size.accumulate * c.block_size() as u64;
        let parameters = self.model.parameter_count();
        let copies = 4 + self.decays.len() as u64; // weights, gradients, two moments, averages
        eprintln!(
            "{}: {parameters} parameters, {} layers x {}, {} heads, T {}, vocabulary {}",
            c.arch(),
            c.n_layer(),
            c.n_embd(),
            c.n_head(),
            c.block_size(),
            c.vocab_size()
        );
        eprintln!(
            "step: {tokens} tokens = {} sequences x {} x {}; {} steps = {} tokens",
            size.batch_size,
            c.block_size(),
            size.accumulate,
            size.steps,
            tokens * size.steps
        );
        eprintln!(
            "orders {}; lr {} -> {}, warm-up {}, decay to step {}; weight decay {}, clip {}, ema {}",
            self.orders,
            self.schedule.lr,
            self.schedule.min_lr,
            self.schedule.warmup,
            self.schedule.decay_steps,
            self.optimizer.weight_decay,
            self.optimizer.grad_clip,
            args.optimizer.ema
        );
        eprintln!(
            "device {}, matrix products in {}, {} threads; {:.0} MiB of weights and optimizer",
            self.device,
            args.compute.dtype,
            args.compute.thread_count(),
            (parameters * 4 * copies) as f64 / f64::from(1 << 20)
        );
    }
}

fn config_in(path: &Path) -> Result<ModelConfig> {
    let value = CheckpointFile::open(path)?
        .config()?
        .ok_or_else(|| Error::input_at(path, "carries no model config; give --model FILE.json"))?;
    ModelConfig::from_json(&value).map_err(|e| Error::input_at(path, format!("its config: {e}")))
}

fn schedule(args: &TrainArgs) -> Result<Schedule> {
    let o = &args.optimizer;
    let lr = at_least_zero("--lr", o.lr)?;
    Ok(Schedule {
        lr,
        min_lr: at_least_zero("--min-lr", o.min_lr.unwrap_or(lr / 10.0))?,
        warmup: o.warmup,
        decay_steps: o.decay_steps.unwrap_or(args.size.steps),
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

struct Trainer {
    args: TrainArgs,
    place: Place,
    config: ModelConfig,
    model: Box<dyn Decoder>,
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
    skipped: u64,
}

impl Trainer {
    fn start(args: TrainArgs, plan: Plan, place: Place) -> Result<Trainer> {
        let weights = match (&plan.resumed, &args.init) {
            (Some((_, step, _)), _) => read_weights(&plan.model, &step.join("model.st"))?,
            (None, Some(path)) => read_weights(&plan.model, path)?,
            (None, None) => Weights::init(&plan.model, args.seed.seed, tch::Device::Cpu),
        }
        .to_device(place.device);
        let names: Vec<String> = plan.decays.iter().map(|(name, _)| name.clone()).collect();
        let decays: Vec<EmaDecay> = plan.decays.iter().map(|&(_, d)| d).collect();
        let by_hand = HandNames::of_decoder(&plan.model).list();
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

        let mut metrics = Metrics::open(&folder.file("metrics.jsonl"), state.step)?;
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
        record["orders"] = plan.order_facts;
        record["step"] = json!(state.step);
        metrics.write(&record)?;

        let size = &args.size;
        let loader = Loader::start(
            plan.sequences,
            size.steps.saturating_sub(state.step),
            size.batch_size as usize,
            size.accumulate as usize,
        )?;
        Ok(Trainer {
            model: decoder(&plan.model, &weights, place.compute, place.threads)?,
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
            skipped: 0,
            place,
            args,
        })
    }

    fn train(mut self) -> Result<()> {
        let quiet = self.args.quiet.quiet;
        let mut progress = Progress::new("steps", Some(self.args.size.steps), quiet);
        let mut logged = (Instant::now(), self.state.tokens);
        let mut evaluated = None;
        while self.state.step < self.args.size.steps && !self.budget_is_spent() {
            let started = Instant::now();
            let data = self.loader.next()?;
            let mut record = self.step(data)?;
            self.state.seconds += started.elapsed().as_secs_f64();
            let step = self.state.step;
            if step.is_multiple_of(self.args.save.log_every) || step == self.args.size.steps {
                let seconds = logged.0.elapsed().as_secs_f64();
                record.seconds = self.state.seconds;
                record.tokens_per_second = (self.state.tokens - logged.1) as f64 / seconds;
                self.metrics.write(&record)?;
                logged = (Instant::now(), self.state.tokens);
            }
            progress.set(step, &format!("loss {:.4} nats", record.loss_nats));
            if let Err(signal) = signals::interrupted() {
                self.save()?;
                progress.say(&format!("saved step {step} after a signal"));
                return Err(signal);
            }
            let every = self.args.eval.eval_every;
            if every > 0 && step.is_multiple_of(every) {
                self.evaluate(&progress)?;
                evaluated = Some(step);
                logged.0 = Instant::now();
            }
            if step.is_multiple_of(self.args.save.save_every) {
                self.save()?;
                logged.0 = Instant::now();
            }
        }
        if evaluated != Some(self.state.step) {
            self.evaluate(&progress)?;
        }
        self.save()?;
        progress.finish();
        Ok(())
    }

    fn budget_is_spent(&self) -> bool {
        let size = &self.args.size;
        size.max_tokens.is_some_and(|most| self.state.tokens >= most)
            || size.max_seconds.is_some_and(|most| self.state.seconds >= most)
    }

    /// One optimizer step. The loss is that of the weights before it.
    fn step(&mut self, data: StepData) -> Result<StepRecord> {
        let scale = 1.0 / data.counted.max(1) as f64;
        let dropout = self.config.dropout();
        let mut sum = 0.0;
        for (i, batch) in data.micro.iter().enumerate() {
            if dropout > 0.0 {
                tch::manual_seed(dropout_seed(self.args.seed.seed, self.state.step, i as u64));
            }
            let gradients = self.optimizer.gradients();
            let nll = step::accumulate(self.model.as_ref(), batch, scale, dropout, gradients);
            sum += nll.iter().sum::<f64>();
            self.state.sequences += batch.sequences as u64;
        }
        let loss = sum * scale;
        let lr = self.schedule.at(self.state.step);
        let norm = self.optimizer.gradient_norm();
        let number = self.state.step + 1;
        let mut note = None;
        if loss.is_finite() && norm.is_finite() {
            self.optimizer.step(&self.weights, lr, norm);
            self.skipped = 0;
        } else {
            self.skipped += 1;
            if self.skipped > self.args.optimizer.skip_nonfinite {
                return Err(self.nonfinite(number, loss, norm));
            }
            self.optimizer.clear_gradients();
            note = Some("not finite: this update was left out".to_owned());
        }
        self.state.step = number;
        self.state.updates = self.optimizer.count;
        self.state.tokens += data.counted as u64;
        Ok(StepRecord {
            r#type: "step",
            step: number,
            loss_nats: loss,
            lr,
            grad_norm: norm,
            tokens: self.state.tokens,
            seconds: 0.0,
            tokens_per_second: 0.0,
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
            let record = validation.run(&self.config, weights, &self.place, step, &name)?;
            progress.say(&format!(
                "step {step}, {name}: any-order NLL {:.4} nats a token",
                record.nll_nats_per_token
            ));
            self.metrics.write(&record)?;
        }
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
        self.folder.rotate(self.args.save.keep_last, self.args.save.keep_every)
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
