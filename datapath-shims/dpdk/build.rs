//! Builds the C half against the DPDK that pkg-config finds: Debian's `libdpdk-dev`, 22.11 or later.

fn main() {
    println!("cargo:rerun-if-changed=src/shim.c");
    let dpdk = match pkg_config::Config::new().atleast_version("22.11").probe("libdpdk") {
        Ok(dpdk) => dpdk,
        Err(error) => {
            eprintln!(
                "ccplane-dpdk needs DPDK 22.11 or later (Debian and Ubuntu: apt-get install libdpdk-dev): {error}"
            );
            std::process::exit(1);
        }
    };
    cc::Build::new()
        .file("src/shim.c")
        .includes(&dpdk.include_paths)
        // DPDK's own flags, of which pkg-config's library hands on only paths and names.
        .flag("-include")
        .flag("rte_config.h")
        .flag_if_supported("-march=corei7")
        .flag("-Wno-unused-parameter")
        .opt_level(3)
        .compile("ccplane_dpdk_shim");
}
