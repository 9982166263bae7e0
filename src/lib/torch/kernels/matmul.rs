//! Rows times a matrix, y = x·Wᵀ + b, one kernel for one row and for thousands.
//!
//! With few rows the product is bound by reading W, with many by arithmetic. W stays as it is,
//! (N, K) row-major in f32 or bf16: it is read in tiles of a few of its rows, each against a few
//! rows of x, sixteen lanes of K at a time in f32. Every sum is added up in one fixed order,
//! whatever the number of rows, the tile or the thread: a row's result depends on it alone, and at
//! AVX2 and AVX-512 it is the same to the last bit.

// Numbers of registers are constants, so that each loop over them is unrolled.
#![allow(clippy::needless_range_loop)]

use super::pool::{self, SharedRows};
use super::simd::{Element, LANES, Lanes, Level, Work, load_some, run};

/// Columns whose part of W stays in the nearer caches while rows of x meet it.
const BLOCK: usize = 48;
/// Elements of K whose part of a few rows stays in the nearest cache, for many rows.
const CHUNK: usize = 512;
/// Rows of x that stay in a near cache while columns meet them; a multiple of every tile's rows.
const ROWS: usize = 96;
/// Most values that a task holds before they are handed on.
const HELD: usize = 1 << 14;
/// Rows from which on a block of bf16 is widened once, not once a tile.
const WIDENED: usize = 32;

/// A matrix (N, K), row-major, and what is added to its products.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    /// The weights.
    pub weight: &'a [T],
    /// The bias (N).
    pub bias: Option<&'a [f32]>,
    /// Length of a row K.
    pub width: usize,
}

impl<T> Matrix<'_, T> {
    /// Its rows N.
    pub fn rows(&self) -> usize {
        self.weight.len() / self.width.max(1)
    }

    /// Rows `first..first + count` of it.
    pub(super) fn part(&self, first: usize, count: usize) -> Matrix<'_, T> {
        Matrix {
            weight: &self.weight[first * self.width..(first + count) * self.width],
            bias: self.bias.map(|bias| &bias[first..first + count]),
            width: self.width,
        }
    }
}

/// The lanes of a strip's products, and their sums.
type Held = ([[f32; LANES]; 4 * BLOCK], [f32; 4 * BLOCK]);

/// R rows of x against N rows of W, `length` elements of each: adds to the lanes of their products,
/// that of rows r and n at r·N + n; with `first` they start at 0.
#[inline(always)]
unsafe fn tile<L: Lanes, T: Element, const R: usize, const N: usize>(
    places: (*const T, *const f32),
    k: usize,
    length: usize,
    first: bool,
    lanes: &mut [[f32; LANES]],
) {
    assert!(lanes.len() == R * N);
    let lanes = lanes.as_mut_ptr().cast::<f32>();
    // SAFETY: the caller's word, and `lanes` has as many as there are products.
    unsafe {
        pass::<L, T, R, N, true>(places, (k, length), 0, first, lanes);
        let mut from = L::WIDTH;
        while from < LANES {
            pass::<L, T, R, N, false>(places, (k, length), from, first, lanes);
            from += L::WIDTH;
        }
    }
}

/// A register of row n of W; asks for the same place in the next tile of N rows, behind this one.
#[inline(always)]
unsafe fn load_and_fetch<L: Lanes, T: Element, const N: usize, const FETCH: bool>(
    w: *const T,
    n: usize,
    k: usize,
    at: usize,
) -> L::V {
    // SAFETY: the caller's word, as for `pass`; what is prefetched need not be there.
    unsafe {
        if FETCH {
            L::prefetch(w.wrapping_add((n + N) * k + at));
        }
        T::load::<L>(w.add(n * k + at))
    }
}

/// The register of [`tile`]'s lanes from lane `from` on.
#[inline(always)]
unsafe fn pass<L: Lanes, T: Element, const R: usize, const N: usize, const FETCH: bool>(
    (w, x): (*const T, *const f32),
    (k, length): (usize, usize),
    from: usize,
    first: bool,
    lanes: *mut f32,
) {
    // SAFETY: the caller's word: N rows at w and R rows at x, k apart, of `length` elements each,
    // and R·N times sixteen lanes; what is prefetched need not be there.
    unsafe {
        let place = |r: usize, n: usize| lanes.add((r * N + n) * LANES + from);
        let mut sums = [[L::splat(0.0); N]; R];
        if !first {
            for r in 0..R {
                for n in 0..N {
                    sums[r][n] = L::load(place(r, n));
                }
            }
        }
        let whole = length / LANES * LANES;
        let mut at = from;
        while at < whole {
            // The fewer are loaded before, so that they and the sums fit the registers.
            if N > R {
                let mut rows = [L::splat(0.0); R];
                for r in 0..R {
                    rows[r] = L::load(x.add(r * k + at));
                }
                for n in 0..N {
                    let part = load_and_fetch::<L, T, N, FETCH>(w, n, k, at);
                    for r in 0..R {
                        sums[r][n] = L::mul_add(part, rows[r], sums[r][n]);
                    }
                }
            } else {
                let mut part = [L::splat(0.0); N];
                for n in 0..N {
                    part[n] = load_and_fetch::<L, T, N, FETCH>(w, n, k, at);
                }
                for r in 0..R {
                    let row = L::load(x.add(r * k + at));
                    for n in 0..N {
                        sums[r][n] = L::mul_add(part[n], row, sums[r][n]);
                    }
                }
            }
            at += LANES;
        }
        if at < length {
            let count = (length - at).min(L::WIDTH);
            for r in 0..R {
                let row = load_some::<L, f32>(x.add(r * k + at), count);
                for n in 0..N {
                    let part = load_some::<L, T>(w.add(n * k + at), count);
                    sums[r][n] = L::mul_add(part, row, sums[r][n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                L::store(place(r, n), sums[r][n]);
            }
        }
    }
}

/// All columns of W (n, k), n ≤ [`BLOCK`], against R rows of x, `chunk` elements at a time, into
/// `out` with rows `width` apart.
#[inline(always)]
unsafe fn strip<L: Lanes, T: Element, const R: usize, const N: usize>(
    w: &[T],
    (k, chunk): (usize, usize),
    x: &[f32],
    out: &mut [f32],
    (width, lanes): (usize, &mut Held),
) {
    let n = w.len() / k;
    let tiled = n / N * N;
    let mut start = 0;
    // SAFETY: the rows that each tile takes are in w and in x.
    unsafe {
        while start < k {
            let length = chunk.min(k - start);
            let (w, x) = (w.as_ptr().add(start), x.as_ptr().add(start));
            let mut at = 0;
            while at < tiled {
                let lanes = &mut lanes.0[at * R..(at + N) * R];
                tile::<L, T, R, N>((w.add(at * k), x), k, length, start == 0, lanes);
                at += N;
            }
            while at < n {
                let lanes = &mut lanes.0[at * R..(at + 1) * R];
                tile::<L, T, R, 1>((w.add(at * k), x), k, length, start == 0, lanes);
                at += 1;
            }
            start += length;
        }
        let (lanes, sums) = lanes;
        L::sums(&lanes[..n * R], &mut sums[..n * R]);
        for r in 0..R {
            let row = &mut out[r * width..][..n];
            for at in (0..tiled).step_by(N) {
                row[at..at + N].copy_from_slice(&sums[at * R + r * N..][..N]);
            }
            for at in tiled..n {
                row[at] = sums[at * R + r];
            }
        }
    }
}

/// x (rows, k) times all of w (n, k), n ≤ [`BLOCK`], into `out` (rows, width) from column 0 on.
#[inline(always)]
unsafe fn block<L: Lanes, T: Element>(
    w: &[T],
    k: usize,
    x: &[f32],
    out: &mut [f32],
    (width, lanes): (usize, &mut Held),
) {
    let rows = x.len() / k;
    // A register with all lanes passes once over W, which few rows do best in one go; narrower ones
    // come back to what should still be in the nearest cache.
    let once = L::WIDTH == LANES && rows < WIDENED;
    let k = (k, if once { k } else { CHUNK });
    let mut r = 0;
    while r < rows {
        let (x, out, to) = (&x[r * k.0..], &mut out[r * width..], (width, &mut *lanes));
        // Tiles of as many sums as the level has registers for.
        // SAFETY: x holds the rows of each strip; the level is there, by the caller's word.
        r += unsafe {
            match (L::LEVEL, rows - r) {
                (Level::Avx512, 4..) => (strip::<L, T, 4, 4>(w, k, x, out, to), 4).1,
                (Level::Avx512, 2..) => (strip::<L, T, 2, 8>(w, k, x, out, to), 2).1,
                (Level::Avx512, _) => (strip::<L, T, 1, 16>(w, k, x, out, to), 1).1,
                (Level::Avx2, 4..) => (strip::<L, T, 4, 3>(w, k, x, out, to), 4).1,
                (Level::Avx2, 2..) => (strip::<L, T, 2, 4>(w, k, x, out, to), 2).1,
                (Level::Avx2, _) => (strip::<L, T, 1, 4>(w, k, x, out, to), 1).1,
                (Level::Portable, 3..) => (strip::<L, T, 3, 3>(w, k, x, out, to), 3).1,
                (Level::Portable, 2) => (strip::<L, T, 2, 4>(w, k, x, out, to), 2).1,
                (Level::Portable, _) => (strip::<L, T, 1, 8>(w, k, x, out, to), 1).1,
            }
        };
    }
}

/// x (rows, k) times all of w (n, k), into `out` (rows, n).
struct Product<'a, T> {
    w: &'a [T],
    k: usize,
    x: &'a [f32],
    out: &'a mut [f32],
    /// Memory for widened weights.
    wide: &'a mut Vec<f32>,
}

impl<T: Element> Work for Product<'_, T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Product { w, k, x, out, wide } = self;
        let (n, rows) = (w.len() / k, x.len() / k);
        let mut lanes = ([[0f32; LANES]; 4 * BLOCK], [0f32; 4 * BLOCK]);
        for (i, w) in w.chunks(BLOCK * k).enumerate() {
            let (out, to) = (&mut out[i * BLOCK..], (n, &mut lanes));
            // SAFETY: the level is there, by the caller's word.
            unsafe {
                if let Some(w) = T::as_floats(w) {
                    block::<L, f32>(w, k, x, out, to);
                } else if rows >= WIDENED {
                    wide.clear();
                    wide.extend(w.iter().map(|x| x.get()));
                    block::<L, f32>(wide, k, x, out, to);
                } else {
                    block::<L, T>(w, k, x, out, to);
                }
            }
        }
    }
}

/// x·Wᵀ + b of x (rows, K). `finish` gets every row's results column range by column range, from
/// several threads: (row, first column, results).
///
/// # Panics
/// When the sizes differ.
pub fn matmul<T: Element>(
    level: Level,
    matrix: Matrix<T>,
    x: &[f32],
    finish: &(impl Fn(usize, usize, &mut [f32]) + Sync),
) {
    let (n, k) = (matrix.rows(), matrix.width);
    if n == 0 || x.is_empty() {
        return;
    }
    let rows = x.len() / k;
    assert!(n * k == matrix.weight.len() && rows * k == x.len());
    assert!(matrix.bias.is_none_or(|bias| bias.len() == n));
    // Equal parts of the rows, each a multiple of every tile's.
    let parts = rows.div_ceil(ROWS);
    let part = rows.div_ceil(parts).next_multiple_of(12).min(rows);
    let parts = rows.div_ceil(part);
    let unit = if n < 4 * BLOCK * pool::threads() { LANES } else { BLOCK };
    let most = (HELD / part / unit * unit).max(unit);
    pool::split_grid(parts, n, unit, most, &|i, columns, scratch| {
        let width = columns.len();
        let rows = i * part..((i + 1) * part).min(rows);
        let [out, wide] = scratch;
        out.resize(rows.len() * width, 0.0);
        let w = &matrix.weight[columns.start * k..columns.end * k];
        run(level, Product { w, k, x: &x[rows.start * k..rows.end * k], out, wide });
        for (row, products) in rows.zip(out.chunks_exact_mut(width)) {
            if let Some(bias) = matrix.bias {
                products.iter_mut().zip(&bias[columns.clone()]).for_each(|(y, b)| *y += b);
            }
            finish(row, columns.start, products);
        }
    });
}

/// [`matmul`] into `out` (rows, N).
///
/// # Panics
/// When the sizes differ.
pub fn matmul_into<T: Element>(level: Level, matrix: Matrix<T>, x: &[f32], out: &mut [f32]) {
    let n = matrix.rows();
    assert!(out.len() * matrix.width == x.len() * n);
    let out = SharedRows::new(out, n);
    matmul(level, matrix, x, &|row, column, values| {
        // SAFETY: every row and column is handed on once.
        unsafe { out.part(row, column, values.len()) }.copy_from_slice(values);
    });
}

#[cfg(test)]
mod tests {
    use super::super::simd::tests::at_every_level;
    use super::*;
    use half::bf16;
    use std::sync::Mutex;

    fn numbers(count: usize, factor: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * factor) % 101) as f32 / 50.0 - 1.0).collect()
    }

    fn product<T: Element>(level: Level, threads: usize, matrix: Matrix<T>, x: &[f32]) -> Vec<f32> {
        let (n, rows) = (matrix.rows(), x.len() / matrix.width);
        let out = Mutex::new(vec![f32::NAN; rows * n]);
        pool::with_threads(threads, || {
            matmul(level, matrix, x, &|row, column, products| {
                out.lock().unwrap()[row * n + column..][..products.len()].copy_from_slice(products);
            });
        });
        out.into_inner().unwrap()
    }

    /// Products of a type of weights at every level: near plain loops in f64, alike for a row alone
    /// and in company, on one thread and on three, and at AVX2 and AVX-512.
    fn check<T: Element>(n: usize, k: usize, rows: usize) {
        let weight: Vec<T> = numbers(n * k, 37).into_iter().map(T::put).collect();
        let (x, bias) = (numbers(rows * k, 53), numbers(n, 11));
        let matrix = Matrix { weight: &weight, bias: Some(&bias[..]), width: k };
        let mut fused: Option<Vec<f32>> = None;
        at_every_level(|level| {
            let out = product(level, 3, matrix, &x);
            let case = (level.name(), n, k, rows);
            for (r, x) in x.chunks(k).enumerate() {
                for c in 0..n {
                    let w = &weight[c * k..(c + 1) * k];
                    let products = w.iter().zip(x).map(|(w, &x)| f64::from(w.get()) * f64::from(x));
                    let exact = products.sum::<f64>() + f64::from(bias[c]);
                    assert!((f64::from(out[r * n + c]) - exact).abs() < 1e-4, "{case:?}");
                }
            }
            for r in [0, rows / 2, rows - 1] {
                let alone = product(level, 1, matrix, &x[r * k..(r + 1) * k]);
                assert_eq!(alone, out[r * n..(r + 1) * n], "{case:?}: row {r} alone");
            }
            if level > Level::Portable {
                assert_eq!(*fused.get_or_insert(out.clone()), out, "AVX2 and AVX-512 differ");
            }
        });
    }

    #[test]
    fn products_are_those_of_plain_loops_and_a_row_is_the_same_in_any_company() {
        for (n, k) in [(1, 1), (5, 16), (37, 19), (64, 48), (130, 100), (50, 600)] {
            for rows in [1, 2, 3, 4, 7, 8, 13, 40] {
                check::<f32>(n, k, rows);
                check::<bf16>(n, k, rows);
            }
        }
        check::<f32>(61, 33, 301);
        check::<bf16>(61, 33, 301);
    }

    #[test]
    fn nothing_is_asked_of_no_rows() {
        let matrix = Matrix { weight: &[1f32, 2.0], bias: None, width: 2 };
        assert!(product(Level::Portable, 1, matrix, &[]).is_empty());
    }
}
