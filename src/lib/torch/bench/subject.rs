//! A model, and one generation of it.

use std::time::Instant;

use ao_core::family::ModelConfig;
use ao_core::orders::{OrderSpec, OrderStream};
use ao_core::process::Orders;
use ao_core::rng::{Domain, Stream};
use ao_core::{Error, Result};

use super::args::{BenchArgs, Point};
use crate::decode::filter::Filter;
use crate::decode::settings::Drafts;
use crate::decode::{Request, SampleSettings, Tally};
use crate::device::Runtime;
use crate::family::{self, Model, Sampler};
use crate::network::{Loaded, Weights};

/// A model to time.
pub(super) struct Subject {
    pub config: ModelConfig,
    weights: Weights,
    pub vocab_used: usize,
    /// The files of the weights.
    pub inputs: Vec<ao_core::cli::Input>,
}

/// One timed generation.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// The samples: token ids in text order.
    pub texts: Vec<Vec<u32>>,
    pub seconds: f64,
    pub tokens: u64,
    pub tally: Tally,
}

impl Subject {
    /// The model that the flags name.
    pub fn open(args: &BenchArgs, runtime: &Runtime) -> Result<Subject> {
        if args.checkpoint.ckpt.is_some() {
            let loaded = Loaded::open(&args.checkpoint, runtime)?;
            let vocab_used = loaded.vocab_used();
            let Loaded { config, weights, inputs, .. } = loaded;
            return Ok(Subject { config, weights, vocab_used, inputs });
        }
        let Some(path) = &args.model else {
            return Err(Error::usage("--ckpt: give a checkpoint, or --model and random weights"));
        };
        let config = ModelConfig::load(path)?;
        let weights = Weights::init(&config, args.seed.seed, runtime.device);
        let inputs = vec![ao_core::cli::Input::of_file(path)?];
        Ok(Subject { vocab_used: config.vocab_size(), config, weights, inputs })
    }

    /// Number of given tokens: 1 if the family does not predict the first token.
    pub fn given(&self) -> usize {
        usize::from(!self.config.predicts_first())
    }

    /// The sampler of a point.
    ///
    /// # Errors
    /// When the family cannot sample in this way.
    pub fn sampler(
        &self,
        point: &Point,
        free: usize,
        filter: &Filter,
        runtime: &Runtime,
    ) -> Result<Box<dyn Sampler>> {
        let one_a_step =
            point.steps == free && self.config.capabilities().orders == Orders::LeftToRight;
        let settings = SampleSettings {
            steps: Some(point.steps).filter(|_| !one_a_step),
            drafts: point.speculative.map(Drafts::Speculative),
            ..SampleSettings::plain(filter.clone())
        };
        let model = Model { config: &self.config, weights: &self.weights, runtime };
        family::of(&self.config)?.sampler(model, &settings)
    }

    /// Times one generation of a point; `first` numbers its first sample.
    ///
    /// # Errors
    /// As [`Sampler::draw`].
    pub fn generate(
        &self,
        sampler: &mut dyn Sampler,
        point: &Point,
        (seed, length, first): (u64, usize, u64),
    ) -> Result<Measured> {
        let orders = OrderSpec::parse(sampler.orders().unwrap_or("l2r"))?;
        let orders = OrderStream::new(orders, length, seed)?;
        let given = self.given();
        let requests = (0..point.batch_size as u64)
            .map(|i| {
                let mut order = Vec::new();
                orders.row(first + i, &mut order);
                let stream = Stream::new(seed, Domain::Sample, first + i);
                Request { order, given: vec![0; given], stream }
            })
            .collect();
        *sampler.tally() = Tally::default();
        let started = Instant::now();
        let samples = sampler.draw(requests)?;
        let seconds = started.elapsed().as_secs_f64();
        let texts: Vec<Vec<u32>> = samples.iter().map(|sample| sample.tokens.clone()).collect();
        let tokens = samples.iter().map(|sample| sample.nll.len() as u64).sum();
        Ok(Measured { texts, seconds, tokens, tally: *sampler.tally() })
    }
}
