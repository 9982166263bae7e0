//! One row's attention over cached keys and values, and the elementwise steps around it.
//!
//! Sums run over fixed lanes in a fixed order, so a row's result depends on it alone.

use super::matmul::Element;
use super::softmax::exp;

#[cfg(target_arch = "x86_64")]
use super::matmul::{ALL, LANES, sums, tail_mask};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// q·k of each of the `count` keys (count, hs), to `scores`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn dots<T: Element>(q: &[f32], keys: *const T, count: usize, scores: &mut [f32]) {
    let hs = q.len();
    let whole = hs / LANES * LANES;
    let mut start = 0;
    while start < count {
        let slots = LANES.min(count - start);
        // SAFETY: the caller's word: `count` keys of hs elements.
        unsafe {
            let mut acc = [_mm512_setzero_ps(); LANES];
            for (slot, acc) in acc.iter_mut().enumerate().take(slots) {
                let key = keys.add((start + slot) * hs);
                let mut at = 0;
                while at < whole {
                    let q = _mm512_loadu_ps(q.as_ptr().add(at));
                    *acc = _mm512_fmadd_ps(T::load(key.add(at), ALL), q, *acc);
                    at += LANES;
                }
                if whole < hs {
                    let mask = tail_mask(hs);
                    let q = f32::load(q.as_ptr().add(whole), mask);
                    *acc = _mm512_fmadd_ps(T::load(key.add(whole), mask), q, *acc);
                }
            }
            let mask = if slots == LANES { ALL } else { tail_mask(slots) };
            _mm512_mask_storeu_ps(scores.as_mut_ptr().add(start), mask, sums(&acc));
        }
        start += slots;
    }
}

/// Σ weight·value of the `weights.len()` values (count, hs), to `out` (hs).
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn mix<T: Element>(weights: &[f32], values: *const T, out: &mut [f32]) {
    let hs = out.len();
    let mut at = 0;
    // Two vectors of the width at a time, each in two sums, so that additions overlap.
    while at < hs {
        let left = hs - at;
        let mask = |from: usize| match left.saturating_sub(from) {
            0 => 0,
            n if n >= LANES => ALL,
            n => tail_mask(n),
        };
        let (first, second) = (mask(0), mask(LANES));
        // SAFETY: the caller's word; masked lanes are not read.
        unsafe {
            let zero = _mm512_setzero_ps();
            let (mut even, mut odd) = ([zero; 2], [zero; 2]);
            for (slot, &weight) in weights.iter().enumerate() {
                let value = values.add(slot * hs + at);
                let weight = _mm512_set1_ps(weight);
                let acc = if slot % 2 == 0 { &mut even } else { &mut odd };
                acc[0] = _mm512_fmadd_ps(T::load(value, first), weight, acc[0]);
                if second != 0 {
                    let value = value.add(LANES);
                    acc[1] = _mm512_fmadd_ps(T::load(value, second), weight, acc[1]);
                }
            }
            let out = out.as_mut_ptr().add(at);
            _mm512_mask_storeu_ps(out, first, _mm512_add_ps(even[0], odd[0]));
            if second != 0 {
                let sum = _mm512_add_ps(even[1], odd[1]);
                _mm512_mask_storeu_ps(out.add(LANES), second, sum);
            }
        }
        at += 2 * LANES;
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn dots<T: Element>(_: &[f32], _: *const T, _: usize, _: &mut [f32]) {
    unreachable!("`available` says no");
}
#[cfg(not(target_arch = "x86_64"))]
unsafe fn mix<T: Element>(_: &[f32], _: *const T, _: &mut [f32]) {
    unreachable!("`available` says no");
}

/// The keys and values of one head of one sequence, (slots, hs) each.
#[derive(Clone, Copy)]
pub struct HeadCache<T> {
    /// Keys.
    pub keys: *mut T,
    /// Values.
    pub values: *mut T,
    /// Slots that there is memory for.
    pub slots: usize,
}

// SAFETY: it is a place; who reads or writes there gives a word of their own.
unsafe impl<T: Send> Send for HeadCache<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for HeadCache<T> {}

impl<T: Element> HeadCache<T> {
    /// Writes a key and a value (hs) into a slot.
    ///
    /// # Safety
    /// The memory must hold `slots` slots of this width, and nothing else may use the slot now.
    ///
    /// # Panics
    /// When the slot is beyond the memory.
    pub unsafe fn put(&self, slot: usize, key: &[f32], value: &[f32]) {
        assert!(slot < self.slots && key.len() == value.len());
        let start = slot * key.len();
        for (i, (&key, &value)) in key.iter().zip(value).enumerate() {
            // SAFETY: in the memory, by the assertion and the caller's word.
            unsafe {
                self.keys.add(start + i).write(T::put(key));
                self.values.add(start + i).write(T::put(value));
            }
        }
    }
}

/// Attention of one query (hs): softmax(q·kᵀ/√hs)·v over the slots before `visible` and the slot
/// `own`, to `out` (hs).
///
/// # Safety
/// The memory must hold `cache.slots` slots that nothing writes meanwhile, and the machine must have
/// [`super::matmul::available`] vectors.
///
/// # Panics
/// When a slot is beyond the memory.
pub unsafe fn attend<T: Element>(
    q: &[f32],
    cache: HeadCache<T>,
    (visible, own): (usize, usize),
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    assert!(visible < cache.slots.max(1) && own < cache.slots && visible <= own);
    let hs = q.len();
    scores.clear();
    scores.resize(visible + 1, 0.0);
    // A row that sees all slots up to its own reads one range, another a range and its own slot.
    let joined = visible == own;
    // SAFETY: the slots are in the memory, by the assertion and the caller's word.
    unsafe {
        if joined {
            dots(q, cache.keys, visible + 1, scores);
        } else {
            dots(q, cache.keys, visible, scores);
            dots(q, cache.keys.add(own * hs), 1, &mut scores[visible..]);
        }
        softmax(scores, 1.0 / (hs as f32).sqrt());
        if joined {
            mix(scores, cache.values, out);
        } else {
            mix(&scores[..visible], cache.values, out);
            add_scaled(out, cache.values.add(own * hs), scores[visible]);
        }
    }
}

/// out + weight·value, in place.
unsafe fn add_scaled<T: Element>(out: &mut [f32], value: *const T, weight: f32) {
    for (i, out) in out.iter_mut().enumerate() {
        // SAFETY: the caller's word: as many elements as `out` has.
        *out += unsafe { *value.add(i) }.get() * weight;
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
    /// softmax(scores·scale), in place.
    fn softmax = softmax_of(scores: &mut [f32], scale: f32) -> ()
);
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
    use super::super::matmul::available;
    use super::super::softmax::Logit;
    use super::*;
    use half::bf16;

    fn numbers(count: usize, factor: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * factor) % 101) as f32 / 25.0 - 2.0).collect()
    }

    fn check<T: Element>(hs: usize, slots: usize, seen: (usize, usize)) {
        let q = numbers(hs, 7);
        let mut keys: Vec<T> = numbers(slots * hs, 31).into_iter().map(T::put).collect();
        let mut values: Vec<T> = numbers(slots * hs, 17).into_iter().map(T::put).collect();
        let cache = HeadCache { keys: keys.as_mut_ptr(), values: values.as_mut_ptr(), slots };
        let (mut scores, mut out) = (Vec::new(), vec![9.0; hs]);
        // SAFETY: the memory is there, and `available` was asked.
        unsafe { attend(&q, cache, seen, &mut scores, &mut out) };
        let slots: Vec<usize> = (0..seen.0).chain([seen.1]).collect();
        let dot = |s: usize| -> f64 {
            (0..hs).map(|i| f64::from(q[i]) * f64::from(keys[s * hs + i].get())).sum()
        };
        let weight = |s: usize| (dot(s) / (hs as f64).sqrt()).exp();
        let total: f64 = slots.iter().map(|&s| weight(s)).sum();
        for (i, &out) in out.iter().enumerate() {
            let exact: f64 = slots
                .iter()
                .map(|&s| weight(s) / total * f64::from(values[s * hs + i].get()))
                .sum();
            assert!((f64::from(out) - exact).abs() < 1e-5, "hs {hs}, {seen:?}: {out} {exact}");
        }
    }

    #[test]
    fn attention_is_that_of_plain_loops_for_every_width_and_view() {
        if !available() {
            eprintln!("skipped: no AVX-512 here");
            return;
        }
        for hs in [8, 16, 24, 40, 64] {
            for seen in [(0, 0), (0, 3), (5, 5), (16, 16), (17, 30), (32, 33), (39, 39)] {
                check::<f32>(hs, 40, seen);
                check::<bf16>(hs, 40, seen);
            }
        }
    }

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
