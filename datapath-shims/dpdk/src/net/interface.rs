//! A network interface: its addresses, neighbours and routes.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use etherparse::ArpOperation;
use ipnet::IpNet;

use super::Mac;
use super::frame::{self, Dropped, Frame, Headers, Offload, Resolution, Verified};
use super::neighbour::{Full, Neighbours, Solicitation};

/// Frames ready to be sent, at most, both of resolution and those that waited for it; further ones are dropped.
pub const MAX_READY: usize = 2048;
/// The smallest MTU of a link, which IPv6 requires (RFC 8200, section 5).
const MIN_MTU_BYTES: u16 = 1280;

/// Configuration of an interface.
#[derive(Debug, Clone)]
pub struct InterfaceConfig {
    /// The interface's Ethernet address.
    pub mac: Mac,
    /// The longest IP packet on the link, bytes.
    pub mtu_bytes: u16,
    /// The interface's addresses, each with the prefix that is on the link. The kernel must not have them, or it
    /// answers too.
    pub addresses: Vec<IpNet>,
    /// Gateways for destinations that are not on the link, at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Permanent neighbours, which are not asked for.
    pub neighbours: Vec<(IpAddr, Mac)>,
    /// Checksums that the port computes itself.
    pub offload: Offload,
    /// Whether UDP checksums may arrive unfinished; see [`frame::parse`].
    pub lenient: bool,
}

/// Reasons why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No address is given, so nobody could reach the interface.
    #[error("a port needs an address, such as 10.0.0.2/24")]
    NoAddress,
    /// An address is not a host's.
    #[error("{address} is no address of a host")]
    Address { address: IpAddr },
    /// A gateway is not on the link.
    #[error("gateway {gateway} is in none of the port's own prefixes")]
    Gateway { gateway: IpAddr },
    /// A neighbour's Ethernet address is not a station's.
    #[error("neighbour {address} is at {mac}, which is no station's address")]
    Neighbour {
        address: IpAddr,
        /// The address that it is said to be at.
        mac: Mac,
    },
    /// The MTU is too small for IPv6.
    #[error("the link carries packets of {mtu_bytes} bytes; {MIN_MTU_BYTES} are needed")]
    Mtu { mtu_bytes: u16 },
    /// Too many neighbours are permanent.
    #[error(transparent)]
    Full(#[from] Full),
}

/// Counts of dropped frames and datagrams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops {
    /// Frames for other stations.
    pub elsewhere: u64,
    /// Frames that are too short or contradict themselves.
    pub malformed: u64,
    /// Frames with wrong checksums.
    pub checksum: u64,
    pub fragment: u64,
    /// Frames of other protocols.
    pub protocol: u64,
    /// Neighbour messages that are to be ignored.
    pub invalid: u64,
    /// Datagrams without a route.
    pub no_route: u64,
    /// Datagrams longer than the link's MTU.
    pub too_long: u64,
    /// Datagrams whose neighbour did not answer, or for whom too many waited already.
    pub unresolved: u64,
}

impl Drops {
    fn count(&mut self, why: Dropped) {
        *match why {
            Dropped::Elsewhere => &mut self.elsewhere,
            Dropped::Malformed => &mut self.malformed,
            Dropped::Checksum => &mut self.checksum,
            Dropped::Fragment => &mut self.fragment,
            Dropped::Protocol => &mut self.protocol,
            Dropped::Invalid => &mut self.invalid,
        } += 1;
    }
}

/// The route to a destination.
#[derive(Debug, Clone)]
pub enum NextHop {
    /// The route is resolved: datagrams get these headers.
    Open(Headers),
    /// The next hop is being resolved: datagrams with these headers wait ([`Interface::hold`]).
    Waits(IpAddr, Headers),
    /// No route leads there.
    None,
}

/// One network interface on one link.
#[derive(Debug)]
pub struct Interface {
    config: InterfaceConfig,
    neighbours: Neighbours,
    ready: VecDeque<Vec<u8>>,
    drops: Drops,
}

impl Interface {
    /// Makes an interface, which first announces its addresses.
    ///
    /// # Errors
    /// The first defect of `config`.
    pub fn new(config: InterfaceConfig) -> Result<Interface, ConfigError> {
        if config.addresses.is_empty() {
            return Err(ConfigError::NoAddress);
        }
        if config.mtu_bytes < MIN_MTU_BYTES {
            return Err(ConfigError::Mtu { mtu_bytes: config.mtu_bytes });
        }
        if let Some(address) = config.addresses.iter().map(IpNet::addr).find(|address| !is_host(*address)) {
            return Err(ConfigError::Address { address });
        }
        let on_link = |ip: &IpAddr| config.addresses.iter().any(|net| net.contains(ip));
        if let Some(&gateway) = config.gateways.iter().find(|gateway| !on_link(gateway)) {
            return Err(ConfigError::Gateway { gateway });
        }
        let mut neighbours = Neighbours::default();
        for &(address, mac) in &config.neighbours {
            if !mac.is_unicast() || !is_host(address) {
                return Err(ConfigError::Neighbour { address, mac });
            }
            neighbours.add_permanent(address, mac)?;
        }
        let mut interface = Interface { config, neighbours, ready: VecDeque::new(), drops: Drops::default() };
        interface.announce();
        Ok(interface)
    }

    /// The interface's first address.
    pub fn address(&self) -> IpAddr {
        self.config.addresses.first().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpNet::addr)
    }

    /// The longest UDP payload that fits the link for either family of its addresses, bytes.
    pub fn max_payload_bytes(&self) -> u16 {
        let v6 = self.config.addresses.iter().any(|net| net.addr().is_ipv6());
        let headers = if v6 { frame::IPV6_UDP_BYTES } else { frame::IPV4_UDP_BYTES } - frame::ETHERNET_BYTES;
        self.config.mtu_bytes.saturating_sub(headers as u16)
    }

    /// Counts of dropped frames and datagrams.
    pub fn drops(&self) -> Drops {
        Drops { unresolved: self.neighbours.lost(), ..self.drops }
    }

    /// Takes a frame from the link. Address resolution is handled here; the caller handles the rest, and gets neighbour
    /// messages only to pass them on.
    ///
    /// # Errors
    /// Why it is nothing of ours; it is counted.
    pub fn receive<'f>(
        &mut self,
        bytes: &'f [u8],
        verified: Verified,
        now: Instant,
    ) -> Result<Frame<'f>, Dropped> {
        self.parse(bytes, verified).inspect_err(|why| self.drops.count(*why)).inspect(|frame| {
            if let Frame::Resolution(message) = frame {
                self.learn(*message, now);
                self.answer(*message);
            }
        })
    }

    /// Counts a frame that the port itself found unusable.
    ///
    /// # Errors
    /// Always `why`.
    pub fn refuse<'f>(&mut self, why: Dropped) -> Result<Frame<'f>, Dropped> {
        self.drops.count(why);
        Err(why)
    }

    fn parse<'f>(&self, bytes: &'f [u8], verified: Verified) -> Result<Frame<'f>, Dropped> {
        let station = frame::station(bytes).ok_or(Dropped::Malformed)?;
        if station != self.config.mac && station.is_unicast() {
            return Err(Dropped::Elsewhere);
        }
        let frame = frame::parse(bytes, verified, self.config.lenient)?;
        match &frame {
            Frame::Datagram(datagram) if !self.owns(datagram.destination.ip()) => Err(Dropped::Elsewhere),
            Frame::Datagram(datagram) if !is_host(datagram.source.ip()) => Err(Dropped::Invalid),
            _ => Ok(frame),
        }
    }

    /// Learns from a neighbour message, received here or passed on by another queue of the port.
    pub fn learn(&mut self, message: Resolution, now: Instant) {
        let (address, mac, overrides, asked_us) = match message {
            Resolution::Solicitation { sender: Some((address, mac)), target } => {
                (address, mac, true, self.owns(target))
            }
            Resolution::Solicitation { sender: None, .. } => return,
            Resolution::Advertisement { address, mac, overrides } => (address, mac, overrides, false),
        };
        // A neighbour is on the link; a claim to one of our own addresses is a mistake.
        if !self.is_on_link(address) || self.owns(address) {
            return;
        }
        for mut frame in self.neighbours.confirm(address, mac, overrides, asked_us, now) {
            if let Some(station) = frame.get_mut(..6) {
                station.copy_from_slice(&mac.0);
            }
            self.push(frame);
        }
    }

    fn answer(&mut self, message: Resolution) {
        let Resolution::Solicitation { target, sender } = message else { return };
        if !self.owns(target) {
            return;
        }
        let mut frame = Vec::with_capacity(frame::CONTROL_BYTES);
        match (target, sender) {
            (IpAddr::V4(ours), Some((IpAddr::V4(sender), mac))) => {
                frame::write_arp(
                    ArpOperation::REPLY,
                    (ours, self.config.mac),
                    (sender, Some(mac)),
                    &mut frame,
                );
            }
            (IpAddr::V4(ours), _) => {
                let nobody = (Ipv4Addr::UNSPECIFIED, None);
                frame::write_arp(ArpOperation::REPLY, (ours, self.config.mac), nobody, &mut frame);
            }
            (IpAddr::V6(ours), Some((IpAddr::V6(sender), mac))) => {
                frame::write_advertisement((ours, self.config.mac), Some((sender, mac)), &mut frame);
            }
            (IpAddr::V6(ours), _) => frame::write_advertisement((ours, self.config.mac), None, &mut frame),
        }
        self.push(frame);
    }

    /// Announces its addresses to everyone on the link (RFC 5227, section 2.3; RFC 4861, section 7.2.6).
    pub fn announce(&mut self) {
        for address in self.config.addresses.iter().map(IpNet::addr).collect::<Vec<_>>() {
            let mut frame = Vec::with_capacity(frame::CONTROL_BYTES);
            match address {
                IpAddr::V4(ours) => {
                    frame::write_arp(
                        ArpOperation::REQUEST,
                        (ours, self.config.mac),
                        (ours, None),
                        &mut frame,
                    );
                }
                IpAddr::V6(ours) => frame::write_advertisement((ours, self.config.mac), None, &mut frame),
            }
            self.push(frame);
        }
    }

    /// Finds the route from a local port to `to`, for packets of this traffic class; from `source` if that is a local address.
    pub fn path(
        &mut self,
        source: Option<IpAddr>,
        port: u16,
        to: SocketAddr,
        class: u8,
        now: Instant,
    ) -> NextHop {
        let none = |drops: &mut Drops| {
            drops.no_route += 1;
            NextHop::None
        };
        let hop = if !is_host(to.ip()) || self.owns(to.ip()) { None } else { self.next_hop(to.ip()) };
        let source = source
            .filter(|ip| self.owns(*ip) && ip.is_ipv4() == to.is_ipv4())
            .or_else(|| self.source(to.ip()));
        let (Some(hop), Some(source)) = (hop, source) else { return none(&mut self.drops) };
        let found = self.neighbours.find(hop, now);
        // A waiting frame is sent without the port's help, like those of resolution.
        let offload = if found.is_some() { self.config.offload } else { Offload::default() };
        let stations = [self.config.mac, found.unwrap_or(Mac([0; 6]))];
        match (Headers::new(stations, SocketAddr::new(source, port), to, class, offload), found) {
            (Some(headers), Some(_)) => NextHop::Open(headers),
            (Some(headers), None) => NextHop::Waits(hop, headers),
            (None, _) => none(&mut self.drops),
        }
    }

    /// Queues a datagram until its next hop has answered.
    pub fn hold(&mut self, hop: IpAddr, headers: &Headers, payload: &[u8]) {
        let mut frame = vec![0; headers.header_bytes() + payload.len()];
        if self.fits(headers, payload) && headers.write(payload, &mut frame).is_some() {
            self.neighbours.hold(hop, frame);
        }
    }

    /// Whether a datagram fits the link's MTU; counts it as dropped if not.
    pub fn fits(&mut self, headers: &Headers, payload: &[u8]) -> bool {
        let packet = headers.header_bytes() - frame::ETHERNET_BYTES + payload.len();
        let fits = packet <= usize::from(self.config.mtu_bytes);
        self.drops.too_long += u64::from(!fits);
        fits
    }

    /// Sends the neighbour solicitations that are due.
    pub fn poll(&mut self, now: Instant) {
        let mut asks = Vec::new();
        self.neighbours.poll(now, &mut |ask| asks.push(ask));
        for Solicitation { address, at } in asks {
            let mut frame = Vec::with_capacity(frame::CONTROL_BYTES);
            let source = self.source(address);
            match (address, source) {
                (IpAddr::V4(target), Some(IpAddr::V4(source))) => {
                    frame::write_arp(
                        ArpOperation::REQUEST,
                        (source, self.config.mac),
                        (target, at),
                        &mut frame,
                    );
                }
                (IpAddr::V6(target), Some(IpAddr::V6(source))) => {
                    frame::write_solicitation((source, self.config.mac), target, at, &mut frame);
                }
                _ => continue,
            }
            self.push(frame);
        }
    }

    /// The time at which [`Interface::poll`] has something to do next.
    pub fn next(&self) -> Option<Instant> {
        self.neighbours.next()
    }

    /// Takes the next frame to send, with all its checksums.
    pub fn ready(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    fn push(&mut self, frame: Vec<u8>) {
        if self.ready.len() < MAX_READY {
            self.ready.push_back(frame);
        }
    }

    fn owns(&self, ip: IpAddr) -> bool {
        self.config.addresses.iter().any(|net| net.addr() == ip)
    }

    fn is_on_link(&self, ip: IpAddr) -> bool {
        let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        link_local || self.config.addresses.iter().any(|net| net.contains(&ip))
    }

    fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        let given = self.config.neighbours.iter().any(|(address, _)| *address == to);
        if given || self.is_on_link(to) {
            return Some(to);
        }
        self.config.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == to.is_ipv4())
    }

    /// The local address that `to` sees: the one on its prefix, or else the first of its family.
    fn source(&self, to: IpAddr) -> Option<IpAddr> {
        let ours = self.config.addresses.iter().filter(|net| net.addr().is_ipv4() == to.is_ipv4());
        ours.clone().find(|net| net.contains(&to)).or_else(|| ours.clone().next()).map(IpNet::addr)
    }
}

/// Whether the address can belong to one host.
fn is_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || broadcast)
}
