//! Loops over plain slices that libtorch has no good operation for: one pass where its operations
//! would need five, and sums in f64 where it has only f32. CPU only; each has a formulation in
//! libtorch's operations beside its caller, for other devices, and a test that both agree.

pub mod adamw;
pub mod categorical;
pub mod softmax;

/// Splits `rows` rows into at most `threads` contiguous parts of nearly equal size.
pub(crate) fn parts(rows: usize, threads: usize) -> Vec<std::ops::Range<usize>> {
    let threads = threads.clamp(1, rows.max(1));
    (0..threads).map(|i| rows * i / threads..rows * (i + 1) / threads).collect()
}
