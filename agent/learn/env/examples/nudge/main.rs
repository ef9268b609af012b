//! A policy of one's own: `cargo run --release -p ccplane-env --example nudge -- FOLDER` trains it from nothing, rounds it to integers,
//! and compares it with others. The book's page on policies goes through it.

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report, RowBuilder};
use ccplane_env::recipe::{Recipe, VISITED_EPISODES};
use ccplane_learn::{Architecture, BackEnd, Policy, TrainConfig, train};
use ccplane_quantize::{Activation, Options};
use ccplane_snapshot::{Action, ActionMap, Feature, PolicySpec, Provenance, Snapshot};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

/// The slot of `(policy 8)`: no algorithm that ships has it.
const SLOT: u8 = 8;
/// Round trips that the network sees, and what it sees of each.
const DEPTH: usize = 4;
const FEATURES: &[&str] = &["queue", "loss"];
/// Decisions to learn from.
const DECISIONS: u64 = 500_000;
/// One, in units of 2^-16.
const ONE_Q16: i32 = 1 << 16;

struct Nudge;

impl Algorithm for Nudge {
    fn name(&self) -> &'static str {
        "nudge"
    }
    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "nudge", source: include_str!("nudge.fold") }]
    }
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("nudge", &[("mss", i64::from(info.mss_bytes))]);
        let rows = RowBuilder::new(SLOT, DEPTH, FEATURES, Vec::new());
        Box::new(NudgeFlow { rows, mss_bytes: f64::from(info.mss_bytes) })
    }
}

struct NudgeFlow {
    rows: RowBuilder,
    mss_bytes: f64,
}

impl Flow for NudgeFlow {
    /// Says what a round trip was worth, on live flows and in training alike.
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        let get = |name| report.get(name).unwrap_or(0) as f64;
        let share = |name| get(name) / f64::from(ONE_Q16);
        let bytes_per_s = get("acked").max(0.5) * self.mss_bytes / (get("took_us").max(1.0) / 1e6);
        // Only a simulator knows what the link carries; on live flows the level does not matter.
        let link_bytes_per_s = report.truth.map_or(1e6, |truth| truth.link_bytes_per_s.max(1.0));
        let queue = -(1.0 - share("queue")).max(0.01).ln();
        let reward = (bytes_per_s / link_bytes_per_s).ln() - 0.4 * queue - 10.0 * share("loss");
        if let Some(row) = self.rows.row(now_us, report, reward.clamp(-10.0, 10.0) as f32) {
            control.learn(row);
        }
    }
    fn on_lost_reports(&mut self, _count: u32) {
        self.rows.lost();
    }
}

/// The meaning of the network's inputs, oldest round trip first, and of its answer.
fn spec() -> Result<PolicySpec, Box<dyn Error>> {
    let feature = |n: usize, name: &str| Feature { name: format!("{name}[{n}]"), lo: 0, hi: ONE_Q16 };
    let inputs = (0..DEPTH).flat_map(|n| FEATURES.iter().map(move |name| feature(n, name)));
    let action = Action {
        map: ActionMap::Cwnd,
        bound_q16: 8 << 16,       // actions are within -8 and 8,
        step_q20: (1 << 20) / 20, // and 1 changes the window by 5 %,
        knob_min: 2 * 1448,       // which stays within these bytes.
        knob_max: 1 << 30,
    };
    Ok(PolicySpec::new("nudge", inputs.collect(), action)?)
}

/// Trains from nothing with so many decisions, and writes the policy and its snapshot to the folder.
pub fn learn(folder: &Path, decisions: u64) -> Result<(Recipe, Policy, Snapshot), Box<dyn Error>> {
    // Links, rivals and settings are Aurora's.
    let aurora = Recipe::aurora()?;
    let recipe = Recipe {
        algorithm: Arc::new(Nudge),
        spec: spec()?,
        architecture: Architecture {
            inputs: DEPTH * FEATURES.len(),
            hidden: vec![16, 8],
            activation: Activation::Tanh,
            preference: None,
        },
        train: TrainConfig { total_steps: decisions, ..aurora.train.clone() },
        ..aurora
    };
    let mut learner = BackEnd::Native.learner(&recipe.initial()?, recipe.ppo)?;
    let report = train(&mut *learner, &mut recipe.environments()?, &recipe.train, None, &mut ())?;
    std::fs::create_dir_all(folder)?;
    report.best.write(&folder.join("nudge.safetensors"))?;
    let provenance = Provenance {
        algorithm: "nudge".to_owned(),
        seed: recipe.train.seed,
        steps: report.progress.steps,
        command: "cargo run --release -p ccplane-env --example nudge".to_owned(),
        parent: None,
        created_by: "the example nudge".to_owned(),
    };
    let options = Options { provenance, ..Options::default() };
    let snapshot = recipe.snapshot(&report.best, VISITED_EPISODES, &options)?;
    std::fs::write(folder.join("nudge.snapshot"), snapshot.to_bytes())?;
    Ok((recipe, report.best, snapshot))
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("say which folder to write to")?;
    let (recipe, policy, snapshot) = learn(Path::new(&folder), DECISIONS)?;
    println!("of held-out links: share used, RTT over the path's own, share lost");
    for line in recipe.compare(&policy, &snapshot)? {
        println!("{:<14} {:.3} {:.2} {:.4}", line.name, line.used, line.rtt_ratio, line.loss);
    }
    Ok(())
}
