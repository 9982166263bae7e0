//! The records of an encoder's samples: those of `ao-sample`, with what only encoders have.

use serde_json::Value;

use super::{Counters, DiffusionSampler, Sample};
use crate::decode::generate::{self, Shares, Tally};
use crate::decode::record;

/// Writes `sample` records and adds them up.
pub(in crate::decode) struct Writer<'a> {
    pub inner: record::Writer<'a>,
    pub sampler: DiffusionSampler,
    /// Whether the network is told the time of each reveal, which a chain along an order has not.
    pub timed: bool,
    pub counters: Counters,
}

impl Writer<'_> {
    /// The record of sample `id`.
    pub fn sample(&mut self, id: u64, sample: Sample) -> Value {
        let Sample { order, tokens, nll, candidates, steps, network_calls, times } = sample;
        let plain = generate::Sample { order, tokens, nll, candidates, steps };
        let mut record = self.inner.sample(id, &plain);
        if self.timed {
            record["law"] = "timed".into();
        }
        record["sampler"] = self.sampler.name().into();
        record["network_calls"] = network_calls.into();
        if self.sampler == DiffusionSampler::FirstHitting {
            record["times"] = times.into();
        }
        record
    }

    /// The closing record.
    pub fn summary(&self, seconds: f64) -> Value {
        let c = &self.counters;
        let tally =
            Tally { rows_forwarded: c.rows_forwarded, passes: c.passes, ..Tally::default() };
        let shares = Shares { trunk: c.trunk, head: c.head, sampling: c.sampling };
        let mut record = self.inner.summary(seconds, tally, shares);
        record["rows_through_head"] = c.rows_through_head.into();
        record["network_calls"] = c.network_calls.into();
        record
    }
}
