//! A UDP echo that acknowledges: it returns the start of each datagram to its sender, until it is dropped.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ccplane_emulator::netns::Namespace;

use crate::error::{Context as _, Result};

/// The longest answer, bytes: with its headers as long as TCP's acknowledgement with timestamps.
const ANSWER_BYTES: usize = 24;
/// The longest time for which an echo that was dropped goes on.
const WAIT: Duration = Duration::from_millis(50);
/// The longest datagram, bytes.
const MAX_DATAGRAM_BYTES: usize = 2048;

/// A running echo.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts an echo in a namespace, at an address of it and a free port.
    ///
    /// # Errors
    /// The namespace cannot be entered, the address is not there, or no thread can be started.
    pub fn start(namespace: &Namespace, at: IpAddr) -> Result<Echo> {
        let socket = namespace.run(|| UdpSocket::bind((at, 0)))?.context("bind a socket")?;
        let address = socket.local_addr().context("getsockname")?;
        socket.set_read_timeout(Some(WAIT)).context("setsockopt SO_RCVTIMEO")?;
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let thread = thread::Builder::new().name("echo".into()).spawn(move || answer(&socket, &done));
        Ok(Echo { address, is_done, thread: Some(thread.context("start the echo's thread")?) })
    }

    /// The address and port of the echo.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.is_done.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(socket: &UdpSocket, done: &AtomicBool) {
    let mut datagram = [0; MAX_DATAGRAM_BYTES];
    while !done.load(Relaxed) {
        if let Ok((bytes, from)) = socket.recv_from(&mut datagram)
            && let Some(start) = datagram.get(..bytes.min(ANSWER_BYTES))
        {
            // A lost answer is a lost packet.
            let _ = socket.send_to(start, from);
        }
    }
}
