//! Recorded transfers as flows between the hosts of a fabric, in the order and with the repetitions that the recording has.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::recorded::{MAX_FLOWS, Recording, Transfer, Unit};
use super::{HostArrival, MAX_PAIRS, Random, WorkloadError, within};

/// Transfers of one recording: each flow has two directions.
const MAX_TRANSFERS: u64 = 2 * MAX_FLOWS as u64;

/// The transfers of a recording's connections, for [`HostArrivals::played`](super::HostArrivals::played).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Playback {
    /// In order of time.
    transfers: Arc<[Played]>,
    /// Ends of the recording's connections.
    ends: usize,
    /// Pairs of two ends and a port, with the end that opened: one for each direction.
    pairs: usize,
}

/// A transfer whose ends and pair are numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Played {
    from: usize,
    to: usize,
    pair: u16,
    bytes: u64,
}

impl Playback {
    /// Takes the transfers of a recording. Where a host has connections to itself, its servers become another end.
    ///
    /// # Errors
    /// A recording without transfers, or with more pairs of ends and ports than a host may have.
    pub fn new(recording: &Recording) -> Result<Playback, WorkloadError> {
        let (mut ends, mut pairs) = (BTreeMap::new(), BTreeMap::new());
        let mut played = Vec::new();
        for transfer in recording.transfers(Unit::Connection) {
            let mut number = |end: (u16, bool)| {
                let next = ends.len();
                *ends.entry(end).or_insert(next)
            };
            let (from, to) = ends_of(&transfer);
            let (from, to) = (number(from), number(to));
            let next = pairs.len();
            let key = (from, to, transfer.by_opener, transfer.service_port);
            let pair = *pairs.entry(key).or_insert(next);
            within("pairs of a recording", pair as u64 + 1, 1, MAX_PAIRS as u64)?;
            played.push(Played { from, to, pair: pair as u16, bytes: transfer.bytes.max(1) });
        }
        within("transfers of a recording", played.len() as u64, 1, MAX_TRANSFERS)?;
        Ok(Playback { transfers: played.into(), ends: ends.len(), pairs: pairs.len() })
    }

    /// The same without transfers of more than so many bytes, at least 1, which become that large.
    #[must_use]
    pub fn at_most(&self, bytes: u64) -> Playback {
        let clamped = |played: &Played| Played { bytes: played.bytes.min(bytes.max(1)), ..*played };
        Playback { transfers: self.transfers.iter().map(clamped).collect(), ..self.clone() }
    }

    /// The mean size of a transfer, bytes, rounded down; at least 1.
    pub fn mean_bytes(&self) -> u64 {
        let sum: u128 = self.transfers.iter().map(|played| u128::from(played.bytes)).sum();
        ((sum / self.transfers.len().max(1) as u128) as u64).max(1)
    }
}

/// A transfer's ends, the sender's first: a host, and whether it is the end that serves the host's own connections.
fn ends_of(transfer: &Transfer) -> ((u16, bool), (u16, bool)) {
    let is_own = transfer.from == transfer.to;
    let serves_own = is_own && !transfer.by_opener;
    ((transfer.from, serves_own), (transfer.to, is_own && !serves_own))
}

/// Copies of a playback, each with its ends at other hosts.
#[derive(Clone, Debug)]
pub(super) struct Copies {
    playback: Playback,
    hosts: usize,
    /// Offsets from a copy's number to the hosts of its ends.
    offsets: Vec<usize>,
    /// The next transfer of each copy.
    next: Vec<usize>,
}

impl Copies {
    pub(super) fn new(playback: &Playback, hosts: usize, random: &mut Random) -> Copies {
        let mut shuffled: Vec<usize> = (0..hosts).collect();
        for n in (1..hosts).rev() {
            shuffled.swap(n, random.up_to(n as u64) as usize);
        }
        let offsets = shuffled.into_iter().cycle().take(playback.ends).collect();
        let last = playback.transfers.len() as u64 - 1;
        let next = (0..hosts).map(|_| random.up_to(last) as usize).collect();
        Copies { playback: playback.clone(), hosts, offsets, next }
    }

    /// The last transfers of each pair of each copy before its next one, at most `count`.
    pub(super) fn past(&self, count: usize) -> Vec<HostArrival> {
        let transfers = self.playback.transfers.len();
        let mut past = Vec::new();
        for (copy, next) in self.next.iter().enumerate() {
            let mut found = vec![0; self.playback.pairs];
            let mut latest = Vec::new();
            for back in 1..=transfers {
                let at = (next + transfers - back) % transfers;
                let of_pair = &mut found[usize::from(self.playback.transfers[at].pair)];
                if *of_pair < count {
                    *of_pair += 1;
                    latest.push(self.arrival(copy, at, 0));
                }
            }
            past.extend(latest.into_iter().rev());
        }
        past
    }

    pub(super) fn next(&mut self, start_us: u64, random: &mut Random) -> HostArrival {
        let copy = random.up_to(self.next.len() as u64 - 1) as usize;
        let at = self.next[copy];
        self.next[copy] = (at + 1) % self.playback.transfers.len();
        self.arrival(copy, at, start_us)
    }

    fn arrival(&self, copy: usize, at: usize, start_us: u64) -> HostArrival {
        let Played { from, to, pair, bytes } = self.playback.transfers[at];
        let host = |end: usize| (copy + self.offsets[end]) % self.hosts;
        let (from, mut to) = (host(from), host(to));
        if from == to {
            // A recording with more ends than the fabric has hosts.
            to = (to + 1) % self.hosts;
        }
        HostArrival { start_us, bytes, from, to, application: pair }
    }
}
