//! The server that `ccplane quic serve` runs.

use super::steering::{EngineWithAgent, Environment, LearnsAs};
use super::wire;
use super::{NAP, QuicError, interrupted, size};
use crate::cli::{QuicServeArgs, QuicSteering};
use crate::commands::deployments::learner_text;
use crate::commands::output::{print, print_json, shown};
use ccplane_agent::confine::{Role, Threads};
use ccplane_agent::control::LearnerRecord;
use ccplane_agent::failure::Failure;
use ccplane_agent::privileges::{self, Powers, Serves};
use ccplane_alg::Algorithm;
use ccplane_quic::files::{Folder, PROTOCOL, Quota, Served, Server, Token, Writers};
use ccplane_quic::tls::{self, Identity};
use ccplane_quic::{Config, DEVICE_POLL_US, Endpoint, Wire};
use ccplane_wait::Mode;
use serde::Serialize;
use std::fs;
use std::io::{self, Write, stderr};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Files that a client may ask for at once over one connection.
const FILES_AT_ONCE: u32 = 8;
/// The time that a turn may wait while files are on their way to the disk. Their clients wait to hear of it.
const KEEPING_NAP: Duration = Duration::from_millis(2);
/// The time that closed connections may take to say goodbye.
const GOODBYE: Duration = Duration::from_millis(200);

/// The first line of `--json`.
#[derive(Serialize)]
struct Listening {
    address: SocketAddr,
    fingerprint: String,
    writable: bool,
    /// Of the kernel socket; a DPDK port has none.
    receive_buffer_bytes: Option<usize>,
    /// The kept snapshot that flows begin with, if there was one.
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

pub(super) fn serve(args: &QuicServeArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    privileges::no_way_back();
    let writers = writers(args)?;
    let identity = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Identity::load(cert, key),
        _ => Identity::self_signed(&["localhost"]),
    };
    let identity = identity.map_err(Failure::input)?;
    let fingerprint = identity.fingerprint().to_string();
    let tls = match writers.certificates.is_empty() {
        true => tls::server(identity, PROTOCOL),
        false => tls::server_that_asks(identity, PROTOCOL),
    };
    let tls = tls.map_err(Failure::input)?;
    let around = Environment::read(&args.steering, algorithms)?;
    let user = user(args, &around)?;
    let powers = powers(&args.steering);
    if wire::is_port(&args.steering) {
        // Libraries of a port start threads, which have what this one has then.
        let to_change = if user.is_some() { privileges::TO_CHANGE_USER } else { privileges::NOTHING };
        privileges::keep(&[powers.capabilities, to_change].concat());
    }
    let (mut wire, receive_buffer_bytes) = wire::listen(&args.steering, &args.listen, args.busy_poll)?;
    if args.wake.mode() != Mode::Sleep {
        // Another user may not ask for it.
        wire.poll_device(DEVICE_POLL_US);
    }
    let address = wire.local_addr();
    let stop = interrupted()?;
    // The next user may not pass through where a relative path or a link leads. One that is not there is refused below.
    let folder = fs::canonicalize(&args.folder).unwrap_or_else(|_| args.folder.clone());
    if let Some(name) = &user {
        privileges::become_user(name, powers.capabilities).map_err(Failure::input)?;
    }
    let folder = open(args, &folder)
        .map_err(|source| Failure::input(QuicError::File { path: args.folder.clone(), source }))?;
    let mut steering = EngineWithAgent::start(&args.steering, learns(args), algorithms, around)?;
    let kept = steering.kept().map(|snapshot| snapshot.to_string());
    let config = Config { packets: steering.packets(), ..config(args) };
    let mut endpoint = Endpoint::new(wire, steering.control(), config);
    endpoint.serve(Some(tls));
    // Every file on its way takes a descriptor.
    if let Err(error) = ccplane_files::raise_descriptor_limit() {
        tracing::debug!(%error, "the limit of descriptors stays");
    }
    powers.keep_only(Threads::All);
    let mut said = RequestLog::default();
    said.try_to(if args.steering.json {
        let writable = args.writable;
        print_json(&Listening { address, fingerprint, writable, receive_buffer_bytes, snapshot: kept })
    } else {
        print(&greeting(args, address, &fingerprint, receive_buffer_bytes, kept))
    })?;
    let mut files = Server::new(folder, writers);
    let mut busy = false;
    while !stop.load(Relaxed) {
        endpoint.turn(match (busy, files.keeps()) {
            (true, _) => Duration::ZERO,
            (false, true) => KEEPING_NAP,
            (false, false) => NAP,
        })?;
        while let Some((id, event)) = endpoint.poll() {
            files.on_event(&mut endpoint, id, &event);
        }
        busy = files.advance(&mut endpoint);
        steering.check_agent();
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

/// The user to become: the one that was named, or else one with fewer rights than root, where the server can do with these.
fn user(args: &QuicServeArgs, around: &Environment) -> Result<Option<String>, Failure> {
    if args.user.is_some() {
        return Ok(args.user.clone());
    }
    let serves = Serves {
        folder: &args.folder,
        is_writable: args.writable,
        elsewhere: around.opened_at_start(&args.steering, learns(args))?,
        needs_root: (args.follow_cores.then_some("--follow-cores"))
            .or_else(|| around.needs_root(&args.steering, learns(args))),
    };
    let all_may_read =
        || Folder::open(&args.folder).and_then(|folder| folder.all_may_read()).unwrap_or(false);
    Ok(privileges::server_user(&serves, all_may_read))
}

/// The capabilities and system calls that the server keeps once its wire, its folder and its agent are there.
fn powers(args: &QuicSteering) -> Powers {
    let (capabilities, role) =
        if wire::is_port(args) { (privileges::PORT, Role::Port) } else { (privileges::NOTHING, Role::Plain) };
    Powers { capabilities, role: Some(role) }
}

/// The folder, and how much may be put into it.
fn open(args: &QuicServeArgs, folder: &Path) -> io::Result<Folder> {
    if !args.writable {
        return Folder::open(folder);
    }
    let quota = Quota { max_file_bytes: args.max_file, max_bytes: args.quota, max_files: args.quota_files };
    Folder::writable(folder, quota)
}

/// The clients that may put files.
fn writers(args: &QuicServeArgs) -> Result<Writers, Failure> {
    let token = match &args.token {
        Some(path) => {
            let failed = |source| Failure::input(QuicError::Token { path: path.clone(), source });
            Some(Token::load_or_make(path).map_err(failed)?)
        }
        None => None,
    };
    let certificates: Result<_, _> = args.writer.iter().map(|text| text.parse()).collect();
    Ok(Writers { token, certificates: certificates.map_err(Failure::input)? })
}

/// A client opens a stream for each file, and sends nothing else.
fn config(args: &QuicServeArgs) -> Config {
    Config {
        max_bidi_streams: FILES_AT_ONCE,
        max_uni_streams: 0,
        memory_bytes: args.steering.memory,
        wake: args.wake,
        follow_cores: args.follow_cores,
        ..Config::default()
    }
}

/// Writes the greeting: the address and the folder, and the commands by which to fetch from it and send to
/// it.
fn greeting(
    args: &QuicServeArgs,
    address: SocketAddr,
    fingerprint: &str,
    receive_buffer_bytes: Option<usize>,
    kept: Option<String>,
) -> String {
    let host = if address.ip().is_unspecified() { "HOST".to_owned() } else { address.ip().to_string() };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let at = format!("{host}:{}", address.port());
    let buffer = receive_buffer_bytes.map(|bytes| format!("; receive buffer {}", size(bytes as u64)));
    let mode = if args.writable { "for all to read, for those you authorise to write" } else { "to read" };
    let mut text = format!("{} on {address}, {mode}{}\n", args.folder.display(), buffer.unwrap_or_default());
    if let Some(kept) = kept {
        text += &format!("policies go on from snapshot {kept}\n");
    }
    text += &format!("fetch from it with\n  ccplane quic get {at} NAME --fingerprint {fingerprint}\n");
    if let Some(token) = &args.token {
        let token = token.display();
        text += &format!(
            "send to it with a copy of {token}, as mode 0600, which authorises whoever has it\n  ccplane quic put {at} FILE \
             --fingerprint {fingerprint} --token {token}\n"
        );
    }
    if !args.writer.is_empty() {
        text += &format!(
            "send to it with a certificate whose fingerprint was given with --writer\n  ccplane quic put {at} FILE \
             --fingerprint {fingerprint} --cert CERT --key KEY\n"
        );
    }
    text
}

/// Returns the server's way of learning, by its flags.
fn learns(args: &QuicServeArgs) -> LearnsAs<'_> {
    match &args.keep {
        Some(path) => LearnsAs::Keeps { path, allow_older: args.allow_older },
        None if args.learn => LearnsAs::Forgets,
        None => LearnsAs::No,
    }
}

/// The server's messages on standard output. It goes on serving when nobody reads them any more.
#[derive(Default)]
struct RequestLog {
    reader_left: bool,
}

impl RequestLog {
    fn say(&mut self, served: Served, json: bool) -> Result<(), Failure> {
        if self.reader_left {
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
            let request = shown(&request);
            match outcome {
                Ok(_) => print(&format!("{remote}: {request}: {}\n", size(bytes))),
                Err(e) => print(&format!("{remote}: {request}: {}\n", shown(&e.to_string()))),
            }
        })
    }

    /// Prints what each learner has done, when the server ends.
    fn learned(&mut self, learners: Vec<LearnerRecord>, json: bool) -> Result<(), Failure> {
        if learners.is_empty() || self.reader_left {
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
                self.reader_left = true;
                // A closed standard error is no failure.
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
