//! One TCP connection over an emulated link, whose application either has always more to send or limits it.

use ccplane_emulator::Emulator;
use nix::sys::socket::{setsockopt, sockopt};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The rate of an application that limits its flow: a tenth of the link.
pub(super) const LIMITED_BYTES_PER_S: u64 = 300_000;
const LIMITED_EVERY: Duration = Duration::from_millis(50);
const LIMITED_BYTES: usize = LIMITED_BYTES_PER_S as usize / 20;
const CHUNK_BYTES: usize = 1 << 16;
/// The time that a thread waits at most before it looks whether to stop.
const NAP: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Wanted {
    stop: AtomicBool,
    limited: AtomicBool,
}

/// A flow under way. Dropping it ends it and waits for its threads.
pub(super) struct Traffic {
    port: u16,
    wanted: Arc<Wanted>,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Connects over `link` to this port, with this congestion control from the connection's start on.
    pub(super) fn start(congestion: &str, link: &Emulator, port: u16) -> io::Result<Traffic> {
        let other = |e: ccplane_emulator::Error| io::Error::other(e.to_string());
        let to = SocketAddr::from((link.receiver_addresses().v4, port));
        let listener = link.receiver_ns().run(|| TcpListener::bind(to)).map_err(other)??;
        let sender = link.sender_ns().run(|| TcpStream::connect(to)).map_err(other)??;
        setsockopt(&sender, sockopt::TcpCongestion, &OsString::from(congestion))?;
        sender.set_write_timeout(Some(NAP))?;
        let (receiver, _) = listener.accept()?;
        receiver.set_read_timeout(Some(NAP))?;
        let wanted = Arc::new(Wanted::default());
        let spawn = |run: fn(TcpStream, &Wanted), stream| {
            let wanted = Arc::clone(&wanted);
            thread::spawn(move || run(stream, &wanted))
        };
        let threads = vec![spawn(send, sender), spawn(receive, receiver)];
        Ok(Traffic { port, wanted, threads })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Whether the application limits the flow from now on.
    pub(super) fn limit(&self, limited: bool) {
        self.wanted.limited.store(limited, Relaxed);
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.wanted.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn send(mut stream: TcpStream, wanted: &Wanted) {
    let chunk = [0; CHUNK_BYTES];
    while !wanted.stop.load(Relaxed) {
        let limited = wanted.limited.load(Relaxed);
        if limited {
            thread::sleep(LIMITED_EVERY);
        }
        match stream.write(&chunk[..if limited { LIMITED_BYTES } else { CHUNK_BYTES }]) {
            Err(e) if !is_temporary(&e) => return,
            _ => {}
        }
    }
}

fn receive(mut stream: TcpStream, wanted: &Wanted) {
    let mut chunk = [0; CHUNK_BYTES];
    while !wanted.stop.load(Relaxed) {
        match stream.read(&mut chunk) {
            Ok(0) => return,
            Err(e) if !is_temporary(&e) => return,
            _ => {}
        }
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
