//! Files of scores as a Markdown table, errors included.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::gather::refuse_repeats;
use crate::cli::units::grouped;
use crate::score::{Estimate, ScoreFile, Summary};
use crate::{Error, Result};

/// A table with a row for each file of `ao-score`: set, order, what the number is, NLL with its
/// standard error, perplexity with its 95 % interval; under it the models, their weights and
/// precision, so that rows of two kinds do not pass for one.
///
/// # Errors
/// When a file is none of scores, or its run was interrupted.
pub fn score_table(paths: &[PathBuf]) -> Result<String> {
    let mut out = String::from(
        "| set | order | estimate | sequences | tokens | nats/token | perplexity (95 %) | bits/byte |\n\
         |---|---|---|--:|--:|--:|--:|--:|\n",
    );
    let mut models: Vec<String> = Vec::new();
    for path in paths {
        let file = ScoreFile::read(path)?;
        refuse_repeats(path, file.sequences.iter().map(|record| record.index).collect())?;
        let summary = file.summary()?;
        let model = model_of(&file);
        let number = models.iter().position(|m| *m == model).unwrap_or_else(|| {
            models.push(model);
            models.len() - 1
        });
        row(&mut out, &file, summary, number + 1)
            .map_err(|e| Error::input_at(path, format!("no row of a table: {e}")))?;
    }
    out.push('\n');
    for (i, model) in models.iter().enumerate() {
        out.push_str(&format!("[{}] {model}\n", i + 1));
    }
    Ok(out)
}

fn row(out: &mut String, file: &ScoreFile, s: &Summary, model: usize) -> std::fmt::Result {
    let set = option(file, "shards").unwrap_or_default();
    let set = Path::new(&set).file_name().map_or(set.clone(), |n| n.to_string_lossy().into_owned());
    let error = s.std_error.map_or(String::new(), |e| format!(" ± {e:.4}"));
    let interval = match (s.perplexity_low, s.perplexity_high) {
        (Some(low), Some(high)) => format!(" ({low:.2} to {high:.2})"),
        _ => String::new(),
    };
    let bits = s.bits_per_byte.map_or("-".into(), |b| format!("{b:.3}"));
    writeln!(
        out,
        "| {} [{model}] | {} | {} | {} | {} | {:.4}{error} | {:.2}{interval} | {bits} |",
        cell(&set),
        cell(&order(file, s)),
        estimate(s),
        grouped(s.sequences),
        grouped(s.token_count),
        s.nll_nats_per_token,
        s.perplexity,
    )
}

/// The SPEC, or the file's name.
fn order(file: &ScoreFile, s: &Summary) -> String {
    let text = |key: &str| s.orders.get(key).and_then(Value::as_str).map(str::to_owned);
    if let Some(cloze) = text("cloze") {
        let given = s.conditioning.as_deref().unwrap_or("both");
        return format!("{cloze} given {given}");
    }
    text("spec").or_else(|| text("path")).or_else(|| option(file, "orders")).unwrap_or("-".into())
}

fn estimate(s: &Summary) -> String {
    let orders = if s.orders_per_sequence > 1 {
        format!(" of {} orders", s.orders_per_sequence)
    } else {
        String::new()
    };
    match s.estimate {
        Estimate::Exact => "exact".into(),
        Estimate::Bound => format!("bound{orders}"),
        Estimate::Ensemble => format!("ensemble of {}{orders}", s.ensemble),
    }
}

/// Weights, precision and device of a file's run.
fn model_of(file: &ScoreFile) -> String {
    let known = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let ckpt = option(file, "ckpt").unwrap_or_else(|| "model not recorded".into());
    let hash = file.run.get("inputs").and_then(|i| i.get(0)).and_then(|i| i.get("xxh3"));
    format!(
        "{ckpt}, weights {} (xxh3 {}), {} on {}, ao-score {}",
        option(file, "weights").unwrap_or_else(|| "by default".into()),
        known(hash).unwrap_or_else(|| "not recorded".into()),
        option(file, "dtype").unwrap_or_else(|| "precision not recorded".into()),
        known(file.run.get("device")).unwrap_or_else(|| "device not recorded".into()),
        known(file.run.get("version")).unwrap_or_default(),
    )
}

fn option(file: &ScoreFile, key: &str) -> Option<String> {
    file.run.get("config")?.get(key)?.as_str().map(str::to_owned)
}

/// Text that does not end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}
