//! Our program against the kernel's algorithm of the same name, by their throughput-delay envelopes on live links.

use std::sync::Arc;

use ccplane_alg::Algorithm;
use ccplane_league::{Draw, EVALUATION_SEED};
use ccplane_results::{Results, RunOutcome, Series};
use ccplane_runner::plan::Plan;
use serde::{Deserialize, Serialize};

use crate::case::parsed;
use crate::envelope::{Point, conformance};
use crate::error::EvaluationError;
use crate::trace::Traces;
use crate::verdict::{Bound, Judgement, Verdict, judge};

/// Algorithms of Linux's sources (net/ipv4), by the names under which sockets ask for them.
pub const KERNEL_NAMES: [&str; 17] = [
    "bbr",
    "bic",
    "cdg",
    "cubic",
    "dctcp",
    "highspeed",
    "htcp",
    "hybla",
    "illinois",
    "lp",
    "nv",
    "reno",
    "scalable",
    "vegas",
    "veno",
    "westwood",
    "yeah",
];
/// Draws of these links, past those of cases.
const CONFORMANCE_STREAM: u64 = 0xffff;
/// Conformance over that of the kernel's algorithm with itself that is enough.
const LIMIT: f64 = 0.7;
/// Round trips of a window whose means are a point, as in the paper, and its least length, milliseconds.
const WINDOW_RTTS: u64 = 10;
const MIN_WINDOW_MS: u64 = 200;
const KERNELS: &str = "kernel";
const OURS: &str = "program";

/// A drawn link on which both are played, named by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ConformanceCase {
    pub number: u32,
    /// Runs of each; half of the kernel's against the other half are the measure.
    pub repeats: u32,
}

/// The agreement of both on all links.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Conformed {
    pub algorithm: String,
    /// Least of the kernel's conformance with itself.
    pub limit: f64,
    pub verdict: Verdict,
    /// The mean over links of ours over the kernel's with itself, at most 1 on each.
    pub judged: Option<Judgement>,
    pub links: Vec<LinkConformance>,
}

/// The agreement of both on one link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LinkConformance {
    pub case: String,
    /// The link in words.
    pub link: String,
    /// Share of both's points that lie in both envelopes.
    pub conformance: f64,
    /// The same of two halves of the kernel's runs.
    pub kernels_own: f64,
    pub ours: Vec<Point>,
    pub kernels: Vec<Point>,
}

impl ConformanceCase {
    /// Its name, such as `conformance/0`.
    #[must_use]
    pub fn name(self) -> String {
        format!("conformance/{}", self.number)
    }

    /// The plan's text, with both implementations of this algorithm.
    #[must_use]
    pub fn text(self, algorithm: &str) -> String {
        let mut draw = Draw::new(EVALUATION_SEED, u64::from(self.number) << 16 | CONFORMANCE_STREAM);
        let (mbit, rtt_ms) = (draw.scaled(8.0, 60.0), draw.scaled(10.0, 80.0));
        let packets = (draw.scaled(0.5, 3.0) * mbit * rtt_ms / 12.0).max(16.0) as u32;
        let contender = |name: &str, datapath: &str| {
            format!(
                "[[algorithm]]\nalgorithm = \"{algorithm}\"\nname = \"{name}\"\ndatapath = \"{datapath}\"\n\n"
            )
        };
        format!(
            "title = \"{}\"\nduration_s = 20\nwarmup_s = 5\nrepeats = {}\nseed = {}\nat_once = true\n\n[[link]]\n\
             rate_mbit = {mbit}\ndelay_ms = {:.3}\nqueue_packets = {packets}\n\n{}{}",
            self.name(),
            self.repeats,
            EVALUATION_SEED ^ u64::from(self.number) << 40 ^ CONFORMANCE_STREAM << 32,
            rtt_ms / 2.0,
            contender(KERNELS, "kernel"),
            contender(OURS, "ebpf")
        )
    }

    /// Returns the plan, checked.
    ///
    /// # Errors
    /// The plan's parser refuses it.
    pub fn plan(self, algorithm: &str, known: &[Arc<dyn Algorithm>]) -> Result<Plan, EvaluationError> {
        parsed(&self.name(), &self.text(algorithm), known, &Traces::default())
    }

    /// The agreement that the plan's runs show; `None` where either has no run that ended well.
    #[must_use]
    pub fn of(self, plan: &Plan, results: &Results) -> Option<LinkConformance> {
        let link = &plan.scenarios.first()?.link;
        let points = |contender: &str, counts: &dyn Fn(u32) -> bool| {
            let of = |run: &&ccplane_results::Run| run.contender == contender && counts(run.repeat);
            let runs = results.runs.iter().filter(of);
            let measured = runs.filter_map(|run| match &run.outcome {
                RunOutcome::Ok(measured) => Some(measured),
                RunOutcome::Failed { .. } => None,
            });
            measured
                .flat_map(|m| &m.flows)
                .flat_map(|flow| windows(&flow.series, 2 * link.delay_us, plan.warmup_ms))
                .collect::<Vec<Point>>()
        };
        let (ours, kernels) = (points(OURS, &|_| true), points(KERNELS, &|_| true));
        let half = |which: u32| points(KERNELS, &move |repeat| repeat % 2 == which);
        Some(LinkConformance {
            case: self.name(),
            link: link.to_string(),
            conformance: conformance(&ours, &kernels)?,
            kernels_own: conformance(&half(0), &half(1))?,
            ours,
            kernels,
        })
    }
}

/// Means of a flow's samples over windows of some round trips, from the warm-up's end on.
fn windows(series: &Series, base_rtt_us: u64, warmup_ms: u64) -> Vec<Point> {
    let window_ms = (WINDOW_RTTS * base_rtt_us / 1000).max(MIN_WINDOW_MS);
    let samples = series.t_ms.iter().zip(&series.throughput_bps).zip(&series.srtt_us);
    let counted: Vec<(u64, u64, u64)> = samples
        .map(|((t_ms, bps), srtt_us)| (*t_ms, *bps, *srtt_us))
        .filter(|(t_ms, _, srtt_us)| *t_ms > warmup_ms && *srtt_us > 0)
        .collect();
    let number = |sample: &(u64, u64, u64)| (sample.0 - warmup_ms - 1) / window_ms;
    let point = |window: &[(u64, u64, u64)]| {
        let mean = |of: fn(&(u64, u64, u64)) -> u64| {
            window.iter().map(of).sum::<u64>() as f64 / window.len().max(1) as f64
        };
        Point { throughput_mbit: mean(|s| s.1) / 1e6, rtt_ms: mean(|s| s.2) / 1e3 }
    };
    counted.chunk_by(|a, b| number(a) == number(b)).map(point).collect()
}

impl Conformed {
    /// Of the links on which both were played.
    #[must_use]
    pub fn new(algorithm: &str, links: Vec<LinkConformance>) -> Conformed {
        // More than the kernel agrees with itself is not asked for.
        let ratio = |link: &LinkConformance| match link.kernels_own > 0.0 {
            true => (link.conformance / link.kernels_own).min(1.0),
            false => 0.0,
        };
        let ratios: Vec<f64> = links.iter().map(ratio).collect();
        let judged = judge(&ratios, Bound::AtLeast, LIMIT);
        let verdict = judged.map_or(Verdict::NotApplicable, |judged| judged.verdict);
        Conformed { algorithm: algorithm.to_owned(), limit: LIMIT, verdict, judged, links }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_results::{FlowResult, Header, Host, Run, RunFigures};

    fn run(contender: &str, repeat: u32, mbit: u64, rtt_ms: u64) -> Run {
        // Samples that fill a rectangle without a pattern that windows could meet.
        let n: Vec<u64> = (1..=200).collect();
        let turn = u64::from(repeat);
        let series = Series {
            t_ms: n.iter().map(|n| n * 100).collect(),
            throughput_bps: n.iter().map(|n| (mbit + (n.pow(3) + turn) % 11) * 1_000_000).collect(),
            srtt_us: n.iter().map(|n| (rtt_ms + (5 * n.pow(2) + turn) % 13) * 1000).collect(),
            ..Series::default()
        };
        let flow = FlowResult { series, ..FlowResult::default() };
        let measured = RunFigures { flows: vec![flow], ..RunFigures::default() };
        Run {
            scenario: String::new(),
            contender: contender.to_owned(),
            repeat,
            attempt: 1,
            seed: 0,
            started_at: String::new(),
            wall_ms: 0,
            outcome: RunOutcome::Ok(Box::new(measured)),
        }
    }

    fn agreement(ours: (u64, u64)) -> LinkConformance {
        let case = ConformanceCase { number: 0, repeats: 4 };
        let plan = case.plan("reno", &ccplane_algs::all()).unwrap();
        let of =
            |contender: &'static str, (mbit, rtt_ms)| (0..4).map(move |n| run(contender, n, mbit, rtt_ms));
        let header = Header {
            schema: 1,
            plan: ccplane_results::Plan::default(),
            scenarios: Vec::new(),
            contenders: Vec::new(),
            host: Host::default(),
        };
        let results = Results { header, runs: of(KERNELS, (20, 40)).chain(of(OURS, ours)).collect() };
        case.of(&plan, &results).unwrap()
    }

    /// Each of ours that has a namesake in the kernel.
    #[test]
    fn plans_are_drawn_and_fit_the_machine() {
        let algorithms = ccplane_algs::all();
        let ours = algorithms.iter().map(|a| a.name()).filter(|name| KERNEL_NAMES.contains(name));
        let ours: Vec<&str> = ours.collect();
        assert_eq!(ours, ["reno", "cubic", "bbr", "vegas"]);
        for (number, name) in (0..8).zip(ours.into_iter().cycle()) {
            let plan = ConformanceCase { number, repeats: 4 }.plan(name, &algorithms).unwrap();
            assert_eq!((plan.runs(), plan.at_once), (8, true));
            let names: Vec<&str> = plan.contenders.iter().map(|c| c.name.as_str()).collect();
            assert_eq!(names, [KERNELS, OURS]);
            assert!(plan.scenarios[0].link.medium.rate_bit_per_s().is_some_and(|bps| bps <= 60_000_000));
        }
    }

    #[test]
    fn the_same_agrees_and_another_does_not() {
        let (same, other) = (agreement((20, 40)), agreement((20, 90)));
        assert!(
            same.conformance > 0.8 && same.kernels_own > 0.3,
            "{} {}",
            same.conformance,
            same.kernels_own
        );
        assert_eq!(other.conformance, 0.0);
        assert!(same.ours.len() >= 4 * 15, "{}", same.ours.len());
        let verdict = |link: &LinkConformance| Conformed::new("reno", vec![link.clone(); 3]).verdict;
        assert_eq!((verdict(&same), verdict(&other)), (Verdict::Pass, Verdict::Concern));
        assert_eq!(Conformed::new("reno", Vec::new()).verdict, Verdict::NotApplicable);
    }
}
