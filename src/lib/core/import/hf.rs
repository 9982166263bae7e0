//! Hugging Face folders: `config.json` in each project's own words, and the files of weights.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::IoContext;
use crate::family::ModelConfig;
use crate::{Error, Result};

/// A folder's config, and how its tensors are laid out.
#[derive(Debug)]
pub struct FolderConfig {
    /// The model config.
    pub config: ModelConfig,
    /// Whether c_attn, c_fc and the c_proj are (in, out), as GPT-2's Conv1D has them.
    pub conv1d: bool,
}

/// GPT-2's matrices that Hugging Face stores transposed.
pub const CONV1D: [&str; 4] =
    [".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight"];

/// Files of weights, in the order in which they are looked for.
pub const WEIGHTS: [&str; 5] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.st",
];

/// Reads a `config.json`: of GPT-2, MDLM, SEDD, RADD, or one of this toolkit's.
///
/// # Errors
/// When the model is of another kind, or has a setting that this toolkit cannot follow.
pub fn read_config(path: &Path) -> Result<FolderConfig> {
    let bytes = std::fs::read(path).reading(path)?;
    let bad = |what: String| Error::input_at(path, what);
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| bad(format!("not JSON: {e}")))?;
    let Value::Object(object) = &value else {
        return Err(bad("is no JSON object".into()));
    };
    // huggingface_hub's model mixin nests what it was given under `config` in some versions.
    let object = match object.get("config") {
        Some(Value::Object(inner)) => inner,
        _ => object,
    };
    let (value, conv1d) = if object.contains_key("arch") {
        (Value::Object(object.clone()), false)
    } else {
        let settings = Settings(object);
        match object.get("model_type").and_then(Value::as_str) {
            Some("gpt2") => (gpt2(&settings).map_err(bad)?, true),
            Some("mdlm") => (mdlm(&settings).map_err(bad)?, false),
            Some(other) => {
                return Err(bad(format!(
                    "model_type '{other}' is not read; known are gpt2, mdlm, and the configs of \
                     SEDD and RADD"
                )));
            }
            None => (sedd_or_radd(&settings).map_err(bad)?, false),
        }
    };
    let config = ModelConfig::from_json(&value).map_err(bad)?;
    Ok(FolderConfig { config, conv1d })
}

/// The keys of one object, read with words.
struct Settings<'a>(&'a Map<String, Value>);

impl Settings<'_> {
    fn value(&self, key: &str) -> Result<&Value, String> {
        self.0.get(key).ok_or_else(|| format!("'{key}' is missing; is this the model's own file?"))
    }
    fn count(&self, key: &str) -> Result<u64, String> {
        let value = self.value(key)?;
        value.as_u64().ok_or_else(|| format!("'{key}' is {value}, not a count"))
    }
    fn number(&self, key: &str, default: f64) -> Result<f64, String> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| format!("'{key}' is {value}, no number")),
        }
    }
    fn flag(&self, key: &str, default: bool) -> Result<bool, String> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => {
                value.as_bool().ok_or_else(|| format!("'{key}' is {value}, not true or false"))
            }
        }
    }
    fn group(&self, key: &str) -> Result<Settings<'_>, String> {
        match self.value(key)? {
            Value::Object(inner) => Ok(Settings(inner)),
            other => Err(format!("'{key}' is {other}, no object")),
        }
    }
    /// Refuses a value of `key` other than `only`, which is also what its absence means.
    fn only(&self, key: &str, only: Value) -> Result<(), String> {
        match self.0.get(key) {
            Some(value) if *value != only => {
                Err(format!("'{key}' is {value}; only {only} is read"))
            }
            _ => Ok(()),
        }
    }
}

fn gpt2(settings: &Settings) -> Result<Value, String> {
    let activation = match settings.0.get("activation_function").and_then(Value::as_str) {
        None | Some("gelu_new" | "gelu_pytorch_tanh") => "gelu_tanh",
        Some("gelu") => "gelu",
        Some(other) => {
            return Err(format!(
                "'activation_function' is '{other}'; only gelu_new and gelu are read"
            ));
        }
    };
    let n_embd = settings.count("n_embd")?;
    let inner = settings.0.get("n_inner").unwrap_or(&Value::Null);
    if !inner.is_null() && inner.as_u64() != n_embd.checked_mul(4) {
        return Err(format!("'n_inner' is {inner}; only four times n_embd is read"));
    }
    if settings.number("layer_norm_epsilon", 1e-5)? != 1e-5 {
        return Err("'layer_norm_epsilon' is not 1e-5, which alone is read".into());
    }
    settings.only("scale_attn_weights", true.into())?;
    settings.only("scale_attn_by_inverse_layer_idx", false.into())?;
    settings.only("add_cross_attention", false.into())?;
    settings.only("tie_word_embeddings", true.into())?;
    Ok(json!({
        "arch": "gpt2",
        "block_size": settings.count("n_positions")?,
        "vocab_size": settings.count("vocab_size")?,
        "n_layer": settings.count("n_layer")?,
        "n_head": settings.count("n_head")?,
        "n_embd": n_embd,
        "activation": activation,
        "dropout": settings.number("resid_pdrop", 0.1)?,
        "bias": true,
    }))
}

/// bert-base-uncased's vocabulary, whose mask is one of its own ids (MDLM's LM1B models).
const BERT: (u64, u64) = (30_522, 103);

/// MDLM's class counts the mask's row in `vocab_size`. Its config has no ε; the code has 1e-3.
fn mdlm(settings: &Settings) -> Result<Value, String> {
    let rows = settings.count("vocab_size")?;
    let (vocab_size, mask_id) = match rows {
        rows if rows == BERT.0 => BERT,
        0 => return Err("'vocab_size' is 0".into()),
        rows => (rows - 1, rows - 1),
    };
    Ok(json!({
        "arch": "mdlm",
        "block_size": settings.count("model_length")?,
        "vocab_size": vocab_size,
        "mask_id": mask_id,
        "n_layer": settings.count("n_blocks")?,
        "n_head": settings.count("n_heads")?,
        "n_embd": settings.count("hidden_dim")?,
        "cond_dim": settings.count("cond_dim")?,
        "time_conditioning": settings.flag("time_conditioning", false)?,
        "noise_eps": 1e-3,
        "dropout": settings.number("dropout", 0.0)?,
    }))
}

/// SEDD and RADD publish the whole config of the training: `tokens`, `model`, `graph`, `noise`.
fn sedd_or_radd(settings: &Settings) -> Result<Value, String> {
    let kind = "is no config of GPT-2, MDLM, SEDD or RADD";
    let model = settings.group("model").map_err(|e| format!("{kind}: {e}"))?;
    let tokens = settings.count("tokens").map_err(|e| format!("{kind}: {e}"))?;
    if let Ok(graph) = settings.group("graph") {
        graph.only("type", "absorb".into()).map_err(|e| format!("graph: {e}"))?;
    }
    let noise = settings.group("noise");
    if let Ok(noise) = &noise {
        noise.only("type", "loglinear".into()).map_err(|e| format!("noise: {e}"))?;
    }
    let mut config = json!({
        "arch": "radd",
        "block_size": model.count("length")?,
        "vocab_size": tokens,
        "mask_id": tokens,
        "n_layer": model.count("n_blocks")?,
        "n_head": model.count("n_heads")?,
        "n_embd": model.count("hidden_size")?,
        "dropout": model.number("dropout", 0.0)?,
    });
    // `ddit` is SEDD's transformer; RADD's `ddit_wot` is the same without time.
    match model.value("type")?.as_str() {
        Some("ddit_wot") => {}
        Some("ddit") => {
            config["arch"] = "sedd".into();
            config["cond_dim"] = model.count("cond_dim")?.into();
            config["scale_by_sigma"] = model.flag("scale_by_sigma", true)?.into();
            config["noise"] = "loglinear".into();
        }
        _ => return Err(format!("'type' of its model is {}", model.value("type")?)),
    }
    Ok(config)
}

/// The files of weights of a folder: one, or the shards that an index names.
///
/// # Errors
/// When there are none, or the index is damaged or leads out of the folder.
pub fn weight_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let Some(found) = WEIGHTS.iter().map(|name| folder.join(name)).find(|path| path.is_file())
    else {
        return Err(Error::input_at(
            folder,
            format!("has no weights: none of {} is in it", WEIGHTS.join(", ")),
        ));
    };
    if found.extension().is_none_or(|extension| extension != "json") {
        return Ok(vec![found]);
    }
    let bytes = std::fs::read(&found).reading(&found)?;
    let bad = |what: String| Error::input_at(&found, what);
    let index: Value = serde_json::from_slice(&bytes).map_err(|e| bad(format!("not JSON: {e}")))?;
    let Some(Value::Object(map)) = index.get("weight_map") else {
        return Err(bad("'weight_map' is missing; it names the file of each tensor".into()));
    };
    let mut files = BTreeSet::new();
    for (tensor, file) in map {
        let name = file.as_str().unwrap_or_default();
        if name.is_empty() || name.contains(['/', '\\']) || name.starts_with('.') {
            return Err(bad(format!("tensor '{tensor}' is in {file}, no file of this folder")));
        }
        files.insert(folder.join(name));
    }
    if files.is_empty() {
        return Err(bad("names no files of weights".into()));
    }
    Ok(files.into_iter().collect())
}
