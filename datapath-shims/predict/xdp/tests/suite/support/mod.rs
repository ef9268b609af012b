//! Predictors, packets and a server in XDP whose random numbers the test gives.

#[path = "../../../../tests/suite/support/flood.rs"]
pub mod flood;

use std::sync::Arc;

use ccplane_infer::Bits;
use ccplane_predict::packet::{MAX_DATAGRAM_BYTES, write_request};
use ccplane_predict::{Choice, Key, Portfolio};
use ccplane_predict_xdp::{Options, Random, Target, XdpError, XdpServer};
use ccplane_snapshot::{
    Admission, Calibration, Feature, Fidelity, Guards, Layer, Network, Parts, PolicySpec, Provenance,
    Snapshot, Trust, TrustedSnapshot,
};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

pub const PORT: u16 = 7117;
pub const KEY: Key = Key([9; 16]);
/// The widths of the shipped predictors.
pub const WIDTHS: [usize; 3] = [64, 32, 10];

pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// A number below `n`.
pub fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    (rng.next_u64() % n as u64) as usize
}

/// Keeps this thread on the first processor, whose tokens are of stream 0 as the reference's are.
pub fn on_first_processor() {
    let mut first = CpuSet::new();
    first.set(0).unwrap();
    sched_setaffinity(Pid::from_raw(0), &first).unwrap();
}

/// A network of random weights whose sums nearly fill their lanes, so that classes differ.
pub fn random_network(
    rng: &mut ChaCha8Rng,
    bits: Bits,
    widths: &[usize],
    range: (i32, i32),
) -> TrustedSnapshot {
    let layers = widths.windows(2).enumerate().map(|(n, pair)| {
        let (inputs, outputs) = (pair[0], pair[1]);
        let most = (bits.lane_offset() - 2000) / (bits.max_activation() * inputs as i64);
        let most = most.min(i64::from(i16::MAX)) as usize;
        let mut weight = || (below(rng, 2 * most + 1) as i64 - most as i64) as i16;
        let weights = (0..inputs * outputs).map(|_| weight()).collect();
        let biases = (0..outputs).map(|_| below(rng, 2001) as i32 - 1000).collect();
        let hidden = n + 2 < widths.len();
        let tables = if hidden { (0..outputs).map(|_| below(rng, 16) as u8).collect() } else { Vec::new() };
        Layer { weights, biases, tables }
    });
    let network = Network::new(bits, widths, layers.collect(), 1, 0).unwrap();
    let (lo, hi) = range;
    let inputs = (0..widths[0]).map(|n| Feature { name: format!("x[{n}]"), lo, hi: hi - (n % 3) as i32 });
    let parts = Parts {
        spec: PolicySpec::classifier("random", inputs.collect()).unwrap(),
        network,
        guards: Guards::for_inputs(widths[0]),
        calibration: Calibration { inputs: vec![(lo, lo + 1); widths[0]], sums: vec![0; widths.len() - 1] },
        fidelity: Fidelity::default(),
        provenance: Provenance::default(),
    };
    Trust::Any.admit(Snapshot::new(parts).unwrap(), &Admission::default()).unwrap()
}

/// A portfolio of random networks, named after their places.
pub fn portfolio(seed: u64, count: usize, bits: Bits, widths: &[usize], range: (i32, i32)) -> Arc<Portfolio> {
    let mut rng = rng(seed);
    let networks = (0..count).map(|n| (format!("p{n}"), random_network(&mut rng, bits, widths, range)));
    Arc::new(Portfolio::new(networks.collect()).unwrap())
}

pub fn options(random: Random) -> Options {
    Options {
        target: Target { port: PORT, addresses: Vec::new() },
        choices: Choice::DEFAULT.to_vec(),
        key: KEY,
        random,
    }
}

/// A server that is given its random numbers; `None`, and the reason is said, where the kernel takes none.
pub fn server(check: &str, portfolio: &Arc<Portfolio>) -> Option<XdpServer> {
    match XdpServer::load(&options(Random::Memory), portfolio, None) {
        Ok(server) => Some(server),
        Err(XdpError::Os { what, source }) => {
            ccplane_testing::skipped(check, format!("{what}: {source}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn request(slot: u8, id: u64, inputs: &[u8]) -> Vec<u8> {
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let length = write_request(&mut bytes, slot, id, inputs);
    bytes[..length].to_vec()
}

/// The headers of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    pub vlan: bool,
    pub v6: bool,
    pub port: u16,
}

impl Headers {
    pub const PLAIN: Headers = Headers { vlan: false, v6: false, port: PORT };

    fn ip(&self) -> usize {
        if self.vlan { 18 } else { 14 }
    }

    fn udp(&self) -> usize {
        self.ip() + if self.v6 { 40 } else { 20 }
    }

    /// Makes a packet.
    pub fn packet(&self, payload: &[u8]) -> Vec<u8> {
        let udp_bytes = (8 + payload.len()) as u16;
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if self.vlan {
            packet.extend([0x81, 0x00, 0x00, 0x07]);
        }
        if self.v6 {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend(udp_bytes.to_be_bytes());
            packet.extend([17, 9]);
            packet.extend((1..=32).collect::<Vec<u8>>());
        } else {
            packet.extend([0x08, 0x00, 0x45, 0]);
            packet.extend((20 + udp_bytes).to_be_bytes());
            packet.extend([0, 5, 0x40, 0, 9, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let at = self.ip();
            let sum = checksum(&[&packet[at..at + 20]]);
            packet[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
        }
        packet.extend(4000u16.to_be_bytes());
        packet.extend(self.port.to_be_bytes());
        packet.extend(udp_bytes.to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(payload);
        packet
    }

    /// Returns the payload of the reply to a packet; everything else in it is checked.
    pub fn reply<'a>(&self, asked: &[u8], reply: &'a [u8]) -> &'a [u8] {
        let (ip, udp) = (self.ip(), self.udp());
        assert_eq!((&reply[..6], &reply[6..12]), (&asked[6..12], &asked[..6]));
        assert_eq!(reply[12..ip], asked[12..ip]);
        let payload = &reply[udp + 8..];
        let udp_bytes = ((8 + payload.len()) as u16).to_be_bytes();
        let (width, from) = if self.v6 { (16, ip + 8) } else { (4, ip + 12) };
        let (source, destination) = (from..from + width, from + width..from + 2 * width);
        assert_eq!(
            (&reply[source.clone()], &reply[destination.clone()]),
            (&asked[destination], &asked[source])
        );
        if self.v6 {
            assert_eq!(reply[ip + 4..ip + 6], udp_bytes);
            assert_eq!(reply[ip + 6..ip + 8], [17, 64]);
        } else {
            assert_eq!(usize::from(u16::from_be_bytes([reply[ip + 2], reply[ip + 3]])), reply.len() - ip);
            assert_eq!(reply[ip + 8..ip + 10], [64, 17]);
            assert_eq!(checksum(&[&reply[ip..udp]]), 0, "the IPv4 header's checksum");
        }
        assert_eq!(reply[udp..udp + 4], [&asked[udp + 2..udp + 4], &asked[udp..udp + 2]].concat());
        assert_eq!(reply[udp + 4..udp + 6], udp_bytes);
        assert_ne!(reply[udp + 6..udp + 8], [0, 0], "the reply has a checksum");
        let pseudo = [&reply[from..from + 2 * width], &[0, 17], &udp_bytes].concat();
        assert_eq!(checksum(&[&pseudo, &reply[udp..]]), 0, "the UDP checksum");
        payload
    }
}

/// The Internet checksum of bytes, as the sum that RFC 1071 defines.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        }
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
