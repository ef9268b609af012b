//! An interface: its addresses, its neighbours, the way to everyone else.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use etherparse::ArpOperation;
use ipnet::IpNet;

use super::Mac;
use super::frame::{self, Dropped, Frame, Headers, Offload, Talk, Verified};
use super::neighbour::{Ask, Full, Neighbours};

/// Frames of resolution and frames that waited for it, ready to be sent; what comes on top is dropped.
pub const MAX_READY: usize = 2048;
/// IPv6 wants it of every link (RFC 8200, section 5).
const MIN_MTU_BYTES: u16 = 1280;

/// What an interface is given.
#[derive(Debug, Clone)]
pub struct InterfaceConfig {
    /// Its Ethernet address.
    pub mac: Mac,
    /// The longest IP packet on its link, bytes.
    pub mtu_bytes: u16,
    /// Its addresses, each with the prefix that is on the link. The kernel must not have them, or it answers too.
    pub addresses: Vec<IpNet>,
    /// Who forwards what is not on the link: at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Neighbours that need not be asked for.
    pub neighbours: Vec<(IpAddr, Mac)>,
    /// What the port computes by itself.
    pub offload: Offload,
    /// Whether UDP checksums may arrive unfinished; see [`frame::parse`].
    pub lenient: bool,
}

/// Why there is no interface of that kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Nobody could reach it.
    #[error("a port needs an address, such as 10.0.0.2/24")]
    NoAddress,
    /// An address of no host.
    #[error("{address} is no address of a host")]
    Address {
        /// It.
        address: IpAddr,
    },
    /// Nobody there would hear it.
    #[error("gateway {gateway} is in none of the port's own prefixes")]
    Gateway {
        /// It.
        gateway: IpAddr,
    },
    /// A neighbour at no station's address.
    #[error("neighbour {address} is at {mac}, which is no station's address")]
    Neighbour {
        /// The neighbour.
        address: IpAddr,
        /// Where it is said to be.
        mac: Mac,
    },
    /// Too short for IPv6.
    #[error("the link carries packets of {mtu_bytes} bytes; {MIN_MTU_BYTES} are needed")]
    Mtu {
        /// Its MTU.
        mtu_bytes: u16,
    },
    /// Too many neighbours.
    #[error(transparent)]
    Full(#[from] Full),
}

/// Frames and datagrams that went nowhere, since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops {
    /// Frames for others.
    pub elsewhere: u64,
    /// Frames cut short or contradicting themselves.
    pub malformed: u64,
    /// Frames with wrong checksums.
    pub checksum: u64,
    /// Fragments.
    pub fragment: u64,
    /// Other protocols' frames.
    pub protocol: u64,
    /// Neighbours' messages that are to be ignored.
    pub invalid: u64,
    /// Datagrams to where no route leads.
    pub no_route: u64,
    /// Datagrams longer than the link's MTU.
    pub too_long: u64,
    /// Datagrams whose neighbour did not answer, or that waited in too long a queue.
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

/// The way to a destination.
#[derive(Debug, Clone)]
pub enum Path {
    /// Open: datagrams get these headers.
    Open(Headers),
    /// The next hop is being asked for: datagrams with these headers wait ([`Interface::hold`]).
    Waits(IpAddr, Headers),
    /// There is none.
    None,
}

/// One interface on one link.
#[derive(Debug)]
pub struct Interface {
    config: InterfaceConfig,
    neighbours: Neighbours,
    /// Frames to send.
    ready: VecDeque<Vec<u8>>,
    drops: Drops,
}

impl Interface {
    /// An interface that announces its addresses first of all.
    ///
    /// # Errors
    /// What is wrong with `config`.
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
            neighbours.give(address, mac)?;
        }
        let mut interface = Interface { config, neighbours, ready: VecDeque::new(), drops: Drops::default() };
        interface.announce();
        Ok(interface)
    }

    /// Its first address.
    pub fn address(&self) -> IpAddr {
        self.config.addresses.first().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpNet::addr)
    }

    /// The longest UDP payload that fits the link, bytes, whichever family its addresses are of.
    pub fn max_payload_bytes(&self) -> u16 {
        let v6 = self.config.addresses.iter().any(|net| net.addr().is_ipv6());
        let headers = if v6 { frame::IPV6_UDP_BYTES } else { frame::IPV4_UDP_BYTES } - frame::ETHERNET_BYTES;
        self.config.mtu_bytes.saturating_sub(headers as u16)
    }

    /// What went nowhere.
    pub fn drops(&self) -> Drops {
        Drops { unresolved: self.neighbours.lost(), ..self.drops }
    }

    /// Takes a frame from the link. Resolution is done here; the rest is for the caller, who sees talk only to pass it on.
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
            if let Frame::Talk(talk) = frame {
                self.hear(*talk, now);
                self.answer(*talk);
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

    /// Learns from what a neighbour said: heard here, or passed on by another queue of the port.
    pub fn hear(&mut self, talk: Talk, now: Instant) {
        let (address, mac, overrides, asked_us) = match talk {
            Talk::Asks { sender: Some((address, mac)), target } => (address, mac, true, self.owns(target)),
            Talk::Asks { sender: None, .. } => return,
            Talk::Says { address, mac, overrides } => (address, mac, overrides, false),
        };
        // A neighbour is on the link; who has one of our own addresses is mistaken.
        if !self.is_on_link(address) || self.owns(address) {
            return;
        }
        for mut frame in self.neighbours.heard(address, mac, overrides, asked_us, now) {
            if let Some(station) = frame.get_mut(..6) {
                station.copy_from_slice(&mac.0);
            }
            self.push(frame);
        }
    }

    fn answer(&mut self, talk: Talk) {
        let Talk::Asks { target, sender } = talk else { return };
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

    /// Tells everyone on the link where its addresses are (RFC 5227, section 2.3; RFC 4861, section 7.2.6).
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

    /// The way of datagrams from a port of ours to `to`; from `source` if that is an address of ours.
    pub fn path(&mut self, source: Option<IpAddr>, port: u16, to: SocketAddr, ecn: u8, now: Instant) -> Path {
        let none = |drops: &mut Drops| {
            drops.no_route += 1;
            Path::None
        };
        let hop = if !is_host(to.ip()) || self.owns(to.ip()) { None } else { self.next_hop(to.ip()) };
        let source = source
            .filter(|ip| self.owns(*ip) && ip.is_ipv4() == to.is_ipv4())
            .or_else(|| self.source(to.ip()));
        let (Some(hop), Some(source)) = (hop, source) else { return none(&mut self.drops) };
        let found = self.neighbours.find(hop, now);
        // A frame that waits is sent without the port's help, like those of resolution.
        let offload = if found.is_some() { self.config.offload } else { Offload::default() };
        let stations = [self.config.mac, found.unwrap_or(Mac([0; 6]))];
        match (Headers::new(stations, SocketAddr::new(source, port), to, ecn, offload), found) {
            (Some(headers), Some(_)) => Path::Open(headers),
            (Some(headers), None) => Path::Waits(hop, headers),
            (None, _) => none(&mut self.drops),
        }
    }

    /// Keeps a datagram until its next hop has answered.
    pub fn hold(&mut self, hop: IpAddr, headers: &Headers, payload: &[u8]) {
        let mut frame = vec![0; headers.header_bytes() + payload.len()];
        if self.fits(headers, payload) && headers.write(payload, &mut frame).is_some() {
            self.neighbours.hold(hop, frame);
        }
    }

    /// Whether a datagram fits the link's MTU; if not, it is counted as dropped.
    pub fn fits(&mut self, headers: &Headers, payload: &[u8]) -> bool {
        let packet = headers.header_bytes() - frame::ETHERNET_BYTES + payload.len();
        let fits = packet <= usize::from(self.config.mtu_bytes);
        self.drops.too_long += u64::from(!fits);
        fits
    }

    /// Asks for neighbours whose answer is due.
    pub fn poll(&mut self, now: Instant) {
        let mut asks = Vec::new();
        self.neighbours.poll(now, &mut |ask| asks.push(ask));
        for Ask { address, at } in asks {
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

    /// When [`Interface::poll`] has something to do next.
    pub fn next(&self) -> Option<Instant> {
        self.neighbours.next()
    }

    /// The next frame to send, with all its checksums.
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

    /// The address of ours that `to` sees: the one on its prefix, or else the first of its family.
    fn source(&self, to: IpAddr) -> Option<IpAddr> {
        let ours = self.config.addresses.iter().filter(|net| net.addr().is_ipv4() == to.is_ipv4());
        ours.clone().find(|net| net.contains(&to)).or_else(|| ours.clone().next()).map(IpNet::addr)
    }
}

/// Whether one host may have it.
fn is_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || broadcast)
}
