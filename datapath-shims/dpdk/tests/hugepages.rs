//! Packet buffers in hugepages, which are made where they are missing and given back.
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

/// A number of pages, out of a file of the kernel's; 0 where there is no such file.
fn pages(file: &str) -> u32 {
    fs::read_to_string(format!("{PAGES}/{file}")).map_or(0, |pages| pages.trim().parse().unwrap())
}

/// Hugepages that were made; giving them back leaves as many as there were. Those in use then are freed with their process.
struct Made {
    before: u32,
}

impl Made {
    /// As many as are missing for `wanted` free ones; why not, where the kernel has no memory in one piece or refuses.
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
    let (kinds, config, bad) = (["af_packet", "af_packet"], Config::default(), Bad::default());
    let went = Fetch { cable: &cable, kinds, folder: folder.path(), config, bad }.run(|_| {});
    assert_eq!(went.fetched, Ok(sum));
}
