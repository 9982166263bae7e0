//! What a run is and what it will need, printed before it begins.

use ao_core::{Error, Result, cli};
use serde_json::{Value, json};

use super::flops::Ceiling;
use super::options::TrainArgs;
use super::plan::Plan;
use super::schedule::Schedule;
use crate::network::Head;

/// Values that autograd keeps for each token, layer and column of width: rows before and after
/// norms, adaLN's table rows and products, q, k and v, attention, the MLP's two widths of four.
/// Found by comparing the peak memory of runs with the rest of the estimate: 6 layers of 384, T 256,
/// 8 sequences and 50,304 ids take 2,064 MiB, of which libtorch itself has about 200.
const KEPT_A_LAYER: u64 = 40;

/// What a run will need: memory in bytes, work in operations.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirements {
    parameters: u64,
    weights: u64,
    gradients: u64,
    moments: u64,
    averages: u64,
    activations: u64,
    logits: u64,
    tokens_per_step: u64,
    tokens: u64,
    flops_per_token: f64,
}

impl Requirements {
    /// The estimate for a plan.
    pub fn of(args: &TrainArgs, plan: &Plan) -> Requirements {
        let c = &plan.model;
        let parameters = c.parameter_count();
        let rows = args.size.batch_size.saturating_mul(c.block_size() as u64);
        let tokens_per_step = rows.saturating_mul(args.size.accumulate);
        let width = c.n_layer() as u64 * c.n_embd() as u64;
        Requirements {
            parameters,
            weights: 4 * parameters,
            gradients: 4 * parameters,
            moments: 8 * parameters,
            averages: 4 * parameters * plan.decays.len() as u64,
            activations: rows.saturating_mul(4 * KEPT_A_LAYER * width),
            logits: Head::chunk_bytes(c.vocab_size(), rows as usize) as u64,
            tokens_per_step,
            tokens: tokens_per_step.saturating_mul(args.size.steps),
            flops_per_token: c.flops_per_token(),
        }
    }

    fn total(&self) -> u64 {
        [self.weights, self.gradients, self.moments, self.averages, self.activations, self.logits]
            .iter()
            .fold(0, |sum: u64, &x| sum.saturating_add(x))
    }

    /// The first lines of a run: everything that defines it.
    pub fn lines(&self, args: &TrainArgs, plan: &Plan) -> Vec<String> {
        let (c, size, o) = (&plan.model, &args.size, &args.optimizer);
        let mut lines = vec![
            format!(
                "{}: {} parameters, {} layers x {}, {} heads, T {}, vocabulary {}, dropout {}",
                c.arch(),
                self.parameters,
                c.n_layer(),
                c.n_embd(),
                c.n_head(),
                c.block_size(),
                c.vocab_size(),
                c.dropout()
            ),
            format!(
                "step: {} tokens = {} sequences x {} x {}; {} steps = {} tokens, {:.3e} FLOPs",
                self.tokens_per_step,
                size.batch_size,
                c.block_size(),
                size.accumulate,
                size.steps,
                self.tokens,
                self.tokens as f64 * self.flops_per_token
            ),
            format!(
                "data {}, {} order; objective {}, {}; seed {}",
                args.shards.as_deref().unwrap_or("-"),
                if size.no_shuffle { "file" } else { "shuffled" },
                plan.objective.name(),
                match plan.training.orders() {
                    Some(orders) => format!("orders {orders}"),
                    None => "masks".into(),
                },
                args.seed.seed
            ),
            format!(
                "lr {} -> {}, warm-up {}, decay to step {}; AdamW {} {} {:e}, weight decay {}, \
                 clip {}",
                // As f32, a tenth of a short decimal number prints short too.
                plan.schedule.lr as f32,
                plan.schedule.min_lr as f32,
                plan.schedule.warmup,
                plan.schedule.decay_steps,
                plan.optimizer.beta1,
                plan.optimizer.beta2,
                plan.optimizer.eps,
                plan.optimizer.weight_decay,
                plan.optimizer.grad_clip
            ),
            format!(
                "ema {}{}; saved every {} steps, the last {} kept{}; {}",
                o.ema,
                if o.no_ema_warmup { " without warm-up" } else { "" },
                args.save.save_every,
                args.save.keep_last,
                match args.save.keep_every {
                    0 => String::new(),
                    n => format!(" and every {n}th"),
                },
                match &args.eval.val_shards {
                    Some(path) => format!(
                        "validated on {} every {} steps",
                        path.display(),
                        args.eval.eval_every
                    ),
                    None => "no validation".into(),
                }
            ),
            format!(
                "device {}, matrix products in {}, {} threads; {}",
                plan.device,
                args.compute.dtype,
                args.compute.thread_count(),
                self.memory_line()
            ),
        ];
        let s = &plan.schedule;
        if s.warmup > size.steps || (s.warmup > s.decay_steps && s.decay_steps > 0) {
            lines.push(format!(
                "warning: --warmup {} is longer than {}: the learning rate never reaches --lr {}",
                s.warmup,
                if s.warmup > size.steps {
                    format!("the {} steps", size.steps)
                } else {
                    format!("the decay to step {}", s.decay_steps)
                },
                s.lr as f32
            ));
        }
        match (&plan.resumed, &args.init) {
            (Some((_, folder, state)), _) => {
                lines.push(format!("goes on from step {}: {}", state.step, folder.display()));
                lines.extend(schedule_line(plan, state.step, size.steps));
                if plan.training.is_piped() {
                    lines.push(format!(
                        "orders: pipe the same rows again from their start; {} are passed over",
                        state.sequences
                    ));
                }
            }
            (None, Some(path)) => lines.push(format!("starts from {}", path.display())),
            (None, None) => {}
        }
        lines
    }

    /// Refuses a run that does not fit into memory. The system would kill it without a message.
    ///
    /// # Errors
    /// With both figures and the flag to lower.
    pub fn check_memory(&self, args: &TrainArgs, memory_bytes: u64) -> Result<()> {
        if self.total() <= memory_bytes {
            return Ok(());
        }
        let fixed = self.weights + self.gradients + self.moments + self.averages;
        if fixed > memory_bytes {
            return Err(Error::usage(format!(
                "--model: weights, gradients and averages take about {} MiB and this machine has {}; \
                 take a smaller model",
                mib(fixed),
                mib(memory_bytes)
            )));
        }
        Err(Error::usage(format!(
            "--batch-size {}: a step takes about {} MiB and this machine has {}; lower it, and give \
             --accumulate for as many tokens a step",
            args.size.batch_size,
            mib(self.total()),
            mib(memory_bytes)
        )))
    }

    fn memory_line(&self) -> String {
        format!(
            "memory about {} MiB: weights {}, gradients {}, moments {}, averages {}, \
             activations {}, logits {}",
            mib(self.total()),
            mib(self.weights),
            mib(self.gradients),
            mib(self.moments),
            mib(self.averages),
            mib(self.activations),
            mib(self.logits)
        )
    }

    /// Seconds of a step at peak speed. It cannot take less.
    pub fn least_seconds(&self, ceiling: &Ceiling) -> f64 {
        self.tokens_per_step as f64 * self.flops_per_token / (ceiling.tflops * 1e12)
    }

    /// The record of a dry run.
    pub fn record(&self, args: &TrainArgs, plan: &Plan, ceiling: &Ceiling) -> Value {
        let seconds = self.least_seconds(ceiling);
        json!({
            "type": "plan",
            "tool": "ao-train",
            "version": cli::VERSION,
            "model": plan.model.to_json(),
            "objective": plan.objective,
            "estimate": plan.training.estimate(),
            "parameters": self.parameters,
            "weights_bytes": self.weights,
            "gradients_bytes": self.gradients,
            "moments_bytes": self.moments,
            "averages_bytes": self.averages,
            "activations_bytes": self.activations,
            "logits_bytes": self.logits,
            "memory_bytes": self.total(),
            "steps": args.size.steps,
            "tokens_per_step": self.tokens_per_step,
            "tokens": self.tokens,
            "flops_per_token": self.flops_per_token,
            "flops": self.tokens as f64 * self.flops_per_token,
            "peak": ceiling,
            "least_seconds_per_step": seconds,
            "least_seconds": seconds * args.size.steps as f64,
        })
    }
}

/// What the learning rate does in a run that goes on after `step` up to `steps`, where that is not
/// plain: it jumps, or its decay does not end with the run.
fn schedule_line(plan: &Plan, step: u64, steps: u64) -> Option<String> {
    let (s, before) = (&plan.schedule, plan.schedule_before.as_ref()?);
    let (next, own, decay) = (s.at(step), before.at(step), s.decay_steps);
    if next != own {
        return Some(format!(
            "warning: the learning rate goes on at {next:.3e}, not at the {own:.3e} of the run so \
             far (lr {} -> {}, warm-up {}, decay to step {})",
            before.lr as f32, before.min_lr as f32, before.warmup, before.decay_steps
        ));
    }
    if decay != before.decay_steps {
        let was = before.decay_steps;
        return Some(format!("the learning rate decays to step {decay}, before to step {was}"));
    }
    if steps > decay {
        return Some(format!(
            "the learning rate keeps its decay to step {decay} and is {} after it; --decay-steps \
             {steps} would go on at {:.3e}",
            s.min_lr as f32,
            Schedule { decay_steps: steps, ..*s }.at(step)
        ));
    }
    (steps < decay).then(|| format!("the learning rate keeps its decay to step {decay}"))
}

fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / f64::from(1 << 20))
}
