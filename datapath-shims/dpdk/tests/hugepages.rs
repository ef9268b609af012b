//! Packet buffers in hugepages, which are reserved where they are missing and released again.
#![allow(clippy::unwrap_used)]

mod cable;
mod transfer;

use std::fs;

use cable::Cable;
use ccplane_dpdk::Memory;
use ccplane_quic::Config;
use transfer::{Faults, Fetch, eal, folder_with};

/// Memory for both ports, MiB.
const MEMORY_MIB: u32 = 128;
const PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// Reads a number of pages from a kernel file; 0 if there is no such file.
fn pages(file: &str) -> u32 {
    fs::read_to_string(format!("{PAGES}/{file}")).map_or(0, |pages| pages.trim().parse().unwrap())
}

/// Reserved hugepages; releasing them restores the former number. Pages in use then are freed with their process.
struct Made {
    before: u32,
}

impl Made {
    /// Reserves as many as are missing for `wanted` free ones; fails if the kernel has no contiguous memory or refuses.
    fn at_least(wanted: u32) -> Result<Made, String> {
        let made = Made { before: pages("nr_hugepages") };
        let missing = wanted.saturating_sub(pages("free_hugepages"));
        if missing > 0 {
            let file = format!("{PAGES}/nr_hugepages");
            fs::write(&file, (made.before + missing).to_string()).map_err(|e| format!("{file}: {e}"))?;
        }
        match pages("free_hugepages") {
            free if free < wanted => Err(format!("{free} of {wanted} pages of 2 MiB are free")),
            _ => Ok(made),
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if pages("nr_hugepages") != self.before {
            let _ = fs::write(format!("{PAGES}/nr_hugepages"), self.before.to_string());
        }
    }
}

#[test]
fn files_arrive_whole_out_of_hugepages() {
    let wanted = MEMORY_MIB / 2;
    let _made = match Made::at_least(wanted) {
        Ok(made) => made,
        Err(why) => return ccplane_testing::skipped("DPDK in hugepages", why),
    };
    let free = pages("free_hugepages");
    let Some(cable) = Cable::new("hugepages") else { return };
    eal(Memory::Huge, MEMORY_MIB);
    let left = pages("free_hugepages");
    assert!(left + wanted <= free, "{free} were free, {left} are: DPDK has taken others");
    let (folder, sum) = folder_with(8 << 20);
    let (kinds, config, faults) = (["af_packet", "af_packet"], Config::default(), Faults::default());
    let outcome = Fetch { cable: &cable, kinds, folder: folder.path(), config, faults }.run(|_| {});
    assert_eq!(outcome.fetched, Ok(sum));
}
