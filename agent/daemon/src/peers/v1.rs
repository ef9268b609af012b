//! A datapath that speaks CCP's own protocol, [`ccplane_wire::v1`]: libccp, or what imitates it.
//!
//! v1 has no names for agents, no answers and no way to ask anything. Hence:
//! - A program is sent when the first flow needs it, since a datapath holds few and never frees one. Its name on the
//!   wire is a hash of its bytecode: an agent that was restarted finds the ones it installed before.
//! - A MEASURE of a flow that we have not seen created is one that runs since before a restart of the agent. It is
//!   taken over; its addresses are not known.
//! - A flow cannot be released. libccp goes to its fallback on its own when it cannot reach the agent, and stays there
//!   in silence until any message arrives: after a restart of the agent, when the next flow of that datapath starts.
//! - Of a flow's figures only those are known that the agent set itself.
//! - A flow starts from the window that its datapath passes with each ACK: `Cwnd` is set only where an algorithm
//!   does. What CREATE says may be old, since libccp repeats it until an agent hears it.
//! - What is lost is lost for good: a flow whose CHANGE_PROG did not arrive never reports. So programs wait for room in
//!   the datapath's socket.

use super::link::{Inbox, Link};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowInfo, FlowStats, Mode, ProgramUid,
    check_fields,
};
use ccplane_program::ir::Program;
use ccplane_program::stock::{self, Stock};
use ccplane_wire::v1::{
    self, AddrOrder, Bytecode, ChangeProg, Create, Index, Install, Measure, ToAgent, ToDatapath, Update,
};
use ccplane_wire::{DecodeError, List};
use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use tracing::{debug, warn};

/// Programs that libccp holds: one less than its table's usual 10 entries.
const MAX_DATAPATH_PROGRAMS: usize = 9;
/// Programs that we keep lowered.
const MAX_PROGRAMS: usize = 1024;
/// Flows of one datapath: libccp numbers them with 16 bits.
const MAX_FLOWS: usize = 1 << 16;
/// What is assumed of a flow that was not seen to start.
const ADOPTED_MSS_BYTES: u32 = 1448;
/// Likewise, packets (RFC 6928).
const ADOPTED_CWND_PKTS: u32 = 10;

/// One libccp datapath.
#[derive(Debug)]
pub(super) struct V1Peer {
    link: Link,
    inbox: Inbox,
    programs: HashMap<ProgramUid, Lowered>,
    /// Wire names that the datapath holds.
    held: HashSet<u32>,
    /// By libccp's number.
    by_sid: HashMap<u32, FlowId>,
    flows: HashMap<FlowId, V1Flow>,
    next_flow: u64,
}

#[derive(Debug)]
struct Lowered {
    stock: Stock,
    /// Its name on the wire; neither 0 nor 1, which libccp takes to mean something else.
    wire_uid: u32,
    program: Program,
}

#[derive(Debug)]
struct V1Flow {
    sid: u32,
    info: FlowInfo,
    program: Option<ProgramUid>,
    cwnd_bytes: u64,
    rate_bytes_per_s: u64,
    reports: u32,
    reported_at_us: u64,
}

impl V1Peer {
    /// A datapath of which nothing is known yet.
    pub(super) fn new(link: Link) -> V1Peer {
        V1Peer {
            link,
            inbox: Inbox::default(),
            programs: HashMap::new(),
            held: HashSet::new(),
            by_sid: HashMap::new(),
            flows: HashMap::new(),
            next_flow: 1,
        }
    }

    /// Takes a datagram from it, received at `now_us`.
    pub(super) fn take(&mut self, datagram: &[u8], now_us: u64) -> Result<(), DecodeError> {
        for message in ToAgent::parse_all(datagram) {
            match message? {
                ToAgent::Ready { .. } => self.restarted(),
                ToAgent::Create(create) => self.created(&create)?,
                ToAgent::Measure(measure) => self.measured(&measure, now_us),
                ToAgent::Close { sid } => self.closed(sid),
            }
        }
        Ok(())
    }

    /// It started anew: it has no programs and no flows.
    fn restarted(&mut self) {
        self.close_all();
        self.held.clear();
        self.link.drop_backlog();
    }

    fn created(&mut self, create: &Create<'_>) -> Result<(), DecodeError> {
        let info = create.to_info(AddrOrder::Network)?;
        self.closed(create.sid);
        self.start(create.sid, info);
        Ok(())
    }

    fn start(&mut self, sid: u32, info: FlowInfo) {
        if self.flows.len() >= MAX_FLOWS {
            warn!(sid, "too many flows of one datapath");
            return;
        }
        let flow = FlowId(self.next_flow);
        self.next_flow += 1;
        let state = V1Flow {
            sid,
            info: info.clone(),
            program: None,
            cwnd_bytes: info.init_cwnd_bytes,
            rate_bytes_per_s: 0,
            reports: 0,
            reported_at_us: 0,
        };
        self.by_sid.insert(sid, flow);
        self.flows.insert(flow, state);
        self.inbox.push(Event::Created { flow, info });
    }

    fn measured(&mut self, measure: &Measure<'_>, now_us: u64) {
        let Some(flow) = self.by_sid.get(&measure.sid).copied() else {
            // It runs since before this agent: whatever program reports is still held there.
            self.held.insert(measure.program_uid);
            return self.start(measure.sid, adopted());
        };
        let Some(state) = self.flows.get_mut(&flow) else { return };
        // A report of the program before may still be on its way when the next one was set.
        let Some(program) = state.program.filter(|uid| {
            self.programs.get(uid).is_some_and(|p| {
                p.wire_uid == measure.program_uid && p.stock.report_len() == measure.values.len()
            })
        }) else {
            debug!(sid = measure.sid, uid = measure.program_uid, "report of another program");
            return;
        };
        state.reports = state.reports.wrapping_add(1);
        state.reported_at_us = now_us;
        let values = measure.values.iter().map(stock::reported).collect();
        self.inbox.push(Event::Report { flow, program, seq: state.reports, at_us: now_us, values });
    }

    fn closed(&mut self, sid: u32) {
        if let Some(flow) = self.by_sid.remove(&sid) {
            self.flows.remove(&flow);
            self.inbox.push(Event::Closed { flow });
        }
    }

    /// Reports the end of all its flows, because the datapath has gone.
    pub(super) fn close_all(&mut self) {
        self.by_sid.clear();
        for (flow, _) in self.flows.drain() {
            self.inbox.push(Event::Closed { flow });
        }
    }

    /// Whether nobody listens at the other end any more.
    pub(super) fn is_gone(&self) -> bool {
        self.link.is_gone()
    }

    /// Whether a command waits for room in the datapath's socket.
    pub(super) fn has_backlog(&self) -> bool {
        self.link.has_backlog()
    }

    /// Sends a program to the datapath unless it holds it.
    fn ensure_held(&mut self, uid: ProgramUid) -> Result<u32, DatapathError> {
        let lowered = self.programs.get(&uid).ok_or(DatapathError::NoProgram(uid))?;
        let wire_uid = lowered.wire_uid;
        if self.held.contains(&wire_uid) {
            return Ok(wire_uid);
        }
        if self.held.len() >= MAX_DATAPATH_PROGRAMS {
            return Err(DatapathError::ProgramsFull { limit: MAX_DATAPATH_PROGRAMS });
        }
        let events = lowered.stock.num_expressions() as usize;
        let code = Bytecode::from_bytes(events, lowered.stock.bytes())
            .map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        let install = ToDatapath::Install(Install { sid: 0, program_uid: wire_uid, code });
        self.link.send_surely(|out| install.encode(out))?;
        self.held.insert(wire_uid);
        Ok(wire_uid)
    }

    /// The fields as v1 names them.
    fn wire_fields(
        &self,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<Vec<(v1::Field, u64)>, DatapathError> {
        let lowered = self.programs.get(&uid).ok_or(DatapathError::NoProgram(uid))?;
        check_fields(Some(&lowered.program), fields)?;
        fields.iter().map(|(field, value)| Ok((lowered.field(*field)?, unsigned(*value)))).collect()
    }
}

impl Lowered {
    fn field(&self, field: Field) -> Result<v1::Field, DatapathError> {
        let reg = match field {
            Field::Cwnd => return Ok(v1::Field::Cwnd),
            Field::Rate => return Ok(v1::Field::Rate),
            Field::Reg(reg) => reg,
        };
        let index =
            self.stock.update_reg(reg).and_then(|stock| u8::try_from(stock.index).ok()).and_then(Index::new);
        // libccp does not look at whether an updated register is volatile.
        index.map(|index| v1::Field::Control { index, volatile: false }).ok_or(DatapathError::BadField(field))
    }
}

impl V1Flow {
    /// Remembers what the agent set.
    fn note(&mut self, fields: &[(Field, i64)]) {
        for (field, value) in fields {
            match field {
                Field::Cwnd => self.cwnd_bytes = unsigned(*value),
                Field::Rate => self.rate_bytes_per_s = unsigned(*value),
                Field::Reg(_) => {}
            }
        }
    }
}

impl Datapath for V1Peer {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "ccp-v1",
            max_programs: MAX_PROGRAMS,
            max_flows: MAX_FLOWS,
            policy: false,
            full_language: false,
        }
    }

    fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
        if self.programs.len() >= MAX_PROGRAMS {
            return Err(DatapathError::ProgramsFull { limit: MAX_PROGRAMS });
        }
        let stock = stock::lower(program)
            .map_err(|refusal| DatapathError::Unsupported { feature: refusal.to_string() })?;
        let wire_uid = wire_uid(stock.bytes());
        self.programs.insert(uid, Lowered { stock, wire_uid, program: program.clone() });
        Ok(())
    }

    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        let flows = self.flows.values().filter(|f| f.program == Some(uid)).count();
        if flows > 0 {
            return Err(DatapathError::ProgramInUse { uid, flows });
        }
        self.programs.remove(&uid).map(|_| ()).ok_or(DatapathError::NoProgram(uid))
    }

    fn set_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError> {
        let sid = self.flows.get(&flow).ok_or(DatapathError::NoFlow(flow))?.sid;
        let wire = self.wire_fields(uid, fields)?;
        let program_uid = self.ensure_held(uid)?;
        let change = ToDatapath::ChangeProg(ChangeProg { sid, program_uid, fields: List::from(&wire[..]) });
        self.link.send_surely(|out| change.encode(out))?;
        if let Some(state) = self.flows.get_mut(&flow) {
            state.program = Some(uid);
            state.note(fields);
        }
        Ok(())
    }

    fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        let state = self.flows.get(&flow).ok_or(DatapathError::NoFlow(flow))?;
        let sid = state.sid;
        // Without a program libccp does not look at updates.
        let Some(uid) = state.program else {
            return fields.first().map_or(Ok(()), |(field, _)| Err(DatapathError::BadField(*field)));
        };
        let wire = self.wire_fields(uid, fields)?;
        let update = ToDatapath::Update(Update { sid, fields: List::from(&wire[..]) });
        self.link.send(|out| update.encode(out))?;
        if let Some(state) = self.flows.get_mut(&flow) {
            state.note(fields);
        }
        Ok(())
    }

    /// v1 has no word for it: the flow runs the program that it has until libccp's own timeout.
    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        let state = self.flows.get_mut(&flow).ok_or(DatapathError::NoFlow(flow))?;
        state.program = None;
        Ok(())
    }

    /// libccp leaves its fallback at any message: an update of nothing is the smallest.
    fn heartbeat(&mut self) {
        let Some(sid) = self.flows.values().next().map(|f| f.sid) else {
            // Nothing can be sent to it, so nothing else tells that it has gone.
            return self.link.look_for_other();
        };
        let update = ToDatapath::Update(Update { sid, fields: List::from(&[][..]) });
        if let Err(error) = self.link.send(|out| update.encode(out)) {
            debug!(%error, "heartbeat");
        }
    }

    fn flows(&mut self) -> Vec<FlowStats> {
        let packets = |bytes: u64, mss: u32| u32::try_from(bytes / u64::from(mss.max(1))).unwrap_or(u32::MAX);
        let stats = |(flow, f): (&FlowId, &V1Flow)| FlowStats {
            flow: *flow,
            info: f.info.clone(),
            mode: if f.program.is_some() { Mode::Program } else { Mode::NativeNoProgram },
            program: f.program,
            snd_cwnd: packets(f.cwnd_bytes, f.info.mss_bytes),
            snd_ssthresh: u32::MAX,
            mss_bytes: f.info.mss_bytes,
            srtt_us: 0,
            min_rtt_us: 0,
            pacing_rate: f.rate_bytes_per_s,
            bytes_acked: 0,
            delivered: 0,
            lost: 0,
            unacked: 0,
            faults: 0,
            reports: u64::from(f.reports),
            policy: None,
            sampled_at_us: f.reported_at_us,
        };
        let mut all: Vec<FlowStats> = self.flows.iter().map(stats).collect();
        all.sort_by_key(|s| s.flow);
        all
    }

    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.link.flush();
        self.inbox.drain(max, events)
    }
}

fn adopted() -> FlowInfo {
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    FlowInfo {
        mss_bytes: ADOPTED_MSS_BYTES,
        init_cwnd_bytes: u64::from(ADOPTED_MSS_BYTES * ADOPTED_CWND_PKTS),
        local: nowhere,
        remote: nowhere,
        cgroup: None,
        min_rtt_us: None,
    }
}

/// libccp's registers are unsigned.
fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// FNV-1a of the bytecode, kept off 0 (no program) and 1 (on which libccp forgets all programs).
fn wire_uid(bytecode: &[u8]) -> u32 {
    let hash = bytecode.iter().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    hash.max(2)
}
