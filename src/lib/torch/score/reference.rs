//! `ao-score --ref MODEL`: generative perplexity of samples, with what tells cheap perplexity from
//! good text beside it.
//!
//! A sample longer than the reference's block is scored in consecutive blocks, each on its own;
//! none is dropped. A reference without [None] is given the first token of each block.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use ao_core::cli::{Input, Progress, RunRecord};
use ao_core::score::{Cost, Estimate, Judge, Protocol, Sample, Samples, SetVariety, Variety};
use ao_core::tokens::Tokenizer;
use ao_core::{Error, Result, stats};
use serde::Serialize;
use serde_json::{Value, json};

use super::args::ScoreArgs;
use super::output::Out;
use super::scorer::{Scorer, peak_memory_bytes};
use super::set::Work;
use crate::device::Place;
use crate::model::Loaded;

/// One judged sample.
#[derive(Debug, Serialize)]
struct SampleScore {
    r#type: &'static str,
    index: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Value>,
    /// Tokens whose NLL is in the sum.
    token_count: u64,
    estimate: Estimate,
    nll_nats: f64,
    perplexity: f64,
    /// Tokens of the text, those that are given among them.
    text_tokens: u64,
    #[serde(flatten)]
    variety: Variety,
}

/// The set's figures.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    r#type: &'static str,
    protocol: Protocol,
    samples: u64,
    sequences: u64,
    excluded: &'a BTreeMap<&'static str, u64>,
    token_count: u64,
    given_tokens: u64,
    estimate: Estimate,
    nll_nats_per_token: f64,
    std_error: Option<f64>,
    perplexity: f64,
    perplexity_low: Option<f64>,
    perplexity_high: Option<f64>,
    perplexity_mean: f64,
    perplexity_mean_std_error: Option<f64>,
    perplexity_pooled: f64,
    unigram_entropy_nats: Option<f64>,
    distinct_1: Option<f64>,
    distinct_2: Option<f64>,
    distinct_3: Option<f64>,
    repetition: Option<f64>,
    seconds: f64,
    rows_forwarded: u64,
    rows_through_head: u64,
    peak_memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

/// Judges the samples that `args` names.
///
/// # Errors
/// Unusable samples or reference, no sample that can be scored, or a sink that cannot be written.
pub fn run(args: &ScoreArgs, say: impl Fn(&str)) -> Result<()> {
    let mut out = Out::Sink(args.output.open()?);
    let place = Place::start(&args.compute)?;
    let loaded = Loaded::open(&args.checkpoint(), &place)?;
    let from = args.samples.as_deref().unwrap_or(Path::new("-"));
    let tokenizer = match (&args.tokenizer, &loaded.tokenizer) {
        (Some(name), _) => Some(Tokenizer::load(name)?),
        (None, Some(path)) => Some(Tokenizer::load(&path.to_string_lossy())?),
        (None, None) => None,
    };
    // The end of text is written out where it stands in a text.
    let tokenizer = tokenizer.map(|t| t.allow_special(true));
    let judge = Judge {
        protocol: args.protocol,
        tokenizer: tokenizer.as_ref(),
        vocab_used: loaded.vocab_used(),
    };
    let mut samples = Samples::open(from, judge)?;
    let mut inputs = loaded.inputs.clone();
    if from.is_file() {
        inputs.push(Input::of_file(from)?);
    }
    let record = RunRecord {
        tool: "ao-score",
        config: serde_json::to_value(args).unwrap_or_default(),
        seed: Some(args.seed.seed),
        device: Some(place.device_name()),
        inputs,
    };
    let mut record = record.to_json();
    record["orders"] = json!({"spec": "l2r"});
    out.put(&record)?;

    let started = Instant::now();
    let model = loaded.decoder(&place)?;
    let scorer = Scorer {
        conditioning: tch::no_grad(|| model.conditioning()),
        model,
        alone: loaded.alone,
        ensemble: None,
        cost: Cost::default(),
    };
    let progress = Progress::new("samples", None, args.quiet.quiet);
    let mut judging = Judging {
        block_size: loaded.config.block_size(),
        scorer,
        out,
        progress,
        set: Set::default(),
    };
    let mut waiting = Vec::new();
    let mut count = 0;
    while let Some(sample) = samples.next_sample()? {
        count += 1;
        waiting.push(sample);
        if waiting.len() == args.batch_size as usize {
            judging.score(&mut waiting)?;
        }
    }
    judging.score(&mut waiting)?;
    judging.progress.finish();
    for (reason, count) in &samples.excluded {
        say(&format!("{count} samples were left out: {reason}"));
    }
    if judging.set.sums.is_empty() {
        return Err(Error::input(
            if from == Path::new("-") { "stdin".to_owned() } else { from.display().to_string() },
            format!(
                "holds no sample that can be scored ({count} read); give one JSON object a line"
            ),
        ));
    }
    judging.finish(args.protocol, count, &samples.excluded, started)
}

/// Figures of the samples so far.
#[derive(Default)]
struct Set {
    sums: Vec<f64>,
    tokens: Vec<u64>,
    perplexities: Vec<f64>,
    variety: SetVariety,
}

struct Judging {
    block_size: usize,
    scorer: Scorer,
    out: Out,
    progress: Progress,
    set: Set,
}

impl Judging {
    /// Scores a batch of samples and writes their records in order.
    fn score(&mut self, samples: &mut Vec<Sample>) -> Result<()> {
        let given = self.scorer.model.given();
        let mut works = Vec::new();
        for (nth, sample) in samples.iter().enumerate() {
            let Ok(tokens) = &sample.tokens else { continue };
            for block in tokens.chunks(self.block_size).filter(|b| b.len() > given) {
                works.push(Work {
                    nth,
                    row: 0,
                    tokens: block.to_vec(),
                    order: (0..block.len() as u32).collect(),
                    scored: (block.len() - given) as u64,
                    held: None,
                    contexts: None,
                });
            }
        }
        let mut sums = vec![(0.0, 0); samples.len()];
        for part in works.chunks(samples.len().max(1)) {
            for scored in self.scorer.score(part)? {
                sums[scored.nth].0 += scored.sum;
                sums[scored.nth].1 += scored.nll.len() as u64;
            }
        }
        for (sample, (sum, count)) in samples.drain(..).zip(sums) {
            match sample.tokens {
                Err(reason) => self.out.put(&json!({
                    "type": "excluded", "index": sample.index, "id": sample.id, "reason": reason,
                }))?,
                Ok(tokens) => self.put(sample.index, sample.id, &tokens, sum, count)?,
            }
        }
        let done = self.set.sums.len() as u64;
        self.progress.set(done, "");
        self.out.flush()
    }

    fn put(
        &mut self,
        index: u64,
        id: Option<Value>,
        tokens: &[u32],
        nll_nats: f64,
        token_count: u64,
    ) -> Result<()> {
        if !nll_nats.is_finite() {
            return Err(Error::NonFinite(format!(
                "sample {index}: its NLL is {nll_nats}; check the reference's weights, or score in \
                 f32"
            )));
        }
        let perplexity = (nll_nats / token_count as f64).exp();
        let variety = Variety::of(tokens);
        self.set.sums.push(nll_nats);
        self.set.tokens.push(token_count);
        self.set.perplexities.push(perplexity);
        self.set.variety.add(tokens, &variety);
        self.out.put(&SampleScore {
            r#type: "sequence",
            index,
            id,
            token_count,
            estimate: Estimate::Exact,
            nll_nats,
            perplexity,
            text_tokens: tokens.len() as u64,
            variety,
        })
    }

    fn finish(
        self,
        protocol: Protocol,
        samples: u64,
        excluded: &BTreeMap<&'static str, u64>,
        started: Instant,
    ) -> Result<()> {
        let set = &self.set;
        let known = |x: f64| Some(x).filter(|x| x.is_finite());
        let pooled = stats::mean_per_token(&set.sums, &set.tokens);
        let mean = stats::mean_per_token(&set.perplexities, &vec![1; set.perplexities.len()]);
        let (error, mean_error) = (known(pooled.std_error), known(mean.std_error));
        let interval = |side: f64| match protocol {
            Protocol::Sedd => mean_error.map(|e| mean.mean + side * 1.96 * e),
            Protocol::Mdlm => error.map(|e| (pooled.mean + side * 1.96 * e).exp()),
        };
        let perplexity_pooled = pooled.mean.exp();
        let [distinct_1, distinct_2, distinct_3] = set.variety.distinct();
        let summary = Summary {
            r#type: "summary",
            protocol,
            samples,
            sequences: pooled.sequences,
            excluded,
            token_count: pooled.tokens,
            given_tokens: self.scorer.model.given() as u64,
            estimate: Estimate::Exact,
            nll_nats_per_token: pooled.mean,
            std_error: error,
            perplexity: match protocol {
                Protocol::Sedd => mean.mean,
                Protocol::Mdlm => perplexity_pooled,
            },
            perplexity_low: interval(-1.0),
            perplexity_high: interval(1.0),
            perplexity_mean: mean.mean,
            perplexity_mean_std_error: mean_error,
            perplexity_pooled,
            unigram_entropy_nats: set.variety.unigram_entropy_nats(),
            distinct_1,
            distinct_2,
            distinct_3,
            repetition: set.variety.repetition(),
            seconds: started.elapsed().as_secs_f64(),
            rows_forwarded: self.scorer.cost.rows_forwarded,
            rows_through_head: self.scorer.cost.rows_through_head,
            peak_memory_bytes: peak_memory_bytes(),
            note: error.is_none().then_some("a standard error needs two samples"),
        };
        let mut out = self.out;
        out.put(&summary)?;
        out.finish()
    }
}
