//! Training on masked texts: loss and gradients of one micro-batch.
//!
//! Each sequence is masked at its own noise level ([`ao_core::process::masking`]). Only masked rows
//! go through the head; each weighs what its sequence's level says, so that the sum over a sequence
//! has the bound on its NLL, in nats, as its expectation.

use ao_core::family::ModelConfig;
use ao_core::process::masking::Place;
use ao_core::process::{MaskDraw, Masking};
use ao_core::score::Estimate;
use ao_core::tokens::Dataset;
use ao_core::{Error, Result};
use serde_json::Value;
use tch::Tensor;

use super::bound::Bound;
use super::questions::holds_mask;
use crate::clock::{Clock, Phase};
use crate::device::Runtime;
use crate::family::traits::{Build, Learner, Micro, ScoreSettings, Training, TrainingSettings};
use crate::network::{Network, Weights, forward_masked, masks};

/// Masks of a sequence in a validation.
const DRAWS: u64 = 4;

/// A checked plan of training on masked texts.
pub struct MaskTraining {
    build: Build,
    config: ModelConfig,
    masking: Masking,
    seed: u64,
}

impl MaskTraining {
    /// Checks the settings.
    ///
    /// # Errors
    /// Orders, which this way of training has not.
    pub fn new(
        build: Build,
        config: &ModelConfig,
        settings: &TrainingSettings,
    ) -> Result<MaskTraining> {
        if let Some(orders) = &settings.orders {
            return Err(Error::usage(format!(
                "--orders {orders}: {} is trained on masks and has no orders; leave it out",
                config.arch()
            )));
        }
        let masks = config.capabilities().masks.as_ref();
        let masking = masks.and_then(|masks| Masking::of(settings.objective, masks));
        let masking = masking.ok_or_else(|| {
            let (objective, arch) = (settings.objective.name(), config.arch());
            Error::usage(format!("--objective {objective}: not one of arch {arch}"))
        })?;
        Ok(MaskTraining { build, config: config.clone(), masking, seed: settings.seed })
    }
}

impl Training for MaskTraining {
    fn estimate(&self) -> Estimate {
        Bound { masking: self.masking }.estimate()
    }

    fn orders(&self) -> Option<&str> {
        None
    }

    fn describe(&self) -> Value {
        Value::Null
    }

    fn is_piped(&self) -> bool {
        false
    }

    /// A text must not hold the mask's id: it would be hidden from the start, and its true token has
    /// no probability. Nothing is read where the mask is a row behind the text's ids.
    fn check(&self, dataset: &Dataset) -> Result<()> {
        let mask = self.config.mask_id().filter(|&mask| mask < dataset.vocab_size());
        let Some(mask) = mask else { return Ok(()) };
        match dataset.find(mask as u32)? {
            None => Ok(()),
            Some(at) => Err(Error::input_at(
                dataset.path(),
                format!(
                    "token {at} is id {mask}, which is the model's mask_id; tokenize the text \
                     without it"
                ),
            )),
        }
    }

    fn validation(&self) -> ScoreSettings {
        ScoreSettings { bound: Some(None), mc: DRAWS, ..ScoreSettings::default() }
    }

    fn learner(
        self: Box<Self>,
        weights: &Weights,
        runtime: &Runtime,
    ) -> Result<(Box<dyn Learner>, Weights)> {
        let network = (self.build)(&self.config, weights, runtime);
        let gradients = weights.require_gradients(&network.base().names.list());
        Ok((Box::new(MaskLearner { network, masking: self.masking, seed: self.seed }), gradients))
    }
}

struct MaskLearner {
    network: Box<dyn Network>,
    masking: Masking,
    seed: u64,
}

impl Learner for MaskLearner {
    fn accumulate(&mut self, micro: Micro, gradients: &Weights, clock: &mut Clock) -> Result<f64> {
        let place =
            |index| Place { seed: self.seed, index, first: micro.first, count: micro.count };
        let draws: Vec<MaskDraw> = (micro.index..)
            .zip(micro.texts)
            .map(|(index, text)| self.masking.training_draw(place(index), text.len()))
            .collect();
        let network = self.network.as_ref();
        let masked = MaskedTexts::new(network, micro.texts, &draws)?;
        Ok(accumulate(network, &masked, micro.scale, micro.dropout, gradients, clock))
    }
}

/// Masked texts together, and what their losses are made of.
pub struct MaskedTexts {
    /// Ids with the mask's among them, i64 (B, T), 0 where padded.
    pub tokens: Tensor,
    /// Tokens of each text.
    pub lengths: Vec<usize>,
    /// σ̄ of each text; 0 where the network is not conditioned on the time.
    pub sigma: Vec<f64>,
    /// Masked rows among the B·T.
    pub rows: Vec<i64>,
    /// The true id of each of them.
    pub targets: Vec<i64>,
    /// The text of each.
    pub owners: Vec<usize>,
    /// What the losses of each text are multiplied by.
    pub weights: Vec<f64>,
}

impl MaskedTexts {
    /// Hides tokens of texts as `draws` say.
    ///
    /// # Errors
    /// When a text holds the mask's own id.
    pub fn new(
        network: &dyn Network,
        texts: &[Vec<u32>],
        draws: &[MaskDraw],
    ) -> Result<MaskedTexts> {
        let masks = masks(network);
        if texts.iter().any(|text| text.contains(&(masks.id as u32))) {
            return Err(holds_mask(masks.id as u32));
        }
        let width = texts.iter().map(Vec::len).max().unwrap_or(0);
        let mut tokens = vec![0i64; texts.len() * width];
        let (mut rows, mut targets, mut owners) = (Vec::new(), Vec::new(), Vec::new());
        for (b, (text, draw)) in texts.iter().zip(draws).enumerate() {
            let line = &mut tokens[b * width..];
            line.iter_mut().zip(text).for_each(|(id, &token)| *id = i64::from(token));
            for &position in &draw.masked {
                rows.push((b * width) as i64 + i64::from(position));
                targets.push(i64::from(text[position as usize]));
                owners.push(b);
                line[position as usize] = masks.id as i64;
            }
        }
        let shape = [texts.len() as i64, width as i64];
        Ok(MaskedTexts {
            tokens: Tensor::from_slice(&tokens).view(shape).to_device(network.base().device()),
            lengths: texts.iter().map(Vec::len).collect(),
            sigma: draws.iter().map(|draw| masks.sigma_at(draw.time)).collect(),
            rows,
            targets,
            owners,
            weights: draws.iter().map(|draw| draw.weight).collect(),
        })
    }

    /// The masked rows of the head's input (B, T, C): (N, C).
    fn masked_rows(&self, hidden: &Tensor) -> Tensor {
        let c = *hidden.size().last().unwrap_or(&1);
        let rows = Tensor::from_slice(&self.rows).to_device(hidden.device());
        hidden.reshape([-1, c]).index_select(0, &rows)
    }
}

/// Adds the gradients of `scale` · Σ of the texts' estimates to `gradients`; returns that sum, in
/// nats.
pub fn accumulate(
    network: &dyn Network,
    masked: &MaskedTexts,
    scale: f64,
    dropout: f64,
    gradients: &Weights,
    clock: &mut Clock,
) -> f64 {
    if masked.rows.is_empty() {
        return 0.0; // nothing was hidden: no loss, no gradient
    }
    let tokens = masked.tokens.shallow_clone();
    let hidden = forward_masked(network, tokens, &masked.lengths, &masked.sigma, dropout);
    let hidden = masked.masked_rows(&hidden); // (N, C)
    clock.lap(Phase::Forward);
    let base = network.base();
    let scales: Vec<f64> = masked.owners.iter().map(|&b| scale * masked.weights[b]).collect();
    let (head, into) = (&base.head, base.head_gradients(gradients));
    let (input, targets) = (hidden.detach(), &masked.targets);
    let (losses, hidden_gradient) = match masks(network).scores {
        Some(scores) => {
            let shifts: Vec<f64> =
                masked.owners.iter().map(|&b| scores.shift(masked.sigma[b])).collect();
            head.score_entropy_with_gradients(&input, targets, &shifts, &scales, &into)
        }
        None => head.nll_with_gradients(&input, targets, &scales, &into),
    };
    clock.lap(Phase::Head);
    (&hidden * hidden_gradient).sum(hidden.kind()).backward();
    base.add_token_gradients(gradients);
    clock.lap(Phase::Backward);
    masked.owners.iter().zip(losses).map(|(&b, loss)| masked.weights[b] * loss).sum()
}

#[cfg(test)]
#[path = "learner_tests.rs"]
mod tests;
