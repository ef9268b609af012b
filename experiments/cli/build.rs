//! Tells `ccplane` where libtorch lies, if it is built with it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(path) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{path}");
    }
}
