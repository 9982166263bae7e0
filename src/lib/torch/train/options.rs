//! The flags of `ao-train`.

use std::path::PathBuf;

use ao_core::cli::{Compute, Quiet, Seed, parse_count};
use ao_core::process::Objective;
use serde::Serialize;

use super::flops::PeakTflops;

/// What is trained, on what, and for how long.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct TrainArgs {
    /// Model config, a JSON file; see configs/
    #[arg(long, value_name = "FILE.json", required_unless_present_any = ["init", "resume"])]
    pub model: Option<PathBuf>,
    /// Start from these weights with a new optimizer (fine-tuning)
    #[arg(long, value_name = "FILE.st")]
    pub init: Option<PathBuf>,
    /// Token shards to train on: a folder, or a weighted mix of folders such as A:0.7,B:0.3
    #[arg(long, value_name = "DIR", required_unless_present = "resume")]
    pub shards: Option<String>,
    /// Generation orders: a SPEC of ao-orders, a .npy or .jsonl file, or - for stdin
    /// [default: mix:0.1*l2r+0.9*uniform]
    #[arg(long, alias = "order", value_name = "SPEC|FILE")]
    pub orders: Option<String>,
    /// Loss to minimise [default: the first one of the family]
    #[arg(long, value_name = "NAME")]
    pub objective: Option<Objective>,
    /// Run folder to write
    #[arg(long, value_name = "DIR", required_unless_present_any = ["resume", "dry_run"])]
    pub out: Option<PathBuf>,
    /// Continue this run from its latest checkpoint. Options that are not given are those of the
    /// run, except --quiet. --model, --init and --out are refused. The learning rate decays to the
    /// same step as before, even with more --steps; --decay-steps changes that
    #[arg(long, value_name = "RUN", conflicts_with = "force")]
    pub resume: Option<PathBuf>,
    /// Delete what the run folder holds
    #[arg(long)]
    pub force: bool,
    /// Print what the run would need, as a JSON record, and stop: parameters, memory, tokens, and
    /// the shortest possible time
    #[arg(long)]
    pub dry_run: bool,
    /// The size and the length of the run
    #[command(flatten)]
    #[serde(flatten)]
    pub size: SizeArgs,
    /// The optimizer
    #[command(flatten)]
    #[serde(flatten)]
    pub optimizer: OptimizerArgs,
    /// Validation
    #[command(flatten)]
    #[serde(flatten)]
    pub eval: EvalArgs,
    /// What is logged and saved
    #[command(flatten)]
    #[serde(flatten)]
    pub save: SaveArgs,
    /// Seed
    #[command(flatten)]
    #[serde(flatten)]
    pub seed: Seed,
    /// Device, precision, threads
    #[command(flatten)]
    #[serde(flatten)]
    pub compute: Compute,
    /// Silence
    #[command(flatten)]
    #[serde(flatten)]
    pub quiet: Quiet,
}

/// The size of a step and the length of the run.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct SizeArgs {
    /// Sequences per micro-batch
    #[arg(long, value_name = "B", default_value_t = 16, value_parser = positive)]
    pub batch_size: u64,
    /// Micro-batches per optimizer step. Tokens per step = B · T · A
    #[arg(long, value_name = "A", default_value_t = 1, value_parser = positive)]
    pub accumulate: u64,
    /// Optimizer steps of the run
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = parse_count)]
    pub steps: u64,
    /// Save and stop after this many tokens
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub max_tokens: Option<u64>,
    /// Save and stop after this many seconds of training
    #[arg(long, value_name = "S")]
    pub max_seconds: Option<f64>,
    /// Save and stop after this many floating-point operations. A token costs 6·N + 12·L·C·T,
    /// where N counts the matrix elements of attention, MLP and head
    #[arg(long, value_name = "N")]
    pub max_flops: Option<f64>,
    /// Read sequences in file order
    #[arg(long)]
    pub no_shuffle: bool,
}

impl SizeArgs {
    /// Sequences of the whole run; `None` where a budget may end it earlier.
    pub fn sequences(&self) -> Option<u64> {
        let budget =
            self.max_tokens.is_some() || self.max_seconds.is_some() || self.max_flops.is_some();
        let each = self.batch_size.saturating_mul(self.accumulate);
        (!budget).then(|| each.saturating_mul(self.steps))
    }
}

/// The optimizer, with the reference's values.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct OptimizerArgs {
    /// Peak learning rate
    #[arg(long, value_name = "FLOAT", default_value_t = 6e-4)]
    pub lr: f64,
    /// Learning rate after the cosine decay [default: --lr / 10]
    #[arg(long, value_name = "FLOAT")]
    pub min_lr: Option<f64>,
    /// Steps of linear warm-up, which starts at rate 0
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = parse_count)]
    pub warmup: u64,
    /// Step at which the cosine decay ends [default: --steps]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub decay_steps: Option<u64>,
    /// Weight decay of tensors with two or more dimensions
    #[arg(long, value_name = "FLOAT", default_value_t = 0.05)]
    pub weight_decay: f64,
    /// AdamW's β₁
    #[arg(long, value_name = "FLOAT", default_value_t = 0.9)]
    pub beta1: f64,
    /// AdamW's β₂
    #[arg(long, value_name = "FLOAT", default_value_t = 0.95)]
    pub beta2: f64,
    /// AdamW's ε
    #[arg(long, value_name = "FLOAT", default_value_t = 1e-8)]
    pub eps: f64,
    /// Largest norm of the whole gradient; 0 turns clipping off
    #[arg(long, value_name = "FLOAT", default_value_t = 1.0)]
    pub grad_clip: f64,
    /// Decays of the moving averages to keep, such as 0.9999 or 0.99,0.999; none keeps none
    #[arg(long, value_name = "DECAY[,DECAY…]", default_value = "0.9999")]
    pub ema: String,
    /// Use the decay β from the first update on, instead of min(β, (1+k)/(10+k)) at update k
    #[arg(long)]
    pub no_ema_warmup: bool,
    /// What the loss of a step is divided by: its scored tokens, or its sequences as the code of SEDD
    /// and RADD does. It changes what --grad-clip and --eps do
    #[arg(long, value_enum, value_name = "token|sequence", default_value_t)]
    pub loss_per: LossPer,
    /// Skip updates whose loss or gradient is not finite, up to N in a row
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip_nonfinite: u64,
}

/// What a step's loss is divided by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LossPer {
    /// The scored tokens.
    #[default]
    Token,
    /// The sequences.
    Sequence,
}

/// Steps between validations where nothing is said.
pub(super) const EVAL_EVERY: u64 = 1000;

/// Sequences of a validation where nothing is said.
pub(super) const VAL_SEQUENCES: u64 = 256;

/// Validation.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct EvalArgs {
    /// Shards to validate on
    #[arg(long, value_name = "DIR")]
    pub val_shards: Option<PathBuf>,
    /// Orders to validate along: one or several SPECs [default: the orders trained along]
    #[arg(long, value_name = "SPEC", num_args = 1.., requires = "val_shards")]
    pub val_orders: Vec<String>,
    /// Orders or masks per sequence in a validation; of a SPEC with one order, such as l2r, that one
    /// alone [default: 1 order; 4 masks]
    #[arg(long, value_name = "K", value_parser = positive, requires = "val_shards")]
    pub val_mc: Option<u64>,
    /// Steps between validations; 0 validates only at the end
    #[arg(long, value_name = "N", default_value_t = EVAL_EVERY, value_parser = parse_count)]
    pub eval_every: u64,
    /// Sequences to validate on, from the start of the shards
    #[arg(long, value_name = "N", default_value_t = VAL_SEQUENCES, value_parser = positive)]
    pub val_sequences: u64,
}

/// What is logged and saved.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct SaveArgs {
    /// Peak speed for `mfu`, in 10¹² operations a second: a number, or measure, which multiplies
    /// matrices in --dtype for half a second at the start
    #[arg(long, value_name = "X|measure")]
    pub peak_tflops: Option<PeakTflops>,
    /// Also write TensorBoard event files into this folder
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Steps between records in metrics.jsonl
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub log_every: u64,
    /// Steps between checkpoints; the last step is always saved
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = positive)]
    pub save_every: u64,
    /// Number of newest checkpoints to keep
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = positive)]
    pub keep_last: u64,
    /// Also keep every checkpoint whose step is a multiple of N; 0 turns this off
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = parse_count)]
    pub keep_every: u64,
}

fn positive(text: &str) -> Result<u64, String> {
    match parse_count(text)? {
        0 => Err("need at least 1".into()),
        n => Ok(n),
    }
}
