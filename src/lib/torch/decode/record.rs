//! The records of `ao-sample`.

use ao_core::tokens::Tokenizer;
use serde_json::{Value, json};

use super::args::{Method, SampleArgs};
use super::generate::{Sample, Shares, Tally};
use super::law::DRAW;
use crate::model::Loaded;

/// Writes `sample` records and adds them up.
pub(super) struct Writer<'a> {
    pub args: &'a SampleArgs,
    pub method: Method,
    pub tokenizer: Option<&'a Tokenizer>,
    pub loaded: &'a Loaded,
    /// Samples so far.
    pub samples: u64,
    /// Drawn tokens so far.
    pub tokens: u64,
    /// Passes that each sample took part in, in sum.
    pub steps: u64,
}

impl Writer<'_> {
    /// The record of sample `id`.
    pub fn sample(&mut self, id: u64, sample: &Sample) -> Value {
        let args = self.args;
        let drawn = sample.nll.len();
        self.samples += 1;
        self.tokens += drawn as u64;
        self.steps += sample.steps as u64;
        let mut record = json!({
            "type": "sample",
            "id": id,
            "tokens": sample.tokens,
            "text": self.tokenizer.map(|t| self.text(t, &sample.tokens)),
            "order": sample.order,
            "steps": sample.steps,
            "law": self.method.law(drawn, sample.steps),
            "temperature": args.temperature,
            "top_p": args.top_p,
            "seed": args.seed.seed,
            "draw": DRAW,
            "logprob_nats": -sample.nll.iter().sum::<f64>(),
            "ckpt": self.loaded.path.display().to_string(),
        });
        if !sample.candidates.is_empty() {
            let positions = &sample.order[sample.order.len() - drawn..];
            record["candidates"] =
                positions.iter().zip(&sample.candidates).map(|(p, c)| self.gap(*p, c)).collect();
        }
        record
    }

    /// The likeliest tokens of one position.
    fn gap(&self, position: u32, candidates: &[(u32, f64)]) -> Value {
        let (ids, logprobs): (Vec<u32>, Vec<f64>) = candidates.iter().copied().unzip();
        let texts = self
            .tokenizer
            .map(|t| -> Vec<String> { ids.iter().map(|&id| t.decode_lossy(&[id])).collect() });
        json!({ "position": position, "tokens": ids, "texts": texts, "logprob_nats": logprobs })
    }

    fn text(&self, tokenizer: &Tokenizer, tokens: &[u32]) -> String {
        let eos = tokenizer.eos_id().filter(|_| self.args.stop_at_eos);
        let end = tokens.iter().position(|&t| Some(t) == eos).unwrap_or(tokens.len());
        tokenizer.decode_lossy(&tokens[..end])
    }

    /// The closing record.
    pub fn summary(&self, seconds: f64, tally: Tally, shares: Shares) -> Value {
        let mut record = json!({
            "type": "summary",
            "samples": self.samples,
            "token_count": self.tokens,
            "seconds": seconds,
            "tokens_per_second": self.tokens as f64 / seconds.max(1e-9),
            "rows_forwarded": tally.rows_forwarded,
            "passes": tally.passes,
            "tokens_per_step": self.tokens as f64 / (self.steps as f64).max(1.0),
            "trunk_seconds": shares.trunk.as_secs_f64(),
            "head_seconds": shares.head.as_secs_f64(),
            "sampling_seconds": shares.sampling.as_secs_f64(),
        });
        if matches!(self.method, Method::Speculative(_) | Method::Rejection(_)) {
            record["drafted_tokens"] = tally.drafted.into();
            record["tested_tokens"] = tally.tested.into();
            record["accepted_tokens"] = tally.accepted.into();
            let rate = tally.accepted as f64 / tally.tested as f64;
            record["acceptance_rate"] = json!(Some(rate).filter(|_| tally.tested > 0));
        }
        record
    }
}
