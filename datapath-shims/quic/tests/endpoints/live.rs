//! Transfers over kernel sockets on loopback.

use crate::common::{Agent, Ended, Fetch, engine_config, folder_with, live_engine, loopback, serve};
use ccplane_contract::{Datapath, Mode};
use ccplane_engine::engine;
use ccplane_quic::{Config, ConnectionError, Endpoint, NO_ROOM, UdpWire};
use ccplane_testing::{Mishap, STALL, WATCHED, assert_never_stalled};
use ccplane_wait::Wake;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(240);

/// Turns both ends, on one thread, until every fetch has ended, or `each` returns true.
fn run(
    server: &mut Endpoint<UdpWire>,
    client: &mut Endpoint<UdpWire>,
    folder: &std::path::Path,
    fetches: &mut BTreeMap<ccplane_quic::ConnectionId, Fetch>,
    each: &mut dyn FnMut() -> ControlFlow<()>,
) {
    run_waiting(Duration::ZERO, (server, client), folder, fetches, each);
}

/// Runs as [`run`] does, where each end waits at most `longest` for the other one.
fn run_waiting(
    longest: Duration,
    (server, client): (&mut Endpoint<UdpWire>, &mut Endpoint<UdpWire>),
    folder: &std::path::Path,
    fetches: &mut BTreeMap<ccplane_quic::ConnectionId, Fetch>,
    each: &mut dyn FnMut() -> ControlFlow<()>,
) {
    let mut files = serve(folder);
    let end = Instant::now() + PATIENCE;
    let mut open = fetches.len();
    let mut busy = std::collections::BTreeSet::new();
    while open > 0 {
        assert!(Instant::now() < end, "{open} of {} fetches go on", fetches.len());
        server.turn(longest).unwrap();
        while let Some((id, event)) = server.poll() {
            files.on_event(server, id, &event);
        }
        files.advance(server);
        client.turn(longest).unwrap();
        let mut looks: Vec<_> = std::mem::take(&mut busy).into_iter().map(|id| (id, None)).collect();
        while let Some((id, event)) = client.poll() {
            looks.push((id, Some(event)));
        }
        for (id, event) in looks {
            let fetch = fetches.get_mut(&id).unwrap();
            let ended = fetch.ended.is_some();
            if fetch.on(client, event) {
                busy.insert(id);
            }
            open -= usize::from(!ended && fetch.ended.is_some());
        }
        if each().is_break() {
            break;
        }
    }
}

#[test]
fn every_algorithm_moves_a_file() {
    let (folder, sum) = folder_with(2 << 20);
    for algorithm in ccplane_algs::all() {
        let ((server_engine, handle), (client_engine, _)) = (live_engine(), live_engine());
        let (mut server, mut client, trust) = loopback(server_engine, client_engine, &Config::default());
        let to = ccplane_quic::Wire::local_addr(server.wire());
        let id = client.connect(trust, to, "localhost").unwrap();
        let mut fetches = BTreeMap::from([(id, Fetch::new(id))]);
        let mut agent = Agent::new(handle, algorithm.name());
        let (began, mut steered) = (Instant::now(), false);
        run(&mut server, &mut client, folder.path(), &mut fetches, &mut || {
            agent.turn(began.elapsed().as_micros() as u64);
            steered |= agent.handle.flows().iter().any(|flow| flow.mode == Mode::Program);
            ControlFlow::Continue(())
        });
        let ended = fetches[&id].ended.as_ref().unwrap();
        assert_eq!(ended.sum(), Some(sum), "{}: {ended:?}", algorithm.name());
        assert!(steered, "{} never steered", algorithm.name());
    }
}

#[test]
fn a_file_moves_whichever_way_its_endpoints_wait() {
    let (folder, sum) = folder_with(256 << 10);
    for wake in [Wake::Sleep, Wake::Spin { us: 50 }, Wake::Busy, Wake::Auto { cpu_percent: 10 }] {
        let ((server_engine, _), (client_engine, _)) = (live_engine(), live_engine());
        let config = Config { wake, ..Config::default() };
        let (mut server, mut client, trust) = loopback(server_engine, client_engine, &config);
        let to = ccplane_quic::Wire::local_addr(server.wire());
        let id = client.connect(trust, to, "localhost").unwrap();
        let mut fetches = BTreeMap::from([(id, Fetch::new(id))]);
        let (ends, longest) = ((&mut server, &mut client), Duration::from_millis(1));
        run_waiting(longest, ends, folder.path(), &mut fetches, &mut || ControlFlow::Continue(()));
        assert_eq!(fetches[&id].ended.as_ref().unwrap().sum(), Some(sum), "{wake:?}");
    }
}

#[test]
fn an_idle_endpoint_sleeps_unless_it_is_to_poll() {
    // News of the host's links may end a sleep, but not often.
    const MOST_TURNS: u32 = 10;
    let idle = |wake| {
        let wire = UdpWire::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Endpoint::new(wire, live_engine().0, Config { wake, ..Config::default() })
    };
    for wake in [Wake::Sleep, Wake::Auto { cpu_percent: 10 }] {
        let (mut endpoint, mut turns) = (idle(wake), 0);
        let end = Instant::now() + Duration::from_millis(50);
        while Instant::now() < end {
            endpoint.turn(end.saturating_duration_since(Instant::now())).unwrap();
            turns += 1;
        }
        assert!(turns <= MOST_TURNS, "{wake:?}: {turns} turns");
    }
    for wake in [Wake::Spin { us: u32::MAX }, Wake::Busy] {
        let (mut endpoint, began) = (idle(wake), Instant::now());
        endpoint.turn(PATIENCE).unwrap();
        assert!(began.elapsed() < PATIENCE, "{wake:?}");
    }
}

/// Loopback has no device to poll: what is held here is that such waits end when they are to.
#[test]
fn a_file_moves_between_endpoints_whose_waits_poll_the_device() {
    let (folder, sum) = folder_with(256 << 10);
    let ((server_engine, _), (client_engine, _)) = (live_engine(), live_engine());
    let (server_config, trust) = crate::common::pair();
    let [mut here, mut there] = [(); 2].map(|()| UdpWire::bind("127.0.0.1:0".parse().unwrap()).unwrap());
    if let Err(error) = here.busy_poll(20).and_then(|()| there.busy_poll(20)) {
        return ccplane_testing::skipped("waits that poll the device", error);
    }
    // It goes on so from another address.
    there.rebind("127.0.0.1:0".parse().unwrap()).unwrap();
    let to = ccplane_quic::Wire::local_addr(&here);
    let mut server = Endpoint::new(here, server_engine, Config::default());
    server.serve(Some(server_config));
    let mut client = Endpoint::new(there, client_engine, Config::default());
    let id = client.connect(trust, to, "localhost").unwrap();
    let mut fetches = BTreeMap::from([(id, Fetch::new(id))]);
    let (ends, longest) = ((&mut server, &mut client), Duration::from_millis(1));
    run_waiting(longest, ends, folder.path(), &mut fetches, &mut || ControlFlow::Continue(()));
    assert_eq!(fetches[&id].ended.as_ref().unwrap().sum(), Some(sum));
}

#[test]
fn a_thousand_connections_on_one_endpoint() {
    const CONNECTIONS: usize = 1000;
    let (folder, sum) = folder_with(64 << 10);
    let ((server_engine, handle), (client_engine, _)) = (live_engine(), live_engine());
    let config = Config { idle_timeout: PATIENCE, ..Config::default() };
    let (mut server, mut client, trust) = loopback(server_engine, client_engine, &config);
    let to = ccplane_quic::Wire::local_addr(server.wire());
    let mut fetches = BTreeMap::new();
    for _ in 0..CONNECTIONS {
        let id = client.connect(trust.clone(), to, "localhost").unwrap();
        fetches.insert(id, Fetch::new(id));
    }
    let mut agent = Agent::new(handle, "reno");
    let (began, mut most) = (Instant::now(), 0);
    run(&mut server, &mut client, folder.path(), &mut fetches, &mut || {
        agent.turn(began.elapsed().as_micros() as u64);
        most = most.max(agent.handle.flows().len());
        ControlFlow::Continue(())
    });
    let wrong: Vec<&Ended> =
        fetches.values().filter_map(|f| f.ended.as_ref()).filter(|e| e.sum() != Some(sum)).collect();
    assert!(wrong.is_empty(), "{} failed, such as {:?}", wrong.len(), wrong[0]);
    assert!(most > CONNECTIONS / 2, "at most {most} at once");
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let (folder, sum) = folder_with(1000);
    let ((server_engine, _), (client_engine, _)) = (live_engine(), live_engine());
    let config = Config { max_connections: 3, ..Config::default() };
    let (mut server, mut client, trust) = loopback(server_engine, client_engine, &config);
    let to = ccplane_quic::Wire::local_addr(server.wire());
    let mut fetches = BTreeMap::new();
    for _ in 0..5 {
        let id = client.connect(trust.clone(), to, "localhost").unwrap();
        fetches.insert(id, Fetch::new(id));
    }
    run(&mut server, &mut client, folder.path(), &mut fetches, &mut || ControlFlow::Continue(()));
    let ended = || fetches.values().map(|f| f.ended.as_ref().unwrap());
    assert_eq!(ended().filter(|e| e.sum() == Some(sum)).count(), 3);
    let told = |ended: &Ended| match ended {
        Ended::Lost(ConnectionError::ApplicationClosed(close)) => {
            close.error_code.into_inner() == u64::from(NO_ROOM) && close.reason.starts_with(b"the server has")
        }
        _ => false,
    };
    assert_eq!(ended().filter(|e| told(e)).count(), 2, "{:?}", ended().collect::<Vec<_>>());
}

#[test]
fn buffers_are_what_was_granted() {
    let wire = UdpWire::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let buffers = wire.buffers();
    assert!(buffers.receive_bytes >= 100_000 && buffers.send_bytes >= 100_000, "{buffers:?}");
}

#[test]
fn a_socket_of_both_families_shows_ipv4_as_it_is() {
    let (folder, sum) = folder_with(1000);
    let ((server_engine, mut handle), (client_engine, _)) = (live_engine(), live_engine());
    let (server_config, trust) = crate::common::pair();
    let Ok(wire) = UdpWire::bind("[::]:0".parse().unwrap()) else {
        return ccplane_testing::skipped("a socket of both families", "no IPv6 here");
    };
    let to = ccplane_quic::Wire::local_addr(&wire).port();
    let mut server = Endpoint::new(wire, server_engine, Config::default());
    server.serve(Some(server_config));
    let wire = UdpWire::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut client = Endpoint::new(wire, client_engine, Config::default());
    let id = client.connect(trust, ([127, 0, 0, 1], to).into(), "localhost").unwrap();
    let mut fetches = BTreeMap::from([(id, Fetch::new(id))]);
    let mut remotes = std::collections::BTreeSet::new();
    run(&mut server, &mut client, folder.path(), &mut fetches, &mut || {
        remotes.extend(handle.flows().iter().map(|flow| flow.info.remote.ip()));
        ControlFlow::Continue(())
    });
    assert_eq!(fetches[&id].ended.as_ref().unwrap().sum(), Some(sum));
    assert_eq!(remotes.into_iter().collect::<Vec<_>>(), ["127.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
}

/// The agent falls silent in the midst of a file, is heard again, and is gone for good.
fn an_agent_that_comes_and_goes_costs_no_stall() -> Option<()> {
    /// Pause between two turns of both ends: a turn moves a bounded amount, so the file takes long enough.
    const NAP: Duration = Duration::from_millis(5);
    let folder = tempfile::tempdir().unwrap();
    std::fs::File::create(folder.path().join("file")).unwrap().set_len(1 << 40).unwrap();
    let (server_engine, handle) = engine(engine_config(), Arc::new(|| {}));
    let (mut server, mut client, trust) = loopback(server_engine, live_engine().0, &Config::default());
    let to = ccplane_quic::Wire::local_addr(server.wire());
    let id = client.connect(trust, to, "localhost").unwrap();
    let mut fetches = BTreeMap::from([(id, Fetch::new(id))]);
    let mut agent = Agent::new(handle, "cubic");
    let began = Instant::now();
    let (mut acked, mut mishaps) = (Vec::new(), Vec::<Mishap>::new());
    run(&mut server, &mut client, folder.path(), &mut fetches, &mut || {
        std::thread::sleep(NAP);
        let now_us = began.elapsed().as_micros() as u64;
        let Some(flow) = agent.handle.flows().first().cloned() else {
            agent.turn(now_us);
            return ControlFlow::Continue(());
        };
        acked.push((now_us, flow.transport.bytes_acked));
        let happens = match (mishaps.len(), flow.mode) {
            (0, Mode::Program) if flow.transport.bytes_acked > 1 << 20 => "an agent that falls silent",
            (1, Mode::NativeAgentSilent) => "an agent that is heard again",
            (2, Mode::Program) => "an agent that is gone",
            (0 | 2, _) => {
                agent.turn(now_us);
                return ControlFlow::Continue(());
            }
            (3, _) if now_us > mishaps[2].at_us + WATCHED.as_micros() as u64 => return ControlFlow::Break(()),
            _ => return ControlFlow::Continue(()),
        };
        mishaps.push(Mishap { what: happens.to_owned(), at_us: now_us });
        ControlFlow::Continue(())
    });
    assert_eq!(mishaps.len(), 3, "all of it came too early");
    assert_never_stalled(&acked, &mishaps, STALL);
    Some(())
}

/// Each mishap happens to a new flow.
mod mishaps {
    ccplane_testing::mishaps! {
        2 an_agent_that_comes_and_goes_costs_no_stall,
    }
}
