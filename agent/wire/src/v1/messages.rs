//! The messages, each towards the side that may receive it.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use ccplane_contract::FlowInfo;
use ccplane_program::stock::StockReg;

use super::bytecode::{Bytecode, Index, MAX_CONTROL_REGS, Reg, Special};
use super::{
    CONG_ALG_BYTES, Frame, HEADER_BYTES, MAX_CHANGE_FIELDS, MAX_REPORT_REGS, MAX_UPDATE_FIELDS, MsgType,
    frames,
};
use crate::bytes::{Reader, all_or_nothing};
use crate::list::Item;
use crate::{DecodeError, EncodeError, List, Out};

/// Bytes of one updated field.
const FIELD_BYTES: usize = 13;
/// The name of a field's register in errors.
const FIELD: &str = "register";

/// A message to an agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToAgent<'a> {
    /// A datapath started: it has no programs and no flows.
    Ready {
        /// The datapath's own name for itself.
        id: u32,
    },
    Create(Create<'a>),
    Measure(Measure<'a>),
    /// A flow ended: libccp sends a MEASURE of program 0 without values.
    Close {
        sid: u32,
    },
}

/// A message to a datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToDatapath<'a> {
    /// Install a program for all flows.
    Install(Install<'a>),
    /// Set fields of the running program.
    Update(Update<'a>),
    /// Run another program from its initial state.
    ChangeProg(ChangeProg<'a>),
}

/// The orders in which a datapath puts addresses and ports into CREATE. CCP does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AddrOrder {
    /// The order of the sockets API: the first octet and the port's high byte come first. ccp-kernel does
    /// so.
    #[default]
    Network,
    /// The address as a number in the host's byte order.
    Host,
}

/// One end of a flow, as CREATE carries it: in the datapath's own [`AddrOrder`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Endpoint {
    pub ip: u32,
    pub port: u32,
}

impl Endpoint {
    /// The address, if the datapath uses this order.
    ///
    /// # Errors
    /// `TooLarge` when the port does not fit 16 bits.
    pub fn to_addr(self, order: AddrOrder) -> Result<SocketAddrV4, DecodeError> {
        let port = u16::try_from(self.port).map_err(|_| DecodeError::TooLarge {
            field: "port",
            found: u64::from(self.port),
            limit: u64::from(u16::MAX),
        })?;
        Ok(match order {
            AddrOrder::Network => SocketAddrV4::new(self.ip.to_le_bytes().into(), port.swap_bytes()),
            AddrOrder::Host => SocketAddrV4::new(self.ip.into(), port),
        })
    }

    /// Returns how this order carries `addr`. An IPv4-mapped IPv6 address goes as IPv4.
    ///
    /// # Errors
    /// `Ipv6`, with `field` as its name.
    pub fn from_addr(addr: SocketAddr, order: AddrOrder, field: &'static str) -> Result<Self, EncodeError> {
        let ip: Ipv4Addr = match addr {
            SocketAddr::V4(v4) => *v4.ip(),
            SocketAddr::V6(v6) => v6.ip().to_ipv4_mapped().ok_or(EncodeError::Ipv6 { field })?,
        };
        Ok(match order {
            AddrOrder::Network => {
                Endpoint { ip: u32::from_le_bytes(ip.octets()), port: u32::from(addr.port().swap_bytes()) }
            }
            AddrOrder::Host => Endpoint { ip: ip.into(), port: u32::from(addr.port()) },
        })
    }
}

/// CREATE, which announces a flow that started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Create<'a> {
    /// The flow. libccp numbers flows from 1, and reuses the numbers.
    pub sid: u32,
    pub init_cwnd_bytes: u32,
    /// Maximum segment size, bytes; not 0.
    pub mss_bytes: u32,
    pub local: Endpoint,
    pub remote: Endpoint,
    /// The algorithm that the datapath asks for; at most 63 bytes, without NUL. An empty name is `None`.
    pub cong_alg: Option<&'a str>,
}

impl<'a> Create<'a> {
    /// Announces a flow of ours.
    ///
    /// # Errors
    /// `Ipv6`, since v1 cannot express such a flow; `TooLarge` for a window beyond 32 bits.
    pub fn from_info(
        sid: u32,
        info: &FlowInfo,
        order: AddrOrder,
        cong_alg: Option<&'a str>,
    ) -> Result<Self, EncodeError> {
        let init_cwnd_bytes = u32::try_from(info.init_cwnd_bytes).map_err(|_| EncodeError::TooLarge {
            field: "init_cwnd_bytes",
            found: info.init_cwnd_bytes,
            limit: u64::from(u32::MAX),
        })?;
        Ok(Create {
            sid,
            init_cwnd_bytes,
            mss_bytes: info.mss_bytes,
            local: Endpoint::from_addr(info.local, order, "local")?,
            remote: Endpoint::from_addr(info.remote, order, "remote")?,
            cong_alg,
        })
    }

    /// Returns the facts about the flow, if the datapath uses this order of address bytes.
    ///
    /// # Errors
    /// `TooLarge` when a port does not fit 16 bits.
    pub fn to_info(&self, order: AddrOrder) -> Result<FlowInfo, DecodeError> {
        Ok(FlowInfo {
            mss_bytes: self.mss_bytes,
            init_cwnd_bytes: u64::from(self.init_cwnd_bytes),
            local: self.local.to_addr(order)?.into(),
            remote: self.remote.to_addr(order)?.into(),
            cgroup: None,
            min_rtt_us: None,
        })
    }

    fn read(sid: u32, r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let init_cwnd_bytes = r.u32("init_cwnd")?;
        let mss_bytes = r.u32("mss")?;
        if mss_bytes == 0 {
            return Err(DecodeError::Zero { field: "mss" });
        }
        let local = Endpoint { ip: r.u32("src_ip")?, port: r.u32("src_port")? };
        let remote = Endpoint { ip: r.u32("dst_ip")?, port: r.u32("dst_port")? };
        let text = r.bytes(CONG_ALG_BYTES, "cong_alg")?;
        let name = text.split(|b| *b == 0).next().filter(|name| name.len() < CONG_ALG_BYTES);
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or(DecodeError::Text { field: "cong_alg" })?;
        let cong_alg = (!name.is_empty()).then_some(name);
        Ok(Create { sid, init_cwnd_bytes, mss_bytes, local, remote, cong_alg })
    }

    fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        if self.mss_bytes == 0 {
            return Err(EncodeError::Zero { field: "mss" });
        }
        let (local, remote) = (self.local, self.remote);
        for n in [self.init_cwnd_bytes, self.mss_bytes, local.ip, local.port, remote.ip, remote.port] {
            out.put(&n.to_le_bytes())?;
        }
        let name = self.cong_alg.unwrap_or_default();
        if name.contains('\0') {
            return Err(EncodeError::Nul { field: "cong_alg" });
        }
        let mut text = [0; CONG_ALG_BYTES];
        match text.split_last_mut().and_then(|(_nul, text)| text.get_mut(..name.len())) {
            Some(to) => to.copy_from_slice(name.as_bytes()),
            None => return Err(too_many("cong_alg bytes", name.len(), CONG_ALG_BYTES - 1)),
        }
        out.put(&text)
    }
}

/// MEASURE, the report of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measure<'a> {
    pub sid: u32,
    /// The program, by its INSTALL's uid; not 0.
    pub program_uid: u32,
    /// The report registers, at most [`MAX_REPORT_REGS`]. **A portus agent takes a report without values for
    /// the end of the flow.**
    pub values: List<'a, u64>,
}

/// INSTALL, which gives a program to the datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Install<'a> {
    /// Not used by libccp; portus sends 0.
    pub sid: u32,
    /// The program's name; not 0. **libccp forgets all programs when it installs uid 1**, so that this must
    /// be the first one of an agent.
    pub program_uid: u32,
    pub code: Bytecode<'a>,
}

/// A value that an agent can set on a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Field {
    Control {
        index: Index<MAX_CONTROL_REGS>,
        /// The flag as it was declared; libccp does not care here.
        volatile: bool,
    },
    /// Congestion window, bytes; 0 is ignored.
    Cwnd,
    /// Pacing rate, bytes per second; 0 is ignored.
    Rate,
}

impl TryFrom<Reg> for Field {
    type Error = DecodeError;

    fn try_from(reg: Reg) -> Result<Self, DecodeError> {
        match reg {
            Reg::Control { index, volatile } => Ok(Field::Control { index, volatile }),
            Reg::Special(Special::Cwnd) => Ok(Field::Cwnd),
            Reg::Special(Special::Rate) => Ok(Field::Rate),
            other => Err(DecodeError::NotAllowed { field: FIELD, found: other.name() }),
        }
    }
}

impl TryFrom<StockReg> for Field {
    type Error = DecodeError;

    fn try_from(reg: StockReg) -> Result<Self, DecodeError> {
        Reg::from_wire(reg.kind, reg.index, FIELD)?.try_into()
    }
}

impl<'a> Item<'a> for (Field, u64) {
    const WHAT: &'static str = "field";

    fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok((Reg::read(r, FIELD)?.try_into()?, r.u64("value")?))
    }

    fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        let reg = match self.0 {
            Field::Control { index, volatile } => Reg::Control { index, volatile },
            Field::Cwnd => Reg::Special(Special::Cwnd),
            Field::Rate => Reg::Special(Special::Rate),
        };
        reg.write(out)?;
        out.put(&self.1.to_le_bytes())
    }
}

/// Set fields of the running program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Update<'a> {
    pub sid: u32,
    /// The new values, at most [`MAX_UPDATE_FIELDS`].
    pub fields: List<'a, (Field, u64)>,
}

/// Run another program from its initial state, with these fields set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangeProg<'a> {
    pub sid: u32,
    /// The program; not 0.
    pub program_uid: u32,
    /// The program's first values, at most [`MAX_CHANGE_FIELDS`].
    pub fields: List<'a, (Field, u64)>,
}

impl<'a> ToAgent<'a> {
    /// Parses one message to an agent.
    ///
    /// # Errors
    /// `Direction` for what only a datapath receives; `Short`, `Length` when the counts and the header's
    /// length disagree; the rest names its field.
    pub fn parse(frame: Frame<'a>) -> Result<Self, DecodeError> {
        let r = &mut Reader::new(frame.body);
        let sid = frame.sid;
        let msg = match frame.ty {
            MsgType::Ready => ToAgent::Ready { id: r.u32("id")? },
            MsgType::Create => ToAgent::Create(Create::read(sid, r)?),
            MsgType::Measure => {
                let program_uid = r.u32("program_uid")?;
                let n = read_count(r, "values", usize::from(MAX_REPORT_REGS))?;
                match (program_uid, n) {
                    (0, 0) => ToAgent::Close { sid },
                    (0, _) => return Err(DecodeError::Zero { field: "program_uid" }),
                    _ => ToAgent::Measure(Measure { sid, program_uid, values: List::read(r, n)? }),
                }
            }
            MsgType::Install | MsgType::UpdateField | MsgType::ChangeProg => {
                return Err(DecodeError::Direction { name: frame.ty.name(), to: "the agent" });
            }
        };
        finish(frame, r)?;
        Ok(msg)
    }

    /// Parses all messages of a datagram: see [`frames`].
    pub fn parse_all(datagram: &'a [u8]) -> impl Iterator<Item = Result<Self, DecodeError>> {
        frames(datagram).map(|frame| frame.and_then(Self::parse))
    }

    /// Appends the message to `out`.
    ///
    /// # Errors
    /// `TooMany` values, `Zero` for a uid or a segment size of 0, `Nul` and `TooMany` for a name, `Full`;
    /// nothing is written then.
    pub fn encode(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        match self {
            ToAgent::Ready { id } => encode(out, MsgType::Ready, 0, 4, |out| out.put(&id.to_le_bytes())),
            ToAgent::Create(c) => {
                encode(out, MsgType::Create, c.sid, 24 + CONG_ALG_BYTES, |out| c.write(out))
            }
            ToAgent::Close { sid } => encode(out, MsgType::Measure, *sid, 8, |out| out.put(&[0; 8])),
            ToAgent::Measure(m) => {
                let n = m.values.len();
                encode(out, MsgType::Measure, m.sid, 8 + 8 * n, |out| {
                    put_uid(out, m.program_uid)?;
                    write_count(out, "values", n, usize::from(MAX_REPORT_REGS))?;
                    m.values.write(out)
                })
            }
        }
    }
}

impl<'a> ToDatapath<'a> {
    /// Parses one message to a datapath.
    ///
    /// # Errors
    /// `Direction` for what only an agent receives; `Short`, `Length` when the counts and the header's length
    /// disagree; the rest names its field.
    pub fn parse(frame: Frame<'a>) -> Result<Self, DecodeError> {
        let r = &mut Reader::new(frame.body);
        let sid = frame.sid;
        let msg = match frame.ty {
            MsgType::Install => {
                let program_uid = read_uid(r)?;
                let (events, insts) = (r.u32("events")? as usize, r.u32("instructions")? as usize);
                ToDatapath::Install(Install { sid, program_uid, code: Bytecode::read(r, events, insts)? })
            }
            MsgType::UpdateField => {
                let n = read_count(r, "fields", MAX_UPDATE_FIELDS)?;
                ToDatapath::Update(Update { sid, fields: List::read(r, n)? })
            }
            MsgType::ChangeProg => {
                let program_uid = read_uid(r)?;
                let n = read_count(r, "fields", MAX_CHANGE_FIELDS)?;
                ToDatapath::ChangeProg(ChangeProg { sid, program_uid, fields: List::read(r, n)? })
            }
            MsgType::Create | MsgType::Measure | MsgType::Ready => {
                return Err(DecodeError::Direction { name: frame.ty.name(), to: "a datapath" });
            }
        };
        finish(frame, r)?;
        Ok(msg)
    }

    /// Parses all messages of a datagram: see [`frames`].
    pub fn parse_all(datagram: &'a [u8]) -> impl Iterator<Item = Result<Self, DecodeError>> {
        frames(datagram).map(|frame| frame.and_then(Self::parse))
    }

    /// Appends the message to `out`.
    ///
    /// # Errors
    /// `TooMany` fields, `Zero` for a uid of 0, `Full`; nothing is written then.
    pub fn encode(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        match self {
            ToDatapath::Install(i) => encode(out, MsgType::Install, i.sid, 12 + i.code.bytes(), |out| {
                put_uid(out, i.program_uid)?;
                write_count(out, "events", i.code.events().len(), super::MAX_EVENTS)?;
                write_count(out, "instructions", i.code.insts().len(), super::MAX_INSTS)?;
                i.code.write(out)
            }),
            ToDatapath::Update(u) => {
                let n = u.fields.len();
                encode(out, MsgType::UpdateField, u.sid, 4 + n * FIELD_BYTES, |out| {
                    write_count(out, "fields", n, MAX_UPDATE_FIELDS)?;
                    u.fields.write(out)
                })
            }
            ToDatapath::ChangeProg(c) => {
                let n = c.fields.len();
                encode(out, MsgType::ChangeProg, c.sid, 8 + n * FIELD_BYTES, |out| {
                    put_uid(out, c.program_uid)?;
                    write_count(out, "fields", n, MAX_CHANGE_FIELDS)?;
                    c.fields.write(out)
                })
            }
        }
    }
}

fn encode<O: Out>(
    out: &mut O,
    ty: MsgType,
    sid: u32,
    body_bytes: usize,
    body: impl FnOnce(&mut O) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let bytes = HEADER_BYTES + body_bytes;
    let len = match u16::try_from(bytes) {
        Ok(len) if bytes <= super::MAX_MSG_BYTES => len,
        _ => return Err(too_many("message bytes", bytes, super::MAX_MSG_BYTES)),
    };
    all_or_nothing(out, |out| {
        out.put(&(ty as u16).to_le_bytes())?;
        out.put(&len.to_le_bytes())?;
        out.put(&sid.to_le_bytes())?;
        body(out)
    })
}

fn too_many(field: &'static str, found: usize, limit: usize) -> EncodeError {
    EncodeError::TooMany { field, found, limit }
}

fn put_uid(out: &mut impl Out, uid: u32) -> Result<(), EncodeError> {
    if uid == 0 { Err(EncodeError::Zero { field: "program_uid" }) } else { out.put(&uid.to_le_bytes()) }
}

fn write_count(
    out: &mut impl Out,
    field: &'static str,
    found: usize,
    limit: usize,
) -> Result<(), EncodeError> {
    match u32::try_from(found) {
        Ok(n) if found <= limit => out.put(&n.to_le_bytes()),
        _ => Err(too_many(field, found, limit)),
    }
}

fn read_uid(r: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let uid = r.u32("program_uid")?;
    if uid == 0 { Err(DecodeError::Zero { field: "program_uid" }) } else { Ok(uid) }
}

fn read_count(r: &mut Reader<'_>, field: &'static str, limit: usize) -> Result<usize, DecodeError> {
    let found = r.u32(field)? as usize;
    if found > limit { Err(DecodeError::TooMany { field, found, limit }) } else { Ok(found) }
}

fn finish(frame: Frame<'_>, r: &Reader<'_>) -> Result<(), DecodeError> {
    let found = HEADER_BYTES + frame.body.len();
    match r.left() {
        0 => Ok(()),
        left => Err(DecodeError::Length { found, expected: found - left }),
    }
}
