//! A conversation with an agent, from its WELCOME on.

use std::collections::VecDeque;

use ccplane_contract::{Datapath, DatapathError, Event, Field, FlowId, FlowStats, Part};
use ccplane_wire::v2::{
    ByeReason, MAX_FLOW_STATS, REPORT_MINOR, Report, ReportBatch, ToAgent, ToDatapath, Welcome,
    encode_report, frames, refusal_for, stats_for,
};
use ccplane_wire::{DecodeError, EncodeError, List};
use tracing::{debug, warn};

use super::Turn;
use super::programs::{Programs, forget_first};
use crate::end::End;
use crate::ring::{ReadError, RecordBuffer, WriteError};
use crate::socket::{Received, Sent, Socket};

/// Answers that may wait for room; beyond that no command is taken.
const MAX_ANSWERS: usize = 64;
/// Commands taken in one turn.
const MAX_COMMANDS: usize = 256;
/// Events taken from the datapath in one go.
const MAX_EVENTS: usize = 256;
/// Bytes of one frame of reports: they leave in several, so that the agent starts on the first.
const MAX_BATCH_BYTES: usize = 1 << 14;
/// The time for which a push is tried whose slot's buffers may all still be read, microseconds.
const BUSY_US: u64 = 20_000;
/// Time between two polls of the socket while frames go through a ring, and between two heartbeats over it, microseconds.
/// A busy datapath finds within this time that the agent is gone, a sleeping one at once.
const BEAT_US: u64 = 100_000;

/// Reasons why a conversation is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndReason {
    #[error("the agent is gone")]
    Gone,
    #[error("the agent left: {0}")]
    Left(String),
    #[error("the agent asks for a new start: {0}")]
    Anew(String),
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("{0}")]
    Write(#[from] WriteError),
    #[error("{0}")]
    Decode(#[from] DecodeError),
}

/// A push to a busy slot: it is tried again, and later commands wait for it.
#[derive(Debug)]
struct Held {
    request: u32,
    slot: u8,
    part: Part,
    image: Vec<u64>,
    until_us: u64,
}

/// Buffers for what is taken, kept from one conversation to the next.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) record: RecordBuffer,
    pub(super) datagram: Box<[u8]>,
}

/// A conversation with one agent, from its WELCOME on.
#[derive(Debug)]
pub(super) struct Conversation {
    socket: Socket,
    ring: Option<End>,
    welcome: Welcome,
    /// The frame in the making.
    frame: Vec<u8>,
    /// Buffers for one update's.
    fields: Vec<(Field, i64)>,
    /// Encoded answers that found no room.
    answers: VecDeque<Vec<u8>>,
    /// Something waits, for there was no room.
    full: bool,
    /// The unsent rest of an answer to GET_FLOWS, and the request's number.
    listing: Option<(u32, VecDeque<FlowStats>)>,
    /// Taken from the datapath, the first `sent` of them sent.
    events: Vec<Event>,
    sent: usize,
    held: Option<Held>,
    /// Whether to poll the socket, though there is a ring.
    poll_socket: bool,
    /// Whether the agent is gone.
    left: bool,
    next_beat_us: u64,
}

impl Conversation {
    /// Starts with the flows that there are.
    pub(super) fn new(
        socket: Socket,
        ring: Option<End>,
        welcome: Welcome,
        flows: Vec<FlowStats>,
        now_us: u64,
    ) -> Conversation {
        let created = |stats: FlowStats| Event::Created { flow: stats.flow, info: stats.info };
        Conversation {
            socket,
            ring,
            welcome,
            frame: Vec::new(),
            fields: Vec::new(),
            answers: VecDeque::new(),
            full: false,
            listing: None,
            events: flows.into_iter().map(created).collect(),
            sent: 0,
            held: None,
            poll_socket: false,
            left: false,
            next_beat_us: now_us,
        }
    }

    pub(super) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn ring(&self) -> Option<&End> {
        self.ring.as_ref()
    }

    /// Not asleep any more; `ring_ready`, `socket_ready`: what has something.
    pub(super) fn awake(&mut self, ring_ready: bool, socket_ready: bool) {
        self.poll_socket |= socket_ready;
        if let Some(ring) = &self.ring {
            ring.awake();
            self.left |= ring_ready && !ring.take_wakes();
        }
    }

    /// Whether something is to be tried again before anything arrives.
    pub(super) fn is_held_up(&self) -> bool {
        let waits = !self.answers.is_empty() || self.listing.is_some() || !self.events.is_empty();
        self.held.is_some() || waits || self.left
    }

    /// Takes commands, answers them, and sends events, as far as there is room; counts them in `done`.
    pub(super) fn turn(
        &mut self,
        buffers: &mut Buffers,
        datapath: &mut dyn Datapath,
        programs: &mut Programs,
        now_us: u64,
        done: &mut Turn,
    ) -> Result<(), Box<EndReason>> {
        // First: what cannot be sent any more has the kernel throw away what came over the socket.
        if self.try_held(datapath, now_us)? {
            done.commands = self.take_commands(buffers, datapath, programs, now_us)?;
            // All commands that the agent sent before it went have been carried out.
            if self.left && done.commands == 0 {
                return Err(Box::new(EndReason::Gone));
            }
        }
        self.beat(now_us);
        self.flush()?;
        done.events = self.pass_events(datapath)?;
        Ok(())
    }

    /// Over the socket, that the datapath lives: it also tells whether the agent does.
    #[inline]
    fn beat(&mut self, now_us: u64) {
        if now_us >= self.next_beat_us {
            self.beat_now(now_us);
        }
    }

    fn beat_now(&mut self, now_us: u64) {
        self.next_beat_us = now_us.saturating_add(BEAT_US);
        self.poll_socket = true;
        let said = self.encode(0, &ToAgent::Heartbeat { now_us });
        self.left |= said && self.socket.send(&self.frame) == Sent::Gone;
    }

    /// Sends `self.frame`; false if there is no room for it now.
    fn send(&mut self) -> Result<bool, EndReason> {
        let Some(ring) = &mut self.ring else {
            return match self.socket.send(&self.frame) {
                Sent::Yes => Ok(true),
                Sent::Full => Ok(false),
                Sent::Gone => {
                    self.left = true;
                    Ok(true)
                }
                Sent::Failed(error) => {
                    warn!(%error, bytes = self.frame.len(), "a message to the agent is lost");
                    Ok(true)
                }
            };
        };
        match ring.send(&self.frame) {
            Ok(()) => Ok(true),
            Err(WriteError::Full) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Encodes `message` into `self.frame`; logs the error and returns false if it cannot be encoded.
    fn encode(&mut self, request: u32, message: &ToAgent<'_>) -> bool {
        self.frame.clear();
        said(message.encode(request, &mut self.frame))
    }

    fn answer(&mut self, request: u32, message: &ToAgent<'_>) -> Result<(), EndReason> {
        // Over the socket, all that is there is taken before anything is sent.
        let later = self.ring.is_none() || !self.answers.is_empty();
        if self.encode(request, message) && (later || !self.send()?) {
            self.answers.push_back(std::mem::take(&mut self.frame));
        }
        Ok(())
    }

    #[inline]
    fn answer_with(&mut self, request: u32, result: Result<(), DatapathError>) -> Result<(), EndReason> {
        match result {
            Ok(()) if request == 0 => Ok(()),
            Ok(()) => self.answer(request, &ToAgent::Done),
            Err(error) => {
                let error = refusal_for(self.welcome.minor, error);
                self.answer(request, &ToAgent::Refused(error))
            }
        }
    }

    /// Sends waiting answers while there is room.
    #[inline]
    fn flush(&mut self) -> Result<(), EndReason> {
        let waits = !self.answers.is_empty() || self.listing.is_some();
        self.full &= waits;
        if waits { self.flush_answers() } else { Ok(()) }
    }

    fn flush_answers(&mut self) -> Result<(), EndReason> {
        self.full = true;
        while let Some(answer) = self.answers.pop_front() {
            self.frame = answer;
            if !self.send()? {
                self.answers.push_front(std::mem::take(&mut self.frame));
                return Ok(());
            }
        }
        while let Some((request, mut left)) = self.listing.take() {
            let count = left.len().min(MAX_FLOW_STATS);
            let last = count == left.len();
            let flows = &left.make_contiguous()[..count];
            let message = ToAgent::FlowStats { last, flows: flows.into() };
            self.frame.clear();
            if said(message.encode(request, &mut self.frame)) && !self.send()? {
                self.listing = Some((request, left));
                return Ok(());
            }
            left.drain(..count);
            if !last {
                self.listing = Some((request, left));
            }
        }
        self.full = false;
        Ok(())
    }

    /// Whether no push is held back any more.
    fn try_held(&mut self, datapath: &mut dyn Datapath, now_us: u64) -> Result<bool, EndReason> {
        let Some(held) = self.held.take() else { return Ok(true) };
        let pushed = datapath.push(held.slot, &held.image, held.part);
        if matches!(pushed, Err(DatapathError::SlotBusy { .. })) && now_us < held.until_us {
            self.held = Some(held);
            return Ok(false);
        }
        self.answer_with(held.request, pushed)?;
        Ok(true)
    }

    fn take_commands(
        &mut self,
        buffers: &mut Buffers,
        datapath: &mut dyn Datapath,
        programs: &mut Programs,
        now_us: u64,
    ) -> Result<usize, EndReason> {
        let mut taken = 0;
        if std::mem::take(&mut self.poll_socket) || self.ring.is_none() {
            taken += self.take_datagrams(&mut buffers.datagram, datapath, programs, now_us)?;
        }
        while self.takes_more(taken)
            && let Some(ring) = &mut self.ring
            && ring.receive(&mut buffers.record)?
        {
            taken += 1;
            self.carry_out(buffers.record.bytes(), datapath, programs, now_us)?;
        }
        Ok(taken)
    }

    fn takes_more(&self, taken: usize) -> bool {
        taken < MAX_COMMANDS && self.answers.len() < MAX_ANSWERS && self.held.is_none()
    }

    fn take_datagrams(
        &mut self,
        datagram: &mut [u8],
        datapath: &mut dyn Datapath,
        programs: &mut Programs,
        now_us: u64,
    ) -> Result<usize, EndReason> {
        let mut taken = 0;
        while self.takes_more(taken) {
            let bytes = match self.socket.receive(datagram) {
                // The kernel may say so once before it gives out what was sent.
                Received::Gone if !self.left => {
                    self.left = true;
                    continue;
                }
                Received::Nothing | Received::Gone => break,
                Received::Datagram { bytes, .. } => bytes,
            };
            taken += 1;
            let message = datagram.get(..bytes).unwrap_or_default();
            self.carry_out(message, datapath, programs, now_us)?;
        }
        Ok(taken)
    }

    fn carry_out(
        &mut self,
        bytes: &[u8],
        datapath: &mut dyn Datapath,
        programs: &mut Programs,
        now_us: u64,
    ) -> Result<(), EndReason> {
        for frame in frames(bytes) {
            let frame = frame?;
            if let Some((flow, fields)) = frame.update()? {
                let updated = self.update(flow, &fields, datapath);
                self.answer_with(frame.request, updated)?;
            } else if let Some(message) = ToDatapath::parse(frame)? {
                self.command(frame.request, message, datapath, programs, now_us)?;
            }
        }
        Ok(())
    }

    fn command(
        &mut self,
        request: u32,
        message: ToDatapath<'_>,
        datapath: &mut dyn Datapath,
        programs: &mut Programs,
        now_us: u64,
    ) -> Result<(), EndReason> {
        let result = match message {
            ToDatapath::Install { uid, program } => match programs.install(datapath, uid, program) {
                Ok(()) if request == 0 => return Ok(()),
                Ok(()) => return self.answer(request, &ToAgent::Installed { uid }),
                Err(error) => Err(error),
            },
            ToDatapath::Remove { uid } => programs.remove(datapath, uid),
            ToDatapath::SetProgram { flow, uid, fields } => {
                let fields: Vec<_> = fields.iter().collect();
                datapath.set_program(flow, uid, &fields)
            }
            ToDatapath::Update { flow, fields } => self.update(flow, &fields, datapath),
            ToDatapath::EnsureProgram { flow, uid, fields } => {
                let fields: Vec<_> = fields.iter().collect();
                datapath.ensure_program(flow, uid, &fields).map(|_| ())
            }
            ToDatapath::SetFirst { uid, fields } => {
                let fields: Vec<_> = fields.iter().collect();
                datapath.set_first(uid, &fields)
            }
            ToDatapath::ClearFirst { hook } => {
                datapath.clear_first(hook);
                Ok(())
            }
            ToDatapath::Release { flow } => datapath.release(flow),
            ToDatapath::DefineSlot { slot, shape } => datapath.define_slot(slot, &shape),
            ToDatapath::Push { slot, part, image } => {
                let image: Vec<u64> = image.iter().collect();
                let pushed = datapath.push(slot, &image, part);
                if matches!(pushed, Err(DatapathError::SlotBusy { .. })) {
                    let until_us = now_us.saturating_add(BUSY_US);
                    self.held = Some(Held { request, slot, part, image, until_us });
                    return Ok(());
                }
                pushed
            }
            ToDatapath::Share { slot, share } => datapath.share(slot, share),
            ToDatapath::Promote { slot } => datapath.promote(slot),
            ToDatapath::Rollback { slot } => datapath.rollback(slot),
            // As with flows: what waits is answer enough, and an agent that does not read is not answered without end.
            ToDatapath::GetSlots if self.full => return Ok(()),
            ToDatapath::GetSlots => {
                let slots = datapath.slots();
                return self.answer(request, &ToAgent::Slots(slots.as_slice().into()));
            }
            ToDatapath::GetFlows => {
                self.list(request, datapath);
                return Ok(());
            }
            ToDatapath::Heartbeat { .. } => {
                datapath.heartbeat();
                programs.tidy(datapath);
                return Ok(());
            }
            ToDatapath::Bye { reason: ByeReason::Stopping, text } => {
                forget_first(datapath);
                for stats in datapath.flows() {
                    // One that has just ended needs no release.
                    let _ = datapath.release(stats.flow);
                }
                return Err(EndReason::Left(text.to_owned()));
            }
            ToDatapath::Bye { text, .. } => return Err(EndReason::Anew(text.to_owned())),
            // Said once, before this.
            ToDatapath::Welcome(_) | ToDatapath::TurnedAway(_) => return Ok(()),
        };
        self.answer_with(request, result)
    }

    fn update(
        &mut self,
        flow: FlowId,
        fields: &List<'_, (Field, i64)>,
        datapath: &mut dyn Datapath,
    ) -> Result<(), DatapathError> {
        self.fields.clear();
        for field in fields {
            self.fields.push(field);
        }
        datapath.update(flow, &self.fields)
    }

    /// An answer that is under way is answer enough.
    fn list(&mut self, request: u32, datapath: &mut dyn Datapath) {
        if self.listing.is_none() {
            let minor = self.welcome.minor;
            let flows: VecDeque<_> = datapath.flows().into_iter().map(|s| stats_for(minor, s)).collect();
            self.listing = Some((request, flows));
        }
    }

    /// Sends what the datapath has to tell; takes no more of it than there is room for.
    fn pass_events(&mut self, datapath: &mut dyn Datapath) -> Result<usize, EndReason> {
        let mut passed = 0;
        // Answers go first; and the list of flows is that of one moment, with no start or end in the middle.
        while self.answers.is_empty() && self.listing.is_none() {
            if self.events.is_empty() {
                let taken = datapath.poll(MAX_EVENTS, &mut self.events);
                passed += taken;
                if taken == 0 {
                    break;
                }
            }
            let count = self.encode_events(datapath);
            if count > 0 && !self.frame.is_empty() && !self.send()? {
                break;
            }
            self.sent += count;
            if self.sent >= self.events.len() {
                self.events.clear();
                self.sent = 0;
            }
            if passed >= MAX_EVENTS && self.events.is_empty() {
                break;
            }
        }
        Ok(passed)
    }

    /// Encodes the first events into one frame, and returns their number. An empty frame means that they cannot be encoded.
    fn encode_events(&mut self, datapath: &dyn Datapath) -> usize {
        self.frame.clear();
        let events = self.events.get(self.sent..).unwrap_or_default();
        let message = match events.first() {
            None => return 0,
            Some(Event::Report { .. }) => {
                return encode_reports(events, self.welcome.minor, &mut self.frame);
            }
            Some(Event::Created { flow, info }) => {
                if let Some(name) = datapath.requested(*flow) {
                    said(ToAgent::Requested { flow: *flow, name }.encode(0, &mut self.frame));
                }
                ToAgent::Created { flow: *flow, info: info.clone() }
            }
            Some(Event::Closed { flow }) => ToAgent::Closed { flow: *flow },
            Some(Event::Dropped { count }) => ToAgent::Dropped { count: *count },
        };
        said(message.encode(0, &mut self.frame));
        1
    }

    /// Says BYE to the agent.
    pub(super) fn farewell(&mut self, reason: ByeReason, text: &str) {
        if self.encode(0, &ToAgent::Bye { reason, text }) {
            self.socket.send(&self.frame);
        }
    }
}

/// Encodes the reports at the start of `events`, as many as one frame takes; one alone so that it fits a cache line.
fn encode_reports(events: &[Event], minor: u8, frame: &mut Vec<u8>) -> usize {
    let lost = |error: EncodeError, frame: &mut Vec<u8>| {
        debug!(%error, "a report is lost");
        frame.clear();
        1
    };
    if minor >= REPORT_MINOR
        && let (Some(alone), None) = (events.first().and_then(report), events.get(1).and_then(report))
    {
        return encode_report(&alone, frame).map_or_else(|error| lost(error, frame), |()| 1);
    }
    let Ok(mut batch) = ReportBatch::start(frame) else { return 0 };
    let mut bytes = 0;
    for report in events.iter().map_while(report) {
        match batch.push(&report) {
            Ok(()) => bytes += report.values.len() * size_of::<i64>(),
            Err(error) if batch.is_empty() => return lost(error, frame),
            Err(_) => break,
        }
        if bytes >= MAX_BATCH_BYTES {
            break;
        }
    }
    batch.len()
}

/// The report that an event is, if it is one.
fn report(event: &Event) -> Option<Report<'_>> {
    let Event::Report { flow, program, seq, at_us, values } = event else { return None };
    let values = values.as_slice().into();
    Some(Report { flow: *flow, program: *program, seq: *seq, at_us: *at_us, values })
}

fn said(encoded: Result<(), EncodeError>) -> bool {
    if let Err(error) = &encoded {
        debug!(%error, "a message to the agent cannot be encoded");
    }
    encoded.is_ok()
}
