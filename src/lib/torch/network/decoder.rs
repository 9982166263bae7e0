//! What training, scoring and decoding ask of a causal model, whichever its family.
//!
//! A sequence is read in generation order. Row k holds the token of step k − 1 and predicts that of
//! step k, whose position it may be told; row 0 holds the [None] token. Families without a [None]
//! token have no row 0: the first token of an order is given and not predicted.

use ao_core::family::ModelConfig;
use ao_core::{Error, Result};
use tch::{Device, Kind, Tensor};

use super::ao_gpt::AoGpt;
use super::gpt2::Gpt2;
use super::head::Head;
use super::base::HandNames;
use super::parts::Parts;
use super::sigma_gpt::SigmaGpt;
use super::weights::Weights;

/// How rows look at each other: the only part in which training, scoring and decoding differ.
pub trait Attend {
    /// Attention of block `layer`: q, k, v (B, H, R, hs) to (B, H, R, hs).
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor;
}

/// Every row sees itself and the rows before it.
pub struct CausalAttention {
    /// Dropout on the attention weights.
    pub dropout: f64,
}

impl Attend for CausalAttention {
    fn attend(&mut self, _: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        Tensor::scaled_dot_product_attention::<Tensor>(
            q,
            k,
            v,
            None,
            self.dropout,
            true,
            None,
            false,
        )
    }
}

/// What depends on a row's target position alone, computed once per position and not per token.
#[derive(Default)]
pub struct Conditioning {
    /// Of each block, (T, width) each; empty where the family adds positions to the input alone.
    pub(super) blocks: Vec<Tensor>,
    /// Of the final norm, (T, width).
    pub(super) last: Option<Tensor>,
}

impl Conditioning {
    /// The tables of the blocks, (T, width) each, and that of the final norm.
    pub fn tables(&self) -> (&[Tensor], Option<&Tensor>) {
        (&self.blocks, self.last.as_ref())
    }

    /// The rows of block `layer` for targets (B, R): (B, R, width).
    pub(super) fn block(&self, layer: usize, targets: &Tensor) -> Option<Tensor> {
        self.blocks.get(layer).map(|table| Tensor::embedding(table, targets, -1, false, false))
    }
}

/// The parts that every family has, and its sizes.
pub struct Base {
    /// Architecture and sizes.
    pub config: ModelConfig,
    pub(super) wte: Tensor,
    pub(super) head: Head,
    pub(super) compute: Kind,
}

/// A causal model over views of its weights.
pub trait Decoder {
    /// Sizes, token table and head.
    fn base(&self) -> &Base;

    /// Keeps copies of the weights in the compute kind: for scoring and decoding, not training.
    fn freeze(&mut self);

    /// The tables for all target positions.
    fn conditioning(&self) -> Conditioning {
        Conditioning::default()
    }

    /// The row that holds [None], (1, C); `None` in families without it.
    fn none_row(&self) -> Option<Tensor>;

    /// What a row's own position adds to its token: i64 text positions (…) to (…, C).
    fn position_rows(&self, positions: &Tensor) -> Tensor;

    /// What a row's target position adds to the input: i64 (…) to (…, C); `None` where nothing.
    fn target_rows(&self, targets: &Tensor) -> Option<Tensor>;

    /// The blocks and the final norm: rows (B, R, C) with targets i64 (B, R) to the head's input,
    /// (B, R, C). `rows` are complete, target rows added.
    fn forward(
        &self,
        rows: &Tensor,
        targets: &Tensor,
        conditioning: &Conditioning,
        attend: &mut dyn Attend,
        dropout: f64,
    ) -> Tensor;

    /// The model as plain tensors, where kernels beside libtorch know its family.
    fn parts(&self) -> Option<Parts> {
        None
    }

    /// Architecture and sizes.
    fn config(&self) -> &ModelConfig {
        &self.base().config
    }

    /// The head: logits, NLL and its gradients.
    fn head(&self) -> &Head {
        &self.base().head
    }

    /// The device that the weights are on.
    fn device(&self) -> Device {
        self.base().wte.device()
    }

    /// The kind of rows, norms and sums: that of the weights.
    fn kind(&self) -> Kind {
        self.base().wte.kind()
    }

    /// The kind that attention and its cache are in.
    fn compute(&self) -> Kind {
        self.base().compute
    }

    /// Leading tokens of an order that are given and not predicted: 1 in families without [None].
    fn given(&self) -> usize {
        usize::from(!self.config().predicts_first())
    }

    /// Token embeddings, (…) i64 to (…, C).
    fn token_rows(&self, tokens: &Tensor) -> Tensor {
        Tensor::embedding(&self.base().wte, tokens, -1, false, false)
    }

}

/// The parts of `Base` for a decoder's config.
pub(super) fn base(config: &ModelConfig, weights: &Weights, compute: Kind, _: usize) -> Base {
    // A model in f64 is exact throughout.
    let compute = if weights.flat().kind() == Kind::Double { Kind::Double } else { compute };
    let names = HandNames::of_gpt(config);
    let head = weights.get(names.head_weight);
    Base {
        config: config.clone(),
        wte: weights.get(names.token_table),
        head: Head::new(head, weights.find(names.head_bias), compute),
        compute,
    }
}

/// A decoder as a network.
pub struct Wrapped {
    base: super::base::Base,
    inner: Box<dyn Decoder>,
    conditioning: Option<Conditioning>,
}

/// The decoder of `config`.
pub fn wrapped(
    config: &ModelConfig,
    weights: &Weights,
    runtime: &crate::device::Runtime,
) -> Box<dyn super::base::Network> {
    use ao_core::family::{AoGptConfig, Gpt2Config};
    let compute = runtime.compute_of(weights);
    let inner: Box<dyn Decoder> = if config.of::<AoGptConfig>().is_some() {
        Box::new(AoGpt::new(config, weights, compute, 1))
    } else if config.of::<Gpt2Config>().is_some() {
        Box::new(Gpt2::new(config, weights, compute, 1))
    } else {
        Box::new(SigmaGpt::new(config, weights, compute, 1))
    };
    let names = HandNames::of_gpt(config);
    let base = super::base::Base {
        config: config.clone(),
        tokens: super::rows::TokenTable::new(weights.get(names.token_table)),
        head: Head::new(weights.get(names.head_weight), weights.find(names.head_bias), compute),
        compute,
        names,
    };
    Box::new(Wrapped { base, inner, conditioning: None })
}

struct Both<'a>(&'a mut dyn super::attention::Attention);

impl Attend for Both<'_> {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        self.0.store(layer, k, v);
        self.0.look(layer, q)
    }
}

impl super::base::Network for Wrapped {
    fn base(&self) -> &super::base::Base {
        &self.base
    }
    fn freeze(&mut self) {
        self.inner.freeze();
        self.base.freeze();
        self.conditioning = Some(tch::no_grad(|| self.inner.conditioning()));
    }
    fn cache_shape(&self) -> super::attention::CacheShape {
        let c = &self.base.config;
        super::attention::CacheShape {
            layers: c.n_layer(),
            heads: c.n_head(),
            head_size: c.n_embd() / c.n_head(),
        }
    }
    fn forward(
        &self,
        rows: &super::rows::Rows,
        attention: &mut dyn super::attention::Attention,
        dropout: f64,
    ) -> Tensor {
        let mut x = self.base.tokens.rows(&rows.tokens)
            + self.inner.position_rows(&rows.held.clamp_min(0));
        if let Some(none) = self.inner.none_row() {
            x = none.where_self(&rows.held.lt(0).unsqueeze(-1), &x);
        }
        if let Some(targets) = self.inner.target_rows(&rows.aims) {
            x += targets;
        }
        let own;
        let conditioning = match &self.conditioning {
            Some(kept) => kept,
            None => {
                own = self.inner.conditioning();
                &own
            }
        };
        self.inner.forward(&x, &rows.aims, conditioning, &mut Both(attention), dropout)
    }
}
