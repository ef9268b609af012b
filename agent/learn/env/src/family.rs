//! Families of links that policies are trained on.

use crate::Stack;
use crate::error::EnvError;
use crate::link::NS_PER_S;
use crate::link::{EnvLink, Phase};
use crate::scenario::{FlowSetup, OnOff, Scenario};
use ccplane_learn::Rng;
use ccplane_learn::math::{exp, ln};
use ccplane_netsim::MAX_QUEUE_PACKETS;
use serde::{Deserialize, Serialize};

/// Wire bytes of a full packet.
const WIRE_BYTES: f64 = 1500.0;
const MSS_BYTES: u64 = 1448;
const BYTES_PER_MBIT: f64 = 125_000.0;
/// Packets that a queue holds, at least: an initial window finds room.
const LEAST_QUEUE_PACKETS: f64 = 10.0;
/// Phases of a link, at most.
const MAX_PHASES: usize = 2000;
/// An episode's virtual time, in round trips for each decision.
pub(crate) const RTTS_PER_STEP: u64 = 4;
/// Seconds that an episode lasts in addition.
const EXTRA_S: u64 = 5;

/// A range, both ends included.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Range(pub f64, pub f64);

impl Range {
    fn uniform(self, rng: &mut Rng) -> f64 {
        self.0 + (self.1 - self.0) * rng.uniform()
    }

    /// Uniform in the logarithm.
    fn log_uniform(self, rng: &mut Rng) -> f64 {
        let (low, high) = (ln(self.0), ln(self.1));
        f64::from(exp((low + (high - low) * rng.uniform()) as f32)).clamp(self.0, self.1)
    }

    fn check(self, field: &'static str, min: f64, max: f64) -> Result<(), EnvError> {
        let Range(low, high) = self;
        let good = low.is_finite() && high.is_finite() && min <= low && low <= high && high <= max;
        if good { Ok(()) } else { Err(EnvError::Range { field, low, high, min, max }) }
    }
}

/// Links as PCC-RL's simulator draws them (Jay et al., ICML 2019, section 5; `network_sim.py`).
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PublishedLinks {
    /// Capacity in packets per second.
    pub bandwidth_pps: Range,
    /// Propagation delay one way, seconds.
    pub delay_s: Range,
    /// Natural logarithm of the queue's length in packets, less one.
    pub ln_queue: Range,
    /// Share of packets lost at random.
    pub loss: Range,
    /// Start rate over bandwidth.
    pub start: Range,
}

impl Default for PublishedLinks {
    fn default() -> Self {
        PublishedLinks {
            bandwidth_pps: Range(100.0, 500.0),
            delay_s: Range(0.05, 0.5),
            ln_queue: Range(0.0, 8.0),
            loss: Range(0.0, 0.05),
            start: Range(0.3, 1.5),
        }
    }
}

/// Links that people have. Shares are of episodes, 0 to 1, each drawn on its own.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RealLinks {
    /// Rate, Mb/s; uniform in the logarithm.
    pub rate_mbit: Range,
    /// Round trip, milliseconds; uniform in the logarithm.
    pub rtt_ms: Range,
    /// Queue, bandwidth-delay products; uniform in the logarithm.
    pub queue_bdp: Range,
    /// Share with random loss ...
    pub lossy: f64,
    /// ... of this share of packets; uniform in the logarithm.
    pub loss: Range,
    /// Share whose rate steps every so often ...
    pub stepping: f64,
    /// ... many round trips.
    pub step_rtts: Range,
    /// Share whose rate walks at random, as a radio link's does.
    pub walking: f64,
    /// Share with traffic that knows no congestion control ...
    pub crossed: f64,
    /// ... at this share of the link's rate.
    pub cross_rate: Range,
    /// Share with several learning flows ...
    pub shared: f64,
    /// ... so many; uniform in the logarithm.
    pub flows: Range,
    /// Share with rivals of another algorithm.
    pub rivals: f64,
    /// Share whose flows start with the policy, at any rate up to twice the link's, rather than by doubling.
    pub cold: f64,
}

impl Default for RealLinks {
    fn default() -> Self {
        RealLinks {
            rate_mbit: Range(1.0, 200.0),
            rtt_ms: Range(5.0, 300.0),
            queue_bdp: Range(0.2, 5.0),
            lossy: 0.35,
            loss: Range(0.0005, 0.05),
            stepping: 0.3,
            step_rtts: Range(15.0, 150.0),
            walking: 0.2,
            crossed: 0.25,
            cross_rate: Range(0.1, 0.6),
            shared: 0.3,
            flows: Range(2.0, 8.0),
            rivals: 0.2,
            cold: 0.3,
        }
    }
}

/// A family of links.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "lowercase")]
pub enum Family {
    /// The links published with Aurora.
    Published(PublishedLinks),
    /// Links as people have them.
    Real(RealLinks),
}

impl Family {
    /// # Errors
    /// The first range that is none.
    pub fn check(&self) -> Result<(), EnvError> {
        match self {
            Family::Published(links) => links.check(),
            Family::Real(links) => links.check(),
        }
    }

    /// Returns the most learning flows that a scenario has.
    pub(crate) fn most_learners(&self) -> usize {
        match self {
            Family::Real(links) if links.shared > 0.0 => links.flows.1.round().max(1.0) as usize,
            Family::Real(_) | Family::Published(_) => 1,
        }
    }

    /// A scenario, drawn from `seed` alone: learning flows run algorithm 0, rivals algorithm 1.
    pub fn draw(&self, seed: u64, max_steps: usize, has_rival: bool) -> Scenario {
        let mut rng = Rng::new(seed, &[0x5ce9]);
        match self {
            Family::Published(links) => links.draw(&mut rng, max_steps),
            Family::Real(links) => links.draw(&mut rng, max_steps, has_rival),
        }
    }
}

fn until_ns(rtt_ns: u64, max_steps: usize) -> u64 {
    (rtt_ns * RTTS_PER_STEP).saturating_mul(max_steps as u64).saturating_add(EXTRA_S * NS_PER_S)
}

fn loss_ppm(share: f64) -> u32 {
    (share * 1e6).round() as u32
}

impl PublishedLinks {
    fn check(&self) -> Result<(), EnvError> {
        self.bandwidth_pps.check("bandwidth_pps", 1.0, 1e6)?;
        self.delay_s.check("delay_s", 1e-4, 10.0)?;
        self.ln_queue.check("ln_queue", 0.0, 12.0)?;
        self.loss.check("loss", 0.0, 0.5)?;
        self.start.check("start", 0.01, 100.0)
    }

    fn draw(&self, rng: &mut Rng, max_steps: usize) -> Scenario {
        let pps = self.bandwidth_pps.uniform(rng);
        let rtt_ns = (2.0 * self.delay_s.uniform(rng) * 1e9) as u64;
        let queue = 1.0 + f64::from(exp(self.ln_queue.uniform(rng) as f32));
        let loss = self.loss.uniform(rng);
        let start_rate = (self.start.uniform(rng) * pps * MSS_BYTES as f64) as u64;
        let phase = Phase {
            from_ns: 0,
            bytes_per_s: (pps * WIRE_BYTES) as u64,
            delay_ns: 0,
            loss_ppm: loss_ppm(loss),
        };
        let flow = FlowSetup {
            algorithm: 0,
            start_ns: 0,
            delay_ns: rtt_ns,
            mss_bytes: MSS_BYTES,
            ack_every: 2,
            stack: Stack::Segments,
            start_rate: Some(start_rate),
            bytes: None,
        };
        Scenario {
            link: EnvLink::new(vec![phase], queue as usize),
            flows: vec![flow],
            way_back: None,
            cross: None,
            until_ns: until_ns(rtt_ns, max_steps),
        }
    }
}

impl RealLinks {
    fn check(&self) -> Result<(), EnvError> {
        self.rate_mbit.check("rate_mbit", 0.1, 10_000.0)?;
        self.rtt_ms.check("rtt_ms", 0.1, 2000.0)?;
        self.queue_bdp.check("queue_bdp", 0.01, 100.0)?;
        self.loss.check("loss", 1e-6, 0.5)?;
        self.step_rtts.check("step_rtts", 1.0, 1e6)?;
        self.cross_rate.check("cross_rate", 0.0, 1.0)?;
        self.flows.check("flows", 1.0, 64.0)?;
        let shares = [
            ("lossy", self.lossy),
            ("stepping", self.stepping),
            ("walking", self.walking),
            ("crossed", self.crossed),
            ("shared", self.shared),
            ("rivals", self.rivals),
            ("cold", self.cold),
        ];
        shares.into_iter().try_for_each(|(field, share)| Range(share, share).check(field, 0.0, 1.0))
    }

    fn draw(&self, rng: &mut Rng, max_steps: usize, has_rival: bool) -> Scenario {
        let rate = self.rate_mbit.log_uniform(rng) * BYTES_PER_MBIT;
        let rtt_ns = (self.rtt_ms.log_uniform(rng) * 1e6) as u64;
        let bdp = rate * rtt_ns as f64 / 1e9 / WIRE_BYTES;
        let queue =
            (self.queue_bdp.log_uniform(rng) * bdp).clamp(LEAST_QUEUE_PACKETS, MAX_QUEUE_PACKETS.into());
        let loss = if rng.uniform() < self.lossy { self.loss.log_uniform(rng) } else { 0.0 };
        let until_ns = until_ns(rtt_ns, max_steps);
        let first = Phase { from_ns: 0, bytes_per_s: rate as u64, delay_ns: 0, loss_ppm: loss_ppm(loss) };
        let phases = self.phases(rng, first, rtt_ns, until_ns);
        let cross = (rng.uniform() < self.crossed).then(|| OnOff {
            bytes_per_s: (self.cross_rate.uniform(rng) * rate) as u64,
            on_ns: (Range(5.0, 100.0).log_uniform(rng) * rtt_ns as f64) as u64,
            off_ns: (Range(5.0, 100.0).log_uniform(rng) * rtt_ns as f64) as u64,
        });
        Scenario {
            flows: self.flows(rng, rate, rtt_ns, has_rival),
            link: EnvLink::new(phases, queue as usize),
            way_back: None,
            cross,
            until_ns,
        }
    }

    fn flows(&self, rng: &mut Rng, rate: f64, rtt_ns: u64, has_rival: bool) -> Vec<FlowSetup> {
        let learners =
            if rng.uniform() < self.shared { self.flows.log_uniform(rng).round() as usize } else { 1 };
        let rivals = usize::from(has_rival && rng.uniform() < self.rivals);
        let cold = rng.uniform() < self.cold;
        // Half of them as our kernel datapath sends, half as one that hands packets over one by one.
        let stack = if rng.uniform() < 0.5 { Stack::Steered } else { Stack::Segments };
        let ack_every = [2, 2, 2, 1, 4][rng.below(5)];
        let mut flow = |n: usize, algorithm| FlowSetup {
            algorithm,
            start_ns: if n == 0 { 0 } else { (rng.uniform() * 40.0 * rtt_ns as f64) as u64 },
            // Some have a longer way than others.
            delay_ns: if n == 0 { rtt_ns } else { (rtt_ns as f64 * (1.0 + 0.5 * rng.uniform())) as u64 },
            mss_bytes: MSS_BYTES,
            ack_every,
            stack,
            start_rate: cold.then(|| (Range(0.05, 2.0).log_uniform(rng) * rate / learners as f64) as u64),
            bytes: None,
        };
        let mut flows: Vec<FlowSetup> = (0..learners).map(|n| flow(n, 0)).collect();
        flows.extend((0..rivals).map(|n| flow(learners + n, 1)));
        flows
    }

    fn phases(&self, rng: &mut Rng, first: Phase, rtt_ns: u64, until_ns: u64) -> Vec<Phase> {
        let kind = rng.uniform();
        let (base, rtt) = (first.bytes_per_s as f64, rtt_ns as f64);
        let bounds = (self.rate_mbit.0 * BYTES_PER_MBIT, self.rate_mbit.1 * BYTES_PER_MBIT);
        let mut phases = vec![first];
        let push = |phases: &mut Vec<Phase>, after_ns: f64, rate: f64| {
            let last = phases[phases.len() - 1];
            let next = Phase {
                from_ns: last.from_ns + after_ns.max(1e6) as u64,
                bytes_per_s: rate.clamp(bounds.0, bounds.1) as u64,
                ..last
            };
            let more = next.from_ns < until_ns && phases.len() < MAX_PHASES;
            if more {
                phases.push(next);
            }
            more
        };
        if kind < self.stepping {
            let period = self.step_rtts.log_uniform(rng) * rtt;
            while push(&mut phases, period * (0.5 + rng.uniform()), base * Range(0.25, 4.0).log_uniform(rng))
            {
            }
        } else if kind < self.stepping + self.walking {
            // Reverts to its mean (Ornstein and Uhlenbeck), in the logarithm.
            let period = Range(20e6, 300e6).log_uniform(rng);
            let (sigma, pull) = (Range(0.05, 0.4).uniform(rng), 0.05);
            let mut x = 0.0;
            loop {
                x += sigma * rng.normal() - pull * x;
                if !push(&mut phases, period, base * f64::from(exp(x as f32))) {
                    break;
                }
            }
        }
        phases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_within_their_ranges_and_follow_from_the_seed() {
        let real = Family::Real(RealLinks::default());
        let published = Family::Published(PublishedLinks::default());
        let mut kinds = [0; 5];
        for seed in 0..400 {
            let s = real.draw(seed, 400, true);
            assert_eq!(s, real.draw(seed, 400, true));
            assert!(s.check().is_ok(), "{s:?}");
            assert!(s.link.phases.iter().all(|p| (125_000..=25_000_000).contains(&p.bytes_per_s)));
            assert!(s.link.phases.windows(2).all(|w| w[0].from_ns < w[1].from_ns));
            assert!((5_000_000..=300_000_000).contains(&s.flows[0].delay_ns) && s.flows.len() <= 9);
            kinds[0] += usize::from(s.link.phases.len() > 1);
            kinds[1] += usize::from(s.cross.is_some());
            kinds[2] += usize::from(s.flows.len() > 2);
            kinds[3] += usize::from(s.flows.iter().any(|f| f.algorithm == 1));
            kinds[4] += usize::from(s.link.phases[0].loss_ppm > 0);
            let p = published.draw(seed, 400, true);
            assert!(p.check().is_ok(), "{p:?}");
            assert!((150_000..=750_000).contains(&p.link.phases[0].bytes_per_s));
            assert!((100_000_000..=1_000_000_000).contains(&p.flows[0].delay_ns));
            assert!((2..=2982).contains(&p.link.queue_packets));
        }
        assert!(kinds.iter().all(|n| *n > 30), "{kinds:?}");
        assert!(real.check().is_ok() && published.check().is_ok());
        let wrong = RealLinks { rtt_ms: Range(300.0, 5.0), ..RealLinks::default() };
        assert!(matches!(Family::Real(wrong).check(), Err(EnvError::Range { field: "rtt_ms", .. })));
    }
}
