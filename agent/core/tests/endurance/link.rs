//! A long way between core and datapath: commands arrive in order and late, or not at all; results come back in any order,
//! or wrong; events are late.

use crate::place::Place;
use crate::say;
use crate::tools::{Random, Trace};
use ccplane_contract::{Datapath, DatapathError, Event, FlowStats, ProgramUid, SlotStats};
use ccplane_core::{Action, ActionId, Command, Core};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::ErrorKind;

/// Events taken from the datapath at once.
const MAX_EVENTS: usize = 64;

/// The fate of a command on its way to the datapath.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Arrives,
    IsLost,
    /// The datapath carries it out but reports a failure.
    ResultIsLost,
}

/// A message from the datapath to the agent.
enum Up {
    Event(Event),
    List(Vec<FlowStats>),
    /// Slots and flows as they were when so many commands on slots had been taken.
    State(Vec<SlotStats>, Vec<FlowStats>, u64),
}

pub struct Link {
    /// The longest way of a message, microseconds.
    delay_us: u64,
    down: VecDeque<(u64, Action, Fate)>,
    results: Vec<(u64, ActionId, Result<(), DatapathError>)>,
    up: VecDeque<(u64, Up)>,
    /// When a request for its state arrives at the datapath, and the commands on slots before it.
    asked: Option<(u64, u64)>,
    /// Its state is on the way back.
    awaits_state: bool,
    introduced: bool,
    slot_commands: u64,
    /// Taken and not answered: commands by slot, programs.
    slots: BTreeMap<u8, u32>,
    installs: BTreeSet<ProgramUid>,
    answers: BTreeMap<ActionId, Command>,
    random: Random,
    trace: Trace,
}

impl Link {
    /// To a datapath that was just attached, whose flows it tells of first.
    pub fn new(place: &mut Place, mut random: Random, trace: Trace) -> Link {
        let list = place.stats();
        let delay_us = random.between(1, 300_000);
        Link {
            delay_us,
            down: VecDeque::new(),
            results: Vec::new(),
            up: VecDeque::from([(0, Up::List(list))]),
            asked: None,
            awaits_state: false,
            introduced: false,
            slot_commands: 0,
            slots: BTreeMap::new(),
            installs: BTreeSet::new(),
            answers: BTreeMap::new(),
            random,
            trace,
        }
    }

    /// Its agent is gone: what is under way still arrives, and nobody hears of it.
    pub fn orphaned(&mut self, place: &mut Place) {
        for (_, action, fate) in std::mem::take(&mut self.down) {
            if fate != Fate::IsLost {
                let _ = action.command.execute(place);
            }
        }
    }

    /// Messages of the core that have not arrived or were not answered.
    pub fn pending(&self) -> usize {
        self.answers.len()
    }

    /// Whether a command on a slot's snapshots is on its way, or its result.
    pub fn moves_snapshots(&self) -> bool {
        self.slots.values().any(|outstanding| *outstanding > 0)
    }

    fn due_us(&mut self, last_us: Option<u64>, now_us: u64) -> u64 {
        let due_us = now_us + self.random.below(self.delay_us);
        due_us.max(last_us.unwrap_or(0))
    }

    /// The datapath's part: what has arrived is carried out, what happened leaves.
    pub fn turn_place(&mut self, place: &mut Place, now_us: u64) {
        while self.down.front().is_some_and(|(due, ..)| *due <= now_us) {
            let Some((_, action, fate)) = self.down.pop_front() else { break };
            let lost = || DatapathError::Os { what: "send".to_owned(), errno: ErrorKind::TimedOut };
            let result = match fate {
                Fate::Arrives => action.command.execute(place),
                Fate::IsLost => Err(lost()),
                Fate::ResultIsLost => action.command.execute(place).and(Err(lost())),
            };
            if fate != Fate::Arrives {
                say!(self.trace, "datapath {}: {fate:?} of {:?}", place.id.0, action.id);
            }
            let due_us = self.due_us(None, now_us);
            self.results.push((due_us, action.id, result));
        }
        if let Some((_, commands)) = self.asked.take_if(|(due, _)| *due <= now_us) {
            let state = Up::State(place.slots(), place.stats(), commands);
            self.send_up(state, now_us);
        }
        let mut events = Vec::new();
        place.take_events(MAX_EVENTS, &mut events);
        for event in events {
            let dropped = matches!(event, Event::Dropped { .. });
            self.send_up(Up::Event(event), now_us);
            if dropped {
                let list = place.stats();
                self.send_up(Up::List(list), now_us);
            }
        }
    }

    fn send_up(&mut self, up: Up, now_us: u64) {
        let due_us = self.due_us(self.up.back().map(|(due, _)| *due), now_us);
        self.up.push_back((due_us, up));
    }

    /// The agent's part: what has come is given to the core, what it asks for leaves.
    pub fn turn_core(&mut self, core: &mut Core, place: &mut Place, now_us: u64) {
        while self.up.front().is_some_and(|(due, _)| *due <= now_us) {
            match self.up.pop_front() {
                Some((_, Up::Event(event))) => {
                    place.note_event(&event);
                    core.event(place.id, event, now_us);
                    // A list follows.
                    core.take_missed(place.id);
                }
                Some((_, Up::List(flows))) => {
                    place.note_list(&flows);
                    core.reconcile(place.id, flows, now_us);
                }
                Some((_, Up::State(slots, flows, commands))) => {
                    self.awaits_state = false;
                    if commands == self.slot_commands {
                        core.observe_slots(place.id, &slots, &flows, now_us);
                    }
                }
                None => break,
            }
        }
        self.deliver_results(core, place, now_us);
        core.tick(now_us);
        if core.wants_slots(place.id, now_us) && !self.awaits_state {
            if self.introduced {
                self.awaits_state = true;
                let due_us = self.due_us(self.down.back().map(|(due, ..)| *due), now_us);
                self.asked = Some((due_us, self.slot_commands));
            } else {
                // The datapath said so when it introduced itself.
                self.introduced = true;
                core.observe_slots(place.id, &place.slots(), &[], now_us);
            }
        }
        self.take_actions(core, place, now_us);
    }

    fn deliver_results(&mut self, core: &mut Core, place: &mut Place, now_us: u64) {
        let due: Vec<_> = self.results.extract_if(.., |(due, ..)| *due <= now_us).collect();
        for (_, id, result) in due {
            let command = self.answers.remove(&id).expect("each command is answered once");
            match slot_of(&command) {
                Some(slot) => *self.slots.entry(slot).or_default() -= 1,
                None => {
                    if let Command::Install { uid, .. } = &command {
                        self.installs.remove(uid);
                    }
                }
            }
            place.note(&command, &result);
            core.result(id, result);
        }
    }

    fn take_actions(&mut self, core: &mut Core, place: &mut Place, now_us: u64) {
        while let Some(action) = core.next_action(place.id) {
            place.check_taken(&action.command);
            if let Some(slot) = slot_of(&action.command) {
                self.slot_commands += 1;
                let outstanding = self.slots.entry(slot).or_default();
                *outstanding += 1;
                assert_eq!(*outstanding, 1, "two commands at once on slot {slot}: {:?}", action.command);
            } else {
                // A definition counts as well, but what is pushed need not wait for its result.
                self.slot_commands += u64::from(matches!(action.command, Command::DefineSlot { .. }));
            }
            if let Command::Install { uid, .. } = &action.command {
                assert!(self.installs.insert(*uid), "{uid:?} is installed twice at once");
            }
            let fate = match place.weather.lose {
                0 => Fate::Arrives,
                lose if self.random.chance(lose) => {
                    if self.random.chance(500) {
                        Fate::IsLost
                    } else {
                        Fate::ResultIsLost
                    }
                }
                _ => Fate::Arrives,
            };
            self.answers.insert(action.id, action.command.clone());
            let due_us = self.due_us(self.down.back().map(|(due, ..)| *due), now_us);
            self.down.push_back((due_us, action, fate));
        }
    }
}

/// The slot whose snapshots a command moves.
fn slot_of(command: &Command) -> Option<u8> {
    match command {
        Command::Push { slot, .. }
        | Command::Share { slot, .. }
        | Command::Promote { slot }
        | Command::Rollback { slot } => Some(*slot),
        _ => None,
    }
}
