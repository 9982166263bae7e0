//! The light tools do not load libtorch.

use std::process::Command;

#[test]
fn light_tools_do_not_link_libtorch() {
    for path in [
        env!("CARGO_BIN_EXE_ao-ema"),
        env!("CARGO_BIN_EXE_ao-import"),
        env!("CARGO_BIN_EXE_ao-orders"),
        env!("CARGO_BIN_EXE_ao-summary"),
        env!("CARGO_BIN_EXE_ao-tokenize"),
    ] {
        let out = Command::new("readelf").args(["-d", path]).output().expect("binutils");
        let text = String::from_utf8_lossy(&out.stdout);
        // Only the lines of libraries: an address may hold "c10" too.
        let needed: Vec<&str> = text.lines().filter(|l| l.contains("(NEEDED)")).collect();
        assert!(!needed.is_empty(), "{path}: readelf printed no libraries");
        for library in ["torch", "c10", "gomp"] {
            let found = needed.iter().find(|l| l.contains(library));
            assert!(found.is_none(), "{path} needs {library}: {found:?}");
        }
    }
}
