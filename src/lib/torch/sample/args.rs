//! The flags of `ao-sample`, and what they come to.

use std::path::PathBuf;

use ao_core::cli::{Compute, OutputArgs, Progress, Quiet, Seed, refuse};
use ao_core::process::Masks;
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
    /// Number of samples; with --infill, per template
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) n: u64,
    /// Steps per sample. With fewer steps than tokens, each step draws a group of tokens
    /// independently of each other. With --sampler tweedie, the number of times t [default: one step
    /// per token, which is exact]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: Option<u64>,
    /// Rule for the number of tokens that each of --steps reveals [default: linear]
    #[arg(long, value_enum)]
    pub(super) schedule: Option<Schedule>,
    /// Generation order: a SPEC of ao-orders, a .npy or .jsonl file, or - for stdin. Sample i uses
    /// row i. adaptive:top-prob, adaptive:margin and adaptive:entropy reveal the positions of which
    /// the model is most confident; :window=W limits them to the first W free positions
    /// [default: uniform; l2r for gpt2]
    #[arg(long, alias = "orders", value_name = "SPEC|FILE")]
    pub(super) order: Option<String>,
    /// Speculative decoding: draft up to K tokens per pass and test them. The distribution is that
    /// of one token per step
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=1024))]
    #[arg(conflicts_with_all = ["steps", "schedule", "rejection"])]
    pub(super) speculative: Option<u64>,
    /// sigma-GPT's rejection sampler: draft all free tokens, test them along NORDERS random orders,
    /// keep the longest accepted prefix. Fast, but only close to the distribution of one token per
    /// step [default NORDERS: 5]
    #[arg(long, value_name = "NORDERS", num_args = 0..=1, default_missing_value = "5")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    #[arg(conflicts_with_all = ["steps", "schedule", "order"])]
    pub(super) rejection: Option<u64>,
    /// For encoders (radd, mdlm, sedd): how masks are replaced by tokens [default: ordered with
    /// --order, else tweedie]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(super) sampler: Option<DiffusionSampler>,
    /// Sampling temperature: divides the logits. 0 takes the most likely token
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(super) temperature: f64,
    /// Draw from the K most likely tokens. 0 turns this off
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(super) top_k: usize,
    /// Draw from the most likely tokens that together have probability P. 1 turns this off
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub(super) top_p: f64,
    /// Whether --top-p keeps the token that crosses P: smallest keeps it, published drops it as the
    /// AO-GPT code does
    #[arg(long, value_enum, default_value_t)]
    pub(super) top_p_rule: TopPRule,
    /// Draw from tokens at least P times as likely as the most likely one. 0 turns this off
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(super) min_p: f64,
    /// Make tokens that the sample already has less likely. 1 turns this off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(super) repetition_penalty: f64,
    /// Token ids that are never drawn
    #[arg(long, value_name = "ID,ID", value_delimiter = ',')]
    pub(super) ban: Vec<u32>,
    /// Tokens per sample, prompt included [default: the model's block size]
    #[arg(long, value_name = "T", conflicts_with = "infill")]
    pub(super) length: Option<usize>,
    /// Text at the start of every sample
    #[arg(long, value_name = "TEXT", conflicts_with = "infill")]
    pub(super) prompt: Option<String>,
    /// Templates to fill in, one JSON object per line, such as {"text":"The ___ sat"} or
    /// {"tokens":[5,null,7]}; - is stdin
    #[arg(long, value_name = "FILE")]
    pub(super) infill: Option<PathBuf>,
    /// Order in which the model reads the given tokens
    #[arg(long, value_enum, default_value_t)]
    pub(super) prompt_order: PromptOrder,
    /// Record the K most likely tokens at every drawn position
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(super) top_k_candidates: usize,
    /// gpt2 or a tokenizer.json [default: the tokenizer.json beside the checkpoint]
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) tokenizer: Option<String>,
    /// Cut the text of a sample before its first end-of-document token. Its tokens are not cut
    #[arg(long)]
    pub(super) stop_at_eos: bool,
    /// Samples drawn together. The samples do not depend on it
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
    /// How samples are drawn, of `vocab_used` real ids, by a model with `masks` or without.
    ///
    /// # Errors
    /// Malformed values.
    pub(super) fn settings(
        &self,
        vocab_used: usize,
        masks: Option<Masks>,
    ) -> Result<SampleSettings> {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let adaptive = self.order.as_deref().filter(|order| order.starts_with("adaptive"));
        let adaptive = adaptive.map(str::parse).transpose();
        let adaptive = adaptive.map_err(|e| Error::usage(format!("--order: {e}")))?;
        let speculative = self.speculative.map(|depth| Drafts::Speculative(size(depth)));
        let rejection = self.rejection.map(|orders| Drafts::Rejection(size(orders)));
        let filter = self.filter(vocab_used);
        if let Some(id) = filter.banned.last().filter(|&&id| id as usize >= vocab_used) {
            return Err(Error::usage(format!(
                "--ban {id}: the ids are 0 to {}; leave it out",
                vocab_used.saturating_sub(1)
            )));
        }
        // A mask is never drawn either.
        let mut never = filter.clone();
        never.banned.extend(masks.map(|masks| masks.id as u32));
        never.banned.sort_unstable();
        never.check()?;
        Ok(SampleSettings {
            order: self.order.clone().filter(|_| adaptive.is_none()),
            adaptive,
            drafts: speculative.or(rejection),
            sampler: self.sampler,
            steps: self.steps.map(size),
            schedule: self.schedule.unwrap_or_default(),
            prompt_order: self.prompt_order,
            filter,
            candidates: self.top_k_candidates,
        })
    }

    /// Refuses flags that change nothing beside the others: for a model whose sampler has the name
    /// given, and its tokenizer.
    ///
    /// # Errors
    /// One line that names the flag.
    pub(super) fn check_effects(
        &self,
        sampler: Option<&str>,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<()> {
        let filtered = self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0;
        let given = self.prompt.is_some() || self.infill.is_some();
        let scheduled = self.schedule.is_some();
        refuse(&[
            (
                scheduled && sampler == Some("first-hitting"),
                "--schedule: --sampler first-hitting draws the time of each token; leave it out",
            ),
            (
                scheduled && self.steps.is_none() && sampler != Some("tweedie"),
                "--schedule: without --steps a step reveals one token; give --steps too",
            ),
            (
                self.temperature == 0.0 && filtered,
                "--temperature 0 takes the most likely token; leave out --top-k, --top-p, --min-p",
            ),
            (
                self.top_p_rule == TopPRule::Published && self.top_p >= 1.0,
                "--top-p-rule: without --top-p all tokens stay; give --top-p too",
            ),
            (
                self.prompt_order != PromptOrder::default() && !given,
                "--prompt-order: no tokens are given; give --prompt or --infill too",
            ),
            (
                self.stop_at_eos && tokenizer.is_none_or(|t| t.eos_id().is_none()),
                "--stop-at-eos: no end-of-document token is known; give --tokenizer",
            ),
        ])
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
        let schedule = self.schedule.unwrap_or_default();
        let counted = matches!(schedule, Schedule::Linear | Schedule::Cosine);
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
