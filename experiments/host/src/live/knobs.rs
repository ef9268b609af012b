//! Finds what can be varied on this host, and the settings that a cell means.

use std::collections::BTreeMap;

use crate::cpus::CpuSet;
use crate::ethtool::Group;
use crate::machine::Machine;
use crate::setting::{QueueFile, Setting, SettingError, UnknownSetting};
use crate::space::{Cell, Knob, Role, Space, SpaceError, nth_after};
use crate::state::states;
use crate::topology::{Interface, Topology};

/// Processors that one kind of work is tried on, at most.
const MAX_PLACES: usize = 8;
/// Values that are tried of a device's coalescing, beside the one that is found.
const USECS: [&str; 4] = ["0", "8", "32", "128"];
const FRAMES: [&str; 3] = ["1", "16", "64"];

/// A setting with the values that a user wants to be tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WantedKnob {
    pub setting: Setting,
    pub values: Vec<String>,
}

/// A text that names no setting with values.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadKnob {
    #[error("{0:?} is no knob: write SETTING=VALUE,VALUE")]
    Form(String),
    #[error(transparent)]
    Setting(#[from] UnknownSetting),
}

impl std::str::FromStr for WantedKnob {
    type Err = BadKnob;

    fn from_str(text: &str) -> Result<WantedKnob, BadKnob> {
        let form = || BadKnob::Form(text.to_owned());
        let (name, values) = text.split_once('=').ok_or_else(form)?;
        let setting = name.parse()?;
        let values: Vec<String> = values.split(',').map(str::to_owned).collect();
        if values.iter().any(String::is_empty) { Err(form()) } else { Ok(WantedKnob { setting, values }) }
    }
}

/// Reasons why this host has nothing to vary.
#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    /// A setting is not read, or a value is none of it.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A setting of another interface, or of the whole host.
    #[error("{setting} is no setting of {interface}: nothing else is varied")]
    Elsewhere { setting: String, interface: String },
    #[error(transparent)]
    Space(#[from] SpaceError),
}

/// Knobs of an interface, and how their settings were found.
#[derive(Clone, Debug)]
pub(super) struct Knobs {
    pub space: Space,
    /// The values of all settings that cells change, as they were found.
    found: BTreeMap<Setting, String>,
    /// The settings of each knob.
    settings: Vec<Vec<Setting>>,
    /// Processors that work may be placed on, in order.
    pub processors: Vec<u32>,
    /// Whether the device has interrupts; else the thread that sends is what brings packets in.
    pub has_interrupts: bool,
}

impl Knobs {
    /// Finds what can be varied; `wanted` settings take the place of those that are tried by themselves.
    pub(super) fn find(
        machine: &Machine,
        topology: &Topology,
        interface: &Interface,
        wanted: &[WantedKnob],
        processors: Vec<u32>,
    ) -> Result<Knobs, KnobError> {
        let name = &interface.name;
        let rps =
            |queue: &u32| Setting::Queue { interface: name.clone(), queue: *queue, file: QueueFile::RpsCpus };
        let interrupts: Vec<Setting> =
            interface.interrupts.iter().map(|number| Setting::Interrupt(*number)).collect();
        let flow: Vec<Setting> = interface.receive_queues.iter().map(rps).collect();
        let mut knobs = vec![
            (placement("application", Role::Application, &processors), Vec::new()),
            (placement("interrupt", Role::Interrupt, &processors), interrupts.clone()),
            (placement("flow", Role::Flow, &processors), flow),
        ];
        let tried = if wanted.is_empty() { usual(machine, topology, interface) } else { wanted.to_vec() };
        for WantedKnob { setting, values } in tried {
            let is_ours = setting.interface() == Some(name.as_str()) || interrupts.contains(&setting);
            if !is_ours {
                return Err(KnobError::Elsewhere { setting: setting.to_string(), interface: name.clone() });
            }
            let found = setting.read(machine)?;
            let mut levels = vec![found];
            for value in values {
                let value = setting.value(&value)?;
                if !levels.contains(&value) {
                    levels.push(value);
                }
            }
            let role = Role::Settings(vec![setting.to_string()]);
            let short = setting.to_string().trim_start_matches(&format!("net/{name}/")).to_owned();
            knobs.push((Knob { name: short, role, levels, default: 0 }, vec![setting]));
        }
        let mut found = BTreeMap::new();
        for setting in knobs.iter().flat_map(|(_, settings)| settings) {
            found.insert(setting.clone(), setting.read(machine)?);
        }
        let (knobs, settings): (Vec<Knob>, Vec<Vec<Setting>>) = knobs.into_iter().unzip();
        let has_interrupts = !interrupts.is_empty();
        Ok(Knobs { space: Space::new(knobs)?, found, settings, processors, has_interrupts })
    }

    /// Returns the values that all settings have in a cell.
    pub(super) fn changes(&self, cell: &Cell) -> Vec<(Setting, String)> {
        let mut changes = Vec::new();
        for ((knob, level), settings) in self.space.knobs().iter().zip(&cell.0).zip(&self.settings) {
            let value = &knob.levels[*level];
            for (n, setting) in settings.iter().enumerate() {
                let first = value.parse().ok().filter(|_| knob.is_placement());
                let cpu = first.and_then(|first| nth_after(&self.processors, first, n as u32));
                let value = match (cpu, value.is_empty()) {
                    (Some(cpu), _) => std::iter::once(cpu).collect::<CpuSet>().to_string(),
                    (None, true) => self.found.get(setting).cloned().unwrap_or_default(),
                    (None, false) => value.clone(),
                };
                changes.push((setting.clone(), value));
            }
        }
        changes
    }

    /// Returns the number of the knob that changes a setting.
    pub(super) fn knob_of(&self, setting: &Setting) -> Option<usize> {
        self.settings.iter().position(|settings| settings.contains(setting))
    }

    /// Returns the first processor that a kind of work is placed on in a cell; none where it is as it was found.
    pub(super) fn place(&self, cell: &Cell, role: &Role) -> Option<u32> {
        let knob = self.space.knob_of(role)?;
        self.space.knobs()[knob].levels[cell.0[knob]].parse().ok()
    }
}

fn placement(name: &str, role: Role, processors: &[u32]) -> Knob {
    let step = processors.len().div_ceil(MAX_PLACES).max(1);
    let places = processors.iter().step_by(step).map(u32::to_string);
    Knob {
        name: name.to_owned(),
        role,
        levels: std::iter::once(String::new()).chain(places).collect(),
        default: 0,
    }
}

/// Settings that are tried where the user names none: those that this device has and lets be changed.
fn usual(machine: &Machine, topology: &Topology, interface: &Interface) -> Vec<WantedKnob> {
    let states = states(machine, topology, Some(interface));
    let wanted = |state: &crate::state::SettingState| {
        if state.why_not.is_some() || state.value.is_none() {
            return None;
        }
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let values = match &state.setting {
            Setting::Interface { file: "threaded", .. } => words(&["0", "1"]),
            Setting::Device { group: Group::Offload, name: "gro", .. } => words(&["on", "off"]),
            Setting::Device { group: Group::Coalesce, name: "rx-usecs", .. } => words(&USECS),
            Setting::Device { group: Group::Coalesce, name: "rx-frames", .. } => words(&FRAMES),
            Setting::Device { group: Group::Ring, name: "rx", .. } => state.largest.iter().cloned().collect(),
            _ => return None,
        };
        Some(WantedKnob { setting: state.setting.clone(), values })
    };
    let mut knobs: Vec<WantedKnob> = states.iter().filter_map(wanted).collect();
    // Some devices, veth for one, have no NAPI that could get a thread before a feature wants it.
    knobs.sort_by_key(|knob| !matches!(knob.setting, Setting::Device { group: Group::Offload, .. }));
    knobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_are_read() {
        let knob: WantedKnob = "net/eth0/coalesce/rx-usecs=0,8".parse().unwrap();
        assert_eq!((knob.setting.to_string().as_str(), knob.values.len()), ("net/eth0/coalesce/rx-usecs", 2));
        for bad in ["", "net/eth0/mtu", "net/eth0/mtu=", "net/eth0/mtu=1,", "nothing=1"] {
            assert!(bad.parse::<WantedKnob>().is_err(), "{bad}");
        }
    }

    #[test]
    fn placements_are_spread_over_many_processors() {
        let many: Vec<u32> = (0..64).collect();
        let knob = placement("flow", Role::Flow, &many);
        assert_eq!(knob.levels, ["", "0", "8", "16", "24", "32", "40", "48", "56"]);
        assert_eq!(placement("flow", Role::Flow, &[0, 1]).levels, ["", "0", "1"]);
    }
}
