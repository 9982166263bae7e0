//! One row's attention over cached keys and values.
//!
//! Sums run over fixed lanes in a fixed order, so a row's result depends on it alone.

// Numbers of registers are constants, so that each loop over them is unrolled.
#![allow(clippy::needless_range_loop)]

use super::elementwise::softmax;
use super::simd::{Element, LANES, Lanes, Level, Work, load_some, run, store_some};

/// Keys whose products with the query are summed together.
const GROUP: usize = 8;

/// q·k of each of `scores.len()` keys, q.len() apart, to `scores`.
#[inline(always)]
unsafe fn dots<L: Lanes, T: Element>(q: &[f32], keys: *const T, scores: &mut [f32]) {
    let hs = q.len();
    let whole = hs / LANES * LANES;
    let mut lanes = [[0f32; LANES]; GROUP];
    for (group, scores) in scores.chunks_mut(GROUP).enumerate() {
        // SAFETY: the caller's word: as many keys of hs elements as there are scores; what stands
        // behind the last key of a smaller group is not read.
        unsafe {
            let key = |i: usize| keys.add((group * GROUP + i.min(scores.len() - 1)) * hs);
            let keys = [key(0), key(1), key(2), key(3), key(4), key(5), key(6), key(7)];
            let mut from = 0;
            while from < LANES {
                let mut sums = [L::splat(0.0); GROUP];
                let mut at = from;
                while at < whole {
                    let query = L::load(q.as_ptr().add(at));
                    for i in 0..GROUP {
                        sums[i] = L::mul_add(T::load::<L>(keys[i].add(at)), query, sums[i]);
                    }
                    at += LANES;
                }
                if at < hs {
                    let count = (hs - at).min(L::WIDTH);
                    let query = load_some::<L, f32>(q.as_ptr().add(at), count);
                    for i in 0..GROUP {
                        let key = load_some::<L, T>(keys[i].add(at), count);
                        sums[i] = L::mul_add(key, query, sums[i]);
                    }
                }
                for i in 0..GROUP {
                    L::store(lanes[i].as_mut_ptr().add(from), sums[i]);
                }
                from += L::WIDTH;
            }
            L::sums(&lanes[..scores.len()], scores);
        }
    }
}

/// Σ weight·value of N registers of each of `weights.len()` values, `hs` apart, to `out`; even and
/// odd slots apart, so that additions overlap.
#[inline(always)]
unsafe fn mix_of<L: Lanes, T: Element, const N: usize>(
    weights: &[f32],
    values: *const T,
    hs: usize,
    out: *mut f32,
) {
    // SAFETY: the caller's word: N registers at each value and at `out`.
    unsafe {
        let (mut even, mut odd) = ([L::splat(0.0); N], [L::splat(0.0); N]);
        let mut slot = 0;
        while slot + 2 <= weights.len() {
            let (a, b) = (values.add(slot * hs), values.add((slot + 1) * hs));
            let (u, v) = (L::splat(weights[slot]), L::splat(weights[slot + 1]));
            for n in 0..N {
                even[n] = L::mul_add(T::load::<L>(a.add(n * L::WIDTH)), u, even[n]);
                odd[n] = L::mul_add(T::load::<L>(b.add(n * L::WIDTH)), v, odd[n]);
            }
            slot += 2;
        }
        if slot < weights.len() {
            let (a, u) = (values.add(slot * hs), L::splat(weights[slot]));
            for n in 0..N {
                even[n] = L::mul_add(T::load::<L>(a.add(n * L::WIDTH)), u, even[n]);
            }
        }
        for n in 0..N {
            L::store(out.add(n * L::WIDTH), L::add(even[n], odd[n]));
        }
    }
}

/// As [`mix_of`], of the last `count` elements of a head, fewer than a register has.
#[inline(always)]
unsafe fn mix_some<L: Lanes, T: Element>(
    weights: &[f32],
    values: *const T,
    hs: usize,
    out: *mut f32,
    count: usize,
) {
    // SAFETY: the caller's word: `count` elements at each value and at `out`.
    unsafe {
        let (mut even, mut odd) = (L::splat(0.0), L::splat(0.0));
        for (slot, &weight) in weights.iter().enumerate() {
            let value = load_some::<L, T>(values.add(slot * hs), count);
            let sum = if slot % 2 == 0 { &mut even } else { &mut odd };
            *sum = L::mul_add(value, L::splat(weight), *sum);
        }
        store_some::<L>(out, L::add(even, odd), count);
    }
}

/// Σ weight·value of the `weights.len()` values (count, hs), to `out` (hs).
#[inline(always)]
unsafe fn mix<L: Lanes, T: Element>(weights: &[f32], values: *const T, out: &mut [f32]) {
    let hs = out.len();
    let out = out.as_mut_ptr();
    let mut at = 0;
    // SAFETY: the caller's word: as many values of hs elements as there are weights.
    unsafe {
        while at + 4 * L::WIDTH <= hs {
            mix_of::<L, T, 4>(weights, values.add(at), hs, out.add(at));
            at += 4 * L::WIDTH;
        }
        while at + L::WIDTH <= hs {
            mix_of::<L, T, 1>(weights, values.add(at), hs, out.add(at));
            at += L::WIDTH;
        }
        if at < hs {
            mix_some::<L, T>(weights, values.add(at), hs, out.add(at), hs - at);
        }
    }
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

struct Look<'a, T> {
    q: &'a [f32],
    cache: HeadCache<T>,
    visible: usize,
    own: usize,
    scores: &'a mut [f32],
    out: &'a mut [f32],
}

impl<T: Element> Work for Look<'_, T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Look { q, cache, visible, own, scores, out } = self;
        let hs = q.len();
        // A row that sees all slots up to its own reads one range, another a range and its own slot.
        let joined = visible == own;
        // SAFETY: the slots are in the memory, by `attend`'s assertion.
        unsafe {
            if joined {
                dots::<L, T>(q, cache.keys, scores);
            } else {
                dots::<L, T>(q, cache.keys, &mut scores[..visible]);
                dots::<L, T>(q, cache.keys.add(own * hs), &mut scores[visible..]);
            }
            softmax(scores, 1.0 / (hs as f32).sqrt());
            if joined {
                mix::<L, T>(scores, cache.values, out);
            } else {
                mix::<L, T>(&scores[..visible], cache.values, out);
                let value = cache.values.add(own * hs);
                for (i, out) in out.iter_mut().enumerate() {
                    *out += (*value.add(i)).get() * scores[visible];
                }
            }
        }
    }
}

/// Attention of one query (hs): softmax(q·kᵀ/√hs)·v over the slots before `visible` and the slot
/// `own`, to `out` (hs).
///
/// # Safety
/// The memory must hold `cache.slots` slots that nothing writes meanwhile.
///
/// # Panics
/// When a slot is beyond the memory.
pub unsafe fn attend<T: Element>(
    level: Level,
    q: &[f32],
    cache: HeadCache<T>,
    (visible, own): (usize, usize),
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    assert!(visible <= own && own < cache.slots && q.len() == out.len());
    scores.clear();
    scores.resize(visible + 1, 0.0);
    run(level, Look { q, cache, visible, own, scores, out });
}

#[cfg(test)]
mod tests {
    use super::super::simd::tests::at_every_level;
    use super::*;
    use half::bf16;

    fn numbers(count: usize, factor: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * factor) % 101) as f32 / 25.0 - 2.0).collect()
    }

    fn check<T: Element>(hs: usize, slots: usize, seen: (usize, usize)) {
        let q = numbers(hs, 7);
        let mut keys: Vec<T> = numbers(slots * hs, 31).into_iter().map(T::put).collect();
        let mut values: Vec<T> = numbers(slots * hs, 17).into_iter().map(T::put).collect();
        let visible: Vec<usize> = (0..seen.0).chain([seen.1]).collect();
        let dot = |s: usize| -> f64 {
            (0..hs).map(|i| f64::from(q[i]) * f64::from(keys[s * hs + i].get())).sum()
        };
        let weight = |s: usize| (dot(s) / (hs as f64).sqrt()).exp();
        let total: f64 = visible.iter().map(|&s| weight(s)).sum();
        let exact: Vec<f64> = (0..hs)
            .map(|i| {
                let part = |s: &usize| weight(*s) / total * f64::from(values[s * hs + i].get());
                visible.iter().map(part).sum()
            })
            .collect();
        let cache = HeadCache { keys: keys.as_mut_ptr(), values: values.as_mut_ptr(), slots };
        let mut fused: Option<Vec<f32>> = None;
        at_every_level(|level| {
            let (mut scores, mut out) = (Vec::new(), vec![9.0; hs]);
            // SAFETY: the memory is there.
            unsafe { attend(level, &q, cache, seen, &mut scores, &mut out) };
            for (out, exact) in out.iter().zip(&exact) {
                let case = (level.name(), hs, seen);
                assert!((f64::from(*out) - exact).abs() < 1e-5, "{case:?}: {out} {exact}");
            }
            if level > Level::Portable {
                assert_eq!(*fused.get_or_insert(out.clone()), out, "AVX2 and AVX-512 differ");
            }
        });
    }

    #[test]
    fn attention_is_that_of_plain_loops_for_every_width_and_view_at_every_level() {
        for hs in [8, 16, 24, 40, 64, 128, 136, 160] {
            for seen in [(0, 0), (0, 3), (5, 5), (16, 16), (17, 30), (32, 33), (39, 39)] {
                check::<f32>(hs, 40, seen);
                check::<bf16>(hs, 40, seen);
            }
        }
    }
}
