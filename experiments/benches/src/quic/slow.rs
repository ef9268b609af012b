//! `quic.memory.slow-readers`: a server's memory while a thousand clients read nothing of the files that they asked for.

use std::fs;
use std::io::{BufRead, BufReader, sink};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccplane_quic::files::{PROTOCOL, Transfer};
use ccplane_quic::quinn_proto::congestion::NewRenoConfig;
use ccplane_quic::tls::{self, Trust};
use ccplane_quic::{Config, Control, Endpoint, Event, MEMORY_BYTES, Tune, UdpWire};
use serde::Deserialize;

use super::flow::socket;
use super::missing;
use crate::error::{BenchError, context};
use crate::figure::Figure;
use crate::proof::Proof;

const READERS: usize = 1000;
const FILE_BYTES: u64 = 100_000_000;
/// Each client's receive window, bytes: the server sends so much before the client reads.
const WINDOW_BYTES: u32 = 64 << 20;
/// The server's memory is watched for so long after the last client has asked.
const HELD_FOR: Duration = Duration::from_secs(5);
/// The time that clients have to ask, and the server to free their memory.
const PATIENCE: Duration = Duration::from_secs(60);
/// Memory counts as given back where no more than so many times that of before is left.
const GIVEN_BACK: f64 = 2.0;
const TURN: Duration = Duration::from_millis(10);
const RUNS: usize = 3;

/// The first line that the server prints.
#[derive(Deserialize)]
struct Listening {
    address: SocketAddr,
    fingerprint: String,
}

/// `ccplane quic serve` in a process of its own, killed when dropped.
struct Served {
    child: Child,
    listening: Listening,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures the server's memory under clients that do not read.
pub fn figures() -> Result<Vec<Figure>, BenchError> {
    let folder = context("make a folder", tempfile::tempdir())?;
    let large = context("make a file", fs::File::create(folder.path().join("large")))?;
    context("make a file", large.set_len(FILE_BYTES))?;
    let (mut held, mut kept, mut asked) = (Vec::new(), Vec::new(), 0);
    for _ in 0..RUNS {
        let served = serve(folder.path())?;
        let before = resident_bytes(&served)?;
        let mut readers = ask(&served.listening)?;
        asked += readers.len() as u64;
        let (mut most, began) = (0.0_f64, Instant::now());
        // They acknowledge nothing meanwhile.
        while began.elapsed() < HELD_FOR {
            std::thread::sleep(TURN);
            most = most.max(resident_bytes(&served)?);
        }
        held.push((most, MEMORY_BYTES as f64));
        readers.close(0, "done");
        let (mut left, began) = (most, Instant::now());
        while left > GIVEN_BACK * before && began.elapsed() < PATIENCE {
            turn(&mut readers)?;
            left = resident_bytes(&served)?;
        }
        kept.push((left, before));
    }
    let proof = Proof::exactly("clients that were served", asked, (RUNS * READERS) as u64)?;
    Ok(vec![
        Figure::paired("quic.memory.slow-readers", "B", "the memory that it was given (--memory)", &held, &proof).with_note(
            format!("resident in a server's process at most, with {READERS} clients that read nothing of {FILE_BYTES} bytes; \
                     wanted: at most 1 x"),
        ),
        Figure::paired("quic.memory.returned", "B", "before the first of them", &kept, &proof)
            .with_note(format!("resident in the same process within {PATIENCE:?} of their end")),
    ])
}

fn serve(folder: &std::path::Path) -> Result<Served, BenchError> {
    let mut command = Command::new(context("find this program", std::env::current_exe())?);
    command.args(["quic", "serve", "--listen", "127.0.0.1:0", "--algorithm", "reno", "--json"]).arg(folder);
    let mut child = context(
        "start a server",
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn(),
    )?;
    let mut line = String::new();
    if let Some(said) = child.stdout.take() {
        context("hear the server", BufReader::new(said).read_line(&mut line))?;
    }
    let listening = serde_json::from_str(&line).map_err(missing)?;
    Ok(Served { child, listening })
}

/// Connects everyone, and has each ask.
fn ask(to: &Listening) -> Result<Endpoint<UdpWire>, BenchError> {
    let trust = Trust::Pinned(to.fingerprint.parse().map_err(missing)?);
    let trust = tls::client(trust, PROTOCOL).map_err(missing)?;
    let control = Control::Quinn(Arc::new(NewRenoConfig::default()));
    // They let the server send a lot.
    let tune: Tune = Arc::new(|transport| {
        transport.receive_window(WINDOW_BYTES.into());
    });
    let config = Config { memory_bytes: u64::MAX, tune: Some(tune), ..Config::default() };
    let mut readers = Endpoint::new(socket()?, control, config);
    for _ in 0..READERS {
        readers.connect(trust.clone(), to.address, "localhost").map_err(missing)?;
    }
    let (mut asked, began) = (0, Instant::now());
    while asked < READERS {
        if began.elapsed() > PATIENCE {
            return Err(missing(format!("only {asked} of {READERS} clients are served")));
        }
        context("turn", readers.turn(TURN))?;
        while let Some((id, event)) = readers.poll() {
            match event {
                Event::Connected => {
                    let Some(mut connection) = readers.connection(id) else { continue };
                    let mut get = Transfer::get(&mut connection, "large", sink()).map_err(missing)?;
                    get.advance(&mut connection).map_err(missing)?;
                    asked += 1;
                }
                Event::Closed(reason) => return Err(missing(reason)),
                Event::Stream(_) => {}
            }
        }
    }
    Ok(readers)
}

/// They live, and read nothing.
fn turn(readers: &mut Endpoint<UdpWire>) -> Result<(), BenchError> {
    context("turn", readers.turn(TURN))?;
    while let Some((_, event)) = readers.poll() {
        if let Event::Closed(reason) = event {
            return Err(missing(reason));
        }
    }
    Ok(())
}

fn resident_bytes(served: &Served) -> Result<f64, BenchError> {
    let path = format!("/proc/{}/status", served.child.id());
    let status = context("read a process's status", fs::read_to_string(path))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.trim().parse().ok());
    let kib: f64 = kib.ok_or_else(|| missing("/proc says nothing of resident memory"))?;
    Ok(kib * 1024.0)
}
