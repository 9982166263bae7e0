//! The transformer that SEDD (arXiv 2310.16834), RADD (2406.03736) and MDLM (2406.07524) share:
//! bidirectional, with rotary positions. RADD leaves out the time and with it adaLN; MDLM keeps the
//! time's path but holds it at 0.

use super::architecture::{Published, Sizes, TokenCost, check_sizes, sizes};
use super::table::{Init, Parameter, Table};

/// Width of the sinusoid of the time, in SEDD's and MDLM's code.
pub const TIME_WIDTH: usize = 256;

/// Sizes of the transformer.
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

    /// The sizes that every family has.
    pub fn sizes(&self) -> Sizes {
        sizes!(self)
    }

    /// Refuses sizes that make no network.
    ///
    /// # Errors
    /// One line that names the key.
    pub fn check(&self) -> Result<(), String> {
        check_sizes(&self.sizes(), &[("cond_dim", self.cond_dim.unwrap_or(1), 1 << 16)])?;
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
        Ok(())
    }

    /// Parameters in the order of the published module.
    pub fn parameters(&self) -> Vec<Parameter> {
        let c = self.n_embd;
        let ada = self.cond_dim;
        // PyTorch's own initialisation of a linear layer: uniform within 1/√fan_in.
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

    /// What a token costs: half of the tokens are masked on average, and only they go through the
    /// head.
    pub fn token_cost(&self) -> TokenCost {
        let head = 0.5 * (self.rows() * self.n_embd) as f64;
        TokenCost::of_blocks(&self.parameters(), &self.sizes(), head)
    }
}

/// Names of published files.
pub fn published() -> Published {
    Published { tied: None, is_buffer: |name| name == "rotary_emb.inv_freq" }
}

/// Width of the vector that modulates the norms, in the published models.
pub fn cond_dim() -> usize {
    128
}

/// [`DditShape`] out of the fields of a config.
macro_rules! shape {
    ($config:expr, $cond:expr) => {
        $crate::family::ddit::DditShape {
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
pub(super) use shape;
