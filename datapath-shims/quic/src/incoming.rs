//! The core on which the kernel handled a socket's last datagram.
//!
//! The kernel remembers it for sockets that are connected (`SO_INCOMING_CPU`), and a server's is not. There a program on the
//! socket notes it for each datagram; who loads it needs CAP_BPF.

use ccplane_bpf::{
    AttachTo, F_MMAPABLE, MapType, ProgType, SharedMap, attach_to_socket, map_create, prog_load,
};
use ccplane_nn_codegen::asm::{Alu, Asm, Helper, R, Size};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;

/// The name of map and program in the kernel.
const NAME: &str = "ccp_quic_core";
/// Bytes of the map, which are mapped.
const PAGE_BYTES: usize = 4096;
/// A filter's answer that keeps a datagram whole.
const KEEP_ALL: i64 = -1;

/// A note of the core that each of a socket's datagrams is handled on, for as long as the socket is open.
pub(crate) struct CoreNote {
    /// One more than the core; 0 before the first datagram.
    page: SharedMap,
}

impl CoreNote {
    /// Has the kernel note the cores of the socket's datagrams from now on.
    pub(crate) fn attach(socket: BorrowedFd<'_>) -> io::Result<CoreNote> {
        let map = map_create(MapType::Array, NAME, 4, PAGE_BYTES as u32, 1, F_MMAPABLE)?;
        let mut asm = Asm::default();
        asm.call(Helper::GetSmpProcessorId);
        asm.alu_imm(Alu::Add, R::R0, 1);
        asm.map_value(R::R1, map.as_raw_fd(), 0);
        asm.store(Size::B4, R::R1, 0, R::R0);
        asm.mov_imm(R::R0, KEEP_ALL);
        asm.exit();
        let insns = asm.finish().map_err(io::Error::other)?.insns;
        let program = prog_load(ProgType::SocketFilter, NAME, &insns, AttachTo::default());
        attach_to_socket(&program.map_err(|error| error.errno)?, socket)?;
        Ok(CoreNote { page: SharedMap::new(&map, 0, PAGE_BYTES, false)? })
    }

    /// The core of the last datagram; `None` before the first.
    pub(crate) fn core(&self) -> Option<usize> {
        let core = self.page.u32(0).load(Ordering::Relaxed);
        core.checked_sub(1).map(|core| core as usize)
    }
}
