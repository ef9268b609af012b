//! Transfers under failures between DPDK ports: a file arrives with the right hash, or there is a clear error in time.

use std::thread::sleep;
use std::time::Duration;

use crate::cable::{Cable, ip};
use crate::transfer::{Faults, Fetch, Outcome, folder_with};
use ccplane_quic::Config;

/// The kinds of ports that need no NIC.
const KINDS: [&str; 2] = ["af_packet", "af_xdp"];
const MIB: usize = 1 << 20;
/// The idle timeout, and the keep-alive interval of a peer with nothing to send.
const IDLE: Duration = Duration::from_secs(4);
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Downtime of a port that comes back: shorter than the default configuration lets a peer be silent.
const DOWN: Duration = Duration::from_secs(6);
/// Unacknowledged bytes, at most.
const SMALL_WINDOW_BYTES: u32 = 256 << 10;
/// Allowance for a busy machine.
const SLACK: Duration = Duration::from_secs(4);

fn config() -> Config {
    Config { idle_timeout: IDLE, keep_alive: Some(KEEP_ALIVE), ..Config::default() }
}

/// Transfers a file of `bytes` bytes between two ports of a kind; says whether its hash is right.
fn fetch(
    cable: &Cable,
    kind: &str,
    bytes: usize,
    config: Config,
    faults: Faults,
    happens: impl FnOnce(&Cable),
) -> (Outcome, bool) {
    let (folder, sum) = folder_with(bytes);
    let outcome = Fetch { cable, kinds: [kind, kind], folder: folder.path(), config, faults }.run(happens);
    assert!(outcome.in_time && outcome.steered, "{kind}: {outcome:?}");
    let whole = outcome.fetched == Ok(sum);
    (outcome, whole)
}

#[test]
fn a_link_goes_down_and_comes_back() {
    // The kernel asks for a neighbour once a second, and its link may carry nothing at first.
    for (kind, within) in [(KINDS[0], DOWN / 4), (KINDS[1], DOWN / 4), ("kernel", DOWN / 2)] {
        let Some(cable) = Cable::new("back") else { return };
        let (outcome, whole) = fetch(&cable, kind, 64 * MIB, Config::default(), Faults::default(), |cable| {
            ip(&cable.a, "link set veth0 down");
            sleep(DOWN);
            ip(&cable.a, "link set veth0 up");
        });
        assert!(whole, "{kind}: {outcome:?}");
        println!("{kind}: after {DOWN:?} down, {:?} until more arrived", outcome.resumed);
        // QUIC's own probes could take as long again as the link was down.
        assert!(outcome.resumed < within, "{kind}: {outcome:?}");
        assert!(outcome.took > DOWN, "{kind}: {outcome:?}");
    }
}

/// A port goes down for good, at either end or because its interface is gone.
#[test]
fn a_port_that_stays_down_is_told_of_in_time() {
    for (kind, end) in [("af_packet", "link set veth0 down"), ("af_xdp", "link delete veth0")] {
        let Some(cable) = Cable::new("down") else { return };
        let (outcome, _) = fetch(&cable, kind, 64 * MIB, config(), Faults::default(), |cable| {
            ip(&cable.b, end);
        });
        assert_eq!(outcome.fetched, Err("timed out".to_owned()), "{end}");
        assert!(outcome.took > IDLE / 2 && outcome.took < IDLE + KEEP_ALIVE + SLACK, "{end}: {outcome:?}");
        assert!(
            outcome.let_go < IDLE + KEEP_ALIVE + SLACK,
            "{end}: the server keeps the connection: {outcome:?}"
        );
    }
}

#[test]
fn a_path_that_loses_repeats_and_reorders() {
    for kind in KINDS {
        let Some(cable) = Cable::new("faults") else { return };
        let faults = Faults { lost: 200, repeated: 100, held: 200 };
        let (outcome, whole) = fetch(&cable, kind, MIB / 2, Config::default(), faults, |_| {});
        assert!(whole, "{kind}: {outcome:?}");
        assert!(outcome.lost_packets > 50, "{kind}: {outcome:?}");
    }
}

#[test]
fn the_paths_mtu_shrinks() {
    // QUIC's probes follow its last send: on a busy machine a large window takes seconds to fill.
    let config = Config { stream_window_bytes: SMALL_WINDOW_BYTES, ..Config::default() };
    for kind in KINDS {
        let Some(cable) = Cable::new("mtu") else { return };
        let (outcome, whole) = fetch(&cable, kind, 64 * MIB, config.clone(), Faults::default(), |cable| {
            for end in [&cable.a, &cable.b] {
                ip(end, "link set veth0 mtu 1280");
            }
        });
        assert!(whole, "{kind}: {outcome:?}");
        assert!(outcome.black_holes > 0, "{kind}: nothing was too long: {outcome:?}");
        assert!(outcome.resumed < SLACK, "{kind}: {outcome:?}");
    }
}
