//! Levels of vector instructions, which of them serves, and sixteen lanes of f32 at each.
//!
//! Kernels are written once, over [`Lanes`]. A vector has sixteen lanes at every level, and sums
//! over lanes have one order, so AVX-512 and AVX2 agree to the last bit. The portable level has no
//! fused multiply-add and may differ by rounding. (The crate pulp has vectors as wide as the level,
//! and with them another order of sums at each.)

use std::sync::atomic::{AtomicU8, Ordering};

use ao_core::{Error, Result};
use half::bf16;

use super::softmax::Logit;

/// Lanes of a vector.
pub(super) const LANES: usize = 16;

/// The environment variable that caps the level.
pub const VARIABLE: &str = "AO_SIMD";

/// A level of vector instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Whatever the compiler makes of plain loops.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    Avx512,
}

impl Level {
    /// All levels, the lowest first.
    pub const ALL: [Level; 3] = [Level::Portable, Level::Avx2, Level::Avx512];

    /// The highest level of this machine.
    pub fn of_machine() -> Level {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            return if wide { Level::Avx512 } else { Level::Avx2 };
        }
        Level::Portable
    }

    /// The levels that this machine has.
    pub fn available() -> impl Iterator<Item = Level> {
        Level::ALL.into_iter().filter(|level| *level <= Level::of_machine())
    }

    /// Its name in [`VARIABLE`] and in records.
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }
}

/// The level in use, as its number among [`Level::ALL`] plus 1; 0 before it is known.
static IN_USE: AtomicU8 = AtomicU8::new(0);

/// Chooses the level: that of the machine, or a lower one where [`VARIABLE`] says so.
///
/// # Errors
/// When the variable names no level.
pub fn start() -> Result<Level> {
    let cap = match std::env::var_os(VARIABLE) {
        None => Level::of_machine(),
        Some(value) => Level::ALL.into_iter().find(|level| value == level.name()).ok_or_else(|| {
            Error::usage(format!(
                "{VARIABLE}={}: no such level of vector instructions; use portable, avx2 or avx512",
                value.to_string_lossy()
            ))
        })?,
    };
    let level = cap.min(Level::of_machine());
    IN_USE.store(level as u8 + 1, Ordering::Relaxed);
    Ok(level)
}

/// The level in use, which every kernel obeys. It is never above the machine's.
#[inline]
pub fn level() -> Level {
    #[cfg(test)]
    if let Some(level) = tests::FORCED.get() {
        return level;
    }
    match IN_USE.load(Ordering::Relaxed) {
        1 => Level::Portable,
        2 => Level::Avx2,
        3 => Level::Avx512,
        // A library that nothing has started; a program has refused a wrong name before.
        _ => start().unwrap_or_else(|_| Level::of_machine()),
    }
}

/// A number type that weights, keys and values are stored in.
pub trait Element: Logit {
    /// The vector of elements at `p`, widened.
    ///
    /// # Safety
    /// They must be readable, and the machine must have the level of `L`.
    unsafe fn load<L: Lanes>(p: *const Self) -> L::V;

    /// The elements as f32, where they are stored so.
    fn as_floats(elements: &[Self]) -> Option<&[f32]>;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const f32) -> L::V {
        // SAFETY: the caller's word.
        unsafe { L::load(p) }
    }

    fn as_floats(elements: &[f32]) -> Option<&[f32]> {
        Some(elements)
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const bf16) -> L::V {
        // SAFETY: the caller's word.
        unsafe { L::load_bf16(p) }
    }

    fn as_floats(_: &[bf16]) -> Option<&[f32]> {
        None
    }
}

/// The first `count` elements at `p`, fewer than a vector has; the other lanes are 0.
///
/// # Safety
/// They must be readable, and the machine must have the level of `L`.
#[inline(always)]
pub(super) unsafe fn load_some<L: Lanes, T: Element>(p: *const T, count: usize) -> L::V {
    let mut whole = [0f32; LANES];
    for (i, x) in whole.iter_mut().enumerate().take(count) {
        // SAFETY: readable by the caller's word.
        *x = unsafe { *p.add(i) }.get();
    }
    // SAFETY: no vector has more than `whole`.
    unsafe { L::load(whole.as_ptr()) }
}

/// Writes the first `count` lanes to `p`, fewer than a vector has.
///
/// # Safety
/// They must be writable, and the machine must have the level of `L`.
#[inline(always)]
pub(super) unsafe fn store_some<L: Lanes>(p: *mut f32, v: L::V, count: usize) {
    let mut whole = [0f32; LANES];
    // SAFETY: no vector has more than `whole`; `count` elements at `p` by the caller's word.
    unsafe {
        L::store(whole.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(whole.as_ptr(), p, count);
    }
}

/// The registers of one level, each with a part of the sixteen lanes.
pub trait Lanes: Copy {
    /// The level whose instructions these are.
    const LEVEL: Level;
    /// Lanes of a register: 4, 8 or 16.
    const WIDTH: usize;
    /// A register.
    type V: Copy;

    /// All lanes `x`.
    ///
    /// # Safety
    /// The machine must have the level's instructions.
    unsafe fn splat(x: f32) -> Self::V;
    /// The lanes at `p`.
    ///
    /// # Safety
    /// The machine must have the level's instructions, and [`Lanes::WIDTH`] elements lie at `p`.
    unsafe fn load(p: *const f32) -> Self::V;
    /// The lanes at `p`, widened: a bf16 is the upper half of an f32.
    ///
    /// # Safety
    /// The machine must have the level's instructions, and [`Lanes::WIDTH`] elements lie at `p`.
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    /// Writes the lanes to `p`.
    ///
    /// # Safety
    /// The machine must have the level's instructions, and `p` has room for [`Lanes::WIDTH`] elements.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// a·b + c; fused but at the portable level.
    ///
    /// # Safety
    /// The machine must have the level's instructions.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// a + b.
    ///
    /// # Safety
    /// The machine must have the level's instructions.
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// The sums of sixteen lanes each, all in one order: with q the sum (l0 + l2) + (l1 + l3) of
    /// each four lanes, (q0 + q1) + (q2 + q3).
    ///
    /// # Safety
    /// The machine must have the level's instructions.
    unsafe fn sums(lanes: &[[f32; LANES]], out: &mut [f32]);
    /// Asks for the line of memory at `p`, which need not be there.
    ///
    /// # Safety
    /// The machine must have the level's instructions.
    #[inline(always)]
    unsafe fn prefetch<T>(_: *const T) {}
}

/// Work that is compiled for each level. `run` must be `#[inline(always)]`, and so must what it
/// calls: a function of its own would be compiled without the level's instructions.
pub(super) trait Work {
    /// What it gives.
    type Out;
    /// Does it with the lanes of one level.
    ///
    /// # Safety
    /// The machine must have the level.
    unsafe fn run<L: Lanes>(self) -> Self::Out;
}

/// Runs `work` with the lanes of `level`, or of the machine where that has not so many.
#[inline(always)]
pub(super) fn run<W: Work>(level: Level, work: W) -> W::Out {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
        unsafe fn wide<W: Work>(work: W) -> W::Out {
            // SAFETY: the level's instructions, by the caller's word.
            unsafe { work.run::<x86::Avx512>() }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn narrow<W: Work>(work: W) -> W::Out {
            // SAFETY: as above.
            unsafe { work.run::<x86::Avx2>() }
        }
        let machine = Level::of_machine();
        // SAFETY: the machine has the level in each arm.
        unsafe {
            match level.min(machine) {
                Level::Avx512 => wide(work),
                Level::Avx2 => narrow(work),
                Level::Portable => work.run::<Portable>(),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = level;
        // SAFETY: every machine has the portable level.
        unsafe { work.run::<Portable>() }
    }
}

/// Plain arrays; a product and a sum are rounded one after the other.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Lanes for Portable {
    const LEVEL: Level = Level::Portable;
    const WIDTH: usize = 4;
    type V = [f32; 4];

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 4] {
        // SAFETY: four elements by the trait's word; an array of f32 has their alignment.
        unsafe { p.cast::<[f32; 4]>().read() }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> [f32; 4] {
        // SAFETY: as above.
        let [a, b, c, d] = unsafe { p.cast::<[bf16; 4]>().read() };
        [a.get(), b.get(), c.get(), d.get()]
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 4]) {
        // SAFETY: as above.
        unsafe { p.cast::<[f32; 4]>().write(v) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn sums(lanes: &[[f32; LANES]], out: &mut [f32]) {
        for (out, v) in out.iter_mut().zip(lanes) {
            let q = |i: usize| (v[4 * i] + v[4 * i + 2]) + (v[4 * i + 1] + v[4 * i + 3]);
            *out = (q(0) + q(1)) + (q(2) + q(3));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! SAFETY of every block here: the machine has the level and the memory is there, by the word
    //! of [`Lanes`].

    use std::arch::x86_64::*;

    use half::bf16;

    use super::{LANES, Lanes, Level};

    /// Registers of eight lanes.
    #[derive(Clone, Copy)]
    pub struct Avx2;

    impl Lanes for Avx2 {
        const LEVEL: Level = Level::Avx2;
        const WIDTH: usize = 8;
        type V = __m256;

        #[inline(always)]
        unsafe fn splat(x: f32) -> __m256 {
            unsafe { _mm256_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m256 {
            unsafe { _mm256_loadu_ps(p) }
        }

        #[inline(always)]
        unsafe fn load_bf16(p: *const bf16) -> __m256 {
            unsafe {
                let half = _mm_loadu_si128(p.cast());
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)))
            }
        }

        #[inline(always)]
        unsafe fn store(p: *mut f32, v: __m256) {
            unsafe { _mm256_storeu_ps(p, v) };
        }

        #[inline(always)]
        unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_add_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn sums(lanes: &[[f32; LANES]], out: &mut [f32]) {
            for (lanes, out) in lanes.chunks(4).zip(out.chunks_mut(4)) {
                let at = |i: usize| lanes[i.min(lanes.len() - 1)].as_ptr();
                let places = [at(0), at(1), at(2), at(3)];
                let mut four = [0f32; 4];
                unsafe {
                    let sums = _mm_add_ps(quarters(places, 0), quarters(places, 8));
                    _mm_storeu_ps(four.as_mut_ptr(), sums);
                }
                out.copy_from_slice(&four[..out.len()]);
            }
        }

        #[inline(always)]
        unsafe fn prefetch<T>(p: *const T) {
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
        }
    }

    // Functions, as a closure would not be compiled for the vectors of its caller.

    #[inline(always)]
    unsafe fn pair(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)) }
    }

    /// q0 + q1 of the eight lanes from `from` on at each of four places.
    #[inline(always)]
    unsafe fn quarters(places: [*const f32; 4], from: usize) -> __m128 {
        unsafe {
            let [a, b, c, d] = places;
            let ab = pair(_mm256_loadu_ps(a.add(from)), _mm256_loadu_ps(b.add(from)));
            let cd = pair(_mm256_loadu_ps(c.add(from)), _mm256_loadu_ps(d.add(from)));
            let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
            let low = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd));
            let four = _mm256_add_ps(low, _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
            _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps::<1>(four))
        }
    }

    /// Registers of sixteen lanes.
    #[derive(Clone, Copy)]
    pub struct Avx512;

    impl Lanes for Avx512 {
        const LEVEL: Level = Level::Avx512;
        const WIDTH: usize = 16;
        type V = __m512;

        #[inline(always)]
        unsafe fn splat(x: f32) -> __m512 {
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m512 {
            unsafe { _mm512_loadu_ps(p) }
        }

        #[inline(always)]
        unsafe fn load_bf16(p: *const bf16) -> __m512 {
            unsafe {
                let half = _mm256_loadu_si256(p.cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
            }
        }

        #[inline(always)]
        unsafe fn store(p: *mut f32, v: __m512) {
            unsafe { _mm512_storeu_ps(p, v) };
        }

        #[inline(always)]
        unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn sums(lanes: &[[f32; LANES]], out: &mut [f32]) {
            unsafe {
                // As at AVX2: the sums are few, and the order is the same.
                super::x86::Avx2::sums(lanes, out);
            }
        }

        #[inline(always)]
        unsafe fn prefetch<T>(p: *const T) {
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// The level that this thread's tests ask for.
        pub static FORCED: Cell<Option<Level>> = const { Cell::new(None) };
    }

    /// Calls `work` at every level that this machine has, and says which it has not.
    pub fn at_every_level(mut work: impl FnMut(Level)) {
        for level in Level::ALL {
            if level > Level::of_machine() {
                eprintln!("not on this machine: {}", level.name());
                continue;
            }
            FORCED.set(Some(level));
            work(level);
            FORCED.set(None);
        }
    }

    struct Sums<'a>(&'a [[f32; LANES]]);

    impl Work for Sums<'_> {
        type Out = Vec<f32>;
        #[inline(always)]
        unsafe fn run<L: Lanes>(self) -> Vec<f32> {
            let mut out = vec![0.0; self.0.len()];
            // SAFETY: the level is there, by the caller's word.
            unsafe { L::sums(self.0, &mut out) };
            out
        }
    }

    #[test]
    fn sums_of_lanes_are_the_same_to_the_last_bit_at_every_level() {
        for count in [1, 4, 7, 16] {
            let lanes: Vec<[f32; LANES]> = (0..count)
                .map(|i| std::array::from_fn(|j| ((i * 977 + j * 613) % 1009) as f32 / 7.0 - 60.0))
                .collect();
            let portable = run(Level::Portable, Sums(&lanes));
            at_every_level(|level| {
                assert_eq!(run(level, Sums(&lanes)), portable, "{}", level.name());
            });
            for (sum, lanes) in portable.iter().zip(&lanes) {
                let exact: f64 = lanes.iter().map(|&x| f64::from(x)).sum();
                assert!((f64::from(*sum) - exact).abs() < 1e-3);
            }
        }
    }

    #[test]
    fn a_level_in_use_is_one_that_the_machine_has() {
        assert!(level() <= Level::of_machine());
        assert_eq!(Level::available().last(), Some(Level::of_machine()));
    }
}
