//! A bridge with its core and a datapath that records, and the messages of a portus agent.

use ccplane_bridge::{Bridge, PORTUS, Portus};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowInfo, FlowStats, Mode, ProgramUid,
    TransportStats,
};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rules, drive};
use ccplane_program::ir::Program;
use ccplane_program::stock::{Stock, lower};
use ccplane_wire::v1::{self, Bytecode, ChangeProg, Install, ToAgent, ToDatapath, Update};
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub const DP: DatapathId = DatapathId(3);
pub const MAX_FLOWS: usize = 8;

/// Reports what was acknowledged and how often; its control registers are c0 and c1.
pub const PROGRAM: &str = "
(def (Report (volatile acked 0) (acks 0)) (step 1) (volatile limit 100))
(when true
  (:= Report.acked (+ Report.acked Ack.bytes_acked)) (:= Report.acks (+ Report.acks step)) (report))";

/// As it sees each flow: what a datapath must hold of it.
#[derive(Default)]
pub struct Fake {
    pub events: Vec<Event>,
    pub programs: BTreeMap<ProgramUid, Program>,
    pub flows: BTreeMap<FlowId, (FlowInfo, Option<ProgramUid>)>,
    pub calls: Vec<String>,
    pub refuse_installs: bool,
    /// Window of all flows, packets.
    pub snd_cwnd: u32,
    /// The name that owners of flows that start ask for.
    pub asks: Option<String>,
    pub requested: BTreeMap<FlowId, String>,
}

impl Fake {
    pub fn open(&mut self, flow: u64, remote: &str) {
        let info = FlowInfo {
            mss_bytes: 1400,
            init_cwnd_bytes: 14_000,
            local: "10.0.0.1:40000".parse().unwrap(),
            remote: remote.parse().unwrap(),
            cgroup: None,
            min_rtt_us: None,
        };
        self.flows.insert(FlowId(flow), (info.clone(), None));
        self.requested.extend(self.asks.clone().map(|name| (FlowId(flow), name)));
        self.events.push(Event::Created { flow: FlowId(flow), info });
    }

    pub fn close(&mut self, flow: u64) {
        self.flows.remove(&FlowId(flow));
        self.events.push(Event::Closed { flow: FlowId(flow) });
    }

    pub fn report(&mut self, flow: u64, seq: u32, values: &[i64]) {
        let Some((_, Some(program))) = self.flows.get(&FlowId(flow)) else { return };
        let (flow, program) = (FlowId(flow), *program);
        self.events.push(Event::Report { flow, program, seq, at_us: 0, values: values.into() });
    }
}

impl Datapath for Fake {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "fake",
            max_programs: 64,
            max_flows: 64,
            policy: false,
            full_language: true,
            hooks: ccplane_contract::ON_ACKS,
        }
    }
    fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
        if self.refuse_installs {
            let reason = "too long a day".to_owned();
            return Err(DatapathError::Refused { at: Some(7), reason });
        }
        self.programs.insert(uid, program.clone());
        Ok(())
    }
    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        let flows = self.flows.values().filter(|(_, program)| *program == Some(uid)).count();
        if flows > 0 {
            return Err(DatapathError::ProgramInUse { uid, flows });
        }
        self.programs.remove(&uid).map(drop).ok_or(DatapathError::NoProgram(uid))
    }
    fn set_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError> {
        let program = self.programs.get(&uid).ok_or(DatapathError::NoProgram(uid))?;
        ccplane_contract::check_fields(Some(program), fields)?;
        self.flows.get_mut(&flow).ok_or(DatapathError::NoFlow(flow))?.1 = Some(uid);
        self.calls.push(format!("set {} {fields:?}", flow.0));
        Ok(())
    }
    fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        let (_, program) = self.flows.get(&flow).ok_or(DatapathError::NoFlow(flow))?;
        let program = program.and_then(|uid| self.programs.get(&uid));
        ccplane_contract::check_fields(program, fields)?;
        self.calls.push(format!("update {} {fields:?}", flow.0));
        Ok(())
    }
    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        self.flows.get_mut(&flow).ok_or(DatapathError::NoFlow(flow))?.1 = None;
        Ok(())
    }
    fn heartbeat(&mut self) {}
    fn requested(&self, flow: FlowId) -> Option<&str> {
        self.requested.get(&flow).map(String::as_str)
    }
    fn flows(&mut self) -> Vec<FlowStats> {
        let stats = |(flow, (info, program)): (&FlowId, &(FlowInfo, Option<ProgramUid>))| FlowStats {
            flow: *flow,
            info: info.clone(),
            mode: if program.is_some() { Mode::Program } else { Mode::NativeNoProgram },
            program: *program,
            transport: TransportStats::new(info.mss_bytes, self.snd_cwnd),
            policy: None,
            sampled_at_us: 0,
        };
        self.flows.iter().map(stats).collect()
    }
    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        let count = self.events.len().min(max);
        events.extend(self.events.drain(..count));
        count
    }
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
    pub fake: Fake,
    /// Flows that portus was told of and that have not ended, as it sees them.
    pub open: BTreeSet<u32>,
    /// The program that portus set on each.
    pub set: HashMap<u32, u32>,
}

impl World {
    pub fn new() -> World {
        let catalog = Catalog::new(vec![std::sync::Arc::new(Portus)], 100).unwrap();
        let mut core = Core::new(catalog, Rules::all(PORTUS), Config::default()).unwrap();
        let fake = Fake { snd_cwnd: 25, ..Fake::default() };
        core.attach(DP, fake.capabilities(), 0).unwrap();
        let (open, set) = Default::default();
        World { core, bridge: Bridge::new(PORTUS, MAX_FLOWS, 7), fake, open, set }
    }

    /// Makes the bridge find a portus that listens.
    pub fn arrive(&mut self) -> Vec<Got> {
        self.bridge.arrive(&mut self.core);
        self.open.clear();
        self.set.clear();
        self.turn()
    }

    /// As the agent's loop does; returns what portus hears. Holds it to the protocol.
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
        std::mem::take(&mut self.fake.calls)
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
