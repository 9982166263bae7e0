//! The light tools do not load libtorch.

use std::process::Command;

#[test]
fn light_tools_do_not_link_libtorch() {
    for path in [
        env!("CARGO_BIN_EXE_ao-ema"),
        env!("CARGO_BIN_EXE_ao-orders"),
        env!("CARGO_BIN_EXE_ao-summary"),
        env!("CARGO_BIN_EXE_ao-tokenize"),
    ] {
        let out = Command::new("readelf").args(["-d", path]).output().expect("binutils");
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains("NEEDED"), "{path}: readelf printed no libraries");
        for library in ["torch", "c10", "gomp"] {
            assert!(!text.contains(library), "{path} needs {library}: {text}");
        }
    }
}
