//! Ordered rules that choose a new flow's algorithm; the first match decides.

use crate::limits::MAX_RULES;
use ccplane_alg::ParameterError;
use ccplane_contract::FlowInfo;
use ipnet::IpNet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// The algorithm name that leaves a flow to its datapath's own algorithm.
pub const NATIVE: &str = "native";
/// The algorithm of flows that their own cannot steer, on datapaths without a native one.
pub const FALLBACK: &str = "reno";

/// One rule: matches the flows for which all its conditions hold; without conditions, all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The socket's cgroup (v2 id).
    pub cgroup: Option<u64>,
    pub local_port: Option<RangeInclusive<u16>>,
    pub remote_port: Option<RangeInclusive<u16>>,
    /// The congestion control that the flow's owner asked its datapath for by name, as CCP's CREATE carries it.
    pub requested: Option<String>,
    /// The prefix of receivers' addresses. One of IPv4 also matches addresses mapped into IPv6.
    pub remote: Option<IpNet>,
    /// The algorithm's name, or [`NATIVE`].
    pub algorithm: String,
    /// The algorithm's parameters, by name; the others have their defaults.
    pub parameters: Vec<(String, i64)>,
}

impl Rule {
    /// A rule without conditions.
    pub fn any(algorithm: &str) -> Rule {
        Rule {
            cgroup: None,
            local_port: None,
            remote_port: None,
            requested: None,
            remote: None,
            algorithm: algorithm.to_owned(),
            parameters: Vec::new(),
        }
    }

    /// Whether all conditions hold for a flow, whose owner asked for `requested`.
    pub fn matches(&self, flow: &FlowInfo, requested: Option<&str>) -> bool {
        let within =
            |ports: &Option<RangeInclusive<u16>>, port| ports.as_ref().is_none_or(|p| p.contains(&port));
        self.cgroup.is_none_or(|id| flow.cgroup == Some(id))
            && self.requested.as_deref().is_none_or(|name| requested == Some(name))
            && within(&self.local_port, flow.local.port())
            && within(&self.remote_port, flow.remote.port())
            && self.remote.is_none_or(|prefix| covers(prefix, flow.remote.ip()))
    }
}

fn covers(prefix: IpNet, address: IpAddr) -> bool {
    prefix.contains(&address) || prefix.contains(&address.to_canonical())
}

/// All rules, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The first match decides.
    pub rules: Vec<Rule>,
    /// The algorithm of flows that no rule matches, or [`NATIVE`].
    pub default: String,
}

impl Rules {
    /// One algorithm for every flow.
    pub fn all(algorithm: &str) -> Rules {
        Rules { rules: Vec::new(), default: algorithm.to_owned() }
    }

    /// The name that a flow's first matching rule gives.
    pub fn choose(&self, flow: &FlowInfo, requested: Option<&str>) -> &str {
        self.name(self.position(flow, requested, |_| true))
    }

    /// A flow's first matching rule, from 0, of those whose algorithms `counts` holds for.
    pub(crate) fn position(
        &self,
        flow: &FlowInfo,
        requested: Option<&str>,
        counts: impl Fn(&str) -> bool,
    ) -> Option<usize> {
        self.rules.iter().position(|r| counts(&r.algorithm) && r.matches(flow, requested))
    }

    /// The name that a rule gives, or the default.
    pub(crate) fn name(&self, rule: Option<usize>) -> &str {
        rule.and_then(|n| self.rules.get(n)).map_or(&self.default, |rule| &rule.algorithm)
    }

    /// Every name that the rules give, the default last.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|r| r.algorithm.as_str()).chain([self.default.as_str()])
    }

    /// Checks the rules against the algorithms that there are.
    pub(crate) fn check(&self, known: &[&'static str]) -> Result<(), RulesError> {
        if self.rules.len() > MAX_RULES {
            return Err(RulesError::TooMany { found: self.rules.len(), limit: MAX_RULES });
        }
        for (rule, name) in self.names().enumerate() {
            if name != NATIVE && !known.contains(&name) {
                let rule = Some(rule).filter(|r| *r < self.rules.len());
                return Err(RulesError::UnknownAlgorithm {
                    rule,
                    name: name.to_owned(),
                    known: known.to_vec(),
                });
            }
        }
        let empty =
            |ports: &Option<RangeInclusive<u16>>| ports.as_ref().is_some_and(RangeInclusive::is_empty);
        match self.rules.iter().position(|r| empty(&r.local_port) || empty(&r.remote_port)) {
            Some(rule) => Err(RulesError::EmptyPorts { rule }),
            None => Ok(()),
        }
    }
}

/// Reasons why rules are refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    #[error("{found} rules, at most {limit} are allowed")]
    TooMany { found: usize, limit: usize },
    /// No algorithm of that name.
    #[error("{}: there is no algorithm `{name}`; there are native, {}", place(*rule), known.join(", "))]
    UnknownAlgorithm {
        /// The rule's index, from 0; `None` for the default.
        rule: Option<usize>,
        /// The name it gives.
        name: String,
        /// The names that there are, besides [`NATIVE`].
        known: Vec<&'static str>,
    },
    /// A range of ports that ends before it starts.
    #[error("rule {rule}: no port is in the range")]
    EmptyPorts {
        /// The rule's index, from 0.
        rule: usize,
    },
    /// The algorithm does not take these parameters.
    #[error("rule {rule}: {error}")]
    Parameters {
        /// The rule's index, from 0.
        rule: usize,
        error: ParameterError,
    },
    /// The algorithm's code panicked, or it would run other programs with these parameters.
    #[error("rule {rule}: `{algorithm}` cannot be configured: {message}")]
    Unconfigurable {
        /// The rule's index, from 0.
        rule: usize,
        algorithm: &'static str,
        message: String,
    },
}

fn place(rule: Option<usize>) -> String {
    rule.map_or_else(|| "default".to_owned(), |n| format!("rule {n}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(local: &str, remote: &str, cgroup: Option<u64>) -> FlowInfo {
        FlowInfo {
            mss_bytes: 1448,
            init_cwnd_bytes: 14_480,
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            cgroup,
            min_rtt_us: None,
        }
    }

    fn rule(algorithm: &str, set: impl FnOnce(&mut Rule)) -> Rule {
        let mut rule = Rule::any(algorithm);
        set(&mut rule);
        rule
    }

    #[test]
    fn the_first_match_decides() {
        let rules = Rules {
            rules: vec![
                rule("a", |r| r.cgroup = Some(7)),
                rule("b", |r| r.local_port = Some(80..=90)),
                rule("c", |r| r.remote_port = Some(443..=443)),
                rule("d", |r| r.remote = Some("10.0.0.0/8".parse().unwrap())),
                rule("e", |r| r.remote = Some("2001:db8::/32".parse().unwrap())),
                rule("f", |r| {
                    r.remote = Some("192.0.2.0/24".parse().unwrap());
                    r.remote_port = Some(5000..=5001);
                }),
            ],
            default: NATIVE.to_owned(),
        };
        for (local, remote, cgroup, expected) in [
            ("10.0.0.1:80", "10.0.0.2:443", Some(7), "a"),
            ("10.0.0.1:80", "10.0.0.2:443", Some(8), "b"),
            ("10.0.0.1:90", "10.0.0.2:443", None, "b"),
            ("10.0.0.1:91", "10.0.0.2:443", None, "c"),
            ("10.0.0.1:91", "10.255.0.2:444", None, "d"),
            ("[::1]:91", "[::ffff:10.1.2.3]:444", None, "d"),
            ("10.0.0.1:91", "11.0.0.2:444", None, NATIVE),
            ("[::1]:91", "[2001:db8:1::1]:444", None, "e"),
            ("[::1]:91", "[2001:db9::1]:444", None, NATIVE),
            ("192.0.2.9:91", "192.0.2.1:5001", None, "f"),
            ("192.0.2.9:91", "192.0.2.1:5002", None, NATIVE),
        ] {
            assert_eq!(rules.choose(&flow(local, remote, cgroup), None), expected, "{local} {remote}");
        }
        let named = Rules { rules: vec![rule("a", |r| r.requested = Some("x".to_owned()))], ..rules };
        let flow = flow("10.0.0.1:91", "10.0.0.2:443", None);
        let chosen = [Some("x"), Some("y"), None].map(|name| named.choose(&flow, name));
        assert_eq!(chosen, ["a", NATIVE, NATIVE]);
    }

    #[test]
    fn refusals_name_the_rule() {
        let check = |rules: Vec<Rule>, default: &str| {
            Rules { rules, default: default.to_owned() }.check(&["reno"]).unwrap_err().to_string()
        };
        assert_eq!(check(vec![], "bbr"), "default: there is no algorithm `bbr`; there are native, reno");
        assert_eq!(
            check(vec![Rule::any("reno"), Rule::any("bbr")], "reno"),
            "rule 1: there is no algorithm `bbr`; there are native, reno"
        );
        #[allow(clippy::reversed_empty_ranges)]
        let empty = rule("reno", |r| r.remote_port = Some(2..=1));
        assert_eq!(check(vec![empty], NATIVE), "rule 0: no port is in the range");
        assert_eq!(
            check(vec![Rule::any("reno"); MAX_RULES + 1], NATIVE),
            "1025 rules, at most 1024 are allowed"
        );
    }
}
