//! Threads, device and precision, chosen once before the first tensor exists.

use ao_core::cli::{Compute, DType, DeviceChoice};
use ao_core::{Error, Result};
use tch::{Cuda, Device, Kind, TchError};

use crate::kernels::{pool, simd};

/// Where tensors live and in which kind matrices are multiplied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Runtime {
    /// The device of every tensor.
    pub device: Device,
    /// Kind of matrix products: `Float`, `BFloat16` or `Half`.
    pub compute: Kind,
    /// CPU threads, for libtorch and for our own kernels.
    pub threads: usize,
}

impl Runtime {
    /// Applies `--device`, `--dtype`, `--threads` and `AO_SIMD` to the process.
    ///
    /// # Errors
    /// When `AO_SIMD` names no level, or a GPU is asked for and there is none; the text tells a build
    /// without CUDA apart from a machine without a GPU.
    pub fn start(choice: &Compute) -> Result<Runtime> {
        simd::start()?;
        let threads = choice.thread_count();
        pool::start(threads);
        tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
        let device = match choice.device {
            DeviceChoice::Cpu => Device::Cpu,
            DeviceChoice::Auto if gpu_count() > 0 => Device::Cuda(0),
            DeviceChoice::Auto => Device::Cpu,
            DeviceChoice::Cuda(n) => {
                let count = gpu_count();
                if n >= count {
                    return Err(Error::usage(format!(
                        "--device cuda:{n}: {}",
                        if cuda_is_linked() {
                            format!("{count} GPUs were found; choose a lower number or cpu")
                        } else {
                            "this build has no CUDA; build with make DEVICE=cuda".into()
                        }
                    )));
                }
                Device::Cuda(n)
            }
        };
        Ok(Runtime { device, compute: kind_of(choice.dtype), threads })
    }

    /// The kind that a network over `weights` multiplies in: one in f64 is exact throughout.
    pub fn compute_of(&self, weights: &crate::network::Weights) -> Kind {
        if weights.flat().kind() == Kind::Double { Kind::Double } else { self.compute }
    }

    /// The device's name in records: `cpu`, `cuda:0`.
    pub fn device_name(&self) -> String {
        match self.device {
            Device::Cuda(n) => format!("cuda:{n}"),
            _ => "cpu".into(),
        }
    }
}

/// The tensor kind of a `--dtype`.
pub fn kind_of(dtype: DType) -> Kind {
    match dtype {
        DType::F32 => Kind::Float,
        DType::Bf16 => Kind::BFloat16,
        DType::F16 => Kind::Half,
    }
}

fn gpu_count() -> usize {
    usize::try_from(Cuda::device_count()).unwrap_or(0)
}

/// Whether libtorch_cuda was loaded at all; `Cuda::device_count` is 0 either way without a GPU.
pub fn cuda_is_linked() -> bool {
    std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("libtorch_cuda"))
}

/// A libtorch error as one of ours: the first line alone, as the rest is a C++ stack.
pub fn torch_error(error: TchError) -> Error {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or("libtorch failed").to_owned();
    Error::Device(format!("libtorch: {first}"))
}

/// The memory of this machine, in bytes, where the system tells it.
pub fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
