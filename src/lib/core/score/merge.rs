//! The parts of one evaluation, cut by `--skip` and `--max-sequences`, as one.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::record::Cost;
use super::{Cluster, Design, Estimate, Fingerprint, ScoreFile, Setting, Totals};
use crate::cli::{Input, OutputArgs, VERSION};
use crate::format::jsonl;
use crate::{Error, Result};

/// The key of `orders` that tells one order from another where a file holds them.
pub const ONE_ORDER: &str = "one_order_xxh3";

/// Joins the files: a run record, the sequences by number, and the summary that an unbroken run
/// would have written but for its time. `cluster` says what counts as independent where it is not
/// what the first part says; `warn` is told of gaps.
///
/// # Errors
/// When a part was interrupted, two parts share a sequence, or they differ in a setting that
/// decides numbers.
pub fn merge(
    paths: &[PathBuf],
    output: &OutputArgs,
    cluster: Option<Cluster>,
    warn: impl Fn(&str),
) -> Result<()> {
    let mut parts = paths.iter().map(|p| ScoreFile::read(p)).collect::<Result<Vec<_>>>()?;
    for part in &parts {
        part.summary()?;
        if part.sequences.is_empty() {
            return Err(Error::input_at(&part.path, "holds no sequences; leave it out"));
        }
    }
    parts.sort_by_key(|p| p.sequences[0].index);
    let Some(first) = parts.first() else {
        return Err(Error::usage("--merge: name the files to join"));
    };
    let fingerprint = Fingerprint::of(&first.run, false);
    for part in &parts[1..] {
        if let Some((key, a, b)) = fingerprint.difference(&Fingerprint::of(&part.run, false)) {
            return Err(Error::input_at(
                &part.path,
                format!(
                    "{key} is {b}, in {} it is {a}; only parts of one evaluation join",
                    first.path.display()
                ),
            ));
        }
    }
    check_numbers(&parts, warn)?;

    let mut run = first.run.clone();
    run.insert("version".into(), VERSION.into());
    run.insert("argv".into(), std::env::args().collect::<Vec<_>>().into());
    if let Some(config) = run.get_mut("config").and_then(Value::as_object_mut) {
        config.insert("max_sequences".into(), Value::Null);
    }
    let inputs = parts.iter().map(|p| Input::of_file(&p.path)).collect::<Result<Vec<_>>>()?;
    run.insert("merged".into(), json!(inputs));

    let mut sink = output.open()?;
    sink.put(&jsonl::line(&run)?)?;
    let setting = setting(&parts)?;
    let design = Design::of(&setting.orders, cluster.or_else(|| first.cluster()));
    let mut totals = Totals::new(design);
    for record in parts.iter().flat_map(|p| &p.sequences) {
        totals.add(record);
        sink.put(&jsonl::line(record)?)?;
    }
    sink.put(&jsonl::line(&totals.summary(setting, cost(&parts)?))?)?;
    sink.finish()
}

/// Refuses a sequence that comes twice, and tells of those that are missing in between.
fn check_numbers(parts: &[ScoreFile], warn: impl Fn(&str)) -> Result<()> {
    let mut last: Option<(u64, &ScoreFile)> = None;
    for part in parts {
        for record in &part.sequences {
            if let Some((before, holder)) = last {
                if record.index <= before {
                    return Err(Error::input_at(
                        &part.path,
                        format!(
                            "sequence {} lies in {} too, or out of order; give each part once",
                            record.index,
                            holder.path.display()
                        ),
                    ));
                }
                // Too short ones are left out on purpose.
                let left_out = part.summary()?.sequences_left_out.is_some();
                if record.index > before + 1 && !left_out {
                    warn(&format!("sequences {} to {} are missing", before + 1, record.index - 1));
                }
            }
            last = Some((record.index, part));
        }
    }
    Ok(())
}

fn setting(parts: &[ScoreFile]) -> Result<Setting> {
    let summaries = parts.iter().map(ScoreFile::summary).collect::<Result<Vec<_>>>()?;
    let mut setting = Setting::of(summaries[0]);
    for (part, summary) in parts.iter().zip(&summaries) {
        if summary.orders_per_sequence != setting.orders_per_sequence {
            return Err(Error::input_at(
                &part.path,
                format!(
                    "{} orders a sequence, in {} there are {}; score all parts with one --mc",
                    summary.orders_per_sequence,
                    parts[0].path.display(),
                    setting.orders_per_sequence
                ),
            ));
        }
    }
    let alike = summaries.iter().all(|s| {
        s.estimate == setting.estimate && s.orders.get(ONE_ORDER) == setting.orders.get(ONE_ORDER)
    });
    if !alike && setting.estimate != Estimate::Ensemble {
        // Each part may have had an order of its own.
        setting.estimate = Estimate::Bound;
        if let Value::Object(orders) = &mut setting.orders {
            orders.remove(ONE_ORDER);
        }
    }
    let left_out: Vec<u64> = summaries.iter().filter_map(|s| s.sequences_left_out).collect();
    setting.sequences_left_out = (!left_out.is_empty()).then(|| left_out.iter().sum());
    setting.stopped = None;
    Ok(setting)
}

fn cost(parts: &[ScoreFile]) -> Result<Cost> {
    let mut cost = Cost::default();
    for part in parts {
        let summary = part.summary()?;
        cost.seconds += summary.seconds;
        cost.rows_forwarded += summary.rows_forwarded;
        cost.rows_through_head += summary.rows_through_head;
        cost.peak_memory_bytes = cost.peak_memory_bytes.max(summary.peak_memory_bytes);
    }
    Ok(cost)
}
