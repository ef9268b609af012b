//! Decisions about packets: an agent in another process decides, hears of sizes and pushes as one in the same process does.

use ccplane_alg::Row;
use ccplane_channel::hub::{Change, Hub, HubOptions, PeerId};
use ccplane_channel::{ServeOptions, Served, Wake};
use ccplane_contract::{Datapath, FlowId, FlowInfo, SlotStats};
use ccplane_core::{Candidate, Catalog, Config, Core, DatapathId, NATIVE, Origin, Rules, drive};
use ccplane_engine::packets::{HostMemory, Outbound};
use ccplane_engine::{Engine, EngineConfig, Handle, PacketsConfig, engine_with_clock};
use ccplane_snapshot::{Admission, Snapshot, Trust};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const DP: DatapathId = DatapathId(1);
const CONFIG: EngineConfig = EngineConfig {
    packets: Some(PacketsConfig { flowlet_us: 500, path_memory_us: 1_000_000 }),
    ..EngineConfig::new("packets")
};
/// Payload of a packet, bytes, and the time between two, microseconds.
const PACKET_BYTES: u64 = 1448;
const GAP_US: u64 = 100;
/// Packets between two turns of the agent.
const TURN_EVERY: usize = 16;
/// The sizes of flows, bytes: some end before the agent hears of them.
const SIZES: [u64; 8] = [1_000, 90_000, 3_000, 400_000, 2_000, 30_000, 250_000, 1_000];
/// Time between two turns without packets, microseconds; more than an agent is looked for again, and a batch of rows lasts.
const PAUSE_US: u64 = 250_000;
/// Turns by which a datapath has found its agent.
const FOUND_WITHIN: usize = 100;

/// The way between an engine and its agent.
enum Way {
    /// Both are in one process.
    Direct,
    Channel {
        served: Box<Served>,
        hub: Box<Hub>,
        peer: PeerId,
        dir: tempfile::TempDir,
    },
}

/// An engine that decides about packets, and its agent.
struct World {
    clock: Arc<AtomicU64>,
    engine: Engine,
    handle: Handle,
    memory: HostMemory,
    core: Core,
    way: Way,
    rows: Vec<(FlowId, Row)>,
}

/// Makes an agent's core that decides about packets by this algorithm, as its rules say nothing of them.
fn core(algorithm: &str, first_uid: u32) -> Core {
    let catalog = Catalog::new(ccplane_algs::on_packets(), first_uid).unwrap();
    let config = Config { on_packets: Some(algorithm.to_owned()), ..Config::default() };
    Core::new(catalog, Rules::all(NATIVE), config).unwrap()
}

fn bind(path: &Path) -> Hub {
    let heartbeat_timeout = Duration::from_millis(500);
    let options = HubOptions { max_peers: 4, heartbeat_timeout, session: 1, rings: true, wake: Wake::Sleep };
    Hub::bind(path, options).unwrap()
}

impl World {
    fn direct(algorithm: &str) -> World {
        let clock = Arc::new(AtomicU64::new(1));
        let read = Arc::clone(&clock);
        let (engine, handle) =
            engine_with_clock(CONFIG, Arc::new(|| ()), Arc::new(move || read.load(Relaxed)));
        let (memory, core) = (engine.host_memory(), core(algorithm, 1));
        World { clock, engine, handle, memory, core, way: Way::Direct, rows: Vec::new() }
    }

    fn attach(mut self) -> World {
        self.core.attach(DP, self.handle.capabilities(), self.now_us()).unwrap();
        self
    }

    fn over_the_channel(algorithm: &str) -> World {
        let mut world = World::direct(algorithm);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ccp.sock");
        let mut hub = Box::new(bind(&path));
        let mut served = Box::new(Served::connect(&path, ServeOptions::new("packets").unwrap()));
        let peer = world.join(&mut served, &mut hub);
        world.way = Way::Channel { served, hub, peer, dir };
        world
    }

    /// Turns until the datapath has found its agent, and attaches it there.
    fn join(&mut self, served: &mut Served, hub: &mut Hub) -> PeerId {
        let mut found = None;
        for _ in 0..FOUND_WITHIN {
            let now_us = self.clock.fetch_add(PAUSE_US, Relaxed);
            served.turn(&mut self.handle, now_us);
            let mut changes = Vec::new();
            hub.receive(100, u64::MAX, &mut changes);
            for change in changes {
                if let Change::Joined(peer) = change {
                    found = Some(peer);
                }
            }
            if let Some(peer) = found.filter(|_| served.is_connected()) {
                let capabilities = hub.peer(peer).unwrap().capabilities();
                assert_eq!(capabilities, self.handle.capabilities());
                self.core.attach(DP, capabilities, now_us).unwrap();
                return peer;
            }
        }
        panic!("no agent is found");
    }

    /// The agent is killed, and another one takes its place.
    fn restart(&mut self, algorithm: &str) {
        let Way::Channel { mut served, hub, dir, .. } = std::mem::replace(&mut self.way, Way::Direct) else {
            panic!("there is but one process")
        };
        drop(hub);
        let mut hub = Box::new(bind(&dir.path().join("ccp.sock")));
        self.core = core(algorithm, 1000);
        let peer = self.join(&mut served, &mut hub);
        self.way = Way::Channel { served, hub, peer, dir };
    }

    fn now_us(&self) -> u64 {
        self.clock.load(Relaxed)
    }

    /// The agent hears what happened, and what it asks for is done.
    fn turn(&mut self) {
        let now_us = self.now_us();
        match &mut self.way {
            Way::Direct => {
                drive(&mut self.core, DP, &mut self.handle, now_us);
            }
            Way::Channel { served, hub, peer, .. } => {
                served.turn(&mut self.handle, now_us);
                hub.receive(100, u64::MAX, &mut Vec::new());
                drive(&mut self.core, DP, hub.peer(*peer).unwrap(), now_us);
                served.turn(&mut self.handle, now_us);
            }
        }
        self.rows.extend(self.core.take_rows().into_iter().flat_map(|batch| batch.rows));
    }

    /// Time passes without packets.
    fn pause(&mut self) {
        for _ in 0..4 {
            self.clock.fetch_add(PAUSE_US, Relaxed);
            self.turn();
        }
    }

    /// Carries a flow of this size; returns its packets' priorities.
    fn flow(&mut self, bytes: u64) -> Vec<Option<u8>> {
        let info = FlowInfo::example(1448, 14_480);
        let now_us = self.now_us();
        let mut flow = self.engine.packet_flow(info, 1, &mut self.memory, now_us);
        let mut priorities = Vec::new();
        while flow.bytes_sent() < bytes {
            let now_us = self.clock.fetch_add(GAP_US, Relaxed) + GAP_US;
            let left = bytes - flow.bytes_sent();
            let payload_bytes = left.min(PACKET_BYTES);
            let packet = Outbound {
                now_ns: now_us * 1000,
                payload_bytes,
                bytes_sent: flow.bytes_sent(),
                new_bytes: payload_bytes,
                bytes_waiting: left - payload_bytes,
                ..Outbound::default()
            };
            priorities.push(flow.on_packet(&packet, &mut self.memory).map(|steering| steering.priority));
            if priorities.len().is_multiple_of(TURN_EVERY) {
                self.turn();
            }
        }
        flow.end(self.now_us() * 1000, &mut self.memory);
        self.turn();
        priorities
    }

    /// Pushes a snapshot that is the shipped one under another name, to all flows at once.
    fn push(&mut self) {
        let size = ccplane_algs::on_packets().into_iter().find(|a| a.name() == "size").unwrap();
        let source = size.policies().remove(0);
        let mut parts = Snapshot::built_in(source.snapshot).unwrap().into_parts();
        parts.provenance.created_by = "another training".to_owned();
        let snapshot = Trust::Any.admit(Snapshot::new(parts).unwrap(), &Admission::default()).unwrap();
        let candidate = Candidate { snapshot, origin: Origin::Operator { share: None, force: true } };
        let now_us = self.now_us();
        assert!(self.core.propose("size", source.slot, &candidate, now_us));
        self.pause();
    }

    fn slots(&mut self) -> Vec<SlotStats> {
        self.handle.slots()
    }
}

/// Priorities of packets, rows of flows, and slots before and after a push.
type Heard = (Vec<Vec<Option<u8>>>, Vec<(FlowId, Row)>, [Vec<SlotStats>; 2]);

/// Carries flows before and after a push.
fn carried(world: &mut World) -> Heard {
    world.pause();
    let before = world.slots();
    let began_us = world.now_us();
    let mut priorities: Vec<_> = SIZES.iter().map(|bytes| world.flow(*bytes)).collect();
    world.push();
    let after = world.slots();
    priorities.extend(SIZES.iter().map(|bytes| world.flow(*bytes)));
    world.pause();
    let since = |mut row: (FlowId, Row)| {
        row.1.at_us -= began_us;
        row
    };
    (priorities, std::mem::take(&mut world.rows).into_iter().map(since).collect(), [before, after])
}

#[test]
fn an_agent_in_another_process_decides_learns_and_pushes_as_one_in_the_same_process() {
    let mut direct = World::direct("size").attach();
    let expected = carried(&mut direct);
    let (priorities, rows, [before, after]) = &expected;
    assert!(priorities.iter().flatten().all(Option::is_some), "from the first packet on: {priorities:?}");
    assert!(rows.iter().all(|(_, row)| row.target_q16.is_some()));
    let flows: std::collections::BTreeSet<FlowId> = rows.iter().map(|(flow, _)| *flow).collect();
    assert_eq!(flows.len(), 2 * SIZES.len(), "short ones, too");
    assert!(before[0].active.is_some() && before[0].active != after[0].active, "{before:?} {after:?}");
    assert_eq!(direct.core.counters().refused_commands, 0);

    let mut channel = World::over_the_channel("size");
    assert_eq!(carried(&mut channel), expected);
    assert_eq!(channel.core.counters().refused_commands, 0);
}

/// The programs that flows started with end with the agent that named them.
#[test]
fn flows_start_with_what_the_next_agent_names() {
    let mut world = World::over_the_channel("pias");
    world.pause();
    assert_eq!(world.flow(50_000)[0], Some(0));
    world.restart("size");
    assert!(world.slots().is_empty());
    world.pause();
    assert!(world.flow(50_000)[0].is_some());
    assert!(world.slots()[0].active.is_some(), "the policy of the other algorithm");
    world.restart(NATIVE);
    world.pause();
    assert!(world.flow(50_000).iter().all(Option::is_none), "nobody decides");
}
