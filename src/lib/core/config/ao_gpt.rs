//! AO-GPT: sizes and parameters (arXiv 2506.19935, and its published code).

use serde::{Deserialize, Serialize};

use super::{Init, Parameter, Table, check_dropout, check_heads, check_sizes, yes};

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
    /// How rows are told the position that they predict; the paper's model is `adaln`.
    #[serde(default)]
    pub position_encoding: PositionEncoding,
    /// Width of the target-position table that conditions the norms; only `adaln` has it.
    #[serde(default = "cond_dim")]
    pub cond_dim: usize,
}

/// How rows are told the position that they predict (arXiv 2506.19935 v1, figure 5, a to d).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PositionEncoding {
    /// (a) A table of full width, added once to the input, as σ-GPT does.
    Input,
    /// (b) The same table, added again to the input of every block.
    EveryBlock,
    /// (c) A table of its own for every block.
    PerBlock,
    /// (d) adaLN: a narrow table modulates every norm.
    #[default]
    Adaln,
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
        check_heads(self.n_head, self.n_embd)?;
        check_dropout(self.dropout)
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
        let adaln = self.position_encoding == PositionEncoding::Adaln;
        let width = if adaln { cond } else { c };
        if self.position_encoding != PositionEncoding::PerBlock {
            list.add("transformer.wtpe.weight", &[self.block_size, width], normal);
        }
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
            match self.position_encoding {
                PositionEncoding::Adaln => list.linear(&h("adaLN.1"), 6 * c, cond, normal, true),
                PositionEncoding::PerBlock => {
                    list.add(&h("wtpe.weight"), &[self.block_size, c], normal);
                }
                PositionEncoding::Input | PositionEncoding::EveryBlock => {}
            }
        }
        list.add("transformer.final_layer.ln_f.weight", &[c], Init::Ones);
        if adaln {
            list.linear("transformer.final_layer.adaLN_final.1", 2 * c, cond, normal, true);
        }
        list.linear("lm_head", v, c, normal, true);
        list.0
    }
}
