//! Loops over plain slices that libtorch has no good operation for: one pass where its operations
//! would need five, and sums in f64 where it has only f32. CPU only; each has a formulation in
//! libtorch's operations beside its caller, for other devices, and a test that both agree.

/// A function that runs `$inner` compiled for the level in use ([`simd::level`]); the arithmetic and
/// its order are the same at all.
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
                use $crate::kernels::simd::{Level, level};
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
                unsafe fn wide $(<$t: $bound>)? ($($arg: $ty),*) -> $out { $inner($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                unsafe fn narrow $(<$t: $bound>)? ($($arg: $ty),*) -> $out { $inner($($arg),*) }
                // SAFETY: no level in use is above the machine's.
                match level() {
                    Level::Avx512 => return unsafe { wide($($arg),*) },
                    Level::Avx2 => return unsafe { narrow($($arg),*) },
                    Level::Portable => {}
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
pub mod simd;
pub mod softmax;
