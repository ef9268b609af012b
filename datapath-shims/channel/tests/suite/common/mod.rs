//! An agent played by hand, and the datapath that it commands.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccplane_channel::hub::{Hub, HubOptions};
use ccplane_channel::{End, RING_BYTES, RecordBuffer, ServeOptions, Served, Transport, Turn};
use ccplane_contract::fake::FakeDatapath;
use ccplane_contract::registry::Programs;
use ccplane_contract::{Event, FlowId, FlowInfo, ProgramUid};
use ccplane_wire::v2::{MAX_FRAME_BYTES, MINOR, ToAgent, ToDatapath, Wake, Welcome, frames};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, recvmsg, sendmsg};

/// Programs that a toy holds at once.
const MAX_PROGRAMS: usize = 4;

/// A datapath whose table of programs is soon full.
pub fn toy() -> FakeDatapath {
    FakeDatapath { programs: Programs::new(MAX_PROGRAMS), ..FakeDatapath::default() }
}

/// Ends all that a toy has, silently; its heartbeats count on.
pub fn forget(toy: &mut FakeDatapath) {
    *toy = FakeDatapath { heartbeats: toy.heartbeats, ..self::toy() };
}

/// Returns the program of each flow.
pub fn programs_of(toy: &FakeDatapath) -> Vec<(FlowId, Option<ProgramUid>)> {
    toy.flows.iter().map(|(flow, of)| (*flow, of.program)).collect()
}

/// A hub with rings, which is woken in this way.
pub fn hub(path: &Path, wake: ccplane_channel::Wake) -> Hub {
    let heartbeat_timeout = Duration::from_millis(500);
    let options = HubOptions { max_peers: 8, heartbeat_timeout, session: 1, rings: true, wake };
    Hub::bind(path, options).unwrap()
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
    record: RecordBuffer,
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
            record: RecordBuffer::default(),
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

    pub fn turn(&mut self, toy: &mut FakeDatapath) -> Turn {
        self.now_us += 1000;
        self.served.turn(toy, self.now_us)
    }

    /// Takes the datapath on, if it is not; waits until it knows.
    pub fn connect(&mut self, toy: &mut FakeDatapath) {
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

fn bind(path: &Path) -> UnixDatagram {
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
