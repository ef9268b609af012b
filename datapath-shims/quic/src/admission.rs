//! Who is let in: what strangers can make an endpoint hold before it knows that they are where they say, and how much of it one
//! network may take.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Handshakes at once whose clients have not shown that they hear what is sent to their address. Who comes beyond has to show it
/// first, by a token (RFC 9000 section 8.1.2), of which nothing is kept here.
pub const MAX_UNVALIDATED: usize = 64;
/// Of those, from one [`Prefix`].
const MAX_UNVALIDATED_OF_PREFIX: usize = 16;
/// How long such a handshake may take where they are many.
pub(crate) const UNVALIDATED_FOR: Duration = Duration::from_secs(3);
/// How long any handshake may take whose client goes on with it; one that is silent has the idle timeout.
pub(crate) const HANDSHAKE_FOR: Duration = Duration::from_secs(30);
/// How long a token of a Retry is good: a client on a crowded path repeats it, further and further apart.
pub(crate) const TOKEN_FOR: Duration = Duration::from_secs(60);
/// Connections at once that are accepted only to say why they are not: a refusal before the handshake has no words.
const MAX_TURNED_AWAY: usize = 64;
/// One prefix has at most this part of the connections ...
const PREFIX_SHARE: usize = 2;
/// ... but may always have so many.
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

/// In what way a connection is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// It was asked for here.
    Own,
    /// It shakes hands; whether its client's address was shown to be its own before.
    Handshake { validated: bool },
    /// The handshake is done.
    Established,
    /// It is told why it is not let in.
    TurnedAway(&'static str),
}

/// What to do with a client that knocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Accept(Stage),
    /// It is to come again with a token.
    Retry,
    /// Without a word.
    Refuse,
}

/// Who knocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Knock {
    pub(crate) address: IpAddr,
    /// It brought a token that was sent to its address.
    pub(crate) validated: bool,
    /// Whether there is memory for it.
    pub(crate) has_room: bool,
}

#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    connections: usize,
    unvalidated: usize,
}

/// Counts of those who are in, by stage and by prefix. A prefix is known for as long as it has a connection.
#[derive(Debug)]
pub(crate) struct Admission {
    capacity: usize,
    all: Counts,
    turned_away: usize,
    prefixes: BTreeMap<Prefix, Counts>,
}

impl Admission {
    /// For so many connections.
    pub(crate) fn new(capacity: usize) -> Admission {
        let (all, turned_away, prefixes) = Default::default();
        Admission { capacity, all, turned_away, prefixes }
    }

    pub(crate) fn judge(&self, knock: Knock) -> Verdict {
        let of_prefix = self.prefixes.get(&Prefix::of(knock.address)).copied().unwrap_or_default();
        let share = (self.capacity / PREFIX_SHARE).max(PREFIX_LEAST);
        let refused = if self.all.connections >= self.capacity {
            Some("the server has as many connections as it takes; try again later")
        } else if of_prefix.connections >= share {
            Some("the server has as many connections from your network as it takes; try again later")
        } else if !knock.has_room {
            Some("the server has no memory for another connection; try again later")
        } else {
            None
        };
        let must_show = self.all.unvalidated >= MAX_UNVALIDATED
            || of_prefix.unvalidated >= MAX_UNVALIDATED_OF_PREFIX
            || refused.is_some();
        match refused {
            _ if !knock.validated && must_show => Verdict::Retry,
            None => Verdict::Accept(Stage::Handshake { validated: knock.validated }),
            Some(why) if self.turned_away < MAX_TURNED_AWAY => Verdict::Accept(Stage::TurnedAway(why)),
            Some(_) => Verdict::Refuse,
        }
    }

    /// Whether those who have shown nothing yet are so many that they have to hurry.
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
            Stage::TurnedAway(_) => change(&mut self.turned_away),
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

    fn knock(address: &str, validated: bool) -> Knock {
        Knock { address: address.parse().unwrap(), validated, has_room: true }
    }

    const LONE: Stage = Stage::Handshake { validated: false };

    #[test]
    fn who_has_not_shown_where_it_is_takes_little() {
        let mut admission = Admission::new(1000);
        for n in 0..MAX_UNVALIDATED_OF_PREFIX {
            let address = format!("192.0.2.{n}");
            assert_eq!(admission.judge(knock(&address, false)), Verdict::Accept(LONE));
            admission.enter(LONE, address.parse().unwrap());
        }
        assert_eq!(admission.judge(knock("192.0.2.99", false)), Verdict::Retry, "of one network");
        assert_eq!(admission.judge(knock("192.0.3.1", false)), Verdict::Accept(LONE));
        for n in MAX_UNVALIDATED_OF_PREFIX..MAX_UNVALIDATED {
            admission.enter(LONE, format!("198.51.{n}.1").parse().unwrap());
        }
        assert!(admission.is_crowded());
        assert_eq!(admission.judge(knock("203.0.113.1", false)), Verdict::Retry, "of all");
        let shown = Stage::Handshake { validated: true };
        assert_eq!(admission.judge(knock("192.0.2.99", true)), Verdict::Accept(shown));
    }

    #[test]
    fn one_network_does_not_keep_others_out() {
        let mut admission = Admission::new(100);
        for n in 0..50 {
            let address = format!("2001:db8:0:{n:x}::1");
            assert!(matches!(
                admission.judge(knock(&address, true)),
                Verdict::Accept(Stage::Handshake { .. })
            ));
            admission.enter(Stage::Established, address.parse().unwrap());
        }
        let refused = admission.judge(knock("2001:db8:0:ff::1", true));
        assert!(matches!(refused, Verdict::Accept(Stage::TurnedAway(why)) if why.contains("your network")));
        let other = knock("2001:db8:0:100::1", true);
        assert!(matches!(admission.judge(other), Verdict::Accept(Stage::Handshake { .. })));
    }

    #[test]
    fn who_is_refused_is_told_why_where_that_is_cheap() {
        let mut admission = Admission::new(10);
        let full = Knock { has_room: false, ..knock("192.0.2.1", true) };
        let told = admission.judge(full);
        assert!(
            matches!(told, Verdict::Accept(Stage::TurnedAway(why)) if why.contains("memory")),
            "{told:?}"
        );
        assert_eq!(admission.judge(Knock { validated: false, ..full }), Verdict::Retry);
        let Verdict::Accept(stage) = told else { unreachable!() };
        (0..MAX_TURNED_AWAY).for_each(|_| admission.enter(stage, full.address));
        assert_eq!(admission.judge(full), Verdict::Refuse);
    }

    #[test]
    fn nothing_is_kept_of_those_who_left() {
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
