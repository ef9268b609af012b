//! The machine's processor time, from `/proc/stat`.

use ccplane_results::Cpu;

use crate::error::{Context, Result};

/// Jiffies since boot, all processors together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct CpuTimes {
    user: u64,
    system: u64,
    softirq: u64,
    idle: u64,
}

/// Reads the process's and the machine's processor times.
pub(super) fn now() -> Result<CpuTimes> {
    let text = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    Ok(parse(&text))
}

/// proc_stat(5): user nice system idle iowait irq softirq steal. Stolen time is nobody's.
fn parse(text: &str) -> CpuTimes {
    let line = text.lines().find_map(|l| l.strip_prefix("cpu ")).unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
    let at = |n: usize| fields.get(n).copied().unwrap_or(0);
    CpuTimes { user: at(0) + at(1), system: at(2) + at(5) + at(6), softirq: at(6), idle: at(3) + at(4) }
}

impl CpuTimes {
    /// Returns the processor time since `before`.
    pub(super) fn since(self, before: CpuTimes) -> Cpu {
        let hertz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        let hertz = u64::try_from(hertz).unwrap_or(100).max(1);
        let ms = |now: u64, before: u64| now.saturating_sub(before) * 1000 / hertz;
        Cpu {
            user_ms: ms(self.user, before.user),
            system_ms: ms(self.system, before.system),
            softirq_ms: ms(self.softirq, before.softirq),
            idle_ms: ms(self.idle, before.idle),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_their_places() {
        let text = "cpu  10 1 20 300 4 5 6 7 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let times = parse(text);
        assert_eq!(times, CpuTimes { user: 11, system: 31, softirq: 6, idle: 304 });
        assert_eq!(parse("nonsense"), CpuTimes::default());
        let later = now().unwrap();
        assert!(later.idle + later.user > 0);
        assert_eq!(later.since(later), Cpu::default());
    }
}
