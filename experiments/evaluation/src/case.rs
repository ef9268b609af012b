//! One drawn case: its name, and its plan.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use ccplane_alg::Algorithm;
use ccplane_league::{Draw, EVALUATION_SEED};
use ccplane_results::Datapath;
use ccplane_runner::plan::{Known, Overrides, Plan};

use crate::error::EvaluationError;
use crate::scenario::{ScenarioSet, Spec};
use crate::trace::Traces;

/// Cases of one set.
pub const MAX_CASES: u32 = 1 << 16;
/// The most that links emulated at the same time carry together, bits per second, as in the league.
const MAX_AT_ONCE_BIT_PER_S: u64 = 200_000_000;

/// An algorithm on a datapath.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Contender {
    pub algorithm: String,
    pub datapath: Datapath,
}

impl Contender {
    /// One in the simulator.
    #[must_use]
    pub fn simulated(algorithm: &str) -> Contender {
        Contender { algorithm: algorithm.to_owned(), datapath: Datapath::Sim }
    }

    /// Its name in plans and reports.
    #[must_use]
    pub fn name(&self) -> String {
        match self.datapath {
            Datapath::Kernel => format!("kernel {}", self.algorithm),
            _ => self.algorithm.clone(),
        }
    }
}

/// A member of a scenario set, identified by its name, such as `heavy-loss/3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Case {
    set: ScenarioSet,
    number: u32,
}

impl Case {
    /// The case of this number, which counts from 0; `None` from [`MAX_CASES`] on.
    #[must_use]
    pub fn new(set: ScenarioSet, number: u32) -> Option<Case> {
        (number < MAX_CASES).then_some(Case { set, number })
    }

    /// The set that it is drawn from.
    #[must_use]
    pub fn set(self) -> ScenarioSet {
        self.set
    }

    /// Decides losses and arrivals; the same for every contender.
    #[must_use]
    pub fn seed(self) -> u64 {
        EVALUATION_SEED ^ u64::from(self.number) << 40 ^ (self.set as u64) << 32
    }

    /// The plan's text with these contenders; background of the contender's own kind is that of the first.
    #[must_use]
    pub fn text(self, contenders: &[Contender]) -> String {
        self.text_with(contenders, "")
    }

    /// The same with further keys at its head.
    fn text_with(self, contenders: &[Contender], keys: &str) -> String {
        let mut draw = Draw::new(EVALUATION_SEED, u64::from(self.number) << 16 | self.set as u64);
        let first = contenders.first().map_or("reno", |contender| contender.algorithm.as_str());
        let Spec { duration_s, warmup_s, tables } = self.set.draw(&mut draw, first);
        let contender = |contender: &Contender| {
            format!(
                "[[algorithm]]\nalgorithm = \"{}\"\nname = \"{}\"\ndatapath = \"{}\"\n\n",
                contender.algorithm,
                contender.name(),
                contender.datapath.name()
            )
        };
        let contenders: String = contenders.iter().map(contender).collect();
        format!(
            "title = \"{self}\"\nduration_s = {duration_s}\nwarmup_s = {warmup_s}\nrepeats = 1\nseed = {}\n{keys}\n\
             [simulator]\nemulated = true\n\n{tables}\n{contenders}",
            self.seed()
        )
    }

    /// Returns the plan, checked.
    ///
    /// # Errors
    /// The plan's parser refuses it, for instance because of an unknown algorithm.
    pub fn plan(
        self,
        contenders: &[Contender],
        known: &[Arc<dyn Algorithm>],
        traces: &Traces,
    ) -> Result<Plan, EvaluationError> {
        parsed(&self.to_string(), &self.text(contenders), known, traces)
    }

    /// Its plan with live flows: all contenders at the same time, each over a link of its own, where the machine can emulate so many;
    /// else one after the other.
    ///
    /// # Errors
    /// What the plan's parser refuses, such as a case that is simulated only.
    pub fn live_plan(
        self,
        contenders: &[Contender],
        known: &[Arc<dyn Algorithm>],
        traces: &Traces,
    ) -> Result<Plan, EvaluationError> {
        let in_turn = self.plan(contenders, known, traces)?;
        if !can_run_at_once(&in_turn) {
            return Ok(in_turn);
        }
        let text = self.text_with(contenders, "at_once = true\n");
        // Plans with short flows run in turn only.
        Ok(parsed(&self.to_string(), &text, known, traces).unwrap_or(in_turn))
    }
}

/// Whether this machine is expected to emulate a link for each contender at the same time.
pub(crate) fn can_run_at_once(plan: &Plan) -> bool {
    let contenders = plan.contenders.len() as u64;
    contenders > 1 && fastest_bit_per_s(plan).saturating_mul(contenders) <= MAX_AT_ONCE_BIT_PER_S
}

/// The highest rate that a plan's links ever have; of a trace, its mean.
pub(crate) fn fastest_bit_per_s(plan: &Plan) -> u64 {
    let rates = plan.scenarios.iter().flat_map(|scenario| {
        let changed = scenario.link.changes.iter().filter_map(|change| change.bit_per_s);
        changed.chain(scenario.link.medium.rate_bit_per_s())
    });
    rates.max().unwrap_or(u64::MAX)
}

/// Parses the text of a plan of this name.
pub(crate) fn parsed(
    name: &str,
    text: &str,
    known: &[Arc<dyn Algorithm>],
    traces: &Traces,
) -> Result<Plan, EvaluationError> {
    let trace = |name: &str| traces.trace(name);
    let known = Known { algorithms: known, kernel: None, traces: &trace, cellular: None };
    Plan::parse(Path::new(name), text, &known, Overrides::default())
        .map_err(|why| EvaluationError::Plan { case: name.to_owned(), why: why.to_string() })
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.set.name(), self.number)
    }
}

impl FromStr for Case {
    type Err = EvaluationError;

    fn from_str(text: &str) -> Result<Case, EvaluationError> {
        let refused = || EvaluationError::NoCase {
            found: text.to_owned(),
            known: ScenarioSet::ALL.iter().map(|set| set.name()).collect(),
        };
        let (set, number) = text.split_once('/').ok_or_else(refused)?;
        let set = ScenarioSet::ALL.iter().find(|s| s.name() == set).ok_or_else(refused)?;
        let number = number.parse().map_err(|_| refused())?;
        Case::new(*set, number).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_league::{Family, FamilyLink, Set};
    use std::collections::BTreeSet;

    fn cases(numbers: u32) -> impl Iterator<Item = Case> {
        let of = move |set: &ScenarioSet| {
            let set = *set;
            (0..numbers).map(move |number| Case { set, number })
        };
        ScenarioSet::ALL.iter().flat_map(of)
    }

    #[test]
    fn every_case_makes_a_plan_and_its_name_says_all() {
        let (algorithms, traces) = (ccplane_algs::all(), Traces::default());
        let contenders = ["copa", "reno"].map(Contender::simulated);
        for case in cases(12) {
            let plan = case.plan(&contenders, &algorithms, &traces).unwrap();
            assert_eq!((plan.runs(), plan.scenarios.len()), (2, 1), "{case}");
            assert_eq!(case.text(&contenders), case.text(&contenders));
            assert_eq!(case.to_string().parse::<Case>().unwrap(), case);
        }
        for wrong in ["heavy-loss", "heavy-loss/x", "none/1", "heavy-loss/65536", ""] {
            assert!(matches!(wrong.parse::<Case>(), Err(EvaluationError::NoCase { .. })), "{wrong}");
        }
    }

    /// No case is another's, or a link of the league's: neither links nor seeds.
    #[test]
    fn nothing_is_shared_with_the_league() {
        let link = |text: &str| text.split_once("[[link]]").unwrap().1.to_owned();
        let contenders = [Contender::simulated("reno")];
        let (mut texts, mut seeds, mut count) = (BTreeSet::new(), BTreeSet::new(), 0);
        for case in cases(24) {
            texts.insert(case.set().name().to_owned() + &link(&case.text(&contenders)));
            seeds.insert(case.seed());
            count += 1;
        }
        assert_eq!((texts.len(), seeds.len()), (count, count));
        for set in [Set::Training, Set::Validation] {
            for family in Family::ALL {
                for number in 0..24 {
                    let other = FamilyLink::new(*family, set, number).unwrap();
                    assert!(!seeds.contains(&other.seed()), "{other}");
                }
            }
        }
    }

    #[test]
    fn live_cases_are_those_that_the_kernel_can_run() {
        let (algorithms, traces) = (ccplane_algs::all(), Traces::default());
        let contender = |datapath| Contender { algorithm: "reno".to_owned(), datapath };
        let contenders = [contender(Datapath::Ebpf), contender(Datapath::Kernel)];
        let live = |name: &str| name.parse::<Case>().unwrap().live_plan(&contenders, &algorithms, &traces);
        let plan = live("heavy-loss/0").unwrap();
        let names: Vec<&str> = plan.contenders.iter().map(|c| c.name.as_str()).collect();
        assert_eq!((names, plan.at_once), (vec!["reno", "kernel reno"], true));
        assert!(live("jitter-one/0").is_err() && live("short-cubic/0").is_err());
        assert!(!live("short/0").unwrap().at_once);
    }
}
