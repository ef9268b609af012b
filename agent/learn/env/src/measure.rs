//! Measurements of flows on their links.

use crate::flow::EnvFlow;

/// Sees every ACK of a run.
pub trait AckObserver {
    /// Flow `flow` had so many packets acknowledged, the newest after `rtt_ns`; `None` where only packets came that it had given up.
    fn acked(&mut self, flow: usize, now_ns: u64, packets: u64, rtt_ns: Option<u64>);
}

/// A watch that records nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoObserver;

impl AckObserver for NoObserver {
    fn acked(&mut self, _flow: usize, _now_ns: u64, _packets: u64, _rtt_ns: Option<u64>) {}
}

/// The totals of one flow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowTotals {
    /// Number of packets that arrived.
    pub delivered: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// Decisions of its policy.
    pub steps: usize,
    /// Mean reward of its intervals; 0 without any.
    pub reward: f64,
}

impl FlowTotals {
    pub(crate) fn of(flow: &EnvFlow<'_>) -> FlowTotals {
        let (sum, count) = flow.counts.rewards;
        FlowTotals {
            delivered: flow.transport.delivered_packets(),
            lost: flow.transport.lost_packets(),
            steps: flow.counts.steps,
            reward: sum / (count.max(1)) as f64,
        }
    }
}

/// Round trips and deliveries from a time on.
#[derive(Clone, Default, Debug)]
pub struct Rtts {
    from_ns: u64,
    flows: Vec<FlowRtts>,
}

#[derive(Clone, Default, Debug)]
struct FlowRtts {
    rtts_ns: Vec<u64>,
    sum_ns: u128,
    packets: u64,
}

impl Rtts {
    /// Measures ACKs from `from_ns` on.
    pub fn from(from_ns: u64) -> Rtts {
        Rtts { from_ns, flows: Vec::new() }
    }

    /// Packets of a flow.
    pub fn packets(&self, flow: usize) -> u64 {
        self.flows.get(flow).map_or(0, |f| f.packets)
    }

    /// Mean RTT of a flow's ACKs, nanoseconds; 0 without any.
    pub fn mean_ns(&self, flow: usize) -> u64 {
        let Some(f) = self.flows.get(flow) else { return 0 };
        (f.sum_ns / (f.rtts_ns.len().max(1)) as u128) as u64
    }

    /// The RTT that so many percent of a flow's ACKs are at or below, nanoseconds; 0 without any.
    pub fn percentile_ns(&mut self, flow: usize, percent: usize) -> u64 {
        let Some(f) = self.flows.get_mut(flow) else { return 0 };
        f.rtts_ns.sort_unstable();
        let at = (f.rtts_ns.len() * percent / 100).min(f.rtts_ns.len().saturating_sub(1));
        f.rtts_ns.get(at).copied().unwrap_or(0)
    }
}

impl AckObserver for Rtts {
    fn acked(&mut self, flow: usize, now_ns: u64, packets: u64, rtt_ns: Option<u64>) {
        if now_ns < self.from_ns {
            return;
        }
        if flow >= self.flows.len() {
            self.flows.resize_with(flow + 1, FlowRtts::default);
        }
        let f = &mut self.flows[flow];
        f.packets += packets;
        f.rtts_ns.extend(rtt_ns);
        f.sum_ns += u128::from(rtt_ns.unwrap_or(0));
    }
}
