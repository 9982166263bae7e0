//! The records of scores: `sequence` and `summary` (`docs/formats.md`).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::errors::{Cluster, Design, Errors, Part, Residuals};
use crate::stats;

/// What a number is of −log p of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Estimate {
    /// The chain's NLL along one order that all sequences share.
    Exact,
    /// A mean over orders: by Jensen's inequality no less than −log of the mean probability.
    Bound,
    /// −log of the mean probability over orderings of each context.
    Ensemble,
    /// The mean of a published loss that leaves a part of the bound out: it may lie below −log p.
    Surrogate,
}

/// One scored sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequenceRecord {
    /// `sequence`.
    pub r#type: String,
    /// Number in the set, from 0.
    pub index: u64,
    /// Scored tokens; with a subset of positions the tokens that it stands for.
    pub token_count: u64,
    /// Where in the shards the document begins that most of its tokens are of, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<u64>,
    /// What the number is.
    pub estimate: Estimate,
    /// Sum over the scored tokens, the mean of it over orders.
    pub nll_nats: f64,
    /// exp(nll_nats / token_count).
    #[serde(deserialize_with = "number_or_null")]
    pub perplexity: f64,
    /// The sum along each order, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nll_nats_orders: Option<Vec<f64>>,
    /// The sum for each size of the ensemble in the summary's `ensemble_curve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nll_nats_curve: Option<Vec<f64>>,
    /// How many positions were scored, where that is a random subset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions_scored: Option<u64>,
    /// Standard error of `nll_nats` that is due to the choice of the subset; null where it is of one
    /// position.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub std_error_positions_nats: Option<Option<f64>>,
    /// The held-out spans, (first position, length) each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spans: Option<Vec<[u64; 2]>>,
    /// Bytes of text of the scored tokens, where a tokenizer is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Each token's NLL in generation order; several orders one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_nll_nats: Option<Vec<f64>>,
}

impl SequenceRecord {
    /// A sequence whose sums along its orders are `sums`.
    pub fn new(
        index: u64,
        token_count: u64,
        estimate: Estimate,
        sums: Vec<f64>,
        bytes: Option<u64>,
    ) -> Self {
        let mean = sums.iter().sum::<f64>() / sums.len() as f64;
        SequenceRecord {
            r#type: "sequence".into(),
            index,
            token_count,
            document: None,
            estimate,
            nll_nats: mean,
            perplexity: (mean / token_count as f64).exp(),
            nll_nats_orders: (sums.len() > 1).then_some(sums),
            nll_nats_curve: None,
            positions_scored: None,
            std_error_positions_nats: None,
            spans: None,
            bytes,
            token_nll_nats: None,
        }
    }
}

/// One size of the ensemble.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Orderings of each context M.
    pub ensemble: u64,
    /// Mean over all tokens.
    pub nll_nats_per_token: f64,
    /// Of the mean, over sequences.
    pub std_error: Option<f64>,
    /// exp of the mean.
    #[serde(deserialize_with = "number_or_null")]
    pub perplexity: f64,
}

/// How a run that was told a standard error to reach came to its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stopped {
    /// The standard error asked for, nats per token.
    pub target_se: f64,
    /// What was added until then: `orders` or `sequences`.
    pub adding: String,
    /// Whether it was reached.
    pub reached: bool,
}

/// How an encoder scored; nothing for a decoder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Manner {
    /// The form that was drawn: an objective's name, with `:published` where it leaves the ends of
    /// the time out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<String>,
    /// δ of that form, the smallest time that is drawn; 0 where no time is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_floor: Option<f64>,
    /// ε of the schedule that it is drawn by; 0 where no time is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_eps: Option<f64>,
    /// Which time a network was conditioned on along an order, which has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
}

/// The last record: the set's mean and its errors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// `summary`.
    pub r#type: String,
    /// Scored sequences.
    pub sequences: u64,
    /// Scored tokens.
    pub token_count: u64,
    /// Orders per sequence K.
    pub orders_per_sequence: u64,
    /// Orderings of each context M; 1 without an ensemble.
    pub ensemble: u64,
    /// Leading tokens of each order that the model is given and that are not scored: 1 in families
    /// without a [None] row.
    pub given_tokens: u64,
    /// What the mean is.
    pub estimate: Estimate,
    /// Mean over all tokens.
    pub nll_nats_per_token: f64,
    /// Of the mean, over sequences or documents as `cluster` says.
    pub std_error: Option<f64>,
    /// The part of it that is due to the choice of orders; unknown with one random order.
    pub std_error_orders: Option<f64>,
    /// The part that is due to the choice of sequences.
    pub std_error_sequences: Option<f64>,
    /// The part that is due to the choice of positions, where a subset was scored.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub std_error_positions: Option<Option<f64>>,
    /// What counts as independent in `std_error`.
    #[serde(default = "blocks")]
    pub cluster: Cluster,
    /// How many of these there are.
    #[serde(default)]
    pub clusters: u64,
    /// The error with each block independent.
    #[serde(default)]
    pub std_error_blocks: Option<f64>,
    /// The error with blocks of one document taken together, where documents are known.
    #[serde(default)]
    pub std_error_documents: Option<f64>,
    /// Of Student's t in the interval.
    #[serde(default)]
    pub degrees_of_freedom: f64,
    /// exp of the mean.
    #[serde(deserialize_with = "number_or_null")]
    pub perplexity: f64,
    /// exp of the lower end of the mean's 95 % interval, by Student's t.
    pub perplexity_low: Option<f64>,
    /// exp of its upper end.
    pub perplexity_high: Option<f64>,
    /// NLL in bits over the bytes of the scored tokens, where a tokenizer is known.
    pub bits_per_byte: Option<f64>,
    /// The mean for M = 1, 2, 4, … orderings of each context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ensemble_curve: Option<Vec<CurvePoint>>,
    /// Wall-clock time of scoring.
    pub seconds: f64,
    /// Token rows that went through the blocks, padding not counted.
    pub rows_forwarded: u64,
    /// Token rows that went through the head.
    pub rows_through_head: u64,
    /// The most memory that the process has held.
    pub peak_memory_bytes: Option<u64>,
    /// The orders: SPEC and seed, or file and hash.
    pub orders: Value,
    /// How an encoder scored.
    #[serde(flatten)]
    pub manner: Manner,
    /// What held-out spans were given: `both` sides or the `left` one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditioning: Option<String>,
    /// Sequences too short for what was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequences_left_out: Option<u64>,
    /// How `--target-se` ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
    /// Why a number is null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a summary says beside its numbers.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Orders per sequence.
    pub orders_per_sequence: u64,
    /// Orderings of each context.
    pub ensemble: u64,
    /// Leading tokens of each order that are not scored.
    pub given_tokens: u64,
    /// The sizes of the ensemble that the records' curves have.
    pub curve: Option<Vec<u64>>,
    /// What the mean is.
    pub estimate: Estimate,
    /// The orders.
    pub orders: Value,
    /// How an encoder scored.
    pub manner: Manner,
    /// What held-out spans were given.
    pub conditioning: Option<String>,
    /// Sequences too short for what was asked.
    pub sequences_left_out: Option<u64>,
    /// How `--target-se` ended.
    pub stopped: Option<Stopped>,
}

impl Setting {
    /// The setting that a summary was made in.
    pub fn of(summary: &Summary) -> Setting {
        let sizes = |curve: &Vec<CurvePoint>| curve.iter().map(|p| p.ensemble).collect();
        Setting {
            orders_per_sequence: summary.orders_per_sequence,
            ensemble: summary.ensemble,
            given_tokens: summary.given_tokens,
            curve: summary.ensemble_curve.as_ref().map(sizes),
            estimate: summary.estimate,
            orders: summary.orders.clone(),
            manner: summary.manner.clone(),
            conditioning: summary.conditioning.clone(),
            sequences_left_out: summary.sequences_left_out,
            stopped: summary.stopped.clone(),
        }
    }
}

/// What the computation took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Wall-clock time of scoring.
    pub seconds: f64,
    /// Token rows through the blocks.
    pub rows_forwarded: u64,
    /// Token rows through the head.
    pub rows_through_head: u64,
    /// The most memory that the process has held.
    pub peak_memory_bytes: Option<u64>,
}

/// Sequences between two looks at whether enough are scored.
pub const STEP_OF_SEQUENCES: u64 = 32;
/// Fewest orders whose spread is trusted.
pub const FEWEST_ORDERS: usize = 4;
/// Fewest degrees of freedom of the spread of orders, over all sequences.
pub const FEWEST_DEGREES: usize = 32;

/// Scores of the sequences so far, in their order.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    design: Design,
    parts: Vec<Part>,
    /// One list of sums for each size of the ensemble.
    curves: Vec<Vec<f64>>,
    /// Σ over sequences of the variance that the subset of positions brings; `Some(None)` where a
    /// subset was too small to tell.
    position_variance: Option<Option<f64>>,
    bytes: Option<u64>,
}

impl Totals {
    /// Nothing scored yet, of draws that are made by `design`.
    pub fn new(design: Design) -> Totals {
        Totals { design, bytes: Some(0), ..Totals::default() }
    }

    /// Adds one sequence.
    pub fn add(&mut self, record: &SequenceRecord) {
        self.parts.push(Part::from(record));
        let curve = record.nll_nats_curve.as_deref().unwrap_or_default();
        self.curves.resize(curve.len().max(self.curves.len()), Vec::new());
        for (sums, &sum) in self.curves.iter_mut().zip(curve) {
            sums.push(sum);
        }
        if let Some(error) = record.std_error_positions_nats {
            let before = self.position_variance.unwrap_or(Some(0.0));
            self.position_variance = Some(before.zip(error).map(|(sum, e)| sum + e * e));
        }
        self.bytes = self.bytes.zip(record.bytes).map(|(sum, bytes)| sum + bytes);
    }

    /// How the draws were made.
    pub fn design(&self) -> Design {
        self.design
    }

    /// Sequences so far.
    pub fn sequences(&self) -> u64 {
        self.parts.len() as u64
    }

    /// Tokens so far.
    pub fn tokens(&self) -> u64 {
        self.parts.iter().map(|p| p.tokens).sum()
    }

    fn nats(&self) -> f64 {
        self.parts.iter().map(Part::score).sum()
    }

    /// The mean per token so far.
    pub fn mean(&self) -> f64 {
        self.nats() / self.tokens() as f64
    }

    /// Its errors.
    pub fn errors(&self) -> Errors {
        Residuals::of(&self.parts, self.design.levels).errors(self.design.cluster)
    }

    /// The error at which a run that adds sequences may stop; `None` but after every
    /// [`STEP_OF_SEQUENCES`], so that where it stops does not depend on batches.
    pub fn whole_error(&self) -> Option<f64> {
        let due = self.sequences() > 0 && self.sequences().is_multiple_of(STEP_OF_SEQUENCES);
        if due { self.errors().all } else { None }
    }

    /// The error at which a run that adds orders may stop; `None` with fewer than [`FEWEST_ORDERS`]
    /// of each sequence, or with fewer than [`FEWEST_DEGREES`] degrees of freedom over all.
    pub fn order_noise(&self) -> Option<f64> {
        let orders = self.parts.first().map_or(0, |p| p.draws.len());
        let degrees = self.parts.len() * orders.saturating_sub(1);
        let enough = orders >= FEWEST_ORDERS && degrees >= FEWEST_DEGREES;
        if enough { self.errors().draws } else { None }
    }

    /// The summary of what was added.
    pub fn summary(&self, setting: Setting, cost: Cost) -> Summary {
        let (mean, tokens, errors) = (self.mean(), self.tokens(), self.errors());
        let exact = setting.estimate == Estimate::Exact;
        let of_orders = if exact { Some(0.0) } else { errors.draws };
        let of_sequences = if exact { errors.all } else { errors.sequences };
        let interval = stats::interval(mean, errors.all, errors.degrees_of_freedom);
        let bits = self.nats() / std::f64::consts::LN_2;
        let bits_per_byte = self.bytes.filter(|&bytes| bytes > 0).map(|bytes| bits / bytes as f64);
        let of_positions = self.position_variance.map(|v| v.map(|v| v.sqrt() / tokens as f64));
        let mut notes = Vec::new();
        if errors.all.is_none() {
            notes.push("a standard error needs two sequences");
        }
        if of_orders.is_none() {
            notes.push("order noise needs two orders a sequence (--mc)");
        }
        if of_positions == Some(None) {
            notes.push("the error of a choice of positions needs two of them (--positions)");
        }
        if bits_per_byte.is_none() {
            notes.push("bits per byte need a tokenizer (--tokenizer)");
        }
        Summary {
            r#type: "summary".into(),
            sequences: self.sequences(),
            token_count: tokens,
            orders_per_sequence: setting.orders_per_sequence,
            ensemble: setting.ensemble,
            given_tokens: setting.given_tokens,
            estimate: setting.estimate,
            nll_nats_per_token: mean,
            std_error: errors.all,
            std_error_orders: of_orders,
            std_error_sequences: of_sequences,
            std_error_positions: of_positions,
            cluster: errors.cluster,
            clusters: errors.clusters,
            std_error_blocks: errors.by_block,
            std_error_documents: errors.by_document,
            degrees_of_freedom: errors.degrees_of_freedom,
            perplexity: mean.exp(),
            perplexity_low: interval.map(|(low, _)| low.exp()),
            perplexity_high: interval.map(|(_, high)| high.exp()),
            bits_per_byte,
            ensemble_curve: setting.curve.map(|sizes| self.curve(&sizes)),
            seconds: cost.seconds,
            rows_forwarded: cost.rows_forwarded,
            rows_through_head: cost.rows_through_head,
            peak_memory_bytes: cost.peak_memory_bytes,
            orders: setting.orders,
            manner: setting.manner,
            conditioning: setting.conditioning,
            sequences_left_out: setting.sequences_left_out,
            stopped: setting.stopped,
            note: (!notes.is_empty()).then(|| notes.join("; ")),
        }
    }

    fn curve(&self, sizes: &[u64]) -> Vec<CurvePoint> {
        sizes
            .iter()
            .zip(&self.curves)
            .map(|(&ensemble, sums)| {
                let with = |(part, &sum): (&Part, &f64)| Part { draws: vec![sum], ..part.clone() };
                let parts: Vec<Part> = self.parts.iter().zip(sums).map(with).collect();
                let mean = sums.iter().sum::<f64>() / self.tokens() as f64;
                CurvePoint {
                    ensemble,
                    nll_nats_per_token: mean,
                    std_error: Residuals::of(&parts, None).errors(self.design.cluster).all,
                    perplexity: mean.exp(),
                }
            })
            .collect()
    }
}

/// A number, or the `null` that stands for one beyond all floats.
pub(crate) fn number_or_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// A key that is there, `null` or not.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<f64>>, D::Error> {
    Option::deserialize(from).map(Some)
}

fn blocks() -> Cluster {
    Cluster::Block
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
