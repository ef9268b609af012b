//! The kernel module's device, which passes CCP's messages on to a portus that was started for ccp-kernel's links.

use crate::socket::Received;
use ccplane_channel::unread_bytes;
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

    /// Returns the bytes that portus has not read. Netlink tells no number, only that no more fit: 1 then.
    pub fn unread(&self) -> usize {
        unread_bytes(self.device.as_fd()).unwrap_or(usize::from(self.is_full))
    }

    /// Takes a message of portus, or that it has gone.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        match self.device.read(buffer) {
            Ok(bytes) => {
                self.is_full = false;
                Ok(if bytes == 0 { Received::Gone } else { Received::Bytes(bytes) })
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(Received::Nothing)
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
