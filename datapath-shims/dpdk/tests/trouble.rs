//! When things go wrong between DPDK ports: a file arrives with the right hash, or there is a clear error in time.
#![allow(clippy::unwrap_used)]

mod cable;
mod transfer;

use std::thread::sleep;
use std::time::Duration;

use cable::{Cable, ip};
use ccplane_quic::Config;
use transfer::{Bad, Fetch, Went, folder_with};

/// The kinds of ports that need no NIC.
const KINDS: [&str; 2] = ["af_packet", "af_xdp"];
const MIB: usize = 1 << 20;
/// A peer that is silent for so long is gone, and one with nothing to say speaks so often.
const IDLE: Duration = Duration::from_secs(4);
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How long a port is down that comes back: not as long as a peer may be silent.
const DOWN: Duration = Duration::from_secs(6);
/// So much is sent at most that nobody acknowledged.
const SMALL_WINDOW_BYTES: u32 = 256 << 10;
/// What those who share the processors with a test may cost it.
const SLACK: Duration = Duration::from_secs(4);

fn config() -> Config {
    Config { idle_timeout: IDLE, keep_alive: Some(KEEP_ALIVE), ..Config::default() }
}

/// A file of so many bytes between two ports of a kind, and whether its hash is right.
fn fetch(
    cable: &Cable,
    kind: &str,
    bytes: usize,
    config: Config,
    bad: Bad,
    happens: impl FnOnce(&Cable),
) -> (Went, bool) {
    let (folder, sum) = folder_with(bytes);
    let went = Fetch { cable, kinds: [kind, kind], folder: folder.path(), config, bad }.run(happens);
    assert!(went.in_time && went.steered, "{kind}: {went:?}");
    let whole = went.fetched == Ok(sum);
    (went, whole)
}

#[test]
fn a_link_goes_down_and_comes_back() {
    // The kernel asks for a neighbour once a second, and its link may carry nothing at first.
    for (kind, within) in [(KINDS[0], DOWN / 4), (KINDS[1], DOWN / 4), ("kernel", DOWN / 2)] {
        let Some(cable) = Cable::new("back") else { return };
        let (went, whole) = fetch(&cable, kind, 64 * MIB, Config::default(), Bad::default(), |cable| {
            ip(&cable.a, "link set veth0 down");
            sleep(DOWN);
            ip(&cable.a, "link set veth0 up");
        });
        assert!(whole, "{kind}: {went:?}");
        println!("{kind}: after {DOWN:?} down, {:?} until more arrived", went.resumed);
        // QUIC's own probes would be up to as long in coming as it was down.
        assert!(went.resumed < within, "{kind}: {went:?}");
        assert!(went.took > DOWN, "{kind}: {went:?}");
    }
}

/// Down for good, by either end or because there is no interface any more.
#[test]
fn a_port_that_stays_down_is_told_of_in_time() {
    for (kind, end) in [("af_packet", "link set veth0 down"), ("af_xdp", "link delete veth0")] {
        let Some(cable) = Cable::new("down") else { return };
        let (went, _) = fetch(&cable, kind, 64 * MIB, config(), Bad::default(), |cable| {
            ip(&cable.b, end);
        });
        assert_eq!(went.fetched, Err("timed out".to_owned()), "{end}");
        assert!(went.took > IDLE / 2 && went.took < IDLE + KEEP_ALIVE + SLACK, "{end}: {went:?}");
        assert!(went.let_go < IDLE + KEEP_ALIVE + SLACK, "{end}: the server keeps the connection: {went:?}");
    }
}

#[test]
fn a_path_that_loses_repeats_and_reorders() {
    for kind in KINDS {
        let Some(cable) = Cable::new("bad") else { return };
        let bad = Bad { lost: 200, repeated: 100, held: 200 };
        let (went, whole) = fetch(&cable, kind, MIB / 2, Config::default(), bad, |_| {});
        assert!(whole, "{kind}: {went:?}");
        assert!(went.lost_packets > 50, "{kind}: {went:?}");
    }
}

#[test]
fn the_paths_mtu_shrinks() {
    // QUIC's probes follow its last send: where the processors are busy, a large window takes seconds to fill.
    let config = Config { stream_window_bytes: SMALL_WINDOW_BYTES, ..Config::default() };
    for kind in KINDS {
        let Some(cable) = Cable::new("mtu") else { return };
        let (went, whole) = fetch(&cable, kind, 64 * MIB, config.clone(), Bad::default(), |cable| {
            for end in [&cable.a, &cable.b] {
                ip(end, "link set veth0 mtu 1280");
            }
        });
        assert!(whole, "{kind}: {went:?}");
        assert!(went.black_holes > 0, "{kind}: nothing was too long: {went:?}");
        assert!(went.resumed < SLACK, "{kind}: {went:?}");
    }
}
