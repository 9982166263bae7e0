//! Rounds over all points, and a record for each. The points take turns, so that a disturbance of the
//! machine affects all of them alike.

use ao_core::cli::{Progress, RunRecord};
use ao_core::format::jsonl;
use ao_core::process::Orders;
use ao_core::score::Protocol;
use ao_core::{Error, Result};
use serde_json::{Value, json};

use super::args::{BenchArgs, Point};
use super::machine;
use super::subject::{Measured, Subject};
use crate::decode::filter::Filter;
use crate::device::Runtime;
use crate::score::{Judged, Reference};

/// Times what the flags ask for and writes a `bench` record for each point.
///
/// # Errors
/// Unusable arguments or weights, and a sink that fails.
pub fn run(args: BenchArgs) -> Result<()> {
    let runtime = Runtime::start(&args.compute)?;
    let subject = Subject::open(&args, &runtime)?;
    let config = &subject.config;
    let length = args.tokens(config.block_size())?;
    let free = length.saturating_sub(subject.given());
    let mut points = args.points(free);
    if config.capabilities().orders == Orders::LeftToRight {
        points.retain(|point| point.steps == free);
    }
    if free == 0 || points.is_empty() {
        return Err(Error::usage(format!(
            "--steps: {} draws {free} tokens, one a step; leave --steps and --length out",
            config.arch()
        )));
    }
    let filter = Filter {
        temperature: args.temperature,
        top_p: args.top_p,
        ..Filter::plain(subject.vocab_used)
    };
    filter.check()?;

    let mut reference =
        args.r#ref.as_deref().map(|name| Reference::open(name, &runtime)).transpose()?;
    if let Some(reference) = &reference
        && reference.vocab_used < subject.vocab_used
    {
        return Err(Error::usage(format!(
            "--ref: it has {} ids, the model draws from {}; give one with the same tokenizer",
            reference.vocab_used, subject.vocab_used
        )));
    }
    let record = RunRecord {
        tool: "ao-bench",
        config: serde_json::to_value(&args)
            .map_err(|e| Error::usage(format!("the options cannot be JSON: {e}")))?,
        seed: Some(args.seed.seed),
        device: Some(runtime.device_name()),
        inputs: subject.inputs.clone(),
    };
    let mut record = record.to_json();
    record["machine"] = machine::describe(&runtime);
    record["model"] = config.to_json();
    let mut sink = args.output.open()?;
    sink.put(&jsonl::line(&record)?)?;
    sink.flush()?;

    let rounds = args.warmup + args.repeats;
    let total = rounds * points.len() as u64;
    let mut progress = Progress::new("generations", Some(total), args.quiet.quiet);
    let mut measured: Vec<Vec<Measured>> = vec![Vec::new(); points.len()];
    let mut samplers = points
        .iter()
        .map(|point| subject.sampler(point, free, &filter, &runtime))
        .collect::<Result<Vec<_>>>()?;
    for round in 0..rounds {
        for ((point, sampler), measured) in points.iter().zip(&mut samplers).zip(&mut measured) {
            let first = round * point.batch_size as u64;
            let one = subject.generate(sampler.as_mut(), point, (args.seed.seed, length, first))?;
            if round >= args.warmup {
                measured.push(one);
            }
            progress.add(1);
        }
    }
    for (point, measured) in points.iter().zip(&measured) {
        let mut record = bench_record(point, measured);
        record["what"] = json!(args.what);
        record["arch"] = config.arch().into();
        record["parameters"] = config.parameter_count().into();
        record["length"] = length.into();
        record["device"] = runtime.device_name().into();
        record["dtype"] = args.compute.dtype.to_string().into();
        record["threads"] = runtime.threads.into();
        if let Some(reference) = &mut reference {
            record["quality"] = quality(reference, measured)?;
        }
        sink.put(&jsonl::line(&record)?)?;
    }
    sink.finish()
}

/// The reference's scores of all samples that a point drew in its timed rounds.
fn quality(reference: &mut Reference, measured: &[Measured]) -> Result<Value> {
    let mut judged = Judged::default();
    let judge = reference.judge(Protocol::Sedd, None);
    for one in measured {
        let texts: Vec<Option<&[u32]>> = one.texts.iter().map(|t| Some(t.as_slice())).collect();
        for (text, (nll, count)) in one.texts.iter().zip(reference.score(&judge, &texts)?) {
            if count > 0 {
                judged.add(judged.count() as u64, text, nll, count)?;
            }
        }
    }
    let (mean, pooled) = (judged.mean(), judged.pooled());
    let [distinct_1, distinct_2, distinct_3] = judged.variety.distinct();
    Ok(json!({
        "protocol": Protocol::Sedd,
        "samples": judged.count(),
        "perplexity_mean": mean.mean,
        "perplexity_mean_std_error": Some(mean.std_error).filter(|e| e.is_finite()),
        "perplexity_pooled": pooled.mean.exp(),
        "unigram_entropy_nats": judged.variety.unigram_entropy_nats(),
        "distinct_1": distinct_1,
        "distinct_2": distinct_2,
        "distinct_3": distinct_3,
        "distinct_tokens": judged.variety.distinct_tokens(),
        "repetition": judged.variety.repetition(),
    }))
}

/// The figures of one point.
fn bench_record(point: &Point, measured: &[Measured]) -> Value {
    let each = |of: fn(&Measured) -> f64| -> Vec<f64> { measured.iter().map(of).collect() };
    let seconds = each(|m| m.seconds);
    let typical = median(&seconds);
    let rate = each(|m| m.tokens as f64 / m.seconds.max(1e-9));
    let fraction = |of: fn(&Measured) -> f64| {
        measured.iter().map(of).sum::<f64>() / seconds.iter().sum::<f64>().max(1e-9)
    };
    json!({
        "type": "bench",
        "batch_size": point.batch_size,
        "steps": point.steps,
        "speculative": point.speculative,
        "repeats": measured.len(),
        "seconds": typical,
        "seconds_min": seconds.iter().copied().fold(f64::INFINITY, f64::min),
        "seconds_max": seconds.iter().copied().fold(0.0, f64::max),
        "seconds_each": seconds,
        "tokens": measured.first().map(|m| m.tokens),
        "tokens_per_second": median(&rate),
        "rows_forwarded": median(&each(|m| m.tally.rows_forwarded as f64)),
        "passes": median(&each(|m| m.tally.passes as f64)),
        "trunk_share": fraction(|m| m.tally.trunk.as_secs_f64()),
        "head_share": fraction(|m| m.tally.head.as_secs_f64()),
        "sampling_share": fraction(|m| m.tally.sampling.as_secs_f64()),
    })
}

/// The middle value; of an even number the mean of the middle two.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
