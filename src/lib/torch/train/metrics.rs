//! `metrics.jsonl`: a `run` record at each start, a `step` record a step, `eval` records.
//!
//! The file only grows, a whole line at a time. A resumed run cuts it after the last record of a step
//! that its checkpoint includes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use ao_core::Result;
use ao_core::error::IoContext;
use ao_core::format::events::EventWriter;
use ao_core::format::jsonl;
use ao_core::process::Objective;
use ao_core::score::{Estimate, Manner};
use serde::Serialize;
use serde_json::Value;

/// One step (design: records).
#[derive(Debug, Clone, Serialize)]
pub struct StepRecord {
    /// `step`.
    pub r#type: &'static str,
    /// Steps done, this one included; the first is 1.
    pub step: u64,
    /// What is minimised.
    pub objective: Objective,
    /// Whether the loss is an NLL or an estimate of a bound on it.
    pub estimate: Estimate,
    /// Loss over the step's scored targets, a token, before the update; null when not finite.
    pub loss_nats: f64,
    /// Learning rate used.
    pub lr: f64,
    /// Norm of the gradients before clipping; null when not finite.
    pub grad_norm: f64,
    /// Scored targets of all steps so far.
    pub tokens: u64,
    /// Seconds of training so far, over all starts.
    pub seconds: f64,
    /// Scored targets a second since the record before.
    pub tokens_per_second: f64,
    /// Floating-point operations of all steps so far ([`ao_core::family::ModelConfig::flops_per_token`]).
    pub flops: f64,
    /// Fraction of the peak of `--peak-tflops`; null without one.
    pub mfu: Option<f64>,
    /// Why a number is null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The last record of a start: what it did.
#[derive(Debug, Clone, Serialize)]
pub struct SummaryRecord {
    /// `summary`.
    pub r#type: &'static str,
    /// Steps done.
    pub step: u64,
    /// `steps`, `max_tokens`, `max_seconds`, `max_flops` or `signal`.
    pub stopped_by: &'static str,
    /// Scored targets of all starts.
    pub tokens: u64,
    /// Seconds of training of all starts.
    pub seconds: f64,
    /// Operations of all starts.
    pub flops: f64,
    /// Operations of a scored target.
    pub flops_per_token: f64,
    /// Steps of this start. The fields below are about this start too.
    pub steps_of_start: u64,
    /// Scored targets a second of training; null without a step.
    pub tokens_per_second: Option<f64>,
    /// Fraction of the peak over all these steps; null without a peak.
    pub mfu: Option<f64>,
    /// Peak memory of the process, on the host; null if the system does not report it.
    pub peak_memory_bytes: Option<u64>,
    /// Seconds of each kind of work: `data_seconds` and so on.
    #[serde(flatten)]
    pub seconds_of: BTreeMap<String, f64>,
}

/// One validation.
#[derive(Debug, Clone, Serialize)]
pub struct EvalRecord {
    /// `eval`.
    pub r#type: &'static str,
    /// Steps done.
    pub step: u64,
    /// `raw`, or `ema:DECAY`.
    pub weights: String,
    /// What training minimises.
    pub objective: Objective,
    /// `exact` along one order; `bound` for a mean over orders or masks.
    pub estimate: Estimate,
    /// The orders' SPEC; null for encoders.
    pub orders: Option<String>,
    /// How encoders were masked; null for decoders.
    pub masks: Option<String>,
    /// The form, its δ and ε, or the time that was told.
    #[serde(flatten)]
    pub manner: Manner,
    /// Mean over all targets.
    pub nll_nats_per_token: f64,
    /// Standard error of the mean, over sequences.
    pub std_error: Option<f64>,
    /// exp of the mean.
    pub perplexity: f64,
    /// Sequences scored.
    pub sequences: u64,
    /// Targets scored.
    pub token_count: u64,
    /// Seconds it took.
    pub seconds: f64,
}

impl EvalRecord {
    /// What the figure is, in words.
    pub fn what(&self) -> String {
        match (&self.orders, self.estimate) {
            (Some(orders), Estimate::Exact) => format!("NLL along {orders}"),
            (Some(orders), _) => format!("mean NLL along {orders}"),
            (None, _) => "bound on the NLL".into(),
        }
    }
}

/// The file, open at its end.
pub struct Metrics {
    file: File,
    path: PathBuf,
    events: Option<EventWriter>,
    /// The last step that the file holds a validation of.
    pub evaluated: Option<u64>,
}

impl Metrics {
    /// Starts the file, or continues it after the records of `step`. Scalars go to `events` too.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn open(path: &Path, step: u64, events: Option<EventWriter>) -> Result<Metrics> {
        let file = jsonl::open_append(path)?;
        let (end, evaluated) = end_of_step(path, step)?;
        file.set_len(end).writing(path)?;
        Ok(Metrics { file, path: path.into(), events, evaluated })
    }

    /// Appends a step's record.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.write(record)?;
        let Some(events) = &mut self.events else { return Ok(()) };
        let scalars = [
            ("train/loss_nats", record.loss_nats),
            ("train/lr", record.lr),
            ("train/grad_norm", record.grad_norm),
            ("train/tokens_per_second", record.tokens_per_second),
            ("train/mfu", record.mfu.unwrap_or(f64::NAN)),
        ];
        events.scalars(record.step, &scalars)
    }

    /// Appends a validation's record.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn evaluation(&mut self, record: &EvalRecord) -> Result<()> {
        self.write(record)?;
        self.evaluated = Some(record.step);
        let Some(events) = &mut self.events else { return Ok(()) };
        let tag = format!("eval/{}/nll_nats_per_token", record.weights);
        events.scalars(record.step, &[(&tag, record.nll_nats_per_token)])
    }

    /// Appends one record and hands it to the system.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write<T: Serialize>(&mut self, record: &T) -> Result<()> {
        self.file.write_all(&jsonl::line(record)?).writing(&self.path)
    }
}

/// The offset after the last line that belongs to steps up to `step`, and the last validated step
/// among them.
fn end_of_step(path: &Path, step: u64) -> Result<(u64, Option<u64>)> {
    let mut input = BufReader::new(File::open(path).reading(path)?);
    let mut line = Vec::new();
    let (mut offset, mut end, mut evaluated) = (0, 0, None);
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line).reading(path)?;
        if read == 0 {
            return Ok((end, evaluated));
        }
        offset += read as u64;
        let record: Value = serde_json::from_slice(&line).unwrap_or(Value::Null);
        match record.get("step").and_then(Value::as_u64) {
            Some(s) if s > step => return Ok((end, evaluated)),
            at => {
                end = offset;
                if record["type"] == "eval" {
                    evaluated = at;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_cuts_the_records_that_its_checkpoint_has_not_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let text = "{\"type\":\"run\"}\n{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"ste";
        std::fs::write(&path, text).unwrap();
        let mut metrics = Metrics::open(&path, 2, None).unwrap();
        metrics.write(&serde_json::json!({"type": "run"})).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "{\"type\":\"run\"}\n{\"step\":1}\n{\"step\":2}\n{\"type\":\"run\"}\n"
        );
    }
}
