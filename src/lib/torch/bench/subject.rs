//! A model, and one generation of it.

use std::time::Instant;

use ao_core::config::{Family, ModelConfig};
use ao_core::orders::{OrderSpec, OrderStream};
use ao_core::rng::{Domain, Stream};
use ao_core::{Error, Result};

use super::args::{BenchArgs, Point};
use crate::decode::args::Method;
use crate::decode::diffusion::{self, DiffusionSampler};
use crate::decode::filter::Filter;
use crate::decode::generate::{Generator, Request, Shares, Tally};
use crate::decode::schedule::Schedule;
use crate::device::Place;
use crate::model::{Encoder, Loaded, Weights, decoder};

/// A model to time.
pub(super) struct Subject {
    pub config: ModelConfig,
    weights: Weights,
    pub vocab_used: usize,
    /// What the weights were read from.
    pub inputs: Vec<ao_core::cli::Input>,
}

/// One timed generation.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// What was drawn: token ids in text order.
    pub texts: Vec<Vec<u32>>,
    pub seconds: f64,
    pub tokens: u64,
    pub rows_forwarded: u64,
    pub passes: u64,
    pub trunk_seconds: f64,
    pub head_seconds: f64,
    pub sampling_seconds: f64,
}

impl Subject {
    /// The model that the flags name.
    pub fn open(args: &BenchArgs, place: &Place) -> Result<Subject> {
        if let Some(checkpoint) = args.checkpoint() {
            let loaded = Loaded::open(&checkpoint, place)?;
            let vocab_used = loaded.vocab_used();
            let Loaded { config, weights, inputs, .. } = loaded;
            return Ok(Subject { config, weights, vocab_used, inputs });
        }
        let Some(path) = &args.model else {
            return Err(Error::usage("--ckpt: give a checkpoint, or --model and random weights"));
        };
        let config = ModelConfig::load(path)?;
        let weights = Weights::init(&config, args.seed.seed, place.device);
        let inputs = vec![ao_core::cli::Input::of_file(path)?];
        Ok(Subject { vocab_used: config.vocab_size(), config, weights, inputs })
    }

    /// Tokens that are given: the first, where the family does not predict it.
    pub fn given(&self) -> usize {
        usize::from(!self.config.predicts_first())
    }

    /// Calls `work` with a function that times one generation of a point; `first` numbers its first
    /// sample.
    pub fn timed<T>(
        &self,
        place: &Place,
        filter: Filter,
        (seed, length): (u64, usize),
        work: impl FnOnce(&mut dyn FnMut(&Point, u64) -> Result<Measured>) -> Result<T>,
    ) -> Result<T> {
        let (compute, threads) = (place.compute, place.threads);
        let orders = self.config.orders(None, "uniform")?;
        let orders = OrderStream::new(OrderSpec::parse(&orders)?, length, seed)?;
        let given = vec![0u32; self.given()];
        if self.config.family() == Family::Encoder {
            let mut model = Encoder::new(&self.config, &self.weights, compute, threads)?;
            model.freeze();
            return work(&mut |point, first| {
                let settings = diffusion::Settings {
                    sampler: DiffusionSampler::Tweedie,
                    steps: Some(point.steps),
                    schedule: Schedule::Linear,
                    filter: filter.clone(),
                    candidates: 0,
                    adaptive: None,
                    threads,
                    at_once: point.batch_size,
                };
                let requests = (0..point.batch_size as u64)
                    .map(|i| diffusion::Request {
                        order: (0..length as u32).collect(),
                        given: Vec::new(),
                        stream: Stream::new(seed, Domain::Sample, first + i),
                    })
                    .collect();
                let started = Instant::now();
                let (samples, spent) = diffusion::generate(&model, requests, &settings)?;
                Ok(Measured {
                    seconds: started.elapsed().as_secs_f64(),
                    texts: samples.into_iter().map(|sample| sample.tokens).collect(),
                    tokens: (length * point.batch_size) as u64,
                    rows_forwarded: spent.rows_forwarded,
                    passes: spent.passes,
                    trunk_seconds: spent.trunk.as_secs_f64(),
                    head_seconds: spent.head.as_secs_f64(),
                    sampling_seconds: spent.sampling.as_secs_f64(),
                })
            });
        }
        let mut model = decoder(&self.config, &self.weights, compute, threads)?;
        model.freeze();
        let conditioning = tch::no_grad(|| model.conditioning());
        let mut generator = Generator::new(model.as_ref(), &conditioning, filter, threads);
        work(&mut |point, first| {
            let free = length - given.len();
            let requests = (0..point.batch_size as u64)
                .map(|i| {
                    let mut order = Vec::new();
                    orders.row(first + i, &mut order);
                    let mut stream = Stream::new(seed, Domain::Sample, first + i);
                    let groups = Schedule::Linear.groups(free, point.steps, &mut stream);
                    Request { order, given: given.clone(), groups, stream }
                })
                .collect();
            let method = point.speculative.map_or(Method::Groups, Method::Speculative);
            (generator.tally, generator.shares) = (Tally::default(), Shares::default());
            let started = Instant::now();
            let samples = method.generate(&mut generator, requests)?;
            let seconds = started.elapsed().as_secs_f64();
            let (tally, shares) = (generator.tally, generator.shares);
            Ok(Measured {
                seconds,
                texts: samples.into_iter().map(|sample| sample.tokens).collect(),
                tokens: (free * point.batch_size) as u64,
                rows_forwarded: tally.rows_forwarded,
                passes: tally.passes,
                trunk_seconds: shares.trunk.as_secs_f64(),
                head_seconds: shares.head.as_secs_f64(),
                sampling_seconds: shares.sampling.as_secs_f64(),
            })
        })
    }
}
