//! Settings of a host that decide how its traffic is worked on: their names, values, and how each is changed.

use std::fmt;
use std::io;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::cpus::{CpuSet, CpuSetError};
use crate::ethtool::{self, EthtoolError, Group};
use crate::machine::Machine;
use crate::napi;

/// Sysctls that may be changed; those of all interfaces together.
pub(crate) const SYSCTLS: [&str; 10] = [
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.rps_sock_flow_entries",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
/// Files of an interface that may be changed.
pub(crate) const ATTRIBUTES: [&str; 4] = ["mtu", "threaded", "gro_flush_timeout", "napi_defer_hard_irqs"];

/// Parameters of the idle governor haltpoll that may be changed (Documentation/virt/guest-halt-polling.rst).
pub(crate) const HALT_POLL: [&str; 5] = [
    "guest_halt_poll_ns",
    "guest_halt_poll_grow",
    "guest_halt_poll_grow_start",
    "guest_halt_poll_shrink",
    "guest_halt_poll_allow_shrink",
];

/// A file of a queue that may be changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum QueueFile {
    /// The processors that packets of a receive queue are spread to (receive packet steering).
    RpsCpus,
    /// The entries of a receive queue's table of flows (receive flow steering).
    RpsFlowCnt,
    /// The processors that send through a transmit queue (transmit packet steering).
    XpsCpus,
}

/// A setting of a host. Its text names it: `net/eth0/coalesce/rx-usecs`, `irq/41`, `sysctl/net.core.busy_poll`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Setting {
    /// A sysctl of the stack.
    Sysctl(&'static str),
    /// A file of an interface.
    Interface {
        interface: String,
        /// The file's name.
        file: &'static str,
    },
    /// A file of one of an interface's queues.
    Queue {
        interface: String,
        /// The queue's number among those of its direction.
        queue: u32,
        file: QueueFile,
    },
    /// A value that the device's driver keeps.
    Device {
        interface: String,
        group: Group,
        /// The name under which ethtool changes the value.
        name: &'static str,
    },
    /// A value of one of the instances (NAPI) through which an interface's queues are polled.
    Napi {
        interface: String,
        /// The instance's number among those of the interface.
        napi: u32,
        /// The name of the value in the kernel's specification.
        name: &'static str,
    },
    /// The processors that an interrupt may be raised on.
    Interrupt(u32),
    /// The frequency governor of a processor.
    Governor(u32),
    /// The governor of idle processors: haltpoll has a guest's poll for a while before they halt.
    IdleGovernor,
    /// A parameter of haltpoll.
    HaltPoll(&'static str),
}

/// A text that names no setting.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is no setting: they are named net/INTERFACE/{}, net/INTERFACE/rx-QUEUE/rps_cpus or rps_flow_cnt, \
     net/INTERFACE/tx-QUEUE/xps_cpus, net/INTERFACE/napi-NUMBER/{}, net/INTERFACE/{}/NAME, irq/NUMBER, cpu/NUMBER/governor, cpuidle/governor, haltpoll/NAME, sysctl/NAME",
    ATTRIBUTES.join("|"),
    napi::VALUES.join("|"),
    Group::ALL.map(Group::name).join("|")
)]
pub struct UnknownSetting {
    /// The text as it was given.
    pub text: String,
}

/// Reasons why a setting is not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The system refuses.
    #[error("{setting}: {source}")]
    Io { setting: Setting, source: io::Error },
    /// ethtool or the device refuses.
    #[error("{setting}: {source}")]
    Ethtool { setting: Setting, source: EthtoolError },
    /// The device does not have the value.
    #[error("{0}: the device has no such value")]
    Absent(Setting),
    /// The value is no set of processors.
    #[error("{setting}: {source}")]
    Cpus { setting: Setting, source: CpuSetError },
    /// The value is empty, or has characters that no setting's value has.
    #[error("{setting}: {value:?} is no value of a setting")]
    BadValue { setting: Setting, value: String },
    /// The change was accepted and did not come about.
    #[error("{setting}: asked for {asked}, and it is {found}")]
    NotTaken { setting: Setting, asked: String, found: String },
}

impl SettingError {
    /// Returns the setting that is not read or changed.
    pub fn setting(&self) -> &Setting {
        match self {
            SettingError::Io { setting, .. }
            | SettingError::Ethtool { setting, .. }
            | SettingError::Absent(setting)
            | SettingError::Cpus { setting, .. }
            | SettingError::BadValue { setting, .. }
            | SettingError::NotTaken { setting, .. } => setting,
        }
    }
}

/// The place of a setting's value.
enum Place {
    /// A file that holds words.
    Words(String),
    /// A file that holds a list of processors.
    List(String),
    /// A file that holds a mask of processors.
    Mask(String),
    /// The device, through ethtool.
    Ethtool,
    /// The kernel, through netlink.
    Netlink,
}

impl QueueFile {
    const ALL: [QueueFile; 3] = [QueueFile::RpsCpus, QueueFile::RpsFlowCnt, QueueFile::XpsCpus];

    /// Returns the file's name.
    pub const fn name(self) -> &'static str {
        match self {
            QueueFile::RpsCpus => "rps_cpus",
            QueueFile::RpsFlowCnt => "rps_flow_cnt",
            QueueFile::XpsCpus => "xps_cpus",
        }
    }

    /// Returns how the folders of the queues that have the file begin.
    const fn direction(self) -> &'static str {
        match self {
            QueueFile::RpsCpus | QueueFile::RpsFlowCnt => "rx-",
            QueueFile::XpsCpus => "tx-",
        }
    }
}

impl Setting {
    fn place(&self) -> Place {
        match self {
            Setting::Sysctl(name) => Place::Words(format!("/proc/sys/{}", name.replace('.', "/"))),
            Setting::Interface { interface, file } => {
                Place::Words(format!("/sys/class/net/{interface}/{file}"))
            }
            Setting::Queue { interface, queue, file } => {
                let path =
                    format!("/sys/class/net/{interface}/queues/{}{queue}/{}", file.direction(), file.name());
                match file {
                    QueueFile::RpsFlowCnt => Place::Words(path),
                    QueueFile::RpsCpus | QueueFile::XpsCpus => Place::Mask(path),
                }
            }
            Setting::Device { .. } => Place::Ethtool,
            Setting::Napi { .. } => Place::Netlink,
            Setting::Interrupt(number) => Place::List(format!("/proc/irq/{number}/smp_affinity_list")),
            Setting::Governor(cpu) => {
                Place::Words(format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"))
            }
            Setting::IdleGovernor => {
                Place::Words("/sys/devices/system/cpu/cpuidle/current_governor".to_owned())
            }
            Setting::HaltPoll(name) => Place::Words(format!("/sys/module/haltpoll/parameters/{name}")),
        }
    }

    /// Returns the interface that the setting belongs to; none for those of the whole host.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Setting::Interface { interface, .. }
            | Setting::Queue { interface, .. }
            | Setting::Device { interface, .. }
            | Setting::Napi { interface, .. } => Some(interface),
            Setting::Sysctl(_)
            | Setting::Interrupt(_)
            | Setting::Governor(_)
            | Setting::IdleGovernor
            | Setting::HaltPoll(_) => None,
        }
    }

    /// Reads the value in force; processors as a list.
    ///
    /// # Errors
    /// The system or the device gives none.
    pub fn read(&self, machine: &Machine) -> Result<String, SettingError> {
        let file = |path: &str| machine.read(path).map_err(|source| self.refused(source));
        match self.place() {
            Place::Words(path) => Ok(spaced(&file(&path)?)),
            Place::List(path) => file(&path),
            Place::Mask(path) => {
                let set = CpuSet::from_mask(&file(&path)?);
                set.map(|set| set.to_string()).map_err(|source| self.no_cpus(source))
            }
            Place::Ethtool => {
                let Setting::Device { interface, group, name } = self else {
                    unreachable!("only these are there")
                };
                let values = ethtool::values(machine, interface, *group);
                let mut values = values.map_err(|source| self.ethtool(source))?;
                values.current.remove(*name).ok_or_else(|| SettingError::Absent(self.clone()))
            }
            Place::Netlink => {
                let Setting::Napi { interface, napi, name } = self else {
                    unreachable!("only these are there")
                };
                let value = napi::read(machine, interface, *napi, name);
                let value = value.map_err(|source| self.refused(source))?;
                value.ok_or_else(|| SettingError::Absent(self.clone()))
            }
        }
    }

    /// Returns the value in the one way in which [`Setting::read`] gives it.
    ///
    /// # Errors
    /// It is no value of a setting.
    pub fn value(&self, text: &str) -> Result<String, SettingError> {
        let value = spaced(text);
        if let Place::List(_) | Place::Mask(_) = self.place() {
            return value.parse().map(|set: CpuSet| set.to_string()).map_err(|source| self.no_cpus(source));
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
        if value.is_empty() || value.starts_with('-') || !value.chars().all(is_plain) {
            return Err(SettingError::BadValue { setting: self.clone(), value });
        }
        Ok(value)
    }

    /// Changes the setting, and reads it again.
    ///
    /// # Errors
    /// The system or the device refuses, or has another value afterwards.
    pub fn write(&self, machine: &Machine, value: &str) -> Result<(), SettingError> {
        let asked = self.value(value)?;
        let file = |path: &str, text: &str| machine.write(path, text).map_err(|source| self.refused(source));
        match self.place() {
            Place::Words(path) | Place::List(path) => file(&path, &asked)?,
            Place::Mask(path) => file(&path, &self.mask(&asked)?)?,
            Place::Ethtool => {
                let Setting::Device { interface, group, name } = self else {
                    unreachable!("only these are there")
                };
                let changed = ethtool::change(machine, interface, *group, name, &asked);
                changed.map_err(|source| self.ethtool(source))?;
            }
            Place::Netlink => {
                let Setting::Napi { interface, napi, name } = self else {
                    unreachable!("only these are there")
                };
                let changed = napi::write(machine, interface, *napi, name, &asked);
                changed.map_err(|source| self.refused(source))?;
            }
        }
        let found = self.read(machine)?;
        if found == asked {
            Ok(())
        } else {
            Err(SettingError::NotTaken { setting: self.clone(), asked, found })
        }
    }

    /// Returns the shell command that makes the change.
    ///
    /// # Errors
    /// It is no value of a setting.
    pub fn command(&self, value: &str) -> Result<String, SettingError> {
        let value = self.value(value)?;
        Ok(match (self, self.place()) {
            (Setting::Sysctl(name), _) => format!("sysctl -w '{name}={value}'"),
            (Setting::Device { interface, group, name }, _) => {
                format!("ethtool {} {interface} {name} {value}", group.change())
            }
            (_, Place::Mask(path)) => format!("echo {} > {path}", self.mask(&value)?),
            (_, Place::Words(path) | Place::List(path)) => format!("echo {value} > {path}"),
            // No tool that every distribution has does this.
            (_, Place::Netlink) => format!("ccplane host set --apply {self}={value}"),
            (_, Place::Ethtool) => unreachable!("only devices have it"),
        })
    }

    /// Finds the reason why the setting cannot be changed, without changing it.
    pub(crate) fn why_not(&self, machine: &Machine) -> Option<String> {
        match self.place() {
            Place::Words(path) | Place::List(path) | Place::Mask(path) => {
                machine.is_writable(&path).err().map(|error| error.to_string())
            }
            // The driver says which of its values are fixed, where they are listed; the kernel says nothing before it is asked.
            Place::Ethtool | Place::Netlink => None,
        }
    }

    fn mask(&self, value: &str) -> Result<String, SettingError> {
        value.parse().map(|set: CpuSet| set.mask()).map_err(|source| self.no_cpus(source))
    }

    fn refused(&self, source: io::Error) -> SettingError {
        SettingError::Io { setting: self.clone(), source }
    }

    fn ethtool(&self, source: EthtoolError) -> SettingError {
        SettingError::Ethtool { setting: self.clone(), source }
    }

    fn no_cpus(&self, source: CpuSetError) -> SettingError {
        SettingError::Cpus { setting: self.clone(), source }
    }
}

/// Returns the words with one blank between two.
fn spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Sysctl(name) => write!(f, "sysctl/{name}"),
            Setting::Interface { interface, file } => write!(f, "net/{interface}/{file}"),
            Setting::Queue { interface, queue, file } => {
                write!(f, "net/{interface}/{}{queue}/{}", file.direction(), file.name())
            }
            Setting::Device { interface, group, name } => {
                write!(f, "net/{interface}/{}/{name}", group.name())
            }
            Setting::Napi { interface, napi, name } => write!(f, "net/{interface}/napi-{napi}/{name}"),
            Setting::Interrupt(number) => write!(f, "irq/{number}"),
            Setting::Governor(cpu) => write!(f, "cpu/{cpu}/governor"),
            Setting::IdleGovernor => f.write_str("cpuidle/governor"),
            Setting::HaltPoll(name) => write!(f, "haltpoll/{name}"),
        }
    }
}

impl FromStr for Setting {
    type Err = UnknownSetting;

    fn from_str(text: &str) -> Result<Setting, UnknownSetting> {
        parse(text).ok_or_else(|| UnknownSetting { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<Setting> {
    let parts: Vec<&str> = text.split('/').collect();
    // What is in the list is what is named.
    let one_of = |names: &[&'static str], name: &str| names.iter().copied().find(|known| *known == name);
    match parts[..] {
        ["sysctl", name] => one_of(&SYSCTLS, name).map(Setting::Sysctl),
        ["irq", number] => number.parse().ok().map(Setting::Interrupt),
        ["cpuidle", "governor"] => Some(Setting::IdleGovernor),
        ["haltpoll", name] => one_of(&HALT_POLL, name).map(Setting::HaltPoll),
        ["cpu", number, "governor"] => number.parse().ok().map(Setting::Governor),
        ["net", interface, file] if is_interface(interface) => {
            one_of(&ATTRIBUTES, file).map(|file| Setting::Interface { interface: interface.to_owned(), file })
        }
        ["net", interface, second, third] if is_interface(interface) => {
            let interface = interface.to_owned();
            if let Some(group) = Group::ALL.into_iter().find(|group| group.name() == second) {
                let (name, _) = group.names().iter().find(|(name, _)| *name == third)?;
                return Some(Setting::Device { interface, group, name });
            }
            if let Some(number) = second.strip_prefix("napi-") {
                let (napi, name) = (number.parse().ok()?, one_of(&napi::VALUES, third)?);
                return Some(Setting::Napi { interface, napi, name });
            }
            let file = QueueFile::ALL.into_iter().find(|file| file.name() == third)?;
            let queue = second.strip_prefix(file.direction())?.parse().ok()?;
            Some(Setting::Queue { interface, queue, file })
        }
        _ => None,
    }
}

/// Whether the kernel allows the name (`dev_valid_name`), and no program takes it for an option.
fn is_interface(name: &str) -> bool {
    /// The longest name of an interface (`IFNAMSIZ` less its end).
    const MAX_NAME_BYTES: usize = 15;
    let is_plain = |c: char| c.is_ascii_graphic() && c != ':' && c != '/';
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name != "."
        && name != ".."
        && !name.starts_with('-')
        && name.chars().all(is_plain)
}

impl Serialize for Setting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 12] = [
        "net/eth0/napi-3/irq-suspend-timeout",
        "cpuidle/governor",
        "haltpoll/guest_halt_poll_ns",
        "sysctl/net.core.busy_poll",
        "irq/41",
        "cpu/3/governor",
        "net/eth0/mtu",
        "net/eth0.7/rx-0/rps_cpus",
        "net/eth0/rx-12/rps_flow_cnt",
        "net/eth0/tx-1/xps_cpus",
        "net/eth0/coalesce/rx-usecs",
        "net/eth0/offload/gro",
    ];

    #[test]
    fn names_are_read_back() {
        for name in NAMES {
            assert_eq!(name.parse::<Setting>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn what_names_no_setting_is_refused() {
        let wrong = [
            "",
            "net",
            "net//mtu",
            "net/../mtu",
            "net/eth0/address",
            "net/eth0/tx-0/rps_cpus",
            "net/-i/mtu",
            "irq/x",
            "net/eth0/coalesce/msglvl",
            "sysctl/kernel.panic",
            "cpu/0",
            "cpuidle/driver",
            "net/eth0/napi-/irq-suspend-timeout",
            "net/eth0/napi-0/threaded",
            "haltpoll/force",
            "net/eth0/rx-0",
            "net/a234567890123456/mtu",
        ];
        for name in wrong {
            let error = name.parse::<Setting>().unwrap_err();
            assert!(error.to_string().contains("is no setting"), "{error}");
        }
    }

    #[test]
    fn commands_are_those_of_a_shell() {
        let command = |name: &str, value: &str| name.parse::<Setting>().unwrap().command(value);
        assert_eq!(
            command("net/eth0/rx-0/rps_cpus", "0-1,33").unwrap(),
            "echo 2,00000003 > /sys/class/net/eth0/queues/rx-0/rps_cpus"
        );
        assert_eq!(
            command("net/eth0/napi-1/irq-suspend-timeout", "20000").unwrap(),
            "ccplane host set --apply net/eth0/napi-1/irq-suspend-timeout=20000"
        );
        assert_eq!(
            command("haltpoll/guest_halt_poll_ns", "50000").unwrap(),
            "echo 50000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns"
        );
        assert_eq!(command("irq/41", "1").unwrap(), "echo 1 > /proc/irq/41/smp_affinity_list");
        assert_eq!(command("net/eth0/coalesce/rx-usecs", "8").unwrap(), "ethtool -C eth0 rx-usecs 8");
        assert_eq!(
            command("sysctl/net.ipv4.tcp_rmem", "1 2\t3").unwrap(),
            "sysctl -w 'net.ipv4.tcp_rmem=1 2 3'"
        );
        for (name, value) in [
            ("irq/41", "all"),
            ("net/eth0/mtu", ""),
            ("net/eth0/mtu", "1;reboot"),
            ("net/eth0/ring/rx", "-1"),
        ] {
            assert!(command(name, value).is_err(), "{name} {value}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_taken_for_what_it_does_not_say(text in "[a-z0-9/.-]{0,30}") {
            if let Ok(setting) = text.parse::<Setting>() {
                prop_assert_eq!(setting.to_string(), text);
            }
        }
    }
}
