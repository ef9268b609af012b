//! The path of a run's packets: an emulated link, or a pair of virtual Ethernet devices.

use std::net::IpAddr;

use ccplane_emulator::netns::Namespace;
use ccplane_emulator::{
    self as emulator, Direction, DirectionStats, Emulator, LinkConfig, Loss, PathConfig, Shape, veth,
};
use ccplane_results::{LinkUse, Percentiles};

use crate::error::Result;
use crate::plan::{BurstLoss, Change, Discipline, Impairments, Medium, PlanLink, Policer, Queue};

/// Two namespaces and what joins them. Both go when it is dropped.
pub(super) enum TestPath {
    Emulated(Emulator),
    Veth { sender: Namespace, receiver: Namespace },
}

impl TestPath {
    pub(super) fn build(link: &PlanLink, seed: u64) -> Result<TestPath> {
        if link.medium == Medium::Veth {
            let (sender, receiver) = (Namespace::anonymous()?, Namespace::anonymous()?);
            veth::connect(&sender, &receiver)?;
            return Ok(TestPath::Veth { sender, receiver });
        }
        Ok(TestPath::Emulated(Emulator::start(&emulated(link, seed))?))
    }

    pub(super) fn sender(&self) -> &Namespace {
        match self {
            TestPath::Emulated(emulator) => emulator.sender_ns(),
            TestPath::Veth { sender, .. } => sender,
        }
    }

    pub(super) fn receiver(&self) -> &Namespace {
        match self {
            TestPath::Emulated(emulator) => emulator.receiver_ns(),
            TestPath::Veth { receiver, .. } => receiver,
        }
    }

    pub(super) fn receiver_ip(&self) -> IpAddr {
        match self {
            TestPath::Emulated(emulator) => emulator.receiver_addresses().v4.into(),
            TestPath::Veth { .. } => veth::ENDS[1],
        }
    }

    /// Hosts behind the link's ends, whose stacks are not the kernel's; `pair` tells them from others on it. None behind a veth
    /// pair's.
    #[cfg(feature = "dpdk")]
    pub(super) fn edges(&self, pair: u8) -> Result<Option<[ccplane_emulator::edge::Edge; 2]>> {
        match self {
            TestPath::Emulated(emulator) => Ok(Some(emulator.edges(pair)?)),
            TestPath::Veth { .. } => Ok(None),
        }
    }

    /// Lets the link become what `change` says; its seed starts the losses anew.
    pub(super) fn change(&self, change: &Change, seed: u64) -> Result<()> {
        let TestPath::Emulated(emulator) = self else { return Ok(()) };
        if let Some(bit_per_s) = change.bit_per_s {
            emulator.set_shape(Direction::Up, Shape::Rate { bit_per_s })?;
        }
        if let Some(delay_us) = change.delay_us {
            emulator.set_delay_us(Direction::Up, delay_us)?;
            emulator.set_delay_us(Direction::Down, delay_us)?;
        }
        if let Some(ppm) = change.loss_ppm {
            emulator.set_loss(Direction::Up, Loss { probability: share(ppm), seed })?;
        }
        Ok(())
    }

    /// The data's direction so far; `None` where nothing counts.
    pub(super) fn stats(&self) -> Option<DirectionStats> {
        match self {
            TestPath::Emulated(emulator) => Some(emulator.stats().up),
            TestPath::Veth { .. } => None,
        }
    }
}

/// Translates a plan's link into the emulator's configuration.
pub(super) fn emulated(link: &PlanLink, seed: u64) -> LinkConfig {
    let path = |medium: &Medium| PathConfig::new(shape(medium), link.delay_us);
    let mut up = path(&link.medium);
    up.queue = queue(link.queue, seed);
    up.loss = Loss { probability: share(link.loss_ppm), seed };
    up.impairments = impairments(&link.impairments, seed);
    let mut config = LinkConfig::symmetric(Shape::Unlimited, link.delay_us);
    config.up = up;
    config.down = path(&link.way_back);
    config.down.queue = queue(link.return_queue, seed);
    config.down.loss = Loss { probability: share(link.return_loss_ppm), seed: !seed };
    config
}

fn share(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}

fn queue(queue: Queue, seed: u64) -> emulator::Queue {
    // Plans whose queues mark are refused for live flows.
    let Queue { discipline, packets, bytes, .. } = queue;
    match discipline {
        Discipline::DropTail if packets.is_none() && bytes.is_none() => emulator::Queue::Infinite,
        Discipline::DropTail => emulator::Queue::DropTail { packets, bytes },
        Discipline::DropHead => emulator::Queue::DropHead { packets, bytes },
        Discipline::Codel { target_us, interval_us } => {
            emulator::Queue::CoDel { packets, bytes, target_us, interval_us }
        }
        Discipline::Pie { target_us, max_burst_us } => {
            emulator::Queue::Pie { packets, bytes, qdelay_ref_us: target_us, max_burst_us, seed }
        }
    }
}

fn impairments(asked: &Impairments, seed: u64) -> emulator::Impairments {
    let jitter = emulator::Jitter { max_us: asked.jitter_us, reorder: false };
    let reorder = emulator::Reorder { probability: share(asked.reorder_ppm), hold_us: asked.reorder_us };
    let policer = |p: Policer| emulator::Policer { bit_per_s: p.bit_per_s, burst_bytes: p.burst_bytes };
    let burst_loss = |burst: BurstLoss| {
        let (begin_ppm, end_ppm) = burst.chances_ppm();
        let (to_bad, to_good) = (share(begin_ppm), share(end_ppm));
        emulator::BurstLoss { to_bad, to_good, loss_good: 0.0, loss_bad: 1.0 }
    };
    emulator::Impairments {
        burst_loss: asked.burst_loss.map(burst_loss),
        jitter: (asked.jitter_us > 0).then_some(jitter),
        reorder: (asked.reorder_ppm > 0).then_some(reorder),
        duplicate: share(asked.duplicate_ppm),
        policer: asked.policer.map(policer),
        seed,
        ..emulator::Impairments::default()
    }
}

fn shape(medium: &Medium) -> Shape {
    match medium {
        Medium::Veth | Medium::Unlimited => Shape::Unlimited,
        Medium::Rate(bit_per_s) => Shape::Rate { bit_per_s: *bit_per_s },
        Medium::Trace { name, trace } => {
            Shape::Trace { trace: trace.clone(), repeat: true, source: name.clone() }
        }
    }
}

/// A window of a direction's counters.
pub(super) fn link_use(window: &DirectionStats) -> LinkUse {
    let share = window.utilisation().unwrap_or(0.0);
    let delay = |q: f64| window.queueing_delay.percentile(q).unwrap_or(0);
    LinkUse {
        utilisation_ppm: (share * 1e6) as u64,
        departed_pkts: window.delivered_packets,
        dropped_pkts: window.dropped_packets + window.policed_packets,
        lost_pkts: window.lost_packets,
        marked_pkts: 0,
        queue_delay_us: Percentiles {
            mean: window.queueing_delay.mean_us().unwrap_or(0.0) as u64,
            p50: delay(0.5),
            p95: delay(0.95),
            p99: delay(0.99),
        },
    }
}
