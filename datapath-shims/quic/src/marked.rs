//! Datagrams with a code point (DSCP): quinn-udp writes the ECN bits of a traffic class only, so that its other six are 0.

use ccplane_contract::traffic_class;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};
use quinn_proto::Transmit;
use std::io::IoSlice;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// The control messages of one datagram, at most: traffic class, segment size, source address.
const MAX_CONTROLS: usize = 3;

/// Sends what quinn-udp would send, with this code point.
///
/// # Errors
/// The kernel's; `EINVAL` and `EIO` where it takes no such control message or no segmentation.
pub(crate) fn send(socket: &UdpSocket, to: &Transmit, dscp: u8, payload: &[u8]) -> Result<(), Errno> {
    let class = traffic_class(dscp, to.ecn.map_or(0, |ecn| ecn as u8));
    let wide_class = i32::from(class);
    // Mapped addresses are IPv4 for the kernel, too.
    let of_class = match to.destination.ip().to_canonical() {
        IpAddr::V4(_) => ControlMessage::Ipv4Tos(&class),
        IpAddr::V6(_) => ControlMessage::Ipv6TClass(&wide_class),
    };
    let segment = to.segment_size.filter(|bytes| *bytes < payload.len());
    let segment = segment.map(|bytes| u16::try_from(bytes).unwrap_or(u16::MAX));
    let (from_v4, from_v6) = sources(to.src_ip);
    let mut controls = [of_class; MAX_CONTROLS];
    let mut used = 1;
    let more = [
        segment.as_ref().map(ControlMessage::UdpGsoSegments),
        from_v4.as_ref().map(ControlMessage::Ipv4PacketInfo),
        from_v6.as_ref().map(ControlMessage::Ipv6PacketInfo),
    ];
    for control in more.into_iter().flatten().take(MAX_CONTROLS - 1) {
        controls[used] = control;
        used += 1;
    }
    let address = SockaddrStorage::from(to.destination);
    loop {
        let sent = sendmsg(
            socket.as_raw_fd(),
            &[IoSlice::new(payload)],
            &controls[..used],
            MsgFlags::empty(),
            Some(&address),
        );
        match sent {
            Err(Errno::EINTR) => {}
            sent => return sent.map(drop),
        }
    }
}

/// The source address as the kernel takes it, in the form of the address's family.
fn sources(from: Option<IpAddr>) -> (Option<libc::in_pktinfo>, Option<libc::in6_pktinfo>) {
    match from {
        None => (None, None),
        Some(IpAddr::V4(ip)) => {
            let own = libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
            let info =
                libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: own, ipi_addr: libc::in_addr { s_addr: 0 } };
            (Some(info), None)
        }
        Some(IpAddr::V6(ip)) => {
            let own = libc::in6_addr { s6_addr: ip.octets() };
            (None, Some(libc::in6_pktinfo { ipi6_addr: own, ipi6_ifindex: 0 }))
        }
    }
}
