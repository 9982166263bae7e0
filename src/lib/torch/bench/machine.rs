//! What figures are of: the processor, its memory, the libraries.

use std::fs;

use serde_json::{Value, json};

use crate::device::Place;
use crate::kernels::simd::{self, Level};

/// The libtorch that these bindings are made for, and link to no other.
const LIBTORCH: &str = "2.11.0";

/// Processor, cores, memory, device, threads and versions, for the `run` record.
pub(super) fn describe(place: &Place) -> Value {
    let of = |file: &str, key: &str| -> Option<String> {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kib = of("/proc/meminfo", "MemTotal");
    let kib = kib.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    json!({
        "cpu": of("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "memory_bytes": kib.map(|n| n * 1024),
        "device": place.device_name(),
        "threads": place.threads,
        "avx512": Level::of_machine() == Level::Avx512,
        "simd": simd::level().name(),
        "libtorch": LIBTORCH,
        "load_average": fs::read_to_string("/proc/loadavg")
            .ok()
            .and_then(|text| text.split(' ').next()?.parse::<f64>().ok()),
    })
}
