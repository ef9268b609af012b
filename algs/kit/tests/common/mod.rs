//! The bounds of each algorithm, and checks of all algorithms at once.

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, PolicySource, ProgramSource};
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
        // Its agent's side waits for no report, and there are none of intervals that the application limited.
        "aurora-fold" => Bounds { report_us: 60_000_000, ..default },
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

/// A learned algorithm with a policy of the kit's own. Its flows do not change when the policy that ships is trained
/// anew.
struct Pinned {
    algorithm: Arc<dyn Algorithm>,
    snapshot: &'static [u8],
}

impl Algorithm for Pinned {
    fn name(&self) -> &'static str {
        self.algorithm.name()
    }
    fn programs(&self) -> Vec<ProgramSource> {
        self.algorithm.programs()
    }
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        self.algorithm.flow(info, control)
    }
    fn policies(&self) -> Vec<PolicySource> {
        let own =
            |shipped: PolicySource| PolicySource { snapshot: self.snapshot, policy: Arc::new([]), ..shipped };
        self.algorithm.policies().into_iter().map(own).collect()
    }
}

/// Returns the algorithm that goldens are taken of; `None` if it moves as the policy that ships has it, wherever that
/// is asked.
#[allow(dead_code, reason = "each test file uses its part")]
pub fn pinned(algorithm: Arc<dyn Algorithm>) -> Option<Arc<dyn Algorithm>> {
    let snapshot: &[u8] = match algorithm.name() {
        "aurora" => include_bytes!("../policies/aurora.snapshot"),
        "mocc" => include_bytes!("../policies/mocc.snapshot"),
        "neural" => include_bytes!("../policies/neural.snapshot"),
        "aurora-still" | "aurora-fold" | "aurora-agent" | "mocc-agent" | "neural-agent" => return None,
        _ => return Some(algorithm),
    };
    Some(Arc::new(Pinned { algorithm, snapshot }))
}
