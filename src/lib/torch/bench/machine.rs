//! The machine that figures are measured on: processor, memory, libraries.

use std::fs;

use serde_json::{Value, json};

use crate::device::{Runtime, memory_bytes};
use crate::kernels::simd::{self, Level};

/// Processor, cores, memory, device, threads and versions, for the `run` record.
pub(super) fn describe(runtime: &Runtime) -> Value {
    let of = |file: &str, key: &str| -> Option<String> {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    json!({
        "cpu": of("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "memory_bytes": memory_bytes(),
        "device": runtime.device_name(),
        "threads": runtime.threads,
        "avx512": Level::of_machine() == Level::Avx512,
        "simd": simd::level().name(),
        "libtorch": crate::LIBTORCH,
        "load_average": fs::read_to_string("/proc/loadavg")
            .ok()
            .and_then(|text| text.split(' ').next()?.parse::<f64>().ok()),
    })
}
