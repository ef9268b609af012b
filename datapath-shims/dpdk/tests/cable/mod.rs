//! A veth pair between two network namespaces of the test's own.
#![allow(dead_code)]

use std::process::Command;

use ccplane_emulator::netns::{self, Namespace};

/// Two namespaces, each with one end of a cable: `veth0`, up, without addresses.
pub struct Cable {
    pub a: Namespace,
    pub b: Namespace,
}

impl Cable {
    /// Makes a cable; reports a skip and returns `None` if the machine cannot have one.
    pub fn new(test: &str) -> Option<Cable> {
        if ccplane_testing::lacks(test, netns::missing()) {
            return None;
        }
        for tool in ["ip", "ethtool"] {
            if Command::new(tool).arg("--version").output().is_err() {
                ccplane_testing::skipped(test, format_args!("no {tool}"));
                return None;
            }
        }
        let cable = Cable {
            a: Namespace::create(&format!("{test}-a")).unwrap(),
            b: Namespace::create(&format!("{test}-b")).unwrap(),
        };
        let peer = cable.b.name().unwrap();
        ip(&cable.a, &format!("link add veth0 type veth peer name veth0 netns {peer}"));
        for end in [&cable.a, &cable.b] {
            run(end.enter(Command::new("ethtool").args(["-K", "veth0", "tx", "off"])).unwrap());
            ip(end, "link set veth0 up");
        }
        Some(cable)
    }

    /// Gives the kernel's end its addresses.
    pub fn kernel_at_a(&self) {
        ip(&self.a, "address add 10.9.0.1/24 dev veth0");
        ip(&self.a, "address add fd09::1/64 dev veth0 nodad");
    }
}

/// Runs `ip` in a namespace.
pub fn ip(namespace: &Namespace, args: &str) -> String {
    run(namespace.enter(Command::new("ip").args(args.split(' '))).unwrap())
}

/// The Ethernet address of an end.
pub fn mac(end: &Namespace) -> String {
    let link = ip(end, "-o link show veth0");
    link.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
