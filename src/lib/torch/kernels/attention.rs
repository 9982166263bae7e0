//! One row's attention over cached keys and values.
//!
//! Sums run over fixed lanes in a fixed order, so a row's result depends on it alone.

#![allow(clippy::needless_range_loop)] // the index also picks the vector of memory

use super::matmul::Element;
use super::softmax::exp;

#[cfg(target_arch = "x86_64")]
use super::matmul::{ALL, LANES, sums, tail_mask};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Vectors of a head's width that are kept in registers at a time.
#[cfg(target_arch = "x86_64")]
const PART: usize = 8;

/// Vector c of C at `p`; the last one is partial where `tail` says so.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn vector<T: Element, const C: usize>(p: *const T, c: usize, tail: __mmask16) -> __m512 {
    // SAFETY: the caller's word.
    unsafe { T::load(p.add(c * LANES), if c + 1 == C { tail } else { ALL }) }
}

/// Adds q·k of C vectors of each of `scores.len()` keys, `hs` apart, to `scores`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn dots_of<T: Element, const C: usize>(
    q: *const f32,
    keys: *const T,
    hs: usize,
    tail: __mmask16,
    scores: &mut [f32],
) {
    // SAFETY: the caller's word: C vectors at q and at each key.
    unsafe {
        let zero = _mm512_setzero_ps();
        let mut query = [zero; C];
        for (c, query) in query.iter_mut().enumerate() {
            *query = vector::<f32, C>(q, c, tail);
        }
        let mut start = 0;
        while start < scores.len() {
            let slots = LANES.min(scores.len() - start);
            let mut acc = [zero; LANES];
            for (slot, acc) in acc.iter_mut().enumerate() {
                if slot == slots {
                    break;
                }
                let key = keys.add((start + slot) * hs);
                for c in 0..C {
                    *acc = _mm512_fmadd_ps(vector::<T, C>(key, c, tail), query[c], *acc);
                }
            }
            let mask = if slots == LANES { ALL } else { tail_mask(slots) };
            let place = scores.as_mut_ptr().add(start);
            let before = _mm512_maskz_loadu_ps(mask, place);
            _mm512_mask_storeu_ps(place, mask, _mm512_add_ps(before, sums(&acc)));
            start += slots;
        }
    }
}

/// Σ weight·value of C vectors of each of `weights.len()` values, `hs` apart, to `out`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn mix_of<T: Element, const C: usize>(
    weights: &[f32],
    values: *const T,
    hs: usize,
    tail: __mmask16,
    out: *mut f32,
) {
    // SAFETY: the caller's word: C vectors at each value and at out.
    unsafe {
        let zero = _mm512_setzero_ps();
        // Two sums each, so that additions overlap.
        let (mut even, mut odd) = ([zero; C], [zero; C]);
        let mut slot = 0;
        while slot + 2 <= weights.len() {
            let (a, b) = (values.add(slot * hs), values.add((slot + 1) * hs));
            let (u, v) = (_mm512_set1_ps(weights[slot]), _mm512_set1_ps(weights[slot + 1]));
            for c in 0..C {
                even[c] = _mm512_fmadd_ps(vector::<T, C>(a, c, tail), u, even[c]);
                odd[c] = _mm512_fmadd_ps(vector::<T, C>(b, c, tail), v, odd[c]);
            }
            slot += 2;
        }
        if slot < weights.len() {
            let (a, u) = (values.add(slot * hs), _mm512_set1_ps(weights[slot]));
            for c in 0..C {
                even[c] = _mm512_fmadd_ps(vector::<T, C>(a, c, tail), u, even[c]);
            }
        }
        for c in 0..C {
            let mask = if c + 1 == C { tail } else { ALL };
            _mm512_mask_storeu_ps(out.add(c * LANES), mask, _mm512_add_ps(even[c], odd[c]));
        }
    }
}

/// Calls `$f::<T, C>` for the parts of a head of width `$hs`: (first lane, mask of the last vector).
#[cfg(target_arch = "x86_64")]
macro_rules! each_part {
    ($hs:expr, $f:ident::<$t:ty>($at:ident, $tail:ident => $($arg:expr),*)) => {
        let mut $at = 0;
        while $at < $hs {
            let width = ($hs - $at).min(PART * LANES);
            let $tail = if width % LANES == 0 { ALL } else { tail_mask(width) };
            match width.div_ceil(LANES) {
                1 => $f::<$t, 1>($($arg),*),
                2 => $f::<$t, 2>($($arg),*),
                3 => $f::<$t, 3>($($arg),*),
                4 => $f::<$t, 4>($($arg),*),
                5 => $f::<$t, 5>($($arg),*),
                6 => $f::<$t, 6>($($arg),*),
                7 => $f::<$t, 7>($($arg),*),
                _ => $f::<$t, 8>($($arg),*),
            }
            $at += width;
        }
    };
}

/// q·k of each of the keys (scores.len(), hs), to `scores`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn dots<T: Element>(q: &[f32], keys: *const T, scores: &mut [f32]) {
    scores.fill(0.0);
    let hs = q.len();
    // SAFETY: the caller's word: as many keys of hs elements as there are scores.
    unsafe {
        each_part!(hs, dots_of::<T>(at, tail => q.as_ptr().add(at), keys.add(at), hs, tail, scores));
    }
}

/// Σ weight·value of the `weights.len()` values (count, hs), to `out` (hs).
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn mix<T: Element>(weights: &[f32], values: *const T, out: &mut [f32]) {
    let hs = out.len();
    // SAFETY: the caller's word: as many values of hs elements as there are weights.
    unsafe {
        let out = out.as_mut_ptr();
        each_part!(hs, mix_of::<T>(at, tail => weights, values.add(at), hs, tail, out.add(at)));
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn dots<T: Element>(_: &[f32], _: *const T, _: &mut [f32]) {
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
            dots(q, cache.keys, scores);
        } else {
            dots(q, cache.keys, &mut scores[..visible]);
            dots(q, cache.keys.add(own * hs), &mut scores[visible..]);
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

dispatch!(
    /// softmax(scores·scale), in place.
    fn softmax = softmax_of(scores: &mut [f32], scale: f32) -> ()
);
#[cfg(test)]
mod tests {
    use super::super::matmul::available;
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
        for hs in [8, 16, 24, 40, 64, 128, 136, 160] {
            for seen in [(0, 0), (0, 3), (5, 5), (16, 16), (17, 30), (32, 33), (39, 39)] {
                check::<f32>(hs, 40, seen);
                check::<bf16>(hs, 40, seen);
            }
        }
    }
}
