//! How samples are drawn.

use serde::Serialize;

use super::adaptive::AdaptiveOrder;
use super::filter::Filter;
use super::schedule::Schedule;
use super::template::PromptOrder;

/// How masks are taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DiffusionSampler {
    /// S times from 1 to 0. A step reveals each mask with the probability that --schedule gives
    Tweedie,
    /// Draw the time of each reveal; one token per pass. Exact, like a random order
    FirstHitting,
    /// Along --order, one token per pass or in --steps groups
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

/// Drafts that are tested, several a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drafts {
    /// Up to so many a pass, by the exact distribution.
    Speculative(usize),
    /// All, along the best of so many random orders.
    Rejection(usize),
}

/// How samples are drawn.
#[derive(Debug, Clone)]
pub struct SampleSettings {
    /// The orders as named, where they are.
    pub order: Option<String>,
    /// The network finds the order itself.
    pub adaptive: Option<AdaptiveOrder>,
    /// Drafts are tested.
    pub drafts: Option<Drafts>,
    /// How masks are taken away, where that is asked for.
    pub sampler: Option<DiffusionSampler>,
    /// Forward passes of a sample, where they are named.
    pub steps: Option<usize>,
    /// How much each step reveals.
    pub schedule: Schedule,
    /// In which order given tokens are read.
    pub prompt_order: PromptOrder,
    /// Which tokens may be drawn.
    pub filter: Filter,
    /// List this many likeliest tokens of every drawn position.
    pub candidates: usize,
}

impl SampleSettings {
    /// One token a step from the distribution of `filter`, along the family's own orders.
    pub fn plain(filter: Filter) -> SampleSettings {
        SampleSettings {
            order: None,
            adaptive: None,
            drafts: None,
            sampler: None,
            steps: None,
            schedule: Schedule::Linear,
            prompt_order: PromptOrder::Given,
            filter,
            candidates: 0,
        }
    }
}
