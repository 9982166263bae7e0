//! SEDD's analytic (Tweedie) step (arXiv 2310.16834, papers 4d), for networks whose output is a
//! concrete score.
//!
//! From noise σ̄(t) to σ̄(s), with dσ their difference, the published step multiplies the staggered
//! score by a row of the transition matrix. For a masked token that comes to: it is y with
//! probability (e^dσ − 1)·s_y and stays masked with what is left of 1. Where the scores are not
//! exact they may add up to more than that allows; what is left is then negative, and the token is
//! revealed. A last step, at [`LAST_TIME`], reveals what is masked still.
//!
//! A step takes two uniforms for each masked position in ascending order: whether, then which.

use ao_core::process::score_entropy::{LAST_TIME, Scores, reveal_probability};
use ao_core::{Error, Result};

use super::distribution::Draw;
use super::engine::{Engine, owners};
use super::predictor::Ask;
use super::schedule::Schedule;
use super::sequence::Sequence;
use crate::kernels::categorical;

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

/// Draws a batch, each sample by `steps` steps from time 1, as many as it has tokens without.
///
/// # Errors
/// [`Error::NonFinite`] when the model's logits are not finite.
pub fn run(
    engine: &mut Engine,
    sequences: &mut [Sequence],
    scores: Scores,
    schedule: Schedule,
    steps: Option<usize>,
) -> Result<()> {
    let counts: Vec<usize> =
        sequences.iter().map(|s| steps.unwrap_or(s.order.len()).max(1)).collect();
    let masks = engine.masks.ok_or_else(|| Error::usage("scores belong to masked texts"))?;
    let time = |i: usize, count: usize| LAST_TIME + (1.0 - LAST_TIME) * schedule.left(i, count);
    for step in 0..=counts.iter().copied().max().unwrap_or(0) {
        let mut asks = vec![Ask::default(); sequences.len()];
        let mut rows: Vec<Row> = Vec::new();
        for (r, sequence) in sequences.iter_mut().enumerate().filter(|(r, _)| step <= counts[*r]) {
            let positions = sequence.free_ascending();
            let sigma = |step| masks.sigma_at(time(step, counts[r]));
            let now = sigma(step);
            let dsigma = (step < counts[r]).then(|| now - sigma(step + 1));
            let stream = &mut sequence.stream;
            rows.extend(positions.iter().map(|_| Row {
                uniforms: [stream.uniform(), stream.uniform()],
                offset: scores.offset(now),
                dsigma,
            }));
            asks[r] = Ask { positions, sigma: now };
        }
        if rows.is_empty() {
            break; // a sample whose steps are over has no masks left
        }
        let owners = owners(asks.iter().map(|ask| ask.positions.len()));
        let hidden = engine.predict(sequences, &asks)?;
        let (filter, count) = (engine.filter.clone(), engine.candidates);
        let shown = &*sequences;
        let draws = engine.each_row(&hidden, &|at, logits, drawer| {
            let (row, r) = (rows[at], owners[at].0);
            if let Some(dsigma) = row.dsigma {
                let sum = log_sum(logits, &mut Vec::new()).ok_or_else(not_finite)?;
                if row.uniforms[0] >= reveal_probability(sum - row.offset, dsigma) {
                    return Ok(None);
                }
            }
            let draw = drawer.draw(&filter, logits, &shown[r].tokens, row.uniforms[1])?;
            Ok(Some(drawer.with_candidates(draw, &filter, logits, count)))
        })?;
        let mut draws: std::vec::IntoIter<Option<Draw>> = draws.into_iter();
        for (r, ask) in asks.iter().enumerate() {
            let outcomes = ask.positions.iter().zip(draws.by_ref());
            let revealed: Vec<(u32, Draw)> =
                outcomes.filter_map(|(&position, draw)| Some((position, draw?))).collect();
            let sequence = &mut sequences[r];
            sequence.put_next(&revealed.iter().map(|(position, _)| *position).collect::<Vec<_>>());
            sequence.steps += usize::from(!revealed.is_empty());
            for (_, draw) in revealed {
                sequence.push(draw, Some(time(step, counts[r])));
            }
        }
    }
    Ok(())
}

/// The error of logits that no distribution can be made of.
fn not_finite() -> Error {
    Error::NonFinite("the model gave a logit that is not finite; are its weights sound?".into())
}
