//! Reads what the stages wrote.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{Model, Report, Sampling, Score, Text, Training, unigram_baseline};
use crate::error::IoContext;
use crate::format::checkpoint::CheckpointFile;
use crate::format::jsonl;
use crate::tokens::{Dataset, OpenOptions};
use crate::{Error, Result};

/// Samples whose text the report repeats.
const SAMPLES_SHOWN: usize = 3;

/// Where a report's figures come from.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Which text this is.
    pub corpus: String,
    /// Training shards.
    pub shards: PathBuf,
    /// Held-out shards.
    pub val_shards: PathBuf,
    /// The trainer's run folder.
    pub run: PathBuf,
    /// Records of `ao-sample`.
    pub samples: PathBuf,
    /// Records of `ao-score`, one file for each set of weights and order.
    pub scores: Vec<PathBuf>,
}

impl Report {
    /// Gathers the report.
    ///
    /// # Errors
    /// When a file is missing or lacks a key that the report needs; the error names both.
    pub fn gather(sources: &Sources) -> Result<Report> {
        let options = OpenOptions::default();
        let train = Dataset::open(&sources.shards, &options)?;
        let val = Dataset::open(&sources.val_shards, &options)?;
        let (sampling, samples) = sampling(&sources.samples)?;
        Ok(Report {
            kind: "report".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            corpus: sources.corpus.clone(),
            train: text(&train),
            val: text(&val),
            model: model(&sources.run)?,
            unigram: unigram_baseline(&train, &val)?,
            scores: sources.scores.iter().map(|path| score(path)).collect::<Result<_>>()?,
            training: training(&sources.run.join("metrics.jsonl"))?,
            sampling,
            samples,
        })
    }
}

fn text(data: &Dataset) -> Text {
    let manifest = data.manifest();
    Text {
        tokens: data.token_count(),
        documents: manifest.totals.documents,
        bytes_of_text: manifest.totals.bytes_of_text,
        tokenizer: manifest.tokenizer.as_ref().map_or("none", |t| &t.name).into(),
        vocab_size: manifest.vocab_size as u64,
    }
}

/// The header of the run's latest checkpoint: sizes of all tensors, and the model config.
fn model(run: &Path) -> Result<Model> {
    let latest = run.join("latest");
    let step = std::fs::read_to_string(&latest).reading(&latest)?;
    let step = step.trim();
    let step = step.strip_prefix("checkpoints/").unwrap_or(step);
    let path = run.join("checkpoints").join(step).join("model.st");
    let file = CheckpointFile::open(&path)?;
    let tensors = file.names().filter_map(|name| file.tensor(name));
    let parameters = tensors.map(|view| view.element_count() as u64).sum();
    let config = file.config()?;
    let config = config.ok_or_else(|| Error::input_at(&path, "no model config in the metadata"))?;
    Ok(Model { parameters, config })
}

/// The `run` record of a file, the last record of type `last`, and `each` record in between.
struct Records {
    path: PathBuf,
    run: Map<String, Value>,
    last: Map<String, Value>,
}

impl Records {
    fn read(path: &Path, last: &str, mut each: impl FnMut(&Map<String, Value>)) -> Result<Records> {
        let mut reader = jsonl::Reader::open(path)?;
        let mut records = Records { path: path.into(), run: Map::new(), last: Map::new() };
        while let Some(object) = reader.next_object()? {
            match object.get("type").and_then(Value::as_str) {
                Some("run") => records.run = object,
                Some(kind) if kind == last => records.last = object,
                _ => each(&object),
            }
        }
        if records.last.is_empty() {
            let message = format!("no record of type {last}; run the stage that writes it again");
            return Err(Error::input_at(path, message));
        }
        Ok(records)
    }

    fn missing(&self, key: &str) -> Error {
        Error::input_at(&self.path, format!("the last record has no number '{key}'"))
    }

    fn whole(&self, key: &str) -> Result<u64> {
        self.last.get(key).and_then(Value::as_u64).ok_or_else(|| self.missing(key))
    }

    fn number(&self, key: &str) -> Result<f64> {
        self.optional(key).ok_or_else(|| self.missing(key))
    }

    fn optional(&self, key: &str) -> Option<f64> {
        self.last.get(key).and_then(Value::as_f64)
    }

    /// An option of the run, as text.
    fn option(&self, key: &str) -> Option<String> {
        self.run.get("config")?.get(key)?.as_str().map(str::to_owned)
    }
}

fn score(path: &Path) -> Result<Score> {
    let mut numbers = Vec::new();
    let records = Records::read(path, "summary", |object| {
        if object.get("type").and_then(Value::as_str) == Some("sequence") {
            numbers.extend(object.get("index").and_then(Value::as_u64));
        }
    })?;
    refuse_repeats(path, numbers)?;
    let of_file = || {
        let ckpt = records.option("ckpt")?;
        Some(Path::new(&ckpt).file_stem()?.to_string_lossy().into_owned())
    };
    let nameless = || Error::input_at(path, "the run record names no weights");
    Ok(Score {
        weights: records.option("weights").or_else(of_file).ok_or_else(nameless)?,
        orders: (records.last.get("bound").and_then(Value::as_str).map(str::to_owned))
            .or_else(|| records.option("orders"))
            .unwrap_or_else(|| "uniform".into()),
        sequences: records.whole("sequences")?,
        token_count: records.whole("token_count")?,
        nll_nats_per_token: records.number("nll_nats_per_token")?,
        std_error: records.optional("std_error"),
        perplexity: records.number("perplexity")?,
        bits_per_byte: records.optional("bits_per_byte"),
    })
}

/// Refuses scores in which a sequence comes twice, as when two programs wrote one file.
///
/// # Errors
/// Names the first such sequence.
pub(super) fn refuse_repeats(path: &Path, mut numbers: Vec<u64>) -> Result<()> {
    numbers.sort_unstable();
    match numbers.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            let what = format!("sequence {} stands there twice; score the set again", pair[0]);
            Err(Error::input_at(path, what))
        }
    }
}

fn training(path: &Path) -> Result<Training> {
    let records = Records::read(path, "step", |_| ())?;
    let (tokens, seconds) = (records.whole("tokens")?, records.number("seconds")?);
    Ok(Training {
        steps: records.whole("step")?,
        tokens,
        seconds,
        tokens_per_second: tokens as f64 / seconds.max(1e-9),
        device: records.run.get("device").and_then(Value::as_str).map(str::to_owned),
        dtype: records.option("dtype"),
    })
}

fn sampling(path: &Path) -> Result<(Sampling, Vec<String>)> {
    let (mut samples, mut tokens, mut texts) = (0, 0, Vec::new());
    let records = Records::read(path, "summary", |object| {
        if object.get("type").and_then(Value::as_str) != Some("sample") {
            return;
        }
        samples += 1;
        tokens += object.get("tokens").and_then(Value::as_array).map_or(0, |t| t.len() as u64);
        if let (true, Some(text)) = (texts.len() < SAMPLES_SHOWN, object.get("text")) {
            texts.push(text.as_str().unwrap_or_default().to_owned());
        }
    })?;
    let seconds = records.number("seconds")?;
    let tokens_per_second = tokens as f64 / seconds.max(1e-9);
    Ok((Sampling { samples, tokens, seconds, tokens_per_second }, texts))
}
