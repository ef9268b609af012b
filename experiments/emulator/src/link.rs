//! The forwarding thread: reads packets from two TUN devices, hands them to the sans-IO paths, writes what leaves them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;

use crate::config::{Direction, LinkConfig, Logs};
use crate::error::{Context, Error, Result};
use crate::half_link::{Change, HalfLink};
use crate::stats::LinkStats;
use crate::sys;
use crate::tun::Tun;

/// Shortest sleep: departures closer together than this leave together. At 300 Mb/s and above that saves wake-ups.
const MIN_SLEEP_NS: u64 = 50_000;
/// Longest sleep, so that counters and logs stay fresh while nothing moves.
const MAX_SLEEP_NS: u64 = 100_000_000;
/// Descriptors that the thread waits for: two devices, the timer, the wake-up.
const MAX_EVENTS: usize = 4;

/// A command to the thread.
#[derive(Debug)]
enum Command {
    Change(Direction, Change),
    Stop,
}

/// A running link; dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct EmulatedLink {
    commands: Sender<Command>,
    wake: Arc<EventFd>,
    stats: Arc<Mutex<LinkStats>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl EmulatedLink {
    /// Starts forwarding between the sender's and the receiver's device.
    pub(crate) fn start(config: &LinkConfig, logs: Logs, sender: Tun, receiver: Tun) -> Result<EmulatedLink> {
        config.check()?;
        let clock = Clock::start()?;
        let halves = [
            HalfLink::new("Uplink", config, &config.up, logs.up)?,
            HalfLink::new("Downlink", config, &config.down, logs.down)?,
        ];
        let wake = Arc::new(
            EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
                .context("open", "an eventfd")?,
        );
        let (commands, inbox) = channel();
        let stats = Arc::new(Mutex::new(LinkStats::default()));
        let forwarder = Forwarder {
            clock,
            tuns: [sender, receiver],
            halves,
            inbox,
            timer: Timer::new(clock)?,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("open", "an epoll")?,
            wake: Arc::clone(&wake),
            stats: Arc::clone(&stats),
        };
        forwarder.register()?;
        let thread = std::thread::Builder::new()
            .name("ccp-link".into())
            .spawn(move || forwarder.run())
            .map_err(Error::Thread)?;
        Ok(EmulatedLink { commands, wake, stats, thread: Some(thread) })
    }

    pub(crate) fn change(&self, direction: Direction, change: Change) -> Result<()> {
        self.command(Command::Change(direction, change))
    }

    fn command(&self, command: Command) -> Result<()> {
        let stopped = || Error::Stopped("its thread has ended; stop() tells why".into());
        self.commands.send(command).map_err(|_| stopped())?;
        self.wake.write(1).map(drop).context("wake", "the link")
    }

    pub(crate) fn stats(&self) -> LinkStats {
        locked(&self.stats).clone()
    }

    pub(crate) fn stats_reader(&self) -> StatsReader {
        StatsReader(Arc::clone(&self.stats))
    }

    /// Stops the thread and flushes the logs; returns the last counters.
    pub(crate) fn stop(&mut self) -> Result<LinkStats> {
        let Some(thread) = self.thread.take() else { return Ok(self.stats()) };
        // Fails only if the thread has ended already.
        let _ = self.command(Command::Stop);
        thread.join().unwrap_or_else(|_| Err(Error::Stopped("its thread panicked".into())))?;
        Ok(self.stats())
    }
}

impl Drop for EmulatedLink {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Reads a link's counters from anywhere.
#[derive(Clone, Debug)]
pub(crate) struct StatsReader(Arc<Mutex<LinkStats>>);

impl StatsReader {
    pub(crate) fn read(&self) -> LinkStats {
        locked(&self.0).clone()
    }
}

/// Monotonic time since the link's start.
#[derive(Clone, Copy, Debug)]
struct Clock {
    origin: Duration,
}

impl Clock {
    fn start() -> Result<Clock> {
        Ok(Clock { origin: Clock::monotonic().context("read", "the monotonic clock")? })
    }

    fn monotonic() -> nix::Result<Duration> {
        clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map(Duration::from)
    }

    fn now_ns(&self) -> Result<u64> {
        let now = Clock::monotonic().context("read", "the monotonic clock")?;
        Ok(now.saturating_sub(self.origin).as_nanos() as u64)
    }
}

/// Wakes the thread at a time of its clock.
#[derive(Debug)]
struct Timer {
    fd: TimerFd,
    clock: Clock,
    armed_ns: u64,
}

impl Timer {
    fn new(clock: Clock) -> Result<Timer> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let fd = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).context("open", "a timerfd")?;
        Ok(Timer { fd, clock, armed_ns: 0 })
    }

    /// Setting a timer also clears an expiry not yet read, so that nothing ever reads it.
    fn set(&mut self, at_ns: u64) -> Result<()> {
        if self.armed_ns != at_ns {
            let at = TimeSpec::from_duration(self.clock.origin + Duration::from_nanos(at_ns));
            self.fd
                .set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
                .context("set", "a timerfd")?;
            self.armed_ns = at_ns;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Forwarder {
    clock: Clock,
    /// The sender's and the receiver's.
    tuns: [Tun; 2],
    /// Up, from the sender's device to the receiver's, and down.
    halves: [HalfLink; 2],
    inbox: Receiver<Command>,
    timer: Timer,
    epoll: Epoll,
    wake: Arc<EventFd>,
    stats: Arc<Mutex<LinkStats>>,
}

impl Forwarder {
    fn register(&self) -> Result<()> {
        let event = |data| EpollEvent::new(EpollFlags::EPOLLIN, data);
        let [sender, receiver] = &self.tuns;
        self.epoll.add(sender, event(0)).context("wait for", "the sender's device")?;
        self.epoll.add(receiver, event(1)).context("wait for", "the receiver's device")?;
        self.epoll.add(&self.timer.fd, event(2)).context("wait for", "a timerfd")?;
        self.epoll.add(&*self.wake, event(3)).context("wait for", "an eventfd")
    }

    fn run(mut self) -> Result<()> {
        // Else a busy machine shows as delay. Without the permission the link is only as punctual as other threads are.
        let _ = sys::run_first();
        let forwarded = self.forward();
        let [up, down] = self.halves;
        up.finish().and(down.finish()).and(forwarded)
    }

    fn forward(&mut self) -> Result<()> {
        let mut events = [EpollEvent::empty(); MAX_EVENTS];
        loop {
            let now_ns = self.clock.now_ns()?;
            if self.advance(now_ns) == NextStep::Stop {
                return Ok(());
            }
            self.timer.set(self.wake_up_ns(now_ns))?;
            let ready = match self.epoll.wait(&mut events, nix::sys::epoll::EpollTimeout::NONE) {
                Ok(count) => events.get(..count).unwrap_or_default(),
                Err(Errno::EINTR) => &[],
                Err(errno) => return Err(errno).context("wait for", "packets"),
            };
            self.read(ready)?;
        }
    }

    /// Sends the packets that are due, and executes commands.
    fn advance(&mut self, now_ns: u64) -> NextStep {
        let mut stats = locked(&self.stats);
        let LinkStats { at_ns, up: up_stats, down: down_stats } = &mut *stats;
        let [sender, receiver] = &self.tuns;
        let [up, down] = &mut self.halves;
        up.advance(now_ns, receiver, up_stats);
        down.advance(now_ns, sender, down_stats);
        let mut next = NextStep::Wait;
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Change(Direction::Up, change) => up.apply(now_ns, change, receiver, up_stats),
                Command::Change(Direction::Down, change) => down.apply(now_ns, change, sender, down_stats),
                Command::Stop => next = NextStep::Stop,
            }
        }
        *at_ns = now_ns;
        // The last step observes too, so that its counters add up.
        up.observe(up_stats);
        down.observe(down_stats);
        next
    }

    /// Takes what waits at the descriptors that are ready.
    fn read(&mut self, ready: &[EpollEvent]) -> Result<()> {
        let now_ns = self.clock.now_ns()?;
        let mut stats = locked(&self.stats);
        for event in ready {
            match (event.data(), &self.tuns, &mut self.halves) {
                (0, [sender, _], [up, _]) => up.read(now_ns, sender, &mut stats.up)?,
                (1, [_, receiver], [_, down]) => down.read(now_ns, receiver, &mut stats.down)?,
                (3, ..) => drop(self.wake.read()),
                _ => {}
            }
        }
        Ok(())
    }

    fn wake_up_ns(&self, now_ns: u64) -> u64 {
        let next_ns = self.halves.iter().filter_map(HalfLink::next_ns).min().unwrap_or(u64::MAX);
        next_ns.clamp(now_ns + MIN_SLEEP_NS, now_ns + MAX_SLEEP_NS)
    }
}

/// The next step of the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextStep {
    Wait,
    Stop,
}

fn locked(stats: &Mutex<LinkStats>) -> MutexGuard<'_, LinkStats> {
    stats.lock().unwrap_or_else(PoisonError::into_inner)
}
