//! MDLM: masked diffusion (arXiv 2406.07524).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::architecture::{
    Architecture, Capabilities, Config, Published, Sizes, TokenCost, keys, parse,
};
use super::ddit::{self, DditShape, shape};
use super::table::Parameter;
use crate::process::{LogLinear, Masks, Objective, Orders};

/// Sizes of an MDLM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MdlmConfig {
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
    /// Width of the vector that modulates the norms.
    #[serde(default = "ddit::cond_dim")]
    pub cond_dim: usize,
    /// Whether the network is conditioned on the time; the published model is not (its time input
    /// is 0).
    #[serde(default)]
    pub time_conditioning: bool,
    /// ε of the noise schedule: a token is masked by time t with probability (1 − ε)t. The
    /// published code has 1e-3; 0, if left out, is the paper's α = 1 − t.
    #[serde(default)]
    pub noise_eps: f64,
    /// Dropout on attention and residual branches.
    #[serde(default)]
    pub dropout: f64,
}

/// MDLM, `mdlm`.
pub struct Mdlm;

impl Architecture for Mdlm {
    fn name(&self) -> &'static str {
        "mdlm"
    }

    fn read(&self, json: Map<String, Value>) -> Result<Box<dyn Config>, String> {
        let config: MdlmConfig = parse(json)?;
        config.shape().check()?;
        if !(0.0..1.0).contains(&config.noise_eps) {
            return Err(format!("noise_eps {}: must be at least 0 and below 1", config.noise_eps));
        }
        Ok(Box::new(config))
    }
}

impl MdlmConfig {
    /// The transformer.
    pub fn shape(&self) -> DditShape {
        shape!(self, Some(self.cond_dim))
    }
}

impl Config for MdlmConfig {
    fn sizes(&self) -> Sizes {
        self.shape().sizes()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            orders: Orders::Any,
            objectives: &[Objective::TDce, Objective::LambdaDce, Objective::KDce],
            predicts_first: true,
            masks: Some(Masks {
                id: self.shape().mask_id,
                schedule: LogLinear { eps: self.noise_eps },
                time_conditioned: self.time_conditioning,
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
