//! Packet buffers in hugepages. Runs where enough are free already: tests do not change the machine.
#![allow(clippy::unwrap_used)]

mod cable;
mod transfer;

use std::fs;

use cable::Cable;
use ccplane_dpdk::Memory;
use ccplane_quic::Config;
use transfer::{Bad, Fetch, eal, folder_with};

/// For both ports.
const MEMORY_MIB: u32 = 128;
const PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// Pages of 2 MiB that nobody has.
fn free_pages() -> u32 {
    fs::read_to_string(format!("{PAGES}/free_hugepages")).map_or(0, |free| free.trim().parse().unwrap())
}

#[test]
fn files_arrive_whole_out_of_hugepages() {
    let (free, wanted) = (free_pages(), MEMORY_MIB / 2);
    if free < wanted {
        return eprintln!(
            "SKIPPED: DPDK in hugepages: {free} of 2 MiB are free, {wanted} needed (echo {wanted} > {PAGES}/nr_hugepages)"
        );
    }
    let Some(cable) = Cable::new("hugepages") else { return };
    eal(Memory::Huge, MEMORY_MIB);
    assert!(free_pages() + wanted <= free, "{free} were free, {} are: DPDK has taken others", free_pages());
    let (folder, sum) = folder_with(8 << 20);
    let (kinds, config, bad) = (["af_packet", "af_packet"], Config::default(), Bad::default());
    let went = Fetch { cable: &cable, kinds, folder: folder.path(), config, bad }.run(|_| {});
    assert_eq!(went.fetched, Ok(sum));
}
