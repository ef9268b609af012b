//! A datapath and an agent come together.

use std::ops::RangeInclusive;

use ccplane_contract::SlotStats;
use ccplane_program::ir::MAX_POLICY_SLOTS;
use ccplane_wait::Wake;

use super::SLOTS_MINOR;
use crate::bytes::{Reader, put_count, put_text};
use crate::{DecodeError, EncodeError, List, Out};

/// Longest kind of a datapath, bytes.
const MAX_KIND_BYTES: usize = 31;
/// Longest name of a datapath, bytes.
pub(super) const MAX_NAME_BYTES: usize = 63;

/// The clock that a datapath's timestamps count from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Clock {
    /// An origin of its own, such as its start.
    Own = 0,
    /// Linux's CLOCK_MONOTONIC, comparable with the agent's on the same machine.
    Monotonic = 1,
    /// Virtual time, which passes as a simulation says.
    Virtual = 2,
}

/// The set of abilities of a datapath; bits that this crate does not know are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features(pub u32);

impl Features {
    /// `(policy ...)` and `(history ...)`.
    pub const POLICY: Features = Features(1);
    /// All of the language, not only what stock CCP bytecode expresses.
    pub const FULL_LANGUAGE: Features = Features(1 << 1);
    /// Takes rings in shared memory.
    pub const RING: Features = Features(1 << 2);

    /// Runs programs of the hooks `send` and `connect`, and not of `ack`.
    pub const SEND: Features = Features(1 << 3);

    /// Returns the union of two sets.
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// Whether all of `other` is in it.
    pub const fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A datapath introduces itself: its first message on a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello<'a> {
    /// The minor versions that it speaks.
    pub minors: RangeInclusive<u8>,
    pub clock: Clock,
    pub features: Features,
    /// The datapath's clock at this message, microseconds.
    pub now_us: u64,
    /// Programs that can be installed at once.
    pub max_programs: u32,
    /// Flows that can be steered at once.
    pub max_flows: u32,
    /// The kind of the datapath, such as "quic"; at most 31 bytes.
    pub kind: &'a str,
    /// Its own name, such as a process's; at most 63 bytes.
    pub name: &'a str,
    /// The contents of the datapath's slots, perhaps from an earlier agent; none before minor version 1.
    pub slots: List<'a, SlotStats>,
}

impl<'a> Hello<'a> {
    /// `minor` is the sender's.
    pub(super) fn read(r: &mut Reader<'a>, minor: u8) -> Result<Self, DecodeError> {
        let (min, max) = (r.u8("minor_min")?, r.u8("minor_max")?);
        if min > max {
            return Err(DecodeError::TooLarge {
                field: "minor_min",
                found: u64::from(min),
                limit: u64::from(max),
            });
        }
        let clock = match r.u8("clock")? {
            0 => Clock::Own,
            1 => Clock::Monotonic,
            2 => Clock::Virtual,
            found => return Err(DecodeError::Unknown { field: "clock", found: u64::from(found) }),
        };
        Ok(Hello {
            minors: min..=max,
            clock,
            features: Features(r.u32("features")?),
            now_us: r.u64("now_us")?,
            max_programs: r.u32("max_programs")?,
            max_flows: r.u32("max_flows")?,
            kind: r.text("kind", MAX_KIND_BYTES)?,
            name: r.text("name", MAX_NAME_BYTES)?,
            slots: if minor < SLOTS_MINOR { List::from(&[]) } else { read_slots(r)? },
        })
    }

    pub(super) fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        let (min, max) = (*self.minors.start(), *self.minors.end());
        if min > max {
            return Err(EncodeError::TooLarge {
                field: "minor_min",
                found: u64::from(min),
                limit: u64::from(max),
            });
        }
        out.put(&[min, max, self.clock as u8])?;
        out.put(&self.features.0.to_le_bytes())?;
        out.put(&self.now_us.to_le_bytes())?;
        out.put(&self.max_programs.to_le_bytes())?;
        out.put(&self.max_flows.to_le_bytes())?;
        put_text(out, "kind", self.kind, MAX_KIND_BYTES)?;
        put_text(out, "name", self.name, MAX_NAME_BYTES)?;
        write_slots(&self.slots, out)
    }
}

pub(super) fn read_slots<'a>(r: &mut Reader<'a>) -> Result<List<'a, SlotStats>, DecodeError> {
    let n = r.count("slots", MAX_POLICY_SLOTS)?;
    List::read(r, n)
}

pub(super) fn write_slots(slots: &List<'_, SlotStats>, out: &mut impl Out) -> Result<(), EncodeError> {
    put_count(out, "slots", slots.len(), MAX_POLICY_SLOTS)?;
    slots.write(out)
}

/// The largest code of a way to wait that a message carries.
const MAX_WAKE: u64 = 2;

fn read_wake(r: &mut Reader<'_>) -> Result<Wake, DecodeError> {
    match (r.u8("wake")?, r.u32("spin_us")?) {
        (0, 0) => Ok(Wake::Sleep),
        (1, us) => Ok(Wake::Spin { us }),
        (2, 0) => Ok(Wake::Busy),
        (0 | 2, us) => Err(DecodeError::TooLarge { field: "spin_us", found: u64::from(us), limit: 0 }),
        (found, _) => Err(DecodeError::Unknown { field: "wake", found: u64::from(found) }),
    }
}

/// Only ways that need nothing of the other process but its time can be asked for.
fn write_wake(wake: Wake, out: &mut impl Out) -> Result<(), EncodeError> {
    let refused = |found| Err(EncodeError::TooLarge { field: "wake", found, limit: MAX_WAKE });
    let (code, us) = match wake {
        Wake::Sleep => (0, 0),
        Wake::Spin { us } => (1, us),
        Wake::Busy => (2, 0),
        Wake::Dispatch => return refused(MAX_WAKE + 1),
        Wake::Auto { .. } => return refused(MAX_WAKE + 2),
    };
    out.put(&[code])?;
    out.put(&u32::to_le_bytes(us))
}

/// The agent takes the datapath on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The minor version that both speak from now on.
    pub minor: u8,
    /// Silence of the agent after which flows go to the native algorithm, milliseconds; not 0.
    pub heartbeat_timeout_ms: u32,
    /// Differs between two runs of the agent.
    pub session: u64,
    /// The way in which the datapath is asked to wait for the agent: asleep, spinning or busy; `Sleep` before
    /// minor version 1.
    pub wake: Wake,
    /// Bytes of each of two rings, whose memory comes with the message; 0 if there are none.
    pub ring_bytes: u32,
}

impl Welcome {
    /// `by` is the sender's minor version.
    pub(super) fn read(r: &mut Reader<'_>, by: u8) -> Result<Self, DecodeError> {
        let minor = r.u8("minor")?;
        let heartbeat_timeout_ms = r.u32("heartbeat_timeout_ms")?;
        if heartbeat_timeout_ms == 0 {
            return Err(DecodeError::Zero { field: "heartbeat_timeout_ms" });
        }
        let session = r.u64("session")?;
        let (wake, ring_bytes) =
            if by < SLOTS_MINOR { (Wake::Sleep, 0) } else { (read_wake(r)?, r.u32("ring_bytes")?) };
        Ok(Welcome { minor, heartbeat_timeout_ms, session, wake, ring_bytes })
    }

    pub(super) fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        if self.heartbeat_timeout_ms == 0 {
            return Err(EncodeError::Zero { field: "heartbeat_timeout_ms" });
        }
        out.put(&[self.minor])?;
        out.put(&self.heartbeat_timeout_ms.to_le_bytes())?;
        out.put(&self.session.to_le_bytes())?;
        write_wake(self.wake, out)?;
        out.put(&self.ring_bytes.to_le_bytes())
    }
}

/// Reasons why the agent does not take a datapath on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TurnedAway {
    /// No minor version is common.
    #[error("the agent speaks minor versions {min} to {max} only")]
    Version {
        /// The agent's oldest minor version.
        min: u8,
        /// The agent's newest minor version.
        max: u8,
    },
    /// The agent serves as many datapaths as it can.
    #[error("the agent serves {limit} datapaths, the most it can")]
    TooMany { limit: u32 },
    /// Another datapath has this name.
    #[error("another datapath has this name")]
    NameTaken,
    /// The peer's credentials do not allow it.
    #[error("not allowed with these credentials")]
    NotAllowed,
}

impl TurnedAway {
    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (reason, a, b) = (r.u8("reason")?, r.u32("a")?, r.u32("b")?);
        let minor = |field, found: u32| {
            u8::try_from(found).map_err(|_| DecodeError::TooLarge {
                field,
                found: u64::from(found),
                limit: u64::from(u8::MAX),
            })
        };
        Ok(match (reason, a, b) {
            (1, min, max) => {
                TurnedAway::Version { min: minor("minor_min", min)?, max: minor("minor_max", max)? }
            }
            (2, limit, 0) => TurnedAway::TooMany { limit },
            (3, 0, 0) => TurnedAway::NameTaken,
            (4, 0, 0) => TurnedAway::NotAllowed,
            _ => return Err(DecodeError::Unknown { field: "reason", found: u64::from(reason) }),
        })
    }

    pub(super) fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        let (reason, a, b) = match *self {
            TurnedAway::Version { min, max } => (1, u32::from(min), u32::from(max)),
            TurnedAway::TooMany { limit } => (2, limit, 0),
            TurnedAway::NameTaken => (3, 0, 0),
            TurnedAway::NotAllowed => (4, 0, 0),
        };
        out.put(&[reason])?;
        out.put(&u32::to_le_bytes(a))?;
        out.put(&u32::to_le_bytes(b))
    }
}

/// The minor version that a datapath and an agent that speaks `ours` use: the highest that both know.
///
/// # Errors
/// [`TurnedAway::Version`] with `ours` when there is none.
pub fn negotiate(theirs: &RangeInclusive<u8>, ours: &RangeInclusive<u8>) -> Result<u8, TurnedAway> {
    let minor = *theirs.end().min(ours.end());
    if theirs.contains(&minor) && ours.contains(&minor) {
        Ok(minor)
    } else {
        Err(TurnedAway::Version { min: *ours.start(), max: *ours.end() })
    }
}
