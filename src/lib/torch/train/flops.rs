//! Peak speed of the machine, in floating-point operations a second.

use std::str::FromStr;
use std::time::Instant;

use serde::Serialize;
use tch::{Kind, Tensor};

use crate::device::Runtime;

/// `--peak-tflops`: the peak that `mfu` is a fraction of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PeakTflops {
    /// This many 10¹² operations a second.
    Given(f64),
    /// The speed of a matrix product in the compute precision, measured at the start of the run.
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

/// A peak speed in 10¹² operations a second, and how it is known.
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
    /// The figure given, or one measured on `runtime`.
    pub fn of(peak: PeakTflops, runtime: &Runtime) -> Ceiling {
        match peak {
            PeakTflops::Given(tflops) => {
                Ceiling { tflops, matrix_side: None, measured_seconds: None }
            }
            PeakTflops::Measure => measure(runtime),
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
/// best of several runs. The best is what the machine can do when nothing disturbs it.
fn measure(runtime: &Runtime) -> Ceiling {
    tch::no_grad(|| {
        let started = Instant::now();
        let options = (runtime.compute, runtime.device);
        let largest = if runtime.device.is_cuda() { 8192 } else { 2048 };
        let mut side = 512;
        loop {
            // Values of ordinary size: zeros and denormals have another speed.
            let a = (Tensor::rand([side, side], (Kind::Float, runtime.device)) - 0.5)
                .to_kind(runtime.compute);
            let b = a.tr().contiguous();
            let out = Tensor::zeros([side, side], options);
            let product = || {
                let started = Instant::now();
                let _ = a.mm_out(&out, &b);
                // Reading an element waits for the product, which may only be queued.
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

    #[test]
    fn a_peak_is_a_number_or_the_word() {
        assert_eq!("312".parse(), Ok(PeakTflops::Given(312.0)));
        assert_eq!("measure".parse(), Ok(PeakTflops::Measure));
        for wrong in ["0", "-1", "nan", "inf", "fast"] {
            assert!(wrong.parse::<PeakTflops>().is_err(), "{wrong}");
        }
    }
}
