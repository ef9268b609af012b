//! Shared memory as atomic words, file descriptors that came with a message, and what a socket's peer has not read. All of the crate's `unsafe` is here.
//!
//! Whatever is in memory that another process can write to changes at any time. It is read and written as atomic words
//! only. So no value of it, and no moment at which it changes, is undefined behaviour here; that the file cannot
//! shrink under the mapping is what its seals are checked for.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use crate::atomic::AtomicU64;

/// Seals that a file must have before it is mapped; with its size fixed, no access can fault.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// Returns the bytes that were sent on a unix datagram socket and that no receiver has read yet, as the kernel accounts them.
///
/// # Errors
/// The error of ioctl(2).
pub fn unread_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes one int, and `bytes` is one that lives beyond the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(usize::try_from(bytes).unwrap_or(0)) }
}

/// Words that another process maps too.
#[derive(Debug)]
pub struct SharedWords(Mapping);

/// Reasons why memory of another process is not mapped.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
    /// Its size could still be changed under the mapping.
    #[error("the shared memory is not sealed: {found:#x}")]
    NotSealed { found: i32 },
    /// The file's size differs from the one that was announced.
    #[error("the shared memory has {found} bytes, not {expected}")]
    Size { found: i64, expected: usize },
}

impl MemoryError {
    fn io(what: &'static str) -> impl FnOnce(nix::errno::Errno) -> MemoryError {
        move |errno| MemoryError::Io { what, source: errno.into() }
    }
}

impl SharedWords {
    /// New memory of `len` words, all 0, and the sealed file to hand to the other process.
    ///
    /// # Errors
    /// `Io`.
    pub fn create(len: usize) -> Result<(SharedWords, OwnedFd), MemoryError> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"ccplane-ring", flags).map_err(MemoryError::io("memfd_create"))?;
        let bytes = (len * size_of::<u64>()) as i64;
        ftruncate(&file, bytes).map_err(MemoryError::io("ftruncate"))?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS)).map_err(MemoryError::io("seal shared memory"))?;
        Ok((SharedWords(Mapping::new(&file, len)?), file))
    }

    /// Maps what another process made, if it has `len` words for good.
    ///
    /// # Errors
    /// `NotSealed`, `Size`, `Io`.
    pub fn open(file: &OwnedFd, len: usize) -> Result<SharedWords, MemoryError> {
        let found = fcntl(file, FcntlArg::F_GET_SEALS).map_err(MemoryError::io("look at the seals"))?;
        if !SealFlag::from_bits_retain(found).contains(SEALS) {
            return Err(MemoryError::NotSealed { found });
        }
        let stat = nix::sys::stat::fstat(file).map_err(MemoryError::io("look at the shared memory"))?;
        let expected = len * size_of::<u64>();
        if usize::try_from(stat.st_size) != Ok(expected) {
            return Err(MemoryError::Size { found: stat.st_size, expected });
        }
        Mapping::new(file, len).map(SharedWords)
    }

    /// Maps the first `len` words of a character device, whose driver keeps that memory for as long as it is mapped.
    ///
    /// # Errors
    /// `Io`.
    pub fn of_device(device: &File, len: usize) -> Result<SharedWords, MemoryError> {
        if !device.metadata().is_ok_and(|m| m.file_type().is_char_device()) {
            return Err(MemoryError::io("map a device")(nix::errno::Errno::ENODEV));
        }
        Mapping::new(device, len).map(SharedWords)
    }

    /// Returns the mapped words.
    pub fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

use mapping::Mapping;

/// Words of this process alone, which loom follows.
#[cfg(all(loom, test))]
mod mapping {
    use std::os::fd::AsFd;

    use super::{AtomicU64, MemoryError};

    #[derive(Debug)]
    pub(super) struct Mapping(Box<[AtomicU64]>);

    impl Mapping {
        pub(super) fn new(_file: impl AsFd, len: usize) -> Result<Mapping, MemoryError> {
            Ok(Mapping((0..len).map(|_| AtomicU64::new(0)).collect()))
        }

        pub(super) fn words(&self) -> &[AtomicU64] {
            &self.0
        }
    }
}

#[cfg(not(all(loom, test)))]
mod mapping {
    use std::num::NonZeroUsize;
    use std::os::fd::AsFd;
    use std::ptr::NonNull;

    use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

    use super::{AtomicU64, MemoryError};

    /// Memory of a file.
    #[derive(Debug)]
    pub(super) struct Mapping {
        at: NonNull<AtomicU64>,
        len: usize,
    }

    // SAFETY: the mapping belongs to the process, not to a thread, and lives as long as the value.
    unsafe impl Send for Mapping {}
    // SAFETY: it is reached through `&[AtomicU64]` alone.
    unsafe impl Sync for Mapping {}

    impl Mapping {
        /// Of a file that has `len` words for good.
        pub(super) fn new(file: impl AsFd, len: usize) -> Result<Mapping, MemoryError> {
            let bytes = NonZeroUsize::new(len * size_of::<u64>());
            let bytes = bytes.ok_or(MemoryError::Size { found: 0, expected: 0 })?;
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
            let at = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, file, 0) };
            Ok(Mapping { at: at.map_err(MemoryError::io("map shared memory"))?.cast(), len })
        }

        pub(super) fn words(&self) -> &[AtomicU64] {
            // SAFETY: the mapping is page-aligned, `len` words long for good (its file is sealed, or a device), readable and
            // writable, and lives as long as `self`; all bit patterns are words, and all access, here and in the other process as
            // far as it concerns us, is atomic.
            unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: `new` made exactly this mapping, and no reference into it outlives `self`.
            let unmapped = unsafe { munmap(self.at.cast(), self.len * size_of::<u64>()) };
            debug_assert!(unmapped.is_ok());
        }
    }
}

/// Takes over file descriptors that a message brought.
pub(crate) fn owned(fds: &[RawFd]) -> Vec<OwnedFd> {
    // SAFETY: the kernel has just made them for this process; the caller passes each once, and nothing else owns them.
    fds.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }).collect()
}
