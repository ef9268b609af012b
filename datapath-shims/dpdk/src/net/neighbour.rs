//! Neighbour resolution: it asks for the Ethernet addresses of neighbours, remembers them, and asks again.
//!
//! One state machine for ARP (RFC 826) and neighbour discovery (RFC 4861, section 7.3), with time as an argument:
//!
//! ```text
//!          find                  confirm               30 s, find
//! (none) ───────► Asking ────────────────► Known ◄──────────────► Probing
//!    ▲              │ 3 asks, 1 s each                confirm         │ 3 unicast asks
//!    └──────────────┘ its frames are dropped              Asking ◄────┘
//! ```

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::Mac;

/// Neighbours remembered, at most; the one not confirmed for longest makes room.
pub const MAX_NEIGHBOURS: usize = 1024;
/// Frames that wait for one neighbour, at most; the oldest makes room.
pub const MAX_WAITING: usize = 64;
/// Frames that wait for all neighbours together, at most.
pub const MAX_WAITING_ALL: usize = 1024;
/// Solicitations without an answer before a neighbour is given up (MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT).
pub const ASKS: u8 = 3;
/// Time between two solicitations (RETRANS_TIMER).
pub const ASK_EVERY: Duration = Duration::from_secs(1);
/// Time for which an answer is valid (REACHABLE_TIME).
pub const FRESH_FOR: Duration = Duration::from_secs(30);

/// A solicitation to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Solicitation {
    pub address: IpAddr,
    /// The address of the last answer, for a unicast solicitation; `None` to ask all neighbours.
    pub at: Option<Mac>,
}

/// No room is left for another neighbour: all are being asked for, or are permanent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_NEIGHBOURS} neighbours are known or asked for: no room for another")]
pub struct Full;

#[derive(Debug)]
enum State {
    /// A permanent neighbour, which is valid for ever.
    Permanent(Mac),
    Known {
        mac: Mac,
        until: Instant,
    },
    Probing {
        mac: Mac,
        asks: u8,
        next: Instant,
    },
    Asking {
        asks: u8,
        next: Instant,
        waiting: VecDeque<Vec<u8>>,
    },
}

/// The neighbour cache of one link.
#[derive(Debug, Default)]
pub struct Neighbours {
    states: HashMap<IpAddr, State>,
    /// Frames that wait for all neighbours together.
    waiting: usize,
    /// Frames that were dropped because their neighbour did not answer or too many waited.
    lost: u64,
    /// No solicitation is due before this time.
    next: Option<Instant>,
}

impl Neighbours {
    /// Adds a permanent neighbour, which is never asked for and never forgotten.
    ///
    /// # Errors
    /// [`Full`].
    pub fn add_permanent(&mut self, address: IpAddr, mac: Mac) -> Result<(), Full> {
        if !self.states.contains_key(&address) {
            self.make_room()?;
        }
        self.put(address, State::Permanent(mac));
        Ok(())
    }

    /// Looks up a neighbour's address. If it is unknown or no longer fresh, [`Neighbours::poll`] asks for it.
    pub fn find(&mut self, address: IpAddr, now: Instant) -> Option<Mac> {
        match self.states.get_mut(&address) {
            Some(State::Permanent(mac) | State::Probing { mac, .. }) => Some(*mac),
            Some(State::Known { mac, until }) => {
                let mac = *mac;
                if *until <= now {
                    self.put(address, State::Probing { mac, asks: 0, next: now });
                    self.next = Some(now);
                }
                Some(mac)
            }
            Some(State::Asking { .. }) => None,
            None => {
                if self.make_room().is_ok() {
                    self.put(address, State::Asking { asks: 0, next: now, waiting: VecDeque::new() });
                    self.next = Some(now);
                }
                None
            }
        }
    }

    /// Queues a frame until its neighbour answers, when the station's address is filled in.
    ///
    /// If there is no room, the oldest frame that waits for the same neighbour is dropped, or else this one.
    pub fn hold(&mut self, address: IpAddr, frame: Vec<u8>) {
        let Some(State::Asking { waiting, .. }) = self.states.get_mut(&address) else {
            self.lost += 1;
            return;
        };
        if (waiting.len() >= MAX_WAITING || self.waiting >= MAX_WAITING_ALL) && waiting.pop_front().is_some()
        {
            (self.waiting, self.lost) = (self.waiting - 1, self.lost + 1);
        }
        if self.waiting >= MAX_WAITING_ALL {
            self.lost += 1;
            return;
        }
        waiting.push_back(frame);
        self.waiting += 1;
    }

    /// Records a neighbour's advertised address; returns the frames that waited for it.
    ///
    /// With `overrides`, it replaces a different address that is known (RFC 4861, section 7.2.5). With `asked_us`, the
    /// neighbour is about to hear from us, so it is remembered though we never asked (RFC 826, "Packet Reception").
    pub fn confirm(
        &mut self,
        address: IpAddr,
        mac: Mac,
        overrides: bool,
        asked_us: bool,
        now: Instant,
    ) -> VecDeque<Vec<u8>> {
        let until = now + FRESH_FOR;
        match self.states.get_mut(&address) {
            Some(State::Permanent(_)) => VecDeque::new(),
            Some(State::Known { mac: known, .. } | State::Probing { mac: known, .. }) => {
                if *known == mac || overrides {
                    self.put(address, State::Known { mac, until });
                }
                VecDeque::new()
            }
            Some(State::Asking { .. }) => self.put(address, State::Known { mac, until }),
            None => {
                if asked_us && self.make_room().is_ok() {
                    self.put(address, State::Known { mac, until });
                }
                VecDeque::new()
            }
        }
    }

    /// Emits the solicitations that are due, and gives up neighbours that did not answer.
    pub fn poll(&mut self, now: Instant, ask: &mut dyn FnMut(Solicitation)) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        let mut silent = Vec::new();
        for (address, state) in &mut self.states {
            match state {
                State::Probing { mac, asks, next } if *next <= now => {
                    if *asks < ASKS {
                        (*asks, *next) = (*asks + 1, now + ASK_EVERY);
                        ask(Solicitation { address: *address, at: Some(*mac) });
                    } else {
                        // The neighbour may have moved: everyone is asked.
                        *state = State::Asking { asks: 1, next: now + ASK_EVERY, waiting: VecDeque::new() };
                        ask(Solicitation { address: *address, at: None });
                    }
                }
                State::Asking { asks, next, .. } if *next <= now => {
                    if *asks < ASKS {
                        (*asks, *next) = (*asks + 1, now + ASK_EVERY);
                        ask(Solicitation { address: *address, at: None });
                    } else {
                        silent.push(*address);
                    }
                }
                _ => {}
            }
        }
        for address in silent {
            self.forget(address);
        }
        let due = self.states.values().filter_map(|state| match state {
            State::Probing { next, .. } | State::Asking { next, .. } => Some(*next),
            State::Permanent(_) | State::Known { .. } => None,
        });
        self.next = due.min();
    }

    /// The time at which [`Neighbours::poll`] has something to do next.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Frames dropped since the beginning because their neighbour did not answer or too many waited.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Replaces a state; returns the frames that waited in the old one.
    fn put(&mut self, address: IpAddr, state: State) -> VecDeque<Vec<u8>> {
        match self.states.insert(address, state) {
            Some(State::Asking { waiting, .. }) => {
                self.waiting -= waiting.len();
                waiting
            }
            _ => VecDeque::new(),
        }
    }

    fn forget(&mut self, address: IpAddr) {
        if let Some(State::Asking { waiting, .. }) = self.states.remove(&address) {
            self.waiting -= waiting.len();
            self.lost += waiting.len() as u64;
        }
    }

    fn make_room(&mut self) -> Result<(), Full> {
        if self.states.len() < MAX_NEIGHBOURS {
            return Ok(());
        }
        let known = self.states.iter().filter_map(|(address, state)| match state {
            State::Known { until, .. } => Some((*until, *address)),
            _ => None,
        });
        let (_, oldest) = known.min().ok_or(Full)?;
        self.forget(oldest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const AT: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn asks(neighbours: &mut Neighbours, now: Instant) -> Vec<Solicitation> {
        let mut asked = Vec::new();
        neighbours.poll(now, &mut |ask| asked.push(ask));
        asked
    }

    #[test]
    fn an_unknown_neighbour_is_asked_for_and_its_frames_follow_the_answer() {
        let (mut neighbours, now) = (Neighbours::default(), Instant::now());
        assert_eq!(neighbours.find(PEER, now), None);
        neighbours.hold(PEER, vec![1]);
        neighbours.hold(PEER, vec![2]);
        assert_eq!(asks(&mut neighbours, now), [Solicitation { address: PEER, at: None }]);
        assert_eq!(asks(&mut neighbours, now), [], "once a second");
        assert_eq!(neighbours.confirm(PEER, AT, true, false, now), [[1], [2]]);
        assert_eq!((neighbours.find(PEER, now), neighbours.next()), (Some(AT), Some(now + ASK_EVERY)));
        assert_eq!((asks(&mut neighbours, now + ASK_EVERY), neighbours.next()), (vec![], None));
    }

    #[test]
    fn a_silent_neighbour_is_asked_for_three_times_and_its_frames_are_dropped() {
        let (mut neighbours, start) = (Neighbours::default(), Instant::now());
        neighbours.find(PEER, start);
        neighbours.hold(PEER, vec![1]);
        let counts: Vec<usize> = (0..5).map(|s| asks(&mut neighbours, start + s * ASK_EVERY).len()).collect();
        assert_eq!((counts, neighbours.lost(), neighbours.next()), (vec![1, 1, 1, 0, 0], 1, None));
        assert_eq!(neighbours.find(PEER, start + 5 * ASK_EVERY), None);
        assert_eq!(asks(&mut neighbours, start + 5 * ASK_EVERY).len(), 1, "a new packet asks anew");
    }

    #[test]
    fn an_old_answer_is_used_while_it_is_probed_and_given_up_if_nobody_confirms_it() {
        let (mut neighbours, start) = (Neighbours::default(), Instant::now());
        neighbours.find(PEER, start);
        neighbours.confirm(PEER, AT, true, false, start);
        let mut now = start + FRESH_FOR;
        assert_eq!(asks(&mut neighbours, now), [], "only what is used is probed");
        for _ in 0..ASKS {
            assert_eq!(neighbours.find(PEER, now), Some(AT));
            assert_eq!(asks(&mut neighbours, now), [Solicitation { address: PEER, at: Some(AT) }]);
            now += ASK_EVERY;
        }
        assert_eq!(asks(&mut neighbours, now), [Solicitation { address: PEER, at: None }]);
        assert_eq!(neighbours.find(PEER, now), None);
        let moved = Mac([2, 0, 0, 0, 0, 9]);
        neighbours.confirm(PEER, moved, false, false, now);
        assert_eq!(neighbours.find(PEER, now), Some(moved));
    }

    #[test]
    fn fixed_addresses_and_those_not_overridden_stay() {
        let (mut neighbours, now) = (Neighbours::default(), Instant::now());
        let other = Mac([2, 0, 0, 0, 0, 7]);
        neighbours.add_permanent(PEER, AT).unwrap();
        neighbours.confirm(PEER, other, true, true, now);
        assert_eq!(neighbours.find(PEER, now + 2 * FRESH_FOR), Some(AT));
        let second = "fd00::2".parse().unwrap();
        assert!(neighbours.confirm(second, AT, true, false, now).is_empty());
        assert_eq!(neighbours.find(second, now), None, "an answer that nobody asked for");
        neighbours.confirm(second, AT, true, false, now);
        neighbours.confirm(second, other, false, true, now);
        assert_eq!(neighbours.find(second, now), Some(AT));
        neighbours.confirm(second, other, true, false, now);
        assert_eq!(neighbours.find(second, now), Some(other));
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest() {
        let (mut neighbours, start) = (Neighbours::default(), Instant::now());
        let address = |n: usize| IpAddr::from([10, 1, (n >> 8) as u8, n as u8]);
        for n in 0..MAX_NEIGHBOURS {
            neighbours.confirm(address(n), AT, true, true, start + n as u32 * Duration::from_millis(1));
        }
        let now = start + Duration::from_secs(5);
        neighbours.confirm(address(MAX_NEIGHBOURS), AT, true, true, now);
        assert_eq!(neighbours.find(address(0), now), None);
        assert_eq!(neighbours.states.len(), MAX_NEIGHBOURS);
        for n in 0..2 * MAX_NEIGHBOURS {
            neighbours.find(IpAddr::from([10, 2, (n >> 8) as u8, n as u8]), now);
        }
        assert_eq!(neighbours.states.len(), MAX_NEIGHBOURS, "asked for, all of them");
        assert_eq!(neighbours.add_permanent(PEER, AT), Err(Full));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Find(u8),
        Hold(u8),
        Confirm(u8, u8, bool, bool),
        Pass(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..6u8).prop_map(Step::Find),
            (0..6u8).prop_map(Step::Hold),
            (0..6u8, 0..3u8, any::<bool>(), any::<bool>()).prop_map(|(a, m, o, u)| Step::Confirm(a, m, o, u)),
            (0..20_000u16).prop_map(Step::Pass),
        ]
    }

    proptest! {
        /// In any history, every held frame comes out once or is counted lost, and nobody is asked more often than once
        /// a second.
        #[test]
        fn frames_are_neither_lost_silently_nor_doubled(steps in proptest::collection::vec(step(), 0..300)) {
            let (mut neighbours, mut now) = (Neighbours::default(), Instant::now());
            let (mut held, mut released) = (0, 0);
            let mut last_ask: HashMap<IpAddr, Instant> = HashMap::new();
            let address = |n: u8| IpAddr::from([10, 0, 0, n]);
            for step in steps {
                match step {
                    Step::Find(n) => drop(neighbours.find(address(n), now)),
                    Step::Hold(n) => {
                        neighbours.hold(address(n), vec![n]);
                        held += 1;
                    }
                    Step::Confirm(n, m, overrides, asked) => {
                        let frames = neighbours.confirm(address(n), Mac([2, 0, 0, 0, 0, m]), overrides, asked, now);
                        prop_assert!(frames.iter().all(|frame| frame == &[n]));
                        released += frames.len();
                    }
                    Step::Pass(ms) => now += Duration::from_millis(ms.into()),
                }
                for ask in asks(&mut neighbours, now) {
                    let last = last_ask.insert(ask.address, now);
                    // A forgotten neighbour that is needed again is asked for at once; else a second passes.
                    prop_assert!(last.is_none_or(|at| now - at >= ASK_EVERY || ask.at.is_none()));
                }
                let waiting: usize = neighbours.states.values().map(|state| match state {
                    State::Asking { waiting, .. } => waiting.len(),
                    _ => 0,
                }).sum();
                prop_assert_eq!(waiting, neighbours.waiting);
                prop_assert_eq!(held, released + waiting + neighbours.lost() as usize);
                prop_assert!(neighbours.next().is_none_or(|next| next > now));
            }
        }
    }
}
