//! Transfers under failures in virtual time: a file arrives with the right hash, or there is a clear error in time.

use crate::common::{CLIENT, Ended, Link, SERVER, Sizes, World, folder_with};
use ccplane_contract::{Datapath, Mode};
use ccplane_quic::{Config, ConnectionError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1 << 20;
const MINUTES: Duration = Duration::from_secs(300);

fn modes(world: &mut World) -> Vec<Mode> {
    world.agent.as_mut().unwrap().handle.flows().iter().map(|flow| flow.mode).collect()
}

/// A transfer over a good link of which a part has arrived.
fn under_way(folder: &Path) -> World {
    let mut world = World::new(Link::new(20, 10), 1, Some("reno"), folder);
    world.run(MINUTES, |w| w.fetch.done_bytes() > MIB as u64);
    world
}

#[test]
fn a_path_that_loses_repeats_and_reorders() {
    let (folder, sum) = folder_with(MIB);
    for (seed, algorithm) in [(1, Some("reno")), (2, Some("bbr")), (3, Some("copa")), (4, None)] {
        let link = Link { lost: 200, repeated: 100, reordered: 200, ..Link::new(20, 10) };
        let mut world = World::new(link, seed, algorithm, folder.path());
        world.run(MINUTES, |_| false);
        let ended = world.fetch.ended.as_ref().unwrap();
        assert_eq!(ended.sum(), Some(sum), "{algorithm:?} after {:?}: {ended:?}", world.elapsed());
    }
}

#[test]
fn the_same_seed_takes_the_same_time() {
    let (folder, _) = folder_with(MIB);
    let run = || {
        let link = Link { lost: 10, reordered: 50, ..Link::new(20, 10) };
        let mut world = World::new(link, 9, Some("reno"), folder.path());
        world.run(MINUTES, |_| false);
        world.elapsed()
    };
    assert_eq!(run(), run());
}

#[test]
fn a_clean_path_is_used() {
    let (folder, sum) = folder_with(8 * MIB);
    for algorithm in ["reno", "cubic", "bbr", "copa"] {
        let mut world = World::new(Link::new(20, 10), 5, Some(algorithm), folder.path());
        world.run(MINUTES, |_| false);
        assert_eq!(world.fetch.ended.as_ref().unwrap().sum(), Some(sum));
        // 8 MiB take 3.36 s at 20 Mb/s.
        let used = 3.36 / world.elapsed().as_secs_f64();
        assert!(used > 0.75, "{algorithm} used {used:.2} of the link");
    }
}

#[test]
fn the_paths_mtu_shrinks() {
    let (folder, sum) = folder_with(2 * MIB);
    let mut world = World::new(Link::new(20, 10), 1, Some("cubic"), folder.path());
    world.run(MINUTES, |w| w.fetch.done_bytes() > MIB as u64);
    world.net.change(|link| link.mtu_bytes = 1250);
    world.run(MINUTES, |_| false);
    assert_eq!(world.fetch.ended.as_ref().unwrap().sum(), Some(sum));
    assert!(world.elapsed() < Duration::from_secs(30), "{:?}", world.elapsed());
}

#[test]
fn programs_learn_the_paths_mtu() {
    let (folder, sum) = folder_with(6 * MIB);
    let (sizes, link) = (Sizes::default(), Link { mtu_bytes: 1400, ..Link::new(20, 10) });
    let mut world = World::with(link, 1, Some(Arc::new(sizes.clone())), folder.path());
    let last = || sizes.0.lock().unwrap().last().copied();
    world.run(MINUTES, |w| w.fetch.done_bytes() > 2 * MIB as u64);
    let flows = world.agent.as_mut().unwrap().handle.flows();
    assert_eq!(flows[0].info.mss_bytes, 1200, "what the agent was told");
    let found = last().unwrap();
    // The search ends within 20 bytes of the path's MTU.
    assert!((1380..=1400).contains(&found), "discovery: {found}");
    world.net.change(|link| link.mtu_bytes = 1250);
    world.run(MINUTES, |w| w.fetch.done_bytes() > 4 * MIB as u64);
    assert_eq!(last(), Some(1200), "a black hole");
    world.run(MINUTES, |_| false);
    assert_eq!(world.fetch.ended.as_ref().unwrap().sum(), Some(sum));
}

#[test]
fn the_peer_moves_to_another_address() {
    let (folder, sum) = folder_with(4 * MIB);
    // The first is a NAT's rebinding, where the path's state is kept; the second a new network.
    for moved_to in ["10.0.0.2:6000", "10.9.9.9:5000"] {
        let mut world = under_way(folder.path());
        world.client.rebind(world.net.wire(moved_to));
        world.run(MINUTES, |_| false);
        assert_eq!(world.fetch.ended.as_ref().unwrap().sum(), Some(sum), "{moved_to}");
        assert!(world.elapsed() < Duration::from_secs(20), "{moved_to}: {:?}", world.elapsed());
        assert_eq!(modes(&mut world), [Mode::Program], "{moved_to}");
    }
}

#[test]
fn the_agent_goes_silent_and_comes_back() {
    let (folder, sum) = folder_with(8 * MIB);
    let mut world = under_way(folder.path());
    assert_eq!(modes(&mut world), [Mode::Program]);
    let mut silent = world.agent.take();
    world.run(Duration::from_secs(1), |_| false);
    let flows = silent.as_mut().unwrap().handle.flows();
    assert_eq!(flows[0].mode, Mode::NativeAgentSilent);
    world.agent = silent;
    world.run(Duration::from_millis(300), |_| false);
    assert_eq!(modes(&mut world), [Mode::Program], "back");
    world.run(MINUTES, |_| false);
    assert_eq!(world.fetch.ended.as_ref().unwrap().sum(), Some(sum));
}

#[test]
fn a_transfer_ends_well_without_its_agent() {
    let (folder, sum) = folder_with(8 * MIB);
    for algorithm in ["reno", "bbr", "aurora"] {
        let mut world = World::new(Link::new(20, 10), 1, Some(algorithm), folder.path());
        world.run(MINUTES, |w| w.fetch.done_bytes() > MIB as u64);
        drop(world.agent.take());
        world.run(MINUTES, |_| false);
        assert_eq!(world.fetch.ended.as_ref().unwrap().sum(), Some(sum), "{algorithm}");
        assert!(world.elapsed() < Duration::from_secs(15), "{algorithm}: {:?}", world.elapsed());
    }
}

#[test]
fn a_transfer_whose_peer_is_gone_times_out() {
    let (folder, _) = folder_with(4 * MIB);
    let mut world = under_way(folder.path());
    let before = world.elapsed();
    world.net.set_down(&[]);
    world.run(MINUTES, |_| false);
    match world.fetch.ended.as_ref().unwrap() {
        Ended::Lost(ConnectionError::TimedOut) => {}
        other => panic!("{other:?}"),
    }
    let took = world.elapsed() - before;
    let bound = Config::default().missed_within().unwrap();
    assert_eq!(bound, Duration::from_secs(13), "what is documented");
    // The timeout counts from the last packet, which was on its way still.
    assert!(took < bound + Duration::from_millis(100), "{took:?}");
    // The server closes the connection as well.
    let (end, mut now) = (world.net.now() + Duration::from_secs(30), world.net.now());
    while !world.server.is_empty() && now < end {
        now = world.server.deadline().unwrap_or(end).max(now);
        world.server.turn_at(now).unwrap();
        while world.server.poll().is_some() {}
    }
    assert!(world.server.is_empty());
    assert_eq!(modes(&mut world), [], "its flow has ended");
}

/// Returns the time for which a link stays unused after it comes up again, and the time for which no byte
/// arrives over it.
///
/// `told` are the wires that learn that it came up; `keeping` keep what they send meanwhile until then; `lost` is the
/// time after it for which datagrams are lost.
fn after_a_link_is_back(told: &[&str], keeping: &[&str], lost: Duration) -> (Duration, Duration) {
    let (folder, sum) = folder_with(4 * MIB);
    let mut world = under_way(folder.path());
    world.net.set_down(keeping);
    world.run(Duration::from_secs(5), |_| false);
    world.net.set_up(told);
    if !lost.is_zero() {
        world.net.change(|link| link.lost = 1000);
        world.run(lost, |_| false);
        world.net.change(|link| link.lost = 0);
    }
    let (before, up) = (world.fetch.done_bytes(), world.elapsed());
    world.run(MINUTES, |w| w.fetch.done_bytes() > before);
    let arrived = world.elapsed() - up;
    world.run(MINUTES, |_| false);
    assert_eq!(world.fetch.ended.as_ref().unwrap().sum(), Some(sum), "{told:?}");
    assert_eq!(modes(&mut world), [Mode::Program]);
    (world.net.unused_for().unwrap(), arrived)
}

#[test]
fn a_link_that_is_back_is_used_at_once() {
    let ms = Duration::from_millis;
    // quinn by itself sends nothing until its next probe.
    let (unused, _) = after_a_link_is_back(&[], &[], ms(0));
    assert!(unused > ms(500), "{unused:?}");
    for told in [&[SERVER, CLIENT][..], &[SERVER], &[CLIENT]] {
        let (unused, arrived) = after_a_link_is_back(told, &[], ms(0));
        // The agent polls every 10 ms, and time passes from one poll to the next.
        assert!(unused <= ms(10), "{told:?}: {unused:?}");
        // A peer that is not told gets the other's probe, and probes then.
        assert!(arrived < ms(100), "{told:?}: {arrived:?}");
    }
    let (_, arrived) = after_a_link_is_back(&[SERVER], &[], ms(300));
    assert!(arrived < ms(200), "up before it carries anything: {arrived:?}");
    for told in [&[CLIENT][..], &[]] {
        let (_, arrived) = after_a_link_is_back(told, &[CLIENT], ms(0));
        assert!(arrived < ms(100), "{told:?}: the client's old datagrams come first: {arrived:?}");
    }
}

#[test]
fn a_wire_that_takes_no_datagram_any_more() {
    let (folder, _) = folder_with(4 * MIB);
    let mut world = under_way(folder.path());
    let before = world.elapsed();
    world.net.set_full();
    world.run(MINUTES, |_| false);
    let ended = world.fetch.ended.as_ref().unwrap();
    assert!(matches!(ended, Ended::Lost(ConnectionError::TimedOut)), "{ended:?}");
    assert!(world.elapsed() - before < Config::default().missed_within().unwrap());
    let end = world.net.now() + Duration::from_secs(30);
    while !world.server.is_empty() && world.net.now() < end {
        let now = world.net.now() + Duration::from_millis(100);
        world.net.set_now(now);
        world.server.turn_at(now).unwrap();
        while world.server.poll().is_some() {}
    }
    assert!(world.server.is_empty(), "the server keeps the connection");
}

#[test]
fn a_connection_without_any_answer_times_out() {
    let (folder, _) = folder_with(1);
    let mut world = World::new(Link { lost: 1000, ..Link::new(20, 10) }, 1, None, folder.path());
    world.run(MINUTES, |_| false);
    assert!(
        matches!(world.fetch.ended, Some(Ended::Lost(ConnectionError::TimedOut))),
        "{:?}",
        world.fetch.ended
    );
    assert!(world.elapsed() < Duration::from_secs(11), "{:?}", world.elapsed());
}

#[test]
fn a_server_that_is_not_the_pinned_one_is_refused() {
    let (folder, _) = folder_with(1);
    let mut world = World::new(Link::new(20, 10), 1, None, folder.path());
    let (_, of_another) = crate::common::pair();
    let id = world.client.connect(of_another, SERVER.parse().unwrap(), "localhost").unwrap();
    world.fetch = crate::common::Fetch::new(id);
    world.run(MINUTES, |_| false);
    let Some(Ended::Lost(reason)) = &world.fetch.ended else { panic!("{:?}", world.fetch.ended) };
    assert!(reason.to_string().contains("expected was"), "{reason}");
}
