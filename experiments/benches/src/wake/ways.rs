//! The ways to wait that are measured.

use super::uring::UringConsumer;
use crate::error::{BenchError, context};
use ccplane_bpf::{AttachTo, MapType, ProgType, SharedMap, map_create, prog_load, test_run};
use ccplane_nn_codegen::asm::{Asm, Cond, Helper, R, Size};
use ccplane_wait::affinity::Pinned;
use ccplane_wait::futex::{Futex, MAX_WAITED, wait_any};
use ccplane_wait::{
    Class, DispatchError, Dispatcher, Parker, Ready, WaitStep, Waiter, Wake, begin, sleep_time,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest sleep of a consumer, which an event ends before.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a datagram: a report's.
const DATAGRAM_BYTES: usize = 64;
/// Looks of a polling consumer between two at the clock, or two times that it gives its core to others.
const LOOKS: u32 = 64;
/// Share of a core that `auto` may poll, percent.
pub(super) const AUTO_CPU_PERCENT: u8 = 10;

/// The place of the consumer, seen from the producer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    SameCore,
    OtherCore,
}

impl Place {
    pub(super) fn name(self) -> &'static str {
        match self {
            Place::SameCore => "same-core",
            Place::OtherCore => "other-core",
        }
    }
}

/// Queues between a producer and one consumer or several.
pub(super) trait Channel: Sync {
    /// The number of threads that wait.
    fn consumers(&self) -> usize {
        1
    }

    /// Puts an event into a queue.
    fn raise(&self, queue: usize) -> io::Result<()>;

    /// The end of one of the waiting threads, made on that thread.
    fn consumer(&self, n: usize) -> io::Result<Box<dyn Consumer + '_>>;

    /// A count that only this way makes, where there is one.
    fn called(&self) -> Option<(&'static str, u64)> {
        None
    }
}

/// A waiting thread's end.
pub(super) trait Consumer {
    /// Waits for an event and takes it.
    fn wait(&mut self) -> io::Result<()>;
}

impl<F: FnMut() -> io::Result<()>> Consumer for F {
    fn wait(&mut self) -> io::Result<()> {
        self()
    }
}

/// The queues, once they are open.
type Opened = Result<Box<dyn Channel>, BenchError>;

/// A way to wait.
pub(super) struct Way {
    pub(super) name: &'static str,
    /// Opens so many queues, for consumers at a place, which is that core.
    pub(super) open: fn(usize, Place, usize) -> Opened,
}

/// All ways, the baseline among them.
pub(super) const WAYS: &[Way] = &[
    Way { name: "pipe", open: |queues, _, _| boxed(Pipes::open(queues)) },
    Way { name: "futex", open: |queues, _, _| boxed(Ok(Futexes::open(queues))) },
    Way { name: "eventfd", open: |queues, _, _| boxed(EventFds::open(queues, Through::Poll)) },
    Way { name: "epoll", open: |queues, _, _| boxed(EventFds::open(queues, Through::Epoll)) },
    Way { name: "io_uring", open: |queues, _, _| boxed(EventFds::open(queues, Through::Uring)) },
    Way { name: "unix-datagram", open: |queues, _, _| boxed(Datagrams::open(queues)) },
    Way { name: "bpf-ring", open: |queues, _, _| Ok(Box::new(BpfRings::open(queues)?)) },
    Way { name: "spin", open: |queues, place, _| boxed(Ok(Flags::open(queues, place))) },
    Way {
        name: "dispatch",
        open: |queues, place, core| Ok(Box::new(Dispatched::open(queues, place, core)?)),
    },
    CHOSEN,
];

/// The way that chooses among polling and sleeping.
pub(super) const CHOSEN: Way = Way {
    name: "auto",
    open: |queues, place, _| boxed(Chosen::open(queues, place, Wake::Auto { cpu_percent: AUTO_CPU_PERCENT })),
};

/// The same loop without the choice: it always sleeps.
pub(super) const ASLEEP: Way =
    Way { name: "asleep", open: |queues, place, _| boxed(Chosen::open(queues, place, Wake::Sleep)) };

fn boxed<C: Channel + 'static>(opened: io::Result<C>) -> Result<Box<dyn Channel>, BenchError> {
    Ok(Box::new(context("open queues", opened)?))
}

/// The first of these that is readable, by poll(2).
fn readable<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<usize> {
    let mut polled: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    loop {
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        if let Some(ready) = polled.iter().position(|fd| fd.any().unwrap_or(false)) {
            return Ok(ready);
        }
    }
}

struct Pipes(Vec<(PipeReader, PipeWriter)>);

impl Pipes {
    fn open(queues: usize) -> io::Result<Pipes> {
        Ok(Pipes((0..queues).map(|_| io::pipe()).collect::<io::Result<_>>()?))
    }
}

impl Channel for Pipes {
    fn raise(&self, queue: usize) -> io::Result<()> {
        (&self.0[queue].1).write_all(&[1])
    }

    fn consumer(&self, _: usize) -> io::Result<Box<dyn Consumer + '_>> {
        Ok(Box::new(move || {
            let one =
                if self.0.len() == 1 { 0 } else { readable(self.0.iter().map(|(read, _)| read.as_fd()))? };
            (&self.0[one].0).read_exact(&mut [0])
        }))
    }
}

struct Futexes(Vec<Futex>);

impl Futexes {
    fn open(queues: usize) -> Futexes {
        Futexes((0..queues.min(MAX_WAITED)).map(|_| Futex::new(0)).collect())
    }
}

impl Channel for Futexes {
    fn raise(&self, queue: usize) -> io::Result<()> {
        let word = &self.0[queue];
        word.value().fetch_add(1, Ordering::Release);
        word.wake(1);
        Ok(())
    }

    fn consumer(&self, _: usize) -> io::Result<Box<dyn Consumer + '_>> {
        let mut taken = vec![0; self.0.len()];
        Ok(Box::new(move || -> io::Result<()> {
            loop {
                for (word, taken) in self.0.iter().zip(&mut taken) {
                    if word.value().load(Ordering::Acquire) != *taken {
                        *taken += 1;
                        return Ok(());
                    }
                }
                if let ([word], [taken]) = (&self.0[..], &taken[..]) {
                    word.wait(*taken, Some(PATIENCE));
                } else {
                    let words: Vec<(&Futex, u32)> = self.0.iter().zip(taken.iter().copied()).collect();
                    wait_any(&words, PATIENCE)?;
                }
            }
        }))
    }
}

/// The system call by which eventfds are waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    /// A read that blocks, or poll(2) where there are several.
    Poll,
    Epoll,
    Uring,
}

struct EventFds {
    events: Vec<EventFd>,
    through: Through,
}

impl EventFds {
    fn open(queues: usize, through: Through) -> io::Result<EventFds> {
        let flags = match through {
            Through::Poll => EfdFlags::EFD_CLOEXEC,
            Through::Epoll | Through::Uring => EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
        };
        let events = (0..queues).map(|_| Ok(EventFd::from_flags(flags)?)).collect::<io::Result<_>>()?;
        Ok(EventFds { events, through })
    }

    fn by_epoll(&self) -> io::Result<impl FnMut() -> io::Result<()> + '_> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (n, event) in self.events.iter().enumerate() {
            epoll.add(event, EpollEvent::new(EpollFlags::EPOLLIN, n as u64))?;
        }
        Ok(move || {
            loop {
                let mut ready = [EpollEvent::empty()];
                match epoll.wait(&mut ready, EpollTimeout::NONE) {
                    Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                    Ok(_) => {
                        self.events[ready[0].data() as usize].read()?;
                        return Ok(());
                    }
                    Err(errno) => return Err(errno.into()),
                }
            }
        })
    }
}

impl Channel for EventFds {
    fn raise(&self, queue: usize) -> io::Result<()> {
        self.events[queue].write(1)?;
        Ok(())
    }

    fn consumer(&self, _: usize) -> io::Result<Box<dyn Consumer + '_>> {
        Ok(match self.through {
            Through::Poll => Box::new(move || -> io::Result<()> {
                let events = &self.events;
                let one = if events.len() == 1 { 0 } else { readable(events.iter().map(AsFd::as_fd))? };
                events[one].read()?;
                Ok(())
            }),
            Through::Epoll => Box::new(self.by_epoll()?),
            Through::Uring => {
                let mut ring = UringConsumer::new(&self.events)?;
                Box::new(move || ring.wait())
            }
        })
    }
}

struct Datagrams(Vec<(UnixDatagram, UnixDatagram)>);

impl Datagrams {
    fn open(queues: usize) -> io::Result<Datagrams> {
        Ok(Datagrams((0..queues).map(|_| UnixDatagram::pair()).collect::<io::Result<_>>()?))
    }
}

impl Channel for Datagrams {
    fn raise(&self, queue: usize) -> io::Result<()> {
        self.0[queue].0.send(&[0x5a; DATAGRAM_BYTES]).map(drop)
    }

    fn consumer(&self, _: usize) -> io::Result<Box<dyn Consumer + '_>> {
        Ok(Box::new(move || {
            let one = if self.0.len() == 1 { 0 } else { readable(self.0.iter().map(|(_, to)| to.as_fd()))? };
            self.0[one].1.recv(&mut [0; DATAGRAM_BYTES]).map(drop)
        }))
    }
}

/// Ring buffers of BPF, each with a program that writes one record.
struct BpfRings(Vec<BpfRing>);

struct BpfRing {
    map: OwnedFd,
    program: OwnedFd,
    consumer: SharedMap,
    producer: SharedMap,
}

/// Bytes of a page, and of a ring.
const PAGE_BYTES: usize = 4096;
/// Bytes of a record.
const RECORD_BYTES: i64 = 8;
/// The flag `BPF_RB_FORCE_WAKEUP`.
const RB_FORCE_WAKEUP: i64 = 2;

impl BpfRings {
    fn open(queues: usize) -> Result<BpfRings, BenchError> {
        Ok(BpfRings((0..queues).map(|_| BpfRing::open()).collect::<Result<_, _>>()?))
    }
}

impl BpfRing {
    fn open() -> Result<BpfRing, BenchError> {
        let map = map_create(MapType::Ringbuf, "ccp_bench_wake", 0, 0, PAGE_BYTES as u32, 0);
        let map = context("create a BPF ring", map)?;
        let mut asm = Asm::default();
        let reserved = asm.label();
        asm.map(R::R1, map.as_raw_fd());
        asm.mov_imm(R::R2, RECORD_BYTES);
        asm.mov_imm(R::R3, 0);
        asm.call(Helper::RingbufReserve);
        asm.jump_if_imm(R::R0, Cond::Ne, 0, reserved);
        asm.exit0();
        asm.bind(reserved);
        asm.store_imm(Size::B8, R::R0, 0, 1);
        asm.mov(R::R1, R::R0);
        asm.mov_imm(R::R2, RB_FORCE_WAKEUP);
        asm.call(Helper::RingbufSubmit);
        asm.mov_imm(R::R0, 1);
        asm.exit();
        let insns = asm.finish().map_err(|error| BenchError::Missing(error.to_string()))?.insns;
        let program = prog_load(ProgType::SchedCls, "ccp_bench_wake", &insns, AttachTo::default());
        let program =
            program.map_err(|error| BenchError::Missing(format!("a program that wakes: {}", error.errno)))?;
        let consumer = context("map a BPF ring", SharedMap::new(&map, 0, PAGE_BYTES, true))?;
        let bytes = PAGE_BYTES + 2 * PAGE_BYTES;
        let producer = context("map a BPF ring", SharedMap::new(&map, PAGE_BYTES as i64, bytes, false))?;
        Ok(BpfRing { map, program, consumer, producer })
    }

    /// Takes all records; true if there was one.
    fn take(&self) -> bool {
        let end = self.producer.u64(0).load(Ordering::Acquire);
        let begin = self.consumer.u64(0).load(Ordering::Relaxed);
        self.consumer.u64(0).store(end, Ordering::Release);
        end > begin
    }
}

impl Channel for BpfRings {
    fn raise(&self, queue: usize) -> io::Result<()> {
        match test_run(&self.0[queue].program, 1)? {
            (1, _) => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn consumer(&self, _: usize) -> io::Result<Box<dyn Consumer + '_>> {
        Ok(Box::new(move || -> io::Result<()> {
            while !self.0[readable(self.0.iter().map(|ring| ring.map.as_fd()))?].take() {}
            Ok(())
        }))
    }
}

/// A count on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
pub(super) struct Count(pub(super) AtomicU32);

/// Words that a consumer looks at without pause.
struct Flags {
    counts: Vec<Count>,
    place: Place,
}

impl Flags {
    fn open(queues: usize, place: Place) -> Flags {
        Flags { counts: (0..queues).map(|_| Count::default()).collect(), place }
    }
}

/// A poll of a consumer that may be on its producer's core, which it gives away then.
fn pause(place: Place, looks: u32) {
    if place == Place::SameCore || looks.is_multiple_of(LOOKS) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

impl Channel for Flags {
    fn raise(&self, queue: usize) -> io::Result<()> {
        self.counts[queue].0.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn consumer(&self, _: usize) -> io::Result<Box<dyn Consumer + '_>> {
        let mut taken = vec![0; self.counts.len()];
        Ok(Box::new(move || -> io::Result<()> {
            for looks in 1_u32.. {
                for (count, taken) in self.counts.iter().zip(&mut taken) {
                    if count.0.load(Ordering::Acquire) != *taken {
                        *taken += 1;
                        return Ok(());
                    }
                }
                pause(self.place, looks);
            }
            Ok(())
        }))
    }
}

/// Threads, one a queue, that a dispatcher calls.
struct Dispatched {
    ready: Arc<Ready>,
    parkers: Vec<Arc<Parker>>,
    counts: Vec<Count>,
    dispatcher: Dispatcher,
    core: usize,
    class: Class,
}

impl Dispatched {
    fn open(queues: usize, place: Place, core: usize) -> Result<Dispatched, BenchError> {
        let missing = |error: &dyn std::fmt::Display| BenchError::Missing(format!("a dispatcher: {error}"));
        let ready = Arc::new(Ready::new(queues).map_err(|error| missing(&error))?);
        let parkers: Vec<Arc<Parker>> = (0..queues).map(|_| Arc::new(Parker::new())).collect();
        // On its own core the producer would not run beside a dispatcher under SCHED_FIFO.
        let first = if place == Place::SameCore { Class::Fair } else { Class::Fifo };
        let start = |class| Dispatcher::start(core, class, Arc::clone(&ready), parkers.clone());
        let (class, started) = match start(first) {
            Err(DispatchError::Class(_)) => (Class::Fair, start(Class::Fair)),
            started => (first, started),
        };
        let dispatcher = started.map_err(|error| missing(&error))?;
        let counts = (0..queues).map(|_| Count::default()).collect();
        Ok(Dispatched { ready, parkers, counts, dispatcher, core, class })
    }
}

/// A thread's place under a dispatcher.
pub(super) struct Owner<'a> {
    parker: &'a Parker,
    count: &'a Count,
    taken: u32,
    _pinned: Pinned,
}

impl<'a> Owner<'a> {
    /// An owner of a queue that counts its events, on the thread that was pinned.
    pub(super) fn new(parker: &'a Parker, count: &'a Count, pinned: Pinned) -> Owner<'a> {
        Owner { parker, count, taken: 0, _pinned: pinned }
    }
}

impl Consumer for Owner<'_> {
    fn wait(&mut self) -> io::Result<()> {
        while self.count.0.load(Ordering::Acquire) == self.taken {
            self.parker.wait(PATIENCE);
        }
        self.taken += 1;
        Ok(())
    }
}

impl Channel for Dispatched {
    fn consumers(&self) -> usize {
        self.parkers.len()
    }

    fn raise(&self, queue: usize) -> io::Result<()> {
        self.counts[queue].0.fetch_add(1, Ordering::Release);
        self.ready.mark(queue);
        Ok(())
    }

    fn consumer(&self, n: usize) -> io::Result<Box<dyn Consumer + '_>> {
        let pinned = begin(self.core, self.class).map_err(io::Error::other)?;
        Ok(Box::new(Owner::new(&self.parkers[n], &self.counts[n], pinned)))
    }

    fn called(&self) -> Option<(&'static str, u64)> {
        Some(("marks that the dispatcher took", self.dispatcher.dispatched().marks))
    }
}

/// A thread that waits as its [`Wake`] says, on marks and a parker.
struct Chosen {
    wake: Wake,
    ready: Ready,
    parker: Parker,
    place: Place,
    /// Polls and sleeps so far.
    steps: AtomicU64,
}

impl Chosen {
    fn open(queues: usize, place: Place, wake: Wake) -> io::Result<Chosen> {
        let ready = Ready::new(queues).map_err(io::Error::other)?;
        Ok(Chosen { wake, ready, parker: Parker::new(), place, steps: AtomicU64::new(0) })
    }
}

struct Chooser<'a> {
    chosen: &'a Chosen,
    waiter: Waiter,
    epoch: Instant,
    /// Marks that were taken together with one before.
    left: usize,
}

impl Chooser<'_> {
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn poll(&self, until_ns: u64) {
        for looks in 1_u32.. {
            if !self.chosen.ready.is_empty() || (looks.is_multiple_of(LOOKS) && self.now_ns() >= until_ns) {
                return;
            }
            pause(self.chosen.place, looks);
        }
    }
}

impl Consumer for Chooser<'_> {
    fn wait(&mut self) -> io::Result<()> {
        while self.left == 0 {
            self.left = self.chosen.ready.take(|_| {});
            let now_ns = self.now_ns();
            if self.left > 0 {
                self.waiter.event(now_ns);
                break;
            }
            self.chosen.steps.fetch_add(1, Ordering::Relaxed);
            match self.waiter.next(now_ns) {
                WaitStep::Poll { until_ns } => self.poll(until_ns),
                WaitStep::Sleep { until_ns } => {
                    self.chosen.parker.wait(sleep_time(until_ns, now_ns, PATIENCE));
                }
            }
        }
        self.left -= 1;
        Ok(())
    }
}

impl Channel for Chosen {
    fn raise(&self, queue: usize) -> io::Result<()> {
        self.ready.mark(queue);
        self.parker.call();
        Ok(())
    }

    fn consumer(&self, _: usize) -> io::Result<Box<dyn Consumer + '_>> {
        let mut waiter = Waiter::new(self.wake, 0);
        ccplane_wait::prepare(&mut waiter)?;
        Ok(Box::new(Chooser { chosen: self, waiter, epoch: Instant::now(), left: 0 }))
    }

    fn called(&self) -> Option<(&'static str, u64)> {
        Some(("polls and sleeps", self.steps.load(Ordering::Relaxed)))
    }
}
