//! The flags of `ao-sample`, and what they come to: templates, a filter, a way to draw, requests.

use std::path::PathBuf;

use ao_core::cli::{Compute, OutputArgs, Progress, Quiet, Seed};
use ao_core::config::{Family, ModelConfig};
use ao_core::rng::{Domain, Stream};
use ao_core::tokens::Tokenizer;
use ao_core::{Error, Result};
use serde::Serialize;

use super::adaptive::AdaptiveOrder;
use super::diffusion::DiffusionSampler;
use super::filter::{Filter, TopPRule};
use super::generate::{Generator, Request, Sample};
use super::schedule::Schedule;
use super::template::{Limits, PromptOrder, Template};
use crate::model::{CheckpointArgs, Loaded};

/// The flags of `ao-sample`.
#[derive(Debug, Clone, clap::Args, Serialize)]
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
    /// model itself chooses what it is surest of [default: uniform; l2r for gpt2]
    #[arg(long, alias = "orders", value_name = "SPEC|FILE")]
    pub(super) order: Option<String>,
    /// Draft up to K tokens a pass and test them; the samples have the law of one token a step
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=1024))]
    #[arg(conflicts_with_all = ["steps", "schedule", "rejection"])]
    pub(super) speculative: Option<u64>,
    /// Draft all tokens and keep what the best of NORDERS random orders keeps, as sigma-GPT does:
    /// fast, and only near the law of one token a step [NORDERS: 5]
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

/// How the tokens of a sample are found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// In groups along a given order, each group in one pass.
    Groups,
    /// In groups that the model is surest of.
    Adaptive(AdaptiveOrder),
    /// Along a given order, drafts tested in one pass.
    Speculative(usize),
    /// Along the best of several orders.
    Rejection(usize),
}

impl Method {
    /// Draws a batch.
    ///
    /// # Errors
    /// As [`Generator::generate`].
    pub fn generate(
        self,
        generator: &mut Generator,
        requests: Vec<Request>,
    ) -> Result<Vec<Sample>> {
        match self {
            Method::Groups => generator.generate(requests),
            Method::Adaptive(order) => generator.generate_adaptive(requests, &order),
            Method::Speculative(depth) => generator.generate_speculative(requests, depth),
            Method::Rejection(orders) => generator.generate_rejection(requests, orders),
        }
    }

    /// What law a sample has whose `drawn` tokens took `steps` passes.
    pub fn law(self, drawn: usize, steps: usize) -> &'static str {
        match self {
            Method::Rejection(_) => "approximate",
            Method::Groups | Method::Adaptive(_) if steps < drawn => "factorised",
            _ => "exact",
        }
    }
}

impl SampleArgs {
    /// How samples are drawn, and the source of the given orders' SPEC.
    ///
    /// # Errors
    /// A way that the family cannot go, or a malformed adaptive order.
    pub(super) fn method(&self, config: &ModelConfig) -> Result<(Method, String)> {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let adaptive = self.order.as_deref().filter(|order| order.starts_with("adaptive"));
        let (method, flag) = match (adaptive, self.speculative, self.rejection) {
            (Some(text), None, _) => {
                let order = text.parse().map_err(|e| Error::usage(format!("--order: {e}")))?;
                (Method::Adaptive(order), "--order adaptive")
            }
            (Some(_), Some(_), _) => {
                return Err(Error::usage(
                    "--speculative: drafts need an order that is known before; give another --order",
                ));
            }
            (None, Some(depth), _) => (Method::Speculative(size(depth)), "--speculative"),
            (None, None, Some(orders)) => (Method::Rejection(size(orders)), "--rejection"),
            (None, None, None) if self.steps.is_some() => (Method::Groups, "--steps"),
            (None, None, None) => (Method::Groups, ""),
        };
        if config.family() == Family::LeftToRight && !flag.is_empty() {
            return Err(Error::usage(format!(
                "{flag}: {} predicts the next token alone, one a pass; leave it out",
                config.arch()
            )));
        }
        let order = match method {
            // These find the order themselves; it only brings the free positions here.
            Method::Adaptive(_) | Method::Rejection(_) => "l2r".to_owned(),
            _ => config.orders(self.order.as_deref(), "uniform")?,
        };
        Ok((method, order))
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

    /// Makes a template one that the family can fill: a first token where it predicts none, and
    /// for a model that reads from left to right nothing given behind a gap.
    pub(super) fn suit(
        &self,
        template: &mut Template,
        config: &ModelConfig,
        limits: Limits,
    ) -> Result<()> {
        let arch = config.arch();
        if let Some(mask) = config.mask_id()
            && template.tokens.contains(&Some(mask as u32))
        {
            return Err(Error::usage(format!(
                "--infill: id {mask} is given and is the model's mask_id; say null or ___ for a gap"
            )));
        }
        if !config.predicts_first() && template.tokens.iter().all(Option::is_none) {
            let eos = limits.tokenizer.and_then(Tokenizer::eos_id);
            let eos = eos.filter(|&id| (id as usize) < limits.vocab_used).ok_or_else(|| {
                Error::usage(format!(
                    "--prompt: {arch} does not predict its first token, and there is no end token \
                     to begin with; give a prompt"
                ))
            })?;
            template.tokens[0] = Some(eos);
        }
        if config.family() == Family::LeftToRight {
            let given = template.tokens.iter().take_while(|t| t.is_some()).count();
            let in_order = self.prompt_order != PromptOrder::Random
                && template.given.as_ref().is_none_or(|g| g.is_sorted());
            if given + template.free() < template.tokens.len() || !in_order {
                return Err(Error::usage(format!(
                    "--infill: {arch} reads from left to right, so only what follows a given \
                     beginning can be filled in"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn filter(&self, vocab_used: usize) -> Filter {
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

    /// What sample `id` starts from. Its stream gives, in this order: the order of given tokens
    /// (if random), the group sizes (if binomial), one uniform a token.
    pub(super) fn request(&self, id: u64, template: &Template, row: &[u32]) -> Request {
        let mut stream = Stream::new(self.seed.seed, Domain::Sample, id);
        let (order, given) = template.arrange(row, self.prompt_order, &mut stream);
        let free = order.len() - given.len();
        let steps = self.steps.and_then(|s| usize::try_from(s).ok()).unwrap_or(usize::MAX);
        // A binomial law has a number of steps of its own, else more than one a token is idle.
        let steps = if self.steps.is_none() { free } else { steps };
        let groups = self.schedule.groups(free, steps, &mut stream);
        Request { order, given, groups, stream }
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
