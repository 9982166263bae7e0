//! The records of `ao-sample`.

use ao_core::tokens::Tokenizer;
use serde_json::{Value, json};

use crate::decode::distribution::DRAW;
use crate::decode::{Sample, Tally};
use crate::family::Sampler;

/// What the records of all samples have in common.
pub(super) struct Facts<'a> {
    pub tokenizer: Option<&'a Tokenizer>,
    /// Whether a text ends before its first end-of-document token.
    pub stop_at_eos: bool,
    pub temperature: f64,
    pub top_p: f64,
    pub seed: u64,
    pub ckpt: String,
    /// Whether drafts are counted.
    pub drafts: bool,
}

/// Makes `sample` records and counts them.
pub(super) struct Writer<'a> {
    pub facts: Facts<'a>,
    /// Samples so far.
    pub samples: u64,
    /// Drawn tokens so far.
    pub tokens: u64,
    /// Sum over samples of the passes that each took part in.
    pub steps: u64,
}

impl Writer<'_> {
    /// The record of sample `id`.
    pub fn sample(&mut self, id: u64, sample: &Sample, sampler: &dyn Sampler) -> Value {
        let facts = &self.facts;
        let drawn = sample.nll.len();
        self.samples += 1;
        self.tokens += drawn as u64;
        self.steps += sample.steps as u64;
        let mut record = json!({
            "type": "sample",
            "id": id,
            "tokens": sample.tokens,
            "text": facts.tokenizer.map(|t| self.text(t, &sample.tokens)),
            "order": sample.order,
            "steps": sample.steps,
            "distribution": sampler.distribution(drawn, sample.steps),
            "temperature": facts.temperature,
            "top_p": facts.top_p,
            "seed": facts.seed,
            "draw": DRAW,
            "logprob_nats": -sample.nll.iter().sum::<f64>(),
            "ckpt": facts.ckpt,
        });
        let Some(order) = &sample.order else {
            record.as_object_mut().map(|object| object.shift_remove("order"));
            return record;
        };
        if !sample.candidates.is_empty() {
            let positions = &order[order.len() - drawn..];
            record["candidates"] =
                positions.iter().zip(&sample.candidates).map(|(p, c)| self.gap(*p, c)).collect();
        }
        if let Some(name) = sampler.name() {
            record["sampler"] = name.into();
            record["network_calls"] = sample.network_calls.into();
            if name == "first-hitting" {
                record["times"] = sample.times.clone().into();
            }
        }
        record
    }

    /// The most likely tokens at one position.
    fn gap(&self, position: u32, candidates: &[(u32, f64)]) -> Value {
        let (ids, logprobs): (Vec<u32>, Vec<f64>) = candidates.iter().copied().unzip();
        let texts = self
            .facts
            .tokenizer
            .map(|t| -> Vec<String> { ids.iter().map(|&id| t.decode_lossy(&[id])).collect() });
        json!({ "position": position, "tokens": ids, "texts": texts, "logprob_nats": logprobs })
    }

    fn text(&self, tokenizer: &Tokenizer, tokens: &[u32]) -> String {
        let eos = tokenizer.eos_id().filter(|_| self.facts.stop_at_eos);
        let end = tokens.iter().position(|&t| Some(t) == eos).unwrap_or(tokens.len());
        tokenizer.decode_lossy(&tokens[..end])
    }

    /// The last record; `complete` says whether all samples are there.
    pub fn summary(&self, complete: bool, seconds: f64, tally: Tally) -> Value {
        let mut record = json!({
            "type": "summary",
            "complete": complete,
            "samples": self.samples,
            "token_count": self.tokens,
            "seconds": seconds,
            "tokens_per_second": self.tokens as f64 / seconds.max(1e-9),
            "rows_forwarded": tally.rows_forwarded,
            "rows_through_head": tally.rows_through_head,
            "passes": tally.passes,
            "network_calls": tally.network_calls,
            "tokens_per_step": self.tokens as f64 / (self.steps as f64).max(1.0),
            "trunk_seconds": tally.trunk.as_secs_f64(),
            "head_seconds": tally.head.as_secs_f64(),
            "sampling_seconds": tally.sampling.as_secs_f64(),
        });
        if self.facts.drafts {
            record["drafted_tokens"] = tally.drafted.into();
            record["tested_tokens"] = tally.tested.into();
            record["accepted_tokens"] = tally.accepted.into();
            let rate = tally.accepted as f64 / tally.tested as f64;
            record["acceptance_rate"] = json!(Some(rate).filter(|_| tally.tested > 0));
        }
        record
    }
}
