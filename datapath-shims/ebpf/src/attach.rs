//! Attaches the datapath to the kernel, or finds the one that is attached.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::btf::{self, Btf};
use crate::error::{EbpfError, os};
use crate::kernel::{Kernel, MIN_TSO_SEGS, OPS};
use crate::layout::{LAYOUT_VERSION, ctl, rec};
use crate::maps::{OpenMaps, page_bytes};
use crate::options::Options;
use crate::pins;
use crate::refusal::last_lines;
use crate::tcp;
use ccplane_bpf::{self as sys, AttachTo, ProgType, SharedMap};
use ccplane_nn_codegen::asm::Insn;

/// `TCP_CONG_NON_RESTRICTED`: any user, and any network namespace, may choose it.
const TCP_CONG_NON_RESTRICTED: u32 = 1;

/// The loaded programs of the struct_ops members, in the order of [`OPS`]. Every name of a datapath refers to the same ones.
pub struct Members(Vec<(&'static str, OwnedFd)>);

impl Members {
    /// Loads the programs of the members that this kernel has.
    pub fn load(btf: &Btf, kernel: &Kernel, maps: &OpenMaps) -> Result<Members, EbpfError> {
        let mut loaded = Vec::new();
        let has = |member| btf.func_member("tcp_congestion_ops", member).is_ok();
        for member in OPS.into_iter().filter(|member| *member != MIN_TSO_SEGS || has(member)) {
            let insns = tcp::member(member, kernel, maps.fds())?;
            let (index, _) = btf.func_member("tcp_congestion_ops", member)?;
            let to = AttachTo { btf_id: kernel.ops_type, expected: index };
            loaded.push((member, load(ProgType::StructOps, member, &insns, to)?));
        }
        Ok(Members(loaded))
    }

    /// Returns `cong_control`, the last of [`OPS`].
    pub fn into_dispatcher(mut self) -> Option<OwnedFd> {
        self.0.pop().map(|(_, fd)| fd)
    }
}

/// Attaches and pins the datapath; also returns its programs.
pub fn create(options: &Options, btf: &Btf, kernel: &Kernel) -> Result<(OpenMaps, Members), EbpfError> {
    let maps = OpenMaps::create(options.max_flows, [ctl::BYTES, rec::BYTES])?;
    {
        let page = os("map the control page", SharedMap::new(&maps.ctl, 0, page_bytes(), true))?;
        page.u64(ctl::VERSION as usize).store(LAYOUT_VERSION, Relaxed);
        page.u32(ctl::MAX_FLOWS as usize).store(options.max_flows, Relaxed);
        page.u64(ctl::TIMEOUT_US as usize).store(options.heartbeat_timeout.as_micros() as u64, Relaxed);
        page.u64(ctl::HEARTBEAT_US as usize).store(ccplane_files::monotonic_us(), Release);
        maps.slot_memory()?.fill_tables();
    }
    let members = Members::load(btf, kernel, &maps)?;
    let (ops, link) = register(&options.name, btf, &members)?;
    let dir = pins::create(&options.run_dir, &options.name)?;
    for (name, fd) in maps.named() {
        pins::pin(&dir, name, fd)?;
    }
    pins::pin(&dir, "ops", &ops)?;
    // The link comes last: its pin shows that the rest is there.
    pins::pin(&dir, pins::LINK, &link)?;
    Ok((maps, members))
}

/// Registers the datapath under further names, too, and pins them.
pub fn register_also(
    names: &BTreeSet<&str>,
    options: &Options,
    btf: &Btf,
    members: &Members,
) -> Result<(), EbpfError> {
    for name in names {
        let (_, link) = register(name, btf, members)?;
        pins::pin_named(&pins::directory(&options.run_dir, &options.name), name, &link)?;
    }
    Ok(())
}

/// Fills a struct_ops map with the members' programs and registers the congestion control `name`. Returns the map and the link.
fn register(name: &str, btf: &Btf, members: &Members) -> Result<(OwnedFd, OwnedFd), EbpfError> {
    const VALUE_TYPE: &str = "bpf_struct_ops_tcp_congestion_ops";
    let mut value = vec![0u8; btf.struct_bytes(VALUE_TYPE)? as usize];
    let data = btf.field(VALUE_TYPE, "data")?.offset as usize;
    let mut put = |field: &str, bytes: &[u8]| -> Result<(), EbpfError> {
        let at = data + btf.field("tcp_congestion_ops", field)?.offset as usize;
        value[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    for (member, program) in &members.0 {
        put(member, &(program.as_raw_fd() as u64).to_ne_bytes())?;
    }
    put("name", name.as_bytes())?;
    put("flags", &TCP_CONG_NON_RESTRICTED.to_ne_bytes())?;
    let own_btf = os("load BTF", sys::btf_load(&btf::minimal_blob()))?;
    let id = btf.struct_id(VALUE_TYPE)?;
    let ops = os(
        "create the struct_ops map",
        sys::map_create_struct_ops("ccplane_ops", value.len() as u32, id, &own_btf),
    )?;
    os("fill the struct_ops map", sys::map_update(&ops, &0u32.to_ne_bytes(), &value))?;
    let link = os(format!("register the congestion control `{name}`"), sys::link_struct_ops(&ops))?;
    Ok((ops, link))
}

/// Loads a program of this crate.
///
/// # Errors
/// [`EbpfError::Verifier`].
pub fn load(kind: ProgType, name: &str, insns: &[Insn], to: AttachTo) -> Result<OwnedFd, EbpfError> {
    sys::prog_load(kind, name, insns, to).map_err(|e| EbpfError::Verifier {
        program: name.into(),
        source: e.errno,
        log: last_lines(&e.log),
    })
}
