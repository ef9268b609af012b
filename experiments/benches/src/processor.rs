//! Processor time: the machine's, and that of a process's threads.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::error::{BenchError, context};

/// Reads the time that all processors together were not idle since boot, interrupts included and stolen time excluded.
pub fn busy() -> Result<Duration, BenchError> {
    let text = context("read the processors' times", fs::read_to_string("/proc/stat"))?;
    let hertz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    let hertz = hertz.and_then(|hertz| u32::try_from(hertz).ok()).unwrap_or(100).max(1);
    let jiffies = busy_jiffies(&text).ok_or_else(|| BenchError::Missing("no `cpu` in /proc/stat".into()))?;
    Ok(Duration::from_secs(jiffies) / hertz)
}

/// proc_stat(5): user nice system idle iowait irq softirq steal.
fn busy_jiffies(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let at = |n: usize| fields.get(n).copied();
    Some(at(0)? + at(1)? + at(2)? + at(5)? + at(6)?)
}

/// The names of the threads of process `pid`, and the processor time of each (proc(5), schedstat).
pub fn of_threads(pid: u32) -> Result<Vec<(String, Duration)>, BenchError> {
    let threads = context("list an agent's threads", fs::read_dir(format!("/proc/{pid}/task")))?;
    // A thread that has just ended is not missed.
    Ok(threads.flatten().filter_map(|thread| of_thread(&thread.path())).collect())
}

/// Reads the processor time of all threads of process `pid` together.
pub fn of_process(pid: u32) -> Result<Duration, BenchError> {
    Ok(of_threads(pid)?.iter().map(|(_, time)| *time).sum())
}

fn of_thread(folder: &Path) -> Option<(String, Duration)> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let ns = read("schedstat")?.split(' ').next()?.parse().ok()?;
    Some((read("comm")?.trim_end().to_owned(), Duration::from_nanos(ns)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stolen_time_are_left_out() {
        let text = "cpu  10 1 20 300 4 5 6 7 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy_jiffies(text), Some(10 + 1 + 20 + 5 + 6));
        assert_eq!(busy_jiffies("cpu0 1 1 1 1 1 1 1 1\n"), None);
        assert!(busy().unwrap() > Duration::ZERO);
    }

    #[test]
    fn this_thread_has_a_time() {
        assert!(of_threads(std::process::id()).unwrap().iter().any(|(_, time)| *time > Duration::ZERO));
    }
}
