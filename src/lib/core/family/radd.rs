//! RADD: masked diffusion without time (arXiv 2406.03736).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::architecture::{
    Architecture, Capabilities, Config, Published, Sizes, TokenCost, keys, parse,
};
use super::ddit::{self, DditShape, shape};
use super::table::Parameter;
use crate::process::{LogLinear, Masks, Objective, Orders};

/// Sizes of a RADD.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaddConfig {
    /// Longest sequence T, in tokens.
    pub block_size: usize,
    /// Real ids of the vocabulary.
    pub vocab_size: usize,
    /// The id that stands for a masked token: `vocab_size` if left out, a row of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_id: Option<usize>,
    /// Number of blocks.
    pub n_layer: usize,
    /// Attention heads of a block.
    pub n_head: usize,
    /// Width C.
    pub n_embd: usize,
    /// Dropout on attention and residual branches.
    #[serde(default)]
    pub dropout: f64,
}

/// RADD, `radd`.
pub struct Radd;

impl Architecture for Radd {
    fn name(&self) -> &'static str {
        "radd"
    }

    fn read(&self, json: Map<String, Value>) -> Result<Box<dyn Config>, String> {
        let config: RaddConfig = parse(json)?;
        config.shape().check()?;
        Ok(Box::new(config))
    }
}

impl RaddConfig {
    /// The transformer.
    pub fn shape(&self) -> DditShape {
        shape!(self, None)
    }
}

impl Config for RaddConfig {
    fn sizes(&self) -> Sizes {
        self.shape().sizes()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            orders: Orders::Any,
            objectives: &[Objective::LambdaDce, Objective::TDce, Objective::KDce],
            predicts_first: true,
            masks: Some(Masks {
                id: self.shape().mask_id,
                schedule: LogLinear { eps: 1e-3 },
                time_conditioned: false,
                scores: None,
            }),
            growing: false,
        }
    }

    fn parameters(&self) -> Vec<Parameter> {
        self.shape().parameters()
    }

    fn published(&self) -> Published {
        ddit::published()
    }

    fn token_cost(&self) -> TokenCost {
        self.shape().token_cost()
    }

    fn to_json(&self) -> Map<String, Value> {
        keys(self)
    }
}
