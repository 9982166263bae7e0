//! The flags of `ao-sample`, and what they come to.

use std::path::PathBuf;

use ao_core::cli::{Compute, OutputArgs, Progress, Quiet, Seed};
use ao_core::tokens::Tokenizer;
use ao_core::{Error, Result};
use clap::ArgGroup;
use serde::Serialize;

use crate::decode::SampleSettings;
use crate::decode::filter::{Filter, TopPRule};
use crate::decode::schedule::Schedule;
use crate::decode::settings::{DiffusionSampler, Drafts};
use crate::decode::template::{Limits, PromptOrder, Template};
use crate::network::{CheckpointArgs, Loaded};

/// The flags of `ao-sample`.
#[derive(Debug, Clone, clap::Args, Serialize)]
#[command(group(ArgGroup::new("model").required(true).args(["ckpt"])))]
pub struct SampleArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) checkpoint: CheckpointArgs,
    /// Samples to draw; with --infill, of each template
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) n: u64,
    /// Forward passes of a sample [default: one a token, which is exact; fewer draw groups of
    /// tokens independently of each other]; with --sampler tweedie the number of times
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: Option<u64>,
    /// How many tokens each step reveals
    #[arg(long, value_enum, default_value_t)]
    pub(super) schedule: Schedule,
    /// Order of the drawn positions: a SPEC, a .npy or .jsonl file, or - ; sample i takes row i.
    /// Or adaptive:top-prob, adaptive:margin, adaptive:entropy, each with :window=W if wanted: the
    /// model itself chooses what it is most confident of [default: uniform; l2r for gpt2]
    #[arg(long, alias = "orders", value_name = "SPEC|FILE")]
    pub(super) order: Option<String>,
    /// Draft up to K tokens a pass and test them; the samples have the distribution of one token a step
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=1024))]
    #[arg(conflicts_with_all = ["steps", "schedule", "rejection"])]
    pub(super) speculative: Option<u64>,
    /// Draft all tokens and keep what the best of NORDERS random orders keeps, as sigma-GPT does:
    /// fast, and only near the distribution of one token a step [NORDERS: 5]
    #[arg(long, value_name = "NORDERS", num_args = 0..=1, default_missing_value = "5")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    #[arg(conflicts_with_all = ["steps", "schedule", "order"])]
    pub(super) rejection: Option<u64>,
    /// Encoders (radd, mdlm, sedd): how masks are taken away [default: ordered where --order is
    /// given, else tweedie with --steps T]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(super) sampler: Option<DiffusionSampler>,
    /// Divides the logits; 0 takes the likeliest token
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(super) temperature: f64,
    /// Draw from the K likeliest tokens; 0 is off
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(super) top_k: usize,
    /// Draw from the likeliest tokens that hold this probability; 1 is off
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub(super) top_p: f64,
    /// smallest keeps the token that crosses P; published drops it, as the paper's code does
    #[arg(long, value_enum, default_value_t)]
    pub(super) top_p_rule: TopPRule,
    /// Draw from tokens at least P times as likely as the likeliest; 0 is off
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(super) min_p: f64,
    /// Makes tokens that are already there less likely; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(super) repetition_penalty: f64,
    /// Ids that are never drawn
    #[arg(long, value_name = "ID,ID", value_delimiter = ',')]
    pub(super) ban: Vec<u32>,
    /// Tokens of a sample, prompt included [default: the model's block size]
    #[arg(long, value_name = "T", conflicts_with = "infill")]
    pub(super) length: Option<usize>,
    /// Text that every sample begins with
    #[arg(long, value_name = "TEXT", conflicts_with = "infill")]
    pub(super) prompt: Option<String>,
    /// Templates to fill in, one {"text":"The ___ sat"} or {"tokens":[5,null,7]} a line; - is stdin
    #[arg(long, value_name = "FILE")]
    pub(super) infill: Option<PathBuf>,
    /// In which order given tokens are read
    #[arg(long, value_enum, default_value_t)]
    pub(super) prompt_order: PromptOrder,
    /// Record the K likeliest tokens of every drawn position
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(super) top_k_candidates: usize,
    /// gpt2 or a tokenizer.json [default: the one beside the checkpoint]
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) tokenizer: Option<String>,
    /// End a sample's text before its first end-of-document token; its tokens stay whole
    #[arg(long)]
    pub(super) stop_at_eos: bool,
    /// Samples drawn together; the result does not depend on it
    #[arg(long, value_name = "B", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(super) batch_size: u64,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) seed: Seed,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) compute: Compute,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) quiet: Quiet,
}

impl SampleArgs {
    /// How samples are drawn, of `vocab_used` real ids.
    ///
    /// # Errors
    /// Malformed values.
    pub(super) fn settings(&self, vocab_used: usize) -> Result<SampleSettings> {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let adaptive = self.order.as_deref().filter(|order| order.starts_with("adaptive"));
        let adaptive = adaptive.map(str::parse).transpose();
        let adaptive = adaptive.map_err(|e| Error::usage(format!("--order: {e}")))?;
        let speculative = self.speculative.map(|depth| Drafts::Speculative(size(depth)));
        let rejection = self.rejection.map(|orders| Drafts::Rejection(size(orders)));
        let filter = self.filter(vocab_used);
        filter.check()?;
        Ok(SampleSettings {
            order: self.order.clone().filter(|_| adaptive.is_none()),
            adaptive,
            drafts: speculative.or(rejection),
            sampler: self.sampler,
            steps: self.steps.map(size),
            schedule: self.schedule,
            prompt_order: self.prompt_order,
            filter,
            candidates: self.top_k_candidates,
        })
    }

    pub(super) fn find_tokenizer(&self, loaded: &Loaded) -> Result<Option<Tokenizer>> {
        match (&self.tokenizer, &loaded.tokenizer) {
            (Some(name), _) => Tokenizer::load(name).map(Some),
            (None, Some(path)) => Tokenizer::load(&path.to_string_lossy()).map(Some),
            (None, None) => Ok(None),
        }
    }

    pub(super) fn templates(&self, limits: Limits) -> Result<Vec<Template>> {
        if let Some(path) = &self.infill {
            return Template::read_all(path, limits);
        }
        let length = self.length.unwrap_or(limits.block_size);
        if length == 0 || length > limits.block_size {
            return Err(Error::usage(format!(
                "--length {length}: must be 1 to the model's {}",
                limits.block_size
            )));
        }
        let text = self.prompt.as_deref().unwrap_or_default();
        let ids = match (limits.tokenizer, text) {
            (_, "") => Vec::new(),
            (Some(tokenizer), _) => tokenizer.encode(text)?,
            (None, _) => {
                return Err(Error::usage(
                    "--prompt: no tokenizer.json lies beside the checkpoint; give --tokenizer",
                ));
            }
        };
        Ok(vec![Template::prompt(&ids, length, limits)?])
    }

    fn filter(&self, vocab_used: usize) -> Filter {
        let mut banned = self.ban.clone();
        banned.sort_unstable();
        banned.dedup();
        Filter {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            top_p_rule: self.top_p_rule,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            banned,
            vocab_used,
        }
    }

    pub(super) fn warn_of_steps(&self, templates: &[Template], progress: &Progress) {
        let counted = matches!(self.schedule, Schedule::Linear | Schedule::Cosine);
        let free = templates.iter().map(Template::free).min().unwrap_or(0);
        if let Some(steps) = self.steps.filter(|&s| counted && s > free as u64)
            && !self.quiet.quiet
        {
            progress.say(&format!(
                "ao-sample: --steps {steps} is more than the {free} free positions; one token a step"
            ));
        }
    }
}
