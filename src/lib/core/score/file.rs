//! A file of scores read back, and what of its making must agree with another's.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Cluster, SequenceRecord, Summary};
use crate::format::jsonl;
use crate::{Error, Result};

/// What is said of the other kind of file.
const JUDGED: &str =
    "holds judged samples (--ref); scores of shards are compared, joined and resumed";

/// What `ao-score` wrote.
#[derive(Debug, Clone)]
pub struct ScoreFile {
    /// The file.
    pub path: PathBuf,
    /// Its run record.
    pub run: Map<String, Value>,
    /// Its sequences, in the file's order.
    pub sequences: Vec<SequenceRecord>,
    /// Its summary; none in the file of an interrupted run.
    pub summary: Option<Summary>,
}

impl ScoreFile {
    /// Reads a file of scores; `-` is stdin.
    ///
    /// # Errors
    /// When it cannot be read, a record lacks a key (the line is named), or there is no run record.
    pub fn read(path: &Path) -> Result<ScoreFile> {
        let mut reader = jsonl::Reader::open(path)?;
        let mut file =
            ScoreFile { path: path.into(), run: Map::new(), sequences: Vec::new(), summary: None };
        while let Some(object) = reader.next_object()? {
            let kind = object.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
            match kind.as_str() {
                "run" => {
                    if object.get("config").and_then(|c| c.get("ref")).is_some_and(|r| !r.is_null())
                    {
                        return Err(Error::input_at(path, JUDGED));
                    }
                    file.run = object;
                }
                "sequence" => file.sequences.push(record(object, &reader.place())?),
                "summary" => file.summary = Some(record(object, &reader.place())?),
                _ => {}
            }
        }
        let tool = file.run.get("tool").and_then(Value::as_str);
        if tool != Some("ao-score") {
            return Err(Error::input_at(path, "no run record of ao-score; give what it wrote"));
        }
        Ok(file)
    }

    /// The summary.
    ///
    /// # Errors
    /// When the run that wrote the file was interrupted.
    pub fn summary(&self) -> Result<&Summary> {
        self.summary.as_ref().ok_or_else(|| {
            Error::input_at(&self.path, "has no summary: the run was interrupted; --resume it")
        })
    }

    /// An option of the run that is text.
    pub fn option(&self, key: &str) -> Option<String> {
        self.run.get("config")?.get(key)?.as_str().map(str::to_owned)
    }

    /// What the run was told to take for independent.
    pub fn cluster(&self) -> Option<Cluster> {
        serde_json::from_value(self.run.get("config")?.get("cluster")?.clone()).ok()
    }

    /// The hash of the shards that were scored.
    pub fn shards_hash(&self) -> Option<&str> {
        let shards = self.run.get("config")?.get("shards")?;
        let inputs = self.run.get("inputs")?.as_array()?;
        inputs.iter().find(|input| input.get("path") == Some(shards))?.get("xxh3")?.as_str()
    }
}

fn record<T: DeserializeOwned>(object: Map<String, Value>, place: &str) -> Result<T> {
    serde_json::from_value(Value::Object(object))
        .map_err(|e| Error::input(place, format!("not a record of ao-score: {e}")))
}

/// Options that say where and how fast, not what: they may differ between the parts of one
/// evaluation. What files hold is compared by hash, not by path; orders, and the draws of a bound,
/// as the run describes them.
const NEUTRAL: &[&str] = &[
    "output",
    "force",
    "quiet",
    "threads",
    "batch_size",
    "device",
    "resume",
    "ckpt",
    "shards",
    "orders",
    "ensemble_orders",
    "model_config",
    "elbo",
    "cluster",
];
/// Options that cut the work.
const CUTTING: &[&str] = &["skip", "max_sequences"];

/// What of a run decides its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Fingerprint(Vec<(String, Value)>);

impl Fingerprint {
    /// That of a run record. `whole`: with the options that cut the work.
    pub fn of(run: &Map<String, Value>, whole: bool) -> Fingerprint {
        let mut entries = Vec::new();
        for key in ["version", "seed"] {
            entries.push((key.to_owned(), run.get(key).cloned().unwrap_or_default()));
        }
        let device = run.get("device").and_then(Value::as_str).unwrap_or_default();
        let kind = device.split(':').next().unwrap_or_default();
        entries.push(("device".into(), kind.into()));
        let mut orders = run.get("orders").cloned().unwrap_or_default();
        if let Value::Object(orders) = &mut orders {
            orders.remove("path");
        }
        entries.push(("orders".into(), orders));
        let inputs = run.get("inputs").and_then(Value::as_array).map(Vec::as_slice);
        for (i, input) in inputs.unwrap_or_default().iter().enumerate() {
            entries
                .push((format!("input {}", i + 1), input.get("xxh3").cloned().unwrap_or_default()));
        }
        let mut options: Vec<(String, Value)> = run
            .get("config")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter(|(key, _)| !NEUTRAL.contains(&key.as_str()))
            .filter(|(key, _)| whole || !CUTTING.contains(&key.as_str()))
            // An option that a newer version has, left alone, is one that an older lacks.
            .filter(|(_, value)| !matches!(value, Value::Null | Value::Bool(false)))
            .map(|(key, value)| (format!("--{}", key.replace('_', "-")), value.clone()))
            .collect();
        options.sort_by(|a, b| a.0.cmp(&b.0));
        entries.extend(options);
        Fingerprint(entries)
    }

    /// The first thing in which two runs differ: its name and both values.
    pub fn difference(&self, other: &Fingerprint) -> Option<(String, String, String)> {
        let find = |entries: &[(String, Value)], key: &str| {
            entries.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
        };
        let show = |value: Option<Value>| value.map_or("nothing".into(), |v| v.to_string());
        self.0.iter().chain(&other.0).find_map(|(key, _)| {
            let (mine, others) = (find(&self.0, key), find(&other.0, key));
            (mine != others).then(|| (key.clone(), show(mine), show(others)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(change: impl Fn(&mut Value)) -> Map<String, Value> {
        let mut run = json!({
            "type": "run", "tool": "ao-score", "version": "1", "seed": 3, "device": "cuda:0",
            "orders": {"path": "a.npy", "xxh3": "1"},
            "inputs": [{"path": "m.st", "xxh3": "2"}, {"path": "data", "xxh3": "3"}],
            "config": {"ckpt": "m.st", "shards": "data", "mc": 4, "skip": 0, "threads": null}
        });
        change(&mut run);
        run.as_object().cloned().unwrap()
    }

    #[test]
    fn paths_devices_of_a_kind_and_speed_make_no_difference() {
        let other = run(|r| {
            r["device"] = json!("cuda:1");
            r["inputs"][0]["path"] = json!("elsewhere/m.st");
            r["orders"]["path"] = json!("b.npy");
            r["config"]["threads"] = json!(2);
        });
        let same = Fingerprint::of(&run(|_| ()), true).difference(&Fingerprint::of(&other, true));
        assert_eq!(same, None);
    }

    #[test]
    fn what_decides_the_numbers_is_named_with_both_values() {
        for (key, pointer, value) in [
            ("seed", "/seed", json!(4)),
            ("--mc", "/config/mc", json!(5)),
            ("input 2", "/inputs/1/xxh3", json!("9")),
            ("orders", "/orders/xxh3", json!("9")),
            ("device", "/device", json!("cpu")),
        ] {
            let other = run(|r| *r.pointer_mut(pointer).unwrap() = value.clone());
            let (a, b) = (Fingerprint::of(&run(|_| ()), true), Fingerprint::of(&other, true));
            assert_eq!(a.difference(&b).unwrap().0, key);
        }
        let skipped = run(|r| r["config"]["skip"] = json!(7));
        let a = Fingerprint::of(&run(|_| ()), false);
        assert_eq!(a.difference(&Fingerprint::of(&skipped, false)), None);
        let a = Fingerprint::of(&run(|_| ()), true);
        assert_eq!(a.difference(&Fingerprint::of(&skipped, true)).unwrap().0, "--skip");
    }
}
