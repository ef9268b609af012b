//! What each algorithm is held to, and all of them at once.

use ccplane_alg::Algorithm;
use ccplane_kit::Bounds;
use std::sync::Arc;

/// The bounds of an algorithm.
pub fn bounds(algorithm: &dyn Algorithm) -> Bounds {
    let default = Bounds::default();
    match algorithm.name() {
        // Its rate is its own, whatever the path has.
        "constant" => {
            let rate = algorithm.parameters().iter().find(|p| p.name == "rate_bytes_per_s").unwrap().default;
            Bounds { ceiling_bytes_per_s: Some(rate as u64), ..default }
        }
        _ => default,
    }
}

/// Runs a check of every algorithm at once; fails with the names of all that failed.
#[allow(dead_code, reason = "each test file uses its part")]
pub fn each(check: impl Fn(Arc<dyn Algorithm>, Bounds) + Sync) {
    let failed: Vec<&str> = std::thread::scope(|scope| {
        let start = |algorithm: Arc<dyn Algorithm>| {
            let (name, bounds, check) = (algorithm.name(), bounds(&*algorithm), &check);
            (name, scope.spawn(move || check(algorithm, bounds)))
        };
        let running: Vec<_> = ccplane_algs::all().into_iter().map(start).collect();
        running.into_iter().filter_map(|(name, run)| run.join().is_err().then_some(name)).collect()
    });
    assert!(failed.is_empty(), "{failed:?}");
}
