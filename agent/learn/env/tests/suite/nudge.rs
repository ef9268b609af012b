//! The example of a policy of one's own, which the book goes through: it learns, and what it writes is a snapshot.

#[allow(dead_code, reason = "the example's own main is not called")]
#[path = "../../examples/nudge/main.rs"]
mod example;

use ccplane_snapshot::Snapshot;
use std::fs;

/// Enough for some updates.
const DECISIONS: u64 = 30_000;

#[test]
fn the_example_writes_a_policy_and_its_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let (recipe, policy, made) = example::learn(folder.path(), DECISIONS).unwrap();
    let there = Snapshot::parse(&fs::read(folder.path().join("nudge.snapshot")).unwrap()).unwrap();
    assert_eq!(there.hash(), made.hash());
    assert_eq!((there.shape().inputs(), recipe.spec.inputs().len()), (8, 8));
    assert_ne!(policy.actor(), recipe.initial().unwrap().actor(), "nothing was learned");
    assert!(folder.path().join("nudge.safetensors").is_file());
}
