//! Flows: what is known when they start, and their statistics.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use ccplane_contract::{FlowId, FlowInfo, FlowStats, Mode, ProgramUid, TransportStats};

use super::slot::{read_policy, write_policy};
use crate::bytes::Reader;
use crate::list::Item;
use crate::{DecodeError, EncodeError, Out};

const V4: u8 = 4;
const V6: u8 = 6;
/// Set in a mode where the flow's policy follows.
const POLICY: u8 = 1 << 7;

#[inline]
pub(super) fn read_flow(r: &mut Reader<'_>) -> Result<FlowId, DecodeError> {
    r.u64("flow").map(FlowId)
}

#[inline]
pub(super) fn write_flow(flow: FlowId, out: &mut impl Out) -> Result<(), EncodeError> {
    out.put(&flow.0.to_le_bytes())
}

#[inline]
pub(super) fn read_uid(r: &mut Reader<'_>) -> Result<ProgramUid, DecodeError> {
    r.u32("uid").map(ProgramUid)
}

#[inline]
pub(super) fn write_uid(uid: ProgramUid, out: &mut impl Out) -> Result<(), EncodeError> {
    out.put(&uid.0.to_le_bytes())
}

fn read_endpoint(r: &mut Reader<'_>, family: u8, field: &'static str) -> Result<SocketAddr, DecodeError> {
    let port = r.u16(field)?;
    if family == V4 {
        return Ok(SocketAddrV4::new(Ipv4Addr::from(r.array::<4>(field)?), port).into());
    }
    let ip = Ipv6Addr::from(r.array::<16>(field)?);
    Ok(SocketAddrV6::new(ip, port, r.u32(field)?, r.u32(field)?).into())
}

fn write_endpoint(addr: SocketAddr, out: &mut impl Out) -> Result<(), EncodeError> {
    out.put(&addr.port().to_le_bytes())?;
    match addr.ip() {
        IpAddr::V4(ip) => out.put(&ip.octets())?,
        IpAddr::V6(ip) => out.put(&ip.octets())?,
    }
    if let SocketAddr::V6(v6) = addr {
        out.put(&v6.flowinfo().to_le_bytes())?;
        out.put(&v6.scope_id().to_le_bytes())?;
    }
    Ok(())
}

pub(super) fn read_info(r: &mut Reader<'_>) -> Result<FlowInfo, DecodeError> {
    let mss_bytes = r.u32("mss_bytes")?;
    if mss_bytes == 0 {
        return Err(DecodeError::Zero { field: "mss_bytes" });
    }
    let init_cwnd_bytes = r.u64("init_cwnd_bytes")?;
    let family = match r.u8("family")? {
        family @ (V4 | V6) => family,
        found => return Err(DecodeError::Unknown { field: "family", found: u64::from(found) }),
    };
    Ok(FlowInfo {
        mss_bytes,
        init_cwnd_bytes,
        local: read_endpoint(r, family, "local")?,
        remote: read_endpoint(r, family, "remote")?,
        cgroup: if r.bool("cgroup")? { Some(r.u64("cgroup")?) } else { None },
        min_rtt_us: Some(r.u32("min_rtt_us")?).filter(|us| *us != 0),
    })
}

pub(super) fn write_info(info: &FlowInfo, out: &mut impl Out) -> Result<(), EncodeError> {
    if info.mss_bytes == 0 {
        return Err(EncodeError::Zero { field: "mss_bytes" });
    }
    if info.local.is_ipv4() != info.remote.is_ipv4() {
        return Err(EncodeError::MixedFamilies);
    }
    out.put(&info.mss_bytes.to_le_bytes())?;
    out.put(&info.init_cwnd_bytes.to_le_bytes())?;
    out.put(&[if info.local.is_ipv4() { V4 } else { V6 }])?;
    write_endpoint(info.local, out)?;
    write_endpoint(info.remote, out)?;
    out.put(&[u8::from(info.cgroup.is_some())])?;
    info.cgroup.map_or(Ok(()), |cgroup| out.put(&cgroup.to_le_bytes()))?;
    out.put(&info.min_rtt_us.unwrap_or(0).to_le_bytes())
}

fn read_transport(r: &mut Reader<'_>) -> Result<TransportStats, DecodeError> {
    let mut words = [0; TransportStats::COUNT];
    for (word, stat) in words.iter_mut().zip(TransportStats::LIST) {
        *word = if stat.is_wide { r.u64(stat.name)? } else { r.u32(stat.name)?.into() };
    }
    Ok(TransportStats::from_words(words))
}

fn write_transport(stats: &TransportStats, out: &mut impl Out) -> Result<(), EncodeError> {
    for (word, stat) in stats.to_words().iter().zip(TransportStats::LIST) {
        let bytes = if stat.is_wide { 8 } else { 4 };
        out.put(&word.to_le_bytes()[..bytes])?;
    }
    Ok(())
}

impl<'a> Item<'a> for FlowStats {
    const WHAT: &'static str = "flow";

    fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (flow, info, mode) = (read_flow(r)?, read_info(r)?, r.u8("mode")?);
        let mut stats = FlowStats {
            flow,
            info,
            mode: match mode & !POLICY {
                0 => Mode::Program,
                1 => Mode::NativeNoProgram,
                2 => Mode::NativeAgentSilent,
                3 => Mode::NativePolicy,
                _ => return Err(DecodeError::Unknown { field: "mode", found: u64::from(mode) }),
            },
            program: if r.bool("program")? { Some(read_uid(r)?) } else { None },
            transport: read_transport(r)?,
            policy: None,
            sampled_at_us: r.u64("sampled_at_us")?,
        };
        if mode & POLICY != 0 {
            stats.policy = Some(read_policy(r)?);
        }
        Ok(stats)
    }

    fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        write_flow(self.flow, out)?;
        write_info(&self.info, out)?;
        let mode = match self.mode {
            Mode::Program => 0,
            Mode::NativeNoProgram => 1,
            Mode::NativeAgentSilent => 2,
            Mode::NativePolicy => 3,
        };
        out.put(&[if self.policy.is_some() { mode | POLICY } else { mode }])?;
        out.put(&[u8::from(self.program.is_some())])?;
        if let Some(uid) = self.program {
            write_uid(uid, out)?;
        }
        write_transport(&self.transport, out)?;
        out.put(&self.sampled_at_us.to_le_bytes())?;
        self.policy.as_ref().map_or(Ok(()), |policy| write_policy(policy, out))
    }
}
