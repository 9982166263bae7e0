//! A [`Transformer`] with its token table and head, by libtorch's operations.

use ao_core::family::ModelConfig;
use tch::Tensor;

use super::attention::{Attention, CacheShape};
use super::base::{Base, HandNames, Network};
use super::head::Head;
use super::layers::{cast, drop};
use super::rows::{Rows, TokenTable};
use super::transformer::{Conditioning, Norm, Pieces, Target, Transformer, look_up};
use super::weights::Weights;
use crate::device::Runtime;

/// A causal network over views of its weights.
pub(super) struct TransformerNetwork {
    base: Base,
    transformer: Transformer,
    /// Kept once the weights are frozen.
    conditioning: Option<Conditioning>,
}

impl TransformerNetwork {
    /// The network of `config`, of these pieces.
    pub fn new(
        config: &ModelConfig,
        weights: &Weights,
        runtime: &Runtime,
        pieces: Pieces,
    ) -> TransformerNetwork {
        let compute = runtime.compute_of(weights);
        let names = HandNames::of_gpt(config);
        let (head, bias) = (weights.get(names.head_weight), weights.find(names.head_bias));
        TransformerNetwork {
            transformer: Transformer::new(weights, config.n_layer(), compute, pieces),
            conditioning: None,
            base: Base {
                config: config.clone(),
                tokens: TokenTable::new(weights.get(names.token_table)),
                head: Head::new(head, bias, compute),
                compute,
                names,
            },
        }
    }

    /// Token, own position and target of the rows: (B, R, C).
    fn input(&self, rows: &Rows) -> Tensor {
        let Transformer { wpe, none, target, .. } = &self.transformer;
        let positions = rows.held.clamp_min(0);
        let tokens = self.base.tokens.rows(&rows.tokens);
        let mut x = match (target, none) {
            (Target::Halves, _) => tokens + self.transformer.half(&positions, true),
            (_, None) => tokens + look_up(wpe, &positions),
            (_, Some(none)) => {
                let token_rows = tokens + look_up(wpe, &(positions + 1));
                let none_row = none + wpe.narrow(0, 0, 1); // row 0 is [None]'s
                none_row.where_self(&rows.held.lt(0).unsqueeze(-1), &token_rows)
            }
        };
        match target {
            Target::Input(table) => x += look_up(table, &rows.aims),
            Target::Halves => x += self.transformer.half(&rows.aims, false),
            Target::Next | Target::Blocks(_) | Target::Adaln { .. } => {}
        }
        x
    }
}

impl Network for TransformerNetwork {
    fn base(&self) -> &Base {
        &self.base
    }

    fn freeze(&mut self) {
        self.transformer.freeze();
        self.base.freeze();
        self.conditioning = Some(tch::no_grad(|| self.transformer.conditioning()));
    }

    fn cache_shape(&self) -> CacheShape {
        let (heads, width) = (self.base.config.n_head(), self.base.config.n_embd());
        CacheShape { layers: self.transformer.blocks.len(), heads, head_size: width / heads }
    }

    fn transformer(&self) -> Option<&Transformer> {
        Some(&self.transformer)
    }

    fn forward(&self, rows: &Rows, attention: &mut dyn Attention, dropout: f64) -> Tensor {
        let made;
        let conditioning = match &self.conditioning {
            Some(kept) => kept,
            None => {
                made = self.transformer.conditioning();
                &made
            }
        };
        let config = &self.base.config;
        let (c, heads) = (config.n_embd() as i64, config.n_head() as i64);
        let adaln = matches!(self.transformer.target, Target::Adaln { .. });
        let mut x = drop(&self.input(rows), dropout);
        for (layer, block) in self.transformer.blocks.iter().enumerate() {
            let of_rows = |table| look_up(table, &rows.aims);
            let mut table = conditioning.blocks.get(layer).map(of_rows); // (B, R, 6C) or (B, R, C)
            if let Some(table) = table.take_if(|_| !adaln) {
                x = &x + table;
            }
            // Shift, scale and gate, twice.
            let part = |i: i64| table.as_ref().map(|table| table.narrow(-1, i * c, c));
            let normed = |x: &Tensor, norm: &Norm, first: i64| {
                let h = norm.forward(x);
                match part(first).zip(part(first + 1)) {
                    Some((shift, scale)) => shift.addcmul(&h, &scale),
                    None => h,
                }
            };
            let added = |x: &Tensor, branch: Tensor, gate: i64| {
                let branch = drop(&cast(&branch, x.kind()), dropout);
                match part(gate) {
                    Some(gate) => x.addcmul(&gate, &branch),
                    None => x + branch,
                }
            };
            let h = normed(&x, &block.ln_1, 0);
            x = added(&x, block.attention(layer, &h, heads, attention), 2);
            let h = normed(&x, &block.ln_2, 3);
            x = added(&x, block.mlp(&h), 5);
        }
        let x = self.transformer.ln_f.forward(&x);
        let Some(last) = &conditioning.last else { return x };
        let table = look_up(last, &rows.aims);
        table.narrow(-1, 0, c).addcmul(&x, &table.narrow(-1, c, c))
    }
}
