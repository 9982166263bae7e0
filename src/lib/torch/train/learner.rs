//! The part of a step that depends on the family: loss and gradients of one micro-batch.

use ao_core::config::{Family, ModelConfig};
use ao_core::objective::Objective;
use ao_core::{Error, Result};

use super::clock::Clock;
use super::masked::MaskedLearner;
use super::step;
use crate::device;
use crate::model::{Batch, Decoder, Encoder, HandNames, Weights, decoder};

/// One micro-batch and its place in the run.
#[derive(Clone, Copy)]
pub struct Micro<'a> {
    /// The sequences; those of encoders in text order.
    pub batch: &'a Batch,
    /// Number of the first one, counted over the whole run.
    pub index: u64,
    /// Number of the first one of the optimizer step.
    pub first: u64,
    /// Sequences of the step, over all micro-batches.
    pub count: u64,
    /// What the loss is multiplied by: one over the scored targets of the step.
    pub scale: f64,
    /// Dropout.
    pub dropout: f64,
}

/// A model over its weights, as it learns.
pub trait Learner {
    /// Adds the gradients of `scale · loss` to `gradients`; returns the loss, nats, summed over the
    /// sequences: their NLL along the orders, or the estimate of the bound on it.
    ///
    /// # Errors
    /// Data that the family cannot be trained on.
    fn accumulate(&self, micro: Micro, gradients: &Weights, clock: &mut Clock) -> Result<f64>;
}

/// The learner of `config`'s family over `weights`.
///
/// # Errors
/// When the objective is another family's.
pub fn learner(
    config: &ModelConfig,
    objective: Objective,
    weights: &Weights,
    place: &device::Place,
    seed: u64,
) -> Result<Box<dyn Learner>> {
    let noise = objective.noise();
    match (config.family(), noise) {
        (Family::Encoder, Some(noise)) => {
            let model = Encoder::new(config, weights, place.compute, place.threads)?;
            Ok(Box::new(MaskedLearner { model, noise, seed }))
        }
        (Family::AnyOrder | Family::LeftToRight, None) => {
            Ok(Box::new(OrderLearner(decoder(config, weights, place.compute, place.threads)?)))
        }
        _ => Err(Error::usage(format!(
            "--objective {}: not one of arch {}",
            objective.name(),
            config.arch()
        ))),
    }
}

/// Parameters of `config` whose gradients the learner writes by hand.
pub fn by_hand(config: &ModelConfig) -> HandNames {
    match config.family() {
        Family::Encoder => HandNames::of_encoder(),
        _ => HandNames::of_decoder(config),
    }
}

/// A causal model along orders.
struct OrderLearner(Box<dyn Decoder>);

impl Learner for OrderLearner {
    fn accumulate(&self, micro: Micro, gradients: &Weights, clock: &mut Clock) -> Result<f64> {
        let Micro { batch, scale, dropout, .. } = micro;
        let nll = step::accumulate(self.0.as_ref(), batch, scale, dropout, gradients, clock);
        Ok(nll.iter().sum())
    }
}
