//! Loss and gradients of one micro-batch.

use tch::Tensor;

use crate::model::{AoGpt, Batch, CausalAttention, HeadGradients, Weights};

/// Parameters whose gradients are added by hand: the head's come with the loss, and the token
/// table's need only the rows that occur, not a second table.
pub const BY_HAND: [&str; 3] = ["transformer.wte.weight", "lm_head.weight", "lm_head.bias"];

/// Adds the gradients of `scale · Σ NLL` over a micro-batch to `gradients`; returns the NLL of each
/// target, nats, (B·T), 0 where padded.
pub fn accumulate(
    model: &AoGpt,
    batch: &Batch,
    scale: f64,
    dropout: f64,
    gradients: &Weights,
) -> Vec<f64> {
    let device = model.device();
    let c = model.config().n_embd as i64;
    let order = batch.order_tensor(device);
    let held = batch.tokens_tensor(device).narrow(1, 0, batch.length as i64 - 1).contiguous();
    let token_rows = tch::no_grad(|| model.token_rows(&held)).detach().set_requires_grad(true); // (B, T−1, C)
    let conditioning = model.conditioning();
    let rows = model.input_rows(&token_rows, &order);
    let mut attend = CausalAttention { dropout };
    let hidden = model.forward(&rows, &order, &conditioning, &mut attend, dropout);
    let head = HeadGradients {
        weight: gradients.get("lm_head.weight"),
        bias: gradients.find("lm_head.bias"),
    };
    let (nll, hidden_gradient) =
        model.head().nll_with_gradients(&hidden.detach(), &batch.targets, scale, &head);
    (&hidden * hidden_gradient).sum(hidden.kind()).backward();
    if batch.length > 1 {
        tch::no_grad(|| {
            let rows: Tensor = token_rows.grad().view([-1, c]);
            let _ = gradients.get(BY_HAND[0]).index_add_(0, &held.view([-1]), &rows);
        });
    }
    nll
}
