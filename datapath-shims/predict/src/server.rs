//! The server without sockets, clock or randomness: one datagram in, at most one out. Every datapath agrees with it bit for bit.

use crate::choice::{Choice, MAX_SLOTS};
use crate::packet::{self, Datagram, MESSAGE_BYTES};
use crate::portfolio::Portfolio;
use crate::state::{ServerState, Session};
use crate::token::{TOKEN_BYTES, Token};
use crate::{Key, Refusal, ServerCounters, Window};
use ccplane_bandit::integer::{MAX_ARMS, Weights};
use std::sync::Arc;

/// The stream of a server that has one sequence of requests.
const STREAM: u8 = 0;

/// One service: a bandit over the server's predictors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    pub choice: Choice,
    pub weights: Weights,
}

/// Reasons why there is no such server, or why predictors are not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServerError {
    /// No slots are asked for, or too many.
    #[error("{found} slots, 1 to {MAX_SLOTS} are allowed")]
    Slots { found: usize },
    /// New predictors take other inputs or tell another number of classes.
    #[error("the new predictors have other inputs or classes: clients of this server could not ask them")]
    Other,
}

/// A prediction server, which any datapath drives.
#[derive(Clone, Debug)]
pub struct Server {
    portfolio: Arc<Portfolio>,
    slots: Vec<Slot>,
    key: Key,
    epoch: u32,
    window: Window,
    counters: ServerCounters,
}

impl Server {
    /// Makes a server, with what an earlier one has kept, if it did.
    ///
    /// Tokens of the earlier one are good if it ended in order and had the same predictors. Otherwise, as then some may have
    /// been used without that being kept, `key` is the new key, and they are refused.
    ///
    /// # Errors
    /// [`ServerError::Slots`].
    pub fn new(
        portfolio: Arc<Portfolio>,
        choices: &[Choice],
        key: Key,
        kept: Option<&ServerState>,
    ) -> Result<Server, ServerError> {
        let found = choices.len();
        if !(1..=MAX_SLOTS).contains(&found) {
            return Err(ServerError::Slots { found });
        }
        let slot = |(n, choice): (usize, &Choice)| {
            let before = kept.and_then(|state| state.slot(n, *choice));
            Slot { choice: *choice, weights: carried(before, &portfolio) }
        };
        let slots = choices.iter().enumerate().map(slot).collect();
        let session = kept.and_then(|state| state.session_of(&portfolio, choices));
        let epoch = kept.map_or(1, |state| state.epoch.wrapping_add(1));
        let server = Server {
            portfolio,
            slots,
            key,
            epoch,
            window: Window::default(),
            counters: ServerCounters::default(),
        };
        Ok(match (session, kept) {
            (Some(Session { key, window }), Some(state)) => {
                Server { key: *key, epoch: state.epoch, window: window.clone(), ..server }
            }
            _ => server,
        })
    }

    /// The predictors that answer.
    pub fn portfolio(&self) -> &Arc<Portfolio> {
        &self.portfolio
    }

    /// The slots and their weights.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Counts since the start.
    pub fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// The number of the key and the predictors.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The sequence numbers and which of them await feedback.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Takes new predictors, which answer from the next request on.
    ///
    /// A weight stays with its predictor's name. Feedback on the earlier ones is refused from here on, since it would pay their
    /// successors.
    ///
    /// # Errors
    /// [`ServerError::Other`]; nothing is changed then.
    pub fn push(&mut self, portfolio: Arc<Portfolio>) -> Result<(), ServerError> {
        if !self.portfolio.answers_as(&portfolio) {
            return Err(ServerError::Other);
        }
        for slot in &mut self.slots {
            let before: Vec<(&str, u64)> =
                self.portfolio.names().zip(slot.weights.deficits().iter().copied()).collect();
            slot.weights = carried(Some(before), &portfolio);
        }
        self.portfolio = portfolio;
        self.epoch = self.epoch.wrapping_add(1);
        Ok(())
    }

    /// Takes one datagram in, with 32 random bits. True if `reply` is to be sent back.
    ///
    /// A reply is never longer than its request; feedback and what is refused get none.
    pub fn handle(&mut self, datagram: &[u8], random: u32, reply: &mut [u8; MESSAGE_BYTES]) -> bool {
        let limits = self.portfolio.limits(self.slots.len() as u8);
        let handled = match packet::parse(datagram, &limits) {
            Ok(Datagram::Request { slot, inputs }) => self.answer(slot, inputs, random).map(|token| {
                packet::write_reply(reply, datagram, token.class, &token.seal(&self.key));
                true
            }),
            Ok(Datagram::Feedback { slot, truth, token }) => self.learn(slot, truth, token).map(|()| false),
            Err(refusal) => Err(refusal),
        };
        handled.unwrap_or_else(|refusal| {
            self.counters.refuse(refusal);
            false
        })
    }

    fn answer(&mut self, slot: u8, inputs: &[u8], random: u32) -> Result<Token, Refusal> {
        let Slot { choice, weights } = self.slots.get(usize::from(slot)).ok_or(Refusal::Slot)?;
        let cells = self.portfolio.cells(inputs);
        let arm = weights.draw(random);
        let (class, agreed) = match choice {
            Choice::Exp3 => (self.portfolio.classify(arm, &cells).ok_or(Refusal::Slot)?, 1 << arm),
            Choice::Exp4 => {
                let classes = self.portfolio.classify_all(&cells);
                let class = classes.get(arm).copied().ok_or(Refusal::Slot)?;
                let agreed = classes.iter().enumerate().filter(|(_, other)| **other == class);
                (class, agreed.fold(0, |set, (n, _)| set | 1 << n))
            }
        };
        let probability = weights.probability_of(agreed).min(u64::from(u32::MAX)) as u32;
        self.counters.requests += 1;
        Ok(Token {
            sequence: self.window.issue(),
            probability,
            agreed,
            stream: STREAM,
            class,
            epoch: self.epoch,
            slot,
            arm: arm as u8,
        })
    }

    fn learn(&mut self, slot: u8, truth: u8, bytes: &[u8; TOKEN_BYTES]) -> Result<(), Refusal> {
        if Token::claimed_epoch(bytes) != self.epoch {
            return Err(Refusal::Outdated);
        }
        let token =
            Token::open(bytes, &self.key).filter(|token| token.slot == slot && token.stream == STREAM);
        let token = token.ok_or(Refusal::Forged)?;
        self.window.close(token.sequence)?;
        if token.class != truth {
            self.counters.wrong += 1;
            return Ok(());
        }
        self.counters.right += 1;
        if let Some(slot) = self.slots.get_mut(usize::from(slot)) {
            slot.weights.reward(token.agreed, u64::from(token.probability));
        }
        Ok(())
    }

    /// All that a later server goes on from.
    pub fn state(&self, ends: Ending) -> ServerState {
        let session = match ends {
            Ending::InOrder => Some(Session { key: self.key, window: self.window.clone() }),
            Ending::NotYet => None,
        };
        ServerState {
            epoch: self.epoch,
            predictors: self.portfolio.predictors().iter().map(|p| (p.name().to_owned(), p.hash())).collect(),
            slots: self.slots.iter().map(|s| (s.choice, s.weights.deficits().to_vec())).collect(),
            session,
        }
    }
}

/// Whether a state is the last one of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The server goes on, and tokens may be used after the state was taken.
    NotYet,
    /// The server has ended, and no token will be used before another goes on from the state.
    InOrder,
}

/// Weights for a portfolio in which each predictor has the deficit of its name before; those without one begin with the
/// best.
fn carried(before: Option<Vec<(&str, u64)>>, portfolio: &Portfolio) -> Weights {
    let before = before.unwrap_or_default();
    let mut deficits = [0; MAX_ARMS];
    for (deficit, name) in deficits.iter_mut().zip(portfolio.names()) {
        *deficit = before.iter().find(|(of, _)| *of == name).map_or(0, |(_, deficit)| *deficit);
    }
    let arms = portfolio.predictors().len();
    let least = deficits.iter().take(arms).copied().min().unwrap_or(0);
    deficits.iter_mut().take(arms).for_each(|deficit| *deficit -= least);
    Weights::from_deficits(arms, deficits).unwrap_or(*portfolio.even_weights())
}
