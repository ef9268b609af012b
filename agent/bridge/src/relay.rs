//! The kernel module's device, which passes CCP's messages on to a portus that listens on netlink.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Whether what is at a path is a device rather than portus's own socket.
pub(crate) fn is_relay(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_char_device())
}

/// The device, opened, which has one opener.
pub(crate) struct Relay {
    device: File,
    /// Whether portus had no room for the last message, and has said nothing since.
    is_full: bool,
}

impl Relay {
    pub fn open(path: &Path) -> io::Result<Relay> {
        let flags = nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC;
        let device = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        Ok(Relay { device, is_full: false })
    }

    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Whether portus listens: the device is writable meanwhile.
    pub fn has_listener(&self) -> bool {
        let mut fds = [PollFd::new(self.device.as_fd(), PollFlags::POLLOUT)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Returns a sign of messages that portus has not read: netlink tells no number of bytes, only that no more fit.
    pub fn unread(&self) -> usize {
        usize::from(self.is_full)
    }

    /// Takes a message of portus; `None` where none waits.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.device.read(buffer) {
            Ok(bytes) => {
                self.is_full = false;
                Ok(Some(bytes))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let sent = self.device.write(message);
        self.is_full = sent.as_ref().is_err_and(|e| e.raw_os_error() == Some(Errno::EAGAIN as i32));
        sent.map(|_| ())
    }
}
