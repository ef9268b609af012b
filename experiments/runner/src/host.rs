//! Describes this machine for a report.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use ccplane_files::Bound;
use ccplane_results::Host;

/// The largest list of the kernel's modules.
const MODULES: Bound = Bound { what: "a list of modules", bytes: 16 << 20 };

/// Sysctls that decide how TCP behaves.
const SYSCTLS: [&str; 12] = [
    "net.core.default_qdisc",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_no_metrics_save",
];

/// Describes this machine now, for results that `command` makes.
#[must_use]
pub fn here(command: String) -> Host {
    Host {
        kernel: kernel(),
        processors: processors(),
        sysctls: SYSCTLS.iter().filter_map(|name| Some(((*name).to_owned(), sysctl(name)?))).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        git_commit: git_commit(),
        command,
        started_at: rfc3339(SystemTime::now()),
    }
}

/// Returns the kernel's name, release and machine: "Linux 6.18.44 x86_64".
fn kernel() -> String {
    nix::sys::utsname::uname().map_or_else(
        |_| String::new(),
        |u| [u.sysname(), u.release(), u.machine()].map(|part| part.to_string_lossy()).join(" "),
    )
}

/// Processors, and the model of the first.
fn processors() -> String {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{count} x {}", model.map_or("unknown", |(_, name)| name))
}

/// A sysctl's value, blanks made single; `None` if there is none of this name.
fn sysctl(name: &str) -> Option<String> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The kernel's own congestion control algorithms.
#[must_use]
pub fn kernel_algorithms() -> Vec<String> {
    let names = sysctl("net.ipv4.tcp_available_congestion_control").unwrap_or_default();
    names.split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Whether the kernel has a congestion control algorithm of this name, or a module of it, which it loads when a socket of root asks.
#[must_use]
pub fn has_kernel_algorithm(name: &str) -> bool {
    if kernel_algorithms().iter().any(|known| known == name) {
        return true;
    }
    let Some(release) = sysctl("kernel.osrelease") else { return false };
    let path = format!("/lib/modules/{release}/modules.dep");
    let modules = ccplane_files::read_text(Path::new(&path), MODULES).unwrap_or_default();
    modules.lines().any(|line| is_module(line, name))
}

/// Whether a line of `modules.dep` is of the module of this congestion control algorithm.
fn is_module(line: &str, name: &str) -> bool {
    let path = line.split_once(':').map_or(line, |(path, _)| path);
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split_once(".ko").is_some_and(|(stem, _)| stem.strip_prefix("tcp_") == Some(name))
}

/// The commit of the checkout that the running program was built in; empty when it lies in none.
fn git_commit() -> String {
    let Ok(program) = std::env::current_exe() else { return String::new() };
    let Some(directory) = program.parent() else { return String::new() };
    let output = Command::new("git")
        .current_dir(directory)
        .args(["describe", "--always", "--dirty", "--exclude=*"])
        .stderr(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => String::new(),
    }
}

/// UTC, to the second: "2026-01-02T03:04:05Z".
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    let s = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (year, month, day) = civil(s / 86_400);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", s / 3600 % 24, s / 60 % 60, s % 60)
}

/// Year, month and day of a day since 1970-01-01 (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn modules_are_told_by_their_files() {
        let line = "kernel/net/ipv4/tcp_vegas.ko.xz: kernel/net/ipv4/tcp_bbr.ko";
        assert!(is_module(line, "vegas") && is_module("kernel/net/ipv4/tcp_nv.ko:", "nv"));
        assert!(!is_module(line, "bbr") && !is_module(line, "vega") && !is_module("", "vegas"));
        assert!(has_kernel_algorithm("reno") && !has_kernel_algorithm("no such name"));
    }

    #[test]
    fn times_are_dates_of_rfc_3339_in_utc() {
        let at = |s| rfc3339(UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_767_323_045), "2026-01-02T03:04:05Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn a_machine_names_its_kernel() {
        let host = here("ccplane demo".into());
        assert!(host.kernel.starts_with("Linux "), "{}", host.kernel);
        assert_eq!(host.command, "ccplane demo");
    }
}
