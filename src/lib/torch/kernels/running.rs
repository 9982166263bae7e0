//! NLL of rows whose logits come part by part, so that no whole row need exist.

use super::pool;
use super::softmax::{Logit, max_and_sum};

/// [`max_and_sum`] of a part of a row; a part of −∞ alone adds nothing.
#[inline(always)]
fn part_of_row<T: Logit>(part: &[T]) -> (f32, f64) {
    let (max, sum) = max_and_sum(part);
    let nothing = max == f32::NEG_INFINITY && !part.iter().any(|x| x.get().is_nan());
    (max, if nothing { 0.0 } else { sum })
}

dispatch!(fn part_fast<T: Logit> = part_of_row(part: &[T]) -> (f32, f64));
/// The NLL of a row whose logits come part by part.
#[derive(Debug, Clone, Copy)]
pub struct Running {
    max: f32,
    /// Σ exp(logit − max) so far.
    sum: f64,
    target: f32,
}

impl Default for Running {
    fn default() -> Running {
        Running { max: f32::NEG_INFINITY, sum: 0.0, target: f32::NAN }
    }
}

impl Running {
    fn add<T: Logit>(&mut self, part: &[T], target: Option<usize>) {
        let (max, sum) = part_fast(part);
        if let Some(target) = target {
            self.target = part[target].get();
        }
        // exp(0) is 1 exactly, so a row of equal logits keeps giving exactly ln V.
        let scale = |from: f32, to: f32| if from == to { 1.0 } else { f64::from(from - to).exp() };
        if max > self.max {
            self.sum = if self.sum == 0.0 { 0.0 } else { self.sum * scale(self.max, max) } + sum;
            self.max = max;
        } else {
            self.sum += if sum == 0.0 { 0.0 } else { sum * scale(max, self.max) };
        }
    }

    /// The NLL, once every part is in.
    pub fn nll(&self) -> f64 {
        self.sum.ln() + (f64::from(self.max) - f64::from(self.target))
    }
}

/// Adds the logits of ids `first..first + width` of every row to what is known of it; `targets` are
/// the rows' ids, none of them negative.
///
/// # Panics
/// When the sizes differ.
pub fn add_parts<T: Logit>(
    logits: &[T],
    width: usize,
    first: usize,
    targets: &[i64],
    running: &mut [Running],
) {
    assert_eq!((logits.len(), targets.len()), (width * running.len(), running.len()));
    let rows = pool::piece(running.len(), 1);
    let pieces = running.chunks_mut(rows).enumerate().collect();
    pool::each(pieces, &|(i, running): (usize, &mut [Running])| {
        for (row, running) in (i * rows..).zip(running) {
            let target = usize::try_from(targets[row]).ok();
            let target = target.and_then(|t| t.checked_sub(first)).filter(|&t| t < width);
            running.add(&logits[row * width..(row + 1) * width], target);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::softmax::nll_rows;

    #[test]
    fn a_row_that_comes_in_parts_has_the_nll_of_the_whole() {
        let width = 1003;
        let row: Vec<f32> = (0..width).map(|i| ((i * 37) % 101) as f32 - 60.0).collect();
        for cut in [1, 64, 1000, 1003] {
            for target in [0, 63, 64, 999, 1002] {
                let mut running = [Running::default()];
                for (i, part) in row.chunks(cut).enumerate() {
                    add_parts(part, part.len(), i * cut, &[target], &mut running);
                }
                let whole = nll_rows(&row, width, &[target])[0];
                assert!((running[0].nll() - whole).abs() < 1e-6, "cut {cut}, target {target}");
            }
        }
        // Equal logits stay exact, −∞ adds nothing, a NaN is not lost.
        let nll = |parts: &[&[f32]]| {
            let mut running = [Running::default()];
            let mut first = 0;
            for part in parts {
                add_parts(part, part.len(), first, &[0], &mut running);
                first += part.len();
            }
            running[0].nll()
        };
        assert_eq!(nll(&[&[2.0; 40], &[2.0; 10]]), 50f64.ln());
        assert_eq!(nll(&[&[2.0; 40], &[f32::NEG_INFINITY; 3]]), 40f64.ln());
        assert!(nll(&[&[2.0; 40], &[f32::NAN]]).is_nan());
        assert!(nll(&[&[2.0; 40], &[f32::NAN, f32::NEG_INFINITY]]).is_nan());
        assert!(!nll(&[&[f32::NEG_INFINITY; 4], &[f32::NEG_INFINITY]]).is_finite());
    }
}
