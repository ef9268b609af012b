//! Files over QUIC over DPDK, under an agent's program: with DPDK at both ends, and with kernel sockets at one.

use crate::cable::Cable;
use crate::transfer::{Faults, Fetch, folder_with, on_queues};
use ccplane_quic::Config;

const FILE_BYTES: usize = 8 << 20;
/// So many connections use only one of two queues once in 2^63 runs.
const MANY: usize = 64;

#[test]
fn files_arrive_whole_over_dpdk_and_between_dpdk_and_the_kernel() {
    let (folder, sum) = folder_with(FILE_BYTES);
    for kinds in
        [["af_packet", "af_packet"], ["af_xdp", "af_xdp"], ["kernel", "af_packet"], ["af_xdp", "kernel"]]
    {
        // DPDK 22.11 gives an interface back to af_xdp only when the process ends: each pair has its own.
        let Some(cable) = Cable::new(&format!("quic-{}-{}", kinds[0], kinds[1])) else { return };
        let (config, faults) = (Config::default(), Faults::default());
        let outcome = Fetch { cable: &cable, kinds, folder: folder.path(), config, faults }.run(|_| {});
        assert_eq!(outcome.fetched, Ok(sum), "{kinds:?}");
        assert!(outcome.steered, "{kinds:?}: no program ran");
    }
}

/// A connection stays on the queue that the kernel's fanout (in place of a NIC's RSS) chooses for it.
#[test]
fn a_port_with_two_queues_serves_on_both() {
    let Some(cable) = Cable::new("quic-queues") else { return };
    let (folder, sum) = folder_with(FILE_BYTES / 8);
    let (served, fetched) = on_queues(&cable, 2, folder.path(), MANY);
    assert!(fetched.iter().all(|fetched| *fetched == Ok(sum)), "{fetched:?}");
    assert_eq!(served, [true, true], "after {} connections", fetched.len());
}
