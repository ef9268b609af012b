//! Values that a configuration may hold: parsed once, never wrong afterwards.

use ccplane_snapshot::VerifyingKey;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::ops::RangeInclusive;
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

    /// The number within the range that is nearest to this one.
    pub fn clamped(value: u64) -> Self {
        Bounded(value.clamp(MIN, MAX))
    }

    /// Returns the number, which is within its range.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(transparent)]
pub struct Prefix(IpNet);

impl Prefix {
    /// Returns the address prefix.
    pub fn get(self) -> IpNet {
        self.0
    }
}

/// Reasons why a text is no prefix.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrefixError {
    /// The text is no address prefix.
    #[error("`{found}` is not address/length, such as 10.0.0.0/8 or 2001:db8::/32")]
    Form { found: String },
    /// Bits beyond the prefix are set.
    #[error("host bits are set; the network is {network}")]
    HostBits {
        /// The same prefix with them cleared.
        network: IpNet,
    },
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let net: IpNet = text.parse().map_err(|_| PrefixError::Form { found: text.to_owned() })?;
        let network = net.trunc();
        if net == network { Ok(Prefix(net)) } else { Err(PrefixError::HostBits { network }) }
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// One port, or an inclusive range of ports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ports(RangeInclusive<u16>);

impl Ports {
    /// The range; not empty.
    pub fn range(&self) -> RangeInclusive<u16> {
        self.0.clone()
    }
}

impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (first, last) = (self.0.start(), self.0.end());
        if first == last { to.serialize_u16(*first) } else { to.collect_str(&format_args!("{first}-{last}")) }
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(PortsVisitor)
    }
}

struct PortsVisitor;

impl de::Visitor<'_> for PortsVisitor {
    type Value = Ports;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a port, 1 to 65535, or a range such as \"5000-5010\"")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Ports, E> {
        match u16::try_from(value) {
            Ok(port) if port > 0 => Ok(Ports(port..=port)),
            _ => Err(E::invalid_value(de::Unexpected::Signed(value), &self)),
        }
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Ports, E> {
        self.visit_i64(i64::try_from(value).unwrap_or(i64::MAX))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Ports, E> {
        let port = |t: &str| t.trim().parse::<u16>().ok().filter(|p| *p > 0);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Ports(first..=last)),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

/// A public key whose signatures are trusted: 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key(VerifyingKey);

impl Key {
    /// Returns the public key.
    pub fn get(&self) -> VerifyingKey {
        self.0
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0.to_hex())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        VerifyingKey::from_text(&String::deserialize(from)?).map(Key).map_err(de::Error::custom)
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
    Off,
}

/// Cores by their numbers, each once; none stand for all.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
#[serde(transparent)]
pub struct Cores(Vec<usize>);

impl Cores {
    /// The highest number that a core can have here (sched_setaffinity(2)).
    pub const MAX: u64 = 1023;

    /// Returns the cores' numbers.
    pub fn get(&self) -> &[usize] {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Cores {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let numbers = Vec::<Bounded<0, { Cores::MAX }>>::deserialize(from)?;
        let mut cores = Vec::with_capacity(numbers.len());
        for core in numbers.into_iter().map(Bounded::count) {
            if cores.contains(&core) {
                return Err(de::Error::custom(format_args!("core {core} is named twice")));
            }
            cores.push(core);
        }
        Ok(Cores(cores))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_a_length_and_no_bits_beyond_it() {
        for good in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.7/32", "2001:db8::/32", "::/0", "::1/128"] {
            assert_eq!(good.parse::<Prefix>().unwrap().get().to_string(), good);
        }
        for (bad, why) in [
            ("10.0.0.0", "`10.0.0.0` is not address/length"),
            ("ten/8", "`ten/8` is not"),
            ("10.0.0.0/33", "`10.0.0.0/33` is not"),
            ("::/129", "`::/129` is not"),
            ("10.1.0.0/8", "the network is 10.0.0.0/8"),
            ("2001:db8::1/32", "the network is 2001:db8::/32"),
        ] {
            let error = bad.parse::<Prefix>().unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn cores_are_numbers_that_are_named_once() {
        let parse = |text: &str| serde_json::from_str::<Cores>(text);
        assert_eq!(parse("[3, 0]").unwrap().get(), [3, 0]);
        assert_eq!(parse("[]").unwrap(), Cores::default());
        for (text, why) in
            [("[1, 1]", "core 1 is named twice"), ("[1024]", "0 to 1023"), ("[-1]", "out of range")]
        {
            assert!(parse(text).unwrap_err().to_string().contains(why), "{text}");
        }
    }

    #[test]
    fn ports_are_one_number_or_a_rising_range() {
        let parse = |text: &str| serde_json::from_str::<Ports>(text);
        for (text, range) in [("443", 443..=443), ("\"443\"", 443..=443), ("\"5000-5010\"", 5000..=5010)] {
            assert_eq!(parse(text).unwrap().range(), range, "{text}");
        }
        for text in ["0", "65536", "-1", "\"9-8\"", "\"http\"", "\"1-2-3\"", "true"] {
            assert!(parse(text).unwrap_err().to_string().contains("5000-5010"), "{text}");
        }
        assert_eq!(serde_json::to_string(&parse("\"1-2\"").unwrap()).unwrap(), "\"1-2\"");
    }
}
