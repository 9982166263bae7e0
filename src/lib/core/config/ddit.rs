//! The encoders of masked diffusion: SEDD (arXiv 2310.16834), RADD (2406.03736), MDLM (2406.07524).
//!
//! All three are SEDD's bidirectional transformer with rotary positions; RADD leaves out the time
//! and with it adaLN, MDLM keeps the time's path but holds it at 0.

use serde::{Deserialize, Serialize};

use super::{Init, Parameter, Table, check_dropout, check_heads, check_sizes};

/// Width of the sinusoid of the time, in SEDD's and MDLM's code.
pub const TIME_WIDTH: usize = 256;

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
    #[serde(default = "cond_dim")]
    pub cond_dim: usize,
    /// Whether the network is told the time; the published model is not (its time input is 0).
    #[serde(default)]
    pub time_conditioning: bool,
    /// Dropout on attention and residual branches.
    #[serde(default)]
    pub dropout: f64,
}

/// Sizes of a SEDD of the absorbing kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeddConfig {
    /// Longest sequence T, in tokens.
    pub block_size: usize,
    /// Real ids of the vocabulary.
    pub vocab_size: usize,
    /// The id that stands for a masked token: `vocab_size`, the only one that SEDD knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_id: Option<usize>,
    /// Number of blocks.
    pub n_layer: usize,
    /// Attention heads of a block.
    pub n_head: usize,
    /// Width C.
    pub n_embd: usize,
    /// Width of the vector that modulates the norms.
    #[serde(default = "cond_dim")]
    pub cond_dim: usize,
    /// Whether log(e^σ − 1) + log V is taken off the network's output.
    #[serde(default = "super::yes")]
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

fn cond_dim() -> usize {
    128
}

fn noise_eps() -> f64 {
    1e-3
}

/// What the three share: the transformer and the names of its parts.
#[derive(Debug, Clone, PartialEq)]
pub struct DditShape {
    /// Longest sequence T, in tokens.
    pub block_size: usize,
    /// Real ids of the vocabulary.
    pub vocab_size: usize,
    /// The id of a masked token.
    pub mask_id: usize,
    /// Number of blocks.
    pub n_layer: usize,
    /// Attention heads of a block.
    pub n_head: usize,
    /// Width C.
    pub n_embd: usize,
    /// Width of the vector that modulates the norms; `None` where nothing does.
    pub cond_dim: Option<usize>,
    /// Dropout on attention and residual branches.
    pub dropout: f64,
}

impl DditShape {
    /// Rows of the token table and of the head, the mask's included.
    pub fn rows(&self) -> usize {
        self.vocab_size.max(self.mask_id + 1)
    }

    /// Width of a head.
    pub fn head_size(&self) -> usize {
        self.n_embd / self.n_head
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check_sizes(&[
            ("block_size", self.block_size, 1 << 20),
            ("vocab_size", self.vocab_size, 1 << 24),
            ("n_layer", self.n_layer, 1 << 10),
            ("n_head", self.n_head, 1 << 10),
            ("n_embd", self.n_embd, 1 << 16),
            ("cond_dim", self.cond_dim.unwrap_or(1), 1 << 16),
        ])?;
        check_heads(self.n_head, self.n_embd)?;
        if !self.head_size().is_multiple_of(2) {
            return Err(format!(
                "n_embd {} over n_head {}: rotary positions need heads of even width",
                self.n_embd, self.n_head
            ));
        }
        if self.mask_id > self.vocab_size {
            return Err(format!(
                "mask_id {}: must be a real id or vocab_size {}, the row after them",
                self.mask_id, self.vocab_size
            ));
        }
        check_dropout(self.dropout)
    }

    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let c = self.n_embd;
        let ada = self.cond_dim;
        // PyTorch's own law of a linear layer: uniform within 1/√fan_in.
        let linear = |inp: usize| Init::Uniform(1.0 / (inp as f64).sqrt());
        let mut list = Table::default();
        list.add("vocab_embed.embedding", &[self.rows(), c], linear(c));
        if let Some(cond) = ada {
            for (name, inp) in [("sigma_map.mlp.0", TIME_WIDTH), ("sigma_map.mlp.2", cond)] {
                list.add(&format!("{name}.weight"), &[cond, inp], linear(inp));
                list.add(&format!("{name}.bias"), &[cond], linear(inp));
            }
        }
        let norm = |list: &mut Table, name: &str| {
            list.add(&format!("{name}.weight"), &[c], Init::Ones);
            if ada.is_none() {
                // RADD's published LayerNorm starts its bias at one, as its weight.
                list.add(&format!("{name}.bias"), &[c], Init::Ones);
            }
        };
        for i in 0..self.n_layer {
            let h = |part: &str| format!("blocks.{i}.{part}");
            norm(&mut list, &h("norm1"));
            list.add(&h("attn_qkv.weight"), &[3 * c, c], linear(c));
            list.add(&h("attn_out.weight"), &[c, c], linear(c));
            norm(&mut list, &h("norm2"));
            for (name, out, inp) in [("mlp.0", 4 * c, c), ("mlp.2", c, 4 * c)] {
                list.add(&h(&format!("{name}.weight")), &[out, inp], linear(inp));
                list.add(&h(&format!("{name}.bias")), &[out], linear(inp));
            }
            if let Some(cond) = ada {
                list.linear(&h("adaLN_modulation"), 6 * c, cond, Init::Zeros, true);
            }
        }
        norm(&mut list, "output_layer.norm_final");
        list.linear("output_layer.linear", self.rows(), c, Init::Zeros, true);
        if let Some(cond) = ada {
            list.linear("output_layer.adaLN_modulation", 2 * c, cond, Init::Zeros, true);
        }
        list.0
    }
}

macro_rules! shape {
    ($config:expr, $cond:expr) => {
        DditShape {
            block_size: $config.block_size,
            vocab_size: $config.vocab_size,
            mask_id: $config.mask_id.unwrap_or($config.vocab_size),
            n_layer: $config.n_layer,
            n_head: $config.n_head,
            n_embd: $config.n_embd,
            cond_dim: $cond,
            dropout: $config.dropout,
        }
    };
}

impl RaddConfig {
    /// The transformer.
    pub fn shape(&self) -> DditShape {
        shape!(self, None)
    }
}

impl MdlmConfig {
    /// The transformer.
    pub fn shape(&self) -> DditShape {
        shape!(self, Some(self.cond_dim))
    }
}

impl SeddConfig {
    /// The transformer.
    pub fn shape(&self) -> DditShape {
        shape!(self, Some(self.cond_dim))
    }

    pub(super) fn check(&self) -> Result<(), String> {
        self.shape().check()?;
        if self.shape().mask_id != self.vocab_size {
            return Err(format!(
                "mask_id {}: SEDD's is the row after its {} real ids",
                self.shape().mask_id,
                self.vocab_size
            ));
        }
        if !(self.noise_eps > 0.0 && self.noise_eps < 1.0) {
            return Err(format!("noise_eps {}: must be above 0 and below 1", self.noise_eps));
        }
        Ok(())
    }
}
