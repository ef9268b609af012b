//! `ccplane quic get` and `put`.

use super::bar::Bar;
use super::steering::{EngineWithAgent, Environment, LearnsAs};
use super::wire;
use super::{NAP, QuicError, interrupted, mbit_per_s, size};
use crate::cli::{QuicClientArgs, QuicGetArgs, QuicPutArgs, QuicSteering};
use crate::commands::output::{print, print_json, shown};
use ccplane_agent::control::ModeName;
use ccplane_agent::failure::Failure;
use ccplane_alg::Algorithm;
use ccplane_quic::files::{Done, FilesError, NewFile, PROTOCOL, Refused, Token, Transfer, TransferStep};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{Config, Connection, ConnectionId, Endpoint, Event, QuicFlowState, Wire};
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The time that the last acknowledgements may take.
const GOODBYE: Duration = Duration::from_millis(100);

/// The record of a transfer that `--json` prints.
#[derive(Serialize)]
struct Moved<'a> {
    name: &'a str,
    server: SocketAddr,
    bytes: u64,
    sha256: String,
    seconds: f64,
    mbit_per_s: f64,
    rtt_ms: Option<f64>,
    lost_packets: Option<u64>,
    mode: Option<ModeName>,
}

pub(super) fn get(args: &QuicGetArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    let output = match &args.output {
        Some(path) => path.clone(),
        None => Path::new(&args.name)
            .file_name()
            .map(PathBuf::from)
            .ok_or_else(|| Failure::input(QuicError::NoName(args.name.clone(), "output")))?,
    };
    let mut client = Client::start(&args.client, None, algorithms)?;
    if output.as_os_str() == "-" {
        let sink = io::stdout();
        let moved = client.run(&args.name, |connection| Transfer::get(connection, &args.name, sink))?;
        // Standard output is the file's.
        return client.end(&args.name, moved, None);
    }
    let failed = |source| Failure::input(QuicError::File { path: output.clone(), source });
    let there = fs::metadata(&output).ok();
    if there.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    if there.is_some_and(|there| !there.is_file()) {
        // A device or a pipe is written to, not replaced.
        let sink = File::options().write(true).open(&output).map_err(failed)?;
        let moved = client.run(&args.name, |connection| Transfer::get(connection, &args.name, sink))?;
        return client.end(&args.name, moved, Some(args.client.steering.json));
    }
    let file = NewFile::at(&output).map_err(failed)?;
    let sink = file.writer()?;
    let moved = client.run(&args.name, |connection| Transfer::get(connection, &args.name, sink))?;
    let failed = |e: Refused| QuicError::File { path: output.clone(), source: e.into() };
    file.keep().map_err(|e| Failure::runtime(failed(e)))?;
    client.end(&args.name, moved, Some(args.client.steering.json))
}

pub(super) fn put(args: &QuicPutArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    let failed = |source| Failure::input(QuicError::File { path: args.file.clone(), source });
    let file = File::open(&args.file).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(Failure::input(QuicError::NotAFile(args.file.clone())));
    }
    let own = args.file.file_name().and_then(|name| name.to_str());
    let name = args
        .name
        .as_deref()
        .or(own)
        .ok_or_else(|| Failure::input(QuicError::NoName(args.file.display().to_string(), "as")))?;
    let token = match &args.token {
        Some(path) => Some(
            Token::load(path)
                .map_err(|source| Failure::input(QuicError::Token { path: path.clone(), source }))?,
        ),
        None => None,
    };
    let identity = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Some(Identity::load(cert, key).map_err(Failure::input)?),
        _ => None,
    };
    let mut client = Client::start(&args.client, identity, algorithms)?;
    let moved = client
        .run(name, |connection| Transfer::put(connection, name, file, metadata.len(), token.as_ref()))?;
    client.end(name, moved, Some(args.client.steering.json))
}

/// A connection to a server.
struct Client {
    steering: EngineWithAgent,
    endpoint: Endpoint<Box<dyn Wire>>,
    id: ConnectionId,
    remote: SocketAddr,
}

/// A client has no use for streams that a server would open.
fn config(args: &QuicSteering) -> Config {
    Config { max_bidi_streams: 0, max_uni_streams: 0, memory_bytes: args.memory, ..Config::default() }
}

/// The result of a transfer.
struct Ended {
    done: Done,
    took: Duration,
    seen: Option<QuicFlowState>,
}

impl Client {
    fn start(
        args: &QuicClientArgs,
        identity: Option<Identity>,
        algorithms: &[Arc<dyn Algorithm>],
    ) -> Result<Client, Failure> {
        let QuicClientArgs { steering: args, trust, server } = args;
        let (host, _) =
            server.rsplit_once(':').ok_or_else(|| Failure::input(QuicError::Address(server.to_owned())))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let unresolved = |source| Failure::input(QuicError::Resolve { server: server.to_owned(), source });
        let remote = server.to_socket_addrs().map_err(unresolved)?.next();
        let remote = remote.ok_or_else(|| Failure::input(QuicError::Address(server.to_owned())))?;
        let trust = match (&trust.fingerprint, &trust.ca) {
            (Some(text), _) => Trust::Pinned(text.parse().map_err(Failure::input)?),
            (None, Some(path)) => Trust::Authorities(path.clone()),
            (None, None) => Trust::Anyone,
        };
        let tls = tls::client_as(trust, identity, PROTOCOL).map_err(Failure::input)?;
        let wire = wire::connect(args, remote)?;
        let around = Environment::read(args, algorithms)?;
        let steering = EngineWithAgent::start(args, LearnsAs::No, algorithms, around)?;
        let config = Config { packets: steering.packets(), ..config(args) };
        let mut endpoint = Endpoint::new(wire, steering.control(), config);
        let id = endpoint.connect(tls, remote, host).map_err(Failure::input)?;
        Ok(Client { steering, endpoint, id, remote })
    }

    /// Connects, and moves one file.
    fn run(
        &mut self,
        name: &str,
        begin: impl FnOnce(&mut Connection<'_>) -> Result<Transfer, FilesError>,
    ) -> Result<Ended, Failure> {
        let failed = |cause| Failure::runtime(QuicError::Transfer { name: name.to_owned(), cause });
        let (stop, mut bar, began) = (interrupted()?, Bar::new(name), Instant::now());
        let (mut begin, mut transfer, mut step) = (Some(begin), None, TransferStep::Waits);
        loop {
            self.endpoint.turn(if step == TransferStep::More { Duration::ZERO } else { NAP })?;
            if stop.load(Relaxed) {
                self.endpoint.close(1, "interrupted");
                self.endpoint.turn(Duration::ZERO)?;
                return Err(Failure::runtime(QuicError::Interrupted));
            }
            self.steering.check_agent();
            while let Some((_, event)) = self.endpoint.poll() {
                match event {
                    Event::Connected => {
                        let connection = self.endpoint.connection(self.id);
                        if let (Some(mut connection), Some(begin)) = (connection, begin.take()) {
                            transfer = Some(begin(&mut connection).map_err(failed)?);
                        }
                    }
                    Event::Closed(reason) => {
                        let remote = self.remote;
                        return Err(Failure::runtime(match transfer {
                            None => QuicError::Connect { remote, reason },
                            Some(_) => QuicError::Lost { remote, reason },
                        }));
                    }
                    Event::Stream(_) => {}
                }
            }
            let Some(transfer) = &mut transfer else { continue };
            let Some(mut connection) = self.endpoint.connection(self.id) else { continue };
            step = transfer.advance(&mut connection).map_err(failed)?;
            bar.draw(transfer.progress());
            if let TransferStep::Done(done) = step {
                return Ok(Ended { done, took: began.elapsed(), seen: connection.flow_state() });
            }
        }
    }

    /// Closes the connection and prints what was moved; nothing with `None`.
    fn end(mut self, name: &str, ended: Ended, json: Option<bool>) -> Result<(), Failure> {
        self.endpoint.close(0, "done");
        let until = Instant::now() + GOODBYE;
        while !self.endpoint.is_empty() && Instant::now() < until {
            self.endpoint.turn(GOODBYE)?;
            while self.endpoint.poll().is_some() {}
        }
        self.steering.stop()?;
        let Ended { done, took, seen } = ended;
        let rate = mbit_per_s(done.bytes, took);
        match json {
            None => Ok(()),
            Some(false) => print(&format!(
                "{}: {} in {:.2} s, {rate:.1} Mb/s, SHA-256 {}\n",
                shown(name),
                size(done.bytes),
                took.as_secs_f64(),
                done.sum
            )),
            Some(true) => print_json(&Moved {
                name,
                server: self.remote,
                bytes: done.bytes,
                sha256: done.sum.to_string(),
                seconds: took.as_secs_f64(),
                mbit_per_s: rate,
                rtt_ms: seen.map(|seen| f64::from(seen.sampled.srtt_us) / 1000.0),
                lost_packets: seen.map(|seen| seen.sampled.lost),
                mode: seen.map(|seen| seen.decided.mode.into()),
            }),
        }
    }
}
