//! Values that a configuration may hold: parsed once, never wrong afterwards.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// A whole number from `MIN` to `MAX`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounded<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Bounded<MIN, MAX> {
    /// A default; out of range, it does not compile in a constant.
    pub(super) const fn new(value: u64) -> Self {
        assert!(MIN <= value && value <= MAX);
        Bounded(value)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number, as a count or size in memory.
    pub fn count(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// The number, as milliseconds.
    pub const fn millis(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// The number, as microseconds.
    pub const fn micros(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

impl<const MIN: u64, const MAX: u64> Serialize for Bounded<MIN, MAX> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Bounded<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = i64::deserialize(from)?;
        match u64::try_from(value) {
            Ok(v) if (MIN..=MAX).contains(&v) => Ok(Bounded(v)),
            _ => Err(de::Error::custom(format_args!("{value} is out of range: {MIN} to {MAX} are allowed"))),
        }
    }
}

/// An IP prefix, `address/length`; the host bits are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// The network's address.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// The prefix length, bits.
    pub fn length(self) -> u8 {
        self.length
    }
}

/// Why a text is no prefix.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrefixError {
    /// There is no `/length`.
    #[error("expected address/length, such as 10.0.0.0/8 or 2001:db8::/32")]
    Form,
    /// The part before the slash.
    #[error("`{0}` is not an IPv4 or IPv6 address")]
    Address(String),
    /// The part after the slash.
    #[error("`{length}` is not a prefix length: 0 to {most} are allowed here")]
    Length {
        /// What was given.
        length: String,
        /// The address's bits.
        most: u8,
    },
    /// Bits beyond the prefix are set.
    #[error("host bits are set; the network is {network}")]
    HostBits {
        /// The same prefix with them cleared.
        network: Prefix,
    },
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let (address, length) = text.split_once('/').ok_or(PrefixError::Form)?;
        let address: IpAddr = address.parse().map_err(|_| PrefixError::Address(address.to_owned()))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = match length.parse::<u8>() {
            Ok(n) if n <= most => n,
            _ => return Err(PrefixError::Length { length: length.to_owned(), most }),
        };
        let host_bits = u32::from(most - length);
        let network = match address {
            IpAddr::V4(a) => IpAddr::V4((u32::from(a) & u32::MAX.checked_shl(host_bits).unwrap_or(0)).into()),
            IpAddr::V6(a) => {
                IpAddr::V6((u128::from(a) & u128::MAX.checked_shl(host_bits).unwrap_or(0)).into())
            }
        };
        let prefix = Prefix { address: network, length };
        if network == address { Ok(prefix) } else { Err(PrefixError::HostBits { network: prefix }) }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// Whether an optional part is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// Required: the agent fails without it.
    On,
    /// Used where it can be.
    Auto,
    /// Not used.
    Off,
}

/// How the agent waits for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wake {
    /// Blocks until a datapath has something.
    Sleep,
    /// Polls for a while after the last event, then sleeps.
    Spin,
    /// Polls without pause.
    Busy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for good in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.7/32", "2001:db8::/32", "::/0", "::1/128"] {
            assert_eq!(good.parse::<Prefix>().unwrap().to_string(), good);
        }
        for (bad, why) in [
            ("10.0.0.0", "expected address/length"),
            ("ten/8", "`ten` is not"),
            ("10.0.0.0/33", "0 to 32"),
            ("::/129", "0 to 128"),
            ("10.1.0.0/8", "the network is 10.0.0.0/8"),
            ("2001:db8::1/32", "the network is 2001:db8::/32"),
        ] {
            let error = bad.parse::<Prefix>().unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
