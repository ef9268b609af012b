//! Fuzz target: whatever a datapath in another process writes into its rings, the agent goes on and the others are received.
//!
//! `cargo test` runs it for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-channel --test suite fuzz_hub::whatever_a_datapath_writes_into_its_rings_the_others_are_received` runs
//! it guided by coverage.

use crate::common::{hub, info, toy};
use ccplane_channel::hub::{Change, Hub, PeerId};
use ccplane_channel::ring::{Writer, words_of};
use ccplane_channel::{Clock, RING_BYTES, ServeOptions, Served, SharedWords, Wake};
use ccplane_contract::fake::FakeDatapath;
use ccplane_contract::{Datapath, FlowId};
use ccplane_testing::fuzz::Fuzz;
use ccplane_wire::v2::{Features, Hello, ToAgent, ToDatapath, frames};
use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A datapath that writes what it likes.
struct Rogue {
    memory: Arc<SharedWords>,
    writer: Writer,
    _socket: UnixDatagram,
}

/// The agent's side, and a datapath that keeps to the rules.
struct World {
    hub: Hub,
    good: (Served, FakeDatapath, PeerId),
    joined: Vec<PeerId>,
    dir: tempfile::TempDir,
    rogues: u64,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ccp.sock");
        let mut hub = hub(&path, Wake::Sleep);
        let (mut served, mut toy) = (Served::connect(&path, ServeOptions::new("good").unwrap()), toy());
        served.turn(&mut toy, 0);
        let mut changes = Vec::new();
        hub.receive(10, 0, &mut changes);
        let [Change::Joined(id)] = changes[..] else { panic!("{changes:?}") };
        assert!(served.turn(&mut toy, 0).connected && served.has_ring());
        World { hub, good: (served, toy, id), joined: vec![id], dir, rogues: 0 }
    }

    fn rogue(&mut self) -> Rogue {
        self.rogues += 1;
        let path = self.dir.path().join(format!("rogue-{}", self.rogues));
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.connect(self.dir.path().join("ccp.sock")).unwrap();
        let hello = Hello {
            minors: 0..=1,
            clock: Clock::Own,
            features: Features::FULL_LANGUAGE.with(Features::POLICY).with(Features::RING),
            now_us: 0,
            max_programs: 4,
            max_flows: 100,
            kind: "quic",
            name: "rogue",
            slots: (&[]).into(),
        };
        let mut bytes = Vec::new();
        ToAgent::Hello(hello).encode(0, &mut bytes).unwrap();
        socket.send(&bytes).unwrap();
        let mut changes = Vec::new();
        self.hub.receive(10, u64::MAX, &mut changes);
        let [Change::Joined(id)] = changes[..] else { panic!("{changes:?}") };
        self.joined.push(id);
        let fds = welcome(&socket);
        let memory = Arc::new(SharedWords::open(&fds[0], 2 * words_of(RING_BYTES)).unwrap());
        let writer = Writer::new(Arc::clone(&memory), 0, RING_BYTES).unwrap();
        Rogue { memory, writer, _socket: socket }
    }

    /// Takes a turn as the agent's loop does.
    fn turn(&mut self) {
        let mut changes = Vec::new();
        self.hub.receive(100, u64::MAX, &mut changes);
        for id in &self.joined {
            if let Some(peer) = self.hub.peer(*id) {
                peer.poll(10_000, &mut Vec::new());
                peer.flows();
                peer.slots();
                peer.heartbeat();
            }
        }
        for change in changes {
            let Change::Left(id) = change else { panic!("{change:?}") };
            assert_ne!(id, self.good.2);
            self.hub.remove(id);
            self.joined.retain(|joined| *joined != id);
        }
        let (served, toy, _) = &mut self.good;
        served.turn(toy, 1);
    }
}

/// Receives the WELCOME and returns its file descriptors.
fn welcome(socket: &UnixDatagram) -> Vec<OwnedFd> {
    let mut buffer = [0; 1000];
    let mut ancillary = cmsg_space!([i32; 3]);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut ancillary), MsgFlags::MSG_DONTWAIT);
    let got = got.unwrap();
    let bytes = got.bytes;
    let fds = got.cmsgs().unwrap().find_map(|message| match message {
        ControlMessageOwned::ScmRights(fds) => Some(fds),
        _ => None,
    });
    // SAFETY: the kernel has just made them for this process, and nothing else owns them.
    let fds = fds.unwrap().into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect();
    let frame = frames(&buffer[..bytes]).next().unwrap().unwrap();
    assert!(matches!(ToDatapath::parse(frame), Ok(Some(ToDatapath::Welcome(_)))));
    fds
}

/// An operation of a rogue: its kind, a place, a value, and the body of a frame.
type Op = (u8, u16, u64, Vec<u8>);

/// Has a rogue do all that, and leave; the others are received as before. Returns how its frames were counted.
fn play<'o>(world: &mut World, ops: impl IntoIterator<Item = &'o Op>) -> u64 {
    let malformed = world.hub.malformed();
    let mut rogue = world.rogue();
    let mut bytes = Vec::new();
    ToAgent::Created { flow: FlowId(1), info: info() }.encode(0, &mut bytes).unwrap();
    rogue.writer.write(&bytes).unwrap();
    for (what, at, value, body) in ops {
        let words = rogue.memory.words();
        match what % 5 {
            0 => words[usize::from(*at) % words.len()].store(*value, Ordering::Relaxed),
            // The lines of either ring, and its first records.
            1 => {
                let ring = usize::from(*at % 2) * words_of(RING_BYTES);
                words[ring + usize::from(*at) % 64].store(value % 100, Ordering::Relaxed);
            }
            // A frame of any type.
            2 | 3 => {
                let len = (16 + body.len()) as u32;
                let header =
                    [&b"CCPL"[..], &[2, 1, *at as u8 % 0x90, 0], &len.to_le_bytes(), &[0; 4]].concat();
                let _ = rogue.writer.write(&[header, body.clone()].concat());
            }
            _ => world.turn(),
        }
    }
    let before = world.good.1.heartbeats;
    world.turn();
    world.turn();
    assert!(world.good.1.heartbeats > before, "the good one is received");
    let left = u64::from(world.joined.len() == 1);
    // It goes, and its place with it.
    drop(rogue);
    world.turn();
    world.turn();
    assert_eq!(world.joined.len(), 1, "it is gone");
    (world.hub.malformed() - malformed).min(7) * 2 + left
}

#[test]
fn whatever_a_datapath_writes_into_its_rings_the_others_are_received() {
    let mut world = World::new();
    bolero::check!().with_type::<Vec<Op>>().for_each(|ops| {
        play(&mut world, ops);
    });
}

/// Bytes of a step: what, where in two, a value in four, and how often that is the body of a frame.
const STEP_BYTES: usize = 8;
/// Steps of one rogue, at most.
const MAX_STEPS: usize = 24;

#[test]
fn whatever_is_drawn_into_a_datapaths_rings_the_others_are_received() {
    let mut world = World::new();
    let seeds = [
        vec![4, 0, 0, 0, 0, 0, 0, 0],
        [[2, 1, 0, 0, 0, 0, 0, 2], [4, 0, 0, 0, 0, 0, 0, 0], [3, 0x81, 0, 1, 0, 0, 0, 4]].concat(),
        [[1, 0, 0, 9, 0, 0, 0, 0], [0, 7, 1, 0xff, 0xff, 0xff, 0xff, 0], [4, 0, 0, 0, 0, 0, 0, 0]].concat(),
    ];
    let target = Fuzz::new("hub-sequences", env!("CARGO_MANIFEST_DIR")).seeds(seeds);
    target.max_bytes(STEP_BYTES * MAX_STEPS).part(400).run(|bytes| {
        let steps = bytes.as_chunks::<STEP_BYTES>().0;
        let ops: Vec<Op> = steps
            .iter()
            .map(|[what, a, b, value @ .., times]| {
                let number = value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
                // Every bit of a word can be set.
                let word = if times % 2 == 1 { number << 32 | number } else { number };
                (*what, u16::from_le_bytes([*a, *b]), word, value.repeat(usize::from(times % 16)))
            })
            .collect();
        let kinds = ops.iter().fold(0, |kinds, op| kinds | 1 << (op.0 % 5));
        play(&mut world, &ops) * 32 + kinds
    });
}
