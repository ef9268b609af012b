//! One direction of a running link: its path, and what the path's events act on.

use std::fs::File;
use std::io::{BufWriter, IoSlice};
use std::path::PathBuf;
use std::time::SystemTime;

use nix::errno::Errno;

use crate::class;
use crate::config::{LinkConfig, PathConfig};
use crate::error::{Context, Error, Result};
use crate::event::{Event, Packet, TUN_HEADER_BYTES};
use crate::impair::Loss;
use crate::log::{Header, LogWriter};
use crate::offload::{self, MAX_JOINED, MAX_TRAIN_BYTES, Train, VNET_BYTES, Vnet};
use crate::path::Path;
use crate::pool::{Buffer, Pool};
use crate::shape::Shape;
use crate::stats::DirectionStats;
use crate::tun::Tun;

/// Packets read from one device, at least, before the other has its turn.
const READ_BATCH: usize = 64;

/// A change to a running link.
#[derive(Debug)]
pub(crate) enum Change {
    Shape(Shape),
    DelayUs(u64),
    Loss(Loss),
}

/// One direction: its path, and what the path's events act on.
#[derive(Debug)]
pub(crate) struct HalfLink {
    path: Path<Buffer>,
    outlet: Outlet,
    /// The bytes read last: a header, then a packet or a train.
    scratch: Vec<u8>,
    trains: u32,
}

/// Carries a path's events out.
#[derive(Debug)]
struct Outlet {
    pool: Pool,
    log: Option<Log>,
    /// The packets that depart in this turn, in order.
    leaving: Vec<Buffer>,
}

#[derive(Debug)]
struct Log {
    path: PathBuf,
    writer: LogWriter<BufWriter<File>>,
}

impl HalfLink {
    /// `log` is the file at `config.log`.
    pub(crate) fn new(
        name: &str,
        link: &LinkConfig,
        config: &PathConfig,
        log: Option<File>,
    ) -> Result<HalfLink> {
        let log = config.log.as_ref().zip(log).map(|(path, file)| {
            let header = Header {
                link: name,
                trace: config.shape.to_string(),
                log: path.display().to_string(),
                command_line: &link.command_line,
                queue: config.queue.to_string(),
                init_timestamp_ms: unix_ms(),
                base_timestamp_ms: 0,
                shell_prefix: &link.shell_prefix,
            };
            LogWriter::new(BufWriter::new(file), &header)
                .map(|writer| Log { path: path.clone(), writer })
                .map_err(|source| Error::Log { path: path.clone(), source })
        });
        let pool = Pool::new(config.buffer_packets);
        let outlet = Outlet { pool, log: log.transpose()?, leaving: Vec::new() };
        let scratch = vec![0; VNET_BYTES + MAX_TRAIN_BYTES];
        Ok(HalfLink { path: Path::new(config, 0), outlet, scratch, trains: 0 })
    }

    /// Takes the packets that wait in a device, until they are [`READ_BATCH`] or more.
    pub(crate) fn read(&mut self, now_ns: u64, from: &Tun, stats: &mut DirectionStats) -> Result<()> {
        let mut count = 0;
        while count < READ_BATCH {
            let len = match from.read(&mut self.scratch) {
                Ok(len) => len,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno).context("read from", "a TUN device"),
            };
            count += self.take(now_ns, len, stats);
        }
        Ok(())
    }

    /// Takes the packet or train of the `len` bytes read last; returns how many packets it is.
    fn take(&mut self, now_ns: u64, len: usize, stats: &mut DirectionStats) -> usize {
        let HalfLink { path, outlet, scratch, trains } = self;
        let Some((vnet, packet)) = scratch.get(..len).and_then(<[u8]>::split_first_chunk) else { return 1 };
        let vnet = Vnet::read(*vnet);
        if is_multicast(packet) {
            // The stacks' own chatter (MLD, router solicitations) is no traffic of the link.
            return 1;
        }
        let Some(train) = Train::of(vnet, packet) else {
            let buffer = outlet.pool.fill(|memory| {
                memory.get_mut(..packet.len())?.copy_from_slice(packet);
                Some(packet.len())
            });
            let buffer = buffer.map(|mut buffer| {
                buffer.place.checksum = vnet.checksum();
                buffer
            });
            outlet.send(path, now_ns, buffer, stats);
            return 1;
        };
        // 0 is no train's.
        *trains = trains.wrapping_add(1).max(1);
        for index in 0..train.len() {
            let buffer = outlet.pool.fill(|memory| train.segment(index, memory)).map(|mut buffer| {
                buffer.place = train.place(*trains, index);
                buffer
            });
            outlet.send(path, now_ns, buffer, stats);
        }
        train.len()
    }

    /// Lets leave `to` the device what is due.
    pub(crate) fn advance(&mut self, now_ns: u64, to: &Tun, stats: &mut DirectionStats) {
        self.path.advance(now_ns, &mut |event| self.outlet.take(event, stats));
        self.outlet.leave(to, stats);
    }

    pub(crate) fn apply(&mut self, now_ns: u64, change: Change, to: &Tun, stats: &mut DirectionStats) {
        match change {
            Change::Shape(shape) => {
                if let Some(log) = &mut self.outlet.log {
                    log.writer.comment(format_args!("shape from {} ms: {shape}", now_ns / 1_000_000));
                }
                self.path.set_shape(now_ns, &shape, &mut |event| self.outlet.take(event, stats));
                self.outlet.leave(to, stats);
            }
            Change::DelayUs(delay_us) => self.path.set_delay_us(delay_us),
            Change::Loss(loss) => self.path.set_loss(loss),
        }
    }

    /// When [`HalfLink::advance`] has something to do next, nanoseconds.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.path.next_ns()
    }

    /// Notes what the path holds now.
    pub(crate) fn observe(&self, stats: &mut DirectionStats) {
        stats.observe(&self.path);
    }

    pub(crate) fn finish(self) -> Result<()> {
        let Some(Log { path, writer }) = self.outlet.log else { return Ok(()) };
        writer.finish().map(drop).map_err(|source| Error::Log { path, source })
    }
}

impl Outlet {
    /// Sends a packet that was read, or counts it as refused if no buffer was left for it.
    fn send(
        &mut self,
        path: &mut Path<Buffer>,
        now_ns: u64,
        buffer: Option<Buffer>,
        stats: &mut DirectionStats,
    ) {
        let Some(buffer) = buffer else {
            stats.refused_packets += 1;
            return;
        };
        let bytes = self.pool.bytes(&buffer);
        let (size, priority) = (bytes.len() as u32 + TUN_HEADER_BYTES, class::priority(bytes));
        let packet = |handle| Packet { handle, size, priority, arrived_ns: now_ns };
        stats.offered_packets += 1;
        if path.duplicates()
            && let Some(copy) = self.pool.copy(&buffer)
        {
            stats.duplicated_packets += 1;
            path.send_packet(packet(copy), &mut |event| self.take(event, stats));
        }
        path.send_packet(packet(buffer), &mut |event| self.take(event, stats));
    }

    /// Counts an event and logs it. What departs leaves with [`Outlet::leave`]; every other ended packet's buffer goes back to the pool.
    fn take(&mut self, event: Event<Buffer>, stats: &mut DirectionStats) {
        stats.count(&event);
        if let Some(log) = &mut self.log {
            log.writer.event(&event);
        }
        match event {
            Event::Departure { packet, .. } => self.leaving.push(packet.handle),
            Event::Drop { packet, .. } | Event::Loss { packet, .. } | Event::Policed { packet, .. } => {
                self.pool.release(packet.handle);
            }
            Event::Arrival { .. } | Event::Opportunity { .. } => {}
        }
    }

    /// Writes what has departed, consecutive segments of a train as one.
    fn leave(&mut self, to: &Tun, stats: &mut DirectionStats) {
        let Outlet { pool, leaving, .. } = self;
        let joins = |a: &Buffer, b: &Buffer| {
            a.place.train != 0
                && a.place.train == b.place.train
                && b.place.index == a.place.index.wrapping_add(1)
        };
        for run in leaving.chunk_by(joins).flat_map(|run| run.chunks(MAX_JOINED)) {
            if write(pool, run, to).is_err() {
                stats.undeliverable_packets += run.len() as u64;
            }
        }
        leaving.drain(..).for_each(|buffer| pool.release(buffer));
    }
}

/// Writes a packet, or consecutive segments of one train.
fn write(pool: &Pool, run: &[Buffer], to: &Tun) -> nix::Result<()> {
    let [first, .., last] = run else {
        let Some(only) = run.first() else { return Ok(()) };
        let vnet = Vnet::alone(only.place.checksum).bytes();
        return to.write(&[IoSlice::new(&vnet), IoSlice::new(pool.bytes(only))]);
    };
    let payload =
        |buffer: &Buffer| pool.bytes(buffer).get(usize::from(buffer.place.header_len)..).unwrap_or_default();
    let payload_bytes = run.iter().map(|buffer| payload(buffer).len()).sum();
    let (vnet, header) = offload::join(pool.bytes(first), pool.bytes(last), first.place, payload_bytes)
        .ok_or(Errno::EINVAL)?;
    let vnet = vnet.bytes();
    let mut parts = [IoSlice::new(&[]); MAX_JOINED + 2];
    let count = run.len() + 2;
    let header = header.get(..usize::from(first.place.header_len)).unwrap_or_default();
    let all = [&vnet[..], header].into_iter().chain(run.iter().map(payload));
    parts.iter_mut().zip(all).for_each(|(part, bytes)| *part = IoSlice::new(bytes));
    to.write(parts.get(..count).unwrap_or_default())
}

/// Whether an IP packet goes to a group.
fn is_multicast(packet: &[u8]) -> bool {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => packet.get(16).is_some_and(|byte| byte >> 4 == 0xe),
        Some(6) => packet.get(24) == Some(&0xff),
        _ => false,
    }
}

fn unix_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_millis() as u64)
}
