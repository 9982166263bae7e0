//! The layers that the families share.

use tch::{Device, Kind, Tensor};

use super::tensor_slice::{slice, slice_mut};
use super::weights::Weights;
use crate::kernels::elementwise::{gelu_in_place, gelu_tanh_in_place, silu_in_place};
use crate::kernels::matmul::{Matrix, matmul_into};
use crate::kernels::{gemm, pool, simd};

/// ε of every RMSNorm and LayerNorm of the families here.
pub(crate) const NORM_EPS: f64 = 1e-5;

/// x·Wᵀ + b, multiplied in the compute kind.
pub(crate) struct Linear {
    /// (out, in).
    pub weight: Tensor,
    /// (out).
    pub bias: Option<Tensor>,
    compute: Kind,
    /// No gradient is wanted of it.
    frozen: bool,
}

/// Rows, and columns, from which on a product in f32 without a tape is the crate gemm's: it has the
/// faster kernels for many, but its rounding depends on the shape where there are few.
pub(super) const MANY: usize = 64;

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

    /// (…, in) to (…, out), in the compute kind.
    ///
    /// On a CPU and without a tape no sequence of (B, R, in) depends on its neighbours: how libtorch
    /// rounds a product depends on its number of rows, so there each is multiplied by itself.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let x = cast(x, self.compute);
        if !self.frozen {
            return self.product(&x);
        }
        if let Some(out) = self.without_tape(&x.contiguous()) {
            return out;
        }
        if x.dim() == 3 { alone(&x, |x| self.product(x)) } else { self.product(&x) }
    }

    fn product(&self, x: &Tensor) -> Tensor {
        let weight = cast(&self.weight, self.compute);
        let bias = self.bias.as_ref().map(|b| cast(b, self.compute));
        x.linear(&weight, bias.as_ref())
    }

    /// The product without a tape, by kernels that use all of the processor's vectors and round alike
    /// on any number of threads and in any company; `None` but in f32 on a CPU. Which kernel it is
    /// depends on the rows R of a sequence alone.
    fn without_tape(&self, x: &Tensor) -> Option<Tensor> {
        let (rows, weight) = (slice::<f32>(x)?, slice(&self.weight)?);
        let bias = self.bias.as_ref().map(|bias| slice(bias));
        let mut sizes = x.size();
        let width = *sizes.last()? as usize;
        *sizes.last_mut()? = self.weight.size()[0];
        let mut out = Tensor::empty(&sizes[..], (Kind::Float, Device::Cpu));
        // SAFETY: nothing else has the new tensor yet.
        let products = unsafe { slice_mut(&mut out) }?;
        let matrix = Matrix { weight, bias: bias.flatten(), width };
        let of_one = sizes.iter().rev().nth(1).map_or(1, |&r| r as usize);
        if of_one >= MANY && matrix.rows() >= MANY {
            gemm::linear(rows, matrix, products);
        } else {
            matmul_into(simd::level(), matrix, rows, products);
        }
        Some(out)
    }
}

/// `of` applied to each `x[b]` by itself on a CPU, and to all at once elsewhere: the work of many is
/// cut among vectors and threads where that of one is not.
pub(crate) fn alone(x: &Tensor, of: impl Fn(&Tensor) -> Tensor) -> Tensor {
    let count = x.size()[0];
    if x.device() != Device::Cpu || count < 2 {
        return of(x);
    }
    Tensor::cat(&(0..count).map(|b| of(&x.narrow(0, b, 1))).collect::<Vec<_>>(), 0)
}

/// x·Φ(x).
pub(crate) fn gelu(x: Tensor) -> Tensor {
    activated(x, gelu_in_place, |x| x.gelu("none"))
}

/// The GELU with a tanh in place of Φ.
pub(crate) fn gelu_tanh(x: Tensor) -> Tensor {
    activated(x, gelu_tanh_in_place, |x| x.gelu("tanh"))
}

/// x·σ(x).
pub(crate) fn silu(x: Tensor) -> Tensor {
    activated(x, silu_in_place, Tensor::silu)
}

/// A function of each element: without a tape on a CPU by `own` kernels, in place, since libtorch's
/// round the elements that fill no vector otherwise, and which these are depends on shape and threads.
fn activated(x: Tensor, own: fn(&mut [f32]), libtorch: fn(&Tensor) -> Tensor) -> Tensor {
    let known = matches!(x.kind(), Kind::Float | Kind::BFloat16);
    if !known || x.requires_grad() {
        return libtorch(&x);
    }
    let mut out = cast(&x, Kind::Float);
    // SAFETY: the callers' own results, which nothing else has.
    let Some(values) = (unsafe { slice_mut(&mut out) }) else { return libtorch(&x) };
    let piece = pool::piece(values.len(), 4);
    pool::each(values.chunks_mut(piece).collect(), &own);
    cast(&out, x.kind())
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
