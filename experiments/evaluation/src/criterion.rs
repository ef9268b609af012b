//! The criteria of RFC 9743: what each asks, and the checks that stand for it here.
//!
//! The RFC sets no thresholds (section 5): those here are ours. Relative ones allow a fifth of throughput or a quarter of delay beside
//! the worse of the standards, Reno and CUBIC, on the same links; absolute ones are where a standard would be no measure.

use crate::error::EvaluationError;
use crate::measure::Metric;
use crate::scenario::ScenarioSet;
use crate::verdict::Bound;

/// The measure of a check's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Against {
    /// The limit is in the metric's unit.
    Absolute,
    /// The limit is a ratio to the worse of Reno and CUBIC in the same case.
    Standards,
}

/// A metric over the cases of a set, with its limit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Check {
    pub set: ScenarioSet,
    pub metric: Metric,
    pub bound: Bound,
    pub limit: f64,
    pub against: Against,
}

/// The part of the RFC that a criterion is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// Section 5.1: flows of the algorithm alone.
    Single,
    /// Section 5.2: beside other algorithms.
    Mixed,
    /// Section 5.3 and beyond: for the text of a specification.
    Other,
    /// Section 6: it has to be met where use on the Internet is not excluded.
    General,
    /// Section 7: a proposal may progress with an unsatisfactory result.
    Special,
}

impl Group {
    /// Returns the RFC's heading of the part.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Group::Single => "5.1 Single algorithm behaviour",
            Group::Mixed => "5.2 Mixed algorithm behaviour",
            Group::Other => "5.3 Other criteria",
            Group::General => "6 General use",
            Group::Special => "7 Special cases",
        }
    }
}

/// The ways in which a criterion is evaluated.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// By all of these checks.
    Measured(&'static [Check]),
    /// Not, for this reason.
    NotApplicable(&'static str),
}

/// A criterion of the RFC.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Criterion {
    pub name: &'static str,
    /// The sections that it is of.
    pub section: &'static str,
    pub group: Group,
    pub title: &'static str,
    /// The RFC's question, in our words.
    pub asks: &'static str,
    pub kind: Kind,
}

impl Criterion {
    /// The criterion's checks; none where it is not applicable.
    #[must_use]
    pub fn checks(&self) -> &'static [Check] {
        match self.kind {
            Kind::Measured(checks) => checks,
            Kind::NotApplicable(_) => &[],
        }
    }

    /// The criterion of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn find(name: &str) -> Result<&'static Criterion, EvaluationError> {
        let found = CRITERIA.iter().find(|criterion| criterion.name == name);
        found.ok_or_else(|| EvaluationError::NoCriterion {
            found: name.to_owned(),
            known: CRITERIA.iter().map(|criterion| criterion.name).collect(),
        })
    }
}

const fn at_most(set: ScenarioSet, metric: Metric, limit: f64) -> Check {
    Check { set, metric, bound: Bound::AtMost, limit, against: Against::Absolute }
}

const fn at_least(set: ScenarioSet, metric: Metric, limit: f64) -> Check {
    Check { set, metric, bound: Bound::AtLeast, limit, against: Against::Absolute }
}

/// At most so many times what the worse of the standards has.
const fn no_more(set: ScenarioSet, metric: Metric, limit: f64) -> Check {
    Check { set, metric, bound: Bound::AtMost, limit, against: Against::Standards }
}

/// At least so much of what the worse of the standards has.
const fn no_less(set: ScenarioSet, metric: Metric, limit: f64) -> Check {
    Check { set, metric, bound: Bound::AtLeast, limit, against: Against::Standards }
}

/// Carries most of what the standards carry.
const fn carries(set: ScenarioSet) -> Check {
    no_less(set, Metric::Throughput, 0.8)
}

/// Keeps no longer queues than the standards.
const fn waits(set: ScenarioSet) -> Check {
    no_more(set, Metric::Queue, 1.25)
}

/// Has no more packets dropped than half as many again as the standards.
const fn drops(set: ScenarioSet) -> Check {
    no_more(set, Metric::Dropped, 1.5)
}

/// Rivals of one kind lose no more by it than by the worse of the standards, nor do they wait longer; and it is not starved itself.
const fn beside(set: ScenarioSet) -> [Check; 4] {
    [
        no_less(set, Metric::RivalThroughput, 0.7),
        waits(set),
        drops(set),
        at_least(set, Metric::FairShare, 0.25),
    ]
}

const BESIDE_RENO: [Check; 4] = beside(ScenarioSet::BesideReno);
const BESIDE_CUBIC: [Check; 4] = beside(ScenarioSet::BesideCubic);
const BESIDE_BBR: [Check; 4] = beside(ScenarioSet::BesideBbr);

/// All of them, in the RFC's order.
pub const CRITERIA: &[Criterion] = &[
    Criterion {
        name: "congestion-collapse",
        section: "5.1.1, 5.2",
        group: Group::Single,
        title: "Protection against congestion collapse",
        asks: "Stops, or comes down to a packet in a round trip and backs off exponentially, when congestion is extreme and persists; \
               a loss of all feedback results in backoff.",
        kind: Kind::Measured(&[
            at_most(ScenarioSet::HeavyLoss, Metric::PacketsPerRtt, 4.0),
            at_most(ScenarioSet::Blackout, Metric::PacketsPerSecond, 5.0),
            at_most(ScenarioSet::Crowd, Metric::Dropped, 0.5),
            at_least(ScenarioSet::Crowd, Metric::Goodput, 0.7),
        ]),
    },
    Criterion {
        name: "bufferbloat",
        section: "5.1.2",
        group: Group::Single,
        title: "Protection against bufferbloat",
        asks: "Tries to avoid excessive queues. Reno and CUBIC fill whatever there is; the check is that nothing waits longer than \
               behind them.",
        kind: Kind::Measured(&[waits(ScenarioSet::Deep)]),
    },
    Criterion {
        name: "high-loss",
        section: "5.1.3",
        group: Group::Single,
        title: "Protection against high packet loss",
        asks: "Tries to avoid causing excessive losses, also where several flows share a queue of less than a bandwidth-delay product, \
               where BBRv1 failed.",
        kind: Kind::Measured(&[
            at_most(ScenarioSet::Shallow, Metric::Dropped, 0.05),
            drops(ScenarioSet::Wired),
        ]),
    },
    Criterion {
        name: "own-fairness",
        section: "5.1.4",
        group: Group::Single,
        title: "Fairness within the algorithm",
        asks: "Explores how flows of the same algorithm share a bottleneck.",
        kind: Kind::Measured(&[
            at_least(ScenarioSet::Own, Metric::Jain, 0.8),
            no_less(ScenarioSet::OwnRtts, Metric::Jain, 0.8),
        ]),
    },
    Criterion {
        name: "short-flows",
        section: "5.1.5",
        group: Group::Single,
        title: "Short flows",
        asks: "Considers how new and short-lived flows affect long-lived ones, and vice versa.",
        kind: Kind::Measured(&[
            no_more(ScenarioSet::Short, Metric::P95Fct, 1.25),
            at_most(ScenarioSet::Short, Metric::Unfinished, 0.02),
            carries(ScenarioSet::ShortOwn),
            no_more(ScenarioSet::ShortOwn, Metric::BesideFct, 1.25),
        ]),
    },
    Criterion {
        name: "beside-reno",
        section: "5.2.1",
        group: Group::Mixed,
        title: "Beside Reno (RFC 5681)",
        asks: "Does no more harm to flows of standard algorithms, in throughput, delay and loss, than these do to each other, and has \
               no potential for starvation.",
        kind: Kind::Measured(&BESIDE_RENO),
    },
    Criterion {
        name: "beside-cubic",
        section: "5.2.1",
        group: Group::Mixed,
        title: "Beside CUBIC (RFC 9438)",
        asks: "The same beside CUBIC.",
        kind: Kind::Measured(&BESIDE_CUBIC),
    },
    Criterion {
        name: "beside-bbr",
        section: "5.2.1",
        group: Group::Mixed,
        title: "Beside BBR",
        asks: "The same beside an algorithm that is no standard and widely deployed.",
        kind: Kind::Measured(&BESIDE_BBR),
    },
    Criterion {
        name: "real-time",
        section: "5.2.2",
        group: Group::Mixed,
        title: "Beside real-time flows",
        asks: "Coexists with flows of a finite rate and strict bounds of delay, which cannot be assumed to have a queue of their own.",
        kind: Kind::Measured(&[
            no_more(ScenarioSet::RealTime, Metric::P95Queue, 1.25),
            no_more(ScenarioSet::RealTime, Metric::DatagramLoss, 1.5),
        ]),
    },
    Criterion {
        name: "short-and-long",
        section: "5.2.3",
        group: Group::Mixed,
        title: "Short and long flows of other algorithms",
        asks: "Evaluates the effect on short-lived and long-lived flows of common algorithms.",
        kind: Kind::Measured(&[
            no_more(ScenarioSet::ShortCubic, Metric::BesideFct, 1.25),
            no_less(ScenarioSet::LongCubic, Metric::RivalThroughput, 0.8),
            no_more(ScenarioSet::LongCubic, Metric::P95Fct, 1.25),
        ]),
    },
    Criterion {
        name: "principles",
        section: "5.3.1",
        group: Group::Other,
        title: "Differences with congestion control principles",
        asks: "Explains deviations from RFC 2914 and RFC 7141.",
        kind: Kind::NotApplicable("a specification's text answers it; no run can"),
    },
    Criterion {
        name: "deployment",
        section: "5.3.2",
        group: Group::Other,
        title: "Incremental deployment",
        asks: "Discusses whether it can be deployed incrementally, and how equipment of today meets it.",
        kind: Kind::NotApplicable(
            "programs change the sender alone and nothing on the wire, so that every receiver and path is one of today's",
        ),
    },
    Criterion {
        name: "multicast",
        section: "1",
        group: Group::Other,
        title: "Multicast",
        asks: "Nothing: multicast is out of the RFC's scope.",
        kind: Kind::NotApplicable("out of the RFC's scope, and no datapath here sends to groups"),
    },
    Criterion {
        name: "ip-versions",
        section: "6",
        group: Group::Other,
        title: "IPv6 and transition mechanisms",
        asks: "Nothing of its own: criteria hold whatever carries the packets.",
        kind: Kind::NotApplicable(
            "programs see sizes in bytes and no addresses; a translator or tunnel shows as a smaller segment or a longer path",
        ),
    },
    Criterion {
        name: "wired",
        section: "6.1, 6.3",
        group: Group::General,
        title: "Wired paths with tail-drop queues",
        asks: "Meets the criteria over a representative range of bandwidths, delays and queue depths with FIFO queues that drop at \
               the tail.",
        kind: Kind::Measured(&[
            carries(ScenarioSet::Wired),
            waits(ScenarioSet::Wired),
            carries(ScenarioSet::Asymmetric),
        ]),
    },
    Criterion {
        name: "tunnels",
        section: "6.2",
        group: Group::General,
        title: "Tunnel behaviour",
        asks: "Considers tunnels where it relies on explicit signals from the path.",
        kind: Kind::NotApplicable(
            "programs get no signal from the path but losses, delays and marks of RFC 3168",
        ),
    },
    Criterion {
        name: "wireless",
        section: "6.4",
        group: Group::General,
        title: "Wireless paths",
        asks: "Is evaluated where losses are of radio, capacity varies, and access and retransmission of the link layer cause jitter.",
        kind: Kind::Measured(&[
            carries(ScenarioSet::RadioLoss),
            carries(ScenarioSet::Fading),
            waits(ScenarioSet::Fading),
            carries(ScenarioSet::Wifi),
            waits(ScenarioSet::Wifi),
        ]),
    },
    Criterion {
        name: "aqm",
        section: "7.1",
        group: Group::Special,
        title: "Active queue management",
        asks: "Is evaluated under a variety of queue disciplines.",
        kind: Kind::Measured(&[
            carries(ScenarioSet::Codel),
            no_more(ScenarioSet::Codel, Metric::P95Queue, 1.5),
            drops(ScenarioSet::Codel),
            carries(ScenarioSet::Pie),
            no_more(ScenarioSet::Pie, Metric::P95Queue, 1.5),
            drops(ScenarioSet::Pie),
            carries(ScenarioSet::DropHead),
            drops(ScenarioSet::DropHead),
        ]),
    },
    Criterion {
        name: "ecn",
        section: "7.1",
        group: Group::Special,
        title: "Explicit congestion notification",
        asks: "Responds to a mark of a packet that set ECT(0) as to a loss (RFC 3168; RFC 8311 has exceptions to be said): queues that \
               mark are as short as with the standards, and flows that are dropped instead get as much beside it.",
        kind: Kind::Measured(&[
            carries(ScenarioSet::CodelEcn),
            no_more(ScenarioSet::CodelEcn, Metric::P95Queue, 1.5),
            no_more(ScenarioSet::CodelEcn, Metric::Marked, 1.5),
            carries(ScenarioSet::PieEcn),
            no_more(ScenarioSet::PieEcn, Metric::P95Queue, 1.5),
            no_more(ScenarioSet::PieEcn, Metric::Marked, 1.5),
            no_less(ScenarioSet::EcnBeside, Metric::RivalThroughput, 0.7),
        ]),
    },
    Criterion {
        name: "l4s",
        section: "7.1",
        group: Group::Special,
        title: "Low latency, low loss, scalable throughput (L4S)",
        asks: "Responds to marks of ECT(1) as RFC 9331 requires of flows that set it, behind the coupled queues of RFC 9332.",
        kind: Kind::NotApplicable(
            "flows of plans set ECT(0) alone, whose marks are answered as losses, and no queue of plans is a coupled one",
        ),
    },
    Criterion {
        name: "circuit-breakers",
        section: "7.2",
        group: Group::Special,
        title: "Network circuit breakers and policers",
        asks: "Reacts before a breaker (RFC 8084) or a policer has to, so that losses stay below what would trip it.",
        kind: Kind::Measured(&[
            at_most(ScenarioSet::Policer, Metric::Dropped, 0.1),
            carries(ScenarioSet::Policer),
        ]),
    },
    Criterion {
        name: "varying-delay",
        section: "7.3",
        group: Group::Special,
        title: "Paths with varying delay",
        asks: "Is robust when the least delay changes much, and when delay varies without congestion.",
        kind: Kind::Measured(&[carries(ScenarioSet::DelaySteps), carries(ScenarioSet::Jitter)]),
    },
    Criterion {
        name: "starvation",
        section: "5.2, 7.3",
        group: Group::Special,
        title: "Starvation by jitter",
        asks: "Has no potential to cause starvation: two flows share a link though the delay of one varies without congestion (Arun, \
               Alizadeh, Balakrishnan: Starvation in End-to-End Congestion Control, SIGCOMM 2022).",
        kind: Kind::Measured(&[
            at_least(ScenarioSet::JitterOne, Metric::LeastShare, 0.2),
            at_least(ScenarioSet::AcksOne, Metric::LeastShare, 0.2),
        ]),
    },
    Criterion {
        name: "constrained",
        section: "7.4",
        group: Group::Special,
        title: "Internet of Things and constrained nodes",
        asks: "Works on links of very low throughput, where each packet counts.",
        kind: Kind::Measured(&[
            carries(ScenarioSet::Constrained),
            no_more(ScenarioSet::Constrained, Metric::Loss, 1.5),
        ]),
    },
    Criterion {
        name: "high-delay",
        section: "7.5",
        group: Group::Special,
        title: "Paths with high delay",
        asks: "Does not presume a low delay; satellites have long ones and high bandwidth-delay products.",
        kind: Kind::Measured(&[carries(ScenarioSet::Satellite), waits(ScenarioSet::Satellite)]),
    },
    Criterion {
        name: "misbehaving",
        section: "7.6",
        group: Group::Special,
        title: "Misbehaving nodes",
        asks: "Explores non-compliant senders, receivers and routers: senders that do not respond, receivers that acknowledge rarely or \
               conceal losses, routers that lose acknowledgements or deliver twice.",
        kind: Kind::Measured(&[
            carries(ScenarioSet::Unresponsive),
            carries(ScenarioSet::RareAcks),
            no_less(ScenarioSet::LyingReceiver, Metric::RivalThroughput, 0.7),
            carries(ScenarioSet::Copies),
        ]),
    },
    Criterion {
        name: "reordering",
        section: "7.7",
        group: Group::Special,
        title: "Extreme packet reordering",
        asks: "Does not presume that packets are delivered in order (RFC 4653).",
        kind: Kind::Measured(&[carries(ScenarioSet::Reordered)]),
    },
    Criterion {
        name: "transients",
        section: "7.8",
        group: Group::Special,
        title: "Transient events",
        asks: "Considers a sudden onset of congestion, disconnections, and links that come and go.",
        kind: Kind::Measured(&[
            carries(ScenarioSet::Onset),
            drops(ScenarioSet::Onset),
            carries(ScenarioSet::Outages),
        ]),
    },
    Criterion {
        name: "path-changes",
        section: "7.9",
        group: Group::Special,
        title: "Sudden changes in the path",
        asks: "Is robust to changes of the path's properties at the intervals at which routes change.",
        kind: Kind::Measured(&[
            carries(ScenarioSet::PathChanges),
            waits(ScenarioSet::PathChanges),
            drops(ScenarioSet::PathChanges),
        ]),
    },
    Criterion {
        name: "multipath",
        section: "7.10",
        group: Group::Special,
        title: "Multipath transport",
        asks: "Evaluates fail-over and coupled paths, where the algorithm is for multipath transports.",
        kind: Kind::NotApplicable("a flow of every datapath here has one path"),
    },
    Criterion {
        name: "data-centres",
        section: "7.11",
        group: Group::Special,
        title: "Data centres: incast, and circuit-switched networks",
        asks: "Considers bursts in which many nodes complete at the same time, at latencies below 2 ms; here also links that are \
               switched between packets and circuits.",
        kind: Kind::Measured(&[
            no_more(ScenarioSet::Incast, Metric::P95Fct, 1.25),
            at_most(ScenarioSet::Incast, Metric::Unfinished, 0.01),
            carries(ScenarioSet::Circuits),
        ]),
    },
    Criterion {
        name: "security",
        section: "8",
        group: Group::Other,
        title: "Security considerations",
        asks: "Examines security and privacy issues that arise from the design.",
        kind: Kind::NotApplicable(
            "a specification's text answers it; `misbehaving` has what can be measured",
        ),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_set_is_checked() {
        let names: BTreeSet<&str> = CRITERIA.iter().map(|c| c.name).collect();
        assert_eq!(names.len(), CRITERIA.len());
        let checked: BTreeSet<ScenarioSet> =
            CRITERIA.iter().flat_map(|c| c.checks()).map(|c| c.set).collect();
        assert_eq!(checked.len(), ScenarioSet::ALL.len());
        let (wired, none) = (Criterion::find("wired"), Criterion::find("none"));
        assert_eq!(wired.unwrap().section, "6.1, 6.3");
        assert!(none.unwrap_err().to_string().contains("there are congestion-collapse, "));
    }

    /// Every section of 5 to 8 that has criteria is there, by its number in the RFC.
    #[test]
    fn no_section_is_left_out() {
        let sections: BTreeSet<&str> = CRITERIA.iter().flat_map(|c| c.section.split(", ")).collect();
        let single = (1..=5).map(|n| format!("5.1.{n}"));
        let mixed = (1..=3).map(|n| format!("5.2.{n}"));
        let other = ["5.3.1", "5.3.2", "8"].map(str::to_owned);
        let general = (1..=4).map(|n| format!("6.{n}"));
        let special = (1..=11).map(|n| format!("7.{n}"));
        for section in single.chain(mixed).chain(other).chain(general).chain(special) {
            assert!(sections.contains(section.as_str()), "{section}");
        }
    }

    #[test]
    fn limits_are_on_the_right_side() {
        for check in CRITERIA.iter().flat_map(|c| c.checks()).filter(|c| c.against == Against::Standards) {
            assert!(check.bound.holds(1.0, check.limit), "{check:?}: a standard has to keep to itself");
        }
    }
}
