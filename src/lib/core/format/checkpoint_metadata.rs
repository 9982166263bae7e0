//! The metadata map of a checkpoint: what the weights are and where they come from.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::{Error, Result};

/// The version that is written; later ones are refused.
const VERSION: u64 = 1;

/// What the weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// The weights that the optimizer moves.
    #[default]
    Model,
    /// An average of them.
    Ema,
}

/// The metadata of a checkpoint of this toolkit. In the file every value is text: numbers in
/// decimal, the config as JSON; keys are the fields' names, and what is `None` is left out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    /// The model config, one JSON object.
    pub config: Value,
    /// Hash of the tokenizer that the tokens came from.
    pub tokenizer: Option<String>,
    /// Real token ids: those at or above it are padding rows.
    pub n_vocab_used: Option<usize>,
    /// `model` or `ema`.
    pub kind: Kind,
    /// The decay of an average, before any warm-up.
    pub ema_decay: Option<f64>,
    /// Whether the decay of update k was min(β, (1+k)/(10+k)); needed to reconstruct averages.
    pub ema_warmup: Option<bool>,
    /// Optimizer steps done.
    pub step: u64,
    /// Tokens trained on.
    pub tokens_seen: u64,
    /// Tool and version, as in `ao-train 0.1.0`.
    pub created_by: String,
}

impl Metadata {
    /// The map as it stands in the file, `format` and `version` included.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        let kind = match self.kind {
            Kind::Model => "model",
            Kind::Ema => "ema",
        };
        let texts = [
            ("format", Some("ao".to_owned())),
            ("version", Some(VERSION.to_string())),
            ("config", Some(self.config.to_string())),
            ("tokenizer", self.tokenizer.clone()),
            ("n_vocab_used", self.n_vocab_used.map(|n| n.to_string())),
            ("kind", Some(kind.to_owned())),
            ("ema_decay", self.ema_decay.map(|x| x.to_string())),
            ("ema_warmup", self.ema_warmup.map(|x| x.to_string())),
            ("step", Some(self.step.to_string())),
            ("tokens_seen", Some(self.tokens_seen.to_string())),
            ("created_by", Some(self.created_by.clone())),
        ];
        texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?))).collect()
    }

    /// Reads the map of the file at `path`; `None` where it is not one of this toolkit. Keys that
    /// are not known are skipped.
    ///
    /// # Errors
    /// When `config` is missing, a value is malformed, or the version is a later one.
    pub fn from_map(path: &Path, map: &BTreeMap<String, String>) -> Result<Option<Metadata>> {
        if map.get("format").map(String::as_str) != Some("ao") {
            return Ok(None);
        }
        let fields = Fields { path, map };
        let version: u64 = fields.parse("version", "a whole number")?.unwrap_or(VERSION);
        if version > VERSION {
            return Err(Error::input_at(
                path,
                format!(
                    "checkpoint version {version}; this program reads {VERSION}, take a later one"
                ),
            ));
        }
        let config = map
            .get("config")
            .ok_or_else(|| Error::input_at(path, "metadata 'config' is missing; save it again"))?;
        let config = serde_json::from_str(config)
            .map_err(|e| Error::input_at(path, format!("metadata 'config' is not JSON: {e}")))?;
        let kind = match map.get("kind").map(String::as_str) {
            None | Some("model") => Kind::Model,
            Some("ema") => Kind::Ema,
            Some(other) => {
                return Err(Error::input_at(
                    path,
                    format!("metadata 'kind' is '{other}'; allowed are model and ema"),
                ));
            }
        };
        Ok(Some(Metadata {
            config,
            tokenizer: map.get("tokenizer").cloned(),
            n_vocab_used: fields.parse("n_vocab_used", "a whole number")?,
            kind,
            ema_decay: fields.parse("ema_decay", "a number")?,
            ema_warmup: fields.parse("ema_warmup", "true or false")?,
            step: fields.parse("step", "a whole number")?.unwrap_or(0),
            tokens_seen: fields.parse("tokens_seen", "a whole number")?.unwrap_or(0),
            created_by: map.get("created_by").cloned().unwrap_or_default(),
        }))
    }
}

struct Fields<'a> {
    path: &'a Path,
    map: &'a BTreeMap<String, String>,
}

impl Fields<'_> {
    fn parse<T: std::str::FromStr>(&self, key: &str, what: &str) -> Result<Option<T>> {
        let Some(text) = self.map.get(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            Error::input_at(self.path, format!("metadata '{key}' is '{text}', not {what}"))
        })
    }
}
