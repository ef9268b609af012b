//! The soak, for half a minute: what it starts runs, what it measures is there, and nothing is left.
#![allow(clippy::unwrap_used)]

use ccplane_soak::{Config, GrowthVerdict, judge, run, table};
use ccplane_testing::lacks;
use std::path::Path;
use std::time::Duration;

#[test]
fn half_a_minute_leaves_nothing_and_grows_nowhere() {
    let check = "soak";
    if lacks(check, ccplane_ebpf::missing()) || lacks(check, ccplane_runner::missing_for_links().first()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let outcome = run(&Config {
        ccplane: env!("CARGO_BIN_EXE_ccplane").into(),
        snapshot: root.join("algs/policies/aurora.snapshot"),
        duration: Duration::from_secs(30),
        seed: 1,
        samples: folder.path().join("samples"),
    })
    .unwrap();
    let judged = judge(&outcome.samples, outcome.took_s);
    eprintln!("{:?}\n{}", outcome.counts, table(&judged));
    let counts = outcome.counts;
    assert!(
        counts.long_flows > 0 && counts.short_flows > 0 && counts.files > 0 && counts.puts > 0,
        "{counts:?}"
    );
    assert!(outcome.samples.iter().any(|s| s.agent.is_some_and(|p| p.bpf_fds > 0) && s.pins > 0));
    assert!(!judged.iter().any(|j| matches!(j.verdict, GrowthVerdict::Grows(_))));
    assert_eq!(outcome.left, Vec::<String>::new());
}
