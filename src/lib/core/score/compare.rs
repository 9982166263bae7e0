//! Two models on the same sequences: the difference of their scores, with its error.
//!
//! Pairing by sequence takes out what both share, the difficulty of the text (and, where both were
//! scored along the same orders or at the same levels, of these): the error of the difference is far
//! below those of the two means. It is made as that of a mean is, of the differences.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::errors::{Design, Part, Residuals};
use super::{Cluster, Levels, ScoreFile};
use crate::{Error, Result, stats};

/// The record that `ao-score --compare A B` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// `comparison`.
    pub r#type: String,
    /// The first file.
    pub a: String,
    /// The second file.
    pub b: String,
    /// Pairs of sequences.
    pub sequences: u64,
    /// Tokens of each side.
    pub token_count: u64,
    /// Mean of the first, over all tokens.
    pub nll_nats_per_token_a: f64,
    /// Mean of the second, over all tokens.
    pub nll_nats_per_token_b: f64,
    /// a − b, over all tokens.
    pub difference_nats_per_token: f64,
    /// Of the difference, over sequences or documents as `cluster` says; null for fewer than two.
    pub std_error: Option<f64>,
    /// The part of it that is due to the choice of orders, where both have as many, two or more.
    pub std_error_orders: Option<f64>,
    /// What counts as independent.
    pub cluster: Cluster,
    /// How many of these there are.
    pub clusters: u64,
    /// The error with each block independent.
    pub std_error_blocks: Option<f64>,
    /// The error with blocks of one document taken together, where documents are known.
    pub std_error_documents: Option<f64>,
    /// Of Student's t in the interval.
    pub degrees_of_freedom: f64,
    /// Lower end of the 95 % interval, by Student's t.
    pub difference_low: Option<f64>,
    /// Its upper end.
    pub difference_high: Option<f64>,
    /// exp(difference): the perplexity of a over that of b.
    pub perplexity_ratio: f64,
    /// `a` or `b`, whose NLL is lower; `neither` where the interval holds 0.
    pub better: String,
    /// In what the two runs differ beside the model.
    pub warnings: Vec<String>,
}

/// Compares two files of scores by sequence. `cluster` says what counts as independent where it is
/// not what the first file says.
///
/// # Errors
/// When one was interrupted, or they are not of the same sequences and tokens.
pub fn compare(a: &Path, b: &Path, cluster: Option<Cluster>) -> Result<Comparison> {
    let (a, b) = (ScoreFile::read(a)?, ScoreFile::read(b)?);
    a.summary()?;
    b.summary()?;
    check_same_set(&a, &b)?;
    let tokens = a.sequences.iter().map(|r| r.token_count).sum::<u64>();
    let (of_a, of_b) = (parts(&a), parts(&b));
    let mean = |parts: &[Part]| parts.iter().map(Part::score).sum::<f64>() / tokens as f64;
    let (mean_a, mean_b) = (mean(&of_a), mean(&of_b));
    let difference = of_a.iter().zip(&of_b).map(|(a, b)| a.score() - b.score()).sum::<f64>();
    let difference = difference / tokens as f64;
    let levels = |file: &ScoreFile| Ok(Design::of(&file.summary()?.orders, None).levels);
    let residuals = residuals((&of_a, levels(&a)?), (&of_b, levels(&b)?));
    let errors = residuals.errors(cluster.or_else(|| a.cluster()));
    let interval = stats::interval(difference, errors.all, errors.degrees_of_freedom);
    let (low, high) = interval.unzip();
    let better = match low.zip(high) {
        Some((low, _)) if low > 0.0 => "b",
        Some((_, high)) if high < 0.0 => "a",
        _ => "neither",
    };
    Ok(Comparison {
        r#type: "comparison".into(),
        a: a.path.display().to_string(),
        b: b.path.display().to_string(),
        sequences: of_a.len() as u64,
        token_count: tokens,
        nll_nats_per_token_a: mean_a,
        nll_nats_per_token_b: mean_b,
        difference_nats_per_token: difference,
        std_error: errors.all,
        std_error_orders: errors.draws,
        cluster: errors.cluster,
        clusters: errors.clusters,
        std_error_blocks: errors.by_block,
        std_error_documents: errors.by_document,
        degrees_of_freedom: errors.degrees_of_freedom,
        difference_low: low,
        difference_high: high,
        perplexity_ratio: difference.exp(),
        better: better.into(),
        warnings: warnings(&a, &b)?,
    })
}

fn parts(file: &ScoreFile) -> Vec<Part> {
    file.sequences.iter().map(Part::from).collect()
}

/// Residuals of the differences: of each draw where the draws of both are at the same levels, else
/// of the sequences.
fn residuals(a: (&[Part], Option<Levels>), b: (&[Part], Option<Levels>)) -> Residuals {
    let alike = a.0.iter().zip(b.0).all(|(a, b)| a.draws.len() == b.draws.len());
    if a.1 != b.1 || !alike {
        return Residuals::of(a.0, a.1).minus(&Residuals::of(b.0, b.1));
    }
    let pairs = a.0.iter().zip(b.0).map(|(a, b)| Part {
        draws: a.draws.iter().zip(&b.draws).map(|(a, b)| a - b).collect(),
        document: a.document.or(b.document),
        ..a.clone()
    });
    Residuals::of(&pairs.collect::<Vec<_>>(), a.1)
}

impl Comparison {
    /// The outcome in one line, for people.
    pub fn to_line(&self) -> String {
        let error = self.std_error.map_or("unknown".into(), |e| format!("{e:.5}"));
        let outcome = match self.better.as_str() {
            "neither" => "not told apart at 95 %".to_owned(),
            "a" => format!("{} is better", self.a),
            _ => format!("{} is better", self.b),
        };
        format!(
            "a − b = {:+.5} nats a token, standard error {error}, {} sequences: {outcome}",
            self.difference_nats_per_token, self.sequences
        )
    }
}

fn check_same_set(a: &ScoreFile, b: &ScoreFile) -> Result<()> {
    let refuse = |message: String| Err(Error::input_at(&b.path, message));
    let other = a.path.display();
    if let (Some(of_a), Some(of_b)) = (a.shards_hash(), b.shards_hash())
        && of_a != of_b
    {
        return refuse(format!("scored shards {of_b}, {other} shards {of_a}; score the same set"));
    }
    if a.sequences.len() != b.sequences.len() {
        return refuse(format!(
            "holds {} sequences, {other} {}; score the same ones (--skip, --max-sequences)",
            b.sequences.len(),
            a.sequences.len()
        ));
    }
    for (of_a, of_b) in a.sequences.iter().zip(&b.sequences) {
        if of_a.index != of_b.index {
            return refuse(format!(
                "sequence {} stands where {other} has sequence {}; score the same ones",
                of_b.index, of_a.index
            ));
        }
        if of_a.token_count != of_b.token_count {
            return refuse(format!(
                "sequence {} has {} scored tokens, in {other} {}; the same tokens must be scored",
                of_b.index, of_b.token_count, of_a.token_count
            ));
        }
        if of_a.spans != of_b.spans {
            return refuse(format!(
                "sequence {} holds out other spans than in {other}; give both runs one --seed",
                of_b.index
            ));
        }
    }
    Ok(())
}

/// What differs beside the model: the difference is of that too.
fn warnings(a: &ScoreFile, b: &ScoreFile) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    let (of_a, of_b) = (a.summary()?, b.summary()?);
    if of_a.estimate != of_b.estimate {
        let name = |e| serde_json::to_value(e).unwrap_or_default();
        warnings.push(format!(
            "a is {}, b is {}: they are not one quantity",
            name(of_a.estimate),
            name(of_b.estimate)
        ));
    }
    let mut check = |what: &str, a: Value, b: Value| {
        if a != b {
            warnings.push(format!("{what} differ: {a} and {b}"));
        }
    };
    let orders = |run: &serde_json::Map<String, Value>, summary: &Value| {
        let mut orders = run.get("orders").cloned().unwrap_or_else(|| summary.clone());
        if let Value::Object(orders) = &mut orders {
            // The width is the model's, and rows are the same below it.
            for key in ["path", "seed", "block_size", super::merge::ONE_ORDER] {
                orders.remove(key);
            }
        }
        orders
    };
    check("orders", orders(&a.run, &of_a.orders), orders(&b.run, &of_b.orders));
    let seed = |file: &ScoreFile| file.run.get("seed").cloned().unwrap_or_default();
    check("seeds", seed(a), seed(b));
    check("orders a sequence", of_a.orders_per_sequence.into(), of_b.orders_per_sequence.into());
    check("sizes of the ensemble", of_a.ensemble.into(), of_b.ensemble.into());
    let conditioning = |c: &Option<String>| c.clone().map_or(Value::Null, Value::from);
    check("conditionings", conditioning(&of_a.conditioning), conditioning(&of_b.conditioning));
    for key in ["dtype", "positions", "weights"] {
        let option = |file: &ScoreFile| {
            file.run.get("config").and_then(|c| c.get(key)).cloned().unwrap_or_default()
        };
        check(&format!("--{key}"), option(a), option(b));
    }
    let version = |file: &ScoreFile| file.run.get("version").cloned().unwrap_or_default();
    check("versions of ao-score", version(a), version(b));
    Ok(warnings)
}
