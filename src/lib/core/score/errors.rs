//! The standard errors of a mean over sequences: what the choice of texts and what the draws of
//! orders or masks bring.
//!
//! With Sᵢ the score of sequence i (the mean of its K draws), Nᵢ its tokens and m = Σ Sᵢ / Σ Nᵢ, the
//! residuals are Sᵢ − m·Nᵢ. Three things are done to them:
//! - where levels are spread over sequences ([`Levels`]), what the level says is taken out: it is
//!   the same in every run ([`Curve`]), but for the imbalance of an incomplete block;
//! - residuals of one document are added up before they are squared, as blocks cut from one text
//!   are not independent ([`Cluster`]);
//! - the draws' part comes of the spread within each sequence, whose draws are independent.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::SequenceRecord;
use super::levels::{Curve, Levels, STRATA};

/// Fewest documents whose errors are told by document without being asked.
pub const FEWEST_DOCUMENTS: usize = 20;

/// What counts as independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Cluster {
    /// Documents: blocks of one are taken together.
    Document,
    /// Blocks, each by itself.
    Block,
}

/// How a file's draws were made, and what is taken for independent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Design {
    /// The levels of the draws of a bound, where they are spread over the sequences.
    pub levels: Option<Levels>,
    /// What is independent; [`Cluster::Document`] where `None` and there are
    /// [`FEWEST_DOCUMENTS`] of them.
    pub cluster: Option<Cluster>,
}

impl Design {
    /// That of a run whose records say `orders` of its orders: of a bound `draws` and the seed.
    pub fn of(orders: &Value, cluster: Option<Cluster>) -> Design {
        let drawn = orders.get("draws").is_some();
        let seed = orders.get("seed").and_then(Value::as_u64).filter(|_| drawn);
        Design { levels: seed.map(Levels::new), cluster }
    }
}

/// One sequence's part of a mean.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    pub index: u64,
    pub document: Option<u64>,
    pub tokens: u64,
    /// The score of each draw, nats.
    pub draws: Vec<f64>,
}

impl Part {
    /// The mean over its draws.
    pub fn score(&self) -> f64 {
        self.draws.iter().sum::<f64>() / self.draws.len() as f64
    }
}

impl From<&SequenceRecord> for Part {
    fn from(record: &SequenceRecord) -> Part {
        let one = || vec![record.nll_nats];
        Part {
            index: record.index,
            document: record.document,
            tokens: record.token_count,
            draws: record.nll_nats_orders.clone().unwrap_or_else(one),
        }
    }
}

/// What is known of a mean's error, in nats a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Errors {
    /// The standard error of the mean; `None` for fewer than two independent units.
    pub all: Option<f64>,
    /// The same with blocks as units.
    pub by_block: Option<f64>,
    /// The same with documents as units, where they are known.
    pub by_document: Option<f64>,
    /// The part that is due to the draws; `None` with one draw a sequence.
    pub draws: Option<f64>,
    /// The part that is due to the choice of sequences.
    pub sequences: Option<f64>,
    /// What counted as independent in `all`.
    pub cluster: Cluster,
    /// How many of these there are.
    pub clusters: u64,
    /// Degrees of freedom of `all`.
    pub degrees_of_freedom: f64,
}

/// Scores of sequences without what does not vary between runs, nats.
#[derive(Debug, Clone)]
pub(super) struct Residuals {
    documents: Option<Vec<u64>>,
    tokens: f64,
    /// Of each sequence, the mean over its draws.
    of_sequences: Vec<f64>,
    /// Σ over sequences of the variance of that mean, by the spread of the draws.
    within: Option<f64>,
    /// The variance that levels bring which are not evenly spread.
    imbalance: f64,
    /// Sequences' worth of freedom that the curve took.
    lost: f64,
}

impl Residuals {
    /// Those of `parts`, whose draws lie at `levels` where these are spread over sequences.
    pub fn of(parts: &[Part], levels: Option<Levels>) -> Residuals {
        let draws = parts.first().map_or(1, |p| p.draws.len());
        if parts.iter().any(|part| part.draws.len() != draws) {
            let one = |part: &Part| Part { draws: vec![part.score()], ..part.clone() };
            return Residuals::of(&parts.iter().map(one).collect::<Vec<_>>(), None);
        }
        let tokens = parts.iter().map(|p| p.tokens as f64).sum::<f64>();
        let mean = parts.iter().map(Part::score).sum::<f64>() / tokens;
        let strata: Vec<usize> = levels.map_or_else(Vec::new, |levels| {
            parts.iter().flat_map(|part| levels.strata(part.index, draws)).collect()
        });
        let mut residuals: Vec<f64> = parts
            .iter()
            .flat_map(|part| part.draws.iter().map(|x| x - mean * part.tokens as f64))
            .collect();
        let mut own = vec![0.0; parts.len()];
        let (mut imbalance, mut terms) = (0.0, 0.0);
        if levels.is_some() {
            let lengths: Vec<f64> = parts.iter().map(|p| p.tokens as f64).collect();
            let curve = curve(&residuals, &strata, &lengths, draws);
            for (at, x) in residuals.iter_mut().enumerate() {
                *x -= lengths[at / draws] * curve.values[strata[at]];
            }
            let sequences = parts.iter().map(|p| p.index).zip(lengths);
            imbalance = curve.imbalance(sequences) / draws as f64;
            terms = curve.terms as f64;
        }
        own.iter_mut().zip(residuals.chunks(draws)).for_each(|(own, x)| *own = mean_of(x));
        let free = (parts.len() * (draws - 1)) as f64;
        let within = (draws > 1).then(|| {
            let squares = residuals.iter().enumerate().map(|(at, x)| (x - own[at / draws]).powi(2));
            squares.sum::<f64>() / ((draws - 1) * draws) as f64 * free / (free - terms)
        });
        // With one draw each cosine takes a sequence's freedom; with more the curve is fitted within
        // sequences, and adds its own error to the draws' share of the variance between them.
        let lost = match within {
            None => terms,
            Some(within) => {
                let squares: f64 = own.iter().map(|x| x * x).sum();
                -terms / (draws - 1) as f64 * (within / squares.max(f64::MIN_POSITIVE)).min(1.0)
            }
        };
        Residuals {
            documents: parts.iter().map(|p| p.document).collect(),
            tokens,
            of_sequences: own,
            within,
            imbalance,
            lost,
        }
    }

    /// The difference from another score of the same sequences, whose draws are other ones.
    pub fn minus(&self, other: &Residuals) -> Residuals {
        let pairs = self.of_sequences.iter().zip(&other.of_sequences);
        Residuals {
            documents: self.documents.clone().or_else(|| other.documents.clone()),
            tokens: self.tokens,
            of_sequences: pairs.map(|(a, b)| a - b).collect(),
            within: self.within.zip(other.within).map(|(a, b)| a + b),
            imbalance: self.imbalance + other.imbalance,
            lost: self.lost.max(other.lost),
        }
    }

    /// The errors of the mean that they are residuals of.
    pub fn errors(&self, cluster: Option<Cluster>) -> Errors {
        let n = self.of_sequences.len();
        // What of n − 1 the curve left.
        let free = 1.0 - self.lost / (n as f64 - 1.0).max(1.0);
        // The variance between units, whose sums are given, nats².
        let between = |sums: &[f64]| {
            let count = sums.len() as f64;
            let squares: f64 = sums.iter().map(|x| x * x).sum();
            (count > 1.0).then(|| squares * count / (count - 1.0) / free)
        };
        let error = |variance: f64| variance.max(0.0).sqrt() / self.tokens;
        let of_documents = self.documents.as_deref().map(|d| summed_by(d, &self.of_sequences));
        let known = of_documents.as_ref().map_or(0, Vec::len);
        let cluster = match cluster {
            Some(Cluster::Document) if known > 0 => Cluster::Document,
            None if known >= FEWEST_DOCUMENTS => Cluster::Document,
            _ => Cluster::Block,
        };
        let by_block = between(&self.of_sequences);
        let by_document = of_documents.as_ref().and_then(|sums| between(sums));
        let (all, clusters) = match cluster {
            Cluster::Block => (by_block, n),
            Cluster::Document => (by_document, known),
        };
        let whole = |variance: Option<f64>| variance.map(|v| error(v + self.imbalance));
        Errors {
            all: whole(all),
            by_block: whole(by_block),
            by_document: whole(by_document),
            draws: self.within.map(|v| error(v + self.imbalance)),
            sequences: all.zip(self.within).map(|(all, within)| error(all - within)),
            cluster,
            clusters: clusters as u64,
            degrees_of_freedom: (clusters as f64 - 1.0).max(0.0) * free,
        }
    }
}

/// The curve of `residuals`, `draws` of each sequence; with several, beside a mean for each
/// sequence, lest the differences between texts pass for the curve.
fn curve(residuals: &[f64], strata: &[usize], lengths: &[f64], draws: usize) -> Curve {
    // Fits of means and curve in turn: each round takes 1/K of the rest.
    let rounds = if draws == 1 { 1 } else { 7 };
    let terms = (lengths.len() * (draws - 1).max(1)).saturating_sub(1) / 6;
    let mut own = vec![0.0; lengths.len()];
    let mut curve = Curve { values: [0.0; STRATA], terms: 0 };
    for _ in 0..rounds {
        let (mut weights, mut sums) = ([0.0; STRATA], [0.0; STRATA]);
        for (at, (x, &z)) in residuals.iter().zip(strata).enumerate() {
            weights[z] += lengths[at / draws];
            sums[z] += x - own[at / draws];
        }
        curve = Curve::fit(&weights, &sums, terms);
        for (at, own) in own.iter_mut().enumerate() {
            let level = mean_of(strata[at * draws..][..draws].iter().map(|&z| &curve.values[z]));
            *own = mean_of(&residuals[at * draws..][..draws]) - lengths[at] * level;
        }
    }
    curve
}

fn mean_of<'a>(values: impl IntoIterator<Item = &'a f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for x in values {
        sum += x;
        count += 1.0;
    }
    sum / count
}

/// Sums of the values that have the same key, in the order of the keys' first places.
fn summed_by(keys: &[u64], values: &[f64]) -> Vec<f64> {
    let mut places = FxHashMap::default();
    let mut sums = Vec::new();
    for (&key, value) in keys.iter().zip(values) {
        let at = *places.entry(key).or_insert_with(|| {
            sums.push(0.0);
            sums.len() - 1
        });
        sums[at] += value;
    }
    sums
}

#[cfg(test)]
#[path = "errors_tests.rs"]
mod tests;
