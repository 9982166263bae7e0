//! Reads what the stages wrote.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::set::{check_same_tokens, refuse_repeats};
use super::table::{estimate, order};
use super::{HeldOut, Model, Report, Sampling, Score, Text, Training, unigram_baseline};
use crate::cli::Input;
use crate::error::IoContext;
use crate::format::checkpoint::CheckpointFile;
use crate::format::jsonl;
use crate::score::ScoreFile;
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
        let val = Arc::new(Dataset::open(&sources.val_shards, &options)?);
        let (sampling, samples) = sampling(&sources.samples)?;
        let scores =
            sources.scores.iter().map(|path| ScoreFile::read(path)).collect::<Result<Vec<_>>>()?;
        check_same_tokens(&scores)?;
        check_shards(&sources.val_shards, &scores)?;
        let model = model(&sources.run)?;
        Ok(Report {
            kind: "report".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            corpus: sources.corpus.clone(),
            train: text(&train),
            val: text(&val),
            unigram: unigram_baseline(&train, &val, &held_out(&model, &scores)?)?,
            model,
            scores: scores.iter().map(score).collect::<Result<_>>()?,
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
        self.last.get(key).and_then(Value::as_f64).ok_or_else(|| self.missing(key))
    }

    /// An option of the run, as text.
    fn option(&self, key: &str) -> Option<String> {
        self.run.get("config")?.get(key)?.as_str().map(str::to_owned)
    }
}

/// Refuses scores of other shards than the held-out ones.
fn check_shards(val: &Path, scores: &[ScoreFile]) -> Result<()> {
    let input = if val.is_dir() { Input::of_folder(val)? } else { Input::of_file(val)? };
    for file in scores {
        if let Some(hash) = file.shards_hash().filter(|hash| *hash != input.xxh3) {
            return Err(Error::input_at(
                &file.path,
                format!("scores shards {hash}, {} is {}; score those", val.display(), input.xxh3),
            ));
        }
    }
    Ok(())
}

/// The tokens that the scores are of: those of the file that has most of them.
fn held_out(model: &Model, scores: &[ScoreFile]) -> Result<HeldOut> {
    let block_size = model.config.get("block_size").and_then(Value::as_u64).unwrap_or(1024);
    let mut held_out =
        HeldOut { block_size: block_size as usize, blocks: None, given: 0, bytes: None };
    let mut most = None;
    for file in scores {
        let summary = file.summary()?;
        if file.sequences.iter().any(|record| record.spans.is_some()) {
            return Err(Error::input_at(
                &file.path,
                "scores held-out spans (--cloze), a report is of whole blocks; put it into a --table",
            ));
        }
        if most.is_none_or(|count| summary.token_count > count) {
            most = Some(summary.token_count);
            held_out.given = summary.given_tokens as usize;
            held_out.blocks = Some(file.sequences.iter().map(|record| record.index).collect());
            held_out.bytes = file.sequences.iter().map(|record| record.bytes).sum();
        }
    }
    Ok(held_out)
}

fn score(file: &ScoreFile) -> Result<Score> {
    refuse_repeats(file)?;
    let summary = file.summary()?;
    let of_file = || {
        let ckpt = file.option("ckpt")?;
        Some(Path::new(&ckpt).file_stem()?.to_string_lossy().into_owned())
    };
    let nameless = || Error::input_at(&file.path, "the run record names no weights");
    Ok(Score {
        weights: file.option("weights").or_else(of_file).ok_or_else(nameless)?,
        orders: order(file, summary),
        estimate: estimate(summary),
        sequences: summary.sequences,
        token_count: summary.token_count,
        given_token_count: summary.given_tokens * summary.sequences,
        nll_nats_per_token: summary.nll_nats_per_token,
        std_error: summary.std_error,
        perplexity: summary.perplexity,
        bits_per_byte: summary.bits_per_byte,
    })
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
    if records.last.get("complete").is_some_and(|known| known == false) {
        return Err(Error::input_at(
            path,
            format!(
                "is not complete: ao-sample was stopped after {samples} samples; draw it again"
            ),
        ));
    }
    let seconds = records.number("seconds")?;
    let tokens_per_second = tokens as f64 / seconds.max(1e-9);
    Ok((Sampling { samples, tokens, seconds, tokens_per_second }, texts))
}
