//! `ccplane predict serve`: a datapath, and the thread beside it that keeps weights and looks for predictors.

mod kernel;

use super::PredictError;
use super::folder::Folder;
use crate::cli::{PredictChoice, PredictServeArgs, PredictWire};
use crate::commands::output::{print, print_json};
use crate::commands::snapshot::verifying_key;
use ccplane_agent::failure::Failure;
use ccplane_agent::owned;
use ccplane_agent::sequences::Admissions;
#[cfg(feature = "dpdk")]
use ccplane_predict::wire;
use ccplane_predict::xsk::Xsk;
use ccplane_predict::{
    Choice, Key, MAX_STATE_BYTES, Notice, Refusal, Remote, Server, ServerCounters, ServerState, Service,
    sockets, uring,
};
use ccplane_snapshot::{Trust, VerifyingKey};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The file that weights are kept in.
const STATE: &str = "predict.state";
/// Time between two looks at the folder of predictors.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// The longest wait for news of the server.
const NAP: Duration = Duration::from_millis(50);
/// The exit code of a process that a second signal stops.
const SIGNALLED: i32 = 130;

/// The lines that `--json` prints.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Listening { address: SocketAddr, predictors: Vec<String>, epoch: u32 },
    Pushed { predictors: Vec<String> },
    Refused { why: String },
    Ended(Counted),
}

/// Counts of a server's life.
#[derive(Serialize)]
struct Counted {
    requests: u64,
    right: u64,
    wrong: u64,
    /// Datagrams dropped, by reason; those without any are left out.
    refused: BTreeMap<&'static str, u64>,
}

impl Counted {
    fn of(counters: &ServerCounters) -> Counted {
        let refused = Refusal::ALL.into_iter().map(|reason| (reason.name(), counters.refused(reason)));
        Counted {
            requests: counters.requests,
            right: counters.right,
            wrong: counters.wrong,
            refused: refused.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

pub(super) fn serve(args: &PredictServeArgs) -> Result<(), Failure> {
    let keys: Result<Vec<VerifyingKey>, _> = args.signed_by.iter().map(|path| verifying_key(path)).collect();
    let keys = keys.map_err(Failure::input)?;
    let trust = if keys.is_empty() { Trust::Any } else { Trust::SignedBy(keys) };
    let admissions = Admissions::open(trust, args.state.as_deref()).map_err(Failure::input)?;
    let mut folder = Folder::new(&args.folder, admissions, args.allow_older);
    let portfolio = folder.read()?;
    let kept = args.keep.as_deref().map(owned::Folder::open).transpose().map_err(Failure::input)?;
    let state = kept.as_ref().map(read_state).transpose()?.flatten();
    let choices: Vec<Choice> = args.slots.iter().map(choice).collect();
    let random = |e: getrandom::Error| Failure::runtime(PredictError::Random(e.to_string()));
    let key = Key::random().map_err(random)?;
    let keeper = Keeper { folder: kept };
    if args.wire == PredictWire::Kernel {
        let start = kernel::Start { choices, key, portfolio, state };
        return kernel::serve(args, &mut folder, &keeper, start);
    }
    let server = Server::new(portfolio, &choices, key, state.as_ref());
    let server = server.map_err(|e| Failure::input(PredictError::Server(e)))?;
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(random)?;
    // From here on the last server's end counts as sudden, unless this one ends in order.
    keeper.keep(&server.state(ccplane_predict::Ending::NotYet).encode())?;
    let listening = |address| Said::Listening {
        address,
        predictors: server.portfolio().names().map(str::to_owned).collect(),
        epoch: server.epoch(),
    };
    let stop = stop_on_signals()?;
    let mut datapath = open(args)?;
    say(&listening(datapath.address(args)), args.json)?;
    let (mut service, remote) = Service::new(server, seed);
    let (service, said) = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let result = datapath.serve(&mut service, &stop);
            // The other thread has nothing to wait for.
            stop.store(true, Ordering::Relaxed);
            result.map(|()| service)
        });
        let said = attend(args, &mut folder, &keeper, &remote, &stop);
        stop.store(true, Ordering::Relaxed);
        (serving.join(), said)
    });
    let service = service.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (state, counters) =
        service.map_err(|e| Failure::runtime(PredictError::Datapath(e.to_string())))?.end();
    keeper.keep(&state)?;
    said?;
    say(&Said::Ended(Counted::of(&counters)), args.json)
}

/// A flag that the first signal to end sets; a second one ends the process at once.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, SIGNALLED, Arc::clone(&stop))
            .map_err(Failure::runtime)?;
        flag::register(signal, Arc::clone(&stop)).map_err(Failure::runtime)?;
    }
    Ok(stop)
}

/// A datapath that is open.
enum Datapath {
    Socket(UdpSocket),
    Uring(UdpSocket),
    Xdp(Box<Xsk>),
    #[cfg(feature = "dpdk")]
    Dpdk(Box<ccplane_dpdk::DpdkWire>),
}

impl Datapath {
    fn address(&self, args: &PredictServeArgs) -> SocketAddr {
        match self {
            Datapath::Socket(socket) | Datapath::Uring(socket) => socket.local_addr().unwrap_or(args.listen),
            Datapath::Xdp(_) => args.listen,
            #[cfg(feature = "dpdk")]
            Datapath::Dpdk(wire) => ccplane_quic::Wire::local_addr(wire.as_ref()),
        }
    }

    fn serve(&mut self, service: &mut Service, stop: &AtomicBool) -> std::io::Result<()> {
        match self {
            Datapath::Socket(socket) => sockets::serve(socket, service, stop),
            Datapath::Uring(socket) => uring::serve(socket, service, stop),
            Datapath::Xdp(xsk) => xsk.serve(service, stop),
            #[cfg(feature = "dpdk")]
            Datapath::Dpdk(port) => wire::serve(port.as_mut(), service, stop),
        }
    }
}

fn open(args: &PredictServeArgs) -> Result<Datapath, Failure> {
    #[cfg(feature = "dpdk")]
    if let Some(wire) = crate::commands::quic::wire::dpdk(&args.port, args.listen.port())? {
        return Ok(Datapath::Dpdk(Box::new(wire)));
    }
    if let (PredictWire::Xdp, Some(interface)) = (args.wire, &args.interface) {
        let xsk = Xsk::open(interface, args.listen.port());
        return Ok(Datapath::Xdp(Box::new(xsk.map_err(Failure::runtime)?)));
    }
    let socket = UdpSocket::bind(args.listen)
        .map_err(|source| Failure::runtime(PredictError::Listen { at: args.listen, source }))?;
    Ok(match args.wire {
        PredictWire::Uring => Datapath::Uring(socket),
        PredictWire::Socket | PredictWire::Xdp | PredictWire::Kernel => Datapath::Socket(socket),
    })
}

fn choice(choice: &PredictChoice) -> Choice {
    match choice {
        PredictChoice::Exp3 => Choice::Exp3,
        PredictChoice::Exp4 => Choice::Exp4,
    }
}

/// Does the slow work beside the server: it stores weights, looks for new predictors and logs events.
fn attend(
    args: &PredictServeArgs,
    folder: &mut Folder,
    keeper: &Keeper,
    remote: &Remote,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let mut next_scan = Instant::now() + SCAN_INTERVAL;
    while !stop.load(Ordering::Relaxed) {
        match remote.notice(NAP) {
            // What cannot be kept now may be the next time; the end says if it cannot.
            Some(Notice::Learned { state, .. }) => {
                if let Err(failure) = keeper.keep(&state) {
                    eprintln!("ccplane: {}", failure.message());
                }
            }
            Some(Notice::Pushed { names }) => say(&Said::Pushed { predictors: names }, args.json)?,
            Some(Notice::Refused(why)) => say(&Said::Refused { why: why.to_string() }, args.json)?,
            None => {}
        }
        if Instant::now() < next_scan {
            continue;
        }
        next_scan = Instant::now() + SCAN_INTERVAL;
        match folder.read_if_changed() {
            Ok(Some(portfolio)) => {
                remote.push(portfolio);
            }
            Ok(None) => {}
            Err(failure) => say(&Said::Refused { why: failure.message() }, args.json)?,
        }
    }
    Ok(())
}

/// The folder in which weights are kept, if there is one.
struct Keeper {
    folder: Option<owned::Folder>,
}

impl Keeper {
    fn keep(&self, state: &[u8]) -> Result<(), Failure> {
        match &self.folder {
            Some(folder) => folder.replace(STATE, state).map_err(Failure::runtime),
            None => Ok(()),
        }
    }
}

/// The state in a folder; one that cannot be read is said, and begun anew.
fn read_state(folder: &owned::Folder) -> Result<Option<ServerState>, Failure> {
    let Some(content) = folder.read(STATE, MAX_STATE_BYTES).map_err(Failure::input)? else {
        return Ok(None);
    };
    match ServerState::parse(&content) {
        Ok(state) => Ok(Some(state)),
        Err(error) => {
            let file = folder.path().join(STATE);
            eprintln!("ccplane: {}: {error}: weights are learned anew", file.display());
            Ok(None)
        }
    }
}

fn say(said: &Said, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(said);
    }
    print(&match said {
        Said::Listening { address, predictors, epoch } => {
            format!("serving {} on {address}, epoch {epoch}\n", predictors.join(", "))
        }
        Said::Pushed { predictors } => format!("now serving {}\n", predictors.join(", ")),
        Said::Refused { why } => format!("still serving the earlier predictors: {why}\n"),
        Said::Ended(Counted { requests, right, wrong, refused }) => {
            let refused: Vec<String> = refused.iter().map(|(why, count)| format!("{count} {why}")).collect();
            let refused = if refused.is_empty() { "none".to_owned() } else { refused.join(", ") };
            format!("{requests} requests; feedback: {right} right, {wrong} wrong; refused: {refused}\n")
        }
    })
}
