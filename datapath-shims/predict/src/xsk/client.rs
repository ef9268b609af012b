//! A client over an AF_XDP socket that polls: a request costs it one system call at most, a reply none.

use super::sys;
use super::{FRAMES, Xsk, XskError, addresses, give};
use crate::frame::{Ends, Template};
use crate::load::Transport;
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Frames that requests leave in; replies come to the others.
const SENDING: usize = FRAMES / 2;
/// The time without a frame after which no late one is expected.
const SILENCE: Duration = Duration::from_millis(1);

/// A client of one server, over IPv4.
pub struct XskClient {
    xsk: Xsk,
    template: Template,
    /// Addresses of frames that are not on their way out.
    idle: Vec<u64>,
    /// The longest wait for a datagram; without one nothing is waited for.
    longest: Option<Duration>,
    /// Owns the client's port, so that no other socket of the kernel's gets it.
    _reserved: UdpSocket,
}

impl XskClient {
    /// Opens a client on the interface that has the first of the two addresses. The kernel chooses its port if that is 0.
    ///
    /// # Errors
    /// The port is taken, no such interface, not root, or another XDP program is on it.
    pub fn open(interface: &str, mut ends: Ends) -> Result<XskClient, XskError> {
        let failed = |source| XskError::System { what: "reserve a port", source };
        let [own, _] = &mut ends.addresses;
        let reserved = UdpSocket::bind(*own).map_err(failed)?;
        let port = reserved.local_addr().map_err(failed)?.port();
        own.set_port(port);
        let xsk = Xsk::with_frames(interface, port, FRAMES - SENDING)?;
        let idle = addresses(FRAMES - SENDING..FRAMES);
        Ok(XskClient { xsk, template: Template::new(ends), idle, longest: None, _reserved: reserved })
    }

    /// The two ends of its datagrams.
    pub fn ends(&self) -> &Ends {
        self.template.ends()
    }

    /// Drops the replies that have come, and those that still come before a millisecond without any.
    pub fn forget(&mut self) {
        let mut last = Instant::now();
        while last.elapsed() < SILENCE {
            if self.xsk.take(|_| ()).is_some() {
                last = Instant::now();
            }
        }
    }

    /// Copies the payload of the oldest reply that has come; drops the frames before it that are none.
    fn reply(&mut self, to: &mut [u8]) -> Option<usize> {
        let XskClient { xsk, template, .. } = self;
        loop {
            let copied = xsk.take(|frame| {
                let payload = template.read(frame)?;
                let bytes = payload.len().min(to.len());
                to.get_mut(..bytes)?.copy_from_slice(payload.get(..bytes)?);
                Some(bytes)
            })?;
            if copied.is_some() {
                return copied;
            }
        }
    }
}

impl Transport for XskClient {
    fn wait_at_most(&mut self, longest: Option<Duration>) -> io::Result<()> {
        self.longest = longest;
        Ok(())
    }

    fn send(&mut self, datagram: &[u8]) -> io::Result<bool> {
        let XskClient { xsk, template, idle, .. } = self;
        xsk.completion.consume(SENDING, |address| idle.push(address));
        let mut sent = 0;
        // Without an idle frame those that wait are sent, and this datagram is lost.
        if let Some(address) = idle.pop() {
            let Some(bytes) = template.write(xsk.frames.get(address), datagram) else {
                idle.push(address);
                return Err(ErrorKind::InvalidInput.into());
            };
            sent = xsk.send.produce(&[libc::xdp_desc { addr: address, len: bytes as u32, options: 0 }]);
            if sent == 0 {
                idle.push(address);
            }
        }
        if xsk.send.needs_wakeup() {
            sys::kick(&xsk.socket)?;
        }
        Ok(sent == 1)
    }

    fn receive(&mut self, to: &mut [u8]) -> io::Result<Option<usize>> {
        let mut length = self.reply(to);
        let Some(longest) = self.longest else { return Ok(length) };
        let began = Instant::now();
        while length.is_none() {
            let left = longest.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
            sys::wait(&self.xsk.socket, left_ms.saturating_add(1))?;
            length = self.reply(to);
        }
        Ok(length)
    }
}

impl Xsk {
    /// Takes in the oldest frame that has come, and gives its memory back once it was read; `None` if there is none.
    fn take<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut arrived = None;
        self.receive.consume(1, |frame| arrived = Some(frame));
        let libc::xdp_desc { addr, len, .. } = arrived?;
        let frame = self.frames.get(addr);
        let read = read(frame.get(..len as usize).unwrap_or_default());
        self.free.push(addr);
        give(&mut self.fill, &mut self.free);
        Some(read)
    }
}
