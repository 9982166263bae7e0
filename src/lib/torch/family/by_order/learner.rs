//! Training along orders: the NLL of every token given those before it in the order.

use ao_core::Result;
use ao_core::family::ModelConfig;
use ao_core::orders::{OrderSource, OrderSpec};
use ao_core::process::order::UNIFORM;
use ao_core::score::Estimate;
use ao_core::tokens::Dataset;
use serde_json::Value;

use crate::clock::{Clock, Phase};
use crate::device::Runtime;
use crate::family::traits::{Build, Learner, Micro, ScoreSettings, Training, TrainingSettings};
use crate::network::attention::Causal;
use crate::network::{Network, OrderedTexts, Weights};

/// A checked plan of training along orders.
pub struct OrderTraining {
    build: Build,
    config: ModelConfig,
    name: String,
    orders: OrderSource,
}

impl OrderTraining {
    /// Opens the orders.
    ///
    /// # Errors
    /// Orders that the objective does not take, cannot be read, or end before the run.
    pub fn new(
        build: Build,
        config: &ModelConfig,
        settings: &TrainingSettings,
    ) -> Result<OrderTraining> {
        let name = config.training_orders(settings.objective, settings.orders.as_deref())?;
        let orders = OrderSource::open(&name, config.block_size(), settings.seed)?;
        if let Some(sequences) = settings.sequences {
            orders.require_rows(sequences)?;
        }
        Ok(OrderTraining { build, config: config.clone(), name, orders })
    }

    fn spec(&self) -> Option<&OrderSpec> {
        match &self.orders {
            OrderSource::Spec(stream) => Some(stream.spec()),
            _ => None,
        }
    }
}

impl Training for OrderTraining {
    fn estimate(&self) -> Estimate {
        match self.spec() {
            Some(spec) if spec.is_one_order() => Estimate::Exact,
            _ => Estimate::Bound,
        }
    }

    fn orders(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn describe(&self) -> Value {
        self.orders.describe()
    }

    fn is_piped(&self) -> bool {
        self.orders.is_pipe()
    }

    fn check(&self, _: &Dataset) -> Result<()> {
        Ok(())
    }

    /// Along the orders that it trains along, a curriculum's last ones; along uniform ones where
    /// rows come from a file or a pipe, which belong to the training sequences.
    fn validation(&self) -> ScoreSettings {
        let orders = self.spec().map_or_else(|| UNIFORM.to_owned(), |s| s.settled().to_string());
        ScoreSettings { orders: Some(orders), mc: 1, ..ScoreSettings::default() }
    }

    fn learner(
        self: Box<Self>,
        weights: &Weights,
        runtime: &Runtime,
    ) -> Result<(Box<dyn Learner>, Weights)> {
        let network = (self.build)(&self.config, weights, runtime);
        let gradients = weights.require_gradients(&network.base().names.list());
        Ok((Box::new(OrderLearner { network, orders: self.orders }), gradients))
    }
}

struct OrderLearner {
    network: Box<dyn Network>,
    orders: OrderSource,
}

impl Learner for OrderLearner {
    fn accumulate(&mut self, micro: Micro, gradients: &Weights, clock: &mut Clock) -> Result<f64> {
        let mut orders = vec![Vec::new(); micro.texts.len()];
        for ((index, order), text) in (micro.index..).zip(&mut orders).zip(micro.texts) {
            self.orders.row(index, text.len(), order)?;
        }
        let texts: Vec<&[u32]> = micro.texts.iter().map(Vec::as_slice).collect();
        let orders: Vec<&[u32]> = orders.iter().map(Vec::as_slice).collect();
        let texts = OrderedTexts::new(&texts, &orders)?;
        let (scale, dropout) = (micro.scale, micro.dropout);
        let nll = accumulate(self.network.as_ref(), &texts, scale, dropout, gradients, clock);
        Ok(nll.iter().sum())
    }
}

/// Adds the gradients of `scale · Σ NLL` over a micro-batch to `gradients`; returns the NLL of each
/// target, nats, (B, T − given) in generation order, 0 where padded.
pub fn accumulate(
    network: &dyn Network,
    texts: &OrderedTexts,
    scale: f64,
    dropout: f64,
    gradients: &Weights,
    clock: &mut Clock,
) -> Vec<f64> {
    let base = network.base();
    let given = base.given();
    if texts.length <= given {
        return Vec::new();
    }
    let rows = texts.rows(given, base.device());
    let hidden = network.forward(&rows, &mut Causal::new(dropout), dropout);
    clock.lap(Phase::Forward);
    let targets = texts.targets_after(given);
    let scales = vec![scale; targets.len()];
    let into = base.head_gradients(gradients);
    let (nll, hidden_gradient) =
        base.head.nll_with_gradients(&hidden.detach(), &targets, &scales, &into);
    clock.lap(Phase::Head);
    (&hidden * hidden_gradient).sum(hidden.kind()).backward();
    base.add_token_gradients(gradients);
    clock.lap(Phase::Backward);
    nll
}

#[cfg(test)]
#[path = "learner_tests.rs"]
mod tests;
