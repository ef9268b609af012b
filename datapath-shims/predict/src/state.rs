//! The state that a server keeps over restarts, as the content of a file.
//!
//! Little-endian: `CCPRKEPT`, u32 version, u32 epoch; u8 predictors, each u8 length, name, 32 bytes of hash; u8 slots, each u8 choice (3 or 4), u8
//! arms, a u64 deficit each; u8 whether a session follows: 16 bytes of key, u64 next sequence number, the window's words; CRC-32C of all before it.

use crate::choice::{Choice, MAX_SLOTS};
use crate::portfolio::{MAX_NAME_BYTES, Portfolio};
use crate::window::WINDOW_WORDS;
use crate::{Key, Window};
use ccplane_bandit::integer::{FLOOR, MAX_ARMS};
use ccplane_snapshot::Hash;

const MAGIC: [u8; 8] = *b"CCPRKEPT";
const VERSION: u32 = 1;
const KEY_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;
/// Bytes of the longest state.
pub const MAX_STATE_BYTES: usize = MAGIC.len()
    + 8
    + 1
    + MAX_ARMS * (1 + MAX_NAME_BYTES + HASH_BYTES)
    + 1
    + MAX_SLOTS * (2 + 8 * MAX_ARMS)
    + 1
    + KEY_BYTES
    + 8
    + 8 * WINDOW_WORDS
    + CHECKSUM_BYTES;

/// The state that a server keeps over restarts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerState {
    pub epoch: u32,
    /// The predictors' names and networks.
    pub predictors: Vec<(String, Hash)>,
    /// The way in which each slot chooses, and its deficits.
    pub slots: Vec<(Choice, Vec<u64>)>,
    /// The key and the window, of a server that has ended in order.
    pub session: Option<Session>,
}

/// The part of a state that makes an earlier server's tokens good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    pub key: Key,
    pub window: Window,
}

/// Reasons why a file's content is no state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StateError {
    /// The content is too long.
    #[error("{found} bytes, at most {MAX_STATE_BYTES} are allowed")]
    TooLarge { found: usize },
    /// The content does not begin as a state does.
    #[error("it is no state of a prediction server")]
    Magic,
    /// The content is of another version.
    #[error("version {found}, {VERSION} is read")]
    Version { found: u32 },
    /// The content was changed or cut off.
    #[error("its checksum is wrong")]
    Checksum,
    /// A field is wrong.
    #[error("{field} is wrong")]
    Field { field: &'static str },
}

impl ServerState {
    /// The deficits by name that a slot goes on from; `None` if the slot was another one.
    pub(crate) fn slot(&self, n: usize, choice: Choice) -> Option<Vec<(&str, u64)>> {
        let (_, deficits) = self.slots.get(n).filter(|(of, _)| *of == choice)?;
        Some(self.predictors.iter().map(|(name, _)| name.as_str()).zip(deficits.iter().copied()).collect())
    }

    /// The session, if these predictors and slots are those that it was of.
    pub(crate) fn session_of(&self, portfolio: &Portfolio, choices: &[Choice]) -> Option<&Session> {
        let predictors = portfolio.predictors().iter().map(|p| (p.name(), p.hash()));
        let is_same = predictors.eq(self.predictors.iter().map(|(name, hash)| (name.as_str(), *hash)))
            && choices.iter().eq(self.slots.iter().map(|(choice, _)| choice));
        self.session.as_ref().filter(|_| is_same)
    }

    /// The content of a file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.push(self.predictors.len() as u8);
        for (name, hash) in &self.predictors {
            out.push(name.len() as u8);
            out.extend(name.as_bytes());
            out.extend(hash.0);
        }
        out.push(self.slots.len() as u8);
        for (choice, deficits) in &self.slots {
            out.extend([code(*choice), deficits.len() as u8]);
            deficits.iter().for_each(|deficit| out.extend(deficit.to_le_bytes()));
        }
        out.push(u8::from(self.session.is_some()));
        if let Some(Session { key, window }) = &self.session {
            out.extend(key.0);
            out.extend(window.next().to_le_bytes());
            window.words().iter().for_each(|word| out.extend(word.to_le_bytes()));
        }
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Reads the content of a file. Never panics.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(content: &[u8]) -> Result<ServerState, StateError> {
        if content.len() > MAX_STATE_BYTES {
            return Err(StateError::TooLarge { found: content.len() });
        }
        let rest = content.strip_prefix(&MAGIC).ok_or(StateError::Magic)?;
        let (found, _) = rest.split_first_chunk().ok_or(StateError::Checksum)?;
        let found = u32::from_le_bytes(*found);
        if found != VERSION {
            return Err(StateError::Version { found });
        }
        let (summed, sum) = content.split_last_chunk::<CHECKSUM_BYTES>().ok_or(StateError::Checksum)?;
        if crc32c::crc32c(summed) != u32::from_le_bytes(*sum) {
            return Err(StateError::Checksum);
        }
        let mut reader = Reader { rest: summed.get(MAGIC.len() + 4..).ok_or(StateError::Checksum)? };
        let epoch = u32::from_le_bytes(reader.array("epoch")?);
        let predictors = reader.predictors()?;
        let slots = reader.slots(predictors.len())?;
        let session = match reader.byte("session")? {
            0 => None,
            1 => Some(reader.session()?),
            _ => return Err(StateError::Field { field: "session" }),
        };
        if !reader.rest.is_empty() {
            return Err(StateError::Field { field: "length" });
        }
        Ok(ServerState { epoch, predictors, slots, session })
    }
}

const fn code(choice: Choice) -> u8 {
    match choice {
        Choice::Exp3 => 3,
        Choice::Exp4 => 4,
    }
}

/// Reads what is left, and never beyond it.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], StateError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(StateError::Field { field })?;
        self.rest = rest;
        Ok(*array)
    }

    fn byte(&mut self, field: &'static str) -> Result<u8, StateError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    fn predictors(&mut self) -> Result<Vec<(String, Hash)>, StateError> {
        let field = "predictors";
        let count = usize::from(self.byte(field)?);
        if !(1..=MAX_ARMS).contains(&count) {
            return Err(StateError::Field { field });
        }
        let one = |reader: &mut Self| {
            let length = usize::from(reader.byte("name")?);
            let is_bounded = (1..=MAX_NAME_BYTES).contains(&length);
            let (name, rest) = Some(reader.rest)
                .filter(|_| is_bounded)
                .and_then(|rest| rest.split_at_checked(length))
                .ok_or(StateError::Field { field: "name" })?;
            reader.rest = rest;
            let name =
                std::str::from_utf8(name).ok().filter(|name| name.bytes().all(|b| b.is_ascii_graphic()));
            let name = name.ok_or(StateError::Field { field: "name" })?.to_owned();
            Ok((name, Hash(reader.array::<HASH_BYTES>("hash")?)))
        };
        (0..count).map(|_| one(self)).collect()
    }

    fn slots(&mut self, arms: usize) -> Result<Vec<(Choice, Vec<u64>)>, StateError> {
        let count = usize::from(self.byte("slots")?);
        if !(1..=MAX_SLOTS).contains(&count) {
            return Err(StateError::Field { field: "slots" });
        }
        let one = |reader: &mut Self| {
            let choice = match reader.byte("choice")? {
                3 => Choice::Exp3,
                4 => Choice::Exp4,
                _ => return Err(StateError::Field { field: "choice" }),
            };
            if usize::from(reader.byte("arms")?) != arms {
                return Err(StateError::Field { field: "arms" });
            }
            let deficit = |reader: &mut Self| {
                let deficit = u64::from_le_bytes(reader.array("deficit")?);
                if deficit <= FLOOR { Ok(deficit) } else { Err(StateError::Field { field: "deficit" }) }
            };
            let deficits: Result<Vec<u64>, StateError> = (0..arms).map(|_| deficit(reader)).collect();
            Ok((choice, deficits?))
        };
        (0..count).map(|_| one(self)).collect()
    }

    fn session(&mut self) -> Result<Session, StateError> {
        let key = Key(self.array("key")?);
        let next = u64::from_le_bytes(self.array("next")?);
        let word = |reader: &mut Self| reader.array("window").map(u64::from_le_bytes);
        let words: Result<Vec<u64>, StateError> = (0..WINDOW_WORDS).map(|_| word(self)).collect();
        let window = Window::resume(next, words?).ok_or(StateError::Field { field: "next" })?;
        Ok(Session { key, window })
    }
}
