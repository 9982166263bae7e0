//! When each masked position is revealed, drawn before the first pass.
//!
//! The draws of a sample's stream, in this sequence: Tweedie takes one for each free position in
//! ascending order, its step (`below(S)`, or for a cosine schedule a uniform); first-hitting takes
//! for each reveal a uniform, the time, then `below(k)`, which of the k positions left in ascending
//! order; `Ordered` takes what its schedule draws. Then follows one uniform a token.

use std::collections::BTreeMap;

use super::{DiffusionSampler, Making, Settings};
use crate::decode::schedule::Schedule;
use crate::model::Encoder;

/// Positions that one pass reveals.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The positions, ascending unless an order was asked for.
    pub positions: Vec<u32>,
    /// The time of the reveal; none where the order is given.
    pub time: Option<f64>,
    /// σ̄ that the network is told.
    pub sigma: f64,
}

pub(super) fn of(encoder: &Encoder, making: &mut Making, settings: &Settings) -> Vec<Group> {
    match settings.sampler {
        DiffusionSampler::Tweedie => tweedie(encoder, making, settings),
        DiffusionSampler::FirstHitting => first_hitting(encoder, making),
        DiffusionSampler::Ordered => ordered(encoder, making, settings),
    }
}

/// The share of the tokens that is masked after step i of S: from 1 to 0.
pub fn share(schedule: Schedule, i: usize, steps: usize) -> f64 {
    match schedule {
        Schedule::Linear | Schedule::Binomial => (steps - i) as f64 / steps as f64,
        Schedule::Cosine | Schedule::BinomialCosine if i == steps => 0.0,
        Schedule::Cosine | Schedule::BinomialCosine => {
            (std::f64::consts::FRAC_PI_2 * i as f64 / steps as f64).cos()
        }
    }
}

/// From time t to s a mask stays with probability s/t, so each position's step has the law of the
/// schedule's differences, whatever happens to the others; steps that reveal nothing are left out.
fn tweedie(encoder: &Encoder, making: &mut Making, settings: &Settings) -> Vec<Group> {
    let steps = settings.steps.unwrap_or(making.tokens.len()).clamp(1, u32::MAX as usize);
    let mut groups: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for position in making.hidden() {
        let stream = &mut making.stream;
        let step = match settings.schedule {
            Schedule::Linear | Schedule::Binomial => stream.below(steps as u32) as usize,
            Schedule::Cosine | Schedule::BinomialCosine => {
                let angle = (1.0 - stream.uniform()).acos() / std::f64::consts::FRAC_PI_2;
                ((angle * steps as f64) as usize).min(steps - 1)
            }
        };
        groups.entry(step).or_default().push(position);
    }
    let group = |(step, positions)| {
        let time = share(settings.schedule, step, steps);
        Group { positions, time: Some(time), sigma: encoder.sigma_at(time) }
    };
    groups.into_iter().map(group).collect()
}

/// With k masks left at time τ the next reveal is at τ·u^(1/k), of any of them (papers 13.3, for
/// masks that stay with probability s/t).
fn first_hitting(encoder: &Encoder, making: &mut Making) -> Vec<Group> {
    let mut left = making.hidden();
    let mut time = 1.0;
    let mut groups = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let k = left.len();
        time *= (1.0 - making.stream.uniform()).powf(1.0 / k as f64);
        let position = left.remove(making.stream.below(k as u32) as usize);
        groups.push(Group {
            positions: vec![position],
            time: Some(time),
            sigma: encoder.sigma_at(time),
        });
    }
    groups
}

fn ordered(encoder: &Encoder, making: &mut Making, settings: &Settings) -> Vec<Group> {
    let length = making.tokens.len();
    let mut free = making.asked[making.given..].to_vec();
    let steps = settings.steps.unwrap_or(free.len());
    let sizes = settings.schedule.groups(free.len(), steps, &mut making.stream);
    let group = |size: usize| {
        let sigma = encoder.sigma_of_count(free.len(), length);
        let rest = free.split_off(size);
        Group { positions: std::mem::replace(&mut free, rest), time: None, sigma }
    };
    sizes.into_iter().map(group).collect()
}
