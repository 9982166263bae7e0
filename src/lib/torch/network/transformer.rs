//! A decoder's transformer as plain data, which libtorch's passes and the kernels for few rows both
//! read: tables of tokens and positions, how rows are conditioned on their target, blocks, last norm.
//!
//! Every causal family here is one of these; its file says which.

use ao_core::family::Activation;
use tch::{IndexOp, Kind, Tensor};

use super::attention::Attention;
use super::layers::{Linear, NORM_EPS, cast, gelu, gelu_tanh, rms_norm, silu};
use super::weights::Weights;

/// What a norm divides by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum NormKind {
    /// RMSNorm: the root of the mean square.
    Rms,
    /// LayerNorm: the standard deviation, once the mean is taken off.
    Layer,
}

/// A norm over the width.
pub(crate) struct Norm {
    pub kind: NormKind,
    /// (C).
    pub weight: Tensor,
    /// (C).
    pub bias: Option<Tensor>,
}

impl Norm {
    fn new(weights: &Weights, name: &str, kind: NormKind) -> Norm {
        let bias = weights.find(&format!("{name}.bias"));
        Norm { kind, weight: weights.get(&format!("{name}.weight")), bias }
    }

    /// (…, C) to (…, C), in the kind of `x`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        match self.kind {
            NormKind::Rms => rms_norm(x, &self.weight),
            NormKind::Layer => {
                let size = *x.size().last().unwrap_or(&1);
                x.layer_norm([size], Some(&self.weight), self.bias.as_ref(), NORM_EPS, false)
            }
        }
    }
}

/// One block: attention and an MLP, each behind a norm and added to its input.
pub(crate) struct Block {
    /// Before attention.
    pub ln_1: Norm,
    /// C to 3C: queries, keys, values, each head after head.
    pub c_attn: Linear,
    /// RMSNorm weights of queries and keys, (hs) each, shared by the heads.
    pub qk_norm: Option<[Tensor; 2]>,
    /// C to C.
    pub attn_proj: Linear,
    /// Before the MLP.
    pub ln_2: Norm,
    /// C to 4C.
    pub c_fc: Linear,
    /// Between the two.
    pub activation: Activation,
    /// 4C to C.
    pub mlp_proj: Linear,
}

impl Block {
    fn new(weights: &Weights, i: usize, norm: NormKind, kind: Activation, compute: Kind) -> Block {
        let name = |part: &str| format!("transformer.h.{i}.{part}");
        let linear = |part: &str| Linear::new(weights, &name(part), compute);
        let qk = |which: &str| weights.find(&name(&format!("attn.{which}.weight")));
        Block {
            ln_1: Norm::new(weights, &name("ln_1"), norm),
            c_attn: linear("attn.c_attn"),
            qk_norm: qk("q_norm").zip(qk("k_norm")).map(|(q, k)| [q, k]),
            attn_proj: linear("attn.c_proj"),
            ln_2: Norm::new(weights, &name("ln_2"), norm),
            c_fc: linear("mlp.c_fc"),
            activation: kind,
            mlp_proj: linear("mlp.c_proj"),
        }
    }

    fn freeze(&mut self) {
        for linear in [&mut self.c_attn, &mut self.attn_proj, &mut self.c_fc, &mut self.mlp_proj] {
            linear.freeze();
        }
    }

    /// (B, R, C) to (B, R, C), in the compute kind; norms of q and k in the kind of `h`.
    pub(super) fn attention(
        &self,
        layer: usize,
        h: &Tensor,
        heads: i64,
        attention: &mut dyn Attention,
    ) -> Tensor {
        let (b, r, c) = (h.size()[0], h.size()[1], h.size()[2]);
        let qkv = self.c_attn.forward(h).view([b, r, 3, heads, c / heads]);
        let split = |i: i64| qkv.i((.., .., i)).transpose(1, 2); // (B, H, R, hs)
        let (mut q, mut k) = (split(0), split(1));
        if let Some([q_norm, k_norm]) = &self.qk_norm {
            let norm =
                |x: &Tensor, weight: &Tensor| cast(&rms_norm(&cast(x, h.kind()), weight), x.kind());
            q = norm(&q, q_norm);
            k = norm(&k, k_norm);
        }
        attention.store(layer, &k, &split(2));
        let y = attention.look(layer, &q); // (B, H, R, hs)
        self.attn_proj.forward(&y.transpose(1, 2).reshape([b, r, c]))
    }

    /// (…, C) to (…, C), in the compute kind.
    pub(super) fn mlp(&self, h: &Tensor) -> Tensor {
        let h = self.c_fc.forward(h);
        self.mlp_proj.forward(&match self.activation {
            Activation::Gelu => gelu(h),
            Activation::GeluTanh => gelu_tanh(h),
        })
    }
}

/// How a row is conditioned on the position that it predicts.
pub(crate) enum Target {
    /// Not at all: it is the next one.
    Next,
    /// A table (T, C) is added to the input.
    Input(Tensor),
    /// The table of own positions, (T, C/2), is looked up again: own position in the first half of
    /// the input, target in the second.
    Halves,
    /// A table (T, C) of each block is added to its input.
    Blocks(Vec<Tensor>),
    /// adaLN: the target's code modulates every norm and gates every branch.
    Adaln {
        /// (T, cond).
        codes: Tensor,
        /// Of each block, cond to 6C.
        blocks: Vec<Linear>,
        /// Of the last norm, cond to 2C.
        last: Linear,
    },
}

/// What tells one family from another.
pub(super) struct Pieces<'a> {
    /// Of all norms of the width.
    pub norm: NormKind,
    /// Of the MLPs.
    pub activation: Activation,
    /// The name of the last norm.
    pub last: &'a str,
    pub target: Target,
}

/// What depends on a row's target position alone: computed once a position where the weights are
/// frozen, and once a pass in training.
#[derive(Default)]
pub(crate) struct Conditioning {
    /// Of each block, (T, width) each; empty where the family adds positions to the input alone.
    pub blocks: Vec<Tensor>,
    /// Of the last norm, (T, width).
    pub last: Option<Tensor>,
}

/// A causal transformer's own parts, over views of its weights.
pub struct Transformer {
    /// Own positions: (T, C), (T, C/2) with [`Target::Halves`]; with a first row for [None] where
    /// there is one.
    pub(crate) wpe: Tensor,
    /// The embedding of [None], (1, C).
    pub(crate) none: Option<Tensor>,
    pub(crate) target: Target,
    pub(crate) blocks: Vec<Block>,
    pub(crate) ln_f: Norm,
}

impl Transformer {
    /// Of `n_layer` blocks, multiplying matrices in `compute`. Gradients flow to the views where the
    /// weights require them.
    pub(super) fn new(
        weights: &Weights,
        n_layer: usize,
        compute: Kind,
        pieces: Pieces,
    ) -> Transformer {
        let Pieces { norm, activation, last, target } = pieces;
        let block = |i| Block::new(weights, i, norm, activation, compute);
        Transformer {
            wpe: weights.get("transformer.wpe.weight"),
            none: weights.find("transformer.wnonee.weight"),
            target,
            blocks: (0..n_layer).map(block).collect(),
            ln_f: Norm::new(weights, last, norm),
        }
    }

    pub(super) fn freeze(&mut self) {
        self.blocks.iter_mut().for_each(Block::freeze);
    }

    /// adaLN: shift, 1 + scale and gate of attention, then of the MLP, (T, 6C) a block, and shift
    /// and 1 + scale of the final norm, (T, 2C). Tables that blocks add: those, (T, C).
    pub(crate) fn conditioning(&self) -> Conditioning {
        let (codes, blocks, last) = match &self.target {
            Target::Adaln { codes, blocks, last } => (codes, blocks, last),
            Target::Blocks(tables) => {
                let blocks = tables.iter().map(Tensor::shallow_clone).collect();
                return Conditioning { blocks, last: None };
            }
            Target::Next | Target::Input(_) | Target::Halves => return Conditioning::default(),
        };
        let c = last.weight.size()[0] / 2;
        let silu = silu(codes.copy()); // (T, cond)
        // Adding one to the scales here spares an addition per row and block.
        let mut ones = vec![0f32; 6 * c as usize];
        for at in [1, 4] {
            ones[at * c as usize..(at + 1) * c as usize].fill(1.0);
        }
        let ones = Tensor::from_slice(&ones).to_kind(codes.kind()).to_device(codes.device());
        let last = last.forward(&silu) + ones.narrow(0, 0, 2 * c);
        let blocks = blocks.iter().map(|ada| ada.forward(&silu) + &ones).collect();
        Conditioning { blocks, last: Some(last) }
    }

    /// Rows of the half-width table, in the half of the width that `own` says: (…) to (…, C).
    pub(super) fn half(&self, positions: &Tensor, own: bool) -> Tensor {
        let half = look_up(&self.wpe, positions);
        let width = *half.size().last().unwrap_or(&0);
        half.constant_pad_nd(if own { [0, width] } else { [width, 0] })
    }
}

/// Rows of a table: i64 (…) to (…, C).
pub(super) fn look_up(table: &Tensor, rows: &Tensor) -> Tensor {
    Tensor::embedding(table, rows, -1, false, false)
}
