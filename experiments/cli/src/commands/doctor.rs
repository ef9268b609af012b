//! `ccplane doctor`: what this machine can run, and the removal of what a dead agent left.

mod choice;

use self::choice::{Bpf, Choice, Module, NO_DATAPATH, choose};
use super::output::{print, print_json};
use crate::cli::DoctorArgs;
use caps::{CapSet, Capability};
use ccplane_agent::config::{Config, Switch};
use ccplane_agent::failure::Failure;
use ccplane_agent::place::Located;
use ccplane_agent::rundir::{self, InstanceLock};
use ccplane_ebpf::Options;
use ccplane_files::{Directory, DirectoryError, Others};
use ccplane_runner::missing_for_links;
use nix::sys::socket::SockType;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The place where a machine has its BPF file system.
const SYSTEM_BPFFS: &str = "/sys/fs/bpf";

/// The folder of a kernel whose scheduler may be a BPF program's.
const SCHED_EXT: &str = "/sys/kernel/sched_ext";

/// The part of ccplane that has a need.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The BPF datapath.
    Bpf,
    /// The agent, whatever its datapath.
    Agent,
    Links,
    /// Decisions about packets.
    Packets,
}

/// One need, met or not.
#[derive(Serialize)]
struct Need {
    #[serde(skip)]
    part: Part,
    /// The part of ccplane that needs it: "Linux TCP datapath", "emulated links".
    of: &'static str,
    what: String,
    ok: bool,
    found: String,
    /// The way to meet the need; empty if it is met.
    remedy: String,
}

#[derive(Serialize)]
struct Diagnosis {
    /// Whether Linux TCP flows can be steered here.
    ok: bool,
    /// The datapath that an agent uses for them.
    tcp: Choice,
    needs: Vec<Need>,
    /// Whether the kernel has sched_ext, which no way to wait uses.
    sched_ext: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cleaned: Option<Cleaned>,
}

#[derive(Serialize, Default)]
struct Cleaned {
    flows_moved: u64,
    removed: Vec<PathBuf>,
}

pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let located = args.query.place.locate(None)?;
    let cleaned = if args.clean { Some(clean(&located)?) } else { None };
    let mut needs: Vec<Need> = ccplane_ebpf::checks()
        .into_iter()
        .map(|c| Need {
            part: Part::Bpf,
            of: "Linux TCP datapath",
            what: c.what.to_owned(),
            ok: c.ok,
            found: c.found,
            remedy: c.remedy.to_owned(),
        })
        .collect();
    needs.extend(powers());
    needs.extend(places(&located));
    let tcp = choose(&bpf(&located.config, &needs), &Module::find(&located.config.datapath));
    let starts = needs.iter().all(|need| need.ok || need.part != Part::Agent);
    let ok = tcp.datapath != NO_DATAPATH && starts;
    needs.push(packets());
    needs.extend(links());
    let diagnosis = Diagnosis { ok, tcp, needs, sched_ext: Path::new(SCHED_EXT).exists(), cleaned };
    if args.query.json {
        print_json(&diagnosis)?
    } else {
        print(&text(&diagnosis))?
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Tells whether BPF is a datapath here, by the needs that are its own.
fn bpf(config: &Config, needs: &[Need]) -> Bpf {
    let missing = needs.iter().find(|need| need.part == Part::Bpf && !need.ok);
    match (config.datapath.ebpf.mode, missing) {
        (Switch::Off, _) => Bpf::Off,
        (_, Some(need)) => Bpf::Lacks(need.what.clone()),
        (_, None) => Bpf::Usable,
    }
}

/// The capabilities that the kernel datapath's loop uses: what each is for, and whether nothing runs without it.
fn powers() -> Vec<Need> {
    let permitted = caps::read(None, CapSet::Permitted).unwrap_or_default();
    let mounted = Path::new(SYSTEM_BPFFS).join("progs.debug").exists();
    let mount = if mounted {
        "takes flows back from other network namespaces"
    } else {
        "mounts a BPF file system, since none is mounted on /sys/fs/bpf; takes flows back from other network namespaces"
    };
    let needs = [
        (Capability::CAP_BPF, "loads programs and maps", true),
        (Capability::CAP_PERFMON, "loads programs that follow pointers", true),
        (Capability::CAP_NET_ADMIN, "registers a TCP congestion control", true),
        (Capability::CAP_SYS_ADMIN, mount, !mounted),
        (Capability::CAP_SYS_PTRACE, "finds other users' network namespaces", false),
    ];
    let need = |(capability, purpose, required): (Capability, &str, bool)| {
        let has = permitted.contains(&capability);
        Need {
            part: Part::Bpf,
            of: "Linux TCP datapath",
            what: format!("{capability}, which {purpose}"),
            ok: has || !required,
            found: if has {
                "held"
            } else if required {
                "not held"
            } else {
                "not held, and not needed to run"
            }
            .to_owned(),
            remedy: if has || !required {
                String::new()
            } else {
                "run as root, or grant the capability".to_owned()
            },
        }
    };
    needs.into_iter().map(need).collect()
}

/// The directories of sockets, locks and pins must be this user's, and writable by no other.
fn places(located: &Located) -> Vec<Need> {
    let control = located.run_dir().map(Path::to_owned).ok();
    let datapath = located.datapath_socket().ok().and_then(|socket| Some(socket.parent()?.to_owned()));
    let ebpf = located.config.datapath.ebpf.run_dir.clone();
    let all = [
        (Part::Agent, "control directory", control),
        (Part::Agent, "datapath directory", datapath),
        (Part::Bpf, "a run directory of this user's", Some(ebpf)),
    ];
    let need = |(part, what, path): (Part, &str, Option<PathBuf>)| {
        let path = path?;
        let opened = match Directory::open(&path, Others::Read) {
            Err(DirectoryError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok("not there yet")
            }
            opened => opened.map(|_| "this user's").map_err(|e| e.to_string()),
        };
        let (ok, found) =
            opened.map_or_else(|why| (false, why), |fine| (true, format!("{}: {fine}", path.display())));
        let remedy = if ok { "" } else { "run as its owner, or configure another one" }.to_owned();
        Some(Need { part, of: "Linux TCP datapath", what: what.to_owned(), ok, found, remedy })
    };
    all.into_iter().filter_map(need).collect()
}

/// The need of decisions about packets.
fn packets() -> Need {
    let what = "classifiers on devices' egress, and the tracepoint of socket states".to_owned();
    let (ok, found, remedy) = match ccplane_ebpf::packets::available() {
        Ok(()) => (true, "loaded and taken back".to_owned(), String::new()),
        Err(error) => {
            (false, error.to_string(), "run as root, on a kernel with BTF and BPF tracing".to_owned())
        }
    };
    Need { part: Part::Packets, of: "decisions about packets", what, ok, found, remedy }
}

/// Removes what a killed agent left. Holds the agent's lock meanwhile, so that none starts.
fn clean(located: &Located) -> Result<Cleaned, Failure> {
    let dir = located.run_dir()?;
    let mut cleaned = Cleaned::default();
    if !dir.exists() {
        return Ok(cleaned);
    }
    let _lock = InstanceLock::acquire(&rundir::prepare(dir)?)?;
    let sockets = [
        (located.control_socket.clone(), SockType::Stream),
        (located.datapath_socket()?, SockType::Datagram),
    ];
    for (socket, kind) in sockets {
        if ccplane_files::remove_stale_socket(&socket, kind)? {
            cleaned.removed.push(socket);
        }
    }
    let options: Options = located.ebpf_options();
    let report = ccplane_ebpf::clean(&options).map_err(Failure::runtime)?;
    cleaned.flows_moved = report.flows_moved;
    cleaned.removed.extend(report.removed);
    let devices = &located.config.datapath.packets.devices;
    let classifiers = ccplane_ebpf::packets::clean(devices).map_err(Failure::runtime)?;
    cleaned.removed.extend(classifiers.into_iter().map(|device| Path::new("tc filter on").join(device)));
    Ok(cleaned)
}

fn text(diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    if let Some(cleaned) = &diagnosis.cleaned {
        let _ = writeln!(
            out,
            "cleaned: {} flows moved, {} files removed",
            cleaned.flows_moved,
            cleaned.removed.len()
        );
        for path in &cleaned.removed {
            let _ = writeln!(out, "  {}", path.display());
        }
    }
    let _ = writeln!(out, "Linux TCP by {}: {}", diagnosis.tcp.datapath, diagnosis.tcp.why);
    let mut of = "";
    for need in &diagnosis.needs {
        if need.of != of {
            of = need.of;
            let _ = writeln!(out, "{of}");
        }
        let mark = if need.ok { "ok     " } else { "MISSING" };
        let _ = writeln!(out, "  {mark}  {}: {}", need.what, need.found);
        if !need.ok {
            let _ = writeln!(out, "           {}", need.remedy);
        }
    }
    let has = if diagnosis.sched_ext { "in this kernel" } else { "not in this kernel" };
    let _ = writeln!(out, "sched_ext: {has}; no way to wait uses it");
    out
}

/// The needs of `demo`, `mm-link` and `mm-delay`.
fn links() -> Vec<Need> {
    let of = "emulated links";
    let missing = missing_for_links();
    if missing.is_empty() {
        let found = "root, /dev/net/tun, network namespaces".to_owned();
        return vec![Need {
            part: Part::Links,
            of,
            what: "devices and permissions".to_owned(),
            ok: true,
            found,
            remedy: String::new(),
        }];
    }
    let need = |what: String, remedy| Need {
        part: Part::Links,
        of,
        what,
        ok: false,
        found: "not there".to_owned(),
        remedy,
    };
    missing.into_iter().map(|m| need(m.what, m.remedy)).collect()
}
