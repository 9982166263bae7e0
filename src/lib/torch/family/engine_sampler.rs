//! One way to decode over an engine, as the drivers use it.

use ao_core::family::{Capabilities, ModelConfig};
use ao_core::orders::OrderSource;
use ao_core::process::Orders;
use ao_core::process::score_entropy::Scores;
use ao_core::{Error, Result};
use serde_json::{Value, json};

use super::traits::Sampler;
use crate::decode::adaptive::{self, AdaptiveOrder};
use crate::decode::engine::Engine;
use crate::decode::plan::{along_order, first_hitting, reveal, tweedie};
use crate::decode::schedule::Schedule;
use crate::decode::settings::{DiffusionSampler, SampleSettings};
use crate::decode::template::PromptOrder;
use crate::decode::{Request, Sample, Tally, Template, analytic, rejection, speculative};

/// How the tokens of a sample are found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// In groups along a given order, each group in one pass.
    Groups,
    /// In groups that the network is most confident of.
    Adaptive(AdaptiveOrder),
    /// Masks are taken away at random, as the schedule says.
    Tweedie,
    /// The same for concrete scores.
    Analytic(Scores),
    /// The time of each reveal is drawn.
    FirstHitting,
    /// Along a given order, drafts tested in one pass.
    Speculative(usize),
    /// Along the best of several orders.
    Rejection(usize),
}

/// A way to decode.
pub struct EngineSampler {
    /// The engine.
    pub engine: Engine,
    arch: &'static str,
    capabilities: Capabilities,
    method: Method,
    orders: Option<String>,
    /// How masks are taken away, for records.
    named: Option<DiffusionSampler>,
    /// The network is conditioned on the time of each reveal, which a chain along an order has not.
    timed: bool,
    schedule: Schedule,
    steps: Option<usize>,
    prompt_order: PromptOrder,
}

impl EngineSampler {
    /// `method` over `engine`, along `orders` where it takes any.
    pub fn new(
        engine: Engine,
        config: &ModelConfig,
        method: Method,
        orders: Option<String>,
        settings: &SampleSettings,
    ) -> EngineSampler {
        EngineSampler {
            engine,
            arch: config.arch(),
            capabilities: config.capabilities().clone(),
            method,
            orders,
            named: None,
            timed: false,
            schedule: settings.schedule,
            steps: settings.steps,
            prompt_order: settings.prompt_order,
        }
    }

    /// The same, which records call `sampler`; `timed` says that the network is conditioned on the
    /// time of each reveal.
    pub fn named(self, sampler: DiffusionSampler, timed: bool) -> EngineSampler {
        EngineSampler { named: Some(sampler), timed, ..self }
    }
}

impl Sampler for EngineSampler {
    fn orders(&self) -> Option<&str> {
        self.orders.as_deref()
    }

    fn describe(&self, orders: &OrderSource) -> Value {
        match self.method {
            Method::Adaptive(order) => json!({ "spec": order.to_string() }),
            Method::Rejection(count) => json!({ "best_of_random": count }),
            Method::Groups | Method::Speculative(_) => orders.describe(),
            Method::Tweedie | Method::Analytic(_) | Method::FirstHitting => Value::Null,
        }
    }

    fn suit(&self, template: &mut Template, eos: Option<u32>) -> Result<()> {
        let arch = self.arch;
        if let Some(masks) = self.capabilities.masks
            && template.tokens.contains(&Some(masks.id as u32))
        {
            return Err(Error::usage(format!(
                "--infill: id {} is given and is the model's mask_id; say null or ___ for a gap",
                masks.id
            )));
        }
        if !self.capabilities.predicts_first && template.tokens.iter().all(Option::is_none) {
            let eos = eos.filter(|&id| (id as usize) < self.engine.filter.vocab_used);
            let eos = eos.ok_or_else(|| {
                Error::usage(format!(
                    "--prompt: {arch} does not predict its first token, and there is no end token \
                     to begin with; give a prompt"
                ))
            })?;
            template.tokens[0] = Some(eos);
        }
        if self.capabilities.orders == Orders::LeftToRight {
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

    fn draw(&mut self, requests: Vec<Request>) -> Result<Vec<Sample>> {
        let (engine, schedule, steps) = (&mut self.engine, self.schedule, self.steps);
        let mut sequences = engine.start(requests);
        let batch = sequences.as_mut_slice();
        match self.method {
            Method::Groups => {
                let plan = |s| along_order(engine, s, schedule, steps);
                let plans = batch.iter_mut().map(plan).collect();
                reveal(engine, batch, plans)?;
            }
            Method::Tweedie => {
                let plans = batch.iter_mut().map(|s| tweedie(engine, s, schedule, steps)).collect();
                reveal(engine, batch, plans)?;
            }
            Method::FirstHitting => {
                let plans = batch.iter_mut().map(|s| first_hitting(engine, s)).collect();
                reveal(engine, batch, plans)?;
            }
            Method::Adaptive(order) => adaptive::run(engine, batch, &order, schedule, steps)?,
            Method::Analytic(scores) => analytic::run(engine, batch, scores, schedule, steps)?,
            Method::Speculative(depth) => speculative::run(engine, batch, depth)?,
            Method::Rejection(count) => rejection::run(engine, batch, count)?,
        }
        Ok(engine.finish(sequences))
    }

    fn distribution(&self, drawn: usize, steps: usize) -> &'static str {
        match self.method {
            _ if self.timed => "timed",
            Method::Rejection(_) => "approximate",
            Method::Speculative(_) => "exact",
            _ if steps < drawn => "factorised",
            _ => "exact",
        }
    }

    fn name(&self) -> Option<&'static str> {
        self.named.map(DiffusionSampler::name)
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.engine.tally
    }
}
