//! σ-GPT in two forms: AO-GPT's authors' and its own (arXiv 2404.09562).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::architecture::{
    Architecture, Capabilities, Config, Published, Sizes, TokenCost, check_sizes, keys, parse,
    sizes, yes,
};
use super::gpt;
use super::table::{Init, Parameter, Table};
use crate::process::{Objective, Orders};

/// Sizes of a σ-GPT.
///
/// As `sigma-gpt` it is the one that AO-GPT's authors built to compare with: a [None] row, so that
/// every token is predicted, and a table of target positions of full width added to the input. As
/// `sigma-official` it is σ-GPT's own (arXiv 2404.09562): no [None] row, so the first token of an
/// order is given, and one table of half width looked up twice, for the own and for the target
/// position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SigmaGptConfig {
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
    /// Dropout on embeddings, attention and residual branches.
    #[serde(default)]
    pub dropout: f64,
    /// Whether linear layers and norms have biases.
    #[serde(default = "yes")]
    pub bias: bool,
    /// σ-GPT's own form; told by `arch`, not by a key.
    #[serde(skip)]
    pub official: bool,
}

/// σ-GPT as AO-GPT's authors built it, `sigma-gpt`.
pub struct SigmaGpt;

impl Architecture for SigmaGpt {
    fn name(&self) -> &'static str {
        "sigma-gpt"
    }

    fn read(&self, json: Map<String, Value>) -> Result<Box<dyn Config>, String> {
        let config: SigmaGptConfig = parse(json)?;
        check_sizes(&config.sizes(), &[])?;
        Ok(Box::new(config))
    }
}

/// σ-GPT's own form, `sigma-official`.
pub struct SigmaOfficial;

impl Architecture for SigmaOfficial {
    fn name(&self) -> &'static str {
        "sigma-official"
    }

    fn read(&self, json: Map<String, Value>) -> Result<Box<dyn Config>, String> {
        let config = SigmaGptConfig { official: true, ..parse(json)? };
        check_sizes(&config.sizes(), &[])?;
        if !config.n_embd.is_multiple_of(2) {
            return Err(format!(
                "n_embd {}: must be even, as each half holds one of the two positions",
                config.n_embd
            ));
        }
        Ok(Box::new(config))
    }
}

impl Config for SigmaGptConfig {
    fn sizes(&self) -> Sizes {
        sizes!(self)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            orders: Orders::Any,
            objectives: &[Objective::Ao, Objective::L2r],
            predicts_first: !self.official,
            masks: None,
            growing: false,
        }
    }

    fn parameters(&self) -> Vec<Parameter> {
        let (c, t, normal) = (self.n_embd, self.block_size, Init::Normal(gpt::STD));
        let mut list = Table::default();
        list.add("transformer.wte.weight", &[self.vocab_size, c], normal);
        if self.official {
            list.add("transformer.wpe.weight", &[t, c / 2], normal);
        } else {
            list.add("transformer.wpe.weight", &[t + 1, c], normal);
            list.add("transformer.wtpe.weight", &[t, c], normal);
            list.add("transformer.wnonee.weight", &[1, c], normal);
        }
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
