//! Floating-point operations: what a token costs, and what the machine can do.

use std::str::FromStr;
use std::time::Instant;

use ao_core::config::{Family, ModelConfig};
use serde::Serialize;
use tch::{Kind, Tensor};

use crate::device::Place;

/// Operations of training on one token, forward and backward: 6·N + 12·L·C·T, with N the elements
/// of the matrices that every token is multiplied with (attention, MLP, head; of encoders half the
/// head, as half of the tokens are masked on average and the others do not go through it). Looking
/// up tables, norms and adaLN, which is computed once per position and not per token, are not counted.
///
/// Source: PaLM (arXiv 2204.02311), appendix B; the attention term is that of all T positions,
/// though a causal row sees half of them on average, so that figures compare.
pub fn per_token(config: &ModelConfig) -> f64 {
    let (l, c, t) = (config.n_layer() as f64, config.n_embd() as f64, config.block_size() as f64);
    let (blocks, head) = matmul_elements(config);
    let head_share = if config.family() == Family::Encoder { 0.5 } else { 1.0 };
    6.0 * (blocks as f64 + head_share * head as f64) + 12.0 * l * c * t
}

/// Elements of the matrices of all blocks, and of the head.
fn matmul_elements(config: &ModelConfig) -> (u64, u64) {
    let table = config.parameters();
    let count = |chosen: &dyn Fn(&str) -> bool| -> u64 {
        let matrices = table.iter().filter(|p| p.shape.len() == 2 && chosen(&p.name));
        matrices.map(|p| p.count() as u64).sum()
    };
    let blocks = count(&|name| {
        let block = name.starts_with("transformer.h.") || name.starts_with("blocks.");
        block && (name.contains("attn") || name.contains("mlp."))
    });
    let own = count(&|name| ["lm_head.weight", "output_layer.linear.weight"].contains(&name));
    let tied = (config.vocab_size() * config.n_embd()) as u64;
    (blocks, if config.tied().is_some() { tied } else { own })
}

/// `--peak-tflops`: what mfu is measured against.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PeakTflops {
    /// So many 10¹² operations a second.
    Given(f64),
    /// What a matrix product of the compute kind reaches at the start of the run.
    Measure,
}

impl FromStr for PeakTflops {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "measure" {
            return Ok(PeakTflops::Measure);
        }
        match text.parse::<f64>() {
            Ok(x) if x.is_finite() && x > 0.0 => Ok(PeakTflops::Given(x)),
            _ => Err("must be a number above 0, or measure".into()),
        }
    }
}

impl std::fmt::Display for PeakTflops {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            PeakTflops::Given(x) => write!(f, "{x}"),
            PeakTflops::Measure => write!(f, "measure"),
        }
    }
}

impl Serialize for PeakTflops {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// A ceiling: 10¹² operations a second, and how it is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ceiling {
    /// 10¹² operations a second.
    pub tflops: f64,
    /// Side of the square matrices that were multiplied; null where the figure was given.
    pub matrix_side: Option<i64>,
    /// Seconds that measuring took; null where the figure was given.
    pub measured_seconds: Option<f64>,
}

impl Ceiling {
    /// The figure given, or one measured on `place`.
    pub fn of(peak: PeakTflops, place: &Place) -> Ceiling {
        match peak {
            PeakTflops::Given(tflops) => {
                Ceiling { tflops, matrix_side: None, measured_seconds: None }
            }
            PeakTflops::Measure => measure(place),
        }
    }

    /// As words.
    pub fn describe(&self) -> String {
        match (self.matrix_side, self.measured_seconds) {
            (Some(side), Some(seconds)) => format!(
                "{:.3} TFLOP/s, the best product of {side} x {side} matrices in {seconds:.1} s",
                self.tflops
            ),
            _ => format!("{} TFLOP/s, as given", self.tflops),
        }
    }
}

/// Seconds that the repetitions take.
const MEASURE_SECONDS: f64 = 0.4;

/// Multiplies square matrices that grow until a product takes long enough to time, then takes the
/// best of some: a ceiling is what the machine can do, not what it does while disturbed.
fn measure(place: &Place) -> Ceiling {
    tch::no_grad(|| {
        let started = Instant::now();
        let options = (place.compute, place.device);
        let largest = if place.device.is_cuda() { 8192 } else { 2048 };
        let mut side = 512;
        loop {
            // Values of a plain size: zeros and denormals have a speed of their own.
            let a = (Tensor::rand([side, side], (Kind::Float, place.device)) - 0.5)
                .to_kind(place.compute);
            let b = a.tr().contiguous();
            let out = Tensor::zeros([side, side], options);
            let product = || {
                let started = Instant::now();
                let _ = a.mm_out(&out, &b);
                // Reading an element waits for the product where it was only queued.
                let _ = out.get(0).get(0).double_value(&[]);
                started.elapsed().as_secs_f64()
            };
            product(); // buffers and threads come to be
            let mut best = product();
            if best < 0.02 && side < largest {
                side *= 2;
                continue;
            }
            let repeated = Instant::now();
            while repeated.elapsed().as_secs_f64() < MEASURE_SECONDS {
                best = best.min(product());
            }
            return Ceiling {
                tflops: 2.0 * (side as f64).powi(3) / best.max(1e-12) / 1e12,
                matrix_side: Some(side),
                measured_seconds: Some(started.elapsed().as_secs_f64()),
            };
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_token_costs_six_operations_a_matrix_element_and_attention() {
        let config = |arch: &str| {
            ModelConfig::from_json(&json!({"arch": arch, "block_size": 1024, "vocab_size": 50304,
                "n_layer": 12, "n_head": 12, "n_embd": 768}))
            .unwrap()
        };
        let matrices = 12.0 * 12.0 * 768.0 * 768.0 + 50304.0 * 768.0;
        let expected = 6.0 * matrices + 12.0 * 12.0 * 768.0 * 1024.0;
        // The head is counted once, tied or not.
        assert_eq!(per_token(&config("ao-gpt")), expected);
        assert_eq!(per_token(&config("sigma-gpt")), expected);
        // Masked diffusion: half the head, whose rows are the real ids and the mask.
        let head = 0.5 * 50305.0 * 768.0;
        let encoder = 6.0 * (12.0 * 12.0 * 768.0 * 768.0 + head) + 12.0 * 12.0 * 768.0 * 1024.0;
        assert_eq!(per_token(&config("radd")), encoder);
    }

    #[test]
    fn a_peak_is_a_number_or_the_word() {
        assert_eq!("312".parse(), Ok(PeakTflops::Given(312.0)));
        assert_eq!("measure".parse(), Ok(PeakTflops::Measure));
        for wrong in ["0", "-1", "nan", "inf", "fast"] {
            assert!(wrong.parse::<PeakTflops>().is_err(), "{wrong}");
        }
    }
}
