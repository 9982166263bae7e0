//! The steps of a block between its products, on one row of f32: norms, modulation, GELU, softmax,
//! residuals. Plain loops, whose arithmetic and order of sums are the same at every level.

use super::softmax::exp;

/// Σ of(x) over fixed lanes.
#[inline(always)]
fn sum_of(x: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; 16];
    let chunks = x.chunks_exact(16);
    let rest: f32 = chunks.remainder().iter().map(|&x| of(x)).sum();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += of(x);
        }
    }
    lanes.iter().sum::<f32>() + rest
}

#[inline(always)]
fn rms_norm_of(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = sum_of(x, |x| x * x) / x.len() as f32;
    let factor = 1.0 / (mean + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
}

#[inline(always)]
fn layer_norm_of(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = sum_of(x, |x| x) / x.len() as f32;
    let variance = sum_of(x, |x| (x - mean) * (x - mean)) / x.len() as f32;
    let factor = 1.0 / (variance + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = (x - mean) * factor * weight;
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

/// x·σ(z).
#[inline(always)]
fn gated(x: f32, z: f32) -> f32 {
    let e = exp(-z.abs());
    let s = 1.0 / (1.0 + e);
    x * if z < 0.0 { e * s } else { s }
}

/// x·σ(2u), which is x/2·(1 + tanh u), with u = √(2/π)·(x + 0.044715·x³).
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    const ROOT: f32 = 0.797_884_6;
    gated(x, 2.0 * (ROOT * (x + 0.044_715 * x * x * x)))
}

#[inline(always)]
fn gelu_tanh_of(values: &mut [f32]) {
    for x in values {
        *x = gelu_tanh(*x);
    }
}

#[inline(always)]
fn silu_of(values: &mut [f32]) {
    for x in values {
        *x = gated(*x, *x);
    }
}

#[inline(always)]
fn softmax_of(scores: &mut [f32], scale: f32) {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = scores.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    let of = |m: f32, x: &f32| if *x > m { *x } else { m };
    let max = rest.iter().fold(lanes.iter().fold(f32::NEG_INFINITY, of), of);
    let mut sums = [0f32; 16];
    let mut chunks = scores.chunks_exact_mut(16);
    for chunk in &mut chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *x = exp((*x - max) * scale);
            *sum += *x;
        }
    }
    let mut sum: f32 = sums.iter().sum();
    for x in chunks.into_remainder() {
        *x = exp((*x - max) * scale);
        sum += *x;
    }
    let factor = 1.0 / sum;
    for x in scores.iter_mut() {
        *x *= factor;
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
    /// (x − mean(x)) / √(variance(x) + ε) · weight, to `out`.
    pub fn layer_norm = layer_norm_of(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> ()
);
dispatch!(
    /// softmax(scores·scale), in place.
    pub fn softmax = softmax_of(scores: &mut [f32], scale: f32) -> ()
);
dispatch!(
    /// The GELU with a tanh in place of the normal distribution, in place.
    pub fn gelu_tanh_in_place = gelu_tanh_of(values: &mut [f32]) -> ()
);
dispatch!(
    /// x·σ(x), in place.
    pub fn silu_in_place = silu_of(values: &mut [f32]) -> ()
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
    use super::super::simd::tests::at_every_level;
    use super::*;

    /// `of` at every level: near `exact`, and the same to the last bit.
    fn check(case: &str, tolerance: f64, exact: &[f64], mut of: impl FnMut() -> Vec<f32>) {
        let mut first: Option<Vec<f32>> = None;
        at_every_level(|level| {
            let out = of();
            assert_eq!(out.len(), exact.len());
            for (out, exact) in out.iter().zip(exact) {
                let error = (f64::from(*out) - exact).abs();
                assert!(error < tolerance, "{case} at {}: {out} {exact}", level.name());
            }
            assert_eq!(*first.get_or_insert(out.clone()), out, "{case}: levels differ");
        });
    }

    #[test]
    fn gelus_and_silu_are_those_of_their_formulas_at_every_level() {
        // Φ by integrating its density from −12 with Simpson's rule.
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (h, mut phi) = (1e-3, 0.0);
        let (mut inputs, mut exact, mut with_tanh, mut silu) = (vec![], vec![], vec![], vec![]);
        for i in 0..18_000 {
            let x = -12.0 + f64::from(i) * h;
            inputs.push(x as f32);
            exact.push(x * phi);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            with_tanh.push(0.5 * x * (1.0 + u.tanh()));
            silu.push(x / (1.0 + (-x).exp()));
            phi += h / 6.0 * (density(x) + 4.0 * density(x + h / 2.0) + density(x + h));
        }
        let on = |of: fn(&mut [f32])| {
            let mut values = inputs.clone();
            of(&mut values);
            values
        };
        check("gelu", 1e-6, &exact, || on(gelu_in_place));
        check("gelu with tanh", 2e-6, &with_tanh, || on(gelu_tanh_in_place));
        check("silu", 2e-6, &silu, || on(silu_in_place));
    }

    #[test]
    fn norms_softmax_and_sums_are_those_of_plain_loops_at_every_level() {
        for count in [1, 8, 16, 37, 384] {
            let numbers = |step: usize| -> Vec<f32> {
                (0..count).map(|i| ((i * step) % 97) as f32 / 30.0 - 1.0).collect()
            };
            let (x, weight, more) = (numbers(31), numbers(57), numbers(11));
            let wide = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
            let (wx, ww, wm) = (wide(&x), wide(&weight), wide(&more));
            let mean =
                |v: &dyn Fn(f64) -> f64| wx.iter().map(|&x| v(x)).sum::<f64>() / count as f64;
            let each = |of: &dyn Fn(usize) -> f64| (0..count).map(of).collect::<Vec<f64>>();
            let to_out = |of: &dyn Fn(&mut [f32])| {
                let mut out = vec![0.0; count];
                of(&mut out);
                out
            };
            let in_place = |of: &dyn Fn(&mut [f32])| {
                let mut out = x.clone();
                of(&mut out);
                out
            };

            let root = (mean(&|x| x * x) + 1e-5).sqrt();
            check("RMSNorm", 1e-5, &each(&|i| wx[i] / root * ww[i]), || {
                to_out(&|out| rms_norm(&x, &weight, 1e-5, out))
            });
            let m = mean(&|x| x);
            let root = (mean(&|x| (x - m) * (x - m)) + 1e-5).sqrt();
            check("LayerNorm", 2e-5, &each(&|i| (wx[i] - m) / root * ww[i]), || {
                to_out(&|out| layer_norm(&x, &weight, 1e-5, out))
            });
            let total = mean(&|x| (0.3 * x).exp()) * count as f64;
            check("softmax", 1e-6, &each(&|i| (0.3 * wx[i]).exp() / total), || {
                in_place(&|x| softmax(x, 0.3))
            });
            check("modulation", 1e-5, &each(&|i| ww[i] + wx[i] * wm[i]), || {
                in_place(&|x| modulate(x, &weight, &more))
            });
            check("gate", 1e-5, &each(&|i| wx[i] + ww[i] * wm[i]), || {
                in_place(&|x| add_gated(x, &weight, &more))
            });
            check("sum", 1e-6, &each(&|i| wx[i] + wm[i]), || in_place(&|x| add(x, &more)));
        }
    }
}
