//! Gives the tensor binaries the path of libtorch, so that they run without LD_LIBRARY_PATH, and
//! keeps libtorch_cuda, which no symbol names, from being dropped by the linker.

use std::path::Path;

/// The binaries that use tensors. The others never name `ao_torch`, so they never link libtorch.
const TENSOR_BINARIES: [&str; 4] = ["ao-train", "ao-sample", "ao-score", "ao-bench"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/bin"); // which binaries exist decides what is linked
    let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") else { return };
    // Through links the wheel's own $ORIGIN paths would be looked up in the wrong folder.
    let lib = std::fs::canonicalize(&lib).unwrap_or_else(|_| lib.into());
    let cuda = lib.join("libtorch_cuda.so").exists();
    for name in TENSOR_BINARIES {
        if !Path::new(&format!("src/bin/{name}.rs")).exists() {
            continue;
        }
        println!("cargo:rustc-link-arg-bin={name}=-Wl,-rpath,{}", lib.display());
        if cuda {
            println!("cargo:rustc-link-arg-bin={name}=-Wl,--no-as-needed");
            println!("cargo:rustc-link-arg-bin={name}=-L{}", lib.display());
            println!("cargo:rustc-link-arg-bin={name}=-ltorch");
        }
    }
    // Integration tests and benchmarks that use tensors in-process.
    println!("cargo:rustc-link-arg-tests=-Wl,-rpath,{}", lib.display());
    println!("cargo:rustc-link-arg-benches=-Wl,-rpath,{}", lib.display());
}
