//! Rows times a matrix, y = x·Wᵀ, for as few rows as decoding has.
//!
//! With few rows the product is bound by reading W once; libtorch's kernels are made for many. W
//! stays as it is, (N, K) row-major in f32 or bf16: it is read in tiles of a few of its rows, each
//! against a few rows of x, sixteen lanes of K at a time in f32. Every sum is added up in one fixed
//! order, whatever the number of rows, the tile or the thread: a row's result depends on it alone.
//! Needs AVX-512 ([`available`]).

use half::bf16;

use super::pool::Pool;
use super::softmax::Logit;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Lanes of a vector.
pub(super) const LANES: usize = 16;
/// Columns whose part of W stays in the nearer caches while all rows of x meet it.
const BLOCK: usize = 32;
/// Most values that a task holds before they are handed on.
const HELD: usize = 1 << 14;

/// Whether this machine has the vectors that these kernels are written for.
pub fn available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// A number type that weights, keys and values are stored in.
pub trait Element: Logit {
    /// The elements at `p` whose bit is set, as f32; the others are 0.
    ///
    /// # Safety
    /// They must be readable, and the machine must have AVX-512.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load(p: *const Self, mask: __mmask16) -> __m512;
}

#[cfg(target_arch = "x86_64")]
impl Element for f32 {
    #[inline(always)]
    unsafe fn load(p: *const f32, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's word.
        unsafe { if mask == ALL { _mm512_loadu_ps(p) } else { _mm512_maskz_loadu_ps(mask, p) } }
    }
}

#[cfg(target_arch = "x86_64")]
impl Element for bf16 {
    #[inline(always)]
    unsafe fn load(p: *const bf16, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's word. A bf16 is the upper half of an f32.
        unsafe {
            let p = p.cast::<i16>();
            let half = if mask == ALL {
                _mm256_loadu_si256(p.cast())
            } else {
                _mm256_maskz_loadu_epi16(mask, p)
            };
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Element for f32 {}
#[cfg(not(target_arch = "x86_64"))]
impl Element for bf16 {}

/// The mask of all lanes.
#[cfg(target_arch = "x86_64")]
pub(super) const ALL: __mmask16 = 0xffff;

/// The mask of the lanes of a last, partial vector of `length` elements.
#[cfg(target_arch = "x86_64")]
pub(super) fn tail_mask(length: usize) -> __mmask16 {
    ((1u32 << (length % LANES)) - 1) as __mmask16
}

/// The sums of sixteen vectors, in their order; each is added up in the same way.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn sums(v: &[__m512; LANES]) -> __m512 {
    // SAFETY: the caller's machine has AVX-512.
    unsafe {
        let zero = _mm512_setzero_ps();
        let mut pairs = [zero; 8];
        for (i, pair) in pairs.iter_mut().enumerate() {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            *pair = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        }
        let mut fours = [zero; 4]; // each 128 bits: parts of the sums of four vectors
        for (i, four) in fours.iter_mut().enumerate() {
            let (a, b) = (_mm512_castps_pd(pairs[2 * i]), _mm512_castps_pd(pairs[2 * i + 1]));
            let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
            *four = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
        }
        let mut two = [zero; 2];
        for (i, two) in two.iter_mut().enumerate() {
            *two = quarters(fours[2 * i], fours[2 * i + 1]);
        }
        quarters(two[0], two[1])
    }
}

/// The sums of each vector's first and second, and third and fourth, 128 bits.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn quarters(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the caller's machine has AVX-512.
    unsafe { _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b)) }
}

/// One vector of each row of a tile, added to `acc`. A function, as a closure would not be compiled
/// for the vectors of its caller.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn step<T: Element, const R: usize, const N: usize>(
    w: *const T,
    x: *const f32,
    k: usize,
    mask: __mmask16,
    acc: &mut [__m512; LANES],
) {
    // SAFETY: the caller's word, as for `tile`; what is prefetched need not be there.
    unsafe {
        let mut part = [_mm512_setzero_ps(); N];
        for (n, part) in part.iter_mut().enumerate() {
            *part = T::load(w.add(n * k), mask);
            // The next tile of W, which lies behind this one.
            _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add((n + N) * k).cast());
        }
        for r in 0..R {
            let row = f32::load(x.add(r * k), mask);
            for n in 0..N {
                acc[r * N + n] = _mm512_fmadd_ps(part[n], row, acc[r * N + n]);
            }
        }
    }
}

/// R rows of x against N rows of W, R·N ≤ 16: their products, at r·N + n.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn tile<T: Element, const R: usize, const N: usize>(
    w: *const T,
    x: *const f32,
    k: usize,
) -> [f32; LANES] {
    // SAFETY: the caller's word: N rows at w and R rows at x, of k elements each.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); LANES];
        let whole = k / LANES * LANES;
        let mut at = 0;
        while at < whole {
            step::<T, R, N>(w.add(at), x.add(at), k, ALL, &mut acc);
            at += LANES;
        }
        if whole < k {
            step::<T, R, N>(w.add(whole), x.add(whole), k, tail_mask(k), &mut acc);
        }
        let mut out = [0f32; LANES];
        _mm512_storeu_ps(out.as_mut_ptr(), sums(&acc));
        out
    }
}

/// All columns of W (n, k) against R rows of x, into `out` (R, n) with rows `width` apart.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn strip<T: Element, const R: usize, const N: usize>(
    w: &[T],
    k: usize,
    x: &[f32],
    out: &mut [f32],
    width: usize,
) {
    let n = w.len() / k;
    let mut at = 0;
    // SAFETY: rows at..at + N are in w, and x holds R rows.
    unsafe {
        while at + N <= n {
            let products = tile::<T, R, N>(w.as_ptr().add(at * k), x.as_ptr(), k);
            for r in 0..R {
                out[r * width + at..][..N].copy_from_slice(&products[r * N..][..N]);
            }
            at += N;
        }
        while at < n {
            let products = tile::<T, R, 1>(w.as_ptr().add(at * k), x.as_ptr(), k);
            for r in 0..R {
                out[r * width + at] = products[r];
            }
            at += 1;
        }
    }
}

/// x (rows, k) times all of w (n, k), into `out` (rows, n).
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn product<T: Element>(w: &[T], k: usize, x: &[f32], out: &mut [f32]) {
    let (n, rows) = (w.len() / k, x.len() / k);
    let mut start = 0;
    while start < n {
        let end = (start + BLOCK).min(n);
        let block = &w[start * k..end * k];
        let mut r = 0;
        while r < rows {
            let left = rows - r;
            let (x, out) = (&x[r * k..], &mut out[r * n + start..]);
            // SAFETY: x holds the rows that each strip takes.
            unsafe {
                r += match left {
                    4.. => {
                        strip::<T, 4, 4>(block, k, x, out, n);
                        4
                    }
                    2.. => {
                        strip::<T, 2, 8>(block, k, x, out, n);
                        2
                    }
                    _ => {
                        strip::<T, 1, 16>(block, k, x, out, n);
                        1
                    }
                };
            }
        }
        start = end;
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn product<T: Element>(_: &[T], _: usize, _: &[f32], _: &mut [f32]) {
    unreachable!("`available` says no");
}

/// x (rows, k) times each row of w (n, k). `finish` gets every row's products column range by
/// column range, from several threads: (row, first column, products).
///
/// # Panics
/// When the sizes differ, or the machine has not [`available`] vectors.
pub fn matmul<T: Element>(
    pool: &Pool,
    w: &[T],
    k: usize,
    x: &[f32],
    finish: &(impl Fn(usize, usize, &mut [f32]) + Sync),
) {
    let (n, rows) = (w.len() / k, x.len() / k);
    assert!(available() && n * k == w.len() && rows * k == x.len());
    let most = (HELD / rows.max(1) / LANES * LANES).max(LANES);
    pool.split(n, LANES, most, &|columns, scratch| {
        let width = columns.len();
        scratch.resize(rows * width, 0.0);
        // SAFETY: the features are there, by the assertion.
        unsafe { product(&w[columns.start * k..columns.end * k], k, x, scratch) };
        for (row, products) in scratch.chunks_exact_mut(width).enumerate() {
            finish(row, columns.start, products);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn numbers(count: usize, factor: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * factor) % 101) as f32 / 50.0 - 1.0).collect()
    }

    fn run<T: Element>(threads: usize, w: &[T], k: usize, x: &[f32]) -> Vec<f32> {
        let (n, rows) = (w.len() / k, x.len() / k);
        let out = Mutex::new(vec![0f32; rows * n]);
        matmul(&Pool::new(threads), w, k, x, &|row, column, products| {
            out.lock().unwrap()[row * n + column..][..products.len()].copy_from_slice(products);
        });
        out.into_inner().unwrap()
    }

    #[test]
    fn products_are_those_of_plain_loops_and_a_row_is_the_same_in_any_company() {
        if !available() {
            eprintln!("skipped: no AVX-512 here");
            return;
        }
        for (n, k) in [(1, 1), (5, 16), (37, 19), (64, 48), (130, 100)] {
            let w = numbers(n * k, 37);
            let halves: Vec<bf16> = w.iter().map(|&x| bf16::put(x)).collect();
            for rows in [1, 2, 3, 4, 7, 8, 13] {
                let x = numbers(rows * k, 53);
                let (out, half) = (run(1, &w, k, &x), run(2, &halves, k, &x));
                for r in 0..rows {
                    let row = &x[r * k..(r + 1) * k];
                    for c in 0..n {
                        let dot = |w: &dyn Fn(usize) -> f32| -> f64 {
                            (0..k).map(|i| f64::from(w(c * k + i)) * f64::from(row[i])).sum()
                        };
                        let (exact, rounded) = (dot(&|i| w[i]), dot(&|i| halves[i].get()));
                        assert!((f64::from(out[r * n + c]) - exact).abs() < 1e-4);
                        assert!((f64::from(half[r * n + c]) - rounded).abs() < 1e-4);
                    }
                    assert_eq!(run(2, &w, k, row), out[r * n..(r + 1) * n]);
                }
            }
        }
    }
}
