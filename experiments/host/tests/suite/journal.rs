//! Changes of a host's settings and their journal, on a machine whose files lie in a folder.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ccplane_host::{
    CpuSet, Journal, JournalError, Machine, Setting, SettingError, Topology, UndoOutcome, states,
};
use tempfile::TempDir;

/// A host with two nodes of two processors each, and an interface with two queues next to the second node.
struct Lab {
    folder: TempDir,
    machine: Machine,
}

fn file(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

impl Lab {
    fn new() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
            let node = format!("sys/devices/system/node/node{node}");
            file(root, &format!("{node}/cpulist"), cpus);
            file(root, &format!("{node}/meminfo"), "Node 0 MemTotal:  1048576 kB\nNode 0 MemFree: 5 kB\n");
        }
        for cpu in 0..4 {
            let cpu_folder = format!("sys/devices/system/cpu/cpu{cpu}");
            file(root, &format!("{cpu_folder}/topology/physical_package_id"), &format!("{}\n", cpu / 2));
            file(root, &format!("{cpu_folder}/topology/core_id"), &format!("{}\n", cpu % 2));
            file(root, &format!("{cpu_folder}/topology/thread_siblings_list"), &format!("{cpu}\n"));
            file(root, &format!("{cpu_folder}/cache/index3/size"), "32768K\n");
            file(root, &format!("{cpu_folder}/cache/index3/level"), "3\n");
            file(root, &format!("{cpu_folder}/cache/index3/type"), "Unified\n");
            file(root, &format!("{cpu_folder}/cache/index3/shared_cpu_list"), ["0-1", "2-3"][cpu / 2]);
            file(root, &format!("{cpu_folder}/cpufreq/scaling_governor"), "powersave\n");
        }
        let eth0 = "sys/class/net/eth0";
        for (name, text) in [
            ("operstate", "up"),
            ("mtu", "1500"),
            ("threaded", "0"),
            ("gro_flush_timeout", "0"),
            ("napi_defer_hard_irqs", "0"),
            ("device/numa_node", "1"),
            ("device/msi_irqs/40", "msix"),
            ("device/msi_irqs/41", "msix"),
            ("queues/rx-0/rps_cpus", "0"),
            ("queues/rx-0/rps_flow_cnt", "0"),
            ("queues/rx-1/rps_cpus", "0"),
            ("queues/rx-1/rps_flow_cnt", "0"),
            ("queues/tx-0/xps_cpus", "3"),
        ] {
            file(root, &format!("{eth0}/{name}"), &format!("{text}\n"));
        }
        file(
            root,
            "proc/interrupts",
            "        CPU0  CPU1  CPU2  CPU3\n 40:  0  7  0  0  PCI-MSIX-0000:00:04.0  0-edge  eth0-rx-0\n\
             \x20 41:  1  0  0  0  PCI-MSIX-0000:00:04.0  1-edge  eth0-rx-1\nLOC:  1 1 1 1  Local timer interrupts\n",
        );
        file(root, "proc/irq/40/smp_affinity_list", "0-3\n");
        file(root, "proc/irq/41/smp_affinity_list", "0\n");
        file(root, "sys/devices/system/cpu/cpuidle/current_governor", "menu\n");
        file(root, "sys/module/haltpoll/parameters/guest_halt_poll_ns", "200000\n");
        file(root, "proc/sys/net/core/busy_poll", "0\n");
        file(root, "proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t33554432\n");
        file(root, "proc/sys/kernel/random/boot_id", "the first boot\n");
        let coalesce =
            "Coalesce parameters for eth0:\nAdaptive RX: off  TX: off\nrx-usecs:\t3\nrx-frames:\t0\n";
        file(root, "ethtool/eth0 -c", coalesce);
        let machine = Machine::recorded(root);
        Lab { folder, machine }
    }

    fn journal(&self) -> Journal {
        self.try_journal().unwrap()
    }

    fn try_journal(&self) -> Result<Journal, JournalError> {
        Journal::open(&self.machine, &self.folder.path().join("journal"))
    }

    fn values(&self) -> Vec<String> {
        ALL.iter().map(|(name, _)| setting(name).read(&self.machine).unwrap()).collect()
    }

    fn value(&self, name: &str) -> String {
        setting(name).read(&self.machine).unwrap()
    }
}

/// Every kind of setting, with a value that it does not have at first.
const ALL: [(&str, &str); 10] = [
    ("net/eth0/mtu", "9000"),
    ("net/eth0/rx-0/rps_cpus", "0-1,3"),
    ("net/eth0/rx-1/rps_flow_cnt", "4096"),
    ("net/eth0/tx-0/xps_cpus", "2"),
    ("net/eth0/coalesce/rx-usecs", "50"),
    ("irq/40", "2-3"),
    ("cpu/2/governor", "performance"),
    ("sysctl/net.ipv4.tcp_rmem", "4096 262144 67108864"),
    ("cpuidle/governor", "haltpoll"),
    ("haltpoll/guest_halt_poll_ns", "50000"),
];

fn setting(name: &str) -> Setting {
    name.parse().unwrap()
}

fn changes(pairs: &[(&str, &str)]) -> Vec<(Setting, String)> {
    pairs.iter().map(|(name, value)| (setting(name), (*value).to_owned())).collect()
}

fn outcomes(journal: &mut Journal) -> Vec<UndoOutcome> {
    journal.undo(false).unwrap().into_iter().map(|u| u.outcome).collect()
}

#[test]
fn a_host_is_read() {
    let lab = Lab::new();
    let topology = Topology::of(&lab.machine);
    assert_eq!(topology.nodes.iter().map(|n| n.memory_bytes).collect::<Vec<_>>(), [1 << 30, 1 << 30]);
    assert_eq!((topology.node_of(1), topology.node_of(2), topology.node_of(9)), (Some(0), Some(1), None));
    assert_eq!(topology.processors[3].caches[0].shared_by, "2-3".parse::<CpuSet>().unwrap());
    let eth0 = topology.interface("eth0").unwrap();
    assert_eq!(
        (eth0.node, &eth0.interrupts[..], &eth0.receive_queues[..]),
        (Some(1), &[40, 41][..], &[0, 1][..])
    );
    let [first, second] = &topology.interrupts[..] else { panic!("{topology:?}") };
    assert_eq!((first.name.as_str(), first.counts[&1], second.counts[&0]), ("eth0-rx-0", 7, 1));

    let states = states(&lab.machine, &topology, Some(eth0));
    let state = |name: &str| states.iter().find(|s| s.setting == setting(name)).unwrap().clone();
    assert_eq!(state("net/eth0/tx-0/xps_cpus").value.as_deref(), Some("0-1"));
    assert_eq!(state("net/eth0/coalesce/rx-usecs").value.as_deref(), Some("3"));
    assert!(state("net/eth0/ring/rx").why_not.is_some(), "nothing was recorded of rings");
    assert!(states.iter().all(|s| !matches!(s.setting, Setting::Governor(_) | Setting::Sysctl(_))));
}

#[test]
fn idle_processors_are_shown_with_the_whole_host() {
    let lab = Lab::new();
    let topology = Topology::of(&lab.machine);
    let all = states(&lab.machine, &topology, None);
    let state = |name: &str| all.iter().find(|s| s.setting == setting(name)).unwrap();
    assert_eq!(state("cpuidle/governor").value.as_deref(), Some("menu"));
    assert_eq!(state("haltpoll/guest_halt_poll_ns").value.as_deref(), Some("200000"));
    assert_eq!(state("haltpoll/guest_halt_poll_grow").why_not.as_deref(), Some("not on this host"));
    let one = states(&lab.machine, &topology, topology.interface("eth0"));
    assert!(one.iter().all(|s| !matches!(s.setting, Setting::IdleGovernor | Setting::HaltPoll(_))));
}

#[test]
fn every_change_is_taken_back() {
    let lab = Lab::new();
    let before = lab.values();
    let applied = lab.journal().apply(&changes(&ALL)).unwrap();
    assert_eq!(lab.values(), ALL.map(|(_, value)| value));
    assert_eq!(applied.iter().map(|a| a.old.clone()).collect::<Vec<_>>(), before);
    // Another process, and a setting that is changed twice.
    let mut journal = lab.journal();
    journal.apply(&changes(&[("net/eth0/mtu", "4000"), ("irq/40", "2,3")])).unwrap();
    assert_eq!(journal.entries().len(), ALL.len() + 1, "what is as it should be is no change");
    assert_eq!(outcomes(&mut journal), vec![UndoOutcome::Restored; ALL.len() + 1]);
    assert_eq!(lab.values(), before);
    assert!(journal.entries().is_empty() && !lab.folder.path().join("journal/host.jsonl").exists());
}

#[test]
fn a_change_that_is_refused_takes_back_those_before_it() {
    let lab = Lab::new();
    let before = lab.values();
    for last in [("net/eth0/ring/rx", "512"), ("net/eth1/mtu", "9000"), ("irq/40", "first")] {
        let error = lab.journal().apply(&changes(&[ALL[0], ALL[4], last])).unwrap_err();
        let JournalError::Setting { undone, .. } = &error else { panic!("{error}") };
        assert_eq!(undone.len(), 2, "{error}");
        assert_eq!(lab.values(), before);
        assert!(lab.journal().entries().is_empty());
    }
}

#[test]
fn a_change_that_comes_out_otherwise_is_taken_back() {
    let lab = Lab::new();
    // A device that rounds: what is written is not what is read.
    let path = lab.machine.path("/sys/class/net/eth0/mtu");
    fs::remove_file(&path).unwrap();
    symlink("/dev/null", &path).unwrap();
    let error = setting("net/eth0/mtu").write(&lab.machine, "9000").unwrap_err();
    assert!(matches!(error, SettingError::Io { .. } | SettingError::NotTaken { .. }), "{error}");
    assert!(lab.journal().apply(&changes(&[("net/eth0/mtu", "9000")])).is_err());
    assert!(lab.journal().entries().is_empty());
}

#[test]
fn what_somebody_else_has_set_stays_unless_forced() {
    let lab = Lab::new();
    lab.journal().apply(&changes(&[ALL[0]])).unwrap();
    fs::write(lab.machine.path("/sys/class/net/eth0/mtu"), "1400\n").unwrap();
    let mut journal = lab.journal();
    assert_eq!(outcomes(&mut journal), [UndoOutcome::ChangedSince { found: "1400".into() }]);
    assert_eq!(lab.value("net/eth0/mtu"), "1400");

    journal.apply(&changes(&[ALL[0]])).unwrap();
    fs::write(lab.machine.path("/sys/class/net/eth0/mtu"), "1300\n").unwrap();
    assert_eq!(journal.undo(true).unwrap()[0].outcome, UndoOutcome::Restored);
    assert_eq!(lab.value("net/eth0/mtu"), "1400");
}

#[test]
fn a_process_that_ended_at_any_point_leaves_what_can_be_taken_back() {
    let lab = Lab::new();
    let before = lab.values();
    lab.journal().apply(&changes(&ALL)).unwrap();
    let path = lab.folder.path().join("journal/host.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
    let cuts = [0, 1].into_iter().chain(ends.iter().flat_map(|end| [end - 1, *end, end + 1, end + 40]));
    for cut in cuts.filter(|cut| *cut <= text.len()) {
        // The journal as it was after so many bytes, and the changes of its whole lines but the last, or that too.
        let whole = ends.iter().filter(|end| **end <= cut).count();
        for made in [whole.saturating_sub(1), whole] {
            for (n, ((name, new), old)) in ALL.iter().zip(&before).enumerate() {
                setting(name).write(&lab.machine, if n < made { new } else { old }).unwrap();
            }
            fs::write(&path, &text[..cut]).unwrap();
            let undone = outcomes(&mut lab.journal());
            assert_eq!(undone.len(), whole, "after {cut} bytes");
            assert_eq!(lab.values(), before, "after {cut} bytes");
        }
    }
}

#[test]
fn a_boot_has_taken_back_what_was_changed_before_it() {
    let lab = Lab::new();
    lab.journal().apply(&changes(&[ALL[0]])).unwrap();
    fs::write(lab.machine.path("/proc/sys/kernel/random/boot_id"), "the second boot\n").unwrap();
    assert_eq!(outcomes(&mut lab.journal()), [UndoOutcome::OlderBoot]);
    assert_eq!(lab.value("net/eth0/mtu"), "9000");
}

#[test]
fn an_interface_that_is_gone_is_said() {
    let lab = Lab::new();
    lab.journal().apply(&changes(&[ALL[0], ALL[5]])).unwrap();
    fs::remove_dir_all(lab.machine.path("/sys/class/net/eth0")).unwrap();
    let outcomes = outcomes(&mut lab.journal());
    assert!(matches!(&outcomes[..], [UndoOutcome::Restored, UndoOutcome::Gone { .. }]), "{outcomes:?}");
}

#[test]
fn nothing_is_changed_that_is_not_on_the_disk() {
    let lab = Lab::new();
    let before = lab.values();
    let mut journal = lab.journal();
    journal.apply(&changes(&[ALL[5]])).unwrap();
    // A disk without room for the next line.
    let path = lab.folder.path().join("journal/host.jsonl");
    let line = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    symlink("/dev/full", &path).unwrap();
    let error = journal.apply(&changes(&[ALL[0]])).unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    assert_eq!(lab.value("net/eth0/mtu"), "1500");
    drop(journal);
    fs::write(&path, line).unwrap();
    assert_eq!(outcomes(&mut lab.journal()), [UndoOutcome::Restored]);
    assert_eq!(lab.values(), before);
}

#[test]
fn one_process_changes_settings_at_a_time() {
    let lab = Lab::new();
    let _first = lab.journal();
    let error = lab.try_journal().unwrap_err();
    let said = error.to_string();
    assert!(
        matches!(error, JournalError::Held(_)) && said.contains(&std::process::id().to_string()),
        "{said}"
    );
}

#[test]
fn what_is_no_journal_is_refused_with_its_line() {
    let lab = Lab::new();
    lab.journal().apply(&changes(&[ALL[0]])).unwrap();
    let path = lab.folder.path().join("journal/host.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    for bad in
        ["{}\n".to_owned(), text.replace("\"version\":1", "\"version\":2"), text.replace("/mtu", "/address")]
    {
        fs::write(&path, format!("{text}{bad}")).unwrap();
        let error = lab.try_journal().unwrap_err();
        assert!(matches!(error, JournalError::BadLine { line: 2, .. }), "{error}");
        assert_eq!(lab.value("net/eth0/mtu"), "9000");
    }
    fs::write(&path, vec![b' '; ccplane_host::MAX_JOURNAL_BYTES as usize + 1]).unwrap();
    assert!(matches!(lab.try_journal().unwrap_err(), JournalError::Read(_)));
}
