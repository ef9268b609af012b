//! A datapath that speaks CCP's own protocol, [`ccplane_wire::v1`]: libccp, or what imitates it.
//!
//! v1 has no names for agents, no answers and no way to ask anything. Hence:
//! - A program is sent when the first flow needs it, since a datapath holds few. Its name on the wire is a hash of its
//!   bytecode: an agent that was restarted finds the ones that flows run. When it needs another one, it cannot know what
//!   the table holds, and writes all of it anew ([`table`]): first a beacon into each place, by which each flow is heard at
//!   its next ACK ([`listening`]), then the programs.
//! - A MEASURE of a flow that we have not seen created is one that runs since before a restart of the agent. It is
//!   taken over; its addresses are not known.
//! - No answer says whether a flow runs its program. Of one that stays silent the beacon is asked ([`proof`]): if the flow
//!   goes on reporting that, the datapath does not hold the program.
//! - A flow cannot be released. libccp goes to its fallback on its own when it cannot reach the agent, and stays there
//!   in silence until any message arrives: after a restart of the agent, when the next flow of that datapath starts.
//! - Of a flow's figures only those are known that the agent set itself, or that reports carry by the names that our
//!   programs use.
//! - A flow starts from the window that its datapath passes with each ACK: `Cwnd` is set only where an algorithm
//!   does. What CREATE says may be old, since libccp repeats it until an agent hears it.
//! - What is lost is lost for good: a flow whose CHANGE_PROG did not arrive never reports. So programs wait for room in
//!   the datapath's socket.

mod listening;
mod proof;
mod table;

use super::link::{Inbox, PeerLink};
use crate::clock;
use ccplane_contract::registry::{Change, Entry, Fields, Programs, Shim};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowInfo, FlowStats, Mode, ProgramUid,
    TransportStats,
};
use ccplane_program::ir::{Dst, INFINITY, Program};
use ccplane_program::stock::{self, Stock};
use ccplane_wire::v1::{
    self, AddrOrder, Bytecode, ChangeProg, Create, Index, Install, Measure, ToAgent, ToDatapath, Update,
};
use ccplane_wire::{DecodeError, List};
use listening::Listening;
use proof::Proof;
use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use table::{CLEAR_UID, FILLER_UID, FIRST_UID, PLACES, ProgramRoom, Table};
use tracing::{debug, warn};

/// A program that reports on every ACK: what a flow runs whose place in the table was written over, and by which a silent
/// flow is asked.
const BEACON: &str = "(def (Report (cwnd 0) (rtt_us 0)))
(when true (:= Report.cwnd Cwnd) (:= Report.rtt_us Flow.rtt_sample_us) (report))";
/// Programs that we keep lowered.
const MAX_PROGRAMS: usize = 1024;
/// Flows of one datapath: libccp numbers them with 16 bits.
const MAX_FLOWS: usize = 1 << 16;
/// Segment size that is assumed of a flow whose start was not seen, bytes.
const ADOPTED_MSS_BYTES: u32 = 1448;
/// Initial window that is assumed of a flow whose start was not seen, packets (RFC 6928).
const ADOPTED_CWND_PKTS: u32 = 10;

/// A datapath that speaks CCP's protocol, such as libccp.
#[derive(Debug)]
pub(super) struct V1Peer {
    link: PeerLink,
    inbox: Inbox,
    programs: Programs<Arc<Lowered>>,
    table: Table,
    /// Set while only beacons lie in the table, and flows wait for their programs.
    listening: Option<Listening>,
    /// The highest of libccp's numbers that a flow has had.
    highest_sid: u32,
    /// Flows up to this number need not be asked any more.
    asked_to_sid: u32,
    /// The time of the last rewriting that a missing program caused, microseconds.
    repaired_at_us: Option<u64>,
    /// The flows' ids by libccp's number.
    by_sid: HashMap<u32, FlowId>,
    flows: HashMap<FlowId, V1Flow>,
    next_flow: u64,
}

/// A program as stock bytecode.
#[derive(Debug)]
pub(super) struct Lowered {
    stock: Stock,
    /// Its name on the wire, [`FIRST_UID`] or above.
    wire_uid: u32,
    /// Whether some instruction reports.
    reports: bool,
    /// Whether no instruction sets the window, which then stays as the agent sets it.
    keeps_window: bool,
    /// The report registers that hold the window, bytes, and a round-trip time, microseconds.
    cwnd_at: Option<usize>,
    rtt_at: Option<usize>,
}

#[derive(Debug)]
struct V1Flow {
    sid: u32,
    info: FlowInfo,
    /// The algorithm that CREATE asks for.
    requested: Option<Box<str>>,
    /// Whether CREATE told of it; else its segment size is assumed.
    announced: bool,
    program: Option<ProgramUid>,
    /// The control registers that the agent set since the program started.
    controls: Vec<(v1::Field, u64)>,
    /// The window and rate to set with a program that waits.
    waiting: Vec<(v1::Field, u64)>,
    proof: Proof,
    figures: Figures,
    reports: u32,
}

/// The figures of a flow that are known; 0 for those that are not.
#[derive(Clone, Copy, Default, Debug)]
struct Figures {
    cwnd_bytes: u64,
    rate_bytes_per_s: u64,
    srtt_us: u64,
    min_rtt_us: u64,
}

impl V1Peer {
    /// A datapath of which nothing is known yet.
    pub(super) fn new(link: PeerLink) -> V1Peer {
        V1Peer {
            link,
            inbox: Inbox::default(),
            // Without a program libccp ignores updates.
            programs: Programs::new(MAX_PROGRAMS).keeping_native(),
            table: Table::default(),
            listening: None,
            highest_sid: 0,
            asked_to_sid: 0,
            repaired_at_us: None,
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

    /// Forgets the programs and flows of a datapath that started anew.
    fn restarted(&mut self) {
        self.close_all();
        self.table.emptied();
        self.listening = None;
        // Each flow from now on is announced to this agent.
        self.asked_to_sid = u32::MAX;
        self.repaired_at_us = None;
        self.link.drop_backlog();
    }

    fn created(&mut self, create: &Create<'_>) -> Result<(), DecodeError> {
        let info = create.to_info(AddrOrder::Network)?;
        self.closed(create.sid);
        self.start(create.sid, info, true, create.cong_alg.map(Box::from));
        Ok(())
    }

    fn start(&mut self, sid: u32, info: FlowInfo, announced: bool, requested: Option<Box<str>>) {
        if self.flows.len() >= MAX_FLOWS {
            warn!(sid, "too many flows of one datapath");
            return;
        }
        let flow = FlowId(self.next_flow);
        self.next_flow += 1;
        let state = V1Flow {
            sid,
            info: info.clone(),
            requested,
            announced,
            program: None,
            controls: Vec::new(),
            waiting: Vec::new(),
            proof: Proof::default(),
            figures: Figures::default(),
            reports: 0,
        };
        self.highest_sid = self.highest_sid.max(sid);
        self.by_sid.insert(sid, flow);
        self.flows.insert(flow, state);
        self.inbox.push(Event::Created { flow, info });
    }

    fn measured(&mut self, measure: &Measure<'_>, now_us: u64) {
        let Measure { sid, program_uid, .. } = *measure;
        let Some(flow) = self.by_sid.get(&sid).copied() else {
            // It runs since before this agent: whatever program reports is still held there.
            self.table.saw(program_uid);
            return self.start(sid, adopted(), false, None);
        };
        let Some(state) = self.flows.get_mut(&flow) else { return };
        if matches!(program_uid, CLEAR_UID | FILLER_UID) {
            state.figures.take(measure.values.iter(), Some(BEACON_CWND), Some(BEACON_RTT));
        }
        let running = state.program.and_then(|uid| Some((uid, &self.programs.get(uid).ok()?.loaded)));
        let Some((uid, loaded)) = running else { return };
        // A report of the program before may still be on its way when the next one was set.
        if loaded.wire_uid != program_uid || loaded.stock.report_len() != measure.values.len() {
            debug!(sid, uid = program_uid, "report of another program");
            // The first report after a rewriting of the table has no values.
            if loaded.wire_uid != program_uid {
                self.contradicted(flow, program_uid, now_us);
            }
            return;
        }
        state.proof.reported();
        state.figures.take(measure.values.iter(), loaded.cwnd_at, loaded.rtt_at);
        state.reports = state.reports.wrapping_add(1);
        let values = measure.values.iter().map(stock::reported).collect();
        self.inbox.push(Event::Report { flow, program: uid, seq: state.reports, at_us: now_us, values });
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

    /// Whether the datapath is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.link.is_gone()
    }

    /// Whether a command waits for room in the datapath's socket.
    pub(super) fn has_backlog(&self) -> bool {
        self.link.has_backlog()
    }

    /// Has the datapath hold a program; false where flows wait for theirs.
    fn ensure_held(&mut self, wire_uid: u32) -> Result<bool, DatapathError> {
        if self.listening.is_some() {
            return self.reserve(wire_uid).map(|()| false);
        }
        match self.table.room(wire_uid, &self.in_use()) {
            ProgramRoom::Held => {}
            ProgramRoom::Append => {
                self.send_program(wire_uid)?;
                self.table.appended(wire_uid);
            }
            ProgramRoom::Rewrite(places) => {
                for uid in &places {
                    self.send_program(*uid)?;
                }
                self.table.rewritten(places);
            }
            ProgramRoom::Full => return Err(DatapathError::ProgramsFull { limit: PLACES - 1 }),
            ProgramRoom::Unknown => {
                self.reserve(wire_uid)?;
                self.listen()?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The names on the wire of the programs that flows run or wait for.
    fn in_use(&self) -> BTreeSet<u32> {
        self.flows.values().filter_map(|f| self.wire_uid_of(f)).collect()
    }

    fn wire_uid_of(&self, flow: &V1Flow) -> Option<u32> {
        Some(self.programs.get(flow.program?).ok()?.loaded.wire_uid)
    }

    /// Starts a flow's program once more, with the control registers that it had and the fields that wait.
    fn set_again(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        let Some(state) = self.flows.get_mut(&flow) else { return Ok(()) };
        let Some(entry) = state.program.and_then(|uid| self.programs.get(uid).ok()) else { return Ok(()) };
        let (sid, program_uid) = (state.sid, entry.loaded.wire_uid);
        let fields = [&state.controls[..], &std::mem::take(&mut state.waiting)].concat();
        let change = ToDatapath::ChangeProg(ChangeProg { sid, program_uid, fields: (&fields[..]).into() });
        self.link.send_surely(|out| change.encode(out))
    }

    fn send_program(&mut self, wire_uid: u32) -> Result<(), DatapathError> {
        let known = self.programs.iter().find(|(_, entry)| entry.loaded.wire_uid == wire_uid);
        let known = known.map(|(_, entry)| Arc::clone(&entry.loaded));
        let made: Stock;
        let stock = match &known {
            Some(loaded) => &loaded.stock,
            None => {
                made = beacon()?;
                &made
            }
        };
        let code = Bytecode::from_bytes(stock.num_expressions() as usize, stock.bytes())
            .map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        let install = ToDatapath::Install(Install { sid: 0, program_uid: wire_uid, code });
        self.link.send_surely(|out| install.encode(out))
    }
}

fn beacon() -> Result<Stock, DatapathError> {
    let refused = |reason: String| DatapathError::Refused { at: None, reason };
    let program = ccplane_program::compile(BEACON)
        .map_err(|wrong| refused(wrong.first().map(ToString::to_string).unwrap_or_default()))?;
    stock::lower(&program).map_err(|refusal| refused(refusal.to_string()))
}

/// The registers of [`BEACON`].
const BEACON_CWND: usize = 0;
const BEACON_RTT: usize = 1;

impl Lowered {
    /// Returns the fields as v1 names them.
    fn wire_fields(&self, fields: Fields<'_>) -> Result<Vec<(v1::Field, u64)>, DatapathError> {
        fields.iter().map(|(field, value)| Ok((self.field(*field)?, unsigned(*value)))).collect()
    }

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

/// Lowers a program to stock bytecode.
fn lower(program: &Program) -> Result<Stock, DatapathError> {
    stock::lower(program).map_err(|refusal| DatapathError::Unsupported {
        feature: format!("this program: {}", refusal.explain(program)),
    })
}

impl V1Flow {
    /// Remembers what the agent set: `fields`, which are `wire` on the wire.
    fn note(&mut self, loaded: &Lowered, fields: Fields<'_>, wire: &[(v1::Field, u64)]) {
        for ((field, value), (named, set)) in fields.iter().zip(wire) {
            match field {
                Field::Cwnd if loaded.keeps_window => self.figures.cwnd_bytes = unsigned(*value),
                Field::Cwnd => {}
                Field::Rate => self.figures.rate_bytes_per_s = unsigned(*value),
                Field::Reg(_) => match self.controls.iter_mut().find(|(known, _)| known == named) {
                    Some((_, known)) => *known = *set,
                    None => self.controls.push((*named, *set)),
                },
            }
        }
    }
}

impl Figures {
    /// Takes the figures of a report, whose registers lie where `cwnd_at` and `rtt_at` say.
    fn take(&mut self, values: impl Iterator<Item = u64>, cwnd_at: Option<usize>, rtt_at: Option<usize>) {
        for (at, value) in values.enumerate() {
            if Some(at) == cwnd_at && value > 0 {
                self.cwnd_bytes = value;
            }
            if Some(at) == rtt_at && value > 0 && stock::reported(value) != INFINITY {
                // RFC 6298, section 2.3.
                self.srtt_us = if self.srtt_us == 0 { value } else { (7 * self.srtt_us + value) / 8 };
                self.min_rtt_us = if self.min_rtt_us == 0 { value } else { self.min_rtt_us.min(value) };
            }
        }
    }
}

impl Shim for V1Peer {
    type Loaded = Arc<Lowered>;

    ccplane_contract::program_table!(programs);

    fn check_support(&self, program: &Program) -> Result<(), DatapathError> {
        lower(program).map(drop)
    }

    fn load(&mut self, _: ProgramUid, program: &Arc<Program>) -> Result<Arc<Lowered>, DatapathError> {
        let stock = lower(program)?;
        let wire_uid = wire_uid(stock.bytes());
        let reported = |names: &[&str]| {
            let registers = program.regs().iter().take(program.report_len());
            registers.map(|r| r.name.as_str()).position(|name| names.contains(&name))
        };
        Ok(Arc::new(Lowered {
            stock,
            wire_uid,
            reports: program.writes(Dst::ShouldReport),
            keeps_window: !program.writes(Dst::Cwnd),
            cwnd_at: reported(&["Report.cwnd"]),
            rtt_at: reported(&["Report.rtt_us", "Report.srtt_us"]),
        }))
    }

    fn count_users(&self, uid: ProgramUid, _: &Arc<Lowered>) -> usize {
        self.flows.values().filter(|f| f.program == Some(uid)).count()
    }

    fn program_of(&mut self, flow: FlowId) -> Result<Option<ProgramUid>, DatapathError> {
        Ok(self.flows.get(&flow).ok_or(DatapathError::NoFlow(flow))?.program)
    }

    fn stage(&mut self, flow: FlowId, change: Change<'_, Arc<Lowered>>) -> Result<(), DatapathError> {
        let Change { program, starts, fields } = change;
        let sid = self.flows.get(&flow).ok_or(DatapathError::NoFlow(flow))?.sid;
        let Some((uid, Entry { loaded, .. })) = program else { return Ok(()) };
        let wire = loaded.wire_fields(fields)?;
        let waits = if starts { !self.ensure_held(loaded.wire_uid)? } else { self.listening.is_some() };
        if starts && !waits {
            let change = ChangeProg { sid, program_uid: loaded.wire_uid, fields: (&wire[..]).into() };
            self.link.send_surely(|out| ToDatapath::ChangeProg(change).encode(out))?;
        } else if !waits {
            let update = ToDatapath::Update(Update { sid, fields: (&wire[..]).into() });
            self.link.send(|out| update.encode(out))?;
        }
        if let Some(state) = self.flows.get_mut(&flow) {
            if starts {
                state.controls.clear();
                state.waiting.clear();
                state.proof = Proof::default();
            }
            state.program = Some(uid);
            state.note(&loaded, fields, &wire);
            if waits {
                state.keep(&wire);
            }
        }
        Ok(())
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
            hooks: ccplane_contract::ON_ACKS,
        }
    }

    ccplane_contract::program_commands!();

    /// v1 has no word for it: the flow runs the program that it has until libccp's own timeout.
    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        let state = self.flows.get_mut(&flow).ok_or(DatapathError::NoFlow(flow))?;
        state.program = None;
        Ok(())
    }

    fn requested(&self, flow: FlowId) -> Option<&str> {
        self.flows.get(&flow)?.requested.as_deref()
    }

    /// libccp leaves its fallback at any message: an update of nothing is the smallest.
    fn heartbeat(&mut self) {
        self.handle_timeout(clock::now_us());
        let Some(sid) = self.flows.values().next().map(|f| f.sid) else {
            // Nothing can be sent to it, so nothing else tells that it has gone.
            return self.link.check_alive();
        };
        let update = ToDatapath::Update(Update { sid, fields: List::from(&[][..]) });
        if let Err(error) = self.link.send(|out| update.encode(out)) {
            debug!(%error, "heartbeat");
        }
    }

    fn flows(&mut self) -> Vec<FlowStats> {
        let short = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let listens = self.listening.is_some();
        let stats = |(flow, f): (&FlowId, &V1Flow)| {
            let mss_bytes = if f.announced { f.info.mss_bytes } else { 0 };
            FlowStats {
                flow: *flow,
                info: f.info.clone(),
                mode: if f.program.is_some() && !listens { Mode::Program } else { Mode::NativeNoProgram },
                program: f.program,
                transport: TransportStats {
                    snd_cwnd: f.figures.cwnd_bytes.checked_div(mss_bytes.into()).map_or(0, short),
                    mss_bytes,
                    srtt_us: short(f.figures.srtt_us),
                    min_rtt_us: short(f.figures.min_rtt_us),
                    pacing_rate: f.figures.rate_bytes_per_s,
                    reports: u64::from(f.reports),
                    ..TransportStats::default()
                },
                policy: None,
                // The datapath samples nothing.
                sampled_at_us: 0,
            }
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

/// FNV-1a of the bytecode, kept off the names that mean something else.
pub(super) fn wire_uid(bytecode: &[u8]) -> u32 {
    let hash = bytecode.iter().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    hash.max(FIRST_UID)
}
