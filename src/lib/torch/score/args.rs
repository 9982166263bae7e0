//! The flags of `ao-score`.

use std::path::PathBuf;

use ao_core::Result;
use ao_core::cli::{Compute, Input, OutputArgs, Quiet, RunRecord, Seed};
use ao_core::process::Objective;
use ao_core::score::{Cluster, Protocol, SpanSpec};
use clap::ArgGroup;
use serde::Serialize;

use crate::device::Runtime;
use crate::network::{CheckpointArgs, Loaded};

/// What says how a model scores, which --compare and --merge have no use for.
const SCORING: [&str; 14] = [
    "model_config",
    "weights",
    "orders",
    "elbo",
    "mc",
    "ensemble",
    "masks",
    "cloze",
    "target_se",
    "per_token",
    "skip",
    "max_sequences",
    "raw_u16",
    "tokenizer",
];

/// The options of `ao-score`.
#[derive(Debug, Clone, clap::Args, Serialize)]
#[command(group(ArgGroup::new("subject").required(true).args(["ckpt", "ref", "compare", "merge"])))]
pub struct ScoreArgs {
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub checkpoint: CheckpointArgs,
    /// Token shards to score: a folder, one shard, or a raw file with --raw-u16
    #[arg(long, value_name = "DIR|FILE", required_unless_present_any = ["compare", "merge", "ref"])]
    pub shards: Option<PathBuf>,
    /// Score samples with this model instead of shards (generative perplexity)
    #[arg(long, value_name = "FILE|RUN|NAME", conflicts_with_all = ["ckpt", "shards", "orders", "mc", "ensemble", "resume"])]
    #[arg(conflicts_with_all = ["elbo", "masks", "cloze", "target_se", "per_token"])]
    #[arg(conflicts_with_all = ["skip", "max_sequences", "raw_u16"])]
    pub r#ref: Option<PathBuf>,
    /// With --ref: sedd takes the samples' own tokens and averages their perplexities; mdlm
    /// tokenizes their text again and pools all tokens but repeated ends of text; mdlm-first pools
    /// those up to the first end
    #[arg(long, value_name = "sedd|mdlm|mdlm-first", default_value = "sedd", requires = "ref")]
    pub protocol: Protocol,
    /// With --ref: the samples, JSON lines with `tokens` or `text`
    #[arg(value_name = "FILE|-", requires = "ref")]
    pub samples: Option<PathBuf>,
    /// Generation orders: a SPEC of ao-orders, an .npy or .jsonl file, or - for stdin
    /// [default: uniform; l2r for gpt2; none for encoders, see --elbo]
    #[arg(long, alias = "order", value_name = "SPEC|FILE|-")]
    pub orders: Option<String>,
    /// For encoders (radd, mdlm, sedd): estimate the ELBO with --mc random masks per sequence.
    /// Without --orders this is the default. With --orders, one pass per token gives the NLL along
    /// the order
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, default_missing_value = "auto")]
    pub elbo: Option<Elbo>,
    /// Orders per sequence, or masks per sequence with --elbo. Sequence s uses rows s·K to s·K+K−1
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub mc: u32,
    /// Average the probability of each token over M orderings of its context
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ensemble: u32,
    /// Also report the ensembles of 1, 2, 4, … orderings
    #[arg(long, requires = "ensemble")]
    pub ensemble_curve: bool,
    /// With --ensemble: read the orderings from a file instead of drawing them. Line s is for
    /// sequence s
    #[arg(long, value_name = "FILE.jsonl", requires = "ensemble", conflicts_with_all = ["mc", "positions", "target_se"])]
    pub ensemble_orders: Option<PathBuf>,
    /// With --elbo: read the masks from a file instead of drawing them, --mc lines per sequence.
    /// A line is `{"masked":[3,0],"level":0.4}`; level is t or λ, and --elbo k has none
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["orders", "cloze", "target_se"])]
    pub masks: Option<PathBuf>,
    /// With --ensemble: score only K random positions of each sequence, as an estimate for all
    #[arg(long, value_name = "K", requires = "ensemble", value_parser = clap::value_parser!(u32).range(1..))]
    pub positions: Option<u32>,
    /// Score held-out spans given the rest of the sequence. The spans are the same for all models
    #[arg(long, value_name = "spans:COUNTxLENGTH", conflicts_with_all = ["orders", "mc", "ensemble", "target_se"])]
    pub cloze: Option<SpanSpec>,
    /// With --cloze: the context of a held-out token [default: both; left for gpt2]
    #[arg(long, value_name = "both|left", requires = "cloze")]
    pub conditioning: Option<Conditioned>,
    /// Stop when the standard error is at most X nats per token. --target-by says which error
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
    /// Number of sequences to skip first
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip: u64,
    /// Largest number of sequences to score [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_sequences: Option<u64>,
    /// Sequences per forward pass. Changes only speed and memory
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: u32,
    /// The shard is a raw file of u16 tokens without a header
    #[arg(long)]
    pub raw_u16: bool,
    /// Tokenizer for bits per byte [default: the shards', else the checkpoint's]
    #[arg(long, value_name = "gpt2|FILE")]
    pub tokenizer: Option<String>,
    /// Continue an interrupted run: append to the file that it wrote
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["output", "force"])]
    pub resume: Option<PathBuf>,
    /// Compare two files of scores sequence by sequence, and stop. No model is loaded
    #[arg(long, value_name = "FILE", num_args = 2, conflicts_with_all = ["ckpt", "shards", "ref", "merge", "resume"])]
    #[arg(conflicts_with_all = SCORING)]
    pub compare: Vec<PathBuf>,
    /// Join the parts of one evaluation that --skip and --max-sequences split, and stop
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["ckpt", "shards", "ref", "resume"])]
    #[arg(conflicts_with_all = SCORING)]
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

impl ScoreArgs {
    /// What made the output: the options, and the hashes of the model, of its config and of `more`.
    ///
    /// # Errors
    /// When the config cannot be read.
    pub(super) fn run_record(
        &self,
        runtime: &Runtime,
        loaded: &Loaded,
        more: Vec<Input>,
    ) -> Result<RunRecord> {
        let mut inputs = loaded.inputs.clone();
        inputs.extend(more);
        if let Some(path) = &self.checkpoint.model_config {
            inputs.push(Input::of_file(path)?);
        }
        Ok(RunRecord {
            tool: "ao-score",
            config: serde_json::to_value(self).unwrap_or_default(),
            seed: Some(self.seed.seed),
            device: Some(runtime.device_name()),
            inputs,
        })
    }
}

/// The context of a held-out token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Conditioned {
    /// All tokens that are not held out, and the held-out ones before it.
    Both,
    /// All tokens before it.
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

/// The value of `--elbo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Elbo {
    /// k, or for SEDD score-entropy
    Auto,
    /// t-DCE over the whole of the time, a bound
    #[value(alias = "t-dce")]
    T,
    /// t-DCE as published: t uniform from 0.001, weight 1/t. No bound: it leaves out both ends of t
    #[value(name = "t:published", alias = "t-dce:published")]
    #[serde(rename = "t:published")]
    TPublished,
    /// λ-DCE: each token masked with probability λ, weight 1/λ
    #[value(alias = "lambda-dce")]
    Lambda,
    /// k-DCE: k tokens masked, weight n/k. It has the smallest variance
    #[value(alias = "k-dce")]
    K,
    /// SEDD's score entropy over the whole of the time, a bound
    ScoreEntropy,
    /// SEDD's score entropy as published, which leaves out both ends of t
    #[value(name = "score-entropy:published")]
    #[serde(rename = "score-entropy:published")]
    ScoreEntropyPublished,
}

impl Elbo {
    /// The objective that it names; `None` for the family's own.
    pub fn objective(self) -> Option<Objective> {
        match self {
            Elbo::Auto => None,
            Elbo::T | Elbo::TPublished => Some(Objective::TDce),
            Elbo::Lambda => Some(Objective::LambdaDce),
            Elbo::K => Some(Objective::KDce),
            Elbo::ScoreEntropy | Elbo::ScoreEntropyPublished => Some(Objective::ScoreEntropy),
        }
    }

    /// Whether it is asked for as published.
    pub fn published(self) -> bool {
        matches!(self, Elbo::TPublished | Elbo::ScoreEntropyPublished)
    }
}

fn parse_error(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x.is_finite() => Ok(x),
        _ => Err("need a number of nats per token above 0".into()),
    }
}
