//! Loops over plain slices that libtorch has no good operation for: one pass where its operations
//! would need five, and sums in f64 where it has only f32. CPU only; each has a formulation in
//! libtorch's operations beside its caller, for other devices, and a test that both agree.

/// A function that runs `$inner` compiled for the widest vectors of this machine, found at run
/// time; the arithmetic and its order are the same on all.
macro_rules! dispatch {
    (
        $(#[$doc:meta])*
        $vis:vis fn $name:ident $(<$t:ident: $bound:path>)? = $inner:ident
        ($($arg:ident : $ty:ty),*) -> $out:ty
    ) => {
        $(#[$doc])*
        #[inline(always)]
        $vis fn $name $(<$t: $bound>)? ($($arg: $ty),*) -> $out {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
                unsafe fn wide $(<$t: $bound>)? ($($arg: $ty),*) -> $out { $inner($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                unsafe fn narrow $(<$t: $bound>)? ($($arg: $ty),*) -> $out { $inner($($arg),*) }
                if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl") {
                    // SAFETY: the features were detected on this machine.
                    return unsafe { wide($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the features were detected on this machine.
                    return unsafe { narrow($($arg),*) };
                }
            }
            $inner($($arg),*)
        }
    };
}

pub mod adamw;
pub mod attention;
pub mod categorical;
pub mod elementwise;
pub mod gemm;
pub mod matmul;
pub mod pool;
pub mod running;
pub mod softmax;

/// Splits `rows` rows into at most `threads` contiguous parts of nearly equal size.
pub(crate) fn parts(rows: usize, threads: usize) -> Vec<std::ops::Range<usize>> {
    let threads = threads.clamp(1, rows.max(1));
    (0..threads).map(|i| rows * i / threads..rows * (i + 1) / threads).collect()
}
