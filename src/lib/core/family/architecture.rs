//! What every family says of itself: its config, parameters, published names, capabilities and cost.

use std::any::Any;
use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::table::Parameter;
use crate::process::{Masks, Objective, Orders};

/// A family of models.
pub trait Architecture: Sync {
    /// The value of `arch`.
    fn name(&self) -> &'static str;

    /// Reads and checks a config; `arch` has been taken out of it.
    ///
    /// # Errors
    /// One line that names the key: missing, unknown, of the wrong type or out of range.
    fn read(&self, json: Map<String, Value>) -> Result<Box<dyn Config>, String>;
}

/// The config of one model of a family.
pub trait Config: Any + fmt::Debug + Send + Sync {
    /// The sizes that every family has.
    fn sizes(&self) -> Sizes;

    /// What the model can be asked for.
    fn capabilities(&self) -> Capabilities;

    /// Parameters in the order of the published module. A head that is tied to the token table is
    /// the table, and is not listed again ([`Published::tied`]).
    fn parameters(&self) -> Vec<Parameter>;

    /// How published files name them.
    fn published(&self) -> Published;

    /// What a token costs.
    fn token_cost(&self) -> TokenCost;

    /// Every key with its value, `arch` left out.
    fn to_json(&self) -> Map<String, Value>;
}

/// The sizes that every family has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizes {
    /// Longest sequence T, in tokens.
    pub block_size: usize,
    /// Decoders: rows of the head, padding included. Denoisers: real ids.
    pub vocab_size: usize,
    /// Number of blocks.
    pub n_layer: usize,
    /// Attention heads of a block.
    pub n_head: usize,
    /// Width C.
    pub n_embd: usize,
    /// Dropout in training.
    pub dropout: f64,
}

/// What a model can be asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Capabilities {
    /// In which orders it can generate and be scored.
    pub orders: Orders,
    /// What it can be trained to do, the paper's own first.
    pub objectives: &'static [Objective],
    /// Whether the first token of an order is predicted too: families without a [None] token are
    /// given it, and score one token less.
    pub predicts_first: bool,
    /// For models that see a text with masks in it.
    pub masks: Option<Masks>,
    /// Whether a sequence may change its length while it is generated.
    pub growing: bool,
}

/// How published files name a model's parameters.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// A name under which they repeat a parameter, and that parameter.
    pub tied: Option<(&'static str, &'static str)>,
    /// Tells tensors that are no parameters: what they hold follows from the config.
    pub is_buffer: fn(&str) -> bool,
}

/// What a token costs: the elements of the matrices that it is multiplied with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenCost {
    /// Of all blocks, a block that a token goes through twice counted twice.
    pub blocks: f64,
    /// Of the head, times the fraction of tokens that go through it in training.
    pub head: f64,
    /// Blocks of attention that a token goes through.
    pub attention: f64,
}

impl TokenCost {
    /// That of a plain transformer whose parameters are `table`: matrices of attention and MLP once,
    /// `head` elements of the head.
    pub fn of_blocks(table: &[Parameter], sizes: &Sizes, head: f64) -> TokenCost {
        let in_block = |name: &str| {
            let block = name.starts_with("transformer.h.") || name.starts_with("blocks.");
            block && (name.contains("attn") || name.contains("mlp."))
        };
        let matrices = table.iter().filter(|p| p.shape.len() == 2 && in_block(&p.name));
        let blocks = matrices.map(|p| p.count() as f64).sum();
        TokenCost { blocks, head, attention: sizes.n_layer as f64 }
    }
}

/// A default of serde.
pub(super) fn yes() -> bool {
    true
}

/// A config of serde's making.
pub(super) fn parse<T: DeserializeOwned>(json: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(json)).map_err(|e| e.to_string())
}

/// A config's keys.
pub(super) fn keys<T: serde::Serialize>(config: &T) -> Map<String, Value> {
    match serde_json::to_value(config) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// [`Sizes`] out of the fields of a config.
macro_rules! sizes {
    ($config:expr) => {
        $crate::family::architecture::Sizes {
            block_size: $config.block_size,
            vocab_size: $config.vocab_size,
            n_layer: $config.n_layer,
            n_head: $config.n_head,
            n_embd: $config.n_embd,
            dropout: $config.dropout,
        }
    };
}
pub(super) use sizes;

/// Refuses sizes of zero and sizes that no machine could hold.
///
/// # Errors
/// One line that names the size.
pub fn check_sizes(sizes: &Sizes, more: &[(&str, usize, usize)]) -> Result<(), String> {
    let common = [
        ("block_size", sizes.block_size, 1 << 20),
        ("vocab_size", sizes.vocab_size, 1 << 24),
        ("n_layer", sizes.n_layer, 1 << 10),
        ("n_head", sizes.n_head, 1 << 10),
        ("n_embd", sizes.n_embd, 1 << 16),
    ];
    for &(name, size, most) in common.iter().chain(more) {
        if size == 0 || size > most {
            return Err(format!("{name} {size}: must be 1 to {most}"));
        }
    }
    if !sizes.n_embd.is_multiple_of(sizes.n_head) {
        return Err(format!("n_head {}: does not divide n_embd {}", sizes.n_head, sizes.n_embd));
    }
    if !(0.0..1.0).contains(&sizes.dropout) {
        return Err(format!("dropout {}: must be at least 0 and below 1", sizes.dropout));
    }
    Ok(())
}
