//! AO-GPT: sizes and parameters (arXiv 2506.19935, and its published code).

use serde::{Deserialize, Serialize};

use super::{Init, Parameter, Table, check_sizes};

/// Sizes of an AO-GPT.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AoGptConfig {
    /// Longest sequence T, in tokens; the model has T + 1 rows with the [None] token.
    pub block_size: usize,
    /// Rows of the token table and of the head, padding included.
    pub vocab_size: usize,
    /// Number of blocks.
    pub n_layer: usize,
    /// Attention heads of a block.
    pub n_head: usize,
    /// Width C.
    pub n_embd: usize,
    /// Dropout on embeddings, attention and residual branches; the paper's is 0.
    #[serde(default)]
    pub dropout: f64,
    /// Whether c_attn, c_fc and the two c_proj have biases (adaLN and the head always do).
    #[serde(default = "yes")]
    pub bias: bool,
    /// Width of the target-position table that conditions the norms.
    #[serde(default = "cond_dim")]
    pub cond_dim: usize,
}

fn yes() -> bool {
    true
}

fn cond_dim() -> usize {
    128
}

/// Initial standard deviation of every weight matrix and table.
const STD: f64 = 0.02;

impl AoGptConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        check_sizes(&[
            ("block_size", self.block_size, 1 << 20),
            ("vocab_size", self.vocab_size, 1 << 24),
            ("n_layer", self.n_layer, 1 << 10),
            ("n_head", self.n_head, 1 << 10),
            ("n_embd", self.n_embd, 1 << 16),
            ("cond_dim", self.cond_dim, 1 << 16),
        ])?;
        if !self.n_embd.is_multiple_of(self.n_head) {
            return Err(format!("n_head {}: does not divide n_embd {}", self.n_head, self.n_embd));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(format!("dropout {}: must be at least 0 and below 1", self.dropout));
        }
        Ok(())
    }

    /// Width of a head.
    pub fn head_size(&self) -> usize {
        self.n_embd / self.n_head
    }

    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let (c, cond, v) = (self.n_embd, self.cond_dim, self.vocab_size);
        let normal = Init::TruncatedNormal(STD);
        // Residual projections start smaller, so that the sum of 2L branches keeps its variance.
        let projection = Init::TruncatedNormal(STD / (2.0 * self.n_layer as f64).sqrt());
        let mut list = Table::default();
        list.add("transformer.wte.weight", &[v, c], normal);
        list.add("transformer.wpe.weight", &[self.block_size + 1, c], normal);
        list.add("transformer.wtpe.weight", &[self.block_size, cond], normal);
        list.add("transformer.wnonee.weight", &[1, c], normal);
        for i in 0..self.n_layer {
            let h = |part: &str| format!("transformer.h.{i}.{part}");
            list.add(&h("ln_1.weight"), &[c], Init::Ones);
            list.linear(&h("attn.c_attn"), 3 * c, c, normal, self.bias);
            list.linear(&h("attn.c_proj"), c, c, projection, self.bias);
            list.add(&h("attn.q_norm.weight"), &[self.head_size()], Init::Ones);
            list.add(&h("attn.k_norm.weight"), &[self.head_size()], Init::Ones);
            list.add(&h("ln_2.weight"), &[c], Init::Ones);
            list.linear(&h("mlp.c_fc"), 4 * c, c, normal, self.bias);
            list.linear(&h("mlp.c_proj"), c, 4 * c, projection, self.bias);
            list.linear(&h("adaLN.1"), 6 * c, cond, normal, true);
        }
        list.add("transformer.final_layer.ln_f.weight", &[c], Init::Ones);
        list.linear("transformer.final_layer.adaLN_final.1", 2 * c, cond, normal, true);
        list.linear("lm_head", v, c, normal, true);
        list.0
    }
}
