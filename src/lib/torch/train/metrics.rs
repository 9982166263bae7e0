//! `metrics.jsonl`: a `run` record at each start, a `step` record a step, `eval` records.
//!
//! The file only grows, a whole line at a time. A resumed run cuts it behind the last record of a
//! step that its checkpoint has seen.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use ao_core::Result;
use ao_core::error::IoContext;
use ao_core::format::jsonl;
use serde::Serialize;
use serde_json::Value;

/// One step (design: records).
#[derive(Debug, Clone, Serialize)]
pub struct StepRecord {
    /// `step`.
    pub r#type: &'static str,
    /// Steps done after it; the first is 1.
    pub step: u64,
    /// Mean NLL over the step's scored targets, before the update; null when not finite.
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
    /// Share of a measured matmul ceiling; null without one.
    pub mfu: Option<f64>,
    /// Why a number is null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
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
    /// The orders' SPEC.
    pub orders: String,
    /// Mean over all targets.
    pub nll_nats_per_token: f64,
    /// Of it, over sequences.
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

/// The file, open at its end.
pub struct Metrics {
    file: File,
    path: PathBuf,
}

impl Metrics {
    /// Starts or continues the file behind the records of `step`.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn open(path: &Path, step: u64) -> Result<Metrics> {
        let file = jsonl::open_append(path)?;
        let end = end_of_step(path, step)?;
        file.set_len(end).writing(path)?;
        Ok(Metrics { file, path: path.into() })
    }

    /// Appends one record; the system has it when this returns.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write<T: Serialize>(&mut self, record: &T) -> Result<()> {
        self.file.write_all(&jsonl::line(record)?).writing(&self.path)
    }
}

/// The offset behind the last line that belongs to steps up to `step`.
fn end_of_step(path: &Path, step: u64) -> Result<u64> {
    let mut input = BufReader::new(File::open(path).reading(path)?);
    let mut line = Vec::new();
    let (mut offset, mut end) = (0, 0);
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line).reading(path)?;
        if read == 0 {
            return Ok(end);
        }
        offset += read as u64;
        let record: Value = serde_json::from_slice(&line).unwrap_or(Value::Null);
        match record.get("step").and_then(Value::as_u64) {
            Some(s) if s > step => return Ok(end),
            _ => end = offset,
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
        let mut metrics = Metrics::open(&path, 2).unwrap();
        metrics.write(&serde_json::json!({"type": "run"})).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "{\"type\":\"run\"}\n{\"step\":1}\n{\"step\":2}\n{\"type\":\"run\"}\n"
        );
    }
}
