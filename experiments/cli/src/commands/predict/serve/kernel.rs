//! `ccplane predict serve --wire kernel`: an XDP program answers and learns; this process keeps weights and pushes predictors.

use super::{Counted, Folder, Keeper, NAP, SCAN_INTERVAL, Said, say, stop_on_signals};
use crate::cli::PredictServeArgs;
use ccplane_agent::failure::Failure;
use ccplane_predict::{Choice, KEEP_EVERY, Key, Portfolio, Refusal, ServerState};
use ccplane_predict_xdp::{Counter, Options, Random, Target, XdpMode, XdpServer};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

/// The things that a server begins with.
pub(super) struct Start {
    pub(super) choices: Vec<Choice>,
    pub(super) key: Key,
    pub(super) portfolio: Arc<Portfolio>,
    pub(super) state: Option<ServerState>,
}

pub(super) fn serve(
    args: &PredictServeArgs,
    folder: &mut Folder,
    keeper: &Keeper,
    start: Start,
) -> Result<(), Failure> {
    let Start { choices, key, portfolio, state } = start;
    let address = args.listen.ip();
    let addresses = if address.is_unspecified() { Vec::new() } else { vec![address] };
    let target = Target { port: args.listen.port(), addresses };
    let options = Options { target, choices, key, random: Random::Kernel };
    let mut server = XdpServer::load(&options, &portfolio, state.as_ref()).map_err(Failure::runtime)?;
    let stop = stop_on_signals()?;
    let mode = if args.generic { XdpMode::Generic } else { XdpMode::Native };
    let interface = args.interface.as_deref().unwrap_or_default();
    let attached = server.attach(interface, mode).map_err(Failure::runtime)?;
    keeper.keep(&server.state().encode())?;
    let names = |portfolio: &Portfolio| portfolio.names().map(str::to_owned).collect();
    let listening =
        Said::Listening { address: args.listen, predictors: names(&portfolio), epoch: server.epoch() };
    say(&listening, args.json)?;
    let (mut kept, mut next) = (0, Instant::now() + KEEP_EVERY.min(SCAN_INTERVAL));
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(NAP);
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + KEEP_EVERY.min(SCAN_INTERVAL);
        let right = server.count(Counter::Right);
        if right != kept {
            // What cannot be kept now may be the next time; the end says if it cannot.
            match keeper.keep(&server.state().encode()) {
                Ok(()) => kept = right,
                Err(failure) => eprintln!("ccplane: {}", failure.message()),
            }
        }
        let pushed = match folder.read_if_changed() {
            Ok(Some(portfolio)) => {
                server.push(&portfolio).map(|()| Some(portfolio)).map_err(|e| e.to_string())
            }
            Ok(None) => Ok(None),
            Err(failure) => Err(failure.message()),
        };
        match pushed {
            Ok(Some(portfolio)) => say(&Said::Pushed { predictors: names(&portfolio) }, args.json)?,
            Ok(None) => {}
            Err(why) => say(&Said::Refused { why }, args.json)?,
        }
    }
    drop(attached);
    keeper.keep(&server.state().encode())?;
    say(&Said::Ended(counted(&server)), args.json)
}

fn counted(server: &XdpServer) -> Counted {
    let refused = Refusal::ALL.into_iter().map(|reason| (reason.name(), Counter::Refused(reason)));
    let refused = refused.chain([("overtaken", Counter::Overtaken)]);
    let refused = refused.map(|(name, counter)| (name, server.count(counter)));
    Counted {
        requests: server.count(Counter::Requests),
        right: server.count(Counter::Right),
        wrong: server.count(Counter::Wrong),
        refused: refused.filter(|(_, count)| *count > 0).collect(),
    }
}
