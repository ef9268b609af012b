//! Load on a server: one outstanding request, or requests at a rate whatever comes back.
//!
//! A request's id is the time at which it was due, in nanoseconds since the start. So a reply's age includes the time
//! that it waited for its turn. Datagrams go over any [`Transport`]: a UDP socket, or a socket of AF_XDP
//! ([`XskClient`](crate::xsk::XskClient)).

use crate::data::Images;
use crate::packet::{MAX_DATAGRAM_BYTES, MESSAGE_BYTES, Reply, write_request};
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Latencies that are kept, at most; of more, every second one is left out, and so on.
const MAX_LATENCIES: usize = 1 << 20;
/// The longest wait for a reply to the one outstanding request.
const PATIENCE: Duration = Duration::from_millis(200);
/// The time for which replies are waited for after the last request of an open loop.
const REST: Duration = Duration::from_millis(200);

/// The ways in which requests are sent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// The next request leaves when the reply to the one before has come.
    OneOutstanding,
    /// Requests leave at this rate, each second, whether replies come or not.
    OpenLoop(f64),
}

/// A load of requests on a server.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    pub slot: u8,
    pub pace: Pace,
    /// The time for which requests are sent.
    pub time: Duration,
    /// Whether each reply is answered by feedback.
    pub feedback: bool,
    /// Whether the client polls its transport rather than sleep in it.
    pub spins: bool,
}

/// The outcome of a load.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct LoadOutcome {
    pub sent: u64,
    pub answered: u64,
    /// Replies whose class was true.
    pub right: u64,
    /// The time from the first request to the last reply.
    pub time: Duration,
    latencies: Latencies,
}

impl LoadOutcome {
    /// The number of replies a second.
    pub fn per_second(&self) -> f64 {
        self.answered as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The latency that a share of the replies had at most, nanoseconds; `None` if there were no replies.
    pub fn latency_ns(&self, share: f64) -> Option<u64> {
        let mut sorted = self.latencies.kept.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        sorted.get((last as f64 * share.clamp(0.0, 1.0)).round() as usize).copied()
    }
}

/// An even sample of latencies.
#[derive(Clone, PartialEq, Default, Debug)]
struct Latencies {
    kept: Vec<u64>,
    seen: u64,
    /// Every latency whose number has these lower bits 0 is kept.
    mask: u64,
}

impl Latencies {
    fn add(&mut self, latency_ns: u64) {
        if self.seen & self.mask == 0 {
            if self.kept.len() == MAX_LATENCIES {
                let mut n = 0;
                self.kept.retain(|_| {
                    n += 1;
                    n % 2 == 1
                });
                self.mask = self.mask << 1 | 1;
            }
            if self.seen & self.mask == 0 {
                self.kept.push(latency_ns);
            }
        }
        self.seen += 1;
    }
}

/// A way of datagrams between a client and one server.
pub trait Transport {
    /// Sets the longest time that [`receive`](Transport::receive) waits; with `None` it returns at once.
    fn wait_at_most(&mut self, longest: Option<Duration>) -> io::Result<()>;

    /// Sends a datagram; returns whether there was a way for it.
    fn send(&mut self, datagram: &[u8]) -> io::Result<bool>;

    /// Receives a datagram, as far as `to` has room, and returns its length; `None` if there is none.
    fn receive(&mut self, to: &mut [u8]) -> io::Result<Option<usize>>;
}

/// A socket that is connected to the server.
impl Transport for &UdpSocket {
    fn wait_at_most(&mut self, longest: Option<Duration>) -> io::Result<()> {
        self.set_nonblocking(longest.is_none())?;
        self.set_read_timeout(longest)
    }

    fn send(&mut self, datagram: &[u8]) -> io::Result<bool> {
        match UdpSocket::send(self, datagram) {
            Ok(_) => Ok(true),
            Err(error) if is_passing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn receive(&mut self, to: &mut [u8]) -> io::Result<Option<usize>> {
        match UdpSocket::recv(self, to) {
            Ok(length) => Ok(Some(length)),
            Err(error) if is_passing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl<T: Transport> Transport for &mut T {
    fn wait_at_most(&mut self, longest: Option<Duration>) -> io::Result<()> {
        (**self).wait_at_most(longest)
    }

    fn send(&mut self, datagram: &[u8]) -> io::Result<bool> {
        (**self).send(datagram)
    }

    fn receive(&mut self, to: &mut [u8]) -> io::Result<Option<usize>> {
        (**self).receive(to)
    }
}

/// Asks a server over a transport, image after image.
///
/// # Errors
/// The transport is broken. That the server is away is none: its replies are missing in the outcome.
pub fn run(transport: impl Transport, images: &Images, load: &Load) -> io::Result<LoadOutcome> {
    run_then(transport, images, load, &mut |_| {})
}

/// Asks as [`run`] does. When no more requests are sent, and before the last replies are waited for, calls `ended` with the outcome so
/// far.
///
/// # Errors
/// As there.
pub fn run_then(
    transport: impl Transport,
    images: &Images,
    load: &Load,
    ended: &mut dyn FnMut(&LoadOutcome),
) -> io::Result<LoadOutcome> {
    let mut client = Client {
        transport,
        images,
        load,
        start: Instant::now(),
        next: 0,
        reply: [0; MESSAGE_BYTES + 1],
        outcome: LoadOutcome::default(),
    };
    match load.pace {
        Pace::OneOutstanding => client.one_outstanding(ended)?,
        Pace::OpenLoop(rate) => client.open_loop(rate, ended)?,
    }
    Ok(client.outcome)
}

struct Client<'a, T> {
    transport: T,
    images: &'a Images,
    load: &'a Load,
    start: Instant,
    /// The number of the next request.
    next: usize,
    reply: [u8; MESSAGE_BYTES + 1],
    outcome: LoadOutcome,
}

/// Bits of an id that hold the image's number; the others hold the time.
const IMAGE_BITS: u32 = 16;

impl<T: Transport> Client<'_, T> {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn one_outstanding(&mut self, ended: &mut dyn FnMut(&LoadOutcome)) -> io::Result<()> {
        self.transport.wait_at_most((!self.load.spins).then_some(PATIENCE))?;
        while self.start.elapsed() < self.load.time {
            let id = self.send(self.now_ns())?;
            let sent = Instant::now();
            while self.receive()? != Some(id) {
                if sent.elapsed() > PATIENCE {
                    break;
                }
            }
        }
        self.outcome.time = self.start.elapsed();
        ended(&self.outcome);
        Ok(())
    }

    fn open_loop(&mut self, rate: f64, ended: &mut dyn FnMut(&LoadOutcome)) -> io::Result<()> {
        self.transport.wait_at_most(None)?;
        let gap_ns = 1e9 / rate.max(f64::MIN_POSITIVE);
        let (mut due, mut last, mut was_over) = (0.0, self.start, false);
        loop {
            let now_ns = self.now_ns();
            let is_over = self.start.elapsed() >= self.load.time;
            if is_over && !was_over {
                was_over = true;
                ended(&self.outcome);
            }
            if !is_over && now_ns as f64 >= due {
                self.send(due as u64)?;
                due += gap_ns;
                last = Instant::now();
            }
            if self.receive()?.is_some() {
                self.outcome.time = self.start.elapsed();
            } else if is_over {
                if last.elapsed() > REST || self.outcome.answered >= self.outcome.sent {
                    return Ok(());
                }
            } else if !self.load.spins && (due - now_ns as f64) > 1e6 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// Sends the next request, which was due at that time; returns its id.
    fn send(&mut self, due_ns: u64) -> io::Result<u64> {
        let image = self.next % self.images.len().clamp(1, 1 << IMAGE_BITS);
        self.next += 1;
        let id = due_ns << IMAGE_BITS | image as u64;
        let (pixels, _) = self.images.get(image).unwrap_or_default();
        let mut request = [0; MAX_DATAGRAM_BYTES];
        let length = write_request(&mut request, self.load.slot, id, pixels);
        let is_sent = self.transport.send(request.get(..length).unwrap_or_default())?;
        self.outcome.sent += u64::from(is_sent);
        Ok(id)
    }

    /// Takes a reply, if there is one, and gives feedback; returns its id.
    fn receive(&mut self) -> io::Result<Option<u64>> {
        let Some(length) = self.transport.receive(&mut self.reply)? else { return Ok(None) };
        let Some(reply) = Reply::parse(self.reply.get(..length).unwrap_or_default()) else {
            return Ok(None);
        };
        self.outcome.answered += 1;
        self.outcome.latencies.add(self.now_ns().saturating_sub(reply.id >> IMAGE_BITS));
        let image = (reply.id & ((1 << IMAGE_BITS) - 1)) as usize;
        if let Some((_, truth)) = self.images.get(image) {
            self.outcome.right += u64::from(reply.class == truth);
            if self.load.feedback {
                self.transport.send(&reply.feedback(truth))?;
            }
        }
        Ok(Some(reply.id))
    }
}

/// Whether an error passes by itself: there is nothing yet, no room, or nobody at the other end.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    ) || error.raw_os_error() == Some(libc::ENOBUFS)
}
