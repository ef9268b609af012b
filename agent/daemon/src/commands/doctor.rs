//! `ccplane doctor`: what this machine can run, and the removal of what a dead agent left.

use super::{print, print_json};
use crate::cli::DoctorArgs;
use crate::failure::Failure;
use crate::place::Located;
use crate::rundir::{self, InstanceLock};
use ccplane_ebpf::Options;
use ccplane_runner::demo::missing_for_links;
use nix::sys::socket::SockType;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// One need, met or not.
#[derive(Serialize)]
struct Need {
    /// What needs it: "Linux TCP datapath", "emulated links".
    of: &'static str,
    what: String,
    ok: bool,
    found: String,
    /// What to do about it; empty if it is met.
    remedy: String,
}

#[derive(Serialize)]
struct Diagnosis {
    /// Whether Linux TCP flows can be steered here.
    ok: bool,
    needs: Vec<Need>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cleaned: Option<Cleaned>,
}

#[derive(Serialize, Default)]
struct Cleaned {
    flows_moved: u64,
    removed: Vec<PathBuf>,
}

/// `ccplane doctor`
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let cleaned = if args.clean { Some(clean(&args.place.locate(None)?)?) } else { None };
    let mut needs: Vec<Need> = ccplane_ebpf::checks()
        .into_iter()
        .map(|c| Need {
            of: "Linux TCP datapath",
            what: c.what.to_owned(),
            ok: c.ok,
            found: c.found,
            remedy: c.remedy.to_owned(),
        })
        .collect();
    let ok = needs.iter().all(|n| n.ok);
    needs.extend(links());
    let diagnosis = Diagnosis { ok, needs, cleaned };
    if args.json {
        print_json(&diagnosis)?
    } else {
        print(&text(&diagnosis))?
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(1) })
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
        if rundir::remove_stale_socket(&socket, kind)? {
            cleaned.removed.push(socket);
        }
    }
    let options: Options = located.ebpf_options();
    let report = ccplane_ebpf::clean(&options).map_err(Failure::runtime)?;
    cleaned.flows_moved = report.flows_moved;
    cleaned.removed.extend(report.removed);
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
    out
}

/// What `demo`, `mm-link` and `mm-delay` need.
fn links() -> Vec<Need> {
    let of = "emulated links";
    let missing = missing_for_links();
    if missing.is_empty() {
        let found = "root, /dev/net/tun, network namespaces".to_owned();
        return vec![Need {
            of,
            what: "devices and permissions".to_owned(),
            ok: true,
            found,
            remedy: String::new(),
        }];
    }
    let need = |what: String, remedy| Need { of, what, ok: false, found: "not there".to_owned(), remedy };
    missing.into_iter().map(|m| need(m.what, m.remedy)).collect()
}
