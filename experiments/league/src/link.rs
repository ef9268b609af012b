//! A drawn link: its plan.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use ccplane_alg::Algorithm;
use ccplane_results::RunFigures;
use ccplane_runner::plan::{Known, Overrides, Plan, Scenario};

use crate::cell::{Cell, Goal};
use crate::draw::Draw;
use crate::error::LeagueError;
use crate::family::{Family, Spec};
use crate::record::Permit;
use crate::set::Set;
use crate::traces::Traces;

/// Links of one family in one set.
pub const MAX_LINKS: u32 = 1 << 16;
/// The most that links emulated at the same time carry together, bits per second; two cores emulate that much without queues of their own.
const MAX_AT_ONCE_BIT_PER_S: u64 = 200_000_000;
/// The shortest queue of a link that is lossless, packets.
const LOSSLESS_QUEUE_PACKETS: u32 = 10;

/// A member of a family, identified by its name, such as `steady/validation/3`. A test link needs a [`Permit`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FamilyLink {
    family: Family,
    set: Set,
    number: u32,
}

impl FamilyLink {
    /// A link for training or validation; `number` counts from 0.
    ///
    /// # Errors
    /// It is one of the test, or has too large a number.
    pub fn new(family: Family, set: Set, number: u32) -> Result<FamilyLink, LeagueError> {
        let link = FamilyLink { family, set, number };
        match (set, number) {
            (_, MAX_LINKS..) => Err(LeagueError::NoLink { found: link.to_string() }),
            (Set::Test, _) => Err(LeagueError::Sealed { link: link.to_string() }),
            _ => Ok(link),
        }
    }

    /// A link of the test.
    ///
    /// # Errors
    /// Its number is too large.
    pub fn test(_: &Permit, family: Family, number: u32) -> Result<FamilyLink, LeagueError> {
        let link = FamilyLink { family, set: Set::Test, number };
        if number < MAX_LINKS { Ok(link) } else { Err(LeagueError::NoLink { found: link.to_string() }) }
    }

    /// The link's family.
    #[must_use]
    pub fn family(self) -> Family {
        self.family
    }

    /// The set that the link belongs to.
    #[must_use]
    pub fn set(self) -> Set {
        self.set
    }

    /// The measure by which algorithms are scored on the link.
    #[must_use]
    pub fn goal(self) -> Goal {
        self.family.goal()
    }

    /// Decides losses and arrivals; the same for every algorithm.
    #[must_use]
    pub fn seed(self) -> u64 {
        self.set.seed() ^ u64::from(self.number) << 40 ^ (self.family as u64) << 32
    }

    /// The plan's text, with these algorithms on this datapath.
    #[must_use]
    pub fn text(self, algorithms: &[&str], datapath: &str) -> String {
        self.text_with(algorithms, datapath, "")
    }

    /// The same with further keys at its head.
    fn text_with(self, algorithms: &[&str], datapath: &str, keys: &str) -> String {
        let mut draw = Draw::of_set(self.set, u64::from(self.number) << 16 | self.family as u64);
        let Spec { duration_s, warmup_s, tables } = self.family.draw(&mut draw, self.set);
        let contender = |algorithm: &&str| {
            format!(
                "[[algorithm]]\nalgorithm = \"{algorithm}\"\nname = \"{algorithm}\"\ndatapath = \"{datapath}\"\n\n"
            )
        };
        let contenders: String = algorithms.iter().map(contender).collect();
        format!(
            "title = \"{self}\"\nduration_s = {duration_s}\nwarmup_s = {warmup_s}\nrepeats = 1\nseed = {}\n{keys}\n[simulator]\nemulated = true\n\n\
             {tables}\n{contenders}",
            self.seed()
        )
    }

    /// Returns the link's plan, checked.
    ///
    /// # Errors
    /// The plan's parser refuses it, for instance because of an unknown algorithm.
    pub fn plan(
        self,
        algorithms: &[&str],
        datapath: &str,
        known: &[Arc<dyn Algorithm>],
        traces: &Traces,
    ) -> Result<Plan, LeagueError> {
        self.plan_with(algorithms, datapath, known, traces, Overrides::default())
    }

    /// Its plan with kernel flows: all algorithms at the same time, each over a link of its own, where the machine can emulate so many; else
    /// one after the other.
    ///
    /// # Errors
    /// What the plan's parser refuses, such as a link that is simulated only.
    pub fn live_plan(
        self,
        algorithms: &[&str],
        known: &[Arc<dyn Algorithm>],
        traces: &Traces,
    ) -> Result<Plan, LeagueError> {
        let in_turn = self.plan(algorithms, "ebpf", known, traces)?;
        if algorithms.len() < 2
            || fastest_bit_per_s(&in_turn) * algorithms.len() as u64 > MAX_AT_ONCE_BIT_PER_S
        {
            return Ok(in_turn);
        }
        let text = self.text_with(algorithms, "ebpf", "at_once = true\n");
        // Plans with short flows run in turn only.
        Ok(self.parsed(&text, known, traces, Overrides::default()).unwrap_or(in_turn))
    }

    /// Computes the cell of one algorithm from a run of the scenario of the link's plan.
    #[must_use]
    pub fn cell(self, scenario: &Scenario, algorithm: &str, measured: &RunFigures) -> Cell {
        let cell = Cell::new(&self.to_string(), self.family.name(), self.goal(), algorithm, measured);
        Cell { lossless: lossless(scenario), ..cell }
    }

    /// The same plan with changes that the caller asks for.
    pub(crate) fn plan_with(
        self,
        algorithms: &[&str],
        datapath: &str,
        known: &[Arc<dyn Algorithm>],
        traces: &Traces,
        overrides: Overrides,
    ) -> Result<Plan, LeagueError> {
        self.parsed(&self.text(algorithms, datapath), known, traces, overrides)
    }

    fn parsed(
        self,
        text: &str,
        known: &[Arc<dyn Algorithm>],
        traces: &Traces,
        overrides: Overrides,
    ) -> Result<Plan, LeagueError> {
        let name = self.to_string();
        let trace = |name: &str| traces.trace(name);
        let known = Known { algorithms: known, kernel: None, traces: &trace, cellular: None };
        Plan::parse(Path::new(&name), text, &known, overrides)
            .map_err(|why| LeagueError::Plan { link: name, why: why.to_string() })
    }
}

/// Whether the link drops nothing but what its queue has no room for, and the queue holds ten packets or more.
fn lossless(scenario: &Scenario) -> bool {
    let link = &scenario.link;
    let drops =
        link.loss_ppm > 0 || link.impairments.burst_loss.is_some() || link.impairments.policer.is_some();
    !drops && link.queue.packets.is_some_and(|packets| packets >= LOSSLESS_QUEUE_PACKETS)
}

/// The highest rate that a plan's links ever have; of a trace, its mean.
fn fastest_bit_per_s(plan: &Plan) -> u64 {
    let rates = plan.scenarios.iter().flat_map(|scenario| {
        let changed = scenario.link.changes.iter().filter_map(|change| change.bit_per_s);
        changed.chain(scenario.link.medium.rate_bit_per_s())
    });
    rates.max().unwrap_or(u64::MAX)
}

impl fmt::Display for FamilyLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.family.name(), self.set.name(), self.number)
    }
}

impl FromStr for FamilyLink {
    type Err = LeagueError;

    fn from_str(text: &str) -> Result<FamilyLink, LeagueError> {
        let refused = || LeagueError::NoLink { found: text.to_owned() };
        let mut parts = text.splitn(3, '/');
        let mut next = || parts.next().ok_or_else(refused);
        let (family, set, number) = (next()?.parse()?, next()?, next()?);
        let set = Set::ALL.into_iter().find(|s| s.name() == set).ok_or_else(refused)?;
        let number = number.parse().map_err(|_| refused())?;
        FamilyLink::new(family, set, number).map_err(|error| match error {
            LeagueError::Sealed { .. } => error,
            _ => refused(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_runner::plan::{Medium, Traffic};
    use std::collections::BTreeSet;

    fn links(numbers: u32) -> impl Iterator<Item = FamilyLink> {
        let sets = move |family: Family| Set::ALL.into_iter().map(move |set| (family, set));
        let all = Family::ALL.iter().copied().flat_map(sets);
        all.flat_map(move |(family, set)| (0..numbers).map(move |number| FamilyLink { family, set, number }))
    }

    #[test]
    fn every_member_of_every_family_makes_a_plan_and_its_name_says_all() {
        let algorithms = ccplane_algs::all();
        let traces = Traces::default();
        for link in links(12) {
            if link.family == Family::Recorded && !traces.has_recorded(link.set) {
                // Recordings are in no repository.
                continue;
            }
            let plan = link.plan(&["copa", "reno"], "sim", &algorithms, &traces).unwrap();
            assert_eq!((plan.runs(), plan.scenarios.len()), (2, 1));
            assert_eq!(link.text(&["copa"], "sim"), link.text(&["copa"], "sim"));
            if link.set != Set::Test {
                assert_eq!(link.to_string().parse::<FamilyLink>().unwrap(), link);
            }
        }
        assert!("steady/validation".parse::<FamilyLink>().is_err());
        assert!("steady/final/1".parse::<FamilyLink>().is_err());
        assert!("none/test/1".parse::<FamilyLink>().unwrap_err().to_string().contains("there are steady"));
    }

    /// Slow links run at once, fast ones and those with short flows in turn, and those with unequal delays not at all.
    #[test]
    fn live_contenders_share_the_machine_where_it_can_carry_them() {
        let (algorithms, traces) = (ccplane_algs::all(), Traces::default());
        let live = |name: &str, contenders: &[&str]| {
            name.parse::<FamilyLink>().unwrap().live_plan(contenders, &algorithms, &traces)
        };
        let at_once = |name, contenders: &[&str]| live(name, contenders).unwrap().at_once;
        assert!(at_once("steady/validation/2", &["reno", "copa"]), "18.8 Mb/s twice");
        assert!(!at_once("steady/validation/2", &["reno"]), "nothing beside it");
        assert!(!at_once("shallow/validation/2", &["reno", "copa"]), "380 Mb/s twice");
        assert!(!at_once("steps/validation/1", &["reno", "copa"]), "784 Mb/s after a step");
        assert!(live("own-rtts/validation/0", &["reno", "copa"]).is_err());
        let plan = live("steady/validation/2", &["reno", "copa"]).unwrap();
        assert_eq!((plan.runs(), plan.duration_ms), (2, 20_000));
    }

    /// Rates, round trips, queues, steps, rivals and flows of every set lie within what the families say.
    #[test]
    fn what_is_drawn_is_what_its_family_says() {
        let (algorithms, traces) = (ccplane_algs::all(), Traces::default());
        let drawn = |family: Family| -> Vec<(String, Scenario)> {
            let of = |set| (0..20).map(move |number| FamilyLink { family, set, number });
            let scenario = |link: FamilyLink| {
                let plan = link.plan(&["reno"], "sim", &algorithms, &traces).unwrap();
                (link.to_string(), plan.scenarios[0].clone())
            };
            Set::ALL.into_iter().flat_map(of).map(scenario).collect()
        };
        let within = |of: f64, (low, high): (f64, f64)| (low * 0.99..=high * 1.01).contains(&of);
        let queues =
            [(Family::Steady, (0.5, 4.0)), (Family::Shallow, (0.05, 0.5)), (Family::Deep, (4.0, 16.0))];
        for (family, bdps) in queues {
            for (name, Scenario { link, .. }) in drawn(family) {
                let (mbit, rtt_ms) = (rate_mbit(&link.medium), 2.0 * link.delay_us as f64 / 1e3);
                assert!(
                    within(mbit, (0.5, 1000.0)) && within(rtt_ms, (2.0, 300.0)),
                    "{name}: {mbit}, {rtt_ms}"
                );
                let (queue, bdp) = (f64::from(link.queue.packets.unwrap()), mbit * rtt_ms / 12.0);
                let least = [1.0, 4.0, 16.0].contains(&queue);
                assert!(
                    least || within(queue, (bdps.0 * bdp - 1.0, bdps.1 * bdp + 1.0)),
                    "{name}: {queue} of {bdp}"
                );
            }
        }
        for (name, Scenario { link, .. }) in drawn(Family::Steps) {
            let (mut at_ms, mut mbit) = (0, rate_mbit(&link.medium));
            for change in &link.changes {
                let (gap_s, next) =
                    ((change.at_ms - at_ms) as f64 / 1e3, change.bit_per_s.unwrap() as f64 / 1e6);
                let factor = (next / mbit).max(mbit / next);
                assert!(
                    within(gap_s, (4.8, 20.2)) && within(factor, (2.0, 4.0)),
                    "{name}: x {factor} after {gap_s} s"
                );
                (at_ms, mbit) = (change.at_ms, next);
            }
            assert!(!link.changes.is_empty(), "{name}");
        }
        for (name, Scenario { link, .. }) in drawn(Family::Handover) {
            let at_ms: Vec<u64> = link.changes.iter().map(|change| change.at_ms).collect();
            assert_eq!(at_ms, [15_000, 30_000, 45_000], "{name}");
            assert!(
                link.changes.iter().all(|change| change.bit_per_s.is_some() && change.delay_us.is_some())
            );
        }
        let rivals =
            [(Family::BesideCubic, "cubic"), (Family::BesideReno, "reno"), (Family::BesideBbr, "bbr")];
        for (family, rival) in rivals {
            let mut order = BTreeSet::new();
            for (name, scenario) in drawn(family) {
                let [beside] = &scenario.background[..] else { panic!("{name}") };
                assert!(beside.algorithm == rival && [1, 2, 4].contains(&beside.flows), "{name}: {beside:?}");
                order.insert(beside.start_ms.cmp(&scenario.start_ms));
            }
            assert_eq!(order.len(), 3, "before, after, together");
        }
        for (name, scenario) in drawn(Family::OwnRtts) {
            let Traffic::Bulk { flows, .. } = scenario.traffic else { panic!("{name}") };
            let most = scenario.extra_delays_us.iter().max().unwrap();
            let times = 1.0 + *most as f64 / (2 * scenario.link.delay_us) as f64;
            assert!((2..=16).contains(&flows) && within(times, (2.0, 8.0)), "{name}: {flows}, x {times}");
        }
    }

    fn rate_mbit(medium: &Medium) -> f64 {
        medium.rate_bit_per_s().unwrap() as f64 / 1e6
    }

    /// Loss, bursts and policers make a link lossy, as does a queue below ten packets; losses on the way back do not.
    #[test]
    fn lossless_links_are_those_whose_queue_alone_drops() {
        let (algorithms, traces) = (ccplane_algs::all(), Traces::default());
        let lossless = |link: FamilyLink| {
            let plan = link.plan(&["reno"], "sim", &algorithms, &traces).unwrap();
            let cell = link.cell(&plan.scenarios[0], "reno", &RunFigures::default());
            (cell.lossless, plan.scenarios[0].link.queue.packets.unwrap())
        };
        for number in 0..20 {
            let of = |family| lossless(FamilyLink { family, set: Set::Training, number });
            for family in [Family::Loss, Family::Burst, Family::Policer] {
                assert!(!of(family).0, "{family:?} {number}");
            }
            for family in [Family::Shallow, Family::Deep, Family::LossyReturn, Family::Cellular, Family::Own]
            {
                let (lossless, packets) = of(family);
                assert_eq!(lossless, packets >= 10, "{family:?} {number}");
            }
        }
        let shallow = |number| lossless(FamilyLink { family: Family::Shallow, set: Set::Training, number }).0;
        assert!((0..20).any(shallow) && !(0..20).all(shallow), "shallow links are of both kinds");
    }

    /// Neither a name nor the library makes a test link; a use written into a book does.
    #[test]
    fn test_links_are_sealed() {
        for sealed in ["steady/test/1".parse(), FamilyLink::new(Family::Steady, Set::Test, 1)] {
            assert!(matches!(sealed, Err(LeagueError::Sealed { .. })), "{sealed:?}");
        }
        assert!(FamilyLink::new(Family::Steady, Set::Training, MAX_LINKS).is_err());
        let link = FamilyLink::test(&Permit::of_tests(), Family::Steady, 1).unwrap();
        assert_eq!(link.to_string(), "steady/test/1");
    }

    /// No link is in two sets: all texts but the titles differ, and so do the seeds.
    #[test]
    fn sets_share_nothing() {
        let (mut texts, mut seeds) = (BTreeSet::new(), BTreeSet::new());
        let mut count = 0;
        for link in links(40) {
            let text = link.text(&["reno"], "sim");
            texts.insert(text.split_once("[[link]]").unwrap().1.to_owned() + link.family.name());
            seeds.insert(link.seed());
            count += 1;
        }
        assert_eq!((texts.len(), seeds.len()), (count, count));
    }
}
