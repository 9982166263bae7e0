//! SEDD's analytic (Tweedie) step (arXiv 2310.16834, papers 4d).
//!
//! From noise σ̄(t) to σ̄(s), with dσ their difference, the published step multiplies the staggered
//! score by a row of the transition matrix. For a masked token that comes to: it is y with
//! probability (e^dσ − 1)·s_y and stays masked with what is left of 1. Where the scores are not
//! exact they may add up to more than that allows; what is left is then negative, and the token is
//! revealed. A last step, at [`LAST`], reveals what is masked still.
//!
//! A step takes two uniforms for each masked position in ascending order: whether, then which.

use ao_core::Result;

use super::draws::Network;
use super::{Making, Settings, not_finite, plan};
use crate::decode::law::{Draw, Sampler};
use crate::kernels::categorical;
use crate::model::Masked;

/// The time of the last step, as in the published code.
pub const LAST: f64 = 1e-5;

/// The probability that a masked token is revealed when the noise falls by `dsigma`, given ln of
/// the sum of its scores over real ids; above 1 where scores are not exact.
pub fn reveal_probability(log_sum_scores: f64, dsigma: f64) -> f64 {
    dsigma.exp_m1() * log_sum_scores.exp()
}

/// ln Σ exp of a row of logits, in f64; `None` where that is not finite.
pub fn log_sum(logits: &[f32], sums: &mut Vec<f64>) -> Option<f64> {
    let (max, bad) = categorical::row_max(logits);
    if bad || max == f32::NEG_INFINITY {
        return None;
    }
    categorical::span_sums(logits, max, 1.0, sums);
    Some(sums.iter().sum::<f64>().ln() + f64::from(max))
}

/// A row of a step: the uniforms of whether and which, and from which noise to which.
#[derive(Clone, Copy)]
struct Row {
    uniforms: [f64; 2],
    /// Log-scores are logits less this.
    offset: f64,
    /// `None` in the last step, which reveals everything.
    dsigma: Option<f64>,
}

pub(super) fn run(network: &mut Network, making: &mut [Making], settings: &Settings) -> Result<()> {
    let steps =
        making.iter().map(|m| settings.steps.unwrap_or(m.tokens.len()).max(1)).collect::<Vec<_>>();
    let most = steps.iter().copied().max().unwrap_or(0);
    let time =
        |i: usize, steps: usize| LAST + (1.0 - LAST) * plan::share(settings.schedule, i, steps);
    for step in 0..=most {
        let active: Vec<(usize, Vec<u32>)> = (0..making.len())
            .filter(|&i| step <= steps[i])
            .map(|i| (i, making[i].hidden()))
            .filter(|(_, hidden)| !hidden.is_empty())
            .collect();
        if active.is_empty() {
            break; // a sample whose steps are over has no masks left
        }
        for part in active.chunks(settings.at_once.max(1)) {
            let mut copies: Vec<Masked> = Vec::with_capacity(part.len());
            let mut rows: Vec<Row> = Vec::new();
            for (i, hidden) in part {
                let sigma = |step| network.encoder.sigma_at(time(step, steps[*i]));
                let now = sigma(step);
                let dsigma = (step < steps[*i]).then(|| now - sigma(step + 1));
                let offset = network.encoder.score_offset(now);
                let stream = &mut making[*i].stream;
                rows.extend(hidden.iter().map(|_| Row {
                    uniforms: [stream.uniform(), stream.uniform()],
                    offset,
                    dsigma,
                }));
                copies.push(making[*i].masked(hidden, now));
            }
            let filter = &settings.filter;
            let seen = network.seen(&copies);
            let owners = Network::owners(&copies);
            let hidden = network.pass(&copies);
            let draws = network.rows(&hidden, &|at, logits, sampler: &mut Sampler| {
                let row = rows[at];
                if let Some(dsigma) = row.dsigma {
                    let sum = log_sum(logits, &mut Vec::new()).ok_or_else(not_finite)?;
                    let reveal = reveal_probability(sum - row.offset, dsigma);
                    if row.uniforms[0] >= reveal {
                        return Ok(None);
                    }
                }
                let draw = sampler.draw(filter, logits, &seen[owners[at]], row.uniforms[1])?;
                Ok(Some(sampler.with_candidates(draw, filter, logits, settings.candidates)))
            })?;
            let mut draws: std::vec::IntoIter<Option<Draw>> = draws.into_iter();
            for (i, hidden) in part {
                let one = &mut making[*i];
                one.called();
                let before = one.order.len();
                for (&position, draw) in hidden.iter().zip(draws.by_ref()) {
                    if let Some(draw) = draw {
                        let time = time(step, steps[*i]);
                        one.reveal(position, draw, Some(time));
                    }
                }
                one.steps += usize::from(one.order.len() > before);
            }
        }
    }
    Ok(())
}
