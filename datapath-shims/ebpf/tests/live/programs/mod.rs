//! The programs behind pinned struct_ops links, as the kernel itself lists them.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Commands of bpf(2) (include/uapi/linux/bpf.h).
const MAP_LOOKUP: libc::c_int = 1;
const OBJ_GET: libc::c_int = 7;
const PROG_FD_BY_ID: libc::c_int = 13;
const MAP_FD_BY_ID: libc::c_int = 14;
const GET_INFO: libc::c_int = 15;
/// `BPF_PROG_TYPE_STRUCT_OPS`.
const STRUCT_OPS: u32 = 27;
/// Offsets of `map_id` in `struct bpf_link_info` of a struct_ops link, and of `value_size` in `struct bpf_map_info`.
const LINK_MAP_ID: usize = 16;
const MAP_VALUE_BYTES: usize = 12;
const INFO_BYTES: usize = 64;

/// Calls bpf(2) with an attribute of 64-bit words; some fields are two to a word.
fn bpf(command: libc::c_int, attr: &mut [u64; 16]) -> io::Result<i32> {
    // SAFETY: the attribute, and the buffers that it points to, live across the call and are as long as it says.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of_val(attr)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn open(command: libc::c_int, first: u64) -> io::Result<OwnedFd> {
    let mut attr = [0; 16];
    attr[0] = first;
    // SAFETY: a descriptor that the kernel has just made.
    bpf(command, &mut attr).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn info(of: &OwnedFd) -> [u8; INFO_BYTES] {
    let mut info = [0u8; INFO_BYTES];
    let mut attr = [0; 16];
    attr[0] = of.as_raw_fd() as u64 | (INFO_BYTES as u64) << 32;
    attr[1] = info.as_mut_ptr() as u64;
    bpf(GET_INFO, &mut attr).unwrap();
    info
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Returns the ids of the programs of each struct_ops link that is pinned in a folder: those of its map's value that are programs.
pub fn of_links(folder: &Path) -> Vec<BTreeSet<u32>> {
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.file_name().unwrap().as_bytes().starts_with(b"link"));
    names.sort();
    names.iter().map(|path| of_link(path)).collect()
}

fn of_link(path: &Path) -> BTreeSet<u32> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let link = open(OBJ_GET, path.as_ptr() as u64).unwrap();
    let map = open(MAP_FD_BY_ID, u64::from(word(&info(&link), LINK_MAP_ID))).unwrap();
    let mut value = vec![0u8; word(&info(&map), MAP_VALUE_BYTES) as usize];
    let key = 0u32;
    let mut attr = [0; 16];
    attr[0] = map.as_raw_fd() as u64;
    (attr[1], attr[2]) = (&raw const key as u64, value.as_mut_ptr() as u64);
    bpf(MAP_LOOKUP, &mut attr).unwrap();
    let words = value.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap()));
    words.filter_map(|id| u32::try_from(id).ok()).filter(|id| *id != 0 && is_member(*id)).collect()
}

fn is_member(id: u32) -> bool {
    open(PROG_FD_BY_ID, u64::from(id)).is_ok_and(|program| word(&info(&program), 0) == STRUCT_OPS)
}
