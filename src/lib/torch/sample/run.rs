//! `ao-sample`: from arguments to records.

use std::time::Instant;

use ao_core::cli::{Input, Progress, RunRecord, Sink, signals};
use ao_core::format::jsonl;
use ao_core::orders::OrderSource;
use ao_core::rng::{Domain, Stream};
use ao_core::tokens::Tokenizer;
use ao_core::{Error, Result};
use serde_json::Value;

use super::args::SampleArgs;
use super::record::{Facts, Writer};
use crate::decode::Request;
use crate::decode::template::Limits;
use crate::device::Runtime;
use crate::family::{self, Model};
use crate::network::Loaded;

/// Draws samples and writes a record of each as soon as its batch is done. A signal ends the batch
/// at hand. The samples before it are kept, and the summary says that they are not all.
///
/// # Errors
/// Unusable arguments, templates, orders or weights, a sink that fails, and a signal.
pub fn run(args: SampleArgs) -> Result<()> {
    let runtime = Runtime::start(&args.compute)?;
    let loaded = Loaded::open(&args.checkpoint, &runtime)?;
    let tokenizer = args.find_tokenizer(&loaded)?;
    let real = tokenizer.as_ref().map_or(usize::MAX, Tokenizer::vocab_size);
    let vocab_used = loaded.vocab_used().min(real);
    let block_size = loaded.config.block_size();
    let limits = Limits { block_size, vocab_used, tokenizer: tokenizer.as_ref() };
    let mut templates = args.templates(limits)?;
    let settings = args.settings(vocab_used, loaded.config.capabilities().masks)?;
    let mut sampler =
        family::of(&loaded.config)?.sampler(Model::of(&loaded, &runtime), &settings)?;
    args.check_effects(sampler.name(), tokenizer.as_ref())?;
    let eos = tokenizer.as_ref().and_then(Tokenizer::eos_id);
    templates.iter_mut().try_for_each(|template| sampler.suit(template, eos))?;
    let orders = sampler.orders().unwrap_or("l2r");
    let mut orders = OrderSource::open(orders, block_size, args.seed.seed)?;
    let total = args.n.checked_mul(templates.len() as u64);
    let total = total.ok_or_else(|| Error::usage(format!("--n {}: too many samples", args.n)))?;
    orders.require_rows(total)?;

    let mut inputs = loaded.inputs.clone();
    if let Some(path) = args.infill.as_ref().filter(|path| path.is_file()) {
        inputs.push(Input::of_file(path)?);
    }
    let record = RunRecord {
        tool: "ao-sample",
        config: serde_json::to_value(&args)
            .map_err(|e| Error::usage(format!("the options cannot be JSON: {e}")))?,
        seed: Some(args.seed.seed),
        device: Some(runtime.device_name()),
        inputs,
    };
    let mut record = record.to_json();
    record["orders"] = sampler.describe(&orders);
    let mut sink = args.output.open()?;
    put(&mut sink, &record)?;

    let mut progress = Progress::new("samples", Some(total), args.quiet.quiet);
    if sampler.orders().is_some() || settings.adaptive.is_some() {
        args.warn_of_steps(&templates, &progress);
    }
    let facts = Facts {
        tokenizer: tokenizer.as_ref(),
        stop_at_eos: args.stop_at_eos,
        temperature: args.temperature,
        top_p: args.top_p,
        seed: args.seed.seed,
        ckpt: loaded.path.display().to_string(),
        drafts: settings.drafts.is_some(),
    };
    let mut writer = Writer { facts, samples: 0, tokens: 0, steps: 0 };
    let started = Instant::now();
    let mut done = 0;
    signals::finish_on_signal();
    let stopped = loop {
        if done >= total {
            break Ok(());
        }
        let end = total.min(done.saturating_add(args.batch_size));
        let mut requests = Vec::new();
        for id in done..end {
            let template = &templates[(id / args.n) as usize];
            let mut row = Vec::new();
            orders.row(id, template.tokens.len(), &mut row)?;
            // The stream of a sample gives the order of its given tokens if that is random, then the
            // draws of its plan, then one uniform a token.
            let mut stream = Stream::new(args.seed.seed, Domain::Sample, id);
            let (order, given) = template.arrange(&row, args.prompt_order, &mut stream);
            requests.push(Request { order, given, stream });
        }
        let samples = match signals::interrupted().and_then(|()| sampler.draw(requests)) {
            Ok(samples) => samples,
            Err(signal @ Error::Interrupted(_)) if done > 0 => {
                progress.say(&format!("{done} of {total} samples are kept"));
                break Err(signal);
            }
            Err(error) => return Err(error),
        };
        for (id, sample) in (done..).zip(samples) {
            put(&mut sink, &writer.sample(id, &sample, sampler.as_ref()))?;
        }
        progress.add(end - done);
        done = end;
    };
    let seconds = started.elapsed().as_secs_f64();
    put(&mut sink, &writer.summary(stopped.is_ok(), seconds, *sampler.tally()))?;
    sink.finish()?;
    stopped
}

fn put(sink: &mut Sink, record: &Value) -> Result<()> {
    sink.put(&jsonl::line(record)?)?;
    sink.flush()
}
