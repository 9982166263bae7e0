//! Sampling from encoders (RADD, MDLM, SEDD): reverse masked diffusion.
//!
//! A sequence starts as masks, given tokens aside, which never change. Which positions a step
//! reveals does not depend on their tokens, so it is drawn first, for the whole sample ([`plan`]),
//! and the network is called only for steps that reveal something, its head only on what they
//! reveal (papers, Lemma 1: the law of group sizes). SEDD's own step is the exception: how likely
//! a mask is to stay follows from the scores ([`analytic`]).
//!
//! | file | owns |
//! |---|---|
//! | [`plan`] | when each position is revealed |
//! | [`analytic`] | SEDD's analytic (Tweedie) step |
//! | `adaptive` | orders that the network finds itself |
//! | `draws` | passes, the head, and draws on several threads |
//! | `flags`, `record` | what `ao-sample` is told, and what it writes |

mod adaptive;
pub mod analytic;
mod draws;
mod flags;
pub mod plan;
mod record;

use std::time::Duration;

use ao_core::rng::Stream;
use ao_core::{Error, Result};
use serde::Serialize;

use super::adaptive::AdaptiveOrder;
use super::filter::Filter;
use super::law::Draw;
use super::schedule::Schedule;
use crate::model::{Encoder, Masked};
use draws::Network;
use plan::Group;

pub(super) use record::Writer;

/// How masks are taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DiffusionSampler {
    /// S times from 1 to 0; each step reveals each mask with the chance that the schedule gives it
    Tweedie,
    /// The time of each reveal is drawn, one token a pass: exact, as random order is
    FirstHitting,
    /// Along --order, one token a pass, or in --steps groups
    Ordered,
}

impl DiffusionSampler {
    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            DiffusionSampler::Tweedie => "tweedie",
            DiffusionSampler::FirstHitting => "first-hitting",
            DiffusionSampler::Ordered => "ordered",
        }
    }
}

/// How samples are drawn.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How masks are taken away.
    pub sampler: DiffusionSampler,
    /// For `Ordered`: the network finds the order itself.
    pub adaptive: Option<AdaptiveOrder>,
    /// Steps S of a sample: for Tweedie the times, by default as many as the sequence has tokens;
    /// for `Ordered` the groups, by default one a token.
    pub steps: Option<usize>,
    /// How much each step reveals.
    pub schedule: Schedule,
    /// Temperature, filters and bans of the tokens' law.
    pub filter: Filter,
    /// List this many likeliest tokens of every drawn position.
    pub candidates: usize,
    /// Threads that draw.
    pub threads: usize,
    /// Samples in one pass of the network; 1 where results must not depend on neighbours to the
    /// last bit ([`crate::model::Loaded::alone`]).
    pub at_once: usize,
}

/// What one sample starts from.
#[derive(Debug, Clone)]
pub struct Request {
    /// The whole permutation, given positions first; of the others only [`DiffusionSampler::Ordered`]
    /// heeds the order.
    pub order: Vec<u32>,
    /// Tokens of the first positions of `order`, which are given.
    pub given: Vec<u32>,
    /// The sample's own draws.
    pub stream: Stream,
}

/// A finished sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Positions in the order in which they were revealed, within a step by position (`Ordered`:
    /// as asked for); given ones first.
    pub order: Vec<u32>,
    /// Tokens in text order.
    pub tokens: Vec<u32>,
    /// −ln of the unfiltered model's probability of each drawn token, nats, in generation order.
    pub nll: Vec<f64>,
    /// The likeliest tokens of each drawn position, as in
    /// [`candidates`](super::generate::Sample::candidates).
    pub candidates: Vec<Vec<(u32, f64)>>,
    /// Passes that tokens were drawn in.
    pub steps: usize,
    /// Passes of the network that the sample took part in.
    pub network_calls: usize,
    /// The time t of each reveal, in generation order; empty where the order is given.
    pub times: Vec<f64>,
}

/// What a batch has cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counters {
    /// Token rows through the blocks, padding not counted.
    pub rows_forwarded: u64,
    /// Token rows through the head.
    pub rows_through_head: u64,
    /// Passes of the network, summed over samples.
    pub network_calls: u64,
    /// Passes through the blocks, each over several samples.
    pub passes: u64,
    /// Time in the blocks.
    pub trunk: Duration,
    /// Time in the output layer.
    pub head: Duration,
    /// Time in filters and draws.
    pub sampling: Duration,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.rows_forwarded += other.rows_forwarded;
        self.rows_through_head += other.rows_through_head;
        self.network_calls += other.network_calls;
        self.passes += other.passes;
        self.trunk += other.trunk;
        self.head += other.head;
        self.sampling += other.sampling;
    }
}

/// Draws a batch of samples together. Each is what it would be alone.
///
/// # Errors
/// [`Error::NonFinite`] when the model's logits are not finite.
pub fn generate(
    encoder: &Encoder,
    requests: Vec<Request>,
    settings: &Settings,
) -> Result<(Vec<Sample>, Counters)> {
    let mut network = Network::new(encoder, settings);
    let mut making: Vec<Making> =
        requests.into_iter().map(|request| Making::new(encoder, request)).collect();
    let by_scores = matches!(encoder.config(), ao_core::config::ModelConfig::Sedd(_));
    if let Some(order) = &settings.adaptive {
        adaptive::run(&mut network, &mut making, settings, order)?;
    } else if settings.sampler == DiffusionSampler::Tweedie && by_scores {
        analytic::run(&mut network, &mut making, settings)?;
    } else {
        run_plans(&mut network, &mut making, settings)?;
    }
    let mut counters = network.counters;
    counters.network_calls = making.iter().map(|m| m.network_calls as u64).sum();
    Ok((making.into_iter().map(Making::finish).collect(), counters))
}

/// Reveals the groups of every sample's plan, each sample's next group in one pass with the others'.
fn run_plans(network: &mut Network, making: &mut [Making], settings: &Settings) -> Result<()> {
    let mut plans: Vec<std::vec::IntoIter<Group>> =
        making.iter_mut().map(|m| plan::of(network.encoder, m, settings).into_iter()).collect();
    loop {
        let next: Vec<(usize, Group)> = plans
            .iter_mut()
            .enumerate()
            .filter_map(|(i, plan)| plan.next().map(|group| (i, group)))
            .collect();
        if next.is_empty() {
            return Ok(());
        }
        for part in next.chunks(settings.at_once.max(1)) {
            let copies: Vec<Masked> = part
                .iter()
                .map(|(i, group)| making[*i].masked(&group.positions, group.sigma))
                .collect();
            let uniforms: Vec<f64> = part
                .iter()
                .flat_map(|(i, group)| {
                    let stream = &mut making[*i].stream;
                    group.positions.iter().map(|_| stream.uniform()).collect::<Vec<_>>()
                })
                .collect();
            let (owners, seen) = (Network::owners(&copies), network.seen(&copies));
            let hidden = network.pass(&copies);
            let mut draws = network.draw(&hidden, &owners, &seen, &uniforms)?.into_iter();
            for (i, group) in part {
                making[*i].called();
                for (&position, draw) in group.positions.iter().zip(draws.by_ref()) {
                    making[*i].reveal(position, draw, group.time);
                }
                making[*i].steps += 1;
            }
        }
    }
}

/// A sample in the making.
pub(crate) struct Making {
    /// Tokens in text order, mask ids where none is yet.
    pub tokens: Vec<u32>,
    /// The order asked for, given positions first.
    pub asked: Vec<u32>,
    /// How many of them are given.
    pub given: usize,
    pub stream: Stream,
    order: Vec<u32>,
    drawn: Vec<Draw>,
    times: Vec<f64>,
    steps: usize,
    network_calls: usize,
}

impl Making {
    fn new(encoder: &Encoder, request: Request) -> Making {
        let Request { order, given, stream } = request;
        let mut tokens = vec![encoder.mask(); order.len()];
        for (&position, &token) in order.iter().zip(&given) {
            tokens[position as usize] = token;
        }
        Making {
            tokens,
            order: order[..given.len()].to_vec(),
            asked: order,
            given: given.len(),
            stream,
            drawn: Vec::new(),
            times: Vec::new(),
            steps: 0,
            network_calls: 0,
        }
    }

    /// Positions that have no token yet, ascending.
    pub fn hidden(&self) -> Vec<u32> {
        let mut left = vec![true; self.tokens.len()];
        self.order.iter().for_each(|&p| left[p as usize] = false);
        (0..self.tokens.len() as u32).filter(|&p| left[p as usize]).collect()
    }

    fn masked(&self, asked: &[u32], sigma: f64) -> Masked {
        Masked { tokens: self.tokens.clone(), asked: asked.to_vec(), sigma }
    }

    fn called(&mut self) {
        self.network_calls += 1;
    }

    fn reveal(&mut self, position: u32, draw: Draw, time: Option<f64>) {
        self.tokens[position as usize] = draw.token;
        self.order.push(position);
        self.drawn.push(draw);
        self.times.extend(time);
    }

    fn finish(self) -> Sample {
        let listed = self.drawn.iter().any(|d| !d.candidates.is_empty());
        Sample {
            nll: self.drawn.iter().map(|d| d.nll).collect(),
            candidates: match listed {
                true => self.drawn.into_iter().map(|d| d.candidates).collect(),
                false => Vec::new(),
            },
            order: self.order,
            tokens: self.tokens,
            steps: self.steps,
            network_calls: self.network_calls,
            times: self.times,
        }
    }
}

/// The error of logits that no law can be made of.
fn not_finite() -> Error {
    Error::NonFinite("the model gave a logit that is not finite; are its weights sound?".into())
}
