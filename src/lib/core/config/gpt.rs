//! The GPT-like decoders beside AO-GPT: σ-GPT in both forms, and GPT-2 read from left to right.
//!
//! All are nanoGPT's blocks: LayerNorm before attention and before the MLP, a head tied to the
//! token table, weights drawn from N(0, 0.02).

use serde::{Deserialize, Serialize};

use super::{Init, Parameter, Table, check_dropout, check_heads, check_sizes, yes};

/// Initial standard deviation of every weight matrix and table.
const STD: f64 = 0.02;

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
}

/// The MLP's nonlinearity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// GELU by the error function, as nanoGPT has it.
    Gelu,
    /// GELU by its tanh approximation, as OpenAI's GPT-2 has it (`gelu_new`).
    GeluTanh,
}

/// Sizes of a GPT-2, which reads from left to right.
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

/// The sizes that both families share.
struct Sizes {
    block_size: usize,
    vocab_size: usize,
    n_layer: usize,
    n_head: usize,
    n_embd: usize,
    dropout: f64,
    bias: bool,
}

impl Sizes {
    fn check(&self) -> Result<(), String> {
        check_sizes(&[
            ("block_size", self.block_size, 1 << 20),
            ("vocab_size", self.vocab_size, 1 << 24),
            ("n_layer", self.n_layer, 1 << 10),
            ("n_head", self.n_head, 1 << 10),
            ("n_embd", self.n_embd, 1 << 16),
        ])?;
        check_heads(self.n_head, self.n_embd)?;
        check_dropout(self.dropout)
    }

    /// Blocks and final norm, in nanoGPT's order.
    fn blocks(&self, list: &mut Table) {
        let c = self.n_embd;
        let normal = Init::Normal(STD);
        // Residual projections start smaller, so that the sum of 2L branches keeps its variance.
        let projection = Init::Normal(STD / (2.0 * self.n_layer as f64).sqrt());
        for i in 0..self.n_layer {
            let h = |part: &str| format!("transformer.h.{i}.{part}");
            list.norm(&h("ln_1"), c, self.bias);
            list.linear(&h("attn.c_attn"), 3 * c, c, normal, self.bias);
            list.linear(&h("attn.c_proj"), c, c, projection, self.bias);
            list.norm(&h("ln_2"), c, self.bias);
            list.linear(&h("mlp.c_fc"), 4 * c, c, normal, self.bias);
            list.linear(&h("mlp.c_proj"), c, 4 * c, projection, self.bias);
        }
        list.norm("transformer.ln_f", c, self.bias);
    }
}

macro_rules! sizes {
    ($config:expr) => {
        Sizes {
            block_size: $config.block_size,
            vocab_size: $config.vocab_size,
            n_layer: $config.n_layer,
            n_head: $config.n_head,
            n_embd: $config.n_embd,
            dropout: $config.dropout,
            bias: $config.bias,
        }
    };
}

impl SigmaGptConfig {
    pub(super) fn check(&self, official: bool) -> Result<(), String> {
        sizes!(self).check()?;
        if official && !self.n_embd.is_multiple_of(2) {
            return Err(format!(
                "n_embd {}: must be even, as each half holds one of the two positions",
                self.n_embd
            ));
        }
        Ok(())
    }

    pub(super) fn parameters(&self, official: bool) -> Vec<Parameter> {
        let (c, t, normal) = (self.n_embd, self.block_size, Init::Normal(STD));
        let mut list = Table::default();
        list.add("transformer.wte.weight", &[self.vocab_size, c], normal);
        if official {
            list.add("transformer.wpe.weight", &[t, c / 2], normal);
        } else {
            list.add("transformer.wpe.weight", &[t + 1, c], normal);
            list.add("transformer.wtpe.weight", &[t, c], normal);
            list.add("transformer.wnonee.weight", &[1, c], normal);
        }
        sizes!(self).blocks(&mut list);
        list.0
    }
}

impl Gpt2Config {
    pub(super) fn check(&self) -> Result<(), String> {
        sizes!(self).check()
    }

    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let (c, normal) = (self.n_embd, Init::Normal(STD));
        let mut list = Table::default();
        list.add("transformer.wte.weight", &[self.vocab_size, c], normal);
        list.add("transformer.wpe.weight", &[self.block_size, c], normal);
        sizes!(self).blocks(&mut list);
        list.0
    }
}
