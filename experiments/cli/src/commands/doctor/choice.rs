//! The datapath for Linux TCP that `ccplane doctor` names, and why.

use ccplane_agent::config::{Datapaths, Switch};
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The list of loaded modules, which kernels without modules do not have.
const LOADED_MODULES: &str = "/proc/modules";
const RELEASE: &str = "/proc/sys/kernel/osrelease";

/// The datapath for Linux TCP on this machine.
#[derive(Serialize, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    /// Its kind as `ccplane flows` shows it, or [`NO_DATAPATH`].
    pub(super) datapath: &'static str,
    pub(super) why: String,
}

/// The datapath where nothing can steer TCP flows.
pub(super) const NO_DATAPATH: &str = "none";

/// BPF as a datapath here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Bpf {
    /// The configuration turns it off.
    Off,
    /// The first need of it that is not met.
    Lacks(String),
    Usable,
}

/// The kernel module as a datapath here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Module {
    /// The configuration turns it off.
    Off,
    Loaded {
        device: PathBuf,
        /// Whether this user may open the device.
        is_open_to_us: bool,
    },
    /// The configuration insists on a device that is not there.
    Missing { device: PathBuf },
    /// The kernel loads no modules.
    Impossible,
    /// The module is not loaded; built with the kernel's headers it could be.
    Absent { headers: PathBuf, has_headers: bool },
}

impl Module {
    /// Looks at this machine.
    pub(super) fn find(config: &Datapaths) -> Module {
        let device = config.module.device.clone();
        let release = std::fs::read_to_string(RELEASE).unwrap_or_default();
        let headers = Path::new("/lib/modules").join(release.trim()).join("build");
        match config.module.mode {
            Switch::Off => Module::Off,
            Switch::On | Switch::Auto if device.exists() => {
                let wanted = AccessFlags::R_OK | AccessFlags::W_OK;
                let is_open_to_us = faccessat(AT_FDCWD, &device, wanted, AtFlags::AT_EACCESS).is_ok();
                Module::Loaded { device, is_open_to_us }
            }
            Switch::On => Module::Missing { device },
            Switch::Auto if !Path::new(LOADED_MODULES).exists() => Module::Impossible,
            Switch::Auto => Module::Absent { has_headers: headers.exists(), headers },
        }
    }
}

/// Tells the datapath that an agent would use, and what else would do.
pub(super) fn choose(bpf: &Bpf, module: &Module) -> Choice {
    let none = |why: String| Choice { datapath: NO_DATAPATH, why };
    let lacks = match bpf {
        Bpf::Usable => None,
        Bpf::Off => Some("datapath.ebpf.mode is off".to_owned()),
        Bpf::Lacks(what) => Some(format!("BPF lacks {what}")),
    };
    match (module, lacks) {
        (Module::Loaded { device, is_open_to_us: true }, lacks) => {
            let also = lacks.map_or_else(
                || "; BPF would do too, and runs programs as machine code: `rmmod ccplane` gives way to it".to_owned(),
                |lacks| format!(", and {lacks}"),
            );
            Choice { datapath: "module", why: format!("it is loaded ({}){also}", device.display()) }
        }
        (Module::Loaded { device, is_open_to_us: false }, _) => none(format!(
            "the kernel module is loaded, and this user may not open {}: run as root, or set datapath.module.mode = \"off\"",
            device.display()
        )),
        (Module::Missing { device }, _) => none(format!(
            "datapath.module.mode is on, and {} is not there: load the module, or set the mode to \"auto\"",
            device.display()
        )),
        (_, None) => Choice {
            datapath: "ebpf",
            why: "this kernel has all that it needs, and runs programs as machine code; the kernel module would interpret them"
                .to_owned(),
        },
        (Module::Off, Some(lacks)) => none(format!("{lacks}, and datapath.module.mode is off")),
        (Module::Impossible, Some(lacks)) => none(format!(
            "{lacks}, and this kernel loads no modules ({LOADED_MODULES} is not there), so that the kernel module is no way out"
        )),
        (Module::Absent { headers, has_headers }, Some(lacks)) => {
            let how = if *has_headers {
                "`make module` builds it here".to_owned()
            } else {
                format!("`make module` builds it once the kernel's headers are there ({})", headers.display())
            };
            none(format!(
                "{lacks}; where that cannot be had, root can load the kernel module: {how} (datapath-shims/module/README.md)"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine, the choice for it, and words that the choice's reason has.
    type Row = (Bpf, Module, &'static str, &'static [&'static str]);

    #[test]
    fn each_machine_gets_its_datapath_and_the_reason() {
        let lacks = || Bpf::Lacks("kernel type information (BTF)".to_owned());
        let loaded = |is_open_to_us| Module::Loaded { device: "/dev/ccplane".into(), is_open_to_us };
        let absent = |has_headers| Module::Absent { headers: "/lib/modules/6.1/build".into(), has_headers };
        let missing = || Module::Missing { device: "/dev/ccplane".into() };
        let table: [Row; 14] = [
            (Bpf::Usable, absent(false), "ebpf", &["machine code"]),
            (Bpf::Usable, Module::Impossible, "ebpf", &["machine code"]),
            (Bpf::Usable, Module::Off, "ebpf", &["machine code"]),
            (Bpf::Usable, loaded(true), "module", &["/dev/ccplane", "rmmod ccplane"]),
            (lacks(), loaded(true), "module", &["/dev/ccplane", "BPF lacks kernel type information"]),
            (Bpf::Off, loaded(true), "module", &["datapath.ebpf.mode is off"]),
            (Bpf::Usable, loaded(false), NO_DATAPATH, &["may not open /dev/ccplane", "root"]),
            (lacks(), loaded(false), NO_DATAPATH, &["may not open /dev/ccplane", "root"]),
            (Bpf::Usable, missing(), NO_DATAPATH, &["datapath.module.mode is on", "/dev/ccplane"]),
            (lacks(), Module::Off, NO_DATAPATH, &["BPF lacks", "datapath.module.mode is off"]),
            (lacks(), Module::Impossible, NO_DATAPATH, &["BPF lacks", "/proc/modules", "no way out"]),
            (lacks(), absent(true), NO_DATAPATH, &["BPF lacks", "`make module` builds it here"]),
            (
                lacks(),
                absent(false),
                NO_DATAPATH,
                &["once the kernel's headers are there", "/lib/modules/6.1/build"],
            ),
            (Bpf::Off, absent(true), NO_DATAPATH, &["datapath.ebpf.mode is off", "`make module`"]),
        ];
        for (bpf, module, datapath, words) in table {
            let choice = choose(&bpf, &module);
            assert_eq!(choice.datapath, datapath, "{bpf:?} {module:?}: {}", choice.why);
            for word in words {
                assert!(choice.why.contains(word), "{bpf:?} {module:?}: no {word:?} in {}", choice.why);
            }
            let offers = choice.why.contains("make module");
            assert_eq!(
                offers,
                matches!(module, Module::Absent { .. }) && datapath == NO_DATAPATH,
                "{}",
                choice.why
            );
        }
    }

    /// The device is judged by whether this user may open it, whatever it is.
    #[test]
    fn a_device_is_found_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("ccplane");
        let found = |mode| {
            let mut config = Datapaths::default();
            (config.module.mode, config.module.device) = (mode, device.clone());
            Module::find(&config)
        };
        assert_eq!(found(Switch::Off), Module::Off);
        assert_eq!(found(Switch::On), Module::Missing { device: device.clone() });
        assert!(matches!(found(Switch::Auto), Module::Impossible | Module::Absent { .. }));
        std::fs::write(&device, "").unwrap();
        for mode in [Switch::On, Switch::Auto] {
            assert_eq!(found(mode), Module::Loaded { device: device.clone(), is_open_to_us: true });
        }
    }
}
