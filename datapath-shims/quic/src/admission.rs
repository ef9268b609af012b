//! Admission of new connections: it bounds what strangers can make an endpoint hold before their address is validated.
//!
//! It also bounds how much of it one network may take.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Handshakes at once with clients whose address is not validated, at most.
///
/// A further client first has to return a token (RFC 9000 section 8.1.2), for which nothing is kept here.
pub const MAX_UNVALIDATED: usize = 64;
/// Unvalidated handshakes from one [`Prefix`], at most.
const MAX_UNVALIDATED_OF_PREFIX: usize = 16;
/// The longest unvalidated handshake while they are many.
pub(crate) const UNVALIDATED_FOR: Duration = Duration::from_secs(3);
/// The longest handshake of a client that goes on with it; a silent client has the idle timeout.
pub(crate) const HANDSHAKE_FOR: Duration = Duration::from_secs(30);
/// The lifetime of a Retry's token: a client on a crowded path repeats it, further and further apart.
pub(crate) const TOKEN_FOR: Duration = Duration::from_secs(60);
/// Connections that are accepted only to state why they are refused, at most: a refusal before the handshake has no
/// text.
const MAX_REFUSED: usize = 64;
/// One prefix has at most this fraction of the connections, and [`PREFIX_LEAST`] in any case.
const PREFIX_SHARE: usize = 2;
/// Connections that one prefix may always have.
const PREFIX_LEAST: usize = 8;

/// A network that one owner is likely to have: the first 24 bits of an IPv4 address, 56 of an IPv6 one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Prefix(u64);

impl Prefix {
    fn of(address: IpAddr) -> Prefix {
        match address.to_canonical() {
            // IPv6 addresses leave the last byte free.
            IpAddr::V4(v4) => Prefix(u64::from(v4.to_bits() >> 8) << 8 | 1),
            IpAddr::V6(v6) => Prefix((v6.to_bits() >> 72 << 8) as u64),
        }
    }
}

/// The stage of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The endpoint opened the connection itself.
    Own,
    /// The handshake goes on; `validated` if the client's address was validated before.
    Handshake { validated: bool },
    /// The handshake is done.
    Established,
    /// The connection is only told why it is refused.
    Refused(&'static str),
}

/// The decision on a new client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AdmissionVerdict {
    Accept(Stage),
    /// The client must come again with a token.
    Retry,
    /// The client gets no answer.
    Refuse,
}

/// A client that wants to connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionAttempt {
    pub(crate) address: IpAddr,
    /// Whether it brought a token that was sent to its address.
    pub(crate) validated: bool,
    /// Whether there is memory for it.
    pub(crate) has_room: bool,
}

#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    connections: usize,
    unvalidated: usize,
}

/// Counts of admitted connections, by stage and by prefix. A prefix is kept as long as it has a connection.
#[derive(Debug)]
pub(crate) struct Admission {
    capacity: usize,
    all: Counts,
    refused: usize,
    prefixes: BTreeMap<Prefix, Counts>,
}

impl Admission {
    /// Makes counters for up to `capacity` connections.
    pub(crate) fn new(capacity: usize) -> Admission {
        let (all, refused, prefixes) = Default::default();
        Admission { capacity, all, refused, prefixes }
    }

    pub(crate) fn judge(&self, attempt: ConnectionAttempt) -> AdmissionVerdict {
        let of_prefix = self.prefixes.get(&Prefix::of(attempt.address)).copied().unwrap_or_default();
        let share = (self.capacity / PREFIX_SHARE).max(PREFIX_LEAST);
        let refused = if self.all.connections >= self.capacity {
            Some("the server has as many connections as it takes; try again later")
        } else if of_prefix.connections >= share {
            Some("the server has as many connections from your network as it takes; try again later")
        } else if !attempt.has_room {
            Some("the server has no memory for another connection; try again later")
        } else {
            None
        };
        let must_show = self.all.unvalidated >= MAX_UNVALIDATED
            || of_prefix.unvalidated >= MAX_UNVALIDATED_OF_PREFIX
            || refused.is_some();
        match refused {
            _ if !attempt.validated && must_show => AdmissionVerdict::Retry,
            None => AdmissionVerdict::Accept(Stage::Handshake { validated: attempt.validated }),
            Some(why) if self.refused < MAX_REFUSED => AdmissionVerdict::Accept(Stage::Refused(why)),
            Some(_) => AdmissionVerdict::Refuse,
        }
    }

    /// Whether unvalidated clients are so many that they have to hurry.
    pub(crate) fn is_crowded(&self) -> bool {
        self.all.unvalidated >= MAX_UNVALIDATED / 2
    }

    pub(crate) fn enter(&mut self, stage: Stage, address: IpAddr) {
        self.count(stage, address, |n| *n += 1);
    }

    pub(crate) fn leave(&mut self, stage: Stage, address: IpAddr) {
        self.count(stage, address, |n| *n -= 1);
        if let Stage::Handshake { .. } | Stage::Established = stage {
            let prefix = Prefix::of(address);
            if self.prefixes.get(&prefix).is_some_and(|counts| counts.connections == 0) {
                self.prefixes.remove(&prefix);
            }
        }
    }

    fn count(&mut self, stage: Stage, address: IpAddr, change: impl Fn(&mut usize)) {
        match stage {
            Stage::Own => {}
            Stage::Refused(_) => change(&mut self.refused),
            Stage::Handshake { .. } | Stage::Established => {
                let of_prefix = self.prefixes.entry(Prefix::of(address)).or_default();
                for counts in [of_prefix, &mut self.all] {
                    change(&mut counts.connections);
                    if stage == (Stage::Handshake { validated: false }) {
                        change(&mut counts.unvalidated);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(address: &str, validated: bool) -> ConnectionAttempt {
        ConnectionAttempt { address: address.parse().unwrap(), validated, has_room: true }
    }

    const LONE: Stage = Stage::Handshake { validated: false };

    #[test]
    fn unvalidated_clients_take_little() {
        let mut admission = Admission::new(1000);
        for n in 0..MAX_UNVALIDATED_OF_PREFIX {
            let address = format!("192.0.2.{n}");
            assert_eq!(admission.judge(attempt(&address, false)), AdmissionVerdict::Accept(LONE));
            admission.enter(LONE, address.parse().unwrap());
        }
        assert_eq!(admission.judge(attempt("192.0.2.99", false)), AdmissionVerdict::Retry, "of one network");
        assert_eq!(admission.judge(attempt("192.0.3.1", false)), AdmissionVerdict::Accept(LONE));
        for n in MAX_UNVALIDATED_OF_PREFIX..MAX_UNVALIDATED {
            admission.enter(LONE, format!("198.51.{n}.1").parse().unwrap());
        }
        assert!(admission.is_crowded());
        assert_eq!(admission.judge(attempt("203.0.113.1", false)), AdmissionVerdict::Retry, "of all");
        let shown = Stage::Handshake { validated: true };
        assert_eq!(admission.judge(attempt("192.0.2.99", true)), AdmissionVerdict::Accept(shown));
    }

    #[test]
    fn one_network_does_not_keep_others_out() {
        let mut admission = Admission::new(100);
        for n in 0..50 {
            let address = format!("2001:db8:0:{n:x}::1");
            assert!(matches!(
                admission.judge(attempt(&address, true)),
                AdmissionVerdict::Accept(Stage::Handshake { .. })
            ));
            admission.enter(Stage::Established, address.parse().unwrap());
        }
        let refused = admission.judge(attempt("2001:db8:0:ff::1", true));
        assert!(
            matches!(refused, AdmissionVerdict::Accept(Stage::Refused(why)) if why.contains("your network"))
        );
        let other = attempt("2001:db8:0:100::1", true);
        assert!(matches!(admission.judge(other), AdmissionVerdict::Accept(Stage::Handshake { .. })));
    }

    #[test]
    fn refused_clients_are_told_why_while_they_are_few() {
        let mut admission = Admission::new(10);
        let full = ConnectionAttempt { has_room: false, ..attempt("192.0.2.1", true) };
        let told = admission.judge(full);
        assert!(
            matches!(told, AdmissionVerdict::Accept(Stage::Refused(why)) if why.contains("memory")),
            "{told:?}"
        );
        assert_eq!(admission.judge(ConnectionAttempt { validated: false, ..full }), AdmissionVerdict::Retry);
        let AdmissionVerdict::Accept(stage) = told else { unreachable!() };
        (0..MAX_REFUSED).for_each(|_| admission.enter(stage, full.address));
        assert_eq!(admission.judge(full), AdmissionVerdict::Refuse);
    }

    #[test]
    fn nothing_is_kept_of_ended_connections() {
        let mut admission = Admission::new(1000);
        for n in 0..100 {
            let address = format!("10.{n}.0.1").parse().unwrap();
            admission.enter(LONE, address);
            admission.leave(LONE, address);
            admission.enter(Stage::Established, address);
            admission.leave(Stage::Established, address);
        }
        assert!(admission.prefixes.is_empty());
        assert_eq!((admission.all.connections, admission.all.unvalidated), (0, 0));
    }
}
