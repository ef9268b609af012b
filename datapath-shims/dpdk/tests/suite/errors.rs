//! Errors name their remedy. Needs neither root nor hugepages.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

/// The user ID of nobody, who has no privileges.
const NOBODY: u32 = 65_534;

fn echo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpdk-echo"));
    command.args(["--address", "10.0.0.1/24", "--port"]).args(args);
    command
}

/// Runs the echo for a second as nobody if we may become that user, else as ourselves.
fn unprivileged(args: &[&str]) -> Output {
    let mut command = echo(args);
    command.args(["serve", "--seconds", "1"]);
    if nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.output().unwrap()
}

fn refused(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    text
}

#[test]
fn a_missing_interface_is_named() {
    for port in ["af_packet:ccp-nonesuch", "af_xdp:ccp-nonesuch"] {
        let text = refused(&unprivileged(&[port]));
        assert!(text.contains("no network interface ccp-nonesuch"), "{text}");
    }
}

#[test]
fn missing_privileges_are_named() {
    for (port, needs) in [
        ("af_packet:lo", "CAP_NET_RAW"),
        ("af_xdp:lo", "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF"),
        ("tap:ccp0", "CAP_NET_ADMIN"),
    ] {
        let text = refused(&unprivileged(&[port]));
        assert!(text.contains(&format!("port {port} needs {needs}: run as root")), "{text}");
    }
}

#[test]
fn what_a_port_cannot_have_or_be_is_named() {
    for (args, said) in [
        // A driver, with its package.
        (&["vdev:net_nonesuch"][..], &["no driver net_nonesuch", "librte-net-nonesuch"][..]),
        // A device that is not there, and what it would have to be bound to.
        (&["pci:0000:ff:1f.7"][..], &["no port at PCI address 0000:ff:1f.7", "vfio-pci"][..]),
        (&["vdev:net_null", "--queues", "4096"][..], &["queues, not 4096"][..]),
        // A driver's own words are passed on.
        (
            &["vdev:net_pcap,rx_pcap=/nonexistent.pcap"][..],
            &["port vdev:net_pcap,rx_pcap=/nonexistent.pcap cannot be made"][..],
        ),
        // Addresses that contradict each other.
        (&["vdev:net_null", "--gateway", "192.0.2.1"][..], &["gateway 192.0.2.1 is in none"][..]),
    ] {
        let text = refused(&unprivileged(args));
        assert!(said.iter().all(|words| text.contains(words)), "{args:?}: {text}");
    }
}

#[test]
fn missing_hugepages_are_told() {
    /// More memory than any machine has, MiB.
    const WANTED_MIB: &str = "1000000000";
    let text = refused(&unprivileged(&["vdev:net_null", "--hugepages", "--memory-mib", WANTED_MIB]));
    let said = format!("{WANTED_MIB} MiB of hugepages, and ");
    assert!(
        text.contains(&said) && text.contains(" MiB are free") && text.contains("nr_hugepages"),
        "{text}"
    );
}

/// The null driver brings empty frames as fast as they are taken: all are counted, none does harm.
#[test]
fn garbage_is_dropped_and_a_port_closes() {
    let output = unprivileged(&["vdev:net_null"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("received: 0") && text.contains("MTU 1500"), "{text}");
}
