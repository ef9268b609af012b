//! The contract's conformance suite on compiled programs, run by the kernel.

use ccplane_contract::suite::conform;
use ccplane_ebpf::testrun::Bench;

#[test]
fn conforms() {
    let mut bench = match Bench::new() {
        Ok(bench) => bench,
        Err(e) => {
            ccplane_testing::skipped("conformance of compiled programs in the kernel", e);
            return;
        }
    };
    let scripts = std::env::var("CCPLANE_CASES").ok().and_then(|v| v.parse().ok()).unwrap_or(1000);
    let result = conform(&mut bench, scripts, 1);
    for (name, why) in result.failed.iter().take(3) {
        eprintln!("{name}: {why}");
    }
    assert!(
        result.failed.is_empty(),
        "{} of {} failed",
        result.failed.len(),
        result.failed.len() + result.passed.len()
    );
    assert!(result.passed.len() >= scripts as usize);
}
