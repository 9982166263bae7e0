//! Adaptive orders: each step reveals the masked positions that the network is surest of.
//!
//! Source: "Train for the worst, plan for the best" (arXiv 2502.06768), which is about networks of
//! this kind: one pass says what every masked position would be. Rules, windows and ties are those
//! of [`crate::decode::adaptive`].

use ao_core::Result;
use tch::Tensor;

use super::draws::Network;
use super::{Making, Settings};
use crate::decode::adaptive::{AdaptiveOrder, surest};
use crate::model::Masked;

/// A sample's next step.
struct Step {
    /// Which sample.
    sample: usize,
    /// How many positions it reveals.
    size: usize,
    /// The positions that are ranked.
    ranked: Vec<u32>,
}

pub(super) fn run(
    network: &mut Network,
    making: &mut [Making],
    settings: &Settings,
    order: &AdaptiveOrder,
) -> Result<()> {
    let mut sizes: Vec<std::vec::IntoIter<usize>> = making
        .iter_mut()
        .map(|one| {
            let free = one.tokens.len() - one.given;
            let steps = settings.steps.unwrap_or(free);
            settings.schedule.groups(free, steps, &mut one.stream).into_iter()
        })
        .collect();
    loop {
        let step = |(sample, sizes): (usize, &mut std::vec::IntoIter<usize>)| {
            let size = sizes.next()?;
            let mut ranked = making[sample].hidden();
            ranked.truncate(order.window.unwrap_or(ranked.len()).max(size));
            Some(Step { sample, size, ranked })
        };
        let steps: Vec<Step> = sizes.iter_mut().enumerate().filter_map(step).collect();
        if steps.is_empty() {
            return Ok(());
        }
        for part in steps.chunks(settings.at_once.max(1)) {
            reveal(network, making, settings, order, part)?;
        }
    }
}

/// One pass and its draws.
fn reveal(
    network: &mut Network,
    making: &mut [Making],
    settings: &Settings,
    order: &AdaptiveOrder,
    steps: &[Step],
) -> Result<()> {
    let copies: Vec<Masked> = steps
        .iter()
        .map(|step| {
            let one = &making[step.sample];
            let masked = one.tokens.len() - one.order.len();
            let sigma = network.encoder.sigma_of_count(masked, one.tokens.len());
            one.masked(&step.ranked, sigma)
        })
        .collect();
    let hidden = network.pass(&copies);
    let (rule, used) = (order.rule, settings.filter.vocab_used);
    let confidence = network.rows(&hidden, &|_, logits, sampler| {
        sampler.check(logits)?;
        Ok(rule.confidence(&logits[..used.min(logits.len())]))
    })?;
    let (mut chosen, mut index, mut start) = (Vec::new(), Vec::new(), 0);
    let (mut owners, mut uniforms) = (Vec::new(), Vec::new());
    for (copy, step) in steps.iter().enumerate() {
        let end = start + step.ranked.len();
        let surest = surest(&confidence[start..end], step.size);
        for i in &surest {
            index.push((start + i) as i64);
            owners.push(copy);
            uniforms.push(making[step.sample].stream.uniform());
        }
        chosen.push(surest);
        start = end;
    }
    let index = Tensor::from_slice(&index).to_device(hidden.device());
    let seen = network.seen(&copies);
    let draws = network.draw(&hidden.index_select(0, &index), &owners, &seen, &uniforms)?;
    let mut draws = draws.into_iter();
    for (step, chosen) in steps.iter().zip(chosen) {
        let one = &mut making[step.sample];
        one.called();
        one.steps += 1;
        for (i, draw) in chosen.into_iter().zip(draws.by_ref()) {
            one.reveal(step.ranked[i], draw, None);
        }
    }
    Ok(())
}
