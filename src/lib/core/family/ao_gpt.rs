//! AO-GPT: sizes and parameters (arXiv 2506.19935, and its published code).

use serde::{Deserialize, Serialize};

use serde_json::{Map, Value};

use super::architecture::{
    Architecture, Capabilities, Config, Published, Sizes, TokenCost, check_sizes, keys, parse,
    sizes, yes,
};
use super::gpt;
use super::table::{Init, Parameter, Table};
use crate::process::{Objective, Orders};

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
    /// How rows are conditioned on the position that they predict; the paper's model is `adaln`.
    #[serde(default)]
    pub position_encoding: PositionEncoding,
    /// Width of the target-position table that conditions the norms; only `adaln` has it.
    #[serde(default = "cond_dim")]
    pub cond_dim: usize,
}

/// How rows are conditioned on the position that they predict (arXiv 2506.19935 v1, figure 5, a to d).
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

/// AO-GPT, `ao-gpt`.
pub struct AoGpt;

impl Architecture for AoGpt {
    fn name(&self) -> &'static str {
        "ao-gpt"
    }

    fn read(&self, json: Map<String, Value>) -> Result<Box<dyn Config>, String> {
        let config: AoGptConfig = parse(json)?;
        check_sizes(&config.sizes(), &[("cond_dim", config.cond_dim, 1 << 16)])?;
        Ok(Box::new(config))
    }
}

impl Config for AoGptConfig {
    fn sizes(&self) -> Sizes {
        sizes!(self)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            orders: Orders::Any,
            objectives: &[Objective::Ao, Objective::L2r],
            predicts_first: true,
            masks: None,
            growing: false,
        }
    }

    fn parameters(&self) -> Vec<Parameter> {
        let (c, cond, v) = (self.n_embd, self.cond_dim, self.vocab_size);
        let head_size = c / self.n_head;
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
            list.add(&h("attn.q_norm.weight"), &[head_size], Init::Ones);
            list.add(&h("attn.k_norm.weight"), &[head_size], Init::Ones);
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

    fn published(&self) -> Published {
        Published { tied: None, is_buffer: gpt::is_buffer }
    }

    fn token_cost(&self) -> TokenCost {
        let head = (self.vocab_size * self.n_embd) as f64;
        TokenCost::of_blocks(&self.parameters(), &self.sizes(), head)
    }

    fn to_json(&self) -> Map<String, Value> {
        keys(self)
    }
}
