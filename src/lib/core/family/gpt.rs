//! What the GPT-like decoders beside AO-GPT share: nanoGPT's blocks, with LayerNorm before attention
//! and before the MLP, a head tied to the token table, weights drawn from N(0, 0.02).

use super::architecture::{Published, Sizes, TokenCost};
use super::table::{Init, Parameter, Table};

/// Initial standard deviation of every weight matrix and table.
pub const STD: f64 = 0.02;

/// Adds blocks and final norm, in nanoGPT's order.
pub fn add_blocks(list: &mut Table, sizes: &Sizes, bias: bool) {
    let c = sizes.n_embd;
    let normal = Init::Normal(STD);
    // Residual projections start smaller, so that the sum of 2L branches keeps its variance.
    let projection = Init::Normal(STD / (2.0 * sizes.n_layer as f64).sqrt());
    for i in 0..sizes.n_layer {
        let h = |part: &str| format!("transformer.h.{i}.{part}");
        list.norm(&h("ln_1"), c, bias);
        list.linear(&h("attn.c_attn"), 3 * c, c, normal, bias);
        list.linear(&h("attn.c_proj"), c, c, projection, bias);
        list.norm(&h("ln_2"), c, bias);
        list.linear(&h("mlp.c_fc"), 4 * c, c, normal, bias);
        list.linear(&h("mlp.c_proj"), c, 4 * c, projection, bias);
    }
    list.norm("transformer.ln_f", c, bias);
}

/// The causal masks that published GPT files carry.
pub fn is_buffer(name: &str) -> bool {
    name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
}

/// Names of published files, whose head is the token table.
pub fn published() -> Published {
    Published { tied: Some(("lm_head.weight", "transformer.wte.weight")), is_buffer }
}

/// What a token costs whose head is the token table.
pub fn token_cost(table: &[Parameter], sizes: &Sizes) -> TokenCost {
    TokenCost::of_blocks(table, sizes, (sizes.vocab_size * sizes.n_embd) as f64)
}
