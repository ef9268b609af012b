//! An agent played by hand, and a datapath that only notes what it is told.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use ccplane_channel::{End, RING_BYTES, Record, ServeOptions, Served, Transport, Turn};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowInfo, FlowStats, Mode, Part, ProgramUid,
    SlotStats, SlotTable, TransportStats, check_fields,
};
use ccplane_infer::Shape;
use ccplane_program::ir::Program;
use ccplane_wire::v2::{MAX_FRAME_BYTES, MINOR, ToAgent, ToDatapath, Wake, Welcome, frames};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, recvmsg, sendmsg};

/// One that does as it is told, as far as the contract asks.
#[derive(Default)]
pub struct Toy {
    pub programs: Vec<(ProgramUid, Program)>,
    pub flows: Vec<(FlowId, Option<ProgramUid>)>,
    pub events: Vec<Event>,
    pub updates: Vec<(FlowId, Vec<(Field, i64)>)>,
    pub heartbeats: u64,
    pub slots: SlotTable,
    /// How often pushes are refused, because the slot is busy.
    pub busy: u32,
}

pub fn info() -> FlowInfo {
    FlowInfo::example(1448, 14_480)
}

pub fn report(flow: FlowId, seq: u32) -> Event {
    Event::Report {
        flow,
        program: ProgramUid(1),
        seq,
        at_us: u64::from(seq),
        values: vec![i64::from(seq), -1].into(),
    }
}

impl Toy {
    pub fn start_flow(&mut self, flow: FlowId) {
        self.flows.push((flow, None));
        self.events.push(Event::Created { flow, info: info() });
    }

    pub fn forget(&mut self) {
        *self = Toy { heartbeats: self.heartbeats, ..Toy::default() };
    }

    fn flow(&mut self, flow: FlowId) -> Result<&mut Option<ProgramUid>, DatapathError> {
        let found = self.flows.iter_mut().find(|(id, _)| *id == flow);
        found.map(|(_, program)| program).ok_or(DatapathError::NoFlow(flow))
    }
}

impl Datapath for Toy {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "toy",
            max_programs: 4,
            max_flows: 1000,
            policy: true,
            full_language: true,
            hooks: ccplane_contract::ON_ACKS,
        }
    }
    fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
        self.slots.check(program)?;
        if self.programs.iter().any(|(there, _)| *there == uid) {
            return Err(DatapathError::Refused { at: None, reason: "there already".to_owned() });
        }
        if self.programs.len() >= 4 {
            return Err(DatapathError::ProgramsFull { limit: 4 });
        }
        self.programs.push((uid, program.clone()));
        Ok(())
    }
    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        let flows = self.flows.iter().filter(|(_, program)| *program == Some(uid)).count();
        if flows > 0 {
            return Err(DatapathError::ProgramInUse { uid, flows });
        }
        let at = self.programs.iter().position(|(there, _)| *there == uid);
        self.programs.remove(at.ok_or(DatapathError::NoProgram(uid))?);
        Ok(())
    }
    fn set_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError> {
        let program = self.programs.iter().find(|(there, _)| *there == uid);
        let (_, program) = program.ok_or(DatapathError::NoProgram(uid))?;
        check_fields(Some(program), fields)?;
        *self.flow(flow)? = Some(uid);
        Ok(())
    }
    fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        self.flow(flow)?;
        self.updates.push((flow, fields.to_vec()));
        Ok(())
    }
    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        *self.flow(flow)? = None;
        Ok(())
    }
    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        self.slots.define(slot, shape)
    }
    fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        if self.busy > 0 {
            self.busy -= 1;
            return Err(DatapathError::SlotBusy { slot });
        }
        self.slots.push(slot, image, part)
    }
    fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        self.slots.share(slot, share)
    }
    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.slots.promote(slot)
    }
    fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.slots.rollback(slot)
    }
    fn slots(&mut self) -> Vec<SlotStats> {
        self.slots.stats()
    }
    fn heartbeat(&mut self) {
        self.heartbeats += 1;
    }
    fn flows(&mut self) -> Vec<FlowStats> {
        let stats = |(flow, program): &(FlowId, Option<ProgramUid>)| FlowStats {
            flow: *flow,
            info: info(),
            mode: if program.is_some() { Mode::Program } else { Mode::NativeNoProgram },
            program: *program,
            transport: TransportStats { snd_cwnd: 10, mss_bytes: 1448, ..TransportStats::default() },
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

/// An agent's socket, what it says, and the datapath's end of the conversation with it.
pub struct Agent {
    pub served: Served,
    pub socket: UnixDatagram,
    pub end: Option<End>,
    from: Option<UnixAddr>,
    rings: bool,
    pub now_us: u64,
    /// The minor version that it speaks.
    pub minor: u8,
    /// The answer to a HELLO; `None` for WELCOME.
    pub answer: Option<Vec<u8>>,
    record: Record,
    dir: tempfile::TempDir,
}

impl Agent {
    pub fn new(transport: Transport) -> Agent {
        let dir = tempfile::tempdir().unwrap();
        let socket = bind(&dir.path().join("ccp.sock"));
        let served = Served::connect(&dir.path().join("ccp.sock"), ServeOptions::new("toy").unwrap());
        Agent {
            served,
            socket,
            end: None,
            from: None,
            rings: transport == Transport::Ring,
            now_us: 0,
            minor: MINOR,
            answer: None,
            record: Record::default(),
            dir,
        }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("ccp.sock")
    }

    /// The next agent at the same place.
    pub fn restart(&mut self) {
        let _ = std::fs::remove_file(self.path());
        self.socket = bind(&self.path());
        (self.end, self.from) = (None, None);
    }

    /// Nobody is at the place any more.
    pub fn kill(&mut self) {
        std::fs::remove_file(self.path()).unwrap();
        self.socket = nonblocking(UnixDatagram::unbound().unwrap());
        (self.end, self.from) = (None, None);
    }

    pub fn turn(&mut self, toy: &mut Toy) -> Turn {
        self.now_us += 1000;
        self.served.turn(toy, self.now_us)
    }

    /// Takes the datapath on, if it is not; waits until it knows.
    pub fn connect(&mut self, toy: &mut Toy) {
        for _ in 0..3000 {
            if self.turn(toy).connected {
                return;
            }
            self.take_hellos();
        }
        panic!("the datapath does not come");
    }

    /// Answers every HELLO; whether there was one. Takes no other message.
    pub fn take_hellos(&mut self) -> bool {
        let mut found = false;
        let mut buffer = vec![0; MAX_FRAME_BYTES];
        loop {
            let (bytes, from) = {
                let mut parts = [IoSliceMut::new(&mut buffer)];
                let fd = self.socket.as_raw_fd();
                let Ok(got) = recvmsg::<UnixAddr>(fd, &mut parts, None, MsgFlags::MSG_DONTWAIT) else {
                    return found;
                };
                (got.bytes, got.address)
            };
            let frame = frames(&buffer[..bytes]).next().unwrap().unwrap();
            if let Ok(Some(ToAgent::Hello(_))) = ToAgent::parse(frame) {
                (self.from, found) = (from, true);
                match self.answer.clone() {
                    Some(bytes) => self.say_bytes(&bytes),
                    None => self.welcome(),
                }
            }
        }
    }

    fn welcome(&mut self) {
        let made = self.rings.then(|| End::create(RING_BYTES).unwrap());
        let welcome = Welcome {
            minor: self.minor,
            heartbeat_timeout_ms: 500,
            session: 1,
            wake: Wake::Sleep,
            ring_bytes: if self.rings { RING_BYTES as u32 } else { 0 },
        };
        let mut bytes = Vec::new();
        ToDatapath::Welcome(welcome).encode(0, &mut bytes).unwrap();
        let fds: Vec<RawFd> =
            made.iter().flat_map(|(_, parts)| parts.fds().map(|fd| fd.as_raw_fd())).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let rights = if fds.is_empty() { &[] } else { &rights[..] };
        let fd = self.socket.as_raw_fd();
        // One that has left meanwhile says HELLO again.
        let _ = sendmsg(fd, &[IoSlice::new(&bytes)], rights, MsgFlags::MSG_DONTWAIT, self.from.as_ref());
        self.end = made.map(|(end, _)| end);
    }

    pub fn say(&mut self, message: &ToDatapath<'_>, request: u32) {
        let mut bytes = Vec::new();
        message.encode(request, &mut bytes).unwrap();
        self.say_bytes(&bytes);
    }

    /// Says anything, as far as there is room.
    pub fn say_bytes(&mut self, bytes: &[u8]) {
        match &mut self.end {
            Some(end) => drop(end.send(bytes)),
            None => {
                let fd = self.socket.as_raw_fd();
                let parts = [IoSlice::new(bytes)];
                let _ = sendmsg(fd, &parts, &[], MsgFlags::MSG_DONTWAIT, self.from.as_ref());
            }
        }
    }

    /// Everything that waits, as (request, debug text); HEARTBEATs left out.
    pub fn received(&mut self) -> Vec<(u32, String)> {
        let mut received = self.received_in_ring();
        let mut buffer = vec![0; MAX_FRAME_BYTES];
        while let Ok(bytes) = self.socket.recv(&mut buffer) {
            parse(&buffer[..bytes], &mut received);
        }
        received
    }

    /// Returns the messages that wait in the ring.
    pub fn received_in_ring(&mut self) -> Vec<(u32, String)> {
        let mut received = Vec::new();
        if let Some(end) = &mut self.end {
            while end.receive(&mut self.record).unwrap() {
                parse(self.record.bytes(), &mut received);
            }
        }
        received
    }

    /// Leaves what waits unread.
    pub fn forget(&mut self) {
        let mut buffer = vec![0; MAX_FRAME_BYTES];
        while self.socket.recv(&mut buffer).is_ok() {}
        while self.end.as_mut().is_some_and(|end| end.receive(&mut self.record).unwrap_or(false)) {}
    }
}

fn bind(path: &std::path::Path) -> UnixDatagram {
    nonblocking(UnixDatagram::bind(path).unwrap())
}

fn nonblocking(socket: UnixDatagram) -> UnixDatagram {
    socket.set_nonblocking(true).unwrap();
    socket
}

fn parse(bytes: &[u8], into: &mut Vec<(u32, String)>) {
    for frame in frames(bytes) {
        let frame = frame.unwrap();
        let message = ToAgent::parse(frame).unwrap().unwrap();
        if !matches!(message, ToAgent::Heartbeat { .. }) {
            into.push((frame.request, format!("{message:?}")));
        }
    }
}
