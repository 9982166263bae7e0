//! Model configurations, and the table of parameters that each one implies.
//!
//! A model config is one JSON object, the same in `--model FILE`, in `--model-config FILE` and in a
//! checkpoint's metadata. Its `arch` picks the family; unknown keys are refused by name. The table
//! ([`ModelConfig::parameters`]) lists names, shapes and initial laws in the order of the published
//! module, so that tools without tensors can count, check, average and import weights.

mod ao_gpt;
mod ddit;
mod gpt;
mod noise;

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use ao_gpt::{AoGptConfig, PositionEncoding};
pub use ddit::{DditShape, MdlmConfig, Noise, RaddConfig, SeddConfig, TIME_WIDTH};
pub use gpt::{Activation, Gpt2Config, SigmaGptConfig};
pub use noise::LogLinear;

use crate::error::IoContext;
use crate::{Error, Result};

/// The law that a parameter is drawn from before training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Normal with mean 0 and this standard deviation, cut at three of them.
    TruncatedNormal(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform between minus and plus this bound.
    Uniform(f64),
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

    /// A LayerNorm: weight at one, then the bias, if any, at zero.
    fn norm(&mut self, name: &str, width: usize, bias: bool) {
        self.add(&format!("{name}.weight"), &[width], Init::Ones);
        if bias {
            self.add(&format!("{name}.bias"), &[width], Init::Zeros);
        }
    }
}

/// A model of one of the families that the toolkit knows.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelConfig {
    /// AO-GPT and its ways of encoding positions (arXiv 2506.19935).
    AoGpt(AoGptConfig),
    /// σ-GPT as AO-GPT's authors built it.
    SigmaGpt(SigmaGptConfig),
    /// σ-GPT's own (arXiv 2404.09562).
    SigmaOfficial(SigmaGptConfig),
    /// GPT-2, left to right: nanoGPT's or OpenAI's.
    Gpt2(Gpt2Config),
    /// RADD (arXiv 2406.03736).
    Radd(RaddConfig),
    /// MDLM (arXiv 2406.07524).
    Mdlm(MdlmConfig),
    /// SEDD, absorbing (arXiv 2310.16834).
    Sedd(SeddConfig),
}

/// The values of `arch`.
const ARCHS: &str = "ao-gpt, sigma-gpt, sigma-official, gpt2, radd, mdlm, sedd";

/// What a family can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Causal over a sequence in any order.
    AnyOrder,
    /// Causal from left to right.
    LeftToRight,
    /// Bidirectional over a partly masked sequence.
    Encoder,
}

/// Evaluates `$body` with `$config` bound to whichever family's config it is.
macro_rules! each {
    ($self:expr, $config:ident => $body:expr) => {
        match $self {
            ModelConfig::AoGpt($config) => $body,
            ModelConfig::SigmaGpt($config) | ModelConfig::SigmaOfficial($config) => $body,
            ModelConfig::Gpt2($config) => $body,
            ModelConfig::Radd($config) => $body,
            ModelConfig::Mdlm($config) => $body,
            ModelConfig::Sedd($config) => $body,
        }
    };
}

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
            "sigma-gpt" => ModelConfig::SigmaGpt(family(object)?),
            "sigma-official" => ModelConfig::SigmaOfficial(family(object)?),
            "gpt2" => ModelConfig::Gpt2(family(object)?),
            "radd" => ModelConfig::Radd(family(object)?),
            "mdlm" => ModelConfig::Mdlm(family(object)?),
            "sedd" => ModelConfig::Sedd(family(object)?),
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

    /// The value of `arch`.
    pub fn arch(&self) -> &'static str {
        match self {
            ModelConfig::AoGpt(_) => "ao-gpt",
            ModelConfig::SigmaGpt(_) => "sigma-gpt",
            ModelConfig::SigmaOfficial(_) => "sigma-official",
            ModelConfig::Gpt2(_) => "gpt2",
            ModelConfig::Radd(_) => "radd",
            ModelConfig::Mdlm(_) => "mdlm",
            ModelConfig::Sedd(_) => "sedd",
        }
    }

    /// What the model can be asked for.
    pub fn family(&self) -> Family {
        match self {
            ModelConfig::AoGpt(_) | ModelConfig::SigmaGpt(_) | ModelConfig::SigmaOfficial(_) => {
                Family::AnyOrder
            }
            ModelConfig::Gpt2(_) => Family::LeftToRight,
            ModelConfig::Radd(_) | ModelConfig::Mdlm(_) | ModelConfig::Sedd(_) => Family::Encoder,
        }
    }

    /// Whether the first token of an order is predicted too: families without a [None] row are
    /// given it, and score one token less.
    pub fn predicts_first(&self) -> bool {
        !matches!(self, ModelConfig::SigmaOfficial(_) | ModelConfig::Gpt2(_))
    }

    /// The orders that a tool goes along: those `given` on the command line, or else `default`;
    /// a model that reads from left to right takes `l2r` alone.
    ///
    /// # Errors
    /// When other orders are given to such a model.
    pub fn orders(&self, given: Option<&str>, default: &str) -> Result<String> {
        match (self.family(), given) {
            (Family::LeftToRight, None | Some("l2r")) => Ok("l2r".into()),
            (Family::LeftToRight, Some(orders)) => Err(Error::usage(format!(
                "--orders {orders}: {} reads from left to right alone; leave it out or say l2r",
                self.arch()
            ))),
            (_, orders) => Ok(orders.unwrap_or(default).into()),
        }
    }

    /// The config as JSON, `arch` first, every key written out.
    pub fn to_json(&self) -> Value {
        let value = each!(self, config => serde_json::to_value(config));
        let mut object = Map::new();
        object.insert("arch".into(), self.arch().into());
        if let Ok(Value::Object(rest)) = value {
            object.extend(rest);
        }
        Value::Object(object)
    }

    /// Parameters in the order of the published module. A head that is tied to the token table is
    /// the table, and is not listed again ([`ModelConfig::tied`]).
    pub fn parameters(&self) -> Vec<Parameter> {
        match self {
            ModelConfig::AoGpt(config) => config.parameters(),
            ModelConfig::SigmaGpt(config) => config.parameters(false),
            ModelConfig::SigmaOfficial(config) => config.parameters(true),
            ModelConfig::Gpt2(config) => config.parameters(),
            ModelConfig::Radd(config) => config.shape().parameters(),
            ModelConfig::Mdlm(config) => config.shape().parameters(),
            ModelConfig::Sedd(config) => config.shape().parameters(),
        }
    }

    /// A name under which published files repeat a parameter, and that parameter.
    pub fn tied(&self) -> Option<(&'static str, &'static str)> {
        match self {
            ModelConfig::SigmaGpt(_) | ModelConfig::SigmaOfficial(_) | ModelConfig::Gpt2(_) => {
                Some(("lm_head.weight", "transformer.wte.weight"))
            }
            _ => None,
        }
    }

    /// Tensors of published files that are no parameters: what they hold follows from the config.
    pub fn is_buffer(&self, name: &str) -> bool {
        match self.family() {
            Family::Encoder => name == "rotary_emb.inv_freq",
            _ => name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"),
        }
    }

    /// Number of parameters.
    pub fn parameter_count(&self) -> u64 {
        self.parameters().iter().map(|p| p.count() as u64).sum()
    }

    /// Longest sequence, in tokens.
    pub fn block_size(&self) -> usize {
        each!(self, config => config.block_size)
    }

    /// Decoders: rows of the head, padding included. Encoders: real ids.
    pub fn vocab_size(&self) -> usize {
        each!(self, config => config.vocab_size)
    }

    /// The id of a masked token; decoders have none.
    pub fn mask_id(&self) -> Option<usize> {
        match self {
            ModelConfig::Radd(config) => Some(config.shape().mask_id),
            ModelConfig::Mdlm(config) => Some(config.shape().mask_id),
            ModelConfig::Sedd(config) => Some(config.shape().mask_id),
            _ => None,
        }
    }

    /// Number of blocks.
    pub fn n_layer(&self) -> usize {
        each!(self, config => config.n_layer)
    }

    /// Attention heads of a block.
    pub fn n_head(&self) -> usize {
        each!(self, config => config.n_head)
    }

    /// Width C.
    pub fn n_embd(&self) -> usize {
        each!(self, config => config.n_embd)
    }

    /// Dropout in training.
    pub fn dropout(&self) -> f64 {
        each!(self, config => config.dropout)
    }

    fn check(&self) -> Result<(), String> {
        match self {
            ModelConfig::AoGpt(config) => config.check(),
            ModelConfig::SigmaGpt(config) => config.check(false),
            ModelConfig::SigmaOfficial(config) => config.check(true),
            ModelConfig::Gpt2(config) => config.check(),
            ModelConfig::Radd(config) => config.shape().check(),
            ModelConfig::Mdlm(config) => config.shape().check(),
            ModelConfig::Sedd(config) => config.check(),
        }
    }
}

fn yes() -> bool {
    true
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

fn check_heads(n_head: usize, n_embd: usize) -> Result<(), String> {
    if n_embd.is_multiple_of(n_head) {
        return Ok(());
    }
    Err(format!("n_head {n_head}: does not divide n_embd {n_embd}"))
}

fn check_dropout(dropout: f64) -> Result<(), String> {
    if (0.0..1.0).contains(&dropout) {
        return Ok(());
    }
    Err(format!("dropout {dropout}: must be at least 0 and below 1"))
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
