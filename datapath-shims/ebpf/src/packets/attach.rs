//! Programs and links of the packets' datapath.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use super::classify::classifier;
use super::guard::Guard;
use super::header::{Output, exit_next};
use super::lifecycle::on_state;
use super::maps::{OpenPacketMaps, PacketMaps, index_of};
use super::measure::on_round_trip;
use super::netlink::{TrafficControl, ask, has_ours, remove_classifier, remove_qdisc_if_empty};
use super::options::PacketsOptions;
use crate::attach::load;
use crate::btf::Btf;
use crate::error::{EbpfError, os};
use crate::kernel::Kernel;
use ccplane_bpf::{self as sys, AttachTo, ProgType, ProgramLink};
use ccplane_nn_codegen::asm::Asm;
use nix::ifaddrs::getifaddrs;

/// The tracepoint that each change of a TCP socket's state passes.
const STATE_TRACEPOINT: &str = "inet_sock_set_state";
/// Types of devices (include/uapi/linux/if_arp.h) and the bytes of their link headers: Ethernet, loopback, and none, as TUN.
const LINK_HEADERS: [(u16, u32); 3] = [(1, 14), (772, 14), (ARPHRD_NONE, 0)];
const ARPHRD_NONE: u16 = 0xfffe;
/// The errors of a kernel that does not know tcx.
const NO_TCX: [i32; 2] = [libc::EINVAL, libc::EOPNOTSUPP];

/// The ways in which classifiers are attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hooking {
    /// By links, which end with their descriptors.
    Tcx,
    /// By a `clsact` qdisc and `cls_bpf`, which a process of its own takes back.
    Clsact,
}

/// Says what programs write to packets.
pub fn output(options: &PacketsOptions) -> Output {
    Output {
        mark_mask: options.mark_mask,
        dscp: options.writes_dscp,
        flow_label: options.flow_label,
        devices: options.paths.iter().any(|path| path.device.is_some()),
    }
}

/// Returns the length of a device's link header, bytes. It asks the calling thread's network namespace, of which sysfs may show
/// another one.
fn link_bytes(device: &str) -> Result<u32, EbpfError> {
    let all = os("list devices", getifaddrs().map_err(Into::into))?;
    let mut own = all.filter(|of| of.interface_name == device);
    let kind = own.find_map(|of| Some(of.address?.as_link_addr()?.hatype()));
    // A device without an address of its own, such as TUN, has no header to put it into, and the list no type of it.
    let kind = kind.unwrap_or(ARPHRD_NONE);
    let known = LINK_HEADERS.iter().find(|(known, _)| *known == kind);
    known.map(|(_, bytes)| *bytes).ok_or_else(|| EbpfError::BadOption {
        field: "devices",
        value: device.to_owned(),
        limit: format!("devices with Ethernet headers or none; {device} is of type {kind}"),
    })
}

/// Everything that is attached; dropping it takes it out.
pub struct Attached {
    /// Before the rest, since the guard's work is what others may wait for.
    _guard: Option<Guard>,
    _links: Vec<ProgramLink>,
    pub hooking: Hooking,
    /// The classifiers, one for each length of a link header in use.
    pub classifiers: Vec<OwnedFd>,
    /// The control group whose sockets run programs when they connect.
    pub group: Option<File>,
}

/// Attaches everything but programs of the start.
pub fn attach(
    options: &PacketsOptions,
    btf: &Btf,
    kernel: &Kernel,
    maps: &PacketMaps,
) -> Result<Attached, EbpfError> {
    let output = output(options);
    let mut lengths: Vec<(u32, OwnedFd)> = Vec::new();
    let mut devices = Vec::new();
    for device in &options.devices {
        let (ifindex, bytes) = (index_of(device)?, link_bytes(device)?);
        if !lengths.iter().any(|(known, _)| *known == bytes) {
            let insns = classifier(kernel, maps, &output, bytes)?;
            lengths.push((bytes, load(ProgType::SchedCls, "ccplane_packets", &insns, AttachTo::default())?));
        }
        devices.push((device, ifindex, bytes));
    }
    let program = |bytes| lengths.iter().find(|(known, _)| *known == bytes).map(|(_, fd)| fd);
    let devices: Vec<(&String, u32, &OwnedFd)> = devices
        .into_iter()
        .filter_map(|(device, ifindex, bytes)| Some((device, ifindex, program(bytes)?)))
        .collect();
    // First, so that its copy of this process has no link of ours.
    let mut links = Vec::new();
    let mut hooking = if options.without_tcx { Hooking::Clsact } else { Hooking::Tcx };
    if hooking == Hooking::Tcx {
        for (device, ifindex, program) in &devices {
            match sys::link_to(program, *ifindex, sys::TCX_EGRESS) {
                Ok(link) => links.push(link),
                Err(e) if links.is_empty() && e.raw_os_error().is_some_and(|e| NO_TCX.contains(&e)) => {
                    hooking = Hooking::Clsact;
                    break;
                }
                Err(e) => return os(format!("attach to {device}"), Err(e)),
            }
        }
    }
    let guard = match hooking {
        Hooking::Tcx => None,
        Hooking::Clsact => Some(attach_clsact(&devices)?),
    };
    let insns = on_state(kernel, maps)?;
    let to = AttachTo { btf_id: btf.tracepoint_id(STATE_TRACEPOINT)?, expected: sys::TRACE_RAW_TP };
    let ends = load(ProgType::Tracing, "ccplane_state", &insns, to)?;
    links.push(os("attach to the tracepoint of socket states", sys::raw_tracepoint_open(&ends))?);
    let open = |path: &PathBuf| os(format!("open the control group {}", path.display()), File::open(path));
    let group = options.cgroup.as_ref().map(open).transpose()?;
    if let Some(group) = &group {
        let insns = on_round_trip(kernel, maps)?;
        let to = AttachTo { btf_id: 0, expected: sys::CGROUP_SOCK_OPS };
        let program = load(ProgType::SockOps, "ccplane_rtt", &insns, to)?;
        links.push(os(ATTACH_TO_GROUP, link_to_group(&program, group, sys::CGROUP_SOCK_OPS))?);
    }
    let classifiers = lengths.into_iter().map(|(_, fd)| fd).collect();
    Ok(Attached { _guard: guard, _links: links, hooking, classifiers, group })
}

/// Puts classifiers on devices as kernels without tcx have it. Where that fails in the middle, what was put is taken back.
fn attach_clsact(devices: &[(&String, u32, &OwnedFd)]) -> Result<Guard, EbpfError> {
    let control = || os("open a netlink route socket", TrafficControl::open());
    let requests = control()?;
    let mut duties = Vec::new();
    let mut failed = None;
    for (device, ifindex, program) in devices {
        let made = os(format!("make a clsact qdisc on {device}"), requests.add_qdisc(*ifindex));
        let put = made.and_then(|ours| {
            duties.push((*ifindex, ours));
            os(format!("put a classifier on {device}"), requests.add_classifier(*ifindex, program))
        });
        if let Err(error) = put {
            failed = Some(error);
            break;
        }
    }
    let guard = os("start the guard of classifiers", Guard::start(control()?, &duties))?;
    failed.map_or(Ok(guard), Err)
}

/// A classifier that returns at once, as the baseline of benchmarks; it goes when this is dropped.
pub struct EmptyClassifier {
    program: OwnedFd,
    _link: ProgramLink,
}

impl EmptyClassifier {
    /// Attaches one to the egress of a device of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`EbpfError`], also on a kernel without tcx.
    pub fn attach(device: &str) -> Result<EmptyClassifier, EbpfError> {
        let mut asm = Asm::default();
        exit_next(&mut asm);
        let insns = asm.finish()?.insns;
        let program = load(ProgType::SchedCls, "ccplane_empty", &insns, AttachTo::default())?;
        let link =
            os(format!("attach to {device}"), sys::link_to(&program, index_of(device)?, sys::TCX_EGRESS))?;
        Ok(EmptyClassifier { program, _link: link })
    }

    /// The nanoseconds and packets that the kernel has accounted to it.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn accounted(&self) -> std::io::Result<(u64, u64)> {
        sys::prog_stats(&self.program)
    }
}

/// The operation of [`link_to_group`], for errors.
pub const ATTACH_TO_GROUP: &str = "attach to the control group";

/// Attaches a program to a control group.
pub fn link_to_group(program: &OwnedFd, group: &File, attach_type: u32) -> std::io::Result<ProgramLink> {
    sys::link_to(program, group.as_raw_fd() as u32, attach_type)
}

/// Takes back classifiers on these devices that an agent and its guard have left, both killed; returns the devices. A qdisc that
/// is empty then goes with them.
///
/// # Errors
/// The kernel refuses. A device that is not there has none.
pub fn clean(devices: &[String]) -> Result<Vec<String>, EbpfError> {
    let control = os("open a netlink route socket", TrafficControl::open())?;
    let mut cleaned = Vec::new();
    for device in devices {
        let Ok(ifindex) = index_of(device) else { continue };
        if has_ours(control.fd(), ifindex).unwrap_or(false) {
            let removed = ask(control.fd(), &remove_classifier(ifindex))
                .and_then(|()| remove_qdisc_if_empty(control.fd(), ifindex));
            os(format!("take the classifier of {device} back"), removed.map_err(Into::into))?;
            cleaned.push(device.clone());
        }
    }
    Ok(cleaned)
}

/// Whether this kernel has what the packets' datapath needs.
///
/// # Errors
/// What it lacks.
pub fn available() -> Result<(), EbpfError> {
    let btf = Btf::kernel()?;
    let kernel = Kernel::new(&btf)?;
    btf.tracepoint_id(STATE_TRACEPOINT)?;
    let maps = OpenPacketMaps::create(1)?;
    let output = Output { mark_mask: 1, dscp: true, flow_label: true, devices: true };
    let insns = classifier(&kernel, &maps.fds(), &output, LINK_HEADERS[0].1)?;
    load(ProgType::SchedCls, "ccplane_packets", &insns, AttachTo::default()).map(drop)
}
