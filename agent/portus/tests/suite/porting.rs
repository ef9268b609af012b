//! The two versions of one algorithm in the porting guide: what the guide shows is what is compiled here, and both set the same windows.

mod with_ccplane;
mod with_portus;

use crate::common::{S, World};
use ccplane_alg::Algorithm;
use ccplane_portus_host::host;
use std::sync::Arc;

const GUIDE: &str = include_str!("../../../../algs/docs/porting-from-portus.md");
const PORT: u16 = 40_001;
const INTERVAL_US: u32 = 50_000;
/// Long enough for several losses.
const LONG_US: u64 = 60 * S;

#[test]
fn the_guide_shows_what_is_compiled_here() {
    let files = [
        ("lisp", include_str!("porting/measure.fold")),
        ("rust", include_str!("porting/with_portus.rs")),
        ("rust", include_str!("porting/with_ccplane.rs")),
    ];
    for (language, text) in files {
        assert!(GUIDE.contains(&format!("```{language}\n{text}```\n")), "the guide lacks:\n{text}");
    }
}

/// Time, window and bytes acknowledged, each 100 ms; packets lost.
fn run(name: &'static str, algorithm: Arc<dyn Algorithm>) -> (Vec<(u64, u64, u64)>, u64) {
    let mut world = World::new(12, 20, vec![algorithm], &[(PORT, name)]);
    let flow = world.open(PORT);
    world.run(LONG_US);
    assert_eq!(world.native(flow), None);
    let samples = world.sim.samples(flow).iter().map(|s| (s.at_us, s.cwnd_bytes, s.bytes_acked)).collect();
    (samples, world.sim.stats(flow).unwrap().transport.lost)
}

#[test]
fn the_ported_algorithm_sets_the_same_windows_at_the_same_times() {
    let hosted = host!(portus, "hosted-aimd", || with_portus::Aimd { interval_us: INTERVAL_US });
    let (theirs, lost) = run("hosted-aimd", Arc::new(hosted));
    let (ours, lost_of_ours) = run("aimd", Arc::new(with_ccplane::Aimd { interval_us: INTERVAL_US }));
    println!("{} samples, {lost} packets lost", theirs.len());
    assert!(theirs.len() > 500 && lost > 10, "{} samples, {lost} lost", theirs.len());
    let difference = theirs.iter().zip(&ours).position(|(theirs, ours)| theirs != ours);
    assert_eq!(difference.map(|at| (theirs[at], ours[at])), None);
    assert_eq!((theirs.len(), lost), (ours.len(), lost_of_ours));
}
