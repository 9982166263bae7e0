//! `ao-score --ref MODEL`: generative perplexity of samples, with what tells cheap perplexity from
//! good text beside it.
//!
//! A sample longer than the reference's block is scored in consecutive chunks, each on its own;
//! none is dropped. A reference without [None] is given the first token of each chunk.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use ao_core::cli::{Input, Progress, peak_memory_bytes};
use ao_core::score::{Estimate, Judge, Protocol, SampleTokens, Samples, Variety};
use ao_core::tokens::Tokenizer;
use ao_core::{Error, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::args::ScoreArgs;
use super::judgement::{Judged, Reference};
use super::output::Out;
use crate::device::Runtime;
use crate::network::{CheckpointArgs, Loaded};

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
    /// False where the samples' own file says that it is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    complete: Option<bool>,
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
    distinct_tokens: usize,
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
    let runtime = Runtime::start(&args.compute)?;
    let checkpoint = CheckpointArgs { ckpt: args.r#ref.clone(), ..args.checkpoint.clone() };
    let loaded = Loaded::open(&checkpoint, &runtime)?;
    let reference = Reference::new(&loaded, &runtime)?;
    let from = args.samples.as_deref().unwrap_or(Path::new("-"));
    let tokenizer = match (&args.tokenizer, &loaded.tokenizer) {
        (Some(name), _) => Some(Tokenizer::load(name)?),
        (None, Some(path)) => Some(Tokenizer::load(&path.to_string_lossy())?),
        (None, None) => None,
    };
    // The end of text is written out where it stands in a text.
    let tokenizer = tokenizer.map(|t| t.allow_special(true));
    let judge = reference.judge(args.protocol, tokenizer.as_ref());
    let mut samples = Samples::open(from, judge)?;
    let of_file = from.is_file().then(|| Input::of_file(from)).transpose()?;
    let record = args.run_record(&runtime, &loaded, of_file.into_iter().collect())?;
    let mut record = record.to_json();
    record["orders"] = json!({"spec": "l2r"});
    out.put(&record)?;

    let started = Instant::now();
    let progress = Progress::new("samples", None, args.quiet.quiet);
    let mut judging = Judging { reference, out, progress, set: Judged::default() };
    let mut waiting = Vec::new();
    let mut count = 0;
    while let Some(sample) = samples.next_sample()? {
        count += 1;
        waiting.push(sample);
        if waiting.len() == args.batch_size as usize {
            judging.score(&samples.judge, &mut waiting)?;
        }
    }
    judging.score(&samples.judge, &mut waiting)?;
    judging.progress.finish();
    if samples.stopped {
        say(&format!(
            "warning: {} is not complete: its program was stopped; these are its first {count} \
             samples",
            from.display()
        ));
    }
    for (reason, count) in &samples.excluded {
        say(&format!("{count} samples were left out: {reason}"));
    }
    if judging.set.count() == 0 {
        return Err(Error::input(
            if from == Path::new("-") { "stdin".to_owned() } else { from.display().to_string() },
            format!(
                "holds no sample that can be scored ({count} read); give one JSON object a line"
            ),
        ));
    }
    judging.finish(args.protocol, count, &samples, started)
}

struct Judging {
    reference: Reference,
    out: Out,
    progress: Progress,
    set: Judged,
}

impl Judging {
    /// Scores a batch of samples and writes their records in order.
    fn score(&mut self, judge: &Judge, samples: &mut Vec<SampleTokens>) -> Result<()> {
        let texts: Vec<Option<&[u32]>> =
            samples.iter().map(|sample| sample.tokens.as_deref().ok()).collect();
        let sums = self.reference.score(judge, &texts)?;
        for (sample, (sum, count)) in samples.drain(..).zip(sums) {
            match sample.tokens {
                Err(reason) => self.out.put(&json!({
                    "type": "excluded", "index": sample.index, "id": sample.id, "reason": reason,
                }))?,
                Ok(tokens) => self.put(sample.index, sample.id, &tokens, sum, count)?,
            }
        }
        let done = self.set.count() as u64;
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
        let (perplexity, variety) = self.set.add(index, tokens, nll_nats, token_count)?;
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
        from: &Samples,
        started: Instant,
    ) -> Result<()> {
        let set = &self.set;
        let known = |x: f64| Some(x).filter(|x| x.is_finite());
        let (pooled, mean) = (set.pooled(), set.mean());
        let (error, mean_error) = (known(pooled.std_error), known(mean.std_error));
        let interval = match protocol {
            Protocol::Sedd => mean.interval(),
            _ => pooled.interval().map(|(low, high)| (low.exp(), high.exp())),
        };
        let perplexity_pooled = pooled.mean.exp();
        let [distinct_1, distinct_2, distinct_3] = set.variety.distinct();
        let cost = self.reference.scorer.cost();
        let summary = Summary {
            r#type: "summary",
            protocol,
            samples,
            complete: from.stopped.then_some(false),
            sequences: pooled.sequences,
            excluded: &from.excluded,
            token_count: pooled.tokens,
            given_tokens: self.reference.given() as u64,
            estimate: Estimate::Exact,
            nll_nats_per_token: pooled.mean,
            std_error: error,
            perplexity: match protocol {
                Protocol::Sedd => mean.mean,
                _ => perplexity_pooled,
            },
            perplexity_low: interval.map(|(low, _)| low),
            perplexity_high: interval.map(|(_, high)| high),
            perplexity_mean: mean.mean,
            perplexity_mean_std_error: mean_error,
            perplexity_pooled,
            unigram_entropy_nats: set.variety.unigram_entropy_nats(),
            distinct_1,
            distinct_2,
            distinct_3,
            distinct_tokens: set.variety.distinct_tokens(),
            repetition: set.variety.repetition(),
            seconds: started.elapsed().as_secs_f64(),
            rows_forwarded: cost.rows_forwarded,
            rows_through_head: cost.rows_through_head,
            peak_memory_bytes: peak_memory_bytes(),
            note: error.is_none().then_some("a standard error needs two samples"),
        };
        let mut out = self.out;
        out.put(&summary)?;
        out.finish()
    }
}
