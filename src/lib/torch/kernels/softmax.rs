//! Exponentials over the vocabulary, row by row: NLL of the target and score entropy, with their
//! gradients in place.
//!
//! The logits of a row are read twice while they are hot in the cache. exp is a polynomial of
//! relative error below 2e-7; exp(0) is exactly 1, so a row of equal logits gives exactly ln V.
//! Every row is computed alone and in one fixed order of additions, so results do not depend on
//! the number of threads or rows.

use half::bf16;

use super::pool;

/// A number type that logits are stored in.
pub trait Logit: Copy + Send + Sync {
    /// To f32.
    fn get(self) -> f32;
    /// From f32, rounded to nearest.
    fn put(x: f32) -> Self;
}

impl Logit for f32 {
    #[inline(always)]
    fn get(self) -> f32 {
        self
    }
    #[inline(always)]
    fn put(x: f32) -> f32 {
        x
    }
}

impl Logit for bf16 {
    #[inline(always)]
    fn get(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn put(x: f32) -> bf16 {
        // Round to nearest even; a NaN keeps its exponent and stays a NaN.
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        bf16::from_bits((if x.is_nan() { bits | 0x40_0000 } else { rounded } >> 16) as u16)
    }
}

/// Lanes that a row is summed in: one fixed order of additions, wide enough for AVX-512.
const LANES: usize = 32;

/// exp(x) for x ≤ 0, relative error below 2e-7.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to a whole number
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5e-1;
    let p = (p * r * r + r) + 1.0;
    // The low bits of `shifted` hold n as an integer; moved up they are the exponent of 2^n.
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    p * scale
}

/// The largest logit and the sum of exp(logit − largest).
#[inline(always)]
pub(super) fn max_and_sum<T: Logit>(row: &[T]) -> (f32, f64) {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks.clone() {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            let x = x.get();
            *lane = if x > *lane { x } else { *lane };
        }
    }
    let mut max = lanes.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    for x in rest {
        let x = x.get();
        max = if x > max { x } else { max };
    }
    let mut sums = [0f32; LANES];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += exp(x.get() - max);
        }
    }
    let mut sum: f64 = sums.iter().map(|&x| f64::from(x)).sum();
    for x in rest {
        sum += f64::from(exp(x.get() - max));
    }
    (max, sum) // the comparisons skip a NaN, the sum does not: exp(NaN) is one
}

/// −ln softmax(row)[target], in nats.
#[inline(always)]
fn nll<T: Logit>(row: &[T], target: usize) -> f64 {
    let (max, sum) = max_and_sum(row);
    sum.ln() + (f64::from(max) - f64::from(row[target].get()))
}

/// As [`nll`], and the row becomes (softmax − onehot) · scale.
#[inline(always)]
fn nll_and_gradient<T: Logit>(row: &mut [T], target: usize, scale: f32) -> f64 {
    let (max, sum) = max_and_sum(row);
    let nll = sum.ln() + (f64::from(max) - f64::from(row[target].get()));
    let factor = (f64::from(scale) / sum) as f32;
    for x in row.iter_mut() {
        *x = T::put(exp(x.get() - max) * factor);
    }
    let probability = (-nll).exp();
    row[target] = T::put(((probability - 1.0) * f64::from(scale)) as f32);
    nll
}

/// `Σ e^u − u[target] − 1` with u = row − shift: SEDD's score entropy, in units of a = 1/(e^σ − 1).
#[inline(always)]
fn entropy<T: Logit>(row: &[T], target: usize, shift: f64) -> f64 {
    let (max, sum) = max_and_sum(row);
    sum * (f64::from(max) - shift).exp() - (f64::from(row[target].get()) - shift) - 1.0
}

/// As [`entropy`], and the row becomes (e^u − onehot) · scale.
#[inline(always)]
fn entropy_and_gradient<T: Logit>(row: &mut [T], target: usize, shift: f64, scale: f32) -> f64 {
    let (max, sum) = max_and_sum(row);
    let total = (f64::from(max) - shift).exp();
    let u = f64::from(row[target].get()) - shift;
    let factor = (f64::from(scale) * total) as f32;
    for x in row.iter_mut() {
        *x = T::put(exp(x.get() - max) * factor);
    }
    row[target] = T::put((u.exp_m1() * f64::from(scale)) as f32);
    sum * total - u - 1.0
}

dispatch!(fn nll_fast<T: Logit> = nll(row: &[T], target: usize) -> f64);
dispatch!(
    fn gradient_fast<T: Logit> = nll_and_gradient(row: &mut [T], target: usize, scale: f32) -> f64
);
dispatch!(
    fn entropy_fast<T: Logit> = entropy(row: &[T], target: usize, shift: f64) -> f64
);
dispatch!(
    fn entropy_gradient_fast<T: Logit> =
        entropy_and_gradient(row: &mut [T], target: usize, shift: f64, scale: f32) -> f64
);

/// NLL of each row's target, in nats; a negative target is not counted and gives 0.
///
/// `logits` holds `targets.len()` rows of `width` each.
///
/// # Panics
/// When a target is not below `width`, or the sizes differ.
pub fn nll_rows<T: Logit>(logits: &[T], width: usize, targets: &[i64]) -> Vec<f64> {
    read_rows(logits, width, targets, |row, target, _| nll_fast(row, target))
}

/// Score entropy of each row, `Σ e^u − u[target] − 1` with u = logits − `shifts[row]`; a negative
/// target is not counted and gives 0.
///
/// # Panics
/// As [`nll_rows`].
pub fn entropy_rows<T: Logit>(
    logits: &[T],
    width: usize,
    targets: &[i64],
    shifts: &[f64],
) -> Vec<f64> {
    assert_eq!(shifts.len(), targets.len());
    read_rows(logits, width, targets, |row, target, i| entropy_fast(row, target, shifts[i]))
}

/// NLL of each row's target, and the logits become their gradient, (softmax − onehot) ·
/// `scales[row]`; a row with a negative target is not counted: NLL 0, gradient 0.
///
/// # Panics
/// As [`nll_rows`].
pub fn gradient_rows<T: Logit>(
    logits: &mut [T],
    width: usize,
    targets: &[i64],
    scales: &[f64],
) -> Vec<f64> {
    assert_eq!(scales.len(), targets.len());
    write_rows(logits, width, targets, |row, target, i| {
        gradient_fast(row, target, scales[i] as f32)
    })
}

/// As [`entropy_rows`], and the logits become the gradient, (e^u − onehot) · `scales[row]`.
///
/// # Panics
/// As [`nll_rows`].
pub fn entropy_gradient_rows<T: Logit>(
    logits: &mut [T],
    width: usize,
    targets: &[i64],
    shifts: &[f64],
    scales: &[f64],
) -> Vec<f64> {
    assert_eq!((shifts.len(), scales.len()), (targets.len(), targets.len()));
    write_rows(logits, width, targets, |row, target, i| {
        entropy_gradient_fast(row, target, shifts[i], scales[i] as f32)
    })
}

/// Calls `each` with every counted row, its target and its number.
fn read_rows<T: Logit>(
    logits: &[T],
    width: usize,
    targets: &[i64],
    each: impl Fn(&[T], usize, usize) -> f64 + Sync,
) -> Vec<f64> {
    assert_eq!(logits.len(), width * targets.len());
    let mut out = vec![0.0; targets.len()];
    let rows = pool::piece(targets.len(), 2);
    pool::each(out.chunks_mut(rows).enumerate().collect(), &|(i, out): (usize, &mut [f64])| {
        for (row, out) in (i * rows..).zip(out) {
            if let Ok(target) = usize::try_from(targets[row]) {
                *out = each(&logits[row * width..(row + 1) * width], target, row);
            }
        }
    });
    out
}

/// As [`read_rows`], for rows that `each` replaces; rows that are not counted become 0.
fn write_rows<T: Logit>(
    logits: &mut [T],
    width: usize,
    targets: &[i64],
    each: impl Fn(&mut [T], usize, usize) -> f64 + Sync,
) -> Vec<f64> {
    assert_eq!(logits.len(), width * targets.len());
    let mut out = vec![0.0; targets.len()];
    let rows = pool::piece(targets.len(), 2);
    let pieces = out.chunks_mut(rows).zip(logits.chunks_mut((rows * width).max(1)));
    pool::each(pieces.enumerate().collect(), &|(i, (out, logits)): (
        usize,
        (&mut [f64], &mut [T]),
    )| {
        for ((row, out), logits) in (i * rows..).zip(out).zip(logits.chunks_exact_mut(width)) {
            match usize::try_from(targets[row]) {
                Ok(target) => *out = each(logits, target, row),
                Err(_) => logits.fill(T::put(0.0)),
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_at_zero_and_close_everywhere() {
        assert_eq!(exp(0.0), 1.0);
        for i in 0..87_000 {
            let x = -(i as f32) / 1000.0;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2e-7, "exp({x}): relative error {error}");
        }
    }

    #[test]
    fn equal_logits_give_exactly_ln_v_at_every_level() {
        super::super::simd::tests::at_every_level(|_| {
            for width in [3, 64, 50_304] {
                let nll = nll_rows(&vec![0f32; width * 2], width, &[0, -1]);
                assert_eq!(nll, [(width as f64).ln(), 0.0]);
            }
        });
    }

    #[test]
    fn rows_are_the_same_on_any_number_of_threads() {
        let (width, rows) = (13, 29);
        let logits: Vec<f32> = (0..width * rows).map(|i| ((i * 37) % 23) as f32 / 5.0).collect();
        let targets: Vec<i64> = (0..rows as i64).map(|i| i % 14 - 1).collect();
        let on = |threads| {
            pool::with_threads(threads, || {
                let mut gradient = logits.clone();
                let scales = vec![0.5; rows];
                let nll = gradient_rows(&mut gradient, width, &targets, &scales);
                assert_eq!(nll, nll_rows(&logits, width, &targets));
                (nll, gradient)
            })
        };
        assert_eq!(on(1), on(3));
    }

    #[test]
    fn the_gradient_is_that_of_the_nll() {
        let width = 71;
        let logits: Vec<f32> = (0..width).map(|i| ((i * 37) % 23) as f32 / 5.0).collect();
        let mut gradient = logits.clone();
        let nll = gradient_rows(&mut gradient, width, &[5], &[0.5])[0];
        assert_eq!(nll, nll_rows(&logits, width, &[5])[0]);
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        for (i, &g) in gradient.iter().enumerate() {
            let p = f64::from(logits[i]).exp() / sum;
            let exact = 0.5 * (p - f64::from(u8::from(i == 5)));
            assert!((f64::from(g) - exact).abs() < 1e-7, "{i}: {g} {exact}");
        }
    }

    #[test]
    fn score_entropy_is_that_of_the_formula_and_the_nll_where_scores_are_normalised() {
        let width = 71;
        let mut logits: Vec<f32> = (0..width).map(|i| ((i * 37) % 23) as f32 / 5.0).collect();
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        // Where Σ e^u = 1 nothing but −u[target] is left.
        let nll = nll_rows(&logits, width, &[5])[0];
        let entropy = entropy_rows(&logits, width, &[5], &[sum.ln()])[0];
        assert!((nll - entropy).abs() < 1e-6, "{nll} {entropy}");
        let (shift, scale) = (2.5, 0.5);
        let u: Vec<f64> = logits.iter().map(|&x| f64::from(x) - shift).collect();
        let exact = u.iter().map(|u| u.exp()).sum::<f64>() - u[5] - 1.0;
        let entropy = entropy_rows(&logits, width, &[5], &[shift])[0];
        assert!((entropy / exact - 1.0).abs() < 1e-6, "{entropy} {exact}");
        let again = entropy_gradient_rows(&mut logits, width, &[5], &[shift], &[scale])[0];
        assert_eq!(again, entropy);
        for (i, (&g, u)) in logits.iter().zip(&u).enumerate() {
            let exact = scale * (u.exp() - f64::from(u8::from(i == 5)));
            assert!((f64::from(g) - exact).abs() < 1e-6, "{i}: {g} {exact}");
        }
    }

    #[test]
    fn a_nan_logit_gives_a_nan_nll() {
        let mut logits = vec![0f32; 100];
        logits[98] = f32::NAN;
        assert!(nll_rows(&logits, 100, &[0])[0].is_nan());
        logits[98] = 0.0;
        logits[3] = f32::NAN;
        assert!(nll_rows(&logits, 100, &[0])[0].is_nan());
    }

    #[test]
    fn bf16_rounds_to_nearest_even_as_the_half_crate_does() {
        for x in [1.0f32, -2.7, 3.25, 1e-30, 65_504.0, 0.333_333_34, f32::INFINITY] {
            assert_eq!(<bf16 as Logit>::put(x), bf16::from_f32(x), "{x}");
        }
        assert!(<bf16 as Logit>::put(f32::NAN).is_nan());
    }
}
