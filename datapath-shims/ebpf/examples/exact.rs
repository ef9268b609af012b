//! Holds every executor of snapshots against the oracle on random and adversarial inputs: `cargo run --release -p
//! ccplane-ebpf --example exact -- 10000000 [SEED]`.
#![allow(clippy::unwrap_used)]

#[path = "../tests/exact/mod.rs"]
mod exact;

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse().ok());
    let (inputs, seed) = (args.next().unwrap_or(10_000_000), args.next().unwrap_or(1));
    for (executor, count) in exact::run(inputs, seed) {
        println!("{executor}: {count} inputs, each equal to the oracle's bits");
    }
}
