//! A bridge with its core and a datapath that records, and the messages of a portus agent.

use ccplane_bridge::{Bridge, PORTUS, Portus};
use ccplane_contract::fake::{FakeChange, FakeDatapath, FakeFlow};
use ccplane_contract::{Datapath, FlowId, FlowInfo};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rules, drive};
use ccplane_program::stock::{Stock, lower};
use ccplane_wire::v1::{self, Bytecode, ChangeProg, Install, ToAgent, ToDatapath, Update};
use std::collections::{BTreeSet, HashMap};

pub const DP: DatapathId = DatapathId(3);
pub const MAX_FLOWS: usize = 8;
/// The window of a world's flows.
const CWND_PACKETS: u32 = 25;

/// Reports what was acknowledged and how often; its control registers are c0 and c1.
pub const PROGRAM: &str = "
(def (Report (volatile acked 0) (acks 0)) (step 1) (volatile limit 100))
(when true
  (:= Report.acked (+ Report.acked Ack.bytes_acked)) (:= Report.acks (+ Report.acks step)) (report))";

/// Starts a flow to this address whose window is so many packets.
pub fn start<'f>(fake: &'f mut FakeDatapath, flow: u64, remote: &str, snd_cwnd: u32) -> &'f mut FakeFlow {
    let info = FlowInfo { remote: remote.parse().unwrap(), ..FlowInfo::example(1400, 14_000) };
    let flow = fake.start(FlowId(flow), info);
    flow.transport.snd_cwnd = snd_cwnd;
    flow
}

/// Returns the changes to flows since the last call, in short.
pub fn calls(fake: &mut FakeDatapath) -> Vec<String> {
    let short = |FakeChange { flow, starts, fields }: FakeChange| {
        format!("{} {} {fields:?}", if starts.is_some() { "set" } else { "update" }, flow.0)
    };
    fake.take_changes().into_iter().map(short).collect()
}

/// A message that portus received.
#[derive(Clone, PartialEq, Debug)]
pub enum Got {
    Ready,
    Create { sid: u32, cwnd_bytes: u32, mss_bytes: u32, remote: String, asks: Option<String> },
    Measure { sid: u32, program: u32, values: Vec<u64> },
    Close { sid: u32 },
}

/// A core with one datapath, all of whose flows are portus's.
pub struct World {
    pub core: Core,
    pub bridge: Bridge,
    pub fake: FakeDatapath,
    /// Flows that portus was told of and that have not ended, as it sees them.
    pub open: BTreeSet<u32>,
    /// The program that portus set on each.
    pub set: HashMap<u32, u32>,
}

impl World {
    pub fn new() -> World {
        let catalog = Catalog::new(vec![std::sync::Arc::new(Portus)], 100).unwrap();
        let mut core = Core::new(catalog, Rules::all(PORTUS), Config::default()).unwrap();
        let fake = FakeDatapath::default();
        core.attach(DP, fake.capabilities(), 0).unwrap();
        let (open, set) = Default::default();
        World { core, bridge: Bridge::new(PORTUS, MAX_FLOWS, 7), fake, open, set }
    }

    /// Starts a flow to this address.
    pub fn start(&mut self, flow: u64, remote: &str) -> &mut FakeFlow {
        start(&mut self.fake, flow, remote, CWND_PACKETS)
    }

    /// Makes the bridge find a portus that listens.
    pub fn arrive(&mut self) -> Vec<Got> {
        self.bridge.arrive(&mut self.core);
        self.open.clear();
        self.set.clear();
        self.turn()
    }

    /// Takes a turn as the agent's loop does; returns what portus hears. Holds it to the protocol.
    pub fn turn(&mut self) -> Vec<Got> {
        drive(&mut self.core, DP, &mut self.fake, 1);
        while let Some(event) = self.core.next_host_event(PORTUS) {
            self.bridge.event(&mut self.core, event);
        }
        drive(&mut self.core, DP, &mut self.fake, 1);
        let mut received = Vec::new();
        while let Some(datagram) = self.bridge.outgoing() {
            assert!(datagram.len() <= v1::MAX_PORTUS_DATAGRAM_BYTES);
            received.extend(ToAgent::parse_all(datagram).map(|message| got(message.unwrap())));
            self.bridge.sent();
        }
        for message in &received {
            match message {
                Got::Ready => {}
                Got::Create { sid, mss_bytes, .. } => {
                    assert!(*mss_bytes > 0 && self.open.insert(*sid), "{message:?}");
                }
                Got::Measure { sid, program, values } => {
                    assert!(self.open.contains(sid) && !values.is_empty(), "{message:?}");
                    assert_eq!(self.set.get(sid), Some(program), "{message:?}");
                }
                Got::Close { sid } => assert!(self.open.remove(sid), "{message:?}"),
            }
        }
        assert!(self.open.len() <= MAX_FLOWS);
        received
    }

    /// Portus sends a datagram.
    pub fn say(&mut self, messages: &[ToDatapath<'_>]) -> Vec<Got> {
        let mut bytes = Vec::new();
        for message in messages {
            message.encode(&mut bytes).unwrap();
            if let ToDatapath::ChangeProg(change) = message {
                self.set.insert(change.sid, change.program_uid);
            }
        }
        self.bridge.datagram(&mut self.core, &bytes);
        self.turn()
    }

    pub fn install(&mut self, number: u32, source: &str) -> Vec<Got> {
        let stock = stock(source);
        let code = Bytecode::try_from(&stock).unwrap();
        self.say(&[ToDatapath::Install(Install { sid: 0, program_uid: number, code })])
    }

    pub fn change(&mut self, sid: u32, number: u32, fields: &[(v1::Field, u64)]) -> Vec<Got> {
        self.say(&[ToDatapath::ChangeProg(ChangeProg { sid, program_uid: number, fields: fields.into() })])
    }

    pub fn update(&mut self, sid: u32, fields: &[(v1::Field, u64)]) -> Vec<Got> {
        self.say(&[ToDatapath::Update(Update { sid, fields: fields.into() })])
    }

    /// Returns the reason for which a flow is native, if it is.
    pub fn native(&self, flow: u64) -> Option<String> {
        self.core.flow(DP, FlowId(flow)).unwrap().native().map(ToString::to_string)
    }

    pub fn calls(&mut self) -> Vec<String> {
        calls(&mut self.fake)
    }
}

pub fn stock(source: &str) -> Stock {
    lower(&ccplane_program::compile(source).unwrap()).unwrap()
}

pub fn control(index: u8) -> v1::Field {
    v1::Field::Control { index: v1::Index::new(index).unwrap(), volatile: false }
}

fn got(message: ToAgent<'_>) -> Got {
    match message {
        ToAgent::Ready { id } => {
            assert_eq!(id, 7);
            Got::Ready
        }
        ToAgent::Create(create) => Got::Create {
            sid: create.sid,
            cwnd_bytes: create.init_cwnd_bytes,
            mss_bytes: create.mss_bytes,
            remote: create.remote.to_addr(v1::AddrOrder::Network).unwrap().to_string(),
            asks: create.cong_alg.map(str::to_owned),
        },
        ToAgent::Measure(measure) => Got::Measure {
            sid: measure.sid,
            program: measure.program_uid,
            values: measure.values.iter().collect(),
        },
        ToAgent::Close { sid } => Got::Close { sid },
    }
}
