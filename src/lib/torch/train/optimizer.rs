//! AdamW with clipping and moving averages over flat buffers.

use std::path::Path;

use ao_core::Result;
use ao_core::ema::EmaDecay;
use ao_core::format::checkpoint::CheckpointFile;
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};

use crate::kernels::adamw;
use crate::network::Weights;

/// Settings of AdamW that are the same for every step.
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, on tensors of two and more dimensions.
    pub weight_decay: f64,
    /// Largest norm of all gradients together; 0 for no clipping.
    pub grad_clip: f64,
}

/// A moving average of the weights.
pub struct Average {
    /// Its decay, and whether it warms up.
    pub decay: EmaDecay,
    /// The shadow weights.
    pub weights: Weights,
}

/// The state of the optimizer and of the averages.
pub struct Optimizer {
    settings: AdamW,
    gradients: Weights,
    first: Weights,
    second: Weights,
    /// Updates done.
    pub count: u64,
    /// The averages, each started as a copy of the initial weights.
    pub averages: Vec<Average>,
}

impl Optimizer {
    /// A fresh state for `weights`, whose gradients gather in `gradients`.
    pub fn new(
        settings: AdamW,
        weights: &Weights,
        gradients: Weights,
        decays: &[EmaDecay],
    ) -> Optimizer {
        let averages =
            decays.iter().map(|&decay| Average { decay, weights: weights.like(true) }).collect();
        Optimizer {
            settings,
            first: weights.like(false),
            second: weights.like(false),
            gradients,
            count: 0,
            averages,
        }
    }

    /// The gradient buffer.
    pub fn gradients(&self) -> &Weights {
        &self.gradients
    }

    /// Norm of all gradients together.
    pub fn gradient_norm(&self) -> f64 {
        let flat = self.gradients.flat();
        if let Some(values) = crate::network::slice::<f32>(flat) {
            return adamw::sum_of_squares(values).sqrt();
        }
        flat.dot(flat).to_kind(Kind::Double).double_value(&[]).sqrt()
    }

    /// Sets the gradients to zero.
    pub fn clear_gradients(&self) {
        let _ = self.gradients.flat().shallow_clone().zero_();
    }

    /// One update of `weights` and of every average; the gradients are zero afterwards.
    pub fn step(&mut self, weights: &Weights, lr: f64, norm: f64) {
        self.count += 1;
        let settings = self.settings;
        let clip = settings.grad_clip;
        let gradient_scale = if clip > 0.0 { (clip / (norm + 1e-6)).min(1.0) } else { 1.0 };
        let step = adamw::Step {
            lr,
            beta1: settings.beta1,
            beta2: settings.beta2,
            eps: settings.eps,
            weight_decay: settings.weight_decay,
            decayed: weights.decayed(),
            count: self.count,
            gradient_scale,
        };
        let mut flats: Vec<Tensor> = [weights, &self.gradients, &self.first, &self.second]
            .into_iter()
            .chain(self.averages.iter().map(|a| &a.weights))
            .map(|w| w.flat().shallow_clone())
            .collect();
        let keeps: Vec<f64> = self.averages.iter().map(|a| a.decay.effective(self.count)).collect();
        if on_cpu(&flats[0]) {
            // SAFETY: f32 and contiguous; the buffers are distinct allocations, and no other
            // thread uses them during the call.
            let mut slices = flats
                .iter_mut()
                .filter_map(|t| unsafe { crate::network::slice_mut::<f32>(t) })
                .collect::<Vec<_>>()
                .into_iter();
            let mut next = || slices.next().unwrap_or_default();
            let (parameters, gradients, first, second) = (next(), next(), next(), next());
            let averages = slices.zip(keeps).collect();
            let buffers = adamw::Buffers { parameters, gradients, first, second, averages };
            adamw::step(buffers, step);
        } else {
            tch::no_grad(|| by_operations(&flats, &keeps, &step));
        }
    }

    /// Writes the moments as `exp_avg.NAME` and `exp_avg_sq.NAME`.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write(&self, path: &Path, metadata: &BTreeMap<String, String>) -> Result<()> {
        let parts = [("exp_avg.", &self.first), ("exp_avg_sq.", &self.second)];
        crate::network::write_all(path, metadata, false, &parts)
    }

    /// Reads the moments back.
    ///
    /// # Errors
    /// Missing or mis-shaped tensors, by name.
    pub fn read(&mut self, path: &Path, count: u64) -> Result<()> {
        let file = CheckpointFile::open(path)?;
        self.first.read_prefixed("exp_avg.", &file, path)?;
        self.second.read_prefixed("exp_avg_sq.", &file, path)?;
        self.count = count;
        Ok(())
    }
}

fn on_cpu(flat: &Tensor) -> bool {
    flat.device() == Device::Cpu && flat.kind() == Kind::Float
}

/// The same update in libtorch's operations, in place, for GPUs and f64. `flats` are parameters,
/// gradients, first and second moments, then the averages.
fn by_operations(flats: &[Tensor], keeps: &[f64], step: &adamw::Step) {
    let [p, g, m, v, averages @ ..] = flats else { return };
    let (p, mut g) = (p.shallow_clone(), g.shallow_clone());
    let (mut m, mut v) = (m.shallow_clone(), v.shallow_clone());
    let count = i32::try_from(step.count).unwrap_or(i32::MAX);
    let correction1 = 1.0 - step.beta1.powi(count);
    let correction2 = 1.0 - step.beta2.powi(count);
    let _ = g.g_mul_scalar_(step.gradient_scale);
    let _ = p.narrow(0, 0, step.decayed as i64).g_mul_scalar_(1.0 - step.lr * step.weight_decay);
    let _ = m.lerp_(&g, 1.0 - step.beta1);
    let _ = v.g_mul_scalar_(step.beta2);
    let _ = v.addcmul_(&g, &(&g * (1.0 - step.beta2)));
    let denominator = v.sqrt() / correction2.sqrt() + step.eps;
    let update = &m / denominator * (-step.lr / correction1);
    let _ = p.shallow_clone().g_add_(&update);
    for (average, keep) in averages.iter().zip(keeps) {
        let _ = average.shallow_clone().lerp_(&p, 1.0 - keep);
    }
    let _ = g.zero_();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values between −1 and 1 that no step repeats.
    fn values(count: usize, salt: f64) -> Tensor {
        let list: Vec<f32> =
            (0..count).map(|i| ((i as f64 * 0.7 + salt * 13.0).sin()) as f32).collect();
        Tensor::from_slice(&list)
    }

    /// The kernel of the CPU and the operations of other devices, from the same state: parameters,
    /// gradients, moments and two averages after `steps` updates.
    fn both(steps: u64, norm: f64) -> (Vec<Tensor>, Vec<Tensor>) {
        let count = 10_007;
        let start = |i: usize| match i {
            0 | 4 | 5 => values(count, 0.0),
            _ => Tensor::zeros([count as i64], (Kind::Float, Device::Cpu)),
        };
        let (mut ours, theirs): (Vec<_>, Vec<_>) = (0..6).map(|i| (start(i), start(i))).unzip();
        for k in 1..=steps {
            let clip = 0.5;
            let step = adamw::Step {
                lr: 0.01 / k as f64,
                beta1: 0.9,
                beta2: 0.95,
                eps: 1e-8,
                weight_decay: 0.1,
                decayed: 6_001,
                count: k,
                gradient_scale: (clip / (norm + 1e-6)).min(1.0),
            };
            for list in [&mut ours[1], &mut theirs[1].shallow_clone()] {
                list.copy_(&values(count, k as f64));
            }
            let keeps = [0.9, EmaDecay { decay: 0.999, warmup: true }.effective(k)];
            // SAFETY: f32, contiguous, distinct, and used by this call alone.
            let mut slices = ours
                .iter_mut()
                .filter_map(|t| unsafe { crate::network::slice_mut::<f32>(t) })
                .collect::<Vec<_>>()
                .into_iter();
            let mut next = || slices.next().unwrap();
            let (parameters, gradients, first, second) = (next(), next(), next(), next());
            let averages = slices.zip(keeps).collect();
            let buffers = adamw::Buffers { parameters, gradients, first, second, averages };
            crate::kernels::pool::with_threads(3, || adamw::step(buffers, step));
            tch::no_grad(|| by_operations(&theirs, &keeps, &step));
        }
        (ours, theirs)
    }

    #[test]
    fn the_kernel_and_the_operations_of_other_devices_make_the_same_update() {
        for norm in [0.1, 7.0] {
            let (ours, theirs) = both(20, norm);
            for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
                let difference = (a - b).abs().max().double_value(&[]);
                assert!(difference <= 2e-6, "buffer {i}, norm {norm}: {difference}");
            }
            assert_eq!(ours[1].abs().max().double_value(&[]), 0.0, "gradients are cleared");
            assert!((&ours[0] - &ours[4]).abs().max().double_value(&[]) > 1e-3);
        }
    }
}
