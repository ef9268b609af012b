//! The messages, each towards the side that may receive it.

use ccplane_contract::{DatapathError, Field, FlowId, FlowInfo, FlowStats, Part, ProgramUid, SlotStats};
use ccplane_infer::Shape;
use ccplane_program::ir::{Hook, MAX_REGS, Program};

use super::flow::{read_flow, read_info, read_uid, write_flow, write_info, write_uid};
use super::hello::{Hello, MAX_NAME_BYTES, TurnedAway, Welcome, read_slots, write_slots};
use super::program::{encode_program, read_hook, read_program};
use super::refusal::{self, MAX_REASON_BYTES, write_clipped};
use super::report::{MAX_REPORTS, REPORTS, Report};
use super::single::{REPORT, SingleReport};
use super::slot::{MAX_IMAGE_WORDS, read_part, read_shape, write_part, write_shape};
use super::{Frame, OPTIONAL, encode};
use crate::bytes::{Reader, put_text};
use crate::list::{read_list, write_list};
use crate::{DecodeError, EncodeError, List, Out};

/// Fields of one SET_PROGRAM or UPDATE: every register, `Cwnd` and `Rate`.
pub const MAX_FIELDS: usize = MAX_REGS + 2;
/// Flows of one FLOW_STATS.
pub const MAX_FLOW_STATS: usize = 256;
/// The first minor version with programs that flows start with.
pub const FIRST_MINOR: u8 = 3;

const HELLO: u16 = 0x01;
const INSTALLED: u16 = 0x02;
const DONE: u16 = 0x03;
const REFUSED: u16 = 0x04;
const CREATED: u16 = 0x05;
const CLOSED: u16 = 0x06;
const FLOW_STATS: u16 = 0x08;
const DROPPED: u16 = 0x09;
const SLOTS: u16 = 0x0a;
const REQUESTED: u16 = 0x0b | OPTIONAL;
const WELCOME: u16 = 0x41;
const TURNED_AWAY: u16 = 0x42;
const INSTALL: u16 = 0x43;
const REMOVE: u16 = 0x44;
const SET_PROGRAM: u16 = 0x45;
const UPDATE: u16 = 0x46;
const RELEASE: u16 = 0x47;
const GET_FLOWS: u16 = 0x48;
const DEFINE_SLOT: u16 = 0x49;
const PUSH: u16 = 0x4a;
const SHARE: u16 = 0x4b;
const PROMOTE: u16 = 0x4c;
const ROLLBACK: u16 = 0x4d;
const GET_SLOTS: u16 = 0x4e;
const SET_FIRST: u16 = 0x4f;
const CLEAR_FIRST: u16 = 0x50;
const ENSURE_PROGRAM: u16 = 0x51;
const HEARTBEAT: u16 = 0x81;
const BYE: u16 = 0x82;

/// Reasons why a side leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ByeReason {
    /// The sender stops.
    Stopping = 0,
    /// The sender received a message that breaks the protocol.
    Protocol = 1,
    /// The other side was silent for too long.
    Silent = 2,
}

/// A message to an agent.
#[derive(Clone, PartialEq, Debug)]
pub enum ToAgent<'a> {
    /// A datapath introduces itself.
    Hello(Hello<'a>),
    /// Answers INSTALL: it will run.
    Installed {
        uid: ProgramUid,
    },
    /// Answers any other command: it is done.
    Done,
    /// Answers a command: nothing was changed.
    Refused(DatapathError),
    /// A flow started, was adopted, or was found running.
    Created {
        flow: FlowId,
        info: FlowInfo,
    },
    Closed {
        flow: FlowId,
    },
    /// The congestion control that a flow's owner asked for by name; it comes before the flow's CREATED.
    Requested {
        flow: FlowId,
        /// At most 63 bytes.
        name: &'a str,
    },
    /// Programs reported; at most [`MAX_REPORTS`].
    Reports(List<'a, Report<'a>>),
    /// A program reported.
    Report(SingleReport<'a>),
    /// Answers GET_FLOWS, in one or more frames.
    FlowStats {
        /// No more frames follow.
        last: bool,
        /// The flows' statistics, at most [`MAX_FLOW_STATS`].
        flows: List<'a, FlowStats>,
    },
    /// Events that did not fit since the last of these.
    Dropped {
        count: u64,
    },
    /// Answers GET_SLOTS: the slots that were defined.
    Slots(List<'a, SlotStats>),
    /// The datapath is alive.
    Heartbeat {
        /// The datapath's clock, microseconds.
        now_us: u64,
    },
    /// The datapath leaves: its flows are gone for this agent.
    Bye {
        reason: ByeReason,
        /// In words; at most [`MAX_REASON_BYTES`], longer ones are cut when they are encoded.
        text: &'a str,
    },
}

/// A message to a datapath.
#[derive(Clone, PartialEq, Debug)]
pub enum ToDatapath<'a> {
    /// The agent takes it on.
    Welcome(Welcome),
    /// The agent does not.
    TurnedAway(TurnedAway),
    /// Install a program under a new uid.
    Install {
        uid: ProgramUid,
        /// The program, which has passed the verifier.
        program: Program,
    },
    /// Remove a program that no flow runs.
    Remove { uid: ProgramUid },
    /// At the flow's next ACK: start the program from its initial state, then set the fields.
    SetProgram {
        flow: FlowId,
        uid: ProgramUid,
        /// The program's first values, at most [`MAX_FIELDS`].
        fields: List<'a, (Field, i64)>,
    },
    /// At the flow's next ACK: set the fields.
    Update {
        flow: FlowId,
        /// The new values, at most [`MAX_FIELDS`].
        fields: List<'a, (Field, i64)>,
    },
    /// Hand the flow to the native algorithm.
    Release { flow: FlowId },
    /// Asks for FLOW_STATS in answer.
    GetFlows,
    /// Say what a slot's snapshots are.
    DefineSlot {
        slot: u8,
        /// Of all its snapshots.
        shape: Shape,
    },
    /// Put a snapshot into a slot.
    Push {
        slot: u8,
        part: Part,
        /// Its words, at most [`MAX_IMAGE_WORDS`]; still to be checked.
        image: List<'a, u64>,
    },
    /// Change the canary's share of the flows, in 2^-16.
    Share {
        slot: u8,
        /// The canary's share of the flows, in units of 2^-16.
        share: u16,
    },
    /// Make the canary active.
    Promote { slot: u8 },
    /// Drop the canary, or go back to the last good snapshot.
    Rollback { slot: u8 },
    /// Asks for SLOTS in answer.
    GetSlots,
    /// Start flows to come with the program, before the agent hears of them.
    SetFirst {
        uid: ProgramUid,
        /// The program's first values, at most [`MAX_FIELDS`].
        fields: List<'a, (Field, i64)>,
    },
    /// Start flows to come without a program of the hook.
    ClearFirst { hook: Hook },
    /// Do what SET_PROGRAM does, unless the flow runs the program already.
    EnsureProgram {
        flow: FlowId,
        uid: ProgramUid,
        /// The program's first values, at most [`MAX_FIELDS`].
        fields: List<'a, (Field, i64)>,
    },
    /// The agent is alive.
    Heartbeat {
        /// The agent's clock, microseconds.
        now_us: u64,
    },
    /// The agent leaves: all flows go to the native algorithm.
    Bye {
        reason: ByeReason,
        /// In words; at most [`MAX_REASON_BYTES`], longer ones are cut when they are encoded.
        text: &'a str,
    },
}

impl<'a> Frame<'a> {
    /// The flow and the fields of an UPDATE; `None` for any other frame. What most frames to a datapath are.
    ///
    /// # Errors
    /// As [`ToDatapath::parse`].
    #[inline]
    #[expect(clippy::type_complexity, reason = "as in `ToDatapath::Update`")]
    pub fn update(&self) -> Result<Option<(FlowId, List<'a, (Field, i64)>)>, DecodeError> {
        if self.ty != UPDATE {
            return Ok(None);
        }
        let r = &mut Reader::new(self.body);
        let (flow, fields) = (read_flow(r)?, read_list(r, "fields", MAX_FIELDS)?);
        self.finish(r)?;
        Ok(Some((flow, fields)))
    }
}

impl<'a> ToAgent<'a> {
    /// Parses one frame; `None` is an optional message of a newer minor version, to be skipped.
    ///
    /// # Errors
    /// `UnknownType` for one that is not optional, `Direction` for what only a datapath receives; `Length`
    /// when bytes are left over; the rest names its field.
    pub fn parse(frame: Frame<'a>) -> Result<Option<Self>, DecodeError> {
        if let Some(reports) = frame.reports()? {
            return Ok(Some(ToAgent::Reports(reports)));
        }
        if let Some(report) = frame.report()? {
            return Ok(Some(ToAgent::Report(report)));
        }
        let r = &mut Reader::new(frame.body);
        let msg = match frame.ty {
            HELLO => ToAgent::Hello(Hello::read(r, frame.minor)?),
            INSTALLED => ToAgent::Installed { uid: read_uid(r)? },
            DONE => ToAgent::Done,
            REFUSED => ToAgent::Refused(refusal::read(r)?),
            CREATED => ToAgent::Created { flow: read_flow(r)?, info: read_info(r)? },
            CLOSED => ToAgent::Closed { flow: read_flow(r)? },
            REQUESTED => ToAgent::Requested { flow: read_flow(r)?, name: r.text("name", MAX_NAME_BYTES)? },
            FLOW_STATS => {
                ToAgent::FlowStats { last: r.bool("last")?, flows: read_list(r, "flows", MAX_FLOW_STATS)? }
            }
            DROPPED => ToAgent::Dropped { count: r.u64("count")? },
            SLOTS => ToAgent::Slots(read_slots(r)?),
            HEARTBEAT => ToAgent::Heartbeat { now_us: r.u64("now_us")? },
            BYE => ToAgent::Bye { reason: read_bye(r)?, text: r.text("text", MAX_REASON_BYTES)? },
            ty => return wrong_side(ty, "the agent").map_or_else(|| frame.unknown(), Err),
        };
        frame.finish(r)?;
        Ok(Some(msg))
    }

    /// Appends one frame; `request` is the number of the command that it answers, or 0.
    ///
    /// # Errors
    /// `TooMany` of something, `Zero` for a segment size of 0, `MixedFamilies`, `Full`; nothing is written
    /// then.
    pub fn encode(&self, request: u32, out: &mut impl Out) -> Result<(), EncodeError> {
        match self {
            ToAgent::Hello(hello) => encode(out, HELLO, request, |out| hello.write(out)),
            ToAgent::Installed { uid } => encode(out, INSTALLED, request, |out| write_uid(*uid, out)),
            ToAgent::Done => encode(out, DONE, request, |_| Ok(())),
            ToAgent::Refused(error) => encode(out, REFUSED, request, |out| refusal::write(error, out)),
            ToAgent::Created { flow, info } => encode(out, CREATED, request, |out| {
                write_flow(*flow, out)?;
                write_info(info, out)
            }),
            ToAgent::Closed { flow } => encode(out, CLOSED, request, |out| write_flow(*flow, out)),
            ToAgent::Requested { flow, name } => encode(out, REQUESTED, request, |out| {
                write_flow(*flow, out)?;
                put_text(out, "name", name, MAX_NAME_BYTES)
            }),
            ToAgent::Reports(reports) => {
                encode(out, REPORTS, request, |out| write_list(out, "reports", reports, MAX_REPORTS))
            }
            ToAgent::Report(report) => report.encode(request, out),
            ToAgent::FlowStats { last, flows } => encode(out, FLOW_STATS, request, |out| {
                out.put(&[u8::from(*last)])?;
                write_list(out, "flows", flows, MAX_FLOW_STATS)
            }),
            ToAgent::Dropped { count } => encode(out, DROPPED, request, |out| out.put(&count.to_le_bytes())),
            ToAgent::Slots(slots) => encode(out, SLOTS, request, |out| write_slots(slots, out)),
            ToAgent::Heartbeat { now_us } => heartbeat(out, request, *now_us),
            ToAgent::Bye { reason, text } => bye(out, request, *reason, text),
        }
    }
}

impl<'a> ToDatapath<'a> {
    /// Parses one frame; `None` is an optional message of a newer minor version, to be skipped.
    ///
    /// # Errors
    /// `UnknownType` for one that is not optional, `Direction` for what only an agent receives; `Length` when
    /// bytes are left over; `Program` for one that does not verify; the rest names its field.
    pub fn parse(frame: Frame<'a>) -> Result<Option<Self>, DecodeError> {
        if let Some((flow, fields)) = frame.update()? {
            return Ok(Some(ToDatapath::Update { flow, fields }));
        }
        let r = &mut Reader::new(frame.body);
        let msg = match frame.ty {
            WELCOME => ToDatapath::Welcome(Welcome::read(r, frame.minor)?),
            TURNED_AWAY => ToDatapath::TurnedAway(TurnedAway::read(r)?),
            INSTALL => ToDatapath::Install { uid: read_uid(r)?, program: read_program(r)? },
            REMOVE => ToDatapath::Remove { uid: read_uid(r)? },
            SET_PROGRAM => ToDatapath::SetProgram {
                flow: read_flow(r)?,
                uid: read_uid(r)?,
                fields: read_list(r, "fields", MAX_FIELDS)?,
            },
            RELEASE => ToDatapath::Release { flow: read_flow(r)? },
            GET_FLOWS => ToDatapath::GetFlows,
            DEFINE_SLOT => ToDatapath::DefineSlot { slot: r.u8("slot")?, shape: read_shape(r)? },
            PUSH => ToDatapath::Push {
                slot: r.u8("slot")?,
                part: read_part(r)?,
                image: read_list(r, "image", MAX_IMAGE_WORDS)?,
            },
            SHARE => ToDatapath::Share { slot: r.u8("slot")?, share: r.u16("share")? },
            PROMOTE => ToDatapath::Promote { slot: r.u8("slot")? },
            ROLLBACK => ToDatapath::Rollback { slot: r.u8("slot")? },
            GET_SLOTS => ToDatapath::GetSlots,
            SET_FIRST => {
                ToDatapath::SetFirst { uid: read_uid(r)?, fields: read_list(r, "fields", MAX_FIELDS)? }
            }
            CLEAR_FIRST => ToDatapath::ClearFirst { hook: read_hook(r)? },
            ENSURE_PROGRAM => ToDatapath::EnsureProgram {
                flow: read_flow(r)?,
                uid: read_uid(r)?,
                fields: read_list(r, "fields", MAX_FIELDS)?,
            },
            HEARTBEAT => ToDatapath::Heartbeat { now_us: r.u64("now_us")? },
            BYE => ToDatapath::Bye { reason: read_bye(r)?, text: r.text("text", MAX_REASON_BYTES)? },
            ty => return wrong_side(ty, "a datapath").map_or_else(|| frame.unknown(), Err),
        };
        frame.finish(r)?;
        Ok(Some(msg))
    }

    /// Appends one frame; `request` numbers a command, and 0 asks for no INSTALLED or DONE.
    ///
    /// # Errors
    /// `TooMany` of something, `TooLarge` for a register, `Zero` for a timeout of 0, `Full`; nothing is
    /// written then.
    pub fn encode(&self, request: u32, out: &mut impl Out) -> Result<(), EncodeError> {
        match self {
            ToDatapath::Welcome(welcome) => encode(out, WELCOME, request, |out| welcome.write(out)),
            ToDatapath::TurnedAway(reason) => encode(out, TURNED_AWAY, request, |out| reason.write(out)),
            ToDatapath::Install { uid, program } => encode(out, INSTALL, request, |out| {
                write_uid(*uid, out)?;
                encode_program(program, out)
            }),
            ToDatapath::Remove { uid } => encode(out, REMOVE, request, |out| write_uid(*uid, out)),
            ToDatapath::SetProgram { flow, uid, fields } => encode(out, SET_PROGRAM, request, |out| {
                write_flow(*flow, out)?;
                write_uid(*uid, out)?;
                write_list(out, "fields", fields, MAX_FIELDS)
            }),
            ToDatapath::Update { flow, fields } => encode(out, UPDATE, request, |out| {
                write_flow(*flow, out)?;
                write_list(out, "fields", fields, MAX_FIELDS)
            }),
            ToDatapath::Release { flow } => encode(out, RELEASE, request, |out| write_flow(*flow, out)),
            ToDatapath::GetFlows => encode(out, GET_FLOWS, request, |_| Ok(())),
            ToDatapath::DefineSlot { slot, shape } => encode(out, DEFINE_SLOT, request, |out| {
                out.put(&[*slot])?;
                write_shape(shape, out)
            }),
            ToDatapath::Push { slot, part, image } => encode(out, PUSH, request, |out| {
                out.put(&[*slot])?;
                write_part(*part, out)?;
                write_list(out, "image", image, MAX_IMAGE_WORDS)
            }),
            ToDatapath::Share { slot, share } => encode(out, SHARE, request, |out| {
                out.put(&[*slot])?;
                out.put(&share.to_le_bytes())
            }),
            ToDatapath::Promote { slot } => encode(out, PROMOTE, request, |out| out.put(&[*slot])),
            ToDatapath::Rollback { slot } => encode(out, ROLLBACK, request, |out| out.put(&[*slot])),
            ToDatapath::GetSlots => encode(out, GET_SLOTS, request, |_| Ok(())),
            ToDatapath::SetFirst { uid, fields } => encode(out, SET_FIRST, request, |out| {
                write_uid(*uid, out)?;
                write_list(out, "fields", fields, MAX_FIELDS)
            }),
            ToDatapath::ClearFirst { hook } => {
                encode(out, CLEAR_FIRST, request, |out| out.put(&[*hook as u8]))
            }
            ToDatapath::EnsureProgram { flow, uid, fields } => encode(out, ENSURE_PROGRAM, request, |out| {
                write_flow(*flow, out)?;
                write_uid(*uid, out)?;
                write_list(out, "fields", fields, MAX_FIELDS)
            }),
            ToDatapath::Heartbeat { now_us } => heartbeat(out, request, *now_us),
            ToDatapath::Bye { reason, text } => bye(out, request, *reason, text),
        }
    }
}

fn heartbeat(out: &mut impl Out, request: u32, now_us: u64) -> Result<(), EncodeError> {
    encode(out, HEARTBEAT, request, |out| out.put(&now_us.to_le_bytes()))
}

fn bye(out: &mut impl Out, request: u32, reason: ByeReason, text: &str) -> Result<(), EncodeError> {
    encode(out, BYE, request, |out| {
        out.put(&[reason as u8])?;
        write_clipped(out, text)
    })
}

fn read_bye(r: &mut Reader<'_>) -> Result<ByeReason, DecodeError> {
    Ok(match r.u8("reason")? {
        0 => ByeReason::Stopping,
        1 => ByeReason::Protocol,
        2 => ByeReason::Silent,
        found => return Err(DecodeError::Unknown { field: "reason", found: u64::from(found) }),
    })
}

/// The error for a message that exists, but goes the other way.
fn wrong_side(ty: u16, to: &'static str) -> Option<DecodeError> {
    let name = match ty {
        HELLO => "HELLO",
        INSTALLED => "INSTALLED",
        DONE => "DONE",
        REFUSED => "REFUSED",
        CREATED => "CREATED",
        CLOSED => "CLOSED",
        REPORTS => "REPORTS",
        REPORT => "REPORT",
        FLOW_STATS => "FLOW_STATS",
        DROPPED => "DROPPED",
        SLOTS => "SLOTS",
        REQUESTED => "REQUESTED",
        WELCOME => "WELCOME",
        TURNED_AWAY => "TURNED_AWAY",
        INSTALL => "INSTALL",
        REMOVE => "REMOVE",
        SET_PROGRAM => "SET_PROGRAM",
        UPDATE => "UPDATE",
        RELEASE => "RELEASE",
        GET_FLOWS => "GET_FLOWS",
        DEFINE_SLOT => "DEFINE_SLOT",
        PUSH => "PUSH",
        SHARE => "SHARE",
        PROMOTE => "PROMOTE",
        ROLLBACK => "ROLLBACK",
        GET_SLOTS => "GET_SLOTS",
        SET_FIRST => "SET_FIRST",
        CLEAR_FIRST => "CLEAR_FIRST",
        ENSURE_PROGRAM => "ENSURE_PROGRAM",
        _ => return None,
    };
    Some(DecodeError::Direction { name, to })
}
