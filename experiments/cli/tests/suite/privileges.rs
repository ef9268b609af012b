//! The capabilities and system calls that an agent keeps, as the kernel sees them.

use crate::common::{Home, wait_for};
use std::fs;
use std::path::Path;

/// The sets by which a thread has capabilities or may get them back (proc_pid_status(5)).
const SETS: [&str; 4] = ["CapEff", "CapPrm", "CapInh", "CapAmb"];

/// The capability sets of a thread.
fn capabilities(task: &Path) -> Option<Vec<u64>> {
    let status = fs::read_to_string(task.join("status")).ok()?;
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    SETS.iter().map(|name| set(name)).collect()
}

/// Every thread's name and sets.
fn threads(pid: u32) -> Vec<(String, Vec<u64>)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let thread = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((name.trim().to_owned(), capabilities(&task.path())?))
    };
    tasks.filter_map(|task| thread(task.ok()?)).collect()
}

#[test]
fn threads_beside_the_kernels_loop_keep_nothing() {
    let own = capabilities(Path::new("/proc/thread-self")).unwrap();
    if own[0] == 0 {
        ccplane_testing::skipped(
            "threads_beside_the_kernels_loop_keep_nothing",
            "it has no capabilities to give up",
        );
        return;
    }
    let home = Home::new("");
    let log = home.path("decisions.jsonl");
    home.configure(&format!("datapath.ebpf.mode = \"off\"\nlearn.decision_log = {log:?}\n"));
    let agent = home.agent();
    // Names have 15 characters (TASK_COMM_LEN, include/linux/sched.h); two threads may share one.
    let expected = ["ccplane", "ccp-peers", "ccp-decisions", "ccp-learn-auror", "ccp-learn-mocc"];
    wait_for("every thread has given up what it had", || {
        let all = threads(agent.pid());
        let is_there = |name: &&str| all.iter().any(|(found, _)| found == name);
        let have_nothing = all.iter().all(|(_, sets)| sets.iter().all(|set| *set == 0));
        (expected.iter().all(is_there) && have_nothing).then_some(())
    });
}
