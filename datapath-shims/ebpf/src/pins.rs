//! Pins in a BPF file system, where the datapath lives while no agent runs.
//!
//! Where the machine has no such file system, we mount our own.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::error::{EbpfError, os};
use ccplane_bpf as sys;

const SYSTEM_BPFFS: &str = "/sys/fs/bpf";
/// The pin that marks the datapath as complete.
pub const LINK: &str = "link";
/// The start of the pin of a further name's link, which holds its members.
const NAMED_LINK: &str = "link-";

fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|s| s.filesystem_type() == BPF_FS_MAGIC)
}

/// Directories where a datapath may be pinned: in the system's BPF file system, and in our own under `run_dir`.
fn candidates(run_dir: &Path, name: &str) -> [PathBuf; 2] {
    [Path::new(SYSTEM_BPFFS).join(name), own_mount(run_dir).join(name)]
}

/// The pin directory: where the datapath is pinned, or else where it would be.
///
/// A BPF file system may be mounted for the system while a datapath is pinned in our own.
pub fn directory(run_dir: &Path, name: &str) -> PathBuf {
    let [system, own] = candidates(run_dir, name);
    if own.join(LINK).exists() || !is_bpffs(Path::new(SYSTEM_BPFFS)) { own } else { system }
}

fn own_mount(run_dir: &Path) -> PathBuf {
    run_dir.join("bpf")
}

/// Makes the pin directory.
pub fn create(run_dir: &Path, name: &str) -> Result<PathBuf, EbpfError> {
    let dir = directory(run_dir, name);
    if let Some(at) = dir.parent().filter(|at| !is_bpffs(at)) {
        os(format!("create {}", at.display()), fs::create_dir_all(at))?;
        let mounted =
            mount(Some("bpf"), at, Some("bpf"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=0700"));
        os(format!("mount a BPF file system on {}", at.display()), mounted.map_err(Into::into))?;
    }
    os(format!("create {}", dir.display()), fs::create_dir_all(&dir))?;
    Ok(dir)
}

/// Pins one object.
pub fn pin(dir: &Path, name: &str, fd: &OwnedFd) -> Result<(), EbpfError> {
    let path = dir.join(name);
    os(format!("pin {}", path.display()), sys::pin(fd, &path))
}

/// Pins the link of a further name.
pub fn pin_named(dir: &Path, name: &str, link: &OwnedFd) -> Result<(), EbpfError> {
    pin(dir, &format!("{NAMED_LINK}{name}"), link)
}

/// Lists the further names under which the datapath is registered.
pub fn names(run_dir: &Path, name: &str) -> Vec<String> {
    let listed = fs::read_dir(directory(run_dir, name)).into_iter().flatten().flatten();
    let named = |e: fs::DirEntry| Some(e.file_name().to_str()?.strip_prefix(NAMED_LINK)?.to_owned());
    listed.filter_map(named).collect()
}

/// Lists the datapaths that are pinned in the run directory's own file system.
pub fn own(run_dir: &Path) -> Vec<String> {
    let listed = fs::read_dir(own_mount(run_dir)).into_iter().flatten().flatten();
    listed.filter(|e| e.path().is_dir()).filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// Opens one pinned object.
pub fn open(dir: &Path, name: &str) -> Result<OwnedFd, EbpfError> {
    let path = dir.join(name);
    os(format!("open {}", path.display()), sys::get_pinned(&path))
}

/// Removes the pins, the directory, and the mount if it is ours and empty. Returns the removed paths.
pub fn remove(run_dir: &Path, name: &str) -> Result<Vec<PathBuf>, EbpfError> {
    let mut removed = Vec::new();
    for dir in candidates(run_dir, name) {
        if dir.parent().is_some_and(is_bpffs) && dir.is_dir() {
            remove_pins(&dir, &mut removed)?;
        }
    }
    let own = own_mount(run_dir);
    // The kernel puts maps.debug and progs.debug into every BPF file system; what others pin lies in directories.
    let empty = || fs::read_dir(&own).is_ok_and(|d| d.flatten().all(|e| e.path().is_file()));
    if is_bpffs(&own) && empty() {
        // A process that reads it at this moment may finish.
        os(format!("unmount {}", own.display()), umount2(&own, MntFlags::MNT_DETACH).map_err(Into::into))?;
        let _ = fs::remove_dir(&own);
        removed.push(own);
    }
    Ok(removed)
}

/// Removes everything that is pinned in `dir`, also by another version of ours.
fn remove_pins(dir: &Path, removed: &mut Vec<PathBuf>) -> Result<(), EbpfError> {
    let listed = os(format!("list {}", dir.display()), fs::read_dir(dir))?;
    let mut pins: Vec<PathBuf> = listed.flatten().map(|e| e.path()).collect();
    // The links go first: no new flow finds the datapath after that.
    let is_link = |path: &Path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(LINK.as_bytes()))
    };
    pins.sort_by_key(|path| !is_link(path));
    for path in pins {
        os(format!("remove {}", path.display()), fs::remove_file(&path))?;
        removed.push(path);
    }
    os(format!("remove {}", dir.display()), fs::remove_dir(dir))?;
    removed.push(dir.to_owned());
    Ok(())
}

/// Whether a datapath is pinned.
pub fn exists(run_dir: &Path, name: &str) -> bool {
    directory(run_dir, name).join(LINK).exists()
}
