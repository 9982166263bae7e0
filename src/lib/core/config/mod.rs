//! Model configurations, and the table of parameters that each one implies.
//!
//! A model config is one JSON object, the same in `--model FILE`, in `--model-config FILE` and in a
//! checkpoint's metadata. Its `arch` picks the family; unknown keys are refused by name. The table
//! ([`ModelConfig::parameters`]) lists names, shapes and initial laws in the order of the published
//! module, so that tools without tensors can count, check, average and import weights.

mod ao_gpt;

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use ao_gpt::AoGptConfig;

use crate::error::IoContext;
use crate::{Error, Result};

/// The law that a parameter is drawn from before training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Normal with mean 0 and this standard deviation, cut at three of them.
    TruncatedNormal(f64),
    /// All zero.
    Zeros,
    /// All one.
    Ones,
}

/// One parameter of a model: a tensor by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// The reference implementation's name, `transformer.h.0.attn.c_attn.weight`.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Initial law.
    pub init: Init,
}

impl Parameter {
    /// Number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether weight decay applies: tensors of two and more dimensions, embeddings included
    /// (AO-GPT's and nanoGPT's optimizer groups).
    pub fn decays(&self) -> bool {
        self.shape.len() >= 2
    }
}

/// A table of parameters while it is written down.
#[derive(Default)]
struct Table(Vec<Parameter>);

impl Table {
    fn add(&mut self, name: &str, shape: &[usize], init: Init) {
        self.0.push(Parameter { name: name.into(), shape: shape.to_vec(), init });
    }

    /// A linear layer: weight (out, in) by `init`, then the bias, if any, at zero.
    fn linear(&mut self, name: &str, out: usize, inp: usize, init: Init, bias: bool) {
        self.add(&format!("{name}.weight"), &[out, inp], init);
        if bias {
            self.add(&format!("{name}.bias"), &[out], Init::Zeros);
        }
    }
}

/// A model of one of the families that the toolkit knows.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelConfig {
    /// AO-GPT (arXiv 2506.19935).
    AoGpt(AoGptConfig),
}

/// The values of `arch`.
const ARCHS: &str = "ao-gpt";

impl ModelConfig {
    /// Reads a config from JSON.
    ///
    /// # Errors
    /// One line that names the key: missing, unknown, of the wrong type or out of range.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let Value::Object(object) = value else {
            return Err("a model config is a JSON object".into());
        };
        let mut object = object.clone();
        let arch = match object.remove("arch") {
            Some(Value::String(arch)) => arch,
            Some(_) => return Err(format!("'arch' must be a text; known are {ARCHS}")),
            None => return Err(format!("'arch' is missing; known are {ARCHS}")),
        };
        let config = match arch.as_str() {
            "ao-gpt" => ModelConfig::AoGpt(family(object)?),
            _ => return Err(format!("arch '{arch}' is not known; known are {ARCHS}")),
        };
        config.check()?;
        Ok(config)
    }

    /// Reads a config file.
    ///
    /// # Errors
    /// When the file cannot be read or is no model config.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).reading(path)?;
        let value = serde_json::from_slice(&bytes)
            .map_err(|e| Error::input_at(path, format!("not JSON: {e}")))?;
        Self::from_json(&value).map_err(|e| Error::input_at(path, e))
    }

    /// The config as JSON, `arch` first, every key written out.
    pub fn to_json(&self) -> Value {
        let (arch, value) = match self {
            ModelConfig::AoGpt(config) => ("ao-gpt", serde_json::to_value(config)),
        };
        let mut object = Map::new();
        object.insert("arch".into(), arch.into());
        if let Ok(Value::Object(rest)) = value {
            object.extend(rest);
        }
        Value::Object(object)
    }

    /// Parameters in the order of the published module.
    pub fn parameters(&self) -> Vec<Parameter> {
        match self {
            ModelConfig::AoGpt(config) => config.parameters(),
        }
    }

    /// Number of parameters.
    pub fn parameter_count(&self) -> u64 {
        self.parameters().iter().map(|p| p.count() as u64).sum()
    }

    /// Longest sequence, in tokens.
    pub fn block_size(&self) -> usize {
        match self {
            ModelConfig::AoGpt(config) => config.block_size,
        }
    }

    /// Rows of the head, padding included.
    pub fn vocab_size(&self) -> usize {
        match self {
            ModelConfig::AoGpt(config) => config.vocab_size,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            ModelConfig::AoGpt(config) => config.check(),
        }
    }
}

fn family<T: DeserializeOwned>(object: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(object)).map_err(|e| e.to_string())
}

/// Refuses sizes of zero and sizes that no machine could hold.
fn check_sizes(sizes: &[(&str, usize, usize)]) -> Result<(), String> {
    for &(name, size, most) in sizes {
        if size == 0 || size > most {
            return Err(format!("{name} {size}: must be 1 to {most}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn small() -> Value {
        json!({"arch": "ao-gpt", "block_size": 1024, "vocab_size": 50304,
               "n_layer": 12, "n_head": 12, "n_embd": 768})
    }

    #[test]
    fn the_papers_sizes_have_exactly_their_parameter_counts() {
        let small = ModelConfig::from_json(&small()).unwrap();
        assert_eq!(small.parameter_count(), 170_605_952);
        let medium = json!({"arch": "ao-gpt", "block_size": 1024, "vocab_size": 50304,
                            "n_layer": 24, "n_head": 16, "n_embd": 1024});
        assert_eq!(ModelConfig::from_json(&medium).unwrap().parameter_count(), 425_804_928);
    }

    #[test]
    fn a_config_reads_back_as_it_was_written() {
        let config = ModelConfig::from_json(&small()).unwrap();
        assert_eq!(ModelConfig::from_json(&config.to_json()).unwrap(), config);
    }

    #[test]
    fn wrong_keys_are_refused_by_name() {
        let with = |key: &str, value: Value| {
            let mut object = small();
            object[key] = value;
            ModelConfig::from_json(&object).unwrap_err()
        };
        assert!(with("n_layers", json!(3)).contains("n_layers"));
        assert!(with("arch", json!("gpt9")).contains("gpt9"));
        assert!(with("n_head", json!(7)).contains("n_head 7"));
        assert!(with("n_embd", json!(0)).contains("n_embd 0"));
        assert!(with("vocab_size", json!(u64::MAX)).contains("vocab_size"));
        assert!(with("dropout", json!(1.0)).contains("dropout 1"));
        let missing = json!({"arch": "ao-gpt"});
        assert!(ModelConfig::from_json(&missing).unwrap_err().contains("block_size"));
    }
}
