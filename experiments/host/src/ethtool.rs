//! Values that ethtool(8) shows of an interface and changes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use ccplane_files::{Bound, ReadError};
use serde::Serialize;

use crate::machine::Machine;

/// The size limit of a recorded answer.
const RECORDED: Bound = Bound { what: "an answer of ethtool's", bytes: 64 << 10 };

/// A group of settings that ethtool shows and changes together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// When the device interrupts: after so many microseconds or frames.
    Coalesce,
    /// The number of descriptors in the device's rings.
    Ring,
    /// The number of queues.
    Channels,
    /// The work on segments and checksums that the device, or the stack in its place, does.
    Offload,
}

/// The values of one group, by the names under which ethtool changes them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Values {
    /// The values in force; a name that the device does not know is missing.
    pub current: BTreeMap<String, String>,
    /// The largest values, where the device says them.
    pub largest: BTreeMap<String, String>,
    /// Names of values that the driver holds fixed.
    pub fixed: Vec<String>,
}

/// Reasons why ethtool gives no values or changes none.
#[derive(Debug, thiserror::Error)]
pub enum EthtoolError {
    /// The program could not be run.
    #[error("ethtool could not be run: {0}")]
    Run(io::Error),
    /// The device, the kernel or ethtool refuses.
    #[error("ethtool {flag} {interface}: {said}")]
    Refused {
        interface: String,
        /// The option that was given.
        flag: &'static str,
        /// The last line that ethtool wrote.
        said: String,
    },
}

impl Group {
    /// Every group of settings.
    pub const ALL: [Group; 4] = [Group::Coalesce, Group::Ring, Group::Channels, Group::Offload];

    /// Returns the word that names the group in a setting.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Coalesce => "coalesce",
            Group::Ring => "ring",
            Group::Channels => "channels",
            Group::Offload => "offload",
        }
    }

    /// Returns the option that shows the group.
    pub const fn show(self) -> &'static str {
        match self {
            Group::Coalesce => "-c",
            Group::Ring => "-g",
            Group::Channels => "-l",
            Group::Offload => "-k",
        }
    }

    /// Returns the option that changes the group.
    pub const fn change(self) -> &'static str {
        match self {
            Group::Coalesce => "-C",
            Group::Ring => "-G",
            Group::Channels => "-L",
            Group::Offload => "-K",
        }
    }

    /// Returns the names that a user may change, each with the words under which ethtool shows it.
    pub const fn names(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Group::Coalesce => &[
                ("adaptive-rx", "Adaptive RX"),
                ("adaptive-tx", "TX"),
                ("rx-usecs", "rx-usecs"),
                ("rx-frames", "rx-frames"),
                ("tx-usecs", "tx-usecs"),
                ("tx-frames", "tx-frames"),
            ],
            Group::Ring => &[("rx", "RX"), ("tx", "TX")],
            Group::Channels => &[("rx", "RX"), ("tx", "TX"), ("combined", "Combined")],
            Group::Offload => &[
                ("gro", "generic-receive-offload"),
                ("gso", "generic-segmentation-offload"),
                ("tso", "tcp-segmentation-offload"),
                ("lro", "large-receive-offload"),
                ("rx", "rx-checksumming"),
                ("tx", "tx-checksumming"),
                ("rx-gro-hw", "rx-gro-hw"),
            ],
        }
    }
}

/// Asks for the values of a group.
///
/// # Errors
/// ethtool is not there, or the device has no such group.
pub(crate) fn values(machine: &Machine, interface: &str, group: Group) -> Result<Values, EthtoolError> {
    let flag = group.show();
    let text = match machine.recorded_ethtool(interface, flag) {
        Some(file) => recorded(&file)?,
        None => run(interface, flag, &[])?,
    };
    Ok(parse(group, &text))
}

/// Changes one value of a group.
///
/// # Errors
/// ethtool is not there, or the device or the kernel refuses.
pub(crate) fn change(
    machine: &Machine,
    interface: &str,
    group: Group,
    name: &str,
    value: &str,
) -> Result<(), EthtoolError> {
    let Some(file) = machine.recorded_ethtool(interface, group.show()) else {
        return run(interface, group.change(), &[name, value]).map(drop);
    };
    let shown = group.names().iter().find(|(n, _)| *n == name).map_or(name, |(_, shown)| shown);
    let text = recorded(&file)?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    // The values in force come after the largest ones.
    if let Some(line) = lines.iter_mut().rev().find(|line| line.trim().starts_with(&format!("{shown}:"))) {
        *line = format!("{shown}: {value}");
    }
    std::fs::write(file, lines.join("\n") + "\n").map_err(EthtoolError::Run)
}

fn recorded(file: &Path) -> Result<String, EthtoolError> {
    ccplane_files::read_text(file, RECORDED).map_err(|error| {
        EthtoolError::Run(match error {
            ReadError::Unreadable { source, .. } => source,
            error => io::Error::other(error.reason()),
        })
    })
}

fn run(interface: &str, flag: &'static str, more: &[&str]) -> Result<String, EthtoolError> {
    // So that its words are those that are parsed here.
    let mut command = Command::new("ethtool");
    command.env("LC_ALL", "C").arg(flag).arg(interface).args(more).stdin(Stdio::null());
    let output = command.output().map_err(EthtoolError::Run)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last =
        said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed and said nothing");
    Err(EthtoolError::Refused { interface: interface.to_owned(), flag, said: last.trim().to_owned() })
}

/// Reads the text in which ethtool shows a group.
fn parse(group: Group, text: &str) -> Values {
    let mut values = Values::default();
    let mut is_largest = false;
    for line in text.lines() {
        let line = line.trim();
        match line {
            "Pre-set maximums:" => is_largest = true,
            "Current hardware settings:" => is_largest = false,
            _ => {}
        }
        // Two in one line: "Adaptive RX: off  TX: on".
        let parts = line.split("  ").map(str::trim).filter(|part| !part.is_empty());
        for (shown, value) in parts.filter_map(|part| part.split_once(':')) {
            let Some((name, _)) = group.names().iter().find(|(_, words)| *words == shown.trim()) else {
                continue;
            };
            let mut words = value.split_whitespace();
            let Some(value) = words.next().filter(|value| *value != "n/a") else { continue };
            let into = if is_largest { &mut values.largest } else { &mut values.current };
            into.insert((*name).to_owned(), value.to_owned());
            if words.any(|word| word == "[fixed]") {
                values.fixed.push((*name).to_owned());
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(values: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
        values.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    #[test]
    fn what_ethtool_shows_is_read() {
        let text = "Coalesce parameters for eth0:\nAdaptive RX: off  TX: on\nstats-block-usecs:\tn/a\n\nrx-usecs:\t3\n\
                    rx-frames:\tn/a\ntx-usecs:\t8\n";
        let values = parse(Group::Coalesce, text);
        let current = [("adaptive-rx", "off"), ("adaptive-tx", "on"), ("rx-usecs", "3"), ("tx-usecs", "8")];
        assert_eq!(pairs(&values.current), current);

        let text = "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t4096\nRX Mini:\tn/a\nTX:\t\t4096\n\
                    Current hardware settings:\nRX:\t\t512\nRX Mini:\tn/a\nTX:\t\t256\n";
        let values = parse(Group::Ring, text);
        assert_eq!(pairs(&values.largest), [("rx", "4096"), ("tx", "4096")]);
        assert_eq!(pairs(&values.current), [("rx", "512"), ("tx", "256")]);

        let text = "Features for eth0:\nrx-checksumming: on [fixed]\n\ttx-checksum-ipv4: off [fixed]\n\
                    generic-receive-offload: on\nlarge-receive-offload: off [fixed]\n";
        let values = parse(Group::Offload, text);
        assert_eq!(pairs(&values.current), [("gro", "on"), ("lro", "off"), ("rx", "on")]);
        assert_eq!(values.fixed, ["rx", "lro"]);
    }

    #[test]
    fn recorded_answers_are_read_within_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine::recorded(folder.path());
        let file = machine.recorded_ethtool("eth0", Group::Ring.show()).unwrap();
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "RX:\t\t512\n").unwrap();
        assert_eq!(pairs(&values(&machine, "eth0", Group::Ring).unwrap().current), [("rx", "512")]);
        std::fs::File::options().write(true).open(&file).unwrap().set_len(RECORDED.bytes + 1).unwrap();
        let read = values(&machine, "eth0", Group::Ring).map(drop);
        for refused in [read, change(&machine, "eth0", Group::Ring, "rx", "256")] {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("more than 65536 bytes, the most that an answer"), "{said}");
        }
    }

    #[test]
    fn what_is_no_table_gives_no_values() {
        for text in ["", "netlink error: Operation not supported", ":::\n:\n", "RX"] {
            assert_eq!(parse(Group::Ring, text), Values::default(), "{text}");
        }
    }
}
