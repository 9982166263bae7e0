//! The layers that the families share.

use ao_core::family::Activation;
use tch::{Device, IndexOp, Kind, Tensor};

use super::decoder::Attend;
use super::head::{slice, slice_mut};
use super::parts::MatrixParts;
use super::weights::Weights;
use crate::kernels::gemm::{self, Matrix};

/// ε of every RMSNorm and LayerNorm of the families here.
pub(crate) const NORM_EPS: f64 = 1e-5;

/// x·Wᵀ + b, multiplied in the compute kind.
pub(crate) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    compute: Kind,
    /// No gradient is wanted of it.
    frozen: bool,
}

/// Rows from which on a product is one of many rows.
const MANY_ROWS: usize = 64;

impl Linear {
    /// The layer at `name`, whose bias is there or not as the table says.
    pub fn new(weights: &Weights, name: &str, compute: Kind) -> Linear {
        Linear {
            weight: weights.get(&format!("{name}.weight")),
            bias: weights.find(&format!("{name}.bias")),
            compute,
            frozen: false,
        }
    }

    /// Keeps a copy of the weights in the compute kind, where no gradient is wanted.
    pub fn freeze(&mut self) {
        self.weight = cast(&self.weight, self.compute);
        self.bias = self.bias.as_ref().map(|b| cast(b, self.compute));
        self.frozen = true;
    }

    /// Its tensors.
    pub fn parts(&self) -> MatrixParts {
        let bias = self.bias.as_ref().map(Tensor::shallow_clone);
        MatrixParts { weight: self.weight.shallow_clone(), bias }
    }

    /// (…, in) to (…, out), in the compute kind.
    ///
    /// On a CPU and without a tape each sequence of (B, R, in) is multiplied by itself: the rounding
    /// of a product depends on its shape, and so would on the neighbours.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let size = x.size();
        if !self.frozen || x.device() != Device::Cpu || size.len() != 3 || size[0] < 2 {
            return self.product(x);
        }
        let alone = (0..size[0]).map(|b| self.product(&x.narrow(0, b, 1)));
        Tensor::cat(&alone.collect::<Vec<_>>(), 0)
    }

    fn product(&self, x: &Tensor) -> Tensor {
        let x = cast(x, self.compute);
        let width = *x.size().last().unwrap_or(&1) as usize;
        let on_cpu = self.compute == Kind::Float && x.device() == Device::Cpu;
        if self.frozen && on_cpu && x.numel() >= MANY_ROWS * width {
            return self.of_many_rows(&x.contiguous(), width);
        }
        let weight = cast(&self.weight, self.compute);
        let bias = self.bias.as_ref().map(|b| cast(b, self.compute));
        x.linear(&weight, bias.as_ref())
    }

    /// The product without a tape, by kernels that use all of the processor's vectors.
    fn of_many_rows(&self, x: &Tensor, width: usize) -> Tensor {
        let mut sizes = x.size();
        if let Some(last) = sizes.last_mut() {
            *last = self.weight.size()[0];
        }
        let mut out = Tensor::empty(&sizes[..], (Kind::Float, Device::Cpu));
        // SAFETY: all are contiguous f32; nothing else sees the new tensor yet.
        unsafe {
            let bias = self.bias.as_ref().map(|bias| slice(bias));
            let matrix = Matrix { weight: slice(&self.weight), bias, width };
            let threads = usize::try_from(tch::get_num_threads()).unwrap_or(1);
            gemm::linear(slice(x), matrix, slice_mut(&mut out), threads);
        }
        out
    }
}

/// LayerNorm over the last dimension.
pub(crate) struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl LayerNorm {
    /// The norm at `name`, whose bias is there or not as the table says.
    pub fn new(weights: &Weights, name: &str) -> LayerNorm {
        LayerNorm {
            weight: weights.get(&format!("{name}.weight")),
            bias: weights.find(&format!("{name}.bias")),
        }
    }

    /// (…, C) to (…, C), in the kind of `x`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let size = *x.size().last().unwrap_or(&1);
        x.layer_norm([size], Some(&self.weight), self.bias.as_ref(), NORM_EPS, false)
    }
}

/// Self-attention of a GPT block: c_attn, rows looking at each other, c_proj.
pub(crate) struct Attention {
    c_attn: Linear,
    c_proj: Linear,
    /// RMSNorm weights of queries and keys, (hs) each, shared by the heads.
    qk_norm: Option<[Tensor; 2]>,
    heads: i64,
    compute: Kind,
}

impl Attention {
    /// The attention at `name` (`transformer.h.0.attn`); with norms of q and k where the table has
    /// them.
    pub fn new(weights: &Weights, name: &str, heads: usize, compute: Kind) -> Attention {
        let norm = |which: &str| weights.find(&format!("{name}.{which}.weight"));
        Attention {
            c_attn: Linear::new(weights, &format!("{name}.c_attn"), compute),
            c_proj: Linear::new(weights, &format!("{name}.c_proj"), compute),
            qk_norm: norm("q_norm").zip(norm("k_norm")).map(|(q, k)| [q, k]),
            heads: heads as i64,
            compute,
        }
    }

    pub fn freeze(&mut self) {
        self.c_attn.freeze();
        self.c_proj.freeze();
    }

    /// c_attn and c_proj, and the norms of q and k.
    pub fn parts(&self) -> (MatrixParts, MatrixParts, Option<[Tensor; 2]>) {
        let norms = self.qk_norm.as_ref().map(|norms| norms.each_ref().map(Tensor::shallow_clone));
        (self.c_attn.parts(), self.c_proj.parts(), norms)
    }

    /// (B, R, C) to (B, R, C), in the compute kind; norms in that of `h`.
    pub fn forward(&self, layer: usize, h: &Tensor, attend: &mut dyn Attend) -> Tensor {
        let (b, r, c) = (h.size()[0], h.size()[1], h.size()[2]);
        let qkv = self.c_attn.forward(h).view([b, r, 3, self.heads, c / self.heads]);
        let split = |i: i64| qkv.i((.., .., i)).transpose(1, 2); // (B, H, R, hs)
        let (mut q, mut k) = (split(0), split(1));
        if let Some([q_norm, k_norm]) = &self.qk_norm {
            let norm = |x: &Tensor, weight: &Tensor| {
                cast(&rms_norm(&cast(x, h.kind()), weight), self.compute)
            };
            q = norm(&q, q_norm);
            k = norm(&k, k_norm);
        }
        let y = attend.attend(layer, &q, &k, &split(2)); // (B, H, R, hs)
        self.c_proj.forward(&y.transpose(1, 2).reshape([b, r, c]))
    }
}

/// The MLP of a GPT block: C to 4C, GELU, back to C.
pub(crate) struct Mlp {
    c_fc: Linear,
    c_proj: Linear,
    approximate: &'static str,
}

impl Mlp {
    /// The MLP at `name` (`transformer.h.0.mlp`).
    pub fn new(weights: &Weights, name: &str, activation: Activation, compute: Kind) -> Mlp {
        Mlp {
            c_fc: Linear::new(weights, &format!("{name}.c_fc"), compute),
            c_proj: Linear::new(weights, &format!("{name}.c_proj"), compute),
            approximate: match activation {
                Activation::Gelu => "none",
                Activation::GeluTanh => "tanh",
            },
        }
    }

    pub fn freeze(&mut self) {
        self.c_fc.freeze();
        self.c_proj.freeze();
    }

    /// c_fc and c_proj.
    pub fn parts(&self) -> (MatrixParts, MatrixParts) {
        (self.c_fc.parts(), self.c_proj.parts())
    }

    /// (…, C) to (…, C), in the compute kind.
    pub fn forward(&self, h: &Tensor) -> Tensor {
        self.c_proj.forward(&self.c_fc.forward(h).gelu(self.approximate))
    }
}

/// `x` in `kind`, without a copy where it is so already.
pub(crate) fn cast(x: &Tensor, kind: Kind) -> Tensor {
    if x.kind() == kind { x.shallow_clone() } else { x.to_kind(kind) }
}

/// Dropout in training, nothing at 0.
pub(crate) fn drop(x: &Tensor, p: f64) -> Tensor {
    if p > 0.0 { x.dropout(p, true) } else { x.shallow_clone() }
}

/// RMSNorm over the last dimension: x / √(mean(x²) + ε) · weight.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor) -> Tensor {
    let size = *x.size().last().unwrap_or(&1);
    x.rms_norm([size], Some(weight), NORM_EPS)
}
