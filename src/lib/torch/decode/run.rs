//! `ao-sample`: from arguments to records.

use std::path::PathBuf;
use std::time::Instant;

use ao_core::cli::{Compute, Input, OutputArgs, Progress, Quiet, RunRecord, Seed, Sink};
use ao_core::config::{Family, ModelConfig};
use ao_core::format::jsonl;
use ao_core::orders::OrderSource;
use ao_core::rng::{Domain, Stream};
use ao_core::tokens::Tokenizer;
use ao_core::{Error, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::filter::{DRAW, Filter, TopPRule};
use super::generate::{Generator, Request, Sample};
use super::schedule::Schedule;
use super::template::{Limits, PromptOrder, Template};
use crate::device::Place;
use crate::model::{CheckpointArgs, Loaded};

/// The flags of `ao-sample`.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct SampleArgs {
    #[command(flatten)]
    #[serde(flatten)]
    checkpoint: CheckpointArgs,
    /// Samples to draw; with --infill, of each template
    #[arg(long, value_name = "N", default_value_t = 1)]
    n: u64,
    /// Forward passes of a sample [default: one a token, which is exact; fewer draw groups of
    /// tokens independently of each other]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// How many tokens each step reveals
    #[arg(long, value_enum, default_value_t)]
    schedule: Schedule,
    /// Order of the drawn positions: a SPEC, a .npy or .jsonl file, or - ; sample i takes row i
    /// [default: uniform; l2r for gpt2]
    #[arg(long, alias = "orders", value_name = "SPEC|FILE")]
    order: Option<String>,
    /// Divides the logits; 0 takes the likeliest token
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    temperature: f64,
    /// Draw from the K likeliest tokens; 0 is off
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Draw from the likeliest tokens that hold this probability; 1 is off
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// smallest keeps the token that crosses P; published drops it, as the paper's code does
    #[arg(long, value_enum, default_value_t)]
    top_p_rule: TopPRule,
    /// Draw from tokens at least P times as likely as the likeliest; 0 is off
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f64,
    /// Makes tokens that are already there less likely; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// Ids that are never drawn
    #[arg(long, value_name = "ID,ID", value_delimiter = ',')]
    ban: Vec<u32>,
    /// Tokens of a sample, prompt included [default: the model's block size]
    #[arg(long, value_name = "T", conflicts_with = "infill")]
    length: Option<usize>,
    /// Text that every sample begins with
    #[arg(long, value_name = "TEXT", conflicts_with = "infill")]
    prompt: Option<String>,
    /// Templates to fill in, one {"text":"The ___ sat"} or {"tokens":[5,null,7]} a line; - is stdin
    #[arg(long, value_name = "FILE")]
    infill: Option<PathBuf>,
    /// In which order given tokens are read
    #[arg(long, value_enum, default_value_t)]
    prompt_order: PromptOrder,
    /// gpt2 or a tokenizer.json [default: the one beside the checkpoint]
    #[arg(long, value_name = "NAME|FILE")]
    tokenizer: Option<String>,
    /// End a sample's text before its first end-of-document token; its tokens stay whole
    #[arg(long)]
    stop_at_eos: bool,
    /// Samples drawn together; the result does not depend on it
    #[arg(long, value_name = "B", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    batch_size: u64,
    #[command(flatten)]
    #[serde(flatten)]
    seed: Seed,
    #[command(flatten)]
    #[serde(flatten)]
    compute: Compute,
    #[command(flatten)]
    #[serde(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    #[serde(flatten)]
    quiet: Quiet,
}

/// Draws samples and writes a record of each as soon as its batch is done.
///
/// # Errors
/// Unusable arguments, templates, orders or weights, and a sink that fails.
pub fn run(args: SampleArgs) -> Result<()> {
    let place = Place::start(&args.compute)?;
    let loaded = Loaded::open(&args.checkpoint, &place)?;
    let tokenizer = args.find_tokenizer(&loaded)?;
    let real = tokenizer.as_ref().map_or(usize::MAX, Tokenizer::vocab_size);
    let vocab_used = loaded.vocab_used().min(real);
    let block_size = loaded.config.block_size();
    let limits = Limits { block_size, vocab_used, tokenizer: tokenizer.as_ref() };
    let mut templates = args.templates(limits)?;
    for template in &mut templates {
        args.suit(template, &loaded.config, limits)?;
    }
    let filter = args.filter(vocab_used);
    filter.check()?;
    let order = loaded.config.orders(args.order.as_deref(), "uniform")?;
    let mut orders = OrderSource::open(&order, block_size, args.seed.seed)?;
    let total = args.n.checked_mul(templates.len() as u64);
    let total = total.ok_or_else(|| Error::usage(format!("--n {}: too many samples", args.n)))?;
    orders.require_rows(total)?;

    let mut inputs = vec![loaded.input.clone()];
    if let Some(path) = args.infill.as_ref().filter(|path| path.is_file()) {
        inputs.push(Input::of_file(path)?);
    }
    let record = RunRecord {
        tool: "ao-sample",
        config: serde_json::to_value(&args)
            .map_err(|e| Error::usage(format!("the options cannot be JSON: {e}")))?,
        seed: Some(args.seed.seed),
        device: Some(place.device_name()),
        inputs,
    };
    let mut record = record.to_json();
    record["orders"] = orders.describe();
    let mut sink = args.output.open()?;
    put(&mut sink, &record)?;

    let model = loaded.decoder(&place)?;
    let conditioning = tch::no_grad(|| model.conditioning());
    let mut generator = Generator::new(model.as_ref(), &conditioning, filter, place.threads);
    let mut progress = Progress::new("samples", Some(total), args.quiet.quiet);
    args.warn_of_steps(&templates, &progress);
    let writer = Writer { args: &args, tokenizer: tokenizer.as_ref(), loaded: &loaded };
    let started = Instant::now();
    let (mut tokens, mut done) = (0u64, 0);
    let mut row = Vec::new();
    let batch_size = if loaded.alone { 1 } else { args.batch_size };
    while done < total {
        let end = total.min(done.saturating_add(batch_size));
        let mut requests = Vec::new();
        for id in done..end {
            let template = &templates[(id / args.n) as usize];
            orders.row(id, template.tokens.len(), &mut row)?;
            requests.push(args.request(id, template, &row));
        }
        for (id, sample) in (done..end).zip(generator.generate(requests)?) {
            tokens += sample.nll.len() as u64;
            put(&mut sink, &writer.sample(id, &sample))?;
        }
        progress.add(end - done);
        done = end;
    }
    let seconds = started.elapsed().as_secs_f64();
    let shares = generator.shares;
    let summary = json!({
        "type": "summary",
        "samples": total,
        "token_count": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens as f64 / seconds.max(1e-9),
        "rows_forwarded": generator.rows_forwarded,
        "trunk_seconds": shares.trunk.as_secs_f64(),
        "head_seconds": shares.head.as_secs_f64(),
        "sampling_seconds": shares.sampling.as_secs_f64(),
    });
    put(&mut sink, &summary)?;
    sink.finish()
}

fn put(sink: &mut Sink, record: &Value) -> Result<()> {
    sink.put(&jsonl::line(record)?)?;
    sink.flush()
}

impl SampleArgs {
    fn find_tokenizer(&self, loaded: &Loaded) -> Result<Option<Tokenizer>> {
        match (&self.tokenizer, &loaded.tokenizer) {
            (Some(name), _) => Tokenizer::load(name).map(Some),
            (None, Some(path)) => Tokenizer::load(&path.to_string_lossy()).map(Some),
            (None, None) => Ok(None),
        }
    }

    fn templates(&self, limits: Limits) -> Result<Vec<Template>> {
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
    fn suit(&self, template: &mut Template, config: &ModelConfig, limits: Limits) -> Result<()> {
        let arch = config.arch();
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

    /// What sample `id` starts from. Its stream gives, in this order: the order of given tokens
    /// (if random), the group sizes (if binomial), one uniform a token.
    fn request(&self, id: u64, template: &Template, row: &[u32]) -> Request {
        let mut stream = Stream::new(self.seed.seed, Domain::Sample, id);
        let (order, given) = template.arrange(row, self.prompt_order, &mut stream);
        let free = order.len() - given.len();
        let steps = self.steps.and_then(|s| usize::try_from(s).ok()).unwrap_or(usize::MAX);
        // A binomial law has a number of steps of its own, else more than one a token is idle.
        let steps = if self.steps.is_none() { free } else { steps };
        let groups = self.schedule.groups(free, steps, &mut stream);
        Request { order, given, groups, stream }
    }

    fn warn_of_steps(&self, templates: &[Template], progress: &Progress) {
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

struct Writer<'a> {
    args: &'a SampleArgs,
    tokenizer: Option<&'a Tokenizer>,
    loaded: &'a Loaded,
}

impl Writer<'_> {
    fn sample(&self, id: u64, sample: &Sample) -> Value {
        let args = self.args;
        json!({
            "type": "sample",
            "id": id,
            "tokens": sample.tokens,
            "text": self.tokenizer.map(|t| self.text(t, &sample.tokens)),
            "order": sample.order,
            "steps": sample.steps,
            "temperature": args.temperature,
            "top_p": args.top_p,
            "seed": args.seed.seed,
            "draw": DRAW,
            "logprob_nats": -sample.nll.iter().sum::<f64>(),
            "ckpt": self.loaded.path.display().to_string(),
        })
    }

    fn text(&self, tokenizer: &Tokenizer, tokens: &[u32]) -> String {
        let eos = tokenizer.eos_id().filter(|_| self.args.stop_at_eos);
        let end = tokens.iter().position(|&t| Some(t) == eos).unwrap_or(tokens.len());
        tokenizer.decode_lossy(&tokens[..end])
    }
}
