//! What the tests of gradients share.

use ao_core::family::ModelConfig;
use tch::{Device, Kind, Tensor};

use crate::device::Runtime;
use crate::network::{Network, Weights, ao_gpt, ddit, gpt2, sigma_gpt};

/// The network of `config` over `weights`, as it is trained.
pub fn network(config: &ModelConfig, weights: &Weights, compute: Kind) -> Box<dyn Network> {
    let runtime = Runtime { device: Device::Cpu, compute, threads: 1 };
    let build = match config.arch() {
        "ao-gpt" => ao_gpt,
        "gpt2" => gpt2,
        "sigma-gpt" | "sigma-official" => sigma_gpt,
        _ => ddit,
    };
    build(config, weights, &runtime)
}

/// Weights among which none is zero: initial gates and biases would hide what they multiply.
pub fn weights(config: &ModelConfig, kind: Kind) -> Weights {
    let weights = Weights::init(config, 3, Device::Cpu).to_kind(kind);
    let count = weights.flat().size()[0];
    let noise: Vec<f64> = (0..count).map(|i| 0.3 * (i as f64 * 1.7).sin()).collect();
    let _ = weights.flat().shallow_clone().g_add_(&Tensor::from_slice(&noise).to_kind(kind));
    weights
}

/// The largest difference of any tensor, relative to that tensor's largest entry, and its name.
pub fn worst(ours: &Weights, plain: &Weights) -> (f64, String) {
    let mut worst = (0.0, String::new());
    for name in plain.names() {
        let (a, b) = (ours.get(name).to_kind(Kind::Double), plain.get(name).to_kind(Kind::Double));
        let size = b.abs().max().double_value(&[]);
        assert!(size > 0.0, "{name}: nothing to compare");
        let difference = (a - b).abs().max().double_value(&[]) / size;
        if difference.is_nan() || difference > worst.0 {
            worst = (difference, name.to_owned());
        }
    }
    worst
}
