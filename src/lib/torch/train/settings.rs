//! What a run does and how long it goes on, apart from the flags that say it.

use super::options::{LossPer, TrainArgs};
use super::run_folder::TrainerState;

/// What the loop of steps goes by.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RunSettings {
    /// Words on stderr are left out.
    pub quiet: bool,
    pub seed: u64,
    /// Optimizer steps of the whole run, with those before this start.
    pub steps: u64,
    /// Sequences of a forward pass.
    pub batch_size: usize,
    /// Forward passes of a step.
    pub accumulate: usize,
    /// Most scored targets.
    pub max_tokens: Option<u64>,
    /// Most wall-clock time of steps.
    pub max_seconds: Option<f64>,
    /// Most floating-point operations.
    pub max_flops: Option<f64>,
    pub loss_per: LossPer,
    /// Most updates in a row that may be left out because they are not finite.
    pub skip_nonfinite: u64,
    /// Whether the decay of averages rises over the first steps.
    pub ema_warmup: bool,
    /// Steps from one record to the next.
    pub log_every: u64,
    pub eval_every: u64,
    pub save_every: u64,
    /// Newest checkpoints that stay.
    pub keep_last: u64,
    /// Checkpoints of steps that this divides stay too; 0 for none.
    pub keep_every: u64,
}

impl RunSettings {
    pub fn of(args: &TrainArgs) -> RunSettings {
        let (size, save) = (&args.size, &args.save);
        RunSettings {
            quiet: args.quiet.quiet,
            seed: args.seed.seed,
            steps: size.steps,
            batch_size: size.batch_size as usize,
            accumulate: size.accumulate as usize,
            max_tokens: size.max_tokens,
            max_seconds: size.max_seconds,
            max_flops: size.max_flops,
            loss_per: args.optimizer.loss_per,
            skip_nonfinite: args.optimizer.skip_nonfinite,
            ema_warmup: !args.optimizer.no_ema_warmup,
            log_every: save.log_every,
            eval_every: args.eval.eval_every,
            save_every: save.save_every,
            keep_last: save.keep_last,
            keep_every: save.keep_every,
        }
    }

    /// The first limit that a run has reached, by its name in records.
    pub fn reached(&self, state: &TrainerState, flops_per_token: f64) -> Option<&'static str> {
        let flops = state.tokens as f64 * flops_per_token;
        if state.step >= self.steps {
            Some("steps")
        } else if self.max_tokens.is_some_and(|most| state.tokens >= most) {
            Some("max_tokens")
        } else if self.max_seconds.is_some_and(|most| state.seconds >= most) {
            Some("max_seconds")
        } else if self.max_flops.is_some_and(|most| flops >= most) {
            Some("max_flops")
        } else {
            None
        }
    }
}
