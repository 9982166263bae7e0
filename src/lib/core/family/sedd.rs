//! SEDD of the absorbing kind: masked diffusion by score entropy (arXiv 2310.16834).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::architecture::{
    Architecture, Capabilities, Config, Published, Sizes, TokenCost, keys, parse,
};
use super::ddit::{self, DditShape, shape};
use super::table::Parameter;
use crate::process::score_entropy::Scores;
use crate::process::{LogLinear, Masks, Objective, Orders};

/// Sizes of a SEDD.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeddConfig {
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
    /// Whether log(e^σ − 1) + log V is taken off the network's output.
    #[serde(default = "super::architecture::yes")]
    pub scale_by_sigma: bool,
    /// The noise schedule; log-linear is the only one for the absorbing kind here.
    #[serde(default)]
    pub noise: Noise,
    /// ε of the schedule: σ̄(t) = −log(1 − (1 − ε)t).
    #[serde(default = "noise_eps")]
    pub noise_eps: f64,
    /// Dropout on attention and residual branches.
    #[serde(default)]
    pub dropout: f64,
}

/// How the total noise σ̄ grows with time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Noise {
    /// A token is masked with probability (1 − ε)t.
    #[default]
    LogLinear,
}

fn noise_eps() -> f64 {
    1e-3
}

/// SEDD, `sedd`.
pub struct Sedd;

impl Architecture for Sedd {
    fn name(&self) -> &'static str {
        "sedd"
    }

    fn read(&self, json: Map<String, Value>) -> Result<Box<dyn Config>, String> {
        let config: SeddConfig = parse(json)?;
        config.shape().check()?;
        if config.shape().mask_id != config.vocab_size {
            return Err(format!(
                "mask_id {}: SEDD's is the row after its {} real ids",
                config.shape().mask_id,
                config.vocab_size
            ));
        }
        if !(config.noise_eps > 0.0 && config.noise_eps < 1.0) {
            return Err(format!("noise_eps {}: must be above 0 and below 1", config.noise_eps));
        }
        Ok(Box::new(config))
    }
}

impl SeddConfig {
    /// The transformer.
    pub fn shape(&self) -> DditShape {
        shape!(self, Some(self.cond_dim))
    }
}

impl Config for SeddConfig {
    fn sizes(&self) -> Sizes {
        self.shape().sizes()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            orders: Orders::Any,
            objectives: &[Objective::ScoreEntropy],
            predicts_first: true,
            masks: Some(Masks {
                id: self.shape().mask_id,
                schedule: LogLinear { eps: self.noise_eps },
                time_conditioned: true,
                scores: Some(Scores {
                    scaled_by_sigma: self.scale_by_sigma,
                    vocab_size: self.vocab_size,
                }),
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
