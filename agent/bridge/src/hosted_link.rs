//! One loop's link to one algorithm hosted in this process, and when that counts as silent.

use crate::bridge::{Bridge, BridgeCounters};
use crate::hosted::Channel;
use crate::silence::Silence;
use ccplane_core::{Core, HostReason};
use std::sync::Arc;
use tracing::{info, warn};

/// Time between two looks at whether the algorithm goes on, microseconds.
const POLL_US: u64 = 50_000;
/// Messages that may wait for it; more wait in the bridge, which drops reports.
const MAX_UNHANDLED: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
enum HostState {
    /// No rule gives it flows.
    Unwanted,
    Present,
    Silent,
    Ended,
}

pub(crate) struct HostedLink {
    bridge: Bridge,
    channel: Channel,
    state: HostState,
    silence: Silence,
    silence_us: u64,
    /// Messages handled at the last look.
    handled: u64,
    next_poll_us: u64,
}

impl HostedLink {
    pub fn new(channel: Channel, silence_us: u64, max_flows: usize) -> HostedLink {
        HostedLink {
            bridge: Bridge::new(channel.name, max_flows, std::process::id()),
            channel,
            state: HostState::Unwanted,
            silence: Silence::new(silence_us, 0),
            silence_us,
            handled: 0,
            next_poll_us: 0,
        }
    }

    pub fn name(&self) -> &'static str {
        self.channel.name
    }

    pub fn counters(&self) -> BridgeCounters {
        self.bridge.counters()
    }

    pub fn unhandled(&self) -> usize {
        self.channel.unhandled()
    }

    /// Passes messages between the algorithm and the core, both ways; returns whether it asked the core for anything.
    pub fn exchange(&mut self, core: &mut Core, now_us: u64) -> bool {
        let has_ended = self.channel.ended().is_some() && self.state != HostState::Ended;
        if has_ended || now_us >= self.next_poll_us {
            self.next_poll_us = now_us.saturating_add(POLL_US);
            self.poll(core, now_us);
        }
        let mut asked = false;
        while let Some(answer) = self.channel.answer() {
            self.silence.note_answer(now_us);
            if self.state == HostState::Present {
                asked |= self.bridge.datagram(core, &answer);
            }
        }
        if self.state != HostState::Present {
            return asked;
        }
        while let Some(event) = core.next_host_event(self.channel.name) {
            self.bridge.event(core, event);
        }
        while self.channel.unhandled() < MAX_UNHANDLED
            && let Some(message) = self.bridge.outgoing()
        {
            self.channel.send(message);
            self.bridge.sent();
        }
        if self.bridge.has_overflowed() {
            self.silent(core, now_us);
        }
        asked
    }

    fn poll(&mut self, core: &mut Core, now_us: u64) {
        let algorithm = self.channel.name;
        if let Some(why) = self.channel.ended() {
            if self.state != HostState::Ended {
                warn!(algorithm, %why, "a hosted algorithm has ended; its flows go to their native algorithm");
                let why = Arc::clone(why);
                self.leave(core, HostState::Ended, HostReason::Ended { algorithm, why });
            }
            return;
        }
        if !core.wants_host(algorithm) {
            if self.state != HostState::Unwanted {
                self.leave(core, HostState::Unwanted, HostReason::Unhosted { algorithm });
            }
            return;
        }
        let handled = self.channel.handled();
        if handled != std::mem::replace(&mut self.handled, handled) {
            self.silence.note_answer(now_us);
        }
        match (self.silence.check(self.channel.unhandled(), now_us), self.state) {
            (_, HostState::Unwanted) => self.greet(core, now_us),
            (Some(_), HostState::Present) => self.silent(core, now_us),
            (None, HostState::Silent) => {
                info!(algorithm, "a hosted algorithm goes on");
                self.greet(core, now_us);
            }
            _ => {}
        }
    }

    fn greet(&mut self, core: &mut Core, now_us: u64) {
        self.state = HostState::Present;
        self.silence = Silence::new(self.silence_us, now_us);
        self.bridge.arrive(core);
    }

    fn silent(&mut self, core: &mut Core, now_us: u64) {
        let algorithm = self.channel.name;
        let for_ms = self.silence.silent_us(now_us) / 1000;
        warn!(
            algorithm,
            for_ms,
            "a hosted algorithm is silent: it takes no messages; its flows go to their native algorithm"
        );
        self.leave(core, HostState::Silent, HostReason::Silent { algorithm, for_ms });
    }

    fn leave(&mut self, core: &mut Core, to: HostState, reason: HostReason) {
        if self.state == HostState::Present {
            self.bridge.log_counters();
        }
        self.state = to;
        self.bridge.leave(core, reason);
    }
}
