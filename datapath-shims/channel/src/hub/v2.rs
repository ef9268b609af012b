//! A datapath that speaks ccplane's protocol, [`ccplane_wire::v2`].
//!
//! Commands are sent and their answers not waited for. Those whose loss nothing would make up for wait for room in the
//! datapath's socket: all but UPDATE. A program counts as installed once it was sent; should the datapath
//! refuse it after all, setting it on a flow is refused in the same words. What becomes of its slots is expected to be what
//! was asked for ([`Slots`]), and looked at with every heartbeat. Its list of flows makes up for what
//! was lost of their starts and ends.

use super::link::{Inbox, PeerLink};
use super::slots::Slots;
use super::{HubOptions, Malformed};
use crate::end::{End, RING_BYTES};
use crate::ring::RecordBuffer;
use ccplane_contract::registry::{Change, Programs, Shim};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowInfo, FlowStats, Mode, Part, ProgramUid,
    SlotStats, TransportStats, check_fields,
};
use ccplane_infer::Shape;
use ccplane_program::ir::{Hook, Program};
use ccplane_wire::v2::{
    ByeReason, FIRST_MINOR, Features, Hello, MINOR, Report, SLOTS_MINOR, SingleReport, ToAgent, ToDatapath,
    TurnedAway, Welcome, frames, negotiate,
};
use ccplane_wire::{DecodeError, List};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tracing::{debug, warn};

/// Most programs of one datapath, whatever it claims.
const MAX_PROGRAMS: usize = 1024;
/// Most flows of one datapath, whatever it claims.
const MAX_FLOWS: usize = 1 << 20;

/// A conversation with one datapath, from its HELLO on.
#[derive(Debug)]
pub(super) struct V2Peer {
    link: PeerLink,
    capabilities: Capabilities,
    /// Whether it takes the programs that flows start with.
    takes_first: bool,
    inbox: Inbox,
    programs: Programs<Option<u32>>,
    slots: Slots,
    /// The name that the owner of a flow asked for, until the flow is announced.
    requested: Option<(FlowId, Box<str>)>,
    flows: BTreeMap<FlowId, V2Flow>,
    stats: Vec<FlowStats>,
    /// FLOW_STATS so far, until the last one of an answer.
    incoming_stats: Vec<FlowStats>,
    next_request: u32,
}

/// A flow that was announced and has not been closed.
#[derive(Debug)]
struct V2Flow {
    info: FlowInfo,
    /// The name that its owner asked for.
    requested: Option<Box<str>>,
    /// The program that it was last set to.
    program: Option<ProgramUid>,
    /// Whether `stats` has it.
    is_sampled: bool,
    /// Whether the last list lacks it.
    is_missing: bool,
}

impl V2Flow {
    fn new(info: FlowInfo) -> V2Flow {
        V2Flow { info, requested: None, program: None, is_sampled: false, is_missing: false }
    }

    /// Returns the statistics that are known before the first sample.
    fn stats(&self, flow: FlowId) -> FlowStats {
        let mss_bytes = u64::from(self.info.mss_bytes.max(1));
        FlowStats {
            flow,
            info: self.info.clone(),
            mode: Mode::NativeNoProgram,
            program: self.program,
            transport: TransportStats {
                snd_cwnd: u32::try_from(self.info.init_cwnd_bytes / mss_bytes).unwrap_or(u32::MAX),
                mss_bytes: self.info.mss_bytes,
                ..TransportStats::default()
            },
            policy: None,
            sampled_at_us: 0,
        }
    }
}

impl V2Peer {
    /// Answers a HELLO. `None` when the datapath had to be turned away.
    pub(super) fn welcome(mut link: PeerLink, hello: &Hello<'_>, options: &HubOptions) -> Option<V2Peer> {
        let minor = match negotiate(&hello.minors, &(0..=MINOR)) {
            Ok(minor) => minor,
            Err(reason) => {
                turn_away(&mut link, reason);
                return None;
            }
        };
        let heartbeat_timeout_ms = options.heartbeat_timeout.as_millis();
        let rings = options.rings && minor >= SLOTS_MINOR && hello.features.has(Features::RING);
        let rings = rings.then(|| End::create(RING_BYTES)).and_then(|made| {
            made.inspect_err(|error| warn!(%error, "a datapath gets no rings in shared memory")).ok()
        });
        let welcome = Welcome {
            minor,
            heartbeat_timeout_ms: u32::try_from(heartbeat_timeout_ms).unwrap_or(u32::MAX).max(1),
            session: options.session,
            wake: options.wake.asked_of_peer(),
            ring_bytes: if rings.is_some() { RING_BYTES as u32 } else { 0 },
        };
        let welcome = ToDatapath::Welcome(welcome);
        if let Err(error) = link.introduce(rings, |out| welcome.encode(0, out)) {
            debug!(%error, "welcome a datapath");
            return None;
        }
        let at_most = |n: u32, limit: usize| usize::try_from(n).unwrap_or(limit).min(limit);
        let capabilities = Capabilities {
            kind: kind(hello.kind),
            max_programs: at_most(hello.max_programs, MAX_PROGRAMS),
            max_flows: at_most(hello.max_flows, MAX_FLOWS),
            policy: minor >= SLOTS_MINOR && hello.features.has(Features::POLICY),
            full_language: hello.features.has(Features::FULL_LANGUAGE),
            hooks: if hello.features.has(Features::SEND) {
                ccplane_contract::ON_PACKETS
            } else {
                ccplane_contract::ON_ACKS
            },
        };
        let programs = Programs::new(capabilities.max_programs).of_hooks(capabilities.hooks);
        Some(V2Peer {
            link,
            capabilities,
            takes_first: minor >= FIRST_MINOR && hello.features.has(Features::SEND),
            inbox: Inbox::default(),
            programs,
            slots: Slots::new(hello.slots.iter()),
            requested: None,
            flows: BTreeMap::new(),
            stats: Vec::new(),
            incoming_stats: Vec::new(),
            next_request: 1,
        })
    }

    /// Takes a datagram from it.
    pub(super) fn take(&mut self, datagram: &[u8]) -> Result<(), DecodeError> {
        for frame in frames(datagram) {
            let frame = frame?;
            if let Some(reports) = frame.reports()? {
                self.reports(&reports);
            } else if let Some(report) = frame.report()? {
                self.report(&report);
            } else if let Some(message) = ToAgent::parse(frame)? {
                self.message(frame.request, message);
            }
        }
        Ok(())
    }

    /// Takes what came through its ring, at most `max` frames; how many.
    pub(super) fn take_ring(&mut self, record: &mut RecordBuffer, max: usize) -> Result<usize, Malformed> {
        let mut taken = 0;
        while taken < max && self.link.receive(record)? {
            taken += 1;
            self.take(record.bytes())?;
        }
        Ok(taken)
    }

    /// Its ring, if it has one.
    pub(super) fn ring(&self) -> Option<&End> {
        self.link.ring()
    }

    /// Takes the wake-ups of its ring, and notes whether the datapath is gone.
    pub(super) fn take_wakes(&mut self) {
        if self.link.ring().is_some_and(|ring| !ring.take_wakes()) {
            self.link.set_gone();
        }
    }

    /// Ends the conversation: what came through its ring cannot be.
    pub(super) fn drop_out(&mut self, why: &str) {
        let bye = ToDatapath::Bye { reason: ByeReason::Protocol, text: why };
        if let Err(error) = self.link.send_beside(|out| bye.encode(0, out)) {
            debug!(%error, "drop a datapath out");
        }
        self.link.set_gone();
    }

    fn message(&mut self, request: u32, message: ToAgent<'_>) {
        match message {
            ToAgent::Requested { flow, name } => self.requested = Some((flow, name.into())),
            ToAgent::Created { flow, info } => {
                let requested = self.requested.take().filter(|(of, _)| *of == flow).map(|(_, name)| name);
                if self.flows.len() < self.capabilities.max_flows && !self.flows.contains_key(&flow) {
                    self.flows.insert(flow, V2Flow { requested, ..V2Flow::new(info.clone()) });
                    self.inbox.push(Event::Created { flow, info });
                }
            }
            ToAgent::Closed { flow } => {
                if self.flows.remove(&flow).is_some() {
                    self.inbox.push(Event::Closed { flow });
                }
            }
            ToAgent::Reports(reports) => self.reports(&reports),
            ToAgent::Report(report) => self.report(&report),
            ToAgent::Dropped { count } => self.inbox.push(Event::Dropped { count }),
            ToAgent::FlowStats { last, flows } => {
                let room = self.capabilities.max_flows.saturating_sub(self.incoming_stats.len());
                self.incoming_stats.extend(flows.iter().take(room));
                if last {
                    self.stats = std::mem::take(&mut self.incoming_stats);
                    self.reconcile();
                }
            }
            ToAgent::Slots(slots) => self.slots.answered(request, slots.iter()),
            ToAgent::Refused(error) => self.refused(request, error),
            ToAgent::Installed { uid } => {
                if let Some(request) = self.programs.loaded_mut(uid) {
                    *request = None;
                }
            }
            ToAgent::Bye { reason, text } => {
                debug!(?reason, text, "the datapath leaves");
                self.link.set_gone();
            }
            ToAgent::Hello(_) | ToAgent::Done | ToAgent::Heartbeat { .. } => {}
        }
    }

    fn reports(&mut self, reports: &List<'_, Report<'_>>) {
        for report in reports {
            if self.flows.contains_key(&report.flow) {
                self.inbox.push_report(&report);
            }
        }
    }

    fn report(&mut self, report: &SingleReport<'_>) {
        if self.flows.contains_key(&report.flow) {
            self.inbox.push_single(report);
        }
    }

    /// Flows that are listed and not known have started, those that are known and twice not listed have ended: their
    /// announcements were lost. A list may overtake the last report and the end of a flow, which then follow it.
    fn reconcile(&mut self) {
        let listed: HashSet<FlowId> = self.stats.iter().map(|s| s.flow).collect();
        let inbox = &mut self.inbox;
        self.flows.retain(|flow, known| {
            let was_missing = std::mem::replace(&mut known.is_missing, !listed.contains(flow));
            let has_ended = was_missing && known.is_missing;
            if has_ended {
                inbox.push(Event::Closed { flow: *flow });
            }
            !has_ended
        });
        for FlowStats { flow, info, .. } in &self.stats {
            if let Some(known) = self.flows.get_mut(flow) {
                known.is_sampled = true;
            } else if self.flows.len() < self.capabilities.max_flows {
                self.flows.insert(*flow, V2Flow { is_sampled: true, ..V2Flow::new(info.clone()) });
                self.inbox.push(Event::Created { flow: *flow, info: info.clone() });
            }
        }
    }

    fn refused(&mut self, request: u32, error: DatapathError) {
        if matches!(error, DatapathError::NoFlow(_)) {
            // It has just ended.
            debug!(%error, kind = self.capabilities.kind, "the datapath refused a command");
            return;
        }
        warn!(%error, kind = self.capabilities.kind, "the datapath refused a command");
        let install = self.programs.iter().find(|(_, p)| request != 0 && p.loaded == Some(request));
        if let Some(uid) = install.map(|(uid, _)| uid) {
            if let Some(request) = self.programs.loaded_mut(uid) {
                *request = None;
            }
            self.programs.refuse(uid, error);
        } else if request != 0 {
            // It was about a slot: what is there now?
            self.ask_for_slots();
        }
    }

    fn number(&mut self) -> u32 {
        let request = self.next_request;
        self.next_request = self.next_request.checked_add(1).unwrap_or(1);
        request
    }

    /// Asks for the flows' statistics, whose answer [`V2Peer::listed`] will have.
    pub(super) fn ask_for_flows(&mut self) {
        if let Err(error) = send(&mut self.link, &ToDatapath::GetFlows, 0) {
            debug!(%error, "ask for flows");
        }
    }

    /// The flows as of the last answer, with those that have started since.
    pub(super) fn listed(&self) -> Vec<FlowStats> {
        let sampled = self.stats.iter().filter(|s| self.flows.contains_key(&s.flow)).cloned();
        // After dropped events, the agent's core takes a flow that is not listed for closed.
        let started = self.flows.iter().filter(|(_, known)| !known.is_sampled);
        sampled.chain(started.map(|(flow, known)| known.stats(*flow))).collect()
    }

    fn ask_for_slots(&mut self) {
        let request = self.number();
        match send(&mut self.link, &ToDatapath::GetSlots, request) {
            Ok(()) => self.slots.asked(request),
            Err(error) => debug!(%error, "ask for slots"),
        }
    }

    /// Sends a command on a slot. Its answer is asked for, to hear of a refusal.
    fn slot_command(&mut self, command: &ToDatapath<'_>) -> Result<(), DatapathError> {
        let request = self.number();
        send_surely(&mut self.link, command, request)
    }

    /// Whether the datapath is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.link.is_gone()
    }

    /// Whether a command waits for room in the datapath's socket.
    pub(super) fn has_backlog(&self) -> bool {
        self.link.has_backlog()
    }

    /// Reports the end of all its flows, because the datapath has gone.
    pub(super) fn close_all(&mut self) {
        for flow in std::mem::take(&mut self.flows).into_keys() {
            self.inbox.push(Event::Closed { flow });
        }
    }

    /// Says that the agent stops, which ends what still waits.
    pub(super) fn farewell(&mut self) {
        self.link.drop_backlog();
        let bye = ToDatapath::Bye { reason: ByeReason::Stopping, text: "the agent stops" };
        if let Err(error) = self.link.send_beside(|out| bye.encode(0, out)) {
            debug!(%error, "say goodbye to a datapath");
        }
    }
}

impl Shim for V2Peer {
    /// The number of the INSTALL, until it is answered.
    type Loaded = Option<u32>;

    ccplane_contract::program_table!(programs);

    fn check_support(&self, program: &Program) -> Result<(), DatapathError> {
        if program.uses_policy() && !self.capabilities.policy {
            return Err(DatapathError::Unsupported { feature: "policy".to_owned() });
        }
        Ok(())
    }

    fn slot_shape(&self, slot: u8) -> Option<Shape> {
        self.slots.shape(slot)
    }

    fn load(&mut self, uid: ProgramUid, program: &Arc<Program>) -> Result<Option<u32>, DatapathError> {
        let request = self.number();
        let install = ToDatapath::Install { uid, program: Program::clone(program) };
        send_surely(&mut self.link, &install, request)?;
        Ok(Some(request))
    }

    fn unload(&mut self, uid: ProgramUid, _: &Option<u32>) -> Result<(), DatapathError> {
        send_surely(&mut self.link, &ToDatapath::Remove { uid }, 0)
    }

    fn count_users(&self, uid: ProgramUid, _: &Option<u32>) -> usize {
        self.flows.values().filter(|f| f.program == Some(uid)).count()
    }

    fn program_of(&mut self, flow: FlowId) -> Result<Option<ProgramUid>, DatapathError> {
        Ok(self.flows.get(&flow).ok_or(DatapathError::NoFlow(flow))?.program)
    }

    fn stage(&mut self, flow: FlowId, change: Change<'_, Option<u32>>) -> Result<(), DatapathError> {
        let fields = change.fields.into();
        let Some((uid, _)) = change.program.filter(|_| change.starts) else {
            return send(&mut self.link, &ToDatapath::Update { flow, fields }, 0);
        };
        let known = self.flows.get_mut(&flow).ok_or(DatapathError::NoFlow(flow))?;
        send_surely(&mut self.link, &ToDatapath::SetProgram { flow, uid, fields }, 0)?;
        known.program = Some(uid);
        Ok(())
    }
}

impl Datapath for V2Peer {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    ccplane_contract::program_commands!();

    fn set_first(&mut self, uid: ProgramUid, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        if !self.takes_first {
            return Err(DatapathError::Unsupported { feature: "a program that flows start with".to_owned() });
        }
        let entry = self.programs.get(uid)?;
        check_fields(Some(&entry.program), fields)?;
        send_surely(&mut self.link, &ToDatapath::SetFirst { uid, fields: fields.into() }, 0)
    }

    /// Leaves it to the datapath whether the flow runs the program already, since flows start before the agent hears of them. Returns
    /// false only where the agent has set it.
    fn ensure_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<bool, DatapathError> {
        if !self.takes_first {
            return self.set_program(flow, uid, fields).map(|()| true);
        }
        let entry = self.programs.get(uid)?;
        let known = self.flows.get_mut(&flow).ok_or(DatapathError::NoFlow(flow))?;
        check_fields(Some(&entry.program), fields)?;
        let ensure = ToDatapath::EnsureProgram { flow, uid, fields: fields.into() };
        send_surely(&mut self.link, &ensure, 0)?;
        Ok(known.program.replace(uid) != Some(uid))
    }

    fn clear_first(&mut self, hook: Hook) {
        if !self.takes_first {
            return;
        }
        if let Err(error) = send_surely(&mut self.link, &ToDatapath::ClearFirst { hook }, 0) {
            debug!(%error, "let flows start without a program");
        }
    }

    fn requested(&self, flow: FlowId) -> Option<&str> {
        self.flows.get(&flow)?.requested.as_deref()
    }

    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        let known = self.flows.get_mut(&flow).ok_or(DatapathError::NoFlow(flow))?;
        send_surely(&mut self.link, &ToDatapath::Release { flow }, 0)?;
        known.program = None;
        Ok(())
    }

    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        if !self.capabilities.policy {
            return Err(DatapathError::Unsupported { feature: "(policy ...)".to_owned() });
        }
        self.slots.check_define(slot, shape)?;
        self.slot_command(&ToDatapath::DefineSlot { slot, shape: *shape })?;
        self.slots.define(slot, shape);
        Ok(())
    }

    fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        self.slots.check_push(slot, image)?;
        self.slot_command(&ToDatapath::Push { slot, part, image: image.into() })?;
        self.slots.push(slot, image, part);
        Ok(())
    }

    fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        self.slots.check_canary(slot)?;
        self.slot_command(&ToDatapath::Share { slot, share })?;
        self.slots.share(slot, share);
        Ok(())
    }

    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.slots.check_canary(slot)?;
        self.slot_command(&ToDatapath::Promote { slot })?;
        self.slots.promote(slot);
        Ok(())
    }

    fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.slots.check_rollback(slot)?;
        self.slot_command(&ToDatapath::Rollback { slot })?;
        self.slots.rollback(slot);
        Ok(())
    }

    fn slots(&mut self) -> Vec<SlotStats> {
        self.slots.stats()
    }

    /// Also asks for the flows' statistics and the slots, so that [`Datapath::flows`] and [`Datapath::slots`] have
    /// recent ones.
    fn heartbeat(&mut self) {
        let now_us = crate::clock::now_us();
        for message in [ToDatapath::Heartbeat { now_us }, ToDatapath::GetFlows] {
            if let Err(error) = send(&mut self.link, &message, 0) {
                debug!(%error, "heartbeat");
            }
        }
        if self.capabilities.policy {
            self.ask_for_slots();
        }
        if self.link.ring().is_some() {
            self.link.check_alive();
        }
    }

    /// Returns the flows of the last answer, with those that have started since; asks anew.
    fn flows(&mut self) -> Vec<FlowStats> {
        self.ask_for_flows();
        self.listed()
    }

    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.link.flush();
        self.inbox.drain(max, events)
    }
}

/// A HELLO at the start of a datagram.
pub(super) fn hello(datagram: &[u8]) -> Result<Option<Hello<'_>>, DecodeError> {
    let Some(frame) = frames(datagram).next().transpose()? else { return Ok(None) };
    match ToAgent::parse(frame)? {
        Some(ToAgent::Hello(hello)) => Ok(Some(hello)),
        _ => Ok(None),
    }
}

/// Tells a datapath that it is not served, and why.
pub(super) fn turn_away(link: &mut PeerLink, reason: TurnedAway) {
    warn!(%reason, "a datapath was turned away");
    if let Err(error) = send(link, &ToDatapath::TurnedAway(reason), 0) {
        debug!(%error, "turn a datapath away");
    }
}

/// Tells a datapath that is not known, perhaps since before a restart of the agent, to introduce itself.
pub(super) fn ask_for_hello(link: &mut PeerLink) {
    let bye = ToDatapath::Bye { reason: ByeReason::Protocol, text: "say HELLO first" };
    if let Err(error) = send(link, &bye, 0) {
        debug!(%error, "ask a datapath for its HELLO");
    }
}

fn send(link: &mut PeerLink, message: &ToDatapath<'_>, request: u32) -> Result<(), DatapathError> {
    link.send(|out| message.encode(request, out))
}

fn send_surely(link: &mut PeerLink, message: &ToDatapath<'_>, request: u32) -> Result<(), DatapathError> {
    link.send_surely(|out| message.encode(request, out))
}

/// Returns a kind as a static text, which `Capabilities` needs; a peer's own text must not be kept for ever.
fn kind(said: &str) -> &'static str {
    const KNOWN: [&str; 6] = ["quic", "dpdk", "packets", "sim", "ebpf", "module"];
    KNOWN.into_iter().find(|k| *k == said).unwrap_or("ccplane")
}
