//! Every executor of snapshots gives the oracle's bits.

const INPUTS: u64 = 200_000;

#[test]
fn executors_agree_to_the_bit() {
    for (executor, count) in crate::exact::run(INPUTS, 1) {
        assert!(count >= INPUTS, "{executor} ran on {count} inputs");
    }
}
