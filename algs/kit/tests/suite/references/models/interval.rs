//! Monitor intervals as PCC-RL, the code of Aurora's paper, computes them: a model in floats, microseconds and packets.

use super::MSS;
use ccplane_program::ir::Prim;
use ccplane_program::vm::Prims;

/// Packets that an interval has time for.
const PACKETS: f64 = 10.0;
/// The intervals that the state is made of (section 4.1).
pub const INTERVALS: usize = 10;

/// The features of one interval (section 4.1).
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Mean round trip of the interval's second half less that of its first, per time.
    pub inflation: f64,
    /// The same of the halves of its samples, as PCC-RL has it.
    pub inflation_by_count: f64,
    /// The mean round trip to the smallest such mean so far.
    pub latency_ratio: f64,
    /// The packets sent for each one acknowledged.
    pub send_ratio: f64,
}

/// A finished interval.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    pub features: Features,
    pub took_us: f64,
    pub rtt_us: f64,
    pub acked: f64,
    /// The length that it had to have, microseconds.
    pub due_us: f64,
}

/// An interval that a flow is in.
#[derive(Debug)]
pub struct Monitor {
    began_us: f64,
    due_us: f64,
    in_flight: f64,
    acked: f64,
    lost: f64,
    /// Round trips of the first half, and of the second one.
    rtts_us: [Vec<f64>; 2],
    min_us: f64,
    floor_us: f64,
}

fn sample_us(prims: &Prims) -> Option<f64> {
    let rtt_us = prims.get(Prim::FlowRttSampleUs);
    (rtt_us < i64::from(i32::MAX)).then_some(rtt_us as f64)
}

impl Monitor {
    /// Begins the first interval with the first round trip's sample, at this rate; `None` before that. Intervals last half a round
    /// trip, time for ten packets, or `floor_us`, whichever is longest.
    pub fn begin(prims: &Prims, rate: f64, floor_us: f64) -> Option<Monitor> {
        let rtt_us = sample_us(prims)?;
        let mut monitor = Monitor {
            began_us: 0.0,
            due_us: 0.0,
            in_flight: 0.0,
            acked: 0.0,
            lost: 0.0,
            rtts_us: Default::default(),
            min_us: f64::INFINITY,
            floor_us,
        };
        monitor.next(prims, rtt_us, rate);
        monitor.rtts_us[0].push(rtt_us);
        Some(monitor)
    }

    fn next(&mut self, prims: &Prims, rtt_us: f64, rate: f64) {
        let (min_us, floor_us) = (self.min_us, self.floor_us);
        *self = Monitor {
            began_us: prims.get(Prim::AckNow) as f64,
            due_us: (rtt_us / 2.0).max(PACKETS * MSS * 1e6 / rate).max(floor_us).floor(),
            in_flight: prims.get(Prim::FlowPacketsInFlight) as f64,
            acked: 0.0,
            lost: 0.0,
            rtts_us: Default::default(),
            min_us,
            floor_us,
        };
    }

    /// Takes in an ACK.
    pub fn on_ack(&mut self, prims: &Prims) {
        let of = |prim| prims.get(prim) as f64;
        self.acked += of(Prim::AckPacketsAcked) + of(Prim::AckPacketsMisordered);
        self.lost += of(Prim::AckLostPktsSample);
        let half = usize::from(of(Prim::AckNow) - self.began_us >= (self.due_us / 2.0).floor());
        self.rtts_us[half].extend(sample_us(prims));
    }

    /// Ends the interval with an ACK that was taken in, and after which the flow has this rate.
    pub fn finish(&mut self, prims: &Prims, rate: f64) -> Finished {
        let mean = |rtts: &[f64]| rtts.iter().sum::<f64>() / rtts.len() as f64;
        let took_us = prims.get(Prim::AckNow) as f64 - self.began_us;
        let all = self.rtts_us.concat();
        let rtt_us = mean(&all);
        self.min_us = self.min_us.min(rtt_us);
        let increase = |first: &[f64], second: &[f64]| {
            if first.is_empty() || second.is_empty() { 0.0 } else { mean(second) - mean(first) }
        };
        let (first, second) = all.split_at(all.len() / 2);
        // What was sent is what has come back, was lost, or is on its way beyond what was before.
        let sent = self.acked + self.lost + prims.get(Prim::FlowPacketsInFlight) as f64 - self.in_flight;
        let features = Features {
            inflation: increase(&self.rtts_us[0], &self.rtts_us[1]) / took_us,
            inflation_by_count: increase(first, second) / took_us,
            latency_ratio: rtt_us / self.min_us,
            send_ratio: sent / self.acked,
        };
        let finished = Finished { features, took_us, rtt_us, acked: self.acked, due_us: self.due_us };
        self.next(prims, rtt_us, rate);
        finished
    }
}

/// The rate after an action, of which 1 changes it by `step` (section 4.1; 0.025 in PCC-RL).
pub fn rate_after(rate: f64, step: f64, action: f64) -> f64 {
    let delta = step * action;
    if action >= 0.0 { rate * (1.0 + delta) } else { rate / (1.0 - delta) }
}
