//! `ccplane predict ask` and `bench`.

use super::{PredictError, images};
use crate::cli::{PredictAskArgs, PredictBenchArgs};
use crate::commands::output::{print, print_json};
use ccplane_agent::failure::Failure;
use ccplane_predict::load::{self, Load, LoadOutcome, Pace};
use ccplane_predict::packet::{MAX_DATAGRAM_BYTES, MESSAGE_BYTES, Reply, write_request};
use serde::Serialize;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// The longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(1);
/// Requests in a row that may stay without reply before a server counts as away.
const MAX_SILENT: u32 = 5;

/// The object that `ask --json` prints.
#[derive(Serialize)]
struct Asked {
    asked: u64,
    answered: u64,
    right: u64,
}

/// The object that `bench --json` prints.
#[derive(Serialize)]
struct LoadOutput {
    sent: u64,
    answered: u64,
    right: u64,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

fn connect(server: SocketAddr) -> Result<UdpSocket, Failure> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).and_then(|socket| socket.connect(server).map(|()| socket));
    socket.map_err(|source| Failure::runtime(PredictError::Ask { server, source }))
}

pub(super) fn ask(args: &PredictAskArgs) -> Result<(), Failure> {
    let (images, _) = images(&args.asked.images)?;
    let test = images.split().test;
    let socket = connect(args.asked.server)?;
    let failed = |source| Failure::runtime(PredictError::Ask { server: args.asked.server, source });
    socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut outcome = Asked { asked: 0, answered: 0, right: 0 };
    let mut silent = 0;
    while outcome.asked < args.count {
        let (pixels, truth) = test.get(outcome.asked as usize % test.len().max(1)).unwrap_or_default();
        let mut request = [0; MAX_DATAGRAM_BYTES];
        let length = write_request(&mut request, args.asked.slot, outcome.asked, pixels);
        let reply = exchange(&socket, request.get(..length).unwrap_or_default(), outcome.asked);
        outcome.asked += 1;
        let Some(reply) = reply.map_err(failed)? else {
            silent += 1;
            if silent == MAX_SILENT {
                return Err(Failure::runtime(PredictError::Silent(args.asked.server)));
            }
            continue;
        };
        silent = 0;
        outcome.answered += 1;
        outcome.right += u64::from(reply.class == truth);
        if !args.no_feedback {
            socket.send(&reply.feedback(truth)).map_err(failed)?;
        }
    }
    if args.json {
        return print_json(&outcome);
    }
    let Asked { asked, answered, right } = outcome;
    let share = 100.0 * right as f64 / answered.max(1) as f64;
    print(&format!("{answered} of {asked} answered, {right} of them right ({share:.1} %)\n"))
}

/// Sends a request and waits for the reply with its id; `None` if none comes.
fn exchange(socket: &UdpSocket, request: &[u8], id: u64) -> io::Result<Option<Reply>> {
    let passing = |error: &io::Error| {
        use io::ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
        matches!(error.kind(), WouldBlock | TimedOut | Interrupted | ConnectionRefused)
    };
    match socket.send(request) {
        Err(error) if !passing(&error) => return Err(error),
        _ => {}
    }
    let mut bytes = [0; MESSAGE_BYTES + 1];
    loop {
        match socket.recv(&mut bytes) {
            Ok(length) => {
                let reply = Reply::parse(bytes.get(..length).unwrap_or_default());
                if let Some(reply) = reply.filter(|reply| reply.id == id) {
                    return Ok(Some(reply));
                }
            }
            Err(error) if passing(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

pub(super) fn bench(args: &PredictBenchArgs) -> Result<(), Failure> {
    let (images, _) = images(&args.asked.images)?;
    let socket = connect(args.asked.server)?;
    let load = Load {
        slot: args.asked.slot,
        pace: args.rate.map_or(Pace::OneOutstanding, |rate| Pace::OpenLoop(f64::from(rate))),
        time: Duration::from_secs_f64(args.seconds),
        feedback: !args.no_feedback,
        spins: args.spin,
    };
    let outcome = load::run(&socket, &images.split().test, &load)
        .map_err(|source| Failure::runtime(PredictError::Ask { server: args.asked.server, source }))?;
    if outcome.answered == 0 {
        return Err(Failure::runtime(PredictError::Silent(args.asked.server)));
    }
    let measured = measured(&outcome);
    if args.json {
        return print_json(&measured);
    }
    let LoadOutput { sent, answered, right, per_second, p50_us, p99_us } = measured;
    print(&format!(
        "{answered} of {sent} answered, {per_second:.0} a second; p50 {p50_us:.1} us, p99 {p99_us:.1} us; \
         {:.1} % right\n",
        100.0 * right as f64 / answered as f64
    ))
}

fn measured(outcome: &LoadOutcome) -> LoadOutput {
    let latency_us = |share| outcome.latency_ns(share).unwrap_or(0) as f64 / 1e3;
    LoadOutput {
        sent: outcome.sent,
        answered: outcome.answered,
        right: outcome.right,
        per_second: outcome.per_second(),
        p50_us: latency_us(0.5),
        p99_us: latency_us(0.99),
    }
}
