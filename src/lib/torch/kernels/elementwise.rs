//! The steps of a block between its products, on one row of f32: norms, modulation, GELU, residuals.

use super::softmax::exp;

#[inline(always)]
fn rms_norm_of(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mut lanes = [0f32; 16];
    let chunks = x.chunks_exact(16);
    let rest: f32 = chunks.remainder().iter().map(|x| x * x).sum();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x * x;
        }
    }
    let mean = (lanes.iter().sum::<f32>() + rest) / x.len() as f32;
    let factor = 1.0 / (mean + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
}

#[inline(always)]
fn modulate_by(x: &mut [f32], shift: &[f32], scale: &[f32]) {
    for ((x, shift), scale) in x.iter_mut().zip(shift).zip(scale) {
        *x = shift + *x * scale;
    }
}

/// x·Φ(x), Φ by equation 7.1.26 of Abramowitz and Stegun: absolute error of Φ below 1.5e-7, and for
/// negative x without cancellation.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let mut p = 1.061_405_4;
    p = p * t - 1.453_152;
    p = p * t + 1.421_413_8;
    p = p * t - 0.284_496_74;
    p = p * t + 0.254_829_6;
    let tail = 0.5 * p * t * exp(-z * z); // Φ(−|x|)
    x * if x < 0.0 { tail } else { 1.0 - tail }
}

#[inline(always)]
fn gelu_of(values: &mut [f32]) {
    for x in values {
        *x = gelu(*x);
    }
}

#[inline(always)]
fn add_to(values: &mut [f32], more: &[f32]) {
    for (x, more) in values.iter_mut().zip(more) {
        *x += more;
    }
}

#[inline(always)]
fn gate_into(x: &mut [f32], gate: &[f32], values: &[f32]) {
    for ((x, gate), value) in x.iter_mut().zip(gate).zip(values) {
        *x += gate * value;
    }
}

dispatch!(
    /// x / √(mean(x²) + ε) · weight, to `out`.
    pub fn rms_norm = rms_norm_of(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> ()
);
dispatch!(
    /// shift + x·scale, in place.
    pub fn modulate = modulate_by(x: &mut [f32], shift: &[f32], scale: &[f32]) -> ()
);
dispatch!(
    /// The exact GELU, x·Φ(x), in place.
    pub fn gelu_in_place = gelu_of(values: &mut [f32]) -> ()
);
dispatch!(
    /// values + more, in place.
    pub fn add = add_to(values: &mut [f32], more: &[f32]) -> ()
);
dispatch!(
    /// x + gate·values, in place.
    pub fn add_gated = gate_into(x: &mut [f32], gate: &[f32], values: &[f32]) -> ()
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_is_x_times_the_normal_distribution() {
        // Φ by integrating its density from −12 with Simpson's rule.
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (h, mut phi) = (1e-3, 0.0);
        for i in 0..18_000 {
            let x = -12.0 + f64::from(i) * h;
            let mut value = [x as f32];
            gelu_in_place(&mut value);
            assert!((f64::from(value[0]) - x * phi).abs() < 1e-6, "gelu({x}) = {}", value[0]);
            phi += h / 6.0 * (density(x) + 4.0 * density(x + h / 2.0) + density(x + h));
        }
    }
}
