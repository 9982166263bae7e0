//! Files of scores as a Markdown table, errors included.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::Value;

use super::set::{check_same_tokens, refuse_repeats, set_names};
use super::text::perplexity;
use crate::cli::units::grouped;
use crate::score::{Estimate, ScoreFile, Summary};
use crate::{Error, Result, stats};

/// A table with a row for each file of `ao-score`: set, order, what the number is, tokens scored and
/// given, NLL with its standard error, perplexity with its 95 % interval; under it the models, their
/// weights and precision, so that rows of two kinds do not pass for one.
///
/// # Errors
/// When a file is none of scores, its run was interrupted, or two of one set do not score the same
/// tokens.
pub fn score_table(paths: &[PathBuf]) -> Result<String> {
    let files = paths.iter().map(|path| ScoreFile::read(path)).collect::<Result<Vec<_>>>()?;
    files.iter().try_for_each(refuse_repeats)?;
    check_same_tokens(&files)?;
    let mut out = String::from(
        "| set | order | estimate | sequences | tokens | given | nats/token | perplexity (95 %) | bits/byte |\n\
         |---|---|---|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut models: Vec<String> = Vec::new();
    for (file, set) in files.iter().zip(set_names(&files)) {
        let model = model_of(file);
        let number = models.iter().position(|m| *m == model).unwrap_or_else(|| {
            models.push(model);
            models.len() - 1
        });
        row(&mut out, (file, &set), file.summary()?, number + 1)
            .map_err(|e| Error::input_at(&file.path, format!("no row of a table: {e}")))?;
    }
    out.push('\n');
    for (i, model) in models.iter().enumerate() {
        out.push_str(&format!("[{}] {model}\n", i + 1));
    }
    Ok(out)
}

fn row(
    out: &mut String,
    (file, set): (&ScoreFile, &str),
    s: &Summary,
    model: usize,
) -> std::fmt::Result {
    let error = s.std_error.map_or(String::new(), |e| format!(" ± {e:.4}"));
    let interval = stats::interval(s.nll_nats_per_token, s.std_error, s.degrees_of_freedom);
    let interval = interval.map_or(String::new(), |(low, high)| {
        format!(" ({} to {})", perplexity(low, 2), perplexity(high, 2))
    });
    let bits = s.bits_per_byte.map_or("-".into(), |b| format!("{b:.3}"));
    writeln!(
        out,
        "| {} [{model}] | {} | {} | {} | {} | {} | {:.4}{error} | {}{interval} | {bits} |",
        cell(set),
        cell(&order(file, s)),
        estimate(s),
        grouped(s.sequences),
        grouped(s.token_count),
        grouped(s.given_tokens * s.sequences),
        s.nll_nats_per_token,
        perplexity(s.nll_nats_per_token, 2),
    )
}

/// The SPEC, or the file's name.
pub(super) fn order(file: &ScoreFile, s: &Summary) -> String {
    let text = |key: &str| s.orders.get(key).and_then(Value::as_str).map(str::to_owned);
    if let Some(cloze) = text("cloze") {
        let given = s.conditioning.as_deref().unwrap_or("both");
        return format!("{cloze} given {given}");
    }
    let masks = || text("masks").map(|file| format!("masks of {file}"));
    let drawn = || s.manner.bound.is_some().then(|| "random masks".to_owned());
    (text("spec").or_else(|| text("path")).or_else(masks).or_else(drawn))
        .or_else(|| file.option("orders"))
        .unwrap_or("-".into())
}

/// What the number is: exact, the bound or published loss by its form, or an ensemble.
pub(super) fn estimate(s: &Summary) -> String {
    let several = |what: &str| match s.orders_per_sequence {
        1 => String::new(),
        count => format!(" of {count} {what}"),
    };
    match (s.estimate, &s.manner.bound) {
        (Estimate::Exact, _) => "exact".into(),
        (Estimate::Bound, Some(form)) => format!("{form} bound{}", several("draws")),
        (Estimate::Surrogate, form) => {
            format!("{}{}", form.as_deref().unwrap_or("loss"), several("draws"))
        }
        (Estimate::Bound, None) => format!("bound{}", several("orders")),
        (Estimate::Ensemble, _) => format!("ensemble of {}{}", s.ensemble, several("orders")),
    }
}

/// Weights, precision and device of a file's run.
fn model_of(file: &ScoreFile) -> String {
    let known = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let ckpt = file.option("ckpt").unwrap_or_else(|| "model not recorded".into());
    let hash = file.run.get("inputs").and_then(|i| i.get(0)).and_then(|i| i.get("xxh3"));
    format!(
        "{ckpt}, weights {} (xxh3 {}), {} on {}, ao-score {}",
        file.option("weights").unwrap_or_else(|| "by default".into()),
        known(hash).unwrap_or_else(|| "not recorded".into()),
        file.option("dtype").unwrap_or_else(|| "precision not recorded".into()),
        known(file.run.get("device")).unwrap_or_else(|| "device not recorded".into()),
        known(file.run.get("version")).unwrap_or_default(),
    )
}

/// Text that does not end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}
