//! `ccplane quic serve`.

use super::steering::{LearnsAs, Steering};
use super::wire;
use super::{NAP, QuicError, interrupted, size};
use crate::agent::privileges;
use crate::cli::{QuicServeArgs, QuicSteering};
use crate::commands::deployments::learner_text;
use crate::commands::{print, print_json};
use crate::confine::{Role, Threads, confine};
use crate::control::LearnerRecord;
use crate::failure::Failure;
use ccplane_alg::Algorithm;
use ccplane_quic::files::{Folder, PROTOCOL, Served, Server};
use ccplane_quic::tls::{self, Identity};
use ccplane_quic::{Config, Endpoint, Wire};
use serde::Serialize;
use std::io::{Write, stderr};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long closed connections may take to say goodbye.
const GOODBYE: Duration = Duration::from_millis(200);

/// The first line of `--json`.
#[derive(Serialize)]
struct Listening {
    address: SocketAddr,
    fingerprint: String,
    writable: bool,
    /// Of the kernel socket; a DPDK port has none.
    receive_buffer_bytes: Option<usize>,
    /// What flows begin with, if it was kept.
    snapshot: Option<String>,
}

/// One line of `--json` for each request.
#[derive(Serialize)]
struct Request {
    remote: SocketAddr,
    request: String,
    bytes: u64,
    sha256: Option<String>,
    error: Option<String>,
}

/// The last line of `--json`, with `--learn`.
#[derive(Serialize)]
struct Learned {
    learners: Vec<LearnerRecord>,
}

/// `ccplane quic serve`
pub(super) fn serve(args: &QuicServeArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    let folder = Folder::open(&args.folder, args.writable)
        .map_err(|source| Failure::input(QuicError::File { path: args.folder.clone(), source }))?;
    let identity = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Identity::load(cert, key),
        _ => Identity::self_signed(&["localhost"]),
    };
    let identity = identity.map_err(Failure::input)?;
    let fingerprint = identity.fingerprint().to_string();
    let tls = tls::server(identity, PROTOCOL).map_err(Failure::input)?;
    let (wire, receive_buffer_bytes) = wire::listen(&args.steering, &args.listen)?;
    let address = wire.local_addr();
    let stop = interrupted()?;
    let mut steering = Steering::start(&args.steering, learns(args), algorithms)?;
    let kept = steering.kept().map(|snapshot| snapshot.to_string());
    let mut endpoint = Endpoint::new(wire, steering.control(), Config::default());
    endpoint.serve(Some(tls));
    let mut said = Said::default();
    said.try_to(if args.steering.json {
        let writable = args.writable;
        print_json(&Listening { address, fingerprint, writable, receive_buffer_bytes, snapshot: kept })
    } else {
        let port = address.port();
        let mode = if args.writable { "to read and write" } else { "to read" };
        let buffer = receive_buffer_bytes.map(|bytes| format!("; receive buffer {}", size(bytes as u64)));
        let kept = kept.map(|snapshot| format!("policies go on from snapshot {snapshot}\n"));
        print(&format!(
            "{} on {address}, {mode}{}\n{}fetch from it with\n  ccplane quic get HOST:{port} NAME \
             --fingerprint {fingerprint}\n",
            args.folder.display(),
            buffer.unwrap_or_default(),
            kept.unwrap_or_default(),
        ))
    })?;
    confine_serving(&args.steering);
    let mut files = Server::new(folder);
    let mut busy = false;
    while !stop.load(Relaxed) {
        endpoint.turn(if busy { Duration::ZERO } else { NAP })?;
        while let Some((id, event)) = endpoint.poll() {
            files.on_event(&mut endpoint, id, &event);
        }
        busy = files.advance(&mut endpoint);
        steering.look();
        while let Some(served) = files.poll() {
            said.say(served, args.steering.json)?;
        }
    }
    endpoint.close(0, "the server stops");
    let end = Instant::now() + GOODBYE;
    while !endpoint.is_empty() && Instant::now() < end {
        endpoint.turn(GOODBYE)?;
        while endpoint.poll().is_some() {}
    }
    let learners = steering.learners();
    steering.stop()?;
    said.learned(learners, args.steering.json)
}

/// Gives up, once its wire, its folder and its agent are there, all capabilities and system calls that serving does without.
fn confine_serving(args: &QuicSteering) {
    privileges::no_way_back();
    let (keeps, role) =
        if wire::is_port(args) { (privileges::PORT, Role::Port) } else { (privileges::NOTHING, Role::Plain) };
    privileges::keep(keeps);
    confine(role, Threads::All);
}

/// As the flags say.
fn learns(args: &QuicServeArgs) -> LearnsAs<'_> {
    match &args.keep {
        Some(path) => LearnsAs::Keeps { path, allow_older: args.allow_older },
        None if args.learn => LearnsAs::Forgets,
        None => LearnsAs::No,
    }
}

/// What it says of itself on standard output: for as long as somebody reads it. Nobody need, for it to serve.
#[derive(Default)]
struct Said {
    in_vain: bool,
}

impl Said {
    fn say(&mut self, served: Served, json: bool) -> Result<(), Failure> {
        if self.in_vain {
            return Ok(());
        }
        let Served { remote, request, bytes, outcome } = served;
        self.try_to(if json {
            let (sha256, error) = match outcome {
                Ok(sum) => (Some(sum.to_string()), None),
                Err(e) => (None, Some(e.to_string())),
            };
            print_json(&Request { remote, request, bytes, sha256, error })
        } else {
            // What a peer sent is shown without what a terminal would obey.
            let request = request.escape_debug();
            match outcome {
                Ok(_) => print(&format!("{remote}: {request}: {}\n", size(bytes))),
                Err(e) => print(&format!("{remote}: {request}: {e}\n")),
            }
        })
    }

    /// At the end.
    fn learned(&mut self, learners: Vec<LearnerRecord>, json: bool) -> Result<(), Failure> {
        if learners.is_empty() || self.in_vain {
            return Ok(());
        }
        self.try_to(if json {
            print_json(&Learned { learners })
        } else {
            print(&learners.iter().map(|learner| learner_text(learner) + "\n").collect::<String>())
        })
    }

    fn try_to(&mut self, printed: Result<(), Failure>) -> Result<(), Failure> {
        match printed {
            Err(Failure::ReaderLeft) => {
                self.in_vain = true;
                // Whoever closed this one as well wants to hear nothing.
                let _ = writeln!(
                    stderr(),
                    "ccplane quic serve: nobody reads standard output; serving on in silence"
                );
                Ok(())
            }
            other => other,
        }
    }
}
