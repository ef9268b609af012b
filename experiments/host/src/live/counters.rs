//! Counters of the kernel's, of all processors together.

use std::io;

use crate::machine::Machine;
use crate::sample::Sample;
use crate::subject::Fault;

const STAT: &str = "/proc/stat";
const SOFTIRQS: &str = "/proc/softirqs";
const SOFTNET: &str = "/proc/net/softnet_stat";
const US_PER_S: u64 = 1_000_000;
/// The clock ticks of a second, where the system does not say.
const USUAL_HERTZ: i64 = 100;

/// Counts since boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct HostCounters {
    busy_ticks: u64,
    softirq_ticks: u64,
    interrupts: u64,
    context_switches: u64,
    softirqs: u64,
    steered: u64,
    squeezed: u64,
    drops: u64,
}

impl HostCounters {
    /// Reads the counters; those of the interface as its namespace shows it.
    pub(super) fn read(machine: &Machine, interface: &str) -> Result<HostCounters, Fault> {
        let text = |path: &'static str| {
            machine.read(path).map_err(|source: io::Error| Fault::Counter { path, source })
        };
        let mut counters = HostCounters::default();
        counters.of_stat(&text(STAT)?);
        counters.softirqs = net_rx(&text(SOFTIRQS)?);
        counters.of_softnet(&text(SOFTNET)?);
        let dropped = machine.number::<u64>(&format!("/sys/class/net/{interface}/statistics/rx_dropped"));
        counters.drops += dropped.unwrap_or(0);
        Ok(counters)
    }

    /// Parses proc_stat(5): user nice system idle iowait irq softirq steal; stolen time is nobody's.
    fn of_stat(&mut self, text: &str) {
        let numbers = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect::<Vec<u64>>()
        };
        let ticks = numbers("cpu ");
        let at = |n: usize| ticks.get(n).copied().unwrap_or(0);
        self.busy_ticks = at(0) + at(1) + at(2) + at(5) + at(6);
        self.softirq_ticks = at(6);
        self.interrupts = numbers("intr ").first().copied().unwrap_or(0);
        self.context_switches = numbers("ctxt ").first().copied().unwrap_or(0);
    }

    /// Parses a line a processor, in hexadecimal: taken, dropped, squeezed, six that are 0 or old, steered here.
    fn of_softnet(&mut self, text: &str) {
        for line in text.lines() {
            let columns: Vec<u64> =
                line.split_whitespace().map(|word| u64::from_str_radix(word, 16).unwrap_or(0)).collect();
            let at = |n: usize| columns.get(n).copied().unwrap_or(0);
            self.drops += at(1);
            self.squeezed += at(2);
            self.steered += at(9);
        }
    }

    /// Adds to a sample what was counted since `before`.
    pub(super) fn since(self, before: HostCounters, sample: &mut Sample) {
        let clock = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
        let hertz = u64::try_from(clock.unwrap_or(USUAL_HERTZ)).unwrap_or(1).max(1);
        let us = |now: u64, before: u64| now.saturating_sub(before) * US_PER_S / hertz;
        let count = |now: u64, before: u64| now.saturating_sub(before);
        sample.busy_us = us(self.busy_ticks, before.busy_ticks);
        sample.softirq_us = us(self.softirq_ticks, before.softirq_ticks);
        sample.interrupts = count(self.interrupts, before.interrupts);
        sample.context_switches = count(self.context_switches, before.context_switches);
        sample.softirqs = count(self.softirqs, before.softirqs);
        sample.steered = count(self.steered, before.steered);
        sample.squeezed = count(self.squeezed, before.squeezed);
        sample.drops = count(self.drops, before.drops);
    }
}

/// The softirqs for received packets, of all processors.
fn net_rx(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("NET_RX:")).unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let mut counters = HostCounters::default();
        counters.of_stat("cpu  10 1 20 300 4 5 6 7 0 0\ncpu0 1 1 1 1\nintr 900 1 2\nctxt 77\n");
        counters.of_softnet("0000000a 00000001 00000002 0 0 0 0 0 0 00000010 0\n0000000b 00000001 00000000 0 0 0 0 0 0 00000001\n");
        let expected = HostCounters {
            busy_ticks: 42,
            softirq_ticks: 6,
            interrupts: 900,
            context_switches: 77,
            softirqs: 0,
            steered: 17,
            squeezed: 2,
            drops: 2,
        };
        assert_eq!(counters, expected);
        assert_eq!(net_rx("      CPU0  CPU1\n  NET_TX: 1 2\n  NET_RX: 30 12\n"), 42);
        let mut sample = Sample::default();
        counters.since(HostCounters::default(), &mut sample);
        assert_eq!((sample.interrupts, sample.drops, sample.softirq_us % 10_000), (900, 2, 0));
    }

    #[test]
    fn what_is_no_table_counts_nothing() {
        let mut counters = HostCounters::default();
        counters.of_stat("nonsense");
        counters.of_softnet("\nx y z\n");
        assert_eq!((counters, net_rx("NET_RX:")), (HostCounters::default(), 0));
    }

    #[test]
    fn this_machines_counters_are_read() {
        let counters = HostCounters::read(&Machine::this(), "lo").unwrap();
        assert!(counters.busy_ticks > 0 && counters.interrupts > 0 && counters.softirqs > 0, "{counters:?}");
    }
}
