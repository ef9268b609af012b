//! All ways of one loop of the agent to algorithms that others host: portus's socket, and those of this process.

use crate::bridge::BridgeCounters;
use crate::hosted::Hosted;
use crate::hosted_link::HostedLink;
use crate::link::PortusLink;
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
struct LoopWaker {
    event: Arc<EventFd>,
    /// Readable when `event` was written, and when portus has answered over its socket.
    any: Epoll,
    /// The descriptor of portus's socket that is polled.
    portus: Option<RawFd>,
}

impl LoopWaker {
    fn new() -> io::Result<LoopWaker> {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let any = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        any.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(LoopWaker { event: Arc::new(event), any, portus: None })
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
    portus: PortusLink,
    hosted: Vec<HostedLink>,
    /// Present if this process hosts any.
    waker: Option<LoopWaker>,
}

impl Links {
    /// Makes ways to portus's socket and to each [`Hosted`] among the algorithms, whose threads start and call `enter` first.
    ///
    /// # Errors
    /// There is no descriptor or thread left.
    pub fn new(options: Options, algorithms: &[Arc<dyn Algorithm>], enter: fn()) -> io::Result<Links> {
        let (silence_us, max_flows) = (options.silence_us, options.max_flows);
        let mut links = Links { portus: PortusLink::new(options), hosted: Vec::new(), waker: None };
        let hosted = algorithms.iter().filter_map(|a| (&**a as &dyn Any).downcast_ref::<Hosted>());
        for hosted in hosted {
            let waker = match &mut links.waker {
                Some(waker) => waker,
                none => none.insert(LoopWaker::new()?),
            };
            let channel = hosted.join(&waker.event, enter)?;
            links.hosted.push(HostedLink::new(channel, silence_us, max_flows));
        }
        Ok(links)
    }

    /// Becomes readable when an algorithm has answered; `None` while nothing can come.
    pub fn ready(&self) -> Option<BorrowedFd<'_>> {
        match &self.waker {
            Some(waker) => Some(waker.any.0.as_fd()),
            None => self.portus.ready(),
        }
    }

    /// Passes messages between the algorithms and the core, both ways; returns whether any asked the core for anything.
    pub fn exchange(&mut self, core: &mut Core, now_us: u64) -> bool {
        let mut asked = self.portus.exchange(core, now_us);
        if let Some(waker) = &mut self.waker {
            waker.follow(self.portus.ready());
            // Before the answers are taken: one that comes later wakes the loop again.
            let _ = waker.event.read();
        }
        for link in &mut self.hosted {
            asked |= link.exchange(core, now_us);
        }
        asked
    }

    /// Messages that algorithms of this process have not handled yet.
    pub fn unhandled(&self) -> usize {
        self.hosted.iter().map(HostedLink::unhandled).sum()
    }

    /// Returns the counters of a hosted algorithm.
    pub fn counters(&self, algorithm: &str) -> Option<BridgeCounters> {
        if algorithm == PORTUS {
            return Some(self.portus.counters());
        }
        self.hosted.iter().find(|link| link.name() == algorithm).map(HostedLink::counters)
    }
}
