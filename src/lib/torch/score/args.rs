//! What `ao-score` can be told.

use std::path::PathBuf;

use ao_core::Result;
use ao_core::cli::{Compute, Input, OutputArgs, Quiet, RunRecord, Seed};
use ao_core::score::{Cluster, Protocol, SpanSpec};
use serde::Serialize;

use super::encoder::Elbo;
use crate::device::Place;
use crate::model::{CheckpointArgs, Loaded, WeightsChoice};

/// The options of `ao-score`.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct ScoreArgs {
    /// A .st file, a run folder (its latest step), or a published model: a .pt file, a Hugging
    /// Face folder, hf:OWNER/NAME
    #[arg(long, value_name = "FILE|RUN|NAME", required_unless_present_any = ["compare", "merge", "ref"])]
    pub ckpt: Option<PathBuf>,
    /// Model config for a safetensors file that carries none
    #[arg(long, value_name = "FILE.json")]
    pub model_config: Option<PathBuf>,
    /// Which weights of a run folder or .pt file [default: the EMA of the longest memory, else raw]
    #[arg(long, value_name = "raw|ema|ema:DECAY")]
    pub weights: Option<WeightsChoice>,
    /// Token shards: a folder, one shard, or a raw file with --raw-u16
    #[arg(long, value_name = "DIR|FILE", required_unless_present_any = ["compare", "merge", "ref"])]
    pub shards: Option<PathBuf>,
    /// Judge samples with this model (generative perplexity) instead of scoring shards
    #[arg(long, value_name = "FILE|RUN|NAME", conflicts_with_all = ["ckpt", "shards", "orders", "mc", "ensemble", "resume"])]
    pub r#ref: Option<PathBuf>,
    /// With --ref: sedd takes the samples' own tokens and averages their perplexities; mdlm
    /// tokenizes their text again and pools all tokens but repeated ends of text; mdlm-first pools
    /// those up to the first end
    #[arg(long, value_name = "sedd|mdlm|mdlm-first", default_value = "sedd", requires = "ref")]
    pub protocol: Protocol,
    /// With --ref: samples as JSON lines with `tokens` or `text`
    #[arg(value_name = "FILE|-", requires = "ref")]
    pub samples: Option<PathBuf>,
    /// Generation orders: a SPEC, an .npy or .jsonl file, or - [default: uniform; l2r for gpt2;
    /// none for encoders, see --elbo]
    #[arg(long, alias = "order", value_name = "SPEC|FILE|-")]
    pub orders: Option<String>,
    /// Encoders (radd, mdlm, sedd): score by random masks, --mc draws of them a sequence, rather
    /// than by a pass for each token along --orders [default where there are no --orders]
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, default_missing_value = "auto")]
    pub elbo: Option<Elbo>,
    /// Orders (or draws of masks) per sequence; sequence s takes rows s·K to s·K+K−1
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub mc: u32,
    /// Average the probability of each token over M orderings of its context, the given one first
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ensemble: u32,
    /// Report ensembles of 1, 2, 4, … M orderings in one run
    #[arg(long, requires = "ensemble")]
    pub ensemble_curve: bool,
    /// With --ensemble: the orderings, instead of drawn ones; line s holds those of sequence s
    #[arg(long, value_name = "FILE.jsonl", requires = "ensemble", conflicts_with_all = ["mc", "positions", "target_se"])]
    pub ensemble_orders: Option<PathBuf>,
    /// The masks of an encoder's bound, instead of drawn ones: {"masked":[3,0],"level":0.4} a line,
    /// --mc lines a sequence; level is t or λ, and --elbo k has none
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["orders", "cloze", "target_se"])]
    pub masks: Option<PathBuf>,
    /// With --ensemble: score K random positions of each sequence, which stand for all
    #[arg(long, value_name = "K", requires = "ensemble", value_parser = clap::value_parser!(u32).range(1..))]
    pub positions: Option<u32>,
    /// Score held-out spans given the rest, instead of whole sequences; the same ones for all models
    #[arg(long, value_name = "spans:COUNTxLENGTH", conflicts_with_all = ["orders", "mc", "ensemble", "target_se"])]
    pub cloze: Option<SpanSpec>,
    /// With --cloze: what a held-out token is given [default: both; left for gpt2]
    #[arg(long, value_name = "both|left", requires = "cloze")]
    pub conditioning: Option<Conditioned>,
    /// Go on until this standard error, nats per token, is reached (--target-by says of what)
    #[arg(long, value_name = "X", value_parser = parse_error)]
    pub target_se: Option<f64>,
    /// orders: score all sequences, adding orders up to --mc (64 if that is 1), until the order
    /// noise is below; sequences: add sequences until the whole error is
    #[arg(long, value_name = "WHAT", default_value = "orders", requires = "target_se")]
    pub target_by: TargetBy,
    /// What counts as independent in standard errors [default: document where the shards tell at
    /// least 20 of them apart, else block]; with --compare and --merge too
    #[arg(long, value_name = "document|block", conflicts_with = "ref")]
    pub cluster: Option<Cluster>,
    /// Add each token's NLL to the records, in generation order
    #[arg(long)]
    pub per_token: bool,
    /// Sequences to pass over first
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip: u64,
    /// Sequences to score at most [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_sequences: Option<u64>,
    /// Sequences a forward pass; changes speed and memory only
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: u32,
    /// The shard is a raw file of u16 tokens without a header
    #[arg(long)]
    pub raw_u16: bool,
    /// Tokenizer for bits per byte [default: the shards', else the checkpoint's]
    #[arg(long, value_name = "gpt2|FILE")]
    pub tokenizer: Option<String>,
    /// Append to this file, going on with what an interrupted run wrote into it
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["output", "force"])]
    pub resume: Option<PathBuf>,
    /// Compare two files of scores by sequence, and stop; no model is read
    #[arg(long, value_name = "FILE", num_args = 2, conflicts_with_all = ["ckpt", "shards", "ref", "merge", "resume"])]
    pub compare: Vec<PathBuf>,
    /// Join the parts of one evaluation, cut by --skip and --max-sequences, and stop
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["ckpt", "shards", "ref", "resume"])]
    pub merge: Vec<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub seed: Seed,
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub compute: Compute,
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub quiet: Quiet,
}

/// What a held-out token is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Conditioned {
    /// All that is not held out, and the held-out tokens before it.
    Both,
    /// All that stands before it.
    Left,
}

/// What `--target-se` adds until the standard error is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TargetBy {
    /// Orders of every sequence; the error is `std_error_orders`.
    Orders,
    /// Sequences in file order; the error is `std_error`.
    Sequences,
}

impl std::fmt::Display for TargetBy {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            TargetBy::Orders => "orders",
            TargetBy::Sequences => "sequences",
        })
    }
}

impl ScoreArgs {
    /// Which weights to read.
    pub fn checkpoint(&self) -> CheckpointArgs {
        CheckpointArgs {
            // Clap has seen to it that it is there where a model is needed.
            ckpt: self.ckpt.clone().or_else(|| self.r#ref.clone()).unwrap_or_default(),
            model_config: self.model_config.clone(),
            weights: self.weights.clone(),
        }
    }

    /// What made the output: the options, and the hashes of the model, of its config and of `more`.
    ///
    /// # Errors
    /// When the config cannot be read.
    pub(super) fn run_record(
        &self,
        place: &Place,
        loaded: &Loaded,
        more: Vec<Input>,
    ) -> Result<RunRecord> {
        let mut inputs = loaded.inputs.clone();
        inputs.extend(more);
        if let Some(path) = &self.model_config {
            inputs.push(Input::of_file(path)?);
        }
        Ok(RunRecord {
            tool: "ao-score",
            config: serde_json::to_value(self).unwrap_or_default(),
            seed: Some(self.seed.seed),
            device: Some(place.device_name()),
            inputs,
        })
    }
}

fn parse_error(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x.is_finite() => Ok(x),
        _ => Err("need a number of nats per token above 0".into()),
    }
}
