//! Wires in memory, in virtual time: a link each way that delays, loses, repeats, reorders and has an MTU.

use bytes::BytesMut;
use ccplane_quic::quinn_proto::Transmit;
use ccplane_quic::{Datagram, Wire};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A link with the same properties in both directions.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub bytes_per_s: u64,
    pub delay: Duration,
    /// The longest wait in the queue: further datagrams are dropped.
    pub queue: Duration,
    /// Lost datagrams per thousand.
    pub lost: u32,
    pub repeated: u32,
    /// Datagrams per thousand held back by up to 3 delays.
    pub reordered: u32,
    pub mtu_bytes: usize,
}

impl Link {
    pub fn new(mbit_per_s: u64, delay_ms: u64) -> Link {
        Link {
            bytes_per_s: mbit_per_s * 125_000,
            delay: Duration::from_millis(delay_ms),
            queue: Duration::from_millis(4 * delay_ms.max(5)),
            lost: 0,
            repeated: 0,
            reordered: 0,
            mtu_bytes: 1472,
        }
    }
}

struct Inner {
    link: Link,
    rng: ChaCha8Rng,
    now: Instant,
    /// When the link from an address is free again.
    free_at: BTreeMap<SocketAddr, Instant>,
    /// Datagrams on their way, by destination and arrival.
    flying: BTreeMap<(SocketAddr, Instant, u64), Datagram>,
    count: u64,
    /// Whether the link drops everything.
    down: bool,
    /// Wires that keep what they take while the link is down, and send it once it is up.
    keeping: BTreeSet<SocketAddr>,
    kept: Vec<(SocketAddr, Datagram)>,
    /// Whether wires refuse everything.
    full: bool,
    /// When the link came up again, and when a datagram was first sent after that.
    up_at: Option<Instant>,
    used_at: Option<Instant>,
    /// Wires that are still to be told that the link came up.
    told: BTreeSet<SocketAddr>,
}

/// The network of all wires.
#[derive(Clone)]
pub struct Net(Rc<RefCell<Inner>>);

impl Net {
    pub fn new(link: Link, seed: u64) -> Net {
        Net(Rc::new(RefCell::new(Inner {
            link,
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: Instant::now(),
            free_at: BTreeMap::new(),
            flying: BTreeMap::new(),
            count: 0,
            down: false,
            keeping: BTreeSet::new(),
            kept: Vec::new(),
            full: false,
            up_at: None,
            used_at: None,
            told: BTreeSet::new(),
        })))
    }

    pub fn wire(&self, local: &str) -> MemoryWire {
        MemoryWire { net: self.clone(), local: local.parse().unwrap() }
    }

    pub fn now(&self) -> Instant {
        self.0.borrow().now
    }

    pub fn set_now(&self, now: Instant) {
        self.0.borrow_mut().now = now;
    }

    pub fn change(&self, change: impl FnOnce(&mut Link)) {
        change(&mut self.0.borrow_mut().link);
    }

    /// Takes the link down; the wires at `keeping` keep their queues meanwhile.
    pub fn set_down(&self, keeping: &[&str]) {
        let mut inner = self.0.borrow_mut();
        inner.down = true;
        inner.keeping = keeping.iter().map(|at| at.parse().unwrap()).collect();
    }

    /// Makes all wires refuse datagrams from now on.
    pub fn set_full(&self) {
        self.0.borrow_mut().full = true;
    }

    /// Brings the link up again, and tells the wires at these addresses.
    pub fn set_up(&self, told: &[&str]) {
        let mut inner = self.0.borrow_mut();
        let now = inner.now;
        (inner.down, inner.up_at, inner.used_at) = (false, Some(now), None);
        inner.told = told.iter().map(|at| at.parse().unwrap()).collect();
        let arrival = now + inner.link.delay;
        for (to, datagram) in std::mem::take(&mut inner.kept) {
            inner.count += 1;
            let key = (to, arrival, inner.count);
            inner.flying.insert(key, datagram);
        }
    }

    /// Time from when the link came up until it was used.
    pub fn unused_for(&self) -> Option<Duration> {
        let inner = self.0.borrow();
        Some(inner.used_at? - inner.up_at?)
    }

    /// When the next datagram arrives at one of these addresses.
    pub fn next(&self, at: &[SocketAddr]) -> Option<Instant> {
        let inner = self.0.borrow();
        inner.flying.keys().filter(|(to, ..)| at.contains(to)).map(|(_, when, _)| *when).min()
    }
}

impl Inner {
    fn chance(&mut self, of_thousand: u32) -> bool {
        of_thousand > 0 && self.rng.next_u32() % 1000 < of_thousand
    }

    fn carry(&mut self, from: SocketAddr, to: &Transmit, payload: &[u8]) {
        let link = self.link;
        if !self.down && self.up_at.is_some() {
            self.used_at.get_or_insert(self.now);
        }
        let datagram = || Datagram {
            remote: from,
            local_ip: Some(to.destination.ip()),
            ecn: to.ecn,
            payload: BytesMut::from(payload),
        };
        if self.down && self.keeping.contains(&from) {
            self.kept.push((to.destination, datagram()));
            return;
        }
        if self.down || payload.len() > link.mtu_bytes || self.chance(link.lost) {
            return;
        }
        let start = (*self.free_at.get(&from).unwrap_or(&self.now)).max(self.now);
        if start - self.now > link.queue {
            return;
        }
        let free = start + Duration::from_nanos(payload.len() as u64 * 1_000_000_000 / link.bytes_per_s);
        self.free_at.insert(from, free);
        for _ in 0..1 + u32::from(self.chance(link.repeated)) {
            let late = if self.chance(link.reordered) {
                link.delay * (self.rng.next_u32() % 3000) / 1000
            } else {
                Duration::ZERO
            };
            self.count += 1;
            self.flying.insert((to.destination, free + link.delay + late, self.count), datagram());
        }
    }
}

pub struct MemoryWire {
    net: Net,
    local: SocketAddr,
}

impl Wire for MemoryWire {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        let mut count = 0;
        loop {
            let mut inner = self.net.0.borrow_mut();
            let (from, until) =
                ((self.local, inner.now - Duration::from_secs(3600), 0), (self.local, inner.now, u64::MAX));
            let Some(key) = inner.flying.range(from..=until).next().map(|(key, _)| *key) else { break };
            let datagram = inner.flying.remove(&key).unwrap();
            drop(inner);
            each(datagram);
            count += 1;
        }
        Ok(count)
    }

    fn send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        let mut inner = self.net.0.borrow_mut();
        if inner.full {
            return Ok(false);
        }
        for datagram in payload.chunks(to.segment_size.unwrap_or(payload.len()).max(1)) {
            inner.carry(self.local, to, datagram);
        }
        Ok(true)
    }

    fn max_segments(&self) -> usize {
        8
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn came_up(&mut self) -> bool {
        self.net.0.borrow_mut().told.remove(&self.local)
    }

    fn wait(&mut self, _timeout: Duration) -> io::Result<()> {
        Ok(())
    }
}
