//! `ao-sample`: from arguments to records.

use std::time::Instant;

use ao_core::cli::{Input, Progress, RunRecord, Sink};
use ao_core::format::jsonl;
use ao_core::orders::OrderSource;
use ao_core::tokens::Tokenizer;
use ao_core::{Error, Result};
use serde_json::{Value, json};

use super::args::{Method, SampleArgs};
use super::diffusion::{self, DiffusionSampler};
use super::generate::Generator;
use super::record::Writer;
use super::template::{Limits, Template};
use crate::device::Place;
use crate::model::Loaded;

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
    let diffusion = args.diffusion(&loaded.config)?;
    let (method, order) = args.method(&loaded.config)?;
    let mut orders = OrderSource::open(&order, block_size, args.seed.seed)?;
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
        device: Some(place.device_name()),
        inputs,
    };
    let mut record = record.to_json();
    record["orders"] = match method {
        Method::Adaptive(order) => json!({ "spec": order.to_string() }),
        Method::Rejection(count) => json!({ "best_of_random": count }),
        _ if diffusion.is_some() && args.order.is_none() => Value::Null,
        Method::Groups | Method::Speculative(_) => orders.describe(),
    };
    let mut sink = args.output.open()?;
    put(&mut sink, &record)?;

    let mut progress = Progress::new("samples", Some(total), args.quiet.quiet);
    if diffusion.is_none() {
        args.warn_of_steps(&templates, &progress);
    }
    let mut writer = Writer {
        args: &args,
        method,
        tokenizer: tokenizer.as_ref(),
        loaded: &loaded,
        samples: 0,
        tokens: 0,
        steps: 0,
    };
    let started = Instant::now();
    let batch_size = if loaded.alone { 1 } else { args.batch_size };
    // Hands each batch of samples, with their templates and rows of the orders, to `draw`.
    let mut batches = |draw: &mut dyn FnMut(&[Turn]) -> Result<Vec<Value>>| {
        let mut done = 0;
        while done < total {
            let end = total.min(done.saturating_add(batch_size));
            let mut batch = Vec::new();
            for id in done..end {
                let template = &templates[(id / args.n) as usize];
                let mut row = Vec::new();
                orders.row(id, template.tokens.len(), &mut row)?;
                batch.push((id, template, row));
            }
            for record in draw(&batch)? {
                put(&mut sink, &record)?;
            }
            progress.add(end - done);
            done = end;
        }
        Ok::<_, Error>(())
    };
    let summary = if let Some(sampler) = diffusion {
        let model = loaded.encoder(&place)?;
        let settings = args.settings((sampler, method), filter, place.threads, batch_size as usize);
        let counters = diffusion::Counters::default();
        let timed = model.is_told_the_time() && sampler != DiffusionSampler::Ordered;
        let mut writer = diffusion::Writer { inner: writer, sampler, timed, counters };
        batches(&mut |batch| {
            let requests = batch.iter().map(|(id, t, row)| args.masked_request(*id, t, row));
            let (samples, spent) = diffusion::generate(&model, requests.collect(), &settings)?;
            writer.counters += spent;
            Ok(batch.iter().zip(samples).map(|(b, s)| writer.sample(b.0, s)).collect())
        })?;
        writer.summary(started.elapsed().as_secs_f64())
    } else {
        let model = loaded.decoder(&place)?;
        let conditioning = tch::no_grad(|| model.conditioning());
        let mut generator = Generator::new(model.as_ref(), &conditioning, filter, place.threads)
            .with_candidates(args.top_k_candidates);
        batches(&mut |batch| {
            let requests = batch.iter().map(|(id, t, row)| args.request(*id, t, row)).collect();
            let samples = method.generate(&mut generator, requests)?;
            Ok(batch.iter().zip(&samples).map(|(b, s)| writer.sample(b.0, s)).collect())
        })?;
        writer.summary(started.elapsed().as_secs_f64(), generator.tally, generator.shares)
    };
    put(&mut sink, &summary)?;
    sink.finish()
}

/// A sample to draw: its number, template, and row of the orders.
type Turn<'a> = (u64, &'a Template, Vec<u32>);

fn put(sink: &mut Sink, record: &Value) -> Result<()> {
    sink.put(&jsonl::line(record)?)?;
    sink.flush()
}
