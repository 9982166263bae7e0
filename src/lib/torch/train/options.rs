//! The flags of `ao-train`.

use std::path::PathBuf;

use ao_core::cli::{Compute, Quiet, Seed, parse_count};
use ao_core::process::Objective;
use serde::Serialize;

use super::flops::PeakTflops;

/// What is trained, on what, and for how long.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct TrainArgs {
    /// Model config, a JSON object
    #[arg(long, value_name = "FILE.json", required_unless_present_any = ["init", "resume"])]
    pub model: Option<PathBuf>,
    /// Start from these weights, with a new optimizer (fine-tuning)
    #[arg(long, value_name = "FILE.st")]
    pub init: Option<PathBuf>,
    /// Token shards: a folder, or A:0.7,B:0.3
    #[arg(long, value_name = "DIR", required_unless_present = "resume")]
    pub shards: Option<String>,
    /// Generation orders: a SPEC, a .npy or .jsonl file, or - [default: mix:0.1*l2r+0.9*uniform]
    #[arg(long, alias = "order", value_name = "SPEC|FILE")]
    pub orders: Option<String>,
    /// What is minimised [default: the family's own]
    #[arg(long, value_name = "NAME")]
    pub objective: Option<Objective>,
    /// Run folder
    #[arg(long, value_name = "DIR", required_unless_present_any = ["resume", "dry_run"])]
    pub out: Option<PathBuf>,
    /// Go on from this run's latest checkpoint, with its options where none are given
    #[arg(long, value_name = "RUN", conflicts_with_all = ["init", "force"])]
    pub resume: Option<PathBuf>,
    /// Throw away what the run folder holds
    #[arg(long)]
    pub force: bool,
    /// Print what would be run (parameters, memory, tokens, a least time by one measured matrix
    /// product), as a record on stdout, and stop
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
    /// Sequences of a micro-batch
    #[arg(long, value_name = "B", default_value_t = 16, value_parser = positive)]
    pub batch_size: u64,
    /// Micro-batches of a step; tokens a step = B · T · A
    #[arg(long, value_name = "A", default_value_t = 1, value_parser = positive)]
    pub accumulate: u64,
    /// Optimizer steps of the run
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = parse_count)]
    pub steps: u64,
    /// Stop, and save, once this many tokens were trained on
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub max_tokens: Option<u64>,
    /// Stop, and save, after this many seconds of training
    #[arg(long, value_name = "S")]
    pub max_seconds: Option<f64>,
    /// Stop, and save, once this many floating-point operations were spent; a token costs
    /// 6·N + 12·L·C·T, N being the elements of the matrices of attention, MLP and head
    #[arg(long, value_name = "N")]
    pub max_flops: Option<f64>,
    /// Take sequences in file order
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
    /// Learning rate after --decay-steps [default: a tenth of --lr]
    #[arg(long, value_name = "FLOAT")]
    pub min_lr: Option<f64>,
    /// Steps of linear warm-up; the first step's rate is 0
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = parse_count)]
    pub warmup: u64,
    /// Step at which the cosine ends [default: --steps]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub decay_steps: Option<u64>,
    /// Weight decay of tensors of two and more dimensions
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
    /// Largest norm of all gradients together; 0 for none
    #[arg(long, value_name = "FLOAT", default_value_t = 1.0)]
    pub grad_clip: f64,
    /// Decays of the moving averages to keep, as 0.9999 or 0.99,0.999; none for none
    #[arg(long, value_name = "DECAY[,DECAY…]", default_value = "0.9999")]
    pub ema: String,
    /// Do not warm the decays up as min(β, (1+k)/(10+k))
    #[arg(long)]
    pub no_ema_warmup: bool,
    /// What the loss is divided by, before clipping and AdamW's ε: the scored tokens of the step, or
    /// its sequences (SEDD and RADD add the loss up over a sequence)
    #[arg(long, value_enum, value_name = "token|sequence", default_value_t)]
    pub loss_per: LossPer,
    /// Leave out up to N updates in a row whose loss or gradient is not finite
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

/// Validation.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct EvalArgs {
    /// Shards to validate on
    #[arg(long, value_name = "DIR")]
    pub val_shards: Option<PathBuf>,
    /// Orders to validate along, several SPECs one after the other [default: those trained along]
    #[arg(long, value_name = "SPEC", num_args = 1.., requires = "val_shards")]
    pub val_orders: Vec<String>,
    /// Orders (or draws of masks) a sequence in a validation [default: 1; 4 draws of masks]
    #[arg(long, value_name = "K", value_parser = positive, requires = "val_shards")]
    pub val_mc: Option<u64>,
    /// Steps between validations; 0 for none but at the end
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = parse_count)]
    pub eval_every: u64,
    /// Sequences of a validation, from the start of the shards
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub val_sequences: u64,
}

/// What is logged and saved.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct SaveArgs {
    /// 10¹² operations a second that mfu is a share of: a number, or measure, which multiplies
    /// matrices of --dtype for half a second at the start
    #[arg(long, value_name = "X|measure")]
    pub peak_tflops: Option<PeakTflops>,
    /// Also write TensorBoard event files into this folder
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Steps between records of metrics.jsonl
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub log_every: u64,
    /// Steps between checkpoints; the last step is always saved
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = positive)]
    pub save_every: u64,
    /// Checkpoints to keep, the newest ones
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = positive)]
    pub keep_last: u64,
    /// Also keep each checkpoint whose step is a multiple of N; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = parse_count)]
    pub keep_every: u64,
}

fn positive(text: &str) -> Result<u64, String> {
    match parse_count(text)? {
        0 => Err("need at least 1".into()),
        n => Ok(n),
    }
}
