//! The limits that plans give to ratios of completion times, and what runs came to.

use crate::figures::{Figure, Interval, SizeClass, geometric_mean};
use crate::plan::{Contender, FabricPlan, Group, Kind};
use crate::record::Cell;
use crate::uplinks::Uplinks;

/// Gains of the same network in the datapath over the agent, of short and long flows: LiteFlow's (SIGCOMM 2022).
const LITEFLOW_SCHEDULING: (f64, f64) = (0.109, 0.337);
const LITEFLOW_BALANCING: (f64, f64) = (0.343, 0.567);
/// Largest ratio to what an oracle achieves.
const NEAR_ORACLE: f64 = 1.1;
/// Largest ratio to the baseline where nothing can be learned.
const NO_HARM: f64 = 1.03;

/// A limit on the ratio of two contenders' mean completion times.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Wanted {
    pub(crate) of: Contender,
    pub(crate) against: Contender,
    pub(crate) class: SizeClass,
    pub(crate) at_most: f64,
}

/// A limit, and the ratio over all loads and repeats.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PlanVerdict {
    /// The comparison in words.
    pub(crate) what: String,
    pub(crate) found: Interval,
    pub(crate) at_most: f64,
}

impl PlanVerdict {
    pub(crate) fn is_met(&self) -> bool {
        self.found.value <= self.at_most
    }

    pub(crate) fn word(&self) -> &'static str {
        if self.is_met() { "met" } else { "missed" }
    }
}

/// The limits for a group: what can be learned there decides which.
pub(crate) fn wanted(plan: &FabricPlan, group: &Group) -> Vec<Wanted> {
    // Nobody can foresee a failure.
    let of_paths =
        if group.uplinks == Uplinks::Failed { Contender::PresentLoads } else { Contender::KnownLoads };
    let (of, agents, oracle, (short, long)): (_, &[Contender], _, _) = match plan.kind {
        Kind::Scheduling => (
            Contender::Size,
            &[Contender::SizeAgent, Contender::SizeAgentLate],
            Contender::KnownSizes,
            LITEFLOW_SCHEDULING,
        ),
        Kind::Balancing => {
            (Contender::Path, &[Contender::PathAgent, Contender::PathAgentLate], of_paths, LITEFLOW_BALANCING)
        }
    };
    let (nothing, everything) = match plan.kind {
        // Nobody knows how far what was recorded can be predicted.
        Kind::Scheduling if group.playback.is_some() => (false, false),
        Kind::Scheduling => (group.predictable_percent == 0, group.predictable_percent == 100),
        Kind::Balancing => (group.uplinks == Uplinks::Even, group.uplinks != Uplinks::Even),
    };
    let mut all = Vec::new();
    let limit = |against, class, at_most| Wanted { of, against, class, at_most };
    if everything {
        for agent in agents {
            all.push(limit(*agent, SizeClass::Small, 1.0 - short));
            all.push(limit(*agent, SizeClass::Large, 1.0 - long));
        }
        all.extend(SizeClass::ALL.map(|class| limit(oracle, class, NEAR_ORACLE)));
    }
    if nothing {
        all.extend(SizeClass::ALL.map(|class| limit(plan.kind.baseline(), class, NO_HARM)));
    }
    all
}

/// Returns the verdict on each limit of each group for which both contenders ran.
pub(crate) fn verdicts(plan: &FabricPlan, cells: &[Cell]) -> Vec<PlanVerdict> {
    let mut all = Vec::new();
    for (n, group) in plan.groups.iter().enumerate() {
        for Wanted { of, against, class, at_most } in wanted(plan, group) {
            let found = ratio(cells, n, plan.loads_of(n), (of, against), class, Figure::Mean);
            let Some(found) = found else { continue };
            let (name, class) = (group.name(plan.kind), class.name());
            let what = format!("{name}: {} to {}, mean of flows {class}", of.name(), against.name());
            all.push(PlanVerdict { what, found, at_most });
        }
    }
    all
}

/// The figures of one contender in a group under a load, by repeat, microseconds.
pub(crate) fn values(
    cells: &[Cell],
    group: usize,
    load_percent: u32,
    contender: Contender,
    class: SizeClass,
    figure: Figure,
) -> Vec<(u32, f64)> {
    let own = cells.iter().filter(|cell| {
        let slot = &cell.slot;
        (slot.group, slot.load_percent, slot.contender) == (group, load_percent, contender)
    });
    own.filter_map(|cell| Some((cell.slot.repeat, figure.of(&cell.completions_ns[class as usize])?)))
        .collect()
}

/// The ratio of one contender's figure to another's on the same flows, over all repeats of these loads.
pub(crate) fn ratio(
    cells: &[Cell],
    group: usize,
    loads_percent: &[u32],
    (of, against): (Contender, Contender),
    class: SizeClass,
    figure: Figure,
) -> Option<Interval> {
    let mut ratios = Vec::new();
    for load in loads_percent {
        let above = values(cells, group, *load, of, class, figure);
        let below = values(cells, group, *load, against, class, figure);
        for (repeat, value) in above {
            let same = below.iter().find(|(other, _)| *other == repeat);
            ratios.extend(same.map(|(_, baseline)| value / baseline));
        }
    }
    geometric_mean(&ratios)
}
