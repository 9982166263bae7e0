//! Softmax weights of a row of logits in f64: what draws from a categorical distribution need.
//!
//! exp is a polynomial of relative error below 1e-14, written so that it vectorises.

/// Entries whose weights are summed together, so that a draw need not walk the whole row.
pub const SPAN: usize = 256;

/// exp(x) for x ≤ 0, relative error below 1e-14; 0 below −708.
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 · 2^52: adding it rounds to a whole number
    let tiny = x < -708.0;
    let x = if tiny { -708.0 } else { x };
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    // Taylor to r^12/12!: |r| ≤ 0.347, so the rest is below 2e-16.
    let mut p = 1.0 / 479_001_600.0;
    p = p * r + 1.0 / 39_916_800.0;
    p = p * r + 1.0 / 3_628_800.0;
    p = p * r + 1.0 / 362_880.0;
    p = p * r + 1.0 / 40_320.0;
    p = p * r + 1.0 / 5_040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    // The low bits of `shifted` hold n as an integer; moved up they are the exponent of 2^n.
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(0x3ff0_0000_0000_0000));
    if tiny { 0.0 } else { p * scale }
}

/// The largest of `row`, and whether any entry is NaN or +∞.
#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord)] // a NaN must count as bad, and the loop vectorise
fn max_of(row: &[f32]) -> (f32, bool) {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut bad = [false; 16];
    let chunks = row.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..16 {
            let x = chunk[i];
            lanes[i] = if x > lanes[i] { x } else { lanes[i] };
            bad[i] |= !(x < f32::INFINITY);
        }
    }
    for &x in rest {
        lanes[0] = if x > lanes[0] { x } else { lanes[0] };
        bad[0] |= !(x < f32::INFINITY);
    }
    (lanes.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a }), bad.contains(&true))
}

/// Σ exp((x − max)·scale) of each span of `SPAN` entries; the sums replace `out`.
#[inline(always)]
fn sums_of(row: &[f32], max: f32, scale: f64, out: &mut Vec<f64>) {
    out.clear();
    for span in row.chunks(SPAN) {
        let mut lanes = [0f64; 8];
        let chunks = span.chunks_exact(8);
        let rest = chunks.remainder();
        for chunk in chunks {
            for i in 0..8 {
                lanes[i] += exp((f64::from(chunk[i]) - f64::from(max)) * scale);
            }
        }
        let mut sum = lanes.iter().sum::<f64>();
        for &x in rest {
            sum += exp((f64::from(x) - f64::from(max)) * scale);
        }
        out.push(sum);
    }
}

/// Adds exp((x − max)·scale)·factor of each entry to `out`.
#[inline(always)]
fn add_weights_of(row: &[f32], max: f32, scale: f64, factor: f64, out: &mut [f64]) {
    for (out, &x) in out.iter_mut().zip(row) {
        *out += exp((f64::from(x) - f64::from(max)) * scale) * factor;
    }
}

/// Σ e and Σ e·(x − max) with e = exp(x − max).
#[inline(always)]
fn moments_of(row: &[f32], max: f32) -> (f64, f64) {
    let (mut sums, mut dots) = ([0f64; 8], [0f64; 8]);
    let chunks = row.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..8 {
            let x = f64::from(chunk[i]) - f64::from(max);
            let e = exp(x);
            sums[i] += e;
            // exp is 0 where x is −∞, and their product is to be 0 too.
            dots[i] += if e > 0.0 { e * x } else { 0.0 };
        }
    }
    let (mut sum, mut dot) = (sums.iter().sum::<f64>(), dots.iter().sum::<f64>());
    for &x in rest {
        let x = f64::from(x) - f64::from(max);
        let e = exp(x);
        sum += e;
        dot += if e > 0.0 { e * x } else { 0.0 };
    }
    (sum, dot)
}

dispatch!(
    /// Adds exp((logit − max)·scale)·factor of each entry of a row to `out`.
    pub fn add_weights = add_weights_of(
        row: &[f32], max: f32, scale: f64, factor: f64, out: &mut [f64]
    ) -> ()
);
dispatch!(
    /// Σ e and Σ e·(logit − max) of a row, with e = exp(logit − max): what an entropy needs.
    pub fn moments = moments_of(row: &[f32], max: f32) -> (f64, f64)
);
dispatch!(
    /// The largest logit of a row, and whether any is NaN or +∞.
    pub fn row_max = max_of(row: &[f32]) -> (f32, bool)
);
dispatch!(
    /// Σ exp((logit − max)·scale) of each span of [`SPAN`] entries of a row, in f64.
    pub fn span_sums = sums_of(row: &[f32], max: f32, scale: f64, out: &mut Vec<f64>) -> ()
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_at_zero_and_close_everywhere() {
        assert_eq!(exp(0.0), 1.0);
        for i in 0..700_000 {
            let x = -f64::from(i) / 1000.0;
            let error = (exp(x) - x.exp()).abs() / x.exp();
            assert!(error < 1e-14, "exp({x}): relative error {error}");
        }
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
    }

    #[test]
    fn sums_and_largest_are_those_of_plain_loops() {
        let row: Vec<f32> = (0..1003).map(|i| ((i * 37) % 101) as f32 / 7.0).collect();
        let (max, bad) = row_max(&row);
        assert_eq!((max, bad), (100.0 / 7.0, false));
        let mut sums = Vec::new();
        span_sums(&row, max, 0.5, &mut sums);
        assert_eq!(sums.len(), 4);
        let plain: f64 = row.iter().map(|&x| (f64::from(x - max) * 0.5).exp()).sum();
        assert!((sums.iter().sum::<f64>() / plain - 1.0).abs() < 1e-6);
    }

    #[test]
    fn weights_and_moments_are_those_of_plain_loops() {
        let row: Vec<f32> = (0..1003).map(|i| ((i * 37) % 101) as f32 / 7.0).collect();
        let (max, _) = row_max(&row);
        let mut out = vec![1.0; row.len()];
        add_weights(&row, max, 0.5, -2.0, &mut out);
        let (sum, dot) = moments(&row, max);
        let (mut plain_sum, mut plain_dot) = (0.0, 0.0);
        for (&x, &out) in row.iter().zip(&out) {
            let x = f64::from(x) - f64::from(max);
            assert!((out - (1.0 - 2.0 * (x * 0.5).exp())).abs() < 1e-12);
            plain_sum += x.exp();
            plain_dot += x * x.exp();
        }
        assert!((sum / plain_sum - 1.0).abs() < 1e-12 && (dot / plain_dot - 1.0).abs() < 1e-12);
        assert_eq!(moments(&[0.0, f32::NEG_INFINITY], 0.0), (1.0, 0.0));
    }

    #[test]
    fn a_nan_or_an_infinity_is_told_wherever_it_stands() {
        for at in [0, 17, 99] {
            for value in [f32::NAN, f32::INFINITY] {
                let mut row = vec![1f32; 100];
                row[at] = value;
                assert!(row_max(&row).1);
            }
        }
        assert!(!row_max(&[f32::NEG_INFINITY, 0.0]).1);
    }
}
