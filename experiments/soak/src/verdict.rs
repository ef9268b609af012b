//! The growth that each quantity may show, and whether it showed more.

use crate::sample::{ProcessSample, Sample};
use crate::slope::{Slope, slope};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The part of a run that does not count, as a share of it, and the most of it: caches fill.
const WARM_UP_SHARE: f64 = 0.2;
const MAX_WARM_UP_S: f64 = 600.0;
/// The same of a process's life: lives are shorter.
const LIFE_WARM_UP_SHARE: f64 = 1.0 / 60.0;
const MAX_LIFE_WARM_UP_S: f64 = 120.0;

/// The span over which the growth of a quantity is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Per {
    /// The whole run, across lives of its processes.
    Run,
    /// Each life of the agent.
    Agent,
    /// Each life of the server.
    Server,
}

/// The most that a quantity may grow.
pub struct Bound {
    pub name: &'static str,
    pub unit: &'static str,
    /// The span over which its growth is measured.
    pub per: Per,
    /// The growth per hour that is allowed.
    pub per_hour: f64,
    /// Total growth up to which the quantity counts as steady: caches that fill once.
    pub least: f64,
    /// Reads the value from a sample; `None` where it has none.
    pub value: fn(&Sample) -> Option<f64>,
}

macro_rules! bound {
    ($name:literal, $unit:literal, $per:ident, $per_hour:literal, $least:literal, $value:expr) => {
        Bound { name: $name, unit: $unit, per: Per::$per, per_hour: $per_hour, least: $least, value: $value }
    };
}

/// The bounds of all quantities. Memory may grow by an allocator's fragments and a learner's buffers. An agent's may grow once by the memory of the twin's
/// first search, 6 MiB so far. Quantities that are counted in whole
/// things may not grow by one in an hour.
pub static BOUNDS: [Bound; 14] = [
    bound!("agent: memory", "KiB", Agent, 8192.0, 16384.0, |s| s.agent.map(|p| p.rss_kib as f64)),
    bound!("agent: descriptors", "", Agent, 1.0, 1.0, |s| s.agent.map(|p| p.fds as f64)),
    bound!("agent: BPF objects", "", Agent, 1.0, 1.0, |s| s.agent.map(|p| p.bpf_fds as f64)),
    bound!("agent: threads", "", Agent, 1.0, 1.0, |s| s.agent.map(|p| p.threads as f64)),
    bound!("agents: memory at the same age", "KiB", Run, 8192.0, 16384.0, settled_agent),
    bound!("QUIC server: memory", "KiB", Server, 8192.0, 4096.0, |s| s.server.map(|p| p.rss_kib as f64)),
    bound!("QUIC server: descriptors", "", Server, 1.0, 1.0, |s| s.server.map(|p| p.fds as f64)),
    bound!("QUIC server: threads", "", Server, 1.0, 1.0, |s| s.server.map(|p| p.threads as f64)),
    bound!("soak: descriptors", "", Run, 2.0, 1.0, |s| Some(s.soak.fds as f64)),
    bound!("soak: threads", "", Run, 2.0, 1.0, |s| Some(s.soak.threads as f64)),
    bound!("pins", "", Run, 1.0, 1.0, |s| s.agent.map(|_| s.pins as f64)),
    bound!("network namespaces", "", Run, 1.0, 1.0, |s| Some(s.namespaces as f64)),
    bound!("run directory", "KiB", Run, 1024.0, 1024.0, |s| Some(s.run_dir_kib as f64)),
    bound!("logs", "KiB", Run, 8192.0, 4096.0, |s| Some(s.logs_kib as f64)),
];

/// An agent's memory where its first seconds are over, whichever agent it is.
fn settled_agent(sample: &Sample) -> Option<f64> {
    sample.agent.filter(|p| p.age_s >= 10).map(|p| p.rss_kib as f64)
}

/// The outcome of a quantity against its bound.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum GrowthVerdict {
    /// The samples do not show more growth than allowed.
    Holds(Slope),
    /// The 95 % interval lies above the allowed growth.
    Grows(Slope),
    /// The samples are too few to tell.
    Unknown,
}

/// A quantity that was held against its bound.
pub struct Judged {
    pub bound: &'static Bound,
    /// The first value that counts, the last one, and the largest.
    pub range: Option<(f64, f64, f64)>,
    pub verdict: GrowthVerdict,
}

/// Holds the samples of a run of `duration_s` against every bound.
pub fn judge(samples: &[Sample], duration_s: f64) -> Vec<Judged> {
    let warm_up_s = (WARM_UP_SHARE * duration_s).min(MAX_WARM_UP_S);
    let life_warm_up_s = (LIFE_WARM_UP_SHARE * duration_s).min(MAX_LIFE_WARM_UP_S);
    let judge = |bound: &'static Bound| {
        let mut lives: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
        for sample in samples.iter().filter(|s| s.at_s >= warm_up_s) {
            let process: Option<ProcessSample> = match bound.per {
                Per::Run => Some(ProcessSample { age_s: u64::MAX, ..ProcessSample::default() }),
                Per::Agent => sample.agent,
                Per::Server => sample.server,
            };
            let Some(process) = process.filter(|p| p.age_s as f64 >= life_warm_up_s) else { continue };
            if let Some(value) = (bound.value)(sample) {
                lives.entry(process.life).or_default().push((sample.at_s, value));
            }
        }
        let lives: Vec<_> = lives.into_values().collect();
        let values = || lives.iter().flatten().map(|(_, value)| *value);
        let range =
            values().next().zip(values().next_back()).map(|(a, b)| (a, b, values().fold(a, f64::max)));
        let verdict = match slope(&lives) {
            None => GrowthVerdict::Unknown,
            Some(slope) if slope.low > bound.per_hour && slope.low * hours(&lives) > bound.least => {
                GrowthVerdict::Grows(slope)
            }
            Some(slope) => GrowthVerdict::Holds(slope),
        };
        Judged { bound, range, verdict }
    };
    BOUNDS.iter().map(judge).collect()
}

/// Returns the time for which lives were observed, all together.
fn hours(lives: &[Vec<(f64, f64)>]) -> f64 {
    let span = |life: &Vec<(f64, f64)>| life.first().zip(life.last()).map_or(0.0, |(a, b)| b.0 - a.0);
    lives.iter().map(span).sum::<f64>() / 3600.0
}

/// All of it, for people.
pub fn table(judged: &[Judged]) -> String {
    let mut text = format!(
        "{:<30} {:>10} {:>10} {:>10} {:>12} {:>26} {:>9}  {}\n",
        "", "first", "last", "most", "an hour", "95 % interval", "at most", "verdict"
    );
    for Judged { bound, range, verdict } in judged {
        let name = if bound.unit.is_empty() {
            bound.name.to_owned()
        } else {
            format!("{}, {}", bound.name, bound.unit)
        };
        let (first, last, most) = range.unwrap_or_default();
        let (slope, word) = match verdict {
            GrowthVerdict::Holds(slope) => (Some(slope), "holds"),
            GrowthVerdict::Grows(slope) => (Some(slope), "GROWS"),
            GrowthVerdict::Unknown => (None, "too few samples"),
        };
        let (median, interval) = slope.map_or(Default::default(), |s| {
            (format!("{:+.2}", s.median), format!("{:+.2} to {:+.2}", s.low, s.high))
        });
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{name:<30} {first:>10} {last:>10} {most:>10} {median:>12} {interval:>26} {:>9}  {word}",
            bound.per_hour
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two hours of samples, of an agent that starts again each 20 minutes.
    fn samples(change: impl Fn(&mut Sample)) -> Vec<Sample> {
        let sample = |n: u64| {
            let at_s = 10 * n;
            let process = ProcessSample {
                rss_kib: 20_000,
                fds: 30,
                bpf_fds: 12,
                threads: 6,
                ..ProcessSample::default()
            };
            let agent = ProcessSample { life: at_s / 1200, age_s: at_s % 1200, ..process };
            let mut sample = Sample {
                at_s: at_s as f64,
                agent: Some(agent),
                server: Some(ProcessSample { age_s: at_s, ..process }),
                soak: process,
                pins: 9,
                namespaces: 2,
                run_dir_kib: 100,
                logs_kib: 50 + n / 10,
                flows: 8,
            };
            change(&mut sample);
            sample
        };
        (0..720).map(sample).collect()
    }

    fn growing(samples: &[Sample]) -> Vec<&'static str> {
        let judged = judge(samples, 7200.0);
        let grows = |j: &&Judged| matches!(j.verdict, GrowthVerdict::Grows(_));
        judged.iter().filter(grows).map(|j| j.bound.name).collect()
    }

    #[test]
    fn what_does_not_grow_holds() {
        let judged = judge(&samples(|_| {}), 7200.0);
        assert!(judged.iter().all(|j| matches!(j.verdict, GrowthVerdict::Holds(_))), "{}", table(&judged));
    }

    #[test]
    fn each_leak_is_named() {
        let leak = |s: &mut Sample| s.agent.as_mut().unwrap().fds += s.agent.unwrap().age_s / 100;
        assert_eq!(growing(&samples(leak)), ["agent: descriptors"]);
        let leak = |s: &mut Sample| s.server.as_mut().unwrap().rss_kib += s.at_s as u64 * 5;
        assert_eq!(growing(&samples(leak)), ["QUIC server: memory"]);
        let leak = |s: &mut Sample| s.namespaces += s.at_s as u64 / 600;
        assert_eq!(growing(&samples(leak)), ["network namespaces"]);
        let leak = |s: &mut Sample| s.agent.as_mut().unwrap().rss_kib += 5000 * s.agent.unwrap().life;
        assert_eq!(growing(&samples(leak)), ["agents: memory at the same age"]);
    }

    /// A cache that fills by a megabyte in a minute's run would be 60 an hour.
    #[test]
    fn what_fills_in_a_short_run_is_no_leak() {
        let grows = |s: &mut Sample| s.server.as_mut().unwrap().rss_kib += s.at_s as u64 * 20;
        let all = samples(grows);
        let short = judge(&all[..12], 120.0);
        assert!(!short.iter().any(|j| matches!(j.verdict, GrowthVerdict::Grows(_))), "{}", table(&short));
        assert_eq!(growing(&all), ["QUIC server: memory"]);
    }

    #[test]
    fn no_samples_prove_nothing() {
        assert!(judge(&[], 7200.0).iter().all(|j| j.verdict == GrowthVerdict::Unknown));
    }
}
