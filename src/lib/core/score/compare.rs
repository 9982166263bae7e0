//! Two models on the same sequences: the difference of their scores, with its error.
//!
//! Pairing by sequence takes out what both share, the difficulty of the text (and, where both were
//! scored along the same orders, of the orders): the error of the difference is far below those of
//! the two means.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ScoreFile;
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
    /// Of the difference, over sequences; null for fewer than two.
    pub std_error: Option<f64>,
    /// difference − 1.96·std_error.
    pub difference_low: Option<f64>,
    /// difference + 1.96·std_error.
    pub difference_high: Option<f64>,
    /// exp(difference): the perplexity of a over that of b.
    pub perplexity_ratio: f64,
    /// `a` or `b`, whose NLL is lower; `neither` where the interval holds 0.
    pub better: String,
    /// In what the two runs differ beside the model.
    pub warnings: Vec<String>,
}

/// Compares two files of scores by sequence.
///
/// # Errors
/// When one was interrupted, or they are not of the same sequences and tokens.
pub fn compare(a: &Path, b: &Path) -> Result<Comparison> {
    let (a, b) = (ScoreFile::read(a)?, ScoreFile::read(b)?);
    a.summary()?;
    b.summary()?;
    check_same_set(&a, &b)?;
    let tokens: Vec<u64> = a.sequences.iter().map(|r| r.token_count).collect();
    let sums = |file: &ScoreFile| file.sequences.iter().map(|r| r.nll_nats).collect::<Vec<_>>();
    let (of_a, of_b) = (sums(&a), sums(&b));
    let differences: Vec<f64> = of_a.iter().zip(&of_b).map(|(a, b)| a - b).collect();
    let mean = stats::mean_per_token(&differences, &tokens);
    let std_error = Some(mean.std_error).filter(|e| e.is_finite());
    let low = std_error.map(|e| mean.mean - 1.96 * e);
    let high = std_error.map(|e| mean.mean + 1.96 * e);
    let better = match low.zip(high) {
        Some((low, _)) if low > 0.0 => "b",
        Some((_, high)) if high < 0.0 => "a",
        _ => "neither",
    };
    Ok(Comparison {
        r#type: "comparison".into(),
        a: a.path.display().to_string(),
        b: b.path.display().to_string(),
        sequences: mean.sequences,
        token_count: mean.tokens,
        nll_nats_per_token_a: stats::mean_per_token(&of_a, &tokens).mean,
        nll_nats_per_token_b: stats::mean_per_token(&of_b, &tokens).mean,
        difference_nats_per_token: mean.mean,
        std_error,
        difference_low: low,
        difference_high: high,
        perplexity_ratio: mean.mean.exp(),
        better: better.into(),
        warnings: warnings(&a, &b)?,
    })
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
