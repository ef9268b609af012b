//! Every executor of snapshots gives the oracle's bits.
#![allow(clippy::unwrap_used)]

#[path = "exact/mod.rs"]
mod exact;

const INPUTS: u64 = 200_000;

#[test]
fn executors_agree_to_the_bit() {
    for (executor, count) in exact::run(INPUTS, 1) {
        assert!(count >= INPUTS, "{executor} ran on {count} inputs");
    }
}
