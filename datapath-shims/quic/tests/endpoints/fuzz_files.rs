//! A fuzz target of sequences of file requests; the folder must hold exactly the files that were put whole.
//!
//! Clients ask for files and put them over several streams at once, a piece at a time, out of order. Proofs, hashes and
//! lengths are wrong at times, and clients reset, stop or leave.

use crate::common::{Link, MemoryWire, Net, SERVER};
use ccplane_quic::files::{Folder, PROTOCOL, Quota, Server, Token, Transfer, TransferStep, Writers};
use ccplane_quic::quinn_proto::congestion::NewRenoConfig;
use ccplane_quic::quinn_proto::{ClientConfig, ServerConfig};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{Config, ConnectionId, Control, Dir, Endpoint, Event, Read, StreamId};
use ccplane_testing::fuzz::Fuzz;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of an input that encode one step: its kind, and a number.
const STEP_BYTES: usize = 2;
const MAX_STEPS: usize = 64;
const MAX_STREAMS: usize = 6;
/// The largest file put here and the size of all together, bytes.
const QUOTA: Quota = Quota { max_file_bytes: 300, max_bytes: 1000, max_files: 6 };
/// Content of the file that can be fetched.
const SERVED: &[u8] = b"what was there before";
const TICK: Duration = Duration::from_millis(2);
/// Ticks in which everything that has begun ends, or waits for the client.
const SETTLED_TICKS: u32 = 40;
/// Request lines. `{proof}` is replaced by a wrong proof.
const LINES: [&str; 14] = [
    "get served\n",
    "get none\n",
    "get ../served\n",
    "get .ccplane-partial-0/content\n",
    "put 5 one\n",
    "put 5 two\n",
    "put 0 empty\n",
    "put 100 large\n",
    "put 301 larger\n",
    "put 18446744073709551615 x\n",
    "put-with {proof} 5 one\n",
    "put -1 one\n",
    "put 5 folder\n",
    "put 5 served\n",
];

/// Bytes that one stream has sent and received.
#[derive(Default)]
struct Exchange {
    sent: Vec<u8>,
    received: Vec<u8>,
    finished: bool,
    /// Whether the stream was reset, or its answer is not wanted.
    broken: bool,
}

impl Exchange {
    /// The name and the content, if all of it is a file that may be put.
    fn put(&self) -> Option<(String, &[u8])> {
        let end = self.sent.iter().position(|byte| *byte == b'\n')?;
        let line = std::str::from_utf8(&self.sent[..end]).ok()?;
        let rest =
            line.strip_prefix("put ").or_else(|| Some(line.strip_prefix("put-with ")?.split_once(' ')?.1))?;
        let (length, name) = rest.split_once(' ')?;
        let length: usize = length.parse().ok()?;
        let (content, sum) = self.sent[end + 1..].split_at_checked(length)?;
        (sum == &Sha256::digest(content)[..] && self.finished).then(|| (name.to_owned(), content))
    }
}

/// A server and one client at a time, in virtual time.
struct Scene<'a> {
    net: Net,
    server: Endpoint<MemoryWire>,
    files: Server,
    client: Endpoint<MemoryWire>,
    trusts: &'a [ClientConfig; 2],
    token: &'a Token,
    id: ConnectionId,
    /// Whether the client's certificate is one that may put.
    certified: bool,
    streams: BTreeMap<StreamId, Exchange>,
    /// Files put over all connections.
    put: Vec<(String, Vec<u8>)>,
    /// A transfer that keeps to the rules, beside the others.
    honest: Option<Transfer>,
    /// Outcomes of requests, in order.
    outcomes: Vec<u64>,
}

impl<'a> Scene<'a> {
    fn new(
        folder: &Path,
        server: &ServerConfig,
        trusts: &'a [ClientConfig; 2],
        writers: Writers,
        token: &'a Token,
    ) -> Scene<'a> {
        let net = Net::new(Link::new(1000, 1), 1);
        let control = || Control::Quinn(Arc::new(NewRenoConfig::default()));
        let config = || Config { seed: Some([1; 32]), ..Config::default() };
        let mut endpoint = Endpoint::at(net.wire(SERVER), control(), config(), net.now());
        endpoint.serve(Some(server.clone()));
        let mut client = Endpoint::at(net.wire(crate::common::CLIENT), control(), config(), net.now());
        let id = client.connect(trusts[1].clone(), SERVER.parse().unwrap(), "localhost").unwrap();
        let files = Server::new(Folder::writable(folder, QUOTA).unwrap(), writers);
        let (streams, put, outcomes) = Default::default();
        let mut scene = Scene {
            net,
            server: endpoint,
            files,
            client,
            trusts,
            token,
            id,
            certified: true,
            streams,
            put,
            honest: None,
            outcomes,
        };
        scene.settle();
        scene
    }

    fn connect(&mut self, certified: bool) {
        let trust = self.trusts[usize::from(certified)].clone();
        (self.id, self.certified) =
            (self.client.connect(trust, SERVER.parse().unwrap(), "localhost").unwrap(), certified);
        self.settle();
    }

    fn leave(&mut self) {
        if let Some(mut connection) = self.client.connection(self.id) {
            connection.close(0, "");
        }
        self.settle();
        self.remember();
    }

    /// Records what its streams have put; none of them is there any more.
    fn remember(&mut self) {
        for exchange in std::mem::take(&mut self.streams).into_values() {
            let put =
                exchange.put().filter(|_| self.certified).map(|(name, content)| (name, content.to_vec()));
            let taken = exchange.received == b"ok\n" && exchange.sent.starts_with(b"put");
            assert!(put.is_some() || !taken, "what was taken was not put");
            self.put.extend(put);
        }
        // The connection may have been lost before the answer arrived.
        self.put.extend(self.honest.take().map(|_| ("honest".to_owned(), HONEST.to_vec())));
    }

    fn settle(&mut self) {
        for _ in 0..SETTLED_TICKS {
            self.tick();
        }
        while self.files.keeps() {
            std::thread::yield_now();
            self.tick();
        }
        (0..SETTLED_TICKS).for_each(|_| self.tick());
    }

    fn tick(&mut self) {
        let now = self.net.now() + TICK;
        self.net.set_now(now);
        self.server.turn_at(now).unwrap();
        while let Some((id, event)) = self.server.poll() {
            self.files.on_event(&mut self.server, id, &event);
        }
        while self.files.advance(&mut self.server) {}
        while let Some(served) = self.files.poll() {
            let outcome = served.outcome.as_ref().map_or_else(ccplane_testing::fuzz::shape, |_| 1);
            self.outcomes.push(outcome);
        }
        self.server.turn_at(now).unwrap();
        self.client.turn_at(now).unwrap();
        while let Some((_, event)) = self.client.poll() {
            assert!(!matches!(event, Event::Closed(_)), "nobody is thrown out: {event:?}");
        }
        if let Some(mut connection) = self.client.connection(self.id) {
            for (stream, exchange) in &mut self.streams {
                while let Ok(Read::Data(data)) = connection.read(*stream, 4096) {
                    exchange.received.extend_from_slice(&data);
                }
            }
            if let Some(honest) = &mut self.honest {
                match honest.advance(&mut connection) {
                    Ok(TransferStep::Done(_)) => {
                        self.put.push(("honest".to_owned(), HONEST.to_vec()));
                        self.honest = None;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let words = error.to_string();
                        assert!(words.contains("by the server's quota"), "{words}");
                        self.honest = None;
                    }
                }
            }
        }
        self.client.turn_at(now).unwrap();
    }

    fn step(&mut self, what: u8, number: u8) {
        let nth = usize::from(number) % self.streams.len().max(1);
        let stream = self.streams.keys().nth(nth).copied();
        match (what % 12, stream) {
            (0, _) if self.streams.len() < MAX_STREAMS => {
                let opened = self.client.connection(self.id).and_then(|mut c| c.open(Dir::Bi));
                opened.into_iter().for_each(|stream| drop(self.streams.insert(stream, Exchange::default())));
            }
            (1, Some(stream)) => self.say(stream, line(number / 8).as_bytes()),
            // A part of a line, from its beginning or from within.
            (2, Some(stream)) => {
                let line = line(number);
                let cut = usize::from(number) % line.len();
                self.say(
                    stream,
                    if number.is_multiple_of(2) { &line.as_bytes()[..cut] } else { &line.as_bytes()[cut..] },
                );
            }
            (3, Some(stream)) => self.say(stream, &vec![b'x'; usize::from(number) / 4]),
            // The rest of the promised content, and its hash, right or wrong.
            (4, Some(stream)) => {
                let sent = &self.streams[&stream].sent;
                let Some(end) = sent.iter().position(|byte| *byte == b'\n') else { return };
                let words = String::from_utf8_lossy(&sent[..end]).into_owned();
                let promised: usize = words.split(' ').rev().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
                let mut content = sent[end + 1..].to_vec();
                let more = vec![number; promised.min(512).saturating_sub(content.len())];
                content.extend_from_slice(&more);
                let mut sum = Sha256::digest(&content).to_vec();
                sum[0] ^= u8::from(number % 8 == 7);
                self.say(stream, &[more, sum].concat());
            }
            (5, Some(stream)) => {
                let finished = self.client.connection(self.id).is_some_and(|mut c| c.finish(stream).is_ok());
                self.exchange(stream).finished |= finished;
            }
            (6, Some(stream)) => {
                let _ = self.client.connection(self.id).map(|mut c| c.reset(stream, number.into()));
                self.exchange(stream).broken = true;
            }
            (7, Some(stream)) => {
                let _ = self.client.connection(self.id).map(|mut c| c.stop(stream, number.into()));
                self.exchange(stream).broken = true;
            }
            (8, _) => (0..number % 8).for_each(|_| self.tick()),
            (9, _) if self.honest.is_none() => {
                let Some(mut connection) = self.client.connection(self.id) else { return };
                let length = HONEST.len() as u64;
                self.honest = Transfer::put(&mut connection, "honest", HONEST, length, Some(self.token)).ok();
            }
            (10, _) => {
                self.leave();
                self.connect(number.is_multiple_of(2));
            }
            (11, Some(stream)) => {
                self.say(stream, &[number, b'\n'][..1 + usize::from(number.is_multiple_of(3))])
            }
            _ => {}
        }
    }

    fn exchange(&mut self, stream: StreamId) -> &mut Exchange {
        self.streams.get_mut(&stream).unwrap()
    }

    fn say(&mut self, stream: StreamId, data: &[u8]) {
        let Some(mut connection) = self.client.connection(self.id) else { return };
        // A client need not receive what the server refuses.
        let written = connection.write(stream, data).unwrap_or(0);
        self.exchange(stream).sent.extend_from_slice(&data[..written]);
    }

    /// Checks the state when all has come to rest: each put that got an `ok` is in the folder, and no other file is.
    fn end(&mut self, folder: &Path) {
        self.settle();
        let room = self.outcomes.len();
        for exchange in self.streams.values().filter(|exchange| self.certified && !exchange.broken) {
            if exchange.put().is_some() {
                let received = String::from_utf8_lossy(&exchange.received);
                assert!(
                    received == "ok\n" || received.starts_with("no "),
                    "{received:?} after {room} requests"
                );
            }
        }
        assert!(self.honest.is_none(), "who keeps to the rules is served beside the others");
        self.leave();
        let (mut files, mut bytes) = (0, 0);
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_dir() {
                assert_eq!(name, "folder");
                continue;
            }
            let content = std::fs::read(entry.path()).unwrap();
            (files, bytes) = (files + 1, bytes + content.len() as u64);
            let served = name == "served" && content == SERVED;
            assert!(served || self.put.contains(&(name.clone(), content)), "{name}: nobody put that");
        }
        assert!(files <= QUOTA.max_files && bytes <= QUOTA.max_bytes, "{files} files, {bytes} bytes");
    }
}

const HONEST: &[u8] = b"an honest file";

fn line(number: u8) -> String {
    LINES[usize::from(number) % LINES.len()].replace("{proof}", &"5a".repeat(32))
}

/// Encodes steps as an input: their kinds and numbers.
fn steps(steps: &[(u8, u8)]) -> Vec<u8> {
    steps.iter().flat_map(|(what, number)| [*what, *number]).collect()
}

#[test]
fn the_folder_holds_exactly_the_files_that_were_put_whole() {
    let identity = || Identity::self_signed(&["localhost"]).unwrap();
    let (own, known) = (identity(), identity());
    let pinned = || Trust::Pinned(own.fingerprint());
    let keys = tempfile::tempdir().unwrap();
    let token = Token::load_or_make(&keys.path().join("token")).unwrap();
    let writers = Writers { token: Some(token.clone()), certificates: vec![known.fingerprint()] };
    let trusts =
        [tls::client(pinned(), PROTOCOL).unwrap(), tls::client_as(pinned(), Some(known), PROTOCOL).unwrap()];
    let server = tls::server_that_asks(own, PROTOCOL).unwrap();
    let seeds = [
        // A file put whole, at once; the same in pieces, beside an honest transfer and a get.
        steps(&[(0, 0), (1, 32), (4, 1), (5, 0), (8, 7)]),
        steps(&[
            (0, 0),
            (0, 0),
            (9, 0),
            (2, 4),
            (8, 1),
            (1, 1),
            (8, 3),
            (3, 9),
            (4, 2),
            (5, 1),
            (5, 0),
            (8, 7),
        ]),
        // A wrong hash; a reset in the midst of it; a stop; a client that may not put.
        steps(&[(0, 0), (1, 40), (4, 7), (5, 0), (0, 0), (1, 56), (3, 40), (8, 2), (6, 1), (7, 0)]),
        steps(&[(10, 1), (0, 0), (1, 32), (4, 1), (5, 0), (0, 0), (1, 80), (4, 1), (5, 1), (9, 0), (8, 7)]),
        // The client leaves while the server keeps what it put.
        steps(&[(0, 0), (1, 32), (4, 1), (5, 0), (8, 1), (10, 0), (0, 0), (1, 48), (4, 0), (5, 0)]),
    ];
    let target = Fuzz::new("quic-files-sequences", env!("CARGO_MANIFEST_DIR")).seeds(seeds).part(400);
    target.max_bytes(STEP_BYTES * MAX_STEPS).run(|bytes| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("served"), SERVED).unwrap();
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        let mut scene = Scene::new(folder.path(), &server, &trusts, writers.clone(), &token);
        for step in bytes.chunks_exact(STEP_BYTES) {
            scene.step(step[0], step[1]);
        }
        scene.end(folder.path());
        // The kinds of outcomes, in the order in which each came first, and how many of each there are at most.
        let mut kinds: Vec<u64> = Vec::new();
        scene.outcomes.iter().for_each(|kind| {
            if !kinds.contains(kind) {
                kinds.push(*kind)
            }
        });
        kinds
            .iter()
            .fold(scene.outcomes.len().min(8) as u64, |way, kind| way.wrapping_mul(31).wrapping_add(*kind))
    });
}
