//! UDP packets of 1500 bytes at a rate, whatever becomes of them.

use std::iter::Peekable;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use ccplane_netsim::CrossTimes;

use super::test_path::TestPath;
use crate::error::{Context, Error, Result};
use crate::plan::Datagrams;

/// The first source's port.
const PORT: u16 = 30_000;
/// Payload, bytes: an IP packet of 1500 without its headers.
const PAYLOAD_BYTES: usize = 1500 - 28;
/// The longest sleep between checks for the run's end.
const NAP: Duration = Duration::from_millis(20);
/// Shortest sleep: what is due closer together is sent together.
const LEAST_NAP: Duration = Duration::from_micros(200);
/// Most packets sent at once; what a busy machine leaves behind beyond them is not made up for.
const MAX_BURST: usize = 64;

/// Sends source `n`'s packets until they stop, or `halt` is set. The receiver's socket takes them unread.
pub(super) fn start<'scope, 'env: 'scope>(
    what: Datagrams,
    n: usize,
    seed: u64,
    test_path: &'env TestPath,
    epoch: Instant,
    halt: &'env AtomicBool,
    scope: &'scope Scope<'scope, 'env>,
) -> Result<()> {
    let times = CrossTimes::new(&what.source(), seed, n)
        .map_err(|e| Error::Config { field: "background", reason: e.to_string() })?;
    let to = SocketAddr::new(test_path.receiver_ip(), PORT.saturating_add(n as u16));
    let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let sink = test_path.receiver().run(|| UdpSocket::bind(to))?.context("bind a UDP socket")?;
    let socket = test_path.sender().run(|| UdpSocket::bind(from))?.context("bind a UDP socket")?;
    socket.connect(to).context("connect a UDP socket")?;
    socket.set_nonblocking(true).context("set O_NONBLOCK")?;
    scope.spawn(move || {
        send(&socket, times.peekable(), epoch, halt);
        drop(sink);
    });
    Ok(())
}

fn send(socket: &UdpSocket, mut times: Peekable<CrossTimes>, epoch: Instant, halt: &AtomicBool) {
    let packet = [0; PAYLOAD_BYTES];
    while !halt.load(Ordering::Acquire) {
        let now_ns = epoch.elapsed().as_nanos() as u64;
        let mut due = 0;
        while times.next_if(|at_ns| *at_ns <= now_ns).is_some() {
            due += 1;
        }
        for _ in 0..due.min(MAX_BURST) {
            // What the device has no room for is lost, as on any network.
            let _ = socket.send(&packet);
        }
        let Some(next_ns) = times.peek() else { return };
        thread::sleep(Duration::from_nanos(next_ns.saturating_sub(now_ns)).clamp(LEAST_NAP, NAP));
    }
}
