//! Loss and gradients of one micro-batch.

use tch::Tensor;

use super::clock::{Clock, Phase};
use crate::model::{Batch, CausalAttention, Decoder, HandNames, HeadGradients, Weights};

/// Adds the gradients of `scale · Σ NLL` over a micro-batch to `gradients`; returns the NLL of each
/// target, nats, (B·T) in generation order, 0 where padded or given.
pub fn accumulate(
    model: &dyn Decoder,
    batch: &Batch,
    scale: f64,
    dropout: f64,
    gradients: &Weights,
    clock: &mut Clock,
) -> Vec<f64> {
    let given = model.given();
    if batch.length <= given {
        return vec![0.0; batch.targets.len()];
    }
    let device = model.device();
    let c = model.config().n_embd() as i64;
    let names = HandNames::of_decoder(model.config());
    let order = batch.order_tensor(device);
    let held = batch.tokens_tensor(device).narrow(1, 0, batch.length as i64 - 1).contiguous();
    let token_rows = tch::no_grad(|| model.token_rows(&held)).detach().set_requires_grad(true); // (B, T−1, C)
    let conditioning = model.conditioning();
    let rows = model.input_rows(&token_rows, &order);
    let mut attend = CausalAttention { dropout };
    let targets = model.targets(&order);
    let hidden = model.forward(&rows, &targets, &conditioning, &mut attend, dropout);
    clock.lap(Phase::Forward);
    let head = HeadGradients {
        weight: gradients.get(names.head_weight),
        bias: gradients.find(names.head_bias),
    };
    let targets = batch.targets_after(given);
    let scales = vec![scale; targets.len()];
    let (nll, hidden_gradient) =
        model.head().nll_with_gradients(&hidden.detach(), &targets, &scales, &head);
    clock.lap(Phase::Head);
    (&hidden * hidden_gradient).sum(hidden.kind()).backward();
    if batch.length > 1 {
        tch::no_grad(|| {
            let rows: Tensor = token_rows.grad().view([-1, c]);
            let _ = gradients.get(names.token_table).index_add_(0, &held.view([-1]), &rows);
        });
    }
    clock.lap(Phase::Backward);
    batch.with_given(given, nll)
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
