//! The state machine between the core and portus: flows and sids, programs and uids, reports and MEASUREs. No I/O, no clock.

use crate::address::as_ipv4;
use crate::outbox::{Outbox, QueueError};
use ccplane_contract::{Field, FlowInfo, ProgramUid};
use ccplane_core::{Core, HostEvent, HostReason, HostedFlow};
use ccplane_program::ir::{INFINITY, MAX_CWND_BYTES, MAX_RATE_BYTES_PER_S};
use ccplane_program::stock::{Lifted, StockReg, lift, measured};
use ccplane_wire::v1::{
    self, AddrOrder, CONG_ALG_BYTES, Create, Frame, Install, Measure, MsgType, ToAgent, ToDatapath, frames,
};
use ccplane_wire::{DecodeError, List};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tracing::{info, warn};

/// Programs of one portus that are remembered, the refused ones included.
const MAX_PROGRAMS: usize = 256;
/// libccp's +infinity, as an agent sends it.
const STOCK_INFINITY: u64 = u32::MAX as u64;
/// The kind of libccp's control registers (serialize.h).
const CONTROL: u8 = 0;

/// Messages counted since the bridge was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BridgeCounters {
    /// INSTALLs that were taken, those of programs already there included.
    pub installs: u64,
    pub refused_installs: u64,
    pub program_changes: u64,
    pub updates: u64,
    /// Reports that were passed on.
    pub reports: u64,
    /// Reports that were not, since portus had not read those before.
    pub dropped_reports: u64,
    /// Messages that are none, or that name a flow, program or register that there is not.
    pub malformed: u64,
}

/// A program that portus installed.
#[derive(Debug)]
struct Installed {
    uid: ProgramUid,
    lifted: Arc<Lifted>,
}

#[derive(Debug)]
struct BridgedFlow {
    sid: u32,
    /// The program that it runs, as portus names it.
    program: Option<u32>,
}

/// A portus agent, as the core's host. See the [crate]'s page.
#[derive(Debug)]
pub struct Bridge {
    algorithm: &'static str,
    max_flows: usize,
    id: u32,
    next_sid: u32,
    flows: HashMap<HostedFlow, BridgedFlow>,
    by_sid: HashMap<u32, HostedFlow>,
    /// By portus's uid; those that cannot be run, with the reason.
    programs: HashMap<u32, Result<Installed, Arc<str>>>,
    outbox: Outbox,
    /// The queue was full of what must not be lost.
    overflowed: bool,
    /// Whether a malformed message was logged already.
    complained: bool,
    fields: Vec<(Field, i64)>,
    counters: BridgeCounters,
}

impl Bridge {
    /// Makes a bridge to a portus that is not there yet. `id`: our name in READY.
    pub fn new(algorithm: &'static str, max_flows: usize, id: u32) -> Bridge {
        Bridge {
            algorithm,
            max_flows,
            id,
            next_sid: 1,
            flows: HashMap::new(),
            by_sid: HashMap::new(),
            programs: HashMap::new(),
            outbox: Outbox::default(),
            overflowed: false,
            complained: false,
            fields: Vec::new(),
            counters: BridgeCounters::default(),
        }
    }

    /// Greets a portus that listens: it installs its programs, and is told of its flows.
    pub fn arrive(&mut self, core: &mut Core) {
        self.forget();
        self.queue(&ToAgent::Ready { id: self.id });
        core.host_arrived(self.algorithm);
    }

    /// Gives up a portus that is gone or silent.
    pub fn leave(&mut self, core: &mut Core, reason: HostReason) {
        self.forget();
        core.host_left(self.algorithm, reason);
    }

    /// Forgets all flows. Their numbers are not used again, so that late messages of portus concern no new flow.
    fn forget(&mut self) {
        self.flows.clear();
        self.by_sid.clear();
        self.programs.clear();
        self.outbox.clear();
        self.overflowed = false;
        self.complained = false;
    }

    /// Takes a datagram from portus. Returns whether it asked the core for anything.
    pub fn datagram(&mut self, core: &mut Core, datagram: &[u8]) -> bool {
        let mut asked = false;
        for frame in frames(datagram) {
            asked |= match frame.map(|frame| (frame, ToDatapath::parse(frame))) {
                Ok((frame, message)) => self.message(core, frame, message),
                Err(error) => self.complain(&error),
            };
        }
        asked
    }

    fn message(
        &mut self,
        core: &mut Core,
        frame: Frame<'_>,
        message: Result<ToDatapath<'_>, DecodeError>,
    ) -> bool {
        match message {
            Ok(ToDatapath::Install(install)) => self.install(core, &install),
            Ok(ToDatapath::ChangeProg(change)) => {
                self.change(core, change.sid, change.program_uid, &change.fields)
            }
            Ok(ToDatapath::Update(update)) => self.update(core, update.sid, &update.fields),
            Err(error) if frame.ty == MsgType::Install => match frame.body.first_chunk() {
                Some(uid) => self.refuse(u32::from_le_bytes(*uid), &error),
                None => self.complain(&error),
            },
            Err(error) => self.complain(&error),
        }
    }

    fn install(&mut self, core: &mut Core, install: &Install<'_>) -> bool {
        let number = install.program_uid;
        if self.programs.len() >= MAX_PROGRAMS && !self.programs.contains_key(&number) {
            return self.complain(&"more programs than are remembered");
        }
        let lifted = match install.code.to_bytes().map(|bytes| lift(install.code.events().len(), &bytes)) {
            Ok(Ok(lifted)) => lifted,
            Ok(Err(error)) => return self.refuse(number, &error),
            Err(error) => return self.refuse(number, &error),
        };
        let held: BTreeSet<ProgramUid> = self.programs.values().flatten().map(|p| p.uid).collect();
        let name = format!("{}-{number}", self.algorithm);
        match core.host_install(self.algorithm, &name, lifted.program.clone(), &held) {
            Ok(uid) => {
                self.counters.installs += 1;
                self.programs.insert(number, Ok(Installed { uid, lifted: Arc::new(lifted) }));
                true
            }
            Err(error) => self.refuse(number, &error),
        }
    }

    fn refuse(&mut self, number: u32, reason: &dyn std::fmt::Display) -> bool {
        self.counters.refused_installs += 1;
        let reason: Arc<str> = reason.to_string().into();
        let before = self.programs.get(&number);
        if !matches!(before, Some(Err(known)) if *known == reason) {
            warn!(
                program = number,
                %reason,
                "portus installs a program that cannot be run; flows that are to run it stay native"
            );
        }
        if self.programs.len() < MAX_PROGRAMS || before.is_some() {
            self.programs.insert(number, Err(reason));
        }
        false
    }

    fn change(
        &mut self,
        core: &mut Core,
        sid: u32,
        number: u32,
        fields: &List<'_, (v1::Field, u64)>,
    ) -> bool {
        let Some(flow) = self.by_sid.get(&sid).copied() else { return self.stray() };
        let algorithm = self.algorithm;
        let refused = |reason| HostReason::Program { algorithm, program: number, reason };
        let (uid, lifted) = match self.programs.get(&number) {
            Some(Ok(Installed { uid, lifted })) => (*uid, Arc::clone(lifted)),
            Some(Err(reason)) => {
                core.host_release(flow, refused(Arc::clone(reason)));
                return true;
            }
            None => {
                core.host_release(flow, refused("it was not installed".into()));
                return true;
            }
        };
        if let Some(known) = self.flows.get_mut(&flow) {
            known.program = Some(number);
        }
        self.counters.program_changes += 1;
        self.resolve(&lifted, fields);
        core.host_set_program(flow, uid, &self.fields);
        true
    }

    fn update(&mut self, core: &mut Core, sid: u32, fields: &List<'_, (v1::Field, u64)>) -> bool {
        let Some(flow) = self.by_sid.get(&sid).copied() else { return self.stray() };
        let number = self.flows.get(&flow).and_then(|f| f.program);
        let Some(Ok(Installed { lifted, .. })) = number.and_then(|n| self.programs.get(&n)) else {
            return self.stray();
        };
        let lifted = Arc::clone(lifted);
        self.counters.updates += 1;
        self.resolve(&lifted, fields);
        if !self.fields.is_empty() {
            core.host_update(flow, &self.fields);
        }
        true
    }

    /// Turns portus's fields into the datapath's. As in libccp, a window or a rate of 0 is none.
    fn resolve(&mut self, lifted: &Lifted, fields: &List<'_, (v1::Field, u64)>) {
        self.fields.clear();
        for (field, value) in fields.iter() {
            let number =
                if value == STOCK_INFINITY { INFINITY } else { i64::try_from(value).unwrap_or(i64::MAX) };
            let resolved = match field {
                v1::Field::Cwnd if value == 0 => continue,
                v1::Field::Rate if value == 0 => continue,
                v1::Field::Cwnd => (Field::Cwnd, number.min(MAX_CWND_BYTES)),
                v1::Field::Rate => (Field::Rate, number.min(MAX_RATE_BYTES_PER_S)),
                v1::Field::Control { index, .. } => {
                    let stock = StockReg { kind: CONTROL, index: u32::from(index.get()) };
                    match lifted.update_reg(stock) {
                        Some(reg) => (Field::Reg(reg), number),
                        None => {
                            self.complain(&"a register that the flow's program has not");
                            continue;
                        }
                    }
                }
            };
            self.fields.push(resolved);
        }
    }

    /// Handles an event of the core.
    pub fn event(&mut self, core: &mut Core, event: HostEvent) {
        match event {
            HostEvent::Started { flow, info, cwnd_bytes, requested } => {
                self.started(core, flow, info, cwnd_bytes, requested.as_deref());
            }
            HostEvent::Report { flow, program, values } => {
                let Some(BridgedFlow { sid, program: Some(number) }) = self.flows.get(&flow) else { return };
                let runs = matches!(self.programs.get(number), Some(Ok(p)) if p.uid == program);
                // portus takes a report without values for the end of the flow.
                if !runs || values.is_empty() {
                    return;
                }
                let values: Vec<u64> = values.iter().map(|value| measured(*value)).collect();
                let report = Measure { sid: *sid, program_uid: *number, values: (&values[..]).into() };
                match self.outbox.push(&ToAgent::Measure(report)) {
                    Ok(()) => self.counters.reports += 1,
                    Err(_) => self.counters.dropped_reports += 1,
                }
            }
            HostEvent::Ended { flow } => {
                if let Some(BridgedFlow { sid, .. }) = self.flows.remove(&flow) {
                    self.by_sid.remove(&sid);
                    self.queue(&ToAgent::Close { sid });
                }
            }
            HostEvent::Refused { program, error } => {
                let numbers: Vec<u32> = self
                    .programs
                    .iter()
                    .filter(|(_, p)| p.as_ref().is_ok_and(|p| p.uid == program))
                    .map(|(number, _)| *number)
                    .collect();
                for number in numbers {
                    self.refuse(number, &error);
                }
            }
        }
    }

    /// Tells portus of a flow. By the name that its owner asked for, a portus of several algorithms picks one; for a name that it
    /// has not, its default.
    fn started(
        &mut self,
        core: &mut Core,
        flow: HostedFlow,
        info: FlowInfo,
        cwnd_bytes: u64,
        requested: Option<&str>,
    ) {
        if self.flows.contains_key(&flow) {
            return;
        }
        let (algorithm, limit) = (self.algorithm, self.max_flows);
        if self.flows.len() >= limit {
            return core.host_release(flow, HostReason::TooManyFlows { algorithm, limit });
        }
        let info = FlowInfo {
            init_cwnd_bytes: cwnd_bytes.min(u64::from(u32::MAX)),
            mss_bytes: info.mss_bytes.max(1),
            local: as_ipv4(info.local),
            remote: as_ipv4(info.remote),
            ..info
        };
        let sid = self.sid();
        let named = requested.filter(|name| name.len() < CONG_ALG_BYTES && !name.contains('\0'));
        match Create::from_info(sid, &info, AddrOrder::Network, named) {
            Ok(create) => {
                self.flows.insert(flow, BridgedFlow { sid, program: None });
                self.by_sid.insert(sid, flow);
                self.queue(&ToAgent::Create(create));
            }
            Err(error) => {
                self.complain(&error);
            }
        }
    }

    /// Returns a number that no flow has.
    fn sid(&mut self) -> u32 {
        while self.next_sid == 0 || self.by_sid.contains_key(&self.next_sid) {
            self.next_sid = self.next_sid.wrapping_add(1);
        }
        let sid = self.next_sid;
        self.next_sid = sid.wrapping_add(1);
        sid
    }

    fn queue(&mut self, message: &ToAgent<'_>) {
        match self.outbox.push(message) {
            Ok(()) => {}
            Err(QueueError::Full(_)) => self.overflowed = true,
            Err(error) => {
                self.complain(&error);
            }
        }
    }

    /// Counts a message about a flow that has ended meanwhile, or that has no program.
    fn stray(&mut self) -> bool {
        self.counters.malformed += 1;
        false
    }

    fn complain(&mut self, problem: &dyn std::fmt::Display) -> bool {
        self.counters.malformed += 1;
        if !std::mem::replace(&mut self.complained, true) {
            warn!(%problem, "a message of portus is not carried out; further ones are counted, not logged");
        }
        false
    }

    /// Returns the next datagram for portus.
    pub fn outgoing(&self) -> Option<&[u8]> {
        self.outbox.front()
    }

    /// Takes note that the next datagram was sent.
    pub fn sent(&mut self) {
        self.outbox.pop();
    }

    /// Returns whether more messages waited for portus than may wait.
    pub fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Returns the counters since the bridge was made.
    pub fn counters(&self) -> BridgeCounters {
        self.counters
    }

    /// Logs the counters when a portus is given up.
    pub(crate) fn log_counters(&self) {
        let BridgeCounters {
            installs, program_changes, updates, reports, dropped_reports, malformed, ..
        } = self.counters;
        info!(installs, program_changes, updates, reports, dropped_reports, malformed, "portus so far");
    }
}
