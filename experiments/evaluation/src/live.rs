//! Cases repeated with kernel flows over emulated links, where the kernel and the emulator can.

use std::io::Write;
use std::path::Path;

use ccplane_results::{Datapath, Results, RunOutcome};
use ccplane_runner::experiment::agents::Agents;
use ccplane_runner::experiment::{self, Ended, Options, Progress};
use ccplane_runner::host;
use ccplane_runner::plan::Plan;

use crate::case::{Case, Contender, fastest_bit_per_s};
use crate::conformance::{ConformanceCase, LinkConformance};
use crate::error::EvaluationError;
use crate::measure::{Cell, Figures};
use crate::play::{Ground, Play, REFERENCES};

/// The fastest link that two processors are expected to emulate without queues of their own.
const MAX_BIT_PER_S: u64 = 200_000_000;

/// The folder in which live runs are kept, and the time when they stop.
#[derive(Clone, Copy)]
pub struct LiveConfig<'a> {
    /// The directory of the runs, each case in one of its own: an interrupted one goes on.
    pub directory: &'a Path,
    /// The command line, for the results.
    pub command: &'a str,
    /// Whether runs that are there are put aside.
    pub force: bool,
    pub stopped: &'a dyn Fn() -> bool,
}

/// The evaluated algorithm as a program in the kernel, and the kernel's own references, as far as it has them.
#[must_use]
pub fn live_contenders(algorithm: &str) -> Vec<Contender> {
    let known = host::kernel_algorithms();
    let references = REFERENCES.iter().filter(|name| known.iter().any(|k| k == **name));
    let kernels =
        references.map(|name| Contender { algorithm: (*name).to_owned(), datapath: Datapath::Kernel });
    let own = Contender { algorithm: algorithm.to_owned(), datapath: Datapath::Ebpf };
    std::iter::once(own).chain(kernels).collect()
}

/// A share of the cases that can run live, evenly over the sets that have such cases.
#[must_use]
pub fn live_cases(cases: &[Case], share: f64, algorithm: &str, ground: Ground<'_>) -> Vec<Case> {
    let contenders = live_contenders(algorithm);
    let can_run = |case: &&Case| {
        let plan = case.live_plan(&contenders, ground.algorithms, ground.traces);
        plan.is_ok_and(|plan| fastest_bit_per_s(&plan) <= MAX_BIT_PER_S)
    };
    let mut owed = 0.0;
    let mut is_drawn = |_: &&Case| {
        owed += share;
        let drawn = owed >= 1.0;
        owed -= f64::from(u8::from(drawn));
        drawn
    };
    cases.iter().filter(can_run).filter(|case| is_drawn(case)).copied().collect()
}

/// Runs a case live, by all contenders; `None` if it was stopped. A contender whose run failed has no cell.
///
/// # Errors
/// The plan is refused, or the machine lacks something.
pub fn live<W: Write>(
    case: Case,
    algorithm: &str,
    ground: Ground<'_>,
    config: &LiveConfig<'_>,
    agents: &mut dyn Agents,
    progress: &mut Progress<W>,
) -> Result<Option<Vec<Cell>>, EvaluationError> {
    let contenders = live_contenders(algorithm);
    let plan = case.live_plan(&contenders, ground.algorithms, ground.traces)?;
    let ended = run(&plan, &format!("{case}/{algorithm}"), ground, config, agents, progress)?;
    if ended.interrupted {
        return Ok(None);
    }
    Ok(Some(live_cells(case, &contenders, &plan, &ended.results)))
}

/// The cells of a case's live runs; a contender whose run failed has none.
#[must_use]
pub fn live_cells(case: Case, contenders: &[Contender], plan: &Plan, results: &Results) -> Vec<Cell> {
    let cell = |contender: &Contender| {
        let name = contender.name();
        let measured = results.runs.iter().rev().find_map(|run| match &run.outcome {
            RunOutcome::Ok(measured) if run.contender == name => Some(measured),
            _ => None,
        })?;
        let play = Play { case, contender: contender.clone() };
        Some(play.cell("", Figures::new(case, contender, plan, measured)))
    };
    contenders.iter().filter_map(cell).collect()
}

/// Runs our program and the kernel's algorithm of the same name on a conformance case; `None` if it was stopped or failed.
///
/// # Errors
/// As [`live`].
pub fn conform<W: Write>(
    case: ConformanceCase,
    algorithm: &str,
    ground: Ground<'_>,
    config: &LiveConfig<'_>,
    agents: &mut dyn Agents,
    progress: &mut Progress<W>,
) -> Result<Option<LinkConformance>, EvaluationError> {
    let plan = case.plan(algorithm, ground.algorithms)?;
    let ended = run(&plan, &format!("{}/{algorithm}", case.name()), ground, config, agents, progress)?;
    Ok(if ended.interrupted { None } else { case.of(&plan, &ended.results) })
}

fn run<W: Write>(
    plan: &Plan,
    name: &str,
    ground: Ground<'_>,
    config: &LiveConfig<'_>,
    agents: &mut dyn Agents,
    progress: &mut Progress<W>,
) -> Result<Ended, EvaluationError> {
    let results = config.directory.join(name).join("runs.jsonl");
    let options = Options { results, force: config.force, command: config.command.to_owned() };
    experiment::run(plan, &options, ground.algorithms, agents, config.stopped, progress)
        .map_err(|source| EvaluationError::Live { case: name.to_owned(), source: Box::new(source) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::ScenarioSet;
    use crate::trace::Traces;
    use std::collections::BTreeMap;

    #[test]
    fn a_share_is_drawn_of_what_can_run_live() {
        let (algorithms, traces) = (ccplane_algs::all(), Traces::default());
        let ground = Ground { algorithms: &algorithms, traces: &traces };
        let all: Vec<Case> = ScenarioSet::ALL
            .iter()
            .flat_map(|set| (0..8).filter_map(|number| Case::new(*set, number)))
            .collect();
        let whole = live_cases(&all, 1.0, "copa", ground);
        let sets: BTreeMap<&str, usize> = whole.iter().fold(BTreeMap::new(), |mut sets, case| {
            *sets.entry(case.set().name()).or_default() += 1;
            sets
        });
        // What is simulated only is left out, and so is what is too fast.
        for absent in [
            "jitter-one",
            "acks-one",
            "own-rtts",
            "short-cubic",
            "rare-acks",
            "lying-receiver",
            "incast",
            "pie-ecn",
        ] {
            assert!(!sets.contains_key(absent), "{absent}");
        }
        for present in
            ["heavy-loss", "blackout", "beside-cubic", "real-time", "policer", "reordered", "codel"]
        {
            assert!(sets.get(present).is_some_and(|n| *n >= 6), "{present}: {sets:?}");
        }
        let quarter = live_cases(&all, 0.25, "copa", ground);
        assert_eq!(quarter.len(), whole.len() / 4);
        assert!(live_cases(&all, 0.0, "copa", ground).is_empty());
    }
}
