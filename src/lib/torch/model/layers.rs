//! The layers that the families share.

use tch::{Kind, Tensor};

use super::NORM_EPS;
use super::weights::Weights;

/// x·Wᵀ + b, multiplied in the compute kind.
pub(crate) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    compute: Kind,
}

impl Linear {
    /// The layer at `name`, whose bias is there or not as the table says.
    pub fn new(weights: &Weights, name: &str, compute: Kind) -> Linear {
        Linear {
            weight: weights.get(&format!("{name}.weight")),
            bias: weights.find(&format!("{name}.bias")),
            compute,
        }
    }

    /// Keeps a copy of the weights in the compute kind, where no gradient is wanted.
    pub fn freeze(&mut self) {
        self.weight = cast(&self.weight, self.compute);
        self.bias = self.bias.as_ref().map(|b| cast(b, self.compute));
    }

    /// (…, in) to (…, out), in the compute kind.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let weight = cast(&self.weight, self.compute);
        let bias = self.bias.as_ref().map(|b| cast(b, self.compute));
        cast(x, self.compute).linear(&weight, bias.as_ref())
    }
}

/// `x` in `kind`, without a copy where it is so already.
pub(crate) fn cast(x: &Tensor, kind: Kind) -> Tensor {
    if x.kind() == kind { x.shallow_clone() } else { x.to_kind(kind) }
}

/// RMSNorm over the last dimension: x / √(mean(x²) + ε) · weight.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor) -> Tensor {
    let size = *x.size().last().unwrap_or(&1);
    x.rms_norm([size], Some(weight), NORM_EPS)
}
