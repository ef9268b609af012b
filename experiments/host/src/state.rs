//! All settings of a host with their values, and why some cannot be changed.

use std::io;

use serde::Serialize;

use crate::ethtool::{self, EthtoolError, Group};
use crate::machine::Machine;
use crate::napi;
use crate::setting::{ATTRIBUTES, HALT_POLL, QueueFile, SYSCTLS, Setting};
use crate::topology::{Interface, Topology};

/// A setting's value, and whether it can be changed here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SettingState {
    pub setting: Setting,
    /// The value in force; none where the host does not have the setting.
    pub value: Option<String>,
    /// The largest value, where the device says one.
    pub largest: Option<String>,
    /// The reason why it cannot be changed; none where it can.
    pub why_not: Option<String>,
}

/// Returns the settings of the host, or of one interface with its interrupts, in a fixed order.
pub fn states(machine: &Machine, topology: &Topology, interface: Option<&Interface>) -> Vec<SettingState> {
    let mut states = Vec::new();
    let interfaces = match interface {
        Some(one) => std::slice::from_ref(one),
        None => &topology.interfaces,
    };
    for interface in interfaces {
        states.extend(ATTRIBUTES.map(|file| in_file(machine, of_interface(interface, file))));
        for (queues, files) in [
            (&interface.receive_queues, &[QueueFile::RpsCpus, QueueFile::RpsFlowCnt][..]),
            (&interface.transmit_queues, &[QueueFile::XpsCpus][..]),
        ] {
            for &queue in queues {
                let of_queue = |&file| Setting::Queue { interface: interface.name.clone(), queue, file };
                states.extend(files.iter().map(of_queue).map(|setting| in_file(machine, setting)));
            }
        }
        for napi in 0..napi::count(machine, &interface.name) {
            let value = |name| Setting::Napi { interface: interface.name.clone(), napi, name };
            states.extend(napi::VALUES.map(|name| in_file(machine, value(name))));
        }
        Group::ALL.into_iter().for_each(|group| of_device(machine, &interface.name, group, &mut states));
    }
    let is_ours = |number: u32| interface.is_none_or(|interface| interface.interrupts.contains(&number));
    let interrupts = topology.interrupts.iter().map(|i| i.number).filter(|number| is_ours(*number));
    states.extend(interrupts.map(|number| in_file(machine, Setting::Interrupt(number))));
    if interface.is_none() {
        let governors = topology.processors.iter().map(|p| Setting::Governor(p.number));
        let idle = std::iter::once(Setting::IdleGovernor).chain(HALT_POLL.map(Setting::HaltPoll));
        let all = governors.chain(idle).chain(SYSCTLS.map(Setting::Sysctl));
        states.extend(all.map(|setting| in_file(machine, setting)));
    }
    states
}

fn of_interface(interface: &Interface, file: &'static str) -> Setting {
    Setting::Interface { interface: interface.name.clone(), file }
}

fn in_file(machine: &Machine, setting: Setting) -> SettingState {
    match setting.read(machine) {
        Ok(value) => {
            SettingState { why_not: setting.why_not(machine), value: Some(value), largest: None, setting }
        }
        Err(_) => {
            SettingState { value: None, largest: None, why_not: Some("not on this host".into()), setting }
        }
    }
}

/// Adds a state for each value of a group; for a group that the device has not, one that says so.
fn of_device(machine: &Machine, interface: &str, group: Group, states: &mut Vec<SettingState>) {
    let setting = |name| Setting::Device { interface: interface.to_owned(), group, name };
    match ethtool::values(machine, interface, group) {
        Ok(mut values) => states.extend(group.names().iter().filter_map(|(name, _)| {
            let value = values.current.remove(*name)?;
            let is_fixed = values.fixed.iter().any(|fixed| fixed == name);
            let why_not = is_fixed.then(|| "the driver holds it fixed".to_owned());
            Some(SettingState {
                setting: setting(name),
                value: Some(value),
                largest: values.largest.remove(*name),
                why_not,
            })
        })),
        Err(error) => {
            let why_not = match &error {
                EthtoolError::Run(io) if io.kind() == io::ErrorKind::NotFound => {
                    "ethtool is not installed".to_owned()
                }
                EthtoolError::Run(_) => error.to_string(),
                EthtoolError::Refused { said, .. } => said.clone(),
            };
            let absent = |(name, _): &(&'static str, &str)| SettingState {
                setting: setting(name),
                value: None,
                largest: None,
                why_not: Some(why_not.clone()),
            };
            states.extend(group.names().iter().map(absent));
        }
    }
}
