//! GPT-2, which reads from left to right: nanoGPT's and OpenAI's, which differ in their GELU.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::architecture::{
    Architecture, Capabilities, Config, Published, Sizes, TokenCost, check_sizes, keys, parse,
    sizes, yes,
};
use super::gpt;
use super::table::{Init, Parameter, Table};
use crate::process::{Objective, Orders};

/// The MLP's nonlinearity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// GELU by the error function, as nanoGPT has it.
    Gelu,
    /// GELU by its tanh approximation, as OpenAI's GPT-2 has it (`gelu_new`).
    GeluTanh,
}

/// Sizes of a GPT-2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpt2Config {
    /// Longest sequence T, in tokens.
    pub block_size: usize,
    /// Rows of the token table, which is also the head; padding included.
    pub vocab_size: usize,
    /// Number of blocks.
    pub n_layer: usize,
    /// Attention heads of a block.
    pub n_head: usize,
    /// Width C.
    pub n_embd: usize,
    /// The MLP's nonlinearity: nanoGPT's `gelu` or OpenAI's `gelu_tanh`.
    pub activation: Activation,
    /// Dropout on embeddings, attention and residual branches.
    #[serde(default)]
    pub dropout: f64,
    /// Whether linear layers and norms have biases.
    #[serde(default = "yes")]
    pub bias: bool,
}

/// GPT-2, `gpt2`.
pub struct Gpt2;

impl Architecture for Gpt2 {
    fn name(&self) -> &'static str {
        "gpt2"
    }

    fn read(&self, json: Map<String, Value>) -> Result<Box<dyn Config>, String> {
        let config: Gpt2Config = parse(json)?;
        check_sizes(&config.sizes(), &[])?;
        Ok(Box::new(config))
    }
}

impl Config for Gpt2Config {
    fn sizes(&self) -> Sizes {
        sizes!(self)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            orders: Orders::LeftToRight,
            objectives: &[Objective::L2r],
            predicts_first: false,
            masks: None,
            growing: false,
        }
    }

    fn parameters(&self) -> Vec<Parameter> {
        let (c, normal) = (self.n_embd, Init::Normal(gpt::STD));
        let mut list = Table::default();
        list.add("transformer.wte.weight", &[self.vocab_size, c], normal);
        list.add("transformer.wpe.weight", &[self.block_size, c], normal);
        gpt::add_blocks(&mut list, &self.sizes(), self.bias);
        list.0
    }

    fn published(&self) -> Published {
        gpt::published()
    }

    fn token_cost(&self) -> TokenCost {
        gpt::token_cost(&self.parameters(), &self.sizes())
    }

    fn to_json(&self) -> Map<String, Value> {
        keys(self)
    }
}
