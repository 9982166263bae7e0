//! Products of many rows with a matrix in f32, and the NLL of an output layer made of them.
//!
//! The crate gemm has kernels for 512-bit vectors, which MKL withholds from processors that are not
//! its maker's: on such a machine they are twice as fast. Rows are shared among threads, and the
//! logits of a thread's rows come tile by tile, which stay in its caches between the product that
//! makes them and the sum that reads them. The crate chooses its instructions itself: `AO_SIMD` does
//! not reach it.

use std::ops::Range;

use super::matmul::Matrix;
use super::pool;
use super::running::{Running, add_parts};

/// Rows whose logits a thread holds at a time.
const ROWS: usize = 1024;
/// Fewest rows that are shared among threads.
const LEAST: usize = 64;
/// Ids whose logits it holds.
const TILE: usize = 512;

/// x·Wᵀ + b of rows (M, K) into `out` (M, N), on this thread.
fn product(x: &[f32], matrix: Matrix<f32>, out: &mut [f32]) {
    let (k, n) = (matrix.width, matrix.rows());
    let m = x.len() / k;
    assert_eq!((x.len(), out.len(), matrix.weight.len()), (m * k, m * n, n * k));
    if m == 0 || n == 0 {
        return;
    }
    if let Some(bias) = matrix.bias {
        out.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(bias));
    }
    let (n_step, k_step) = (n as isize, k as isize);
    // SAFETY: the three sizes were checked against the slices; W is read as (K, N) by its strides.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n_step,
            matrix.bias.is_some(),
            x.as_ptr(),
            1,
            k_step,
            matrix.weight.as_ptr(),
            k_step,
            1,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// The parts of `rows` rows that threads take. Each has rows enough for the kernel of large products,
/// whose sums are added up in one order whatever their number.
fn parts(rows: usize) -> Vec<Range<usize>> {
    let count = (rows / LEAST).clamp(1, pool::threads()).max(rows.div_ceil(ROWS));
    (0..count).map(|i| rows * i / count..rows * (i + 1) / count).collect()
}

/// x·Wᵀ + b of rows (M, K) into `out` (M, N).
///
/// # Panics
/// When the sizes differ.
pub fn linear(x: &[f32], matrix: Matrix<f32>, out: &mut [f32]) {
    let (k, n) = (matrix.width, matrix.rows());
    let mut rest = out;
    let piece = |part: Range<usize>| {
        let (own, others) = std::mem::take(&mut rest).split_at_mut(part.len() * n);
        rest = others;
        (&x[part.start * k..part.end * k], own)
    };
    let pieces = parts(x.len() / k).into_iter().map(piece).collect();
    pool::each(pieces, &|(x, out): (&[f32], &mut [f32])| product(x, matrix, out));
}

/// NLL in nats of the target of each row (M, K), none of them negative, under softmax(x·Wᵀ + b).
///
/// # Panics
/// When the sizes differ.
pub fn nll(x: &[f32], matrix: Matrix<f32>, targets: &[i64]) -> Vec<f64> {
    let k = matrix.width;
    assert_eq!(x.len(), targets.len() * k);
    let mut out = vec![0.0; targets.len()];
    let mut rest = out.as_mut_slice();
    let piece = |part: Range<usize>| {
        let (own, others) = std::mem::take(&mut rest).split_at_mut(part.len());
        rest = others;
        ((&x[part.start * k..part.end * k], &targets[part]), own)
    };
    let pieces = parts(targets.len()).into_iter().map(piece).collect();
    pool::each(pieces, &|((x, targets), out): ((&[f32], &[i64]), &mut [f64])| {
        nll_of_part(x, matrix, targets, out);
    });
    out
}

fn nll_of_part(x: &[f32], matrix: Matrix<f32>, targets: &[i64], out: &mut [f64]) {
    let vocab = matrix.rows();
    // A rest that would be narrow belongs to the tile before.
    let tiles = ((vocab + TILE - LEAST) / TILE).max(1);
    let mut buffer = vec![0f32; targets.len() * vocab.min(TILE + LEAST)];
    let mut running = vec![Running::default(); targets.len()];
    for tile in 0..tiles {
        let first = tile * TILE;
        let width = if tile + 1 == tiles { vocab - first } else { TILE };
        let logits = &mut buffer[..targets.len() * width];
        product(x, matrix.part(first, width), logits);
        add_parts(logits, width, first, targets, &mut running);
    }
    out.iter_mut().zip(&running).for_each(|(out, running)| *out = running.nll());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * step) % 97) as f32 / 97.0 - 0.5).collect()
    }

    fn exact(x: &[f32], matrix: Matrix<f32>) -> Vec<f64> {
        let rows = x.chunks(matrix.width);
        let of_row = |row: &[f32]| -> Vec<f64> {
            let weights = matrix.weight.chunks(matrix.width).enumerate();
            weights
                .map(|(n, w)| {
                    let products = row.iter().zip(w).map(|(&a, &b)| f64::from(a) * f64::from(b));
                    products.sum::<f64>() + matrix.bias.map_or(0.0, |b| f64::from(b[n]))
                })
                .collect()
        };
        rows.flat_map(of_row).collect()
    }

    #[test]
    fn products_are_exact_to_f32_on_any_number_of_threads() {
        for (m, n, k) in [(1, 1, 1), (5, 7, 3), (70, 130, 48), (3, 600, 17)] {
            let (x, weight, bias) = (numbers(m * k, 31), numbers(n * k, 57), numbers(n, 11));
            for bias in [None, Some(&bias[..])] {
                let matrix = Matrix { weight: &weight, bias, width: k };
                let expected = exact(&x, matrix);
                for threads in [1, 3] {
                    let mut out = vec![f32::NAN; m * n];
                    pool::with_threads(threads, || linear(&x, matrix, &mut out));
                    for (a, b) in out.iter().zip(&expected) {
                        assert!((f64::from(*a) - b).abs() < 1e-5, "{m} {n} {k}: {a} {b}");
                    }
                }
            }
        }
    }

    #[test]
    fn nll_by_tiles_is_that_of_whole_rows() {
        let (m, n, k) = (1030, 1100, 8);
        let (x, weight, bias) = (numbers(m * k, 31), numbers(n * k, 57), numbers(n, 11));
        let matrix = Matrix { weight: &weight, bias: Some(&bias), width: k };
        let targets: Vec<i64> = (0..m).map(|i| (i * 37 % n) as i64).collect();
        let logits = exact(&x, matrix);
        for threads in [1, 2] {
            let found = pool::with_threads(threads, || nll(&x, matrix, &targets));
            for ((row, &target), found) in logits.chunks(n).zip(&targets).zip(found) {
                let sum: f64 = row.iter().map(|x| x.exp()).sum();
                assert!((found - (sum.ln() - row[target as usize])).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn equal_logits_give_exactly_ln_v() {
        for vocab in [3, 512, 513, 50_304] {
            let weight = vec![0f32; vocab * 4];
            let matrix = Matrix { weight: &weight, bias: None, width: 4 };
            assert_eq!(nll(&[1.0; 8], matrix, &[0, 2]), [(vocab as f64).ln(); 2]);
        }
    }

    #[test]
    fn a_row_is_rounded_alike_on_any_number_of_threads_and_in_any_company() {
        for (n, k) in [(64, 32), (520, 33), (96, 1030)] {
            let (x, weight) = (numbers(1500 * k, 7), numbers(n * k, 5));
            let matrix = Matrix { weight: &weight, bias: None, width: k };
            let targets: Vec<i64> = (0..1500).map(|i| i % n as i64).collect();
            let run = |m: usize, threads: usize| {
                let mut out = vec![f32::NAN; m * n];
                pool::with_threads(threads, || {
                    linear(&x[..m * k], matrix, &mut out);
                    (out, nll(&x[..m * k], matrix, &targets[..m]))
                })
            };
            let (products, scores) = run(1500, 1);
            for (m, threads) in [(64, 1), (65, 3), (130, 2), (1025, 1), (1500, 3)] {
                let (p, s) = run(m, threads);
                assert!(p == products[..m * n] && s == scores[..m], "{m} rows, {threads} threads");
            }
        }
    }
}
