//! Plans: which positions each step reveals, drawn before the first pass.
//!
//! Which positions a step of masked diffusion reveals does not depend on their tokens, so it is
//! drawn first, for the whole sample, and the network is called only for steps that reveal
//! something, its head only on what they reveal (papers, Lemma 1: the distribution of group sizes).
//!
//! The draws of a sample's stream, in this sequence: along an order what the schedule draws; Tweedie
//! takes one for each free position in ascending order, its step (`below(S)`, or for a cosine
//! schedule a uniform); first-hitting takes for each reveal a uniform, the time, then `below(k)`,
//! which of the k positions left in ascending order. Then follows one uniform a token.

use std::collections::{BTreeMap, VecDeque};

use ao_core::Result;

use super::engine::Engine;
use super::predictor::Ask;
use super::schedule::Schedule;
use super::sequence::Sequence;

/// Positions that one pass reveals.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Step {
    /// The positions, ascending unless an order was asked for.
    pub positions: Vec<u32>,
    /// The time of the reveal; none where the order is given.
    pub time: Option<f64>,
    /// σ̄ that the network is conditioned on.
    pub sigma: f64,
}

/// Along the sequence's order, in at most `steps` groups; one token a step without.
pub fn along_order(
    engine: &Engine,
    sequence: &mut Sequence,
    schedule: Schedule,
    steps: Option<usize>,
) -> VecDeque<Step> {
    let mut free = sequence.free().to_vec();
    let length = sequence.order.len();
    let sizes = schedule.groups(free.len(), steps.unwrap_or(free.len()), &mut sequence.stream);
    let step = |size: usize| {
        let sigma = engine.masks.map_or(0.0, |masks| masks.sigma_of_count(free.len(), length));
        let rest = free.split_off(size);
        Step { positions: std::mem::replace(&mut free, rest), time: None, sigma }
    };
    sizes.into_iter().map(step).collect()
}

/// From time t to s a mask stays with probability s/t, so each position's step has the distribution
/// of the schedule's differences, whatever happens to the others; steps that reveal nothing are left
/// out.
pub fn tweedie(
    engine: &Engine,
    sequence: &mut Sequence,
    schedule: Schedule,
    steps: Option<usize>,
) -> VecDeque<Step> {
    let steps = steps.unwrap_or(sequence.order.len()).clamp(1, u32::MAX as usize);
    let mut groups: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for position in sequence.free_ascending() {
        let stream = &mut sequence.stream;
        let step = match schedule {
            Schedule::Linear | Schedule::Binomial => stream.below(steps as u32) as usize,
            Schedule::Cosine | Schedule::BinomialCosine => {
                let angle = (1.0 - stream.uniform()).acos() / std::f64::consts::FRAC_PI_2;
                ((angle * steps as f64) as usize).min(steps - 1)
            }
        };
        groups.entry(step).or_default().push(position);
    }
    let step = |(step, positions)| timed(engine, positions, schedule.left(step, steps));
    groups.into_iter().map(step).collect()
}

/// With k masks left at time τ the next reveal is at τ·u^(1/k), of any of them (papers 13.3, for
/// masks that stay with probability s/t).
pub fn first_hitting(engine: &Engine, sequence: &mut Sequence) -> VecDeque<Step> {
    let mut left = sequence.free_ascending();
    let mut time = 1.0;
    let mut steps = VecDeque::with_capacity(left.len());
    while !left.is_empty() {
        let k = left.len();
        time *= (1.0 - sequence.stream.uniform()).powf(1.0 / k as f64);
        let position = left.remove(sequence.stream.below(k as u32) as usize);
        steps.push_back(timed(engine, vec![position], time));
    }
    steps
}

fn timed(engine: &Engine, positions: Vec<u32>, time: f64) -> Step {
    let sigma = engine.masks.map_or(0.0, |masks| masks.sigma_at(time));
    Step { positions, time: Some(time), sigma }
}

/// Reveals the groups of every sequence's plan, each sequence's next group in one pass with the
/// others'. Tokens of one group are drawn independently of each other.
///
/// # Errors
/// [`ao_core::Error::NonFinite`] when the model's logits are not finite.
pub fn reveal(
    engine: &mut Engine,
    sequences: &mut [Sequence],
    mut plans: Vec<VecDeque<Step>>,
) -> Result<()> {
    while plans.iter().any(|plan| !plan.is_empty()) {
        let steps: Vec<Step> =
            plans.iter_mut().map(|plan| plan.pop_front().unwrap_or_default()).collect();
        let asks: Vec<Ask> = steps
            .iter()
            .map(|step| Ask { positions: step.positions.clone(), sigma: step.sigma })
            .collect();
        for (sequence, step) in sequences.iter_mut().zip(&steps) {
            sequence.put_next(&step.positions);
            sequence.steps += usize::from(!step.positions.is_empty());
        }
        let hidden = engine.predict(sequences, &asks)?;
        let owners: Vec<usize> = steps
            .iter()
            .enumerate()
            .flat_map(|(r, step)| std::iter::repeat_n(r, step.positions.len()))
            .collect();
        let draws = engine.draw(sequences, &hidden, &owners)?;
        for (draw, r) in draws.into_iter().zip(owners) {
            sequences[r].push(draw, steps[r].time);
        }
    }
    Ok(())
}
