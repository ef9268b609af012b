//! Live runs: this machine's TCP flows over emulated links between two network namespaces, whose packets an agent decides about.
//!
//! One sender has flows to one receiver, half of them over IPv4 and half over IPv6. The links serve by strict priority
//! of the code point. Which flow first is asked on the first link alone; which path, over all of them. What is learned
//! of sizes before the run is nothing: the kernel's datapath remembers what it sees.

mod traffic;

use crate::ecmp::Ecmp;
use crate::error::FabricError;
use crate::plan::{Contender, FabricPlan, Kind, Slot};
use crate::play::{Player, Ran};
use crate::setting::LiveSetting;
use crate::trial::{Completion, TrialOutcome};
use crate::uplinks::{SLOW_PARTS, Uplinks};
use ccplane_agent::agent::OwnLoop;
use ccplane_agent::config::{Bounded, Packets, PathConfig, Switch};
use ccplane_agent::control::ModeName;
use ccplane_agent::place::Located;
use ccplane_alg::Algorithm;
use ccplane_algs::THRESHOLDS;
use ccplane_core::Counters;
use ccplane_emulator::{LinkConfig, MultiPath, Outages, Queue, Shape};
use ccplane_netsim::workload::{HostArrivals, Split};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use traffic::{LiveFlow, Shared, accept_all, bind_all, send_all};

/// The datapath's name, which one run at a time has.
const NAME: &str = "ccplane_live";
/// Bits of marks that name paths.
const MARK_MASK: u32 = 0xf;
/// Silence of the agent after which packets are left as they are, milliseconds: longer than a busy machine makes it wait.
const HEARTBEAT_MS: u64 = 5_000;
/// Time between two looks at the flows that the agent has.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// The mean times for which a link that fails works, and does not, microseconds.
const WORKS_US: u64 = 400_000;
const FAILED_US: u64 = 200_000;
/// The link that is slow, or fails.
const BAD_LINK: usize = 1;
/// Lowest priority, of packets whose code point asks for none.
const LAST: u8 = 7;

/// The one who decides about the packets of a live run.
#[derive(Clone)]
pub enum Decides {
    /// Nothing: all packets are alike, and take the first link.
    Nothing,
    /// The sending application, which knows how much it has to send: sizes from which on flows have the next priority.
    Application([u64; THRESHOLDS]),
    /// A program in the kernel, and its agent.
    Program(Arc<dyn Algorithm>),
}

/// A run of this machine's own flows.
pub struct LiveTrial<'a> {
    pub setting: &'a LiveSetting,
    pub located: &'a Located,
    pub kind: Kind,
    pub uplinks: Uplinks,
    pub decides: Decides,
    /// The seed of random outages.
    pub seed: u64,
    /// Flows that come first and are not measured, and those that are.
    pub warm_up_flows: usize,
    pub flows: usize,
}

/// The flows of a live run, and what was counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveOutcome {
    /// In order of their start; a flow has ended when its last byte was read.
    pub completions: Vec<Completion>,
    pub duration_us: u64,
    /// Packets that the links' queues dropped.
    pub dropped: u64,
    /// Bytes that each link carried to the receiver.
    pub carried_bytes: Vec<u64>,
    /// Flows that were seen under a program.
    pub steered: usize,
}

impl LiveTrial<'_> {
    /// Carries the flows of `arrivals` that start at host 0.
    ///
    /// # Errors
    /// Links, flows or the agent that could not be made, or an agent under which no flow's program ran.
    pub fn run(&self, arrivals: HostArrivals) -> Result<LiveOutcome, FabricError> {
        let paths = MultiPath::start(&self.links())?;
        let agent = match &self.decides {
            Decides::Program(algorithm) => Some(self.agent(&paths, algorithm)?),
            Decides::Nothing | Decides::Application(_) => None,
        };
        let priority = |bytes: u64| match &self.decides {
            Decides::Application(sizes) => sizes.iter().filter(|size| bytes > **size).count() as u8,
            Decides::Nothing | Decides::Program(_) => LAST,
        };
        let listeners = paths.receiver_ns().run(bind_all)??;
        let shared = Shared::new(self.warm_up_flows + self.flows);
        let (began, mut steered) = (Instant::now(), BTreeSet::new());
        let sent = thread::scope(|scope| {
            let (listeners, shared, priority) = (&listeners[..], &shared, &priority);
            let sender = paths.sender_ns();
            scope.spawn(move || accept_all(scope, listeners, shared));
            let ours = arrivals.filter(|arrival| arrival.from == 0);
            let sending = scope.spawn(move || sender.run(|| send_all(ours, priority, shared)));
            while !sending.is_finished() {
                steered.extend(agent.iter().flat_map(steered_flows));
                thread::sleep(POLL_EVERY);
            }
            shared.halt();
            sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        sent??;
        let duration = began.elapsed();
        if let Some(agent) = agent {
            agent.stop().map_err(|failure| FabricError::Agent(failure.message()))?;
            if steered.is_empty() {
                return Err(FabricError::Unsteered);
            }
        }
        let links = paths.stop()?;
        Ok(LiveOutcome {
            completions: self.completions(&shared.flows()),
            duration_us: duration.as_micros() as u64,
            dropped: links.iter().map(|link| link.up.dropped_packets).sum(),
            carried_bytes: links.iter().map(|link| link.up.delivered_bytes).collect(),
            steered: steered.len(),
        })
    }

    fn links(&self) -> Vec<LinkConfig> {
        let LiveSetting { rate_mbit, delay_us, queue_packets, .. } = *self.setting;
        let link = |number: usize| {
            let mut config = LinkConfig::symmetric(Shape::mbit(rate_mbit), delay_us);
            config.up.queue = Queue::Priority { packets: Some(queue_packets), bytes: None };
            // What all flows acknowledge comes back by the first link.
            config.down.shape = Shape::Unlimited;
            config.up.impairments.seed = self.seed;
            match self.uplinks {
                Uplinks::Slow if number == BAD_LINK => {
                    let bit_per_s = u64::from(rate_mbit) * 1_000_000 / SLOW_PARTS;
                    config.up.shape = Shape::Rate { bit_per_s };
                }
                Uplinks::Failed if number == BAD_LINK => {
                    config.up.impairments.outages =
                        Some(Outages { mean_on_us: WORKS_US, mean_off_us: FAILED_US });
                }
                Uplinks::Even | Uplinks::Slow | Uplinks::Failed => {}
            }
            config
        };
        (0..self.setting.paths).map(link).collect()
    }

    /// Starts an agent in the sender's namespace.
    fn agent(&self, paths: &MultiPath, algorithm: &Arc<dyn Algorithm>) -> Result<OwnLoop, FabricError> {
        let mut config = self.located.config.clone();
        config.agent.heartbeat_timeout_ms = Bounded::clamped(HEARTBEAT_MS);
        let path = |number: usize| PathConfig {
            mark: MultiPath::mark(number),
            device: Some(MultiPath::device(number)),
        };
        let links = match self.kind {
            Kind::Scheduling => 0..1,
            Kind::Balancing => 0..paths.paths(),
        };
        config.datapath.packets = Packets {
            mode: Switch::On,
            name: NAME.to_owned(),
            devices: links.clone().map(MultiPath::device).collect(),
            algorithm: algorithm.name().to_owned(),
            flowlet_gap_us: Bounded::clamped(self.setting.flowlet_us),
            dscp: Some(std::array::from_fn(|priority| code_point(priority as u8))),
            mark_mask: MARK_MASK,
            paths: links.map(path).collect(),
            ..Packets::default()
        };
        let located = Located { config, control_socket: self.located.control_socket.clone() };
        let start = || {
            let started = OwnLoop::start_packets(&located, std::slice::from_ref(algorithm));
            started.map_err(|failure| FabricError::Agent(failure.message()))
        };
        Ok(paths.sender_ns().run(start)???)
    }

    fn completions(&self, flows: &[LiveFlow]) -> Vec<Completion> {
        let completion = |flow: &LiveFlow| Completion {
            arrival: flow.arrival,
            completion_ns: flow.ended.map(|ended| ended.duration_since(flow.started).as_nanos() as u64),
            base_rtt_ns: 2 * self.setting.delay_us * 1000,
        };
        flows.iter().skip(self.warm_up_flows).take(self.flows).map(completion).collect()
    }
}

/// The code point of a priority: a class selector (RFC 2474), the highest for the first.
fn code_point(priority: u8) -> u8 {
    LAST.saturating_sub(priority) << 3
}

/// The senders' ends of the flows that run a program now.
fn steered_flows(agent: &OwnLoop) -> Vec<SocketAddr> {
    let flows = agent.flows();
    flows.iter().filter(|flow| flow.mode == ModeName::Program).map(|flow| flow.local).collect()
}

/// Does these runs of a live plan, one after the other; `told` hears of each step, and `ended` takes each run; both say whether to
/// go on. Returns whether all was done.
///
/// # Errors
/// The plan is none for live runs; the first run that cannot be carried out.
pub fn play_live(
    plan: &FabricPlan,
    slots: &[Slot],
    located: &Located,
    told: &(dyn Fn(&str) -> bool + Sync),
    ended: &(dyn Fn(Ran) -> bool + Sync),
) -> Result<bool, FabricError> {
    let setting = plan.live.as_ref().filter(|_| plan.is_live).ok_or(FabricError::NotLive)?;
    let Some(player) = Player::new(plan, slots, 1, told)? else { return Ok(false) };
    for (done, slot) in (1..).zip(slots) {
        let began = Instant::now();
        let group = &plan.groups[slot.group];
        let trial = LiveTrial {
            setting,
            located,
            kind: plan.kind,
            uplinks: group.uplinks,
            decides: decides(&player, slot)?,
            seed: plan.seed.wrapping_add(slot.repeat.into()),
            warm_up_flows: plan.warm_up_flows,
            flows: plan.flows,
        };
        let structure = setting.structure(group.predictable_percent * 10_000);
        let (load_ppm, split) = (slot.load_percent * 10_000, (Split::Test, trial.seed));
        let arrivals =
            HostArrivals::new(&group.sizes, load_ppm, plan.fabric.edge_bit_per_s, structure, split)?;
        let seen = trial.run(arrivals)?;
        let mut notes = player.notes(slot);
        notes.push(format!(
            "{} flows seen under a program; bytes by link: {:?}",
            seen.steered, seen.carried_bytes
        ));
        let ran = Ran { slot: *slot, outcome: outcome(seen), notes, took: began.elapsed() };
        let (name, group) = (slot.contender.name(), group.name(plan.kind));
        let text = format!("{done} of {}: {name}, {group}, at {} %", slots.len(), slot.load_percent);
        if !(ended(ran) && told(&text)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the one who decides under a contender.
fn decides(player: &Player<'_>, slot: &Slot) -> Result<Decides, FabricError> {
    Ok(match slot.contender {
        Contender::Ecmp => Decides::Program(Arc::new(Ecmp)),
        Contender::KnownSizes => {
            Decides::Application(player.known_sizes(slot).ok_or(FabricError::NoSnapshot)?)
        }
        _ => player.algorithm(slot)?.map_or(Decides::Nothing, Decides::Program),
    })
}

/// A live run as records of results have it.
fn outcome(seen: LiveOutcome) -> TrialOutcome {
    TrialOutcome {
        completions: seen.completions,
        counters: Counters::default(),
        digest: 0,
        duration_us: seen.duration_us,
        dropped: seen.dropped,
        arrived: 0,
        overtaking: 0,
    }
}
