//! The light tools do not load libtorch; the others find it by themselves.

use std::process::Command;

/// The lines of `readelf -d` that hold `what`.
fn dynamic(path: &str, what: &str) -> Vec<String> {
    let out = Command::new("readelf").args(["-d", path]).output().expect("binutils");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines().filter(|l| l.contains(what)).map(String::from).collect()
}

#[test]
fn light_tools_do_not_link_libtorch() {
    for path in [
        env!("CARGO_BIN_EXE_ao-ema"),
        env!("CARGO_BIN_EXE_ao-import"),
        env!("CARGO_BIN_EXE_ao-orders"),
        env!("CARGO_BIN_EXE_ao-summary"),
        env!("CARGO_BIN_EXE_ao-tokenize"),
    ] {
        // Only the lines of libraries: an address may hold "c10" too.
        let needed = dynamic(path, "(NEEDED)");
        assert!(!needed.is_empty(), "{path}: readelf printed no libraries");
        for library in ["torch", "c10", "gomp"] {
            let found = needed.iter().find(|l| l.contains(library));
            assert!(found.is_none(), "{path} needs {library}: {found:?}");
        }
    }
}

#[test]
fn tensor_tools_link_libtorch_and_run_without_a_library_path() {
    for path in [
        env!("CARGO_BIN_EXE_ao-bench"),
        env!("CARGO_BIN_EXE_ao-sample"),
        env!("CARGO_BIN_EXE_ao-score"),
        env!("CARGO_BIN_EXE_ao-train"),
    ] {
        let needed = dynamic(path, "(NEEDED)");
        assert!(needed.iter().any(|l| l.contains("libtorch_cpu.so")), "{path}: {needed:?}");
        // Where the folder of libtorch has CUDA's half, the linker must not have dropped it.
        let runpath = dynamic(path, "PATH)").concat();
        let folder =
            runpath.split(['[', ']']).nth(1).unwrap_or_default().split(':').next().unwrap();
        if std::path::Path::new(folder).join("libtorch_cuda.so").exists() {
            assert!(needed.iter().any(|l| l.contains("[libtorch.so]")), "{path}: {needed:?}");
        }
        let out = Command::new(path).arg("--version").env_clear().output().unwrap();
        assert!(out.status.success(), "{path}: {}", String::from_utf8_lossy(&out.stderr));
    }
}
