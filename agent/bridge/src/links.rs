//! All ways of one loop of the agent to algorithms that others host: portus's socket, and those of this process.

use crate::bridge::BridgeCounters;
use crate::hosted::Hosted;
use crate::link::Link;
use crate::seat::Seat;
use crate::{Options, PORTUS};
use ccplane_alg::Algorithm;
use ccplane_core::Core;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::any::Any;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Wakes a loop for the algorithms of this process.
struct Bell {
    rung: Arc<EventFd>,
    /// Readable when it was rung, and when portus has answered over its socket.
    any: Epoll,
    /// The descriptor of portus's socket that is polled.
    portus: Option<RawFd>,
}

impl Bell {
    fn new() -> io::Result<Bell> {
        let rung = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let any = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        any.add(&rung, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Bell { rung: Arc::new(rung), any, portus: None })
    }

    /// Polls portus's socket, which comes and goes, from now on.
    fn follow(&mut self, portus: Option<BorrowedFd<'_>>) {
        let now = portus.map(|fd| fd.as_raw_fd());
        if now != std::mem::replace(&mut self.portus, now)
            && let Some(portus) = portus
        {
            // Without it the loop hears portus when it next wakes. A descriptor that is closed leaves by itself.
            let _ = self.any.add(portus, EpollEvent::new(EpollFlags::EPOLLIN, 0));
        }
    }
}

/// The ways of one loop.
pub struct Links {
    portus: Link,
    seats: Vec<Seat>,
    /// Present if there are seats.
    bell: Option<Bell>,
}

impl Links {
    /// Makes ways to portus's socket and to each [`Hosted`] among the algorithms, whose threads start and call `enter` first.
    ///
    /// # Errors
    /// There is no descriptor or thread left.
    pub fn new(options: Options, algorithms: &[Arc<dyn Algorithm>], enter: fn()) -> io::Result<Links> {
        let (silence_us, max_flows) = (options.silence_us, options.max_flows);
        let mut links = Links { portus: Link::new(options), seats: Vec::new(), bell: None };
        let hosted = algorithms.iter().filter_map(|a| (&**a as &dyn Any).downcast_ref::<Hosted>());
        for hosted in hosted {
            let bell = match &mut links.bell {
                Some(bell) => bell,
                none => none.insert(Bell::new()?),
            };
            let channel = hosted.join(&bell.rung, enter)?;
            links.seats.push(Seat::new(channel, silence_us, max_flows));
        }
        Ok(links)
    }

    /// Becomes readable when an algorithm has answered; `None` while nothing can come.
    pub fn ready(&self) -> Option<BorrowedFd<'_>> {
        match &self.bell {
            Some(bell) => Some(bell.any.0.as_fd()),
            None => self.portus.ready(),
        }
    }

    /// Passes messages between the algorithms and the core, both ways; returns whether any asked the core for anything.
    pub fn turned(&mut self, core: &mut Core, now_us: u64) -> bool {
        let mut asked = self.portus.turned(core, now_us);
        if let Some(bell) = &mut self.bell {
            bell.follow(self.portus.ready());
            // Before the answers are taken: one that comes later rings again.
            let _ = bell.rung.read();
        }
        for seat in &mut self.seats {
            asked |= seat.turned(core, now_us);
        }
        asked
    }

    /// Messages that algorithms of this process have not handled yet.
    pub fn unhandled(&self) -> usize {
        self.seats.iter().map(Seat::unhandled).sum()
    }

    /// Returns the counters of a hosted algorithm.
    pub fn counters(&self, algorithm: &str) -> Option<BridgeCounters> {
        if algorithm == PORTUS {
            return Some(self.portus.counters());
        }
        self.seats.iter().find(|seat| seat.name() == algorithm).map(Seat::counters)
    }
}
