//! Loss and gradients of one micro-batch of masked diffusion.
//!
//! Each sequence is masked at its own noise level ([`ao_core::masking`]). Only masked rows go through
//! the head; each weighs what its sequence's level says, so that the sum over a sequence has the
//! bound on its NLL, in nats, as its expectation.

use ao_core::config::{LogLinear, ModelConfig};
use ao_core::masking::{Draw, Level, Place, Spread, training_draw};
use ao_core::{Error, Result};
use tch::Tensor;

use super::clock::{Clock, Phase};
use super::learner::{Learner, Micro};
use crate::model::{Batch, Encoder, HandNames, Weights};

/// Masked sequences, and what their losses are made of.
pub struct Noised {
    /// Ids with the mask's among them, i64 (B, T), 0 where padded.
    pub tokens: Tensor,
    /// Tokens of each sequence.
    pub lengths: Vec<usize>,
    /// σ̄ of each sequence; 0 where the family is not told the time.
    pub sigma: Vec<f64>,
    /// Masked rows among the B·T.
    pub rows: Vec<i64>,
    /// The true id of each of them.
    pub targets: Vec<i64>,
    /// The sequence of each.
    pub sequences: Vec<usize>,
    /// What the losses of each sequence are multiplied by.
    pub weights: Vec<f64>,
}

impl Noised {
    /// Hides tokens of a batch, whose sequences are in text order, as `draws` say.
    ///
    /// # Errors
    /// When the text holds the mask's own id, which would be hidden from the start.
    pub fn new(model: &Encoder, batch: &Batch, draws: &[Draw]) -> Result<Noised> {
        let mask = model.shape().mask_id as i64;
        if batch.targets.contains(&mask) {
            return Err(Error::usage(format!(
                "--shards: the text holds id {mask}, which is the model's mask_id; tokenize it \
                 without that token"
            )));
        }
        let mut tokens = batch.tokens.clone();
        let (mut rows, mut targets, mut sequences) = (Vec::new(), Vec::new(), Vec::new());
        for (b, draw) in draws.iter().enumerate() {
            for &position in &draw.masked {
                let at = b * batch.length + position;
                rows.push(at as i64);
                targets.push(batch.targets[at]);
                sequences.push(b);
                tokens[at] = mask;
            }
        }
        let shape = [batch.sequences as i64, batch.length as i64];
        Ok(Noised {
            tokens: Tensor::from_slice(&tokens).view(shape).to_device(model.device()),
            lengths: lengths(batch),
            sigma: draws.iter().map(|draw| model.sigma_at(draw.time)).collect(),
            rows,
            targets,
            sequences,
            weights: draws.iter().map(|draw| draw.weight).collect(),
        })
    }

    /// The masked rows of the head's input (B, T, C): (N, C).
    fn masked_rows(&self, hidden: &Tensor) -> Tensor {
        let c = *hidden.size().last().unwrap_or(&1);
        let rows = Tensor::from_slice(&self.rows).to_device(hidden.device());
        hidden.reshape([-1, c]).index_select(0, &rows)
    }

    /// SEDD's shift of each masked row; `None` where the loss is an NLL.
    fn shifts(&self, model: &Encoder) -> Option<Vec<f64>> {
        matches!(model.config(), ModelConfig::Sedd(_))
            .then(|| self.sequences.iter().map(|&b| model.score_shift(self.sigma[b])).collect())
    }

    /// Each sequence's weighted sum over its masked rows.
    fn sums(&self, losses: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.lengths.len()];
        for (&b, loss) in self.sequences.iter().zip(losses) {
            sums[b] += self.weights[b] * loss;
        }
        sums
    }

    /// The estimate of the bound on each sequence's NLL, nats, without gradients.
    pub fn bounds(&self, model: &Encoder) -> Vec<f64> {
        if self.rows.is_empty() {
            return self.sums(&[]);
        }
        let hidden = model.hidden(&self.tokens, &self.lengths, &self.sigma);
        let hidden = tch::no_grad(|| self.masked_rows(&hidden));
        self.sums(&match self.shifts(model) {
            Some(shifts) => model.head().score_entropy(&hidden, &self.targets, &shifts),
            None => model.head().nll(&hidden, &self.targets),
        })
    }
}

/// Tokens of each sequence of a batch.
fn lengths(batch: &Batch) -> Vec<usize> {
    let rows = batch.targets.chunks(batch.length.max(1));
    rows.map(|targets| targets.iter().filter(|&&t| t >= 0).count()).collect()
}

/// An encoder that learns from masked sequences.
pub struct MaskedLearner {
    /// The model over its weights.
    pub model: Encoder,
    /// What the noise level is, and how a step's sequences spread over it.
    pub noise: (Level, Spread),
    /// The run's seed.
    pub seed: u64,
}

impl MaskedLearner {
    /// The masks of a micro-batch.
    fn draws(&self, micro: &Micro) -> Vec<Draw> {
        let schedule: LogLinear = self.model.noise();
        let place =
            |index| Place { seed: self.seed, index, first: micro.first, count: micro.count };
        let lengths = lengths(micro.batch).into_iter();
        (micro.index..)
            .zip(lengths)
            .map(|(index, length)| training_draw(self.noise, schedule, place(index), length))
            .collect()
    }
}

impl Learner for MaskedLearner {
    fn accumulate(&self, micro: Micro, gradients: &Weights, clock: &mut Clock) -> Result<f64> {
        let noised = Noised::new(&self.model, micro.batch, &self.draws(&micro))?;
        Ok(accumulate(&self.model, &noised, micro.scale, micro.dropout, gradients, clock))
    }
}

/// Adds the gradients of `scale` · Σ of the sequences' estimates to `gradients`; returns that sum,
/// in nats.
pub fn accumulate(
    model: &Encoder,
    noised: &Noised,
    scale: f64,
    dropout: f64,
    gradients: &Weights,
    clock: &mut Clock,
) -> f64 {
    if noised.rows.is_empty() {
        return 0.0; // nothing was hidden: no loss, no gradient
    }
    let token_rows =
        tch::no_grad(|| model.token_rows(&noised.tokens)).detach().set_requires_grad(true);
    let hidden = model.forward(&token_rows, &noised.lengths, &noised.sigma, dropout);
    let hidden = noised.masked_rows(&hidden); // (N, C)
    clock.lap(Phase::Forward);
    let scales: Vec<f64> = noised.sequences.iter().map(|&b| scale * noised.weights[b]).collect();
    let (head, into) = (model.head(), model.head_gradients(gradients));
    let (input, targets) = (hidden.detach(), &noised.targets);
    let (losses, hidden_gradient) = match noised.shifts(model) {
        Some(shifts) => head.score_entropy_with_gradients(&input, targets, &shifts, &scales, &into),
        None => head.nll_with_gradients(&input, targets, &scales, &into),
    };
    clock.lap(Phase::Head);
    (&hidden * hidden_gradient).sum(hidden.kind()).backward();
    tch::no_grad(|| {
        let c = *token_rows.size().last().unwrap_or(&1);
        let table = gradients.get(HandNames::of_encoder().token_table);
        let rows = token_rows.grad().view([-1, c]);
        let _ = table.shallow_clone().index_add_(0, &noised.tokens.view([-1]), &rows);
    });
    clock.lap(Phase::Backward);
    noised.sums(&losses).iter().sum()
}

#[cfg(test)]
#[path = "masked_tests.rs"]
mod tests;
