//! NLL along orders.

use ao_core::process::Orders;
use ao_core::process::order::UNIFORM;
use ao_core::score::{Cost, Estimate, Manner};
use ao_core::{Error, Result};
use serde_json::Value;

use super::ensemble::Ensemble;
use crate::decode::few_row::FewRow;
use crate::family::traits::{ScoreSettings, Scored, Scorer, Work};
use crate::network::attention::Causal;
use crate::network::{Network, OrderedTexts};

/// A causal network that scores, and what it has cost so far.
pub struct OrderScorer {
    /// The network.
    pub network: Box<dyn Network>,
    orders: String,
    ensemble: Option<Ensemble>,
    /// Its passes in ensembles.
    few_row: Option<FewRow>,
    cost: Cost,
}

impl OrderScorer {
    /// A scorer as the settings say.
    ///
    /// # Errors
    /// Settings of other families, and orders that this one does not take.
    pub fn new(network: Box<dyn Network>, settings: &ScoreSettings) -> Result<OrderScorer> {
        let config = &network.base().config;
        let arch = config.arch();
        if settings.bound.is_some() {
            return Err(Error::usage(format!(
                "--elbo: {arch} is scored along orders, and its bound is the mean over --orders \
                 uniform; leave it out"
            )));
        }
        if settings.masks.is_some() {
            return Err(Error::usage(format!(
                "--masks: {arch} is scored along orders; leave it out"
            )));
        }
        // Along which order spans are scored follows from the spans.
        let named = if settings.spans { Some("l2r") } else { settings.orders.as_deref() };
        let orders = config.orders(named, UNIFORM)?;
        if let Some(ensemble) = &settings.ensemble
            && config.capabilities().orders == Orders::LeftToRight
        {
            return Err(Error::usage(format!(
                "--ensemble {}: {arch} has one ordering of a context; it takes an any-order model",
                ensemble.size
            )));
        }
        let ensemble = settings.ensemble.clone().map(|e| Ensemble {
            size: e.size,
            curve: e.curve,
            positions: e.positions,
            seed: settings.seed,
            given: network.base().given(),
        });
        let few_row = ensemble.as_ref().and_then(|_| FewRow::new(network.as_ref()));
        Ok(OrderScorer { network, orders, ensemble, few_row, cost: Cost::default() })
    }

    /// Along the works' orders. On a CPU only texts of one length go through the network together:
    /// the shapes of its products, and so their rounding, do not depend on the neighbours.
    fn along(&mut self, works: &[Work]) -> Result<Vec<Scored>> {
        let on_cpu = self.network.base().device() == tch::Device::Cpu;
        let mut scored = Vec::with_capacity(works.len());
        for part in works.chunk_by(|a, b| !on_cpu || a.tokens.len() == b.tokens.len()) {
            let tokens: Vec<&[u32]> = part.iter().map(|w| w.tokens.as_slice()).collect();
            let orders: Vec<&[u32]> = part.iter().map(|w| w.order.as_slice()).collect();
            let mut texts = OrderedTexts::new(&tokens, &orders)?;
            for (work, targets) in part.iter().zip(texts.targets.chunks_mut(texts.length.max(1))) {
                leave_out(work, targets);
            }
            let (nll, targets) = nll(self.network.as_ref(), &texts);
            let width = texts.length.saturating_sub(self.network.base().given());
            for (at, work) in part.iter().enumerate() {
                let rows = at * width..(at + 1) * width;
                let pairs = targets[rows.clone()].iter().zip(&nll[rows]);
                let nll: Vec<f64> = pairs.filter(|(t, _)| **t >= 0).map(|(_, &x)| x).collect();
                let given = self.network.base().given();
                self.cost.rows_forwarded += work.tokens.len().saturating_sub(given) as u64;
                self.cost.rows_through_head += nll.len() as u64;
                let sum = nll.iter().sum();
                scored.push(Scored { nth: work.nth, sum, curve: None, subset: None, nll });
            }
        }
        Ok(scored)
    }
}

/// NLL of every target of texts along their orders, nats, and the targets, (B, T − given); 0 where a
/// target is negative.
pub fn nll(network: &dyn Network, texts: &OrderedTexts) -> (Vec<f64>, Vec<i64>) {
    let base = network.base();
    let given = base.given();
    if texts.length <= given {
        return (Vec::new(), Vec::new());
    }
    let rows = texts.rows(given, base.device());
    let targets = texts.targets_after(given);
    let hidden = tch::no_grad(|| network.forward(&rows, &mut Causal::default(), 0.0));
    (base.head.nll(&hidden, &targets), targets)
}

impl Scorer for OrderScorer {
    fn orders(&self) -> Option<&str> {
        Some(&self.orders)
    }

    fn given(&self) -> usize {
        self.network.base().given()
    }

    fn score(&mut self, works: &[Work]) -> Result<Vec<Scored>> {
        match &self.ensemble {
            None => self.along(works),
            Some(ensemble) => {
                // On a CPU the contexts of one work alone share passes, for the same reason.
                let on_cpu = self.network.base().device() == tch::Device::Cpu;
                let mut scored = Vec::with_capacity(works.len());
                for part in works.chunks(if on_cpu { 1 } else { works.len().max(1) }) {
                    let passes = (self.network.as_ref(), self.few_row.as_ref());
                    scored.extend(ensemble.score(passes, part, &mut self.cost)?);
                }
                Ok(scored)
            }
        }
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn estimate(&self) -> Option<Estimate> {
        self.ensemble.as_ref().filter(|e| e.size > 1).map(|_| Estimate::Ensemble)
    }

    fn manner(&self) -> Manner {
        Manner::default()
    }

    fn draws(&self) -> Option<Value> {
        None
    }

    fn curve_sizes(&self) -> Option<Vec<usize>> {
        self.ensemble.as_ref().filter(|e| e.curve).map(Ensemble::sizes)
    }
}

/// Takes the targets out that a work does not score.
fn leave_out(work: &Work, targets: &mut [i64]) {
    let Some(held) = &work.held else { return };
    for (position, target) in work.order.iter().zip(targets) {
        if held.binary_search(position).is_err() {
            *target = -1;
        }
    }
}
