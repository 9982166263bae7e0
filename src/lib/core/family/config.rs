//! The list of families, and a model of one of them.

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::{Map, Value};

use super::architecture::{Architecture, Capabilities, Config, Sizes};
use super::table::Parameter;
use super::{ao_gpt, gpt2, mdlm, radd, sedd, sigma_gpt};
use crate::error::IoContext;
use crate::process::{Objective, Orders, order};
use crate::{Error, Result};

/// The families, one line each.
static FAMILIES: [&dyn Architecture; 7] = [
    &ao_gpt::AoGpt,
    &sigma_gpt::SigmaGpt,
    &sigma_gpt::SigmaOfficial,
    &gpt2::Gpt2,
    &radd::Radd,
    &mdlm::Mdlm,
    &sedd::Sedd,
];

/// Families of other crates, and of tests.
static MORE: RwLock<Vec<&'static dyn Architecture>> = RwLock::new(Vec::new());

/// A model of one of the families.
#[derive(Clone)]
pub struct ModelConfig {
    architecture: &'static dyn Architecture,
    config: Arc<dyn Config>,
    sizes: Sizes,
    capabilities: Capabilities,
}

impl fmt::Debug for ModelConfig {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.config.fmt(f)
    }
}

impl PartialEq for ModelConfig {
    fn eq(&self, other: &ModelConfig) -> bool {
        self.arch() == other.arch() && self.config.to_json() == other.config.to_json()
    }
}

/// Adds a family of another crate, or of a test, to the list. One of the same name is replaced.
pub fn register(architecture: &'static dyn Architecture) {
    let mut more = MORE.write().unwrap_or_else(PoisonError::into_inner);
    more.retain(|known| known.name() != architecture.name());
    more.push(architecture);
}

fn all() -> Vec<&'static dyn Architecture> {
    let more = MORE.read().unwrap_or_else(PoisonError::into_inner);
    FAMILIES.iter().chain(more.iter()).copied().collect()
}

fn names() -> String {
    all().iter().map(|family| family.name()).collect::<Vec<_>>().join(", ")
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
            Some(_) => return Err(format!("'arch' must be a text; known are {}", names())),
            None => return Err(format!("'arch' is missing; known are {}", names())),
        };
        let Some(architecture) = all().into_iter().find(|family| family.name() == arch) else {
            return Err(format!("arch '{arch}' is not known; known are {}", names()));
        };
        let config: Arc<dyn Config> = architecture.read(object)?.into();
        let (sizes, capabilities) = (config.sizes(), config.capabilities());
        Ok(ModelConfig { architecture, config, sizes, capabilities })
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
        self.architecture.name()
    }

    /// The family's own config, where it is of type `T`.
    pub fn of<T: Config>(&self) -> Option<&T> {
        (self.config.as_ref() as &dyn Any).downcast_ref()
    }

    /// What the model can be asked for.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The sizes that every family has.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The orders that a tool goes along: those `given` on the command line, or else `default`;
    /// a model that reads from left to right takes `l2r` alone.
    ///
    /// # Errors
    /// When other orders are given to such a model.
    pub fn orders(&self, given: Option<&str>, default: &str) -> Result<String> {
        match (self.capabilities.orders, given) {
            (Orders::LeftToRight, None | Some("l2r")) => Ok("l2r".into()),
            (Orders::LeftToRight, Some(orders)) => Err(Error::usage(format!(
                "--orders {orders}: {} reads from left to right alone; leave it out or say l2r",
                self.arch()
            ))),
            (Orders::Any, orders) => Ok(orders.unwrap_or(default).into()),
        }
    }

    /// The orders that a run trains along: those `given`, or the objective's own.
    ///
    /// # Errors
    /// Orders that the objective or the family does not take.
    pub fn training_orders(&self, objective: Objective, given: Option<&str>) -> Result<String> {
        match (self.capabilities.orders, objective, given) {
            (Orders::Any, Objective::L2r, None | Some("l2r")) => Ok("l2r".into()),
            (Orders::Any, Objective::L2r, Some(orders)) => Err(Error::usage(format!(
                "--orders {orders}: --objective l2r goes from left to right; leave --orders out, \
                 or give --objective ao"
            ))),
            (_, _, orders) => self.orders(orders, order::TRAINING),
        }
    }

    /// The objective of a run: the one `given`, or else the family's own.
    ///
    /// # Errors
    /// When the family does not take it; the text lists those it takes.
    pub fn objective(&self, given: Option<Objective>) -> Result<Objective> {
        let takes = self.capabilities.objectives;
        let chosen = given.unwrap_or(takes[0]);
        if takes.contains(&chosen) {
            return Ok(chosen);
        }
        let names: Vec<&str> = takes.iter().map(|o| o.name()).collect();
        Err(Error::usage(format!(
            "--objective {}: arch {} takes {}",
            chosen.name(),
            self.arch(),
            names.join(", ")
        )))
    }

    /// The config as JSON, `arch` first, every key written out.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("arch".into(), self.arch().into());
        object.extend(self.config.to_json());
        Value::Object(object)
    }

    /// Parameters in the order of the published module ([`Config::parameters`]).
    pub fn parameters(&self) -> Vec<Parameter> {
        self.config.parameters()
    }

    /// A name under which published files repeat a parameter, and that parameter.
    pub fn tied(&self) -> Option<(&'static str, &'static str)> {
        self.config.published().tied
    }

    /// Tensors of published files that are no parameters: what they hold follows from the config.
    pub fn is_buffer(&self, name: &str) -> bool {
        (self.config.published().is_buffer)(name)
    }

    /// Floating-point operations of training on one token, forward and backward: 6·N + 12·L·C·T, N
    /// being the elements of the matrices that a token is multiplied with ([`Config::token_cost`]).
    /// Looking up tables, norms and what is computed once per position are not counted.
    ///
    /// Source: PaLM (arXiv 2204.02311), appendix B; the attention term is that of all T positions,
    /// though a causal row sees half of them on average, so that figures compare.
    pub fn flops_per_token(&self) -> f64 {
        let cost = self.config.token_cost();
        let (c, t) = (self.sizes.n_embd as f64, self.sizes.block_size as f64);
        6.0 * (cost.blocks + cost.head) + 12.0 * cost.attention * c * t
    }

    /// Number of parameters.
    pub fn parameter_count(&self) -> u64 {
        self.parameters().iter().map(|p| p.count() as u64).sum()
    }

    /// Longest sequence, in tokens.
    pub fn block_size(&self) -> usize {
        self.sizes.block_size
    }

    /// Decoders: rows of the head, padding included. Denoisers: real ids.
    pub fn vocab_size(&self) -> usize {
        self.sizes.vocab_size
    }

    /// The id of a masked token, for models that have one.
    pub fn mask_id(&self) -> Option<usize> {
        self.capabilities.masks.map(|masks| masks.id)
    }

    /// Whether the first token of an order is predicted too ([`Capabilities::predicts_first`]).
    pub fn predicts_first(&self) -> bool {
        self.capabilities.predicts_first
    }

    /// Number of blocks.
    pub fn n_layer(&self) -> usize {
        self.sizes.n_layer
    }

    /// Attention heads of a block.
    pub fn n_head(&self) -> usize {
        self.sizes.n_head
    }

    /// Width C.
    pub fn n_embd(&self) -> usize {
        self.sizes.n_embd
    }

    /// Dropout in training.
    pub fn dropout(&self) -> f64 {
        self.sizes.dropout
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
