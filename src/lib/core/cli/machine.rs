//! What the machine says of this process: the memory it has held, the instructions it may use.

/// The most memory that this process has held so far, in bytes (Linux's `VmHWM`); `None` where the
/// system does not tell it.
pub fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The vector instruction sets of this processor that matter for speed, the narrowest first, as in
/// `avx2 fma avx512f`; `avx512bf16` and `amx-bf16` multiply bf16. Empty where there are none.
pub fn instruction_sets() -> String {
    let mut found: Vec<&str> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        for (name, there) in [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("fma", is_x86_feature_detected!("fma")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
            // The tiles have no name in stable Rust: leaf 7, bit 22 of EDX.
            ("amx-bf16", std::arch::x86_64::__cpuid_count(7, 0).edx & 1 << 22 != 0),
        ] {
            if there {
                found.push(name);
            }
        }
    }
    found.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_holds_what_was_written() {
        let block = vec![1u8; 64 << 20];
        assert!(block.iter().step_by(4096).all(|&b| b == 1));
        assert!(peak_memory_bytes().unwrap() >= 64 << 20);
    }
}
