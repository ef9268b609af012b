//! Numbers of a plan: parsed once, whole and within their range afterwards.

use std::fmt;

use serde::{Deserialize, Deserializer, de};

/// A number that a plan writes in a large unit and that is kept in a small one, `1 / SCALE` of it: `Scaled<1000, ..>` reads `0.5`
/// (milliseconds, say) as 500 (microseconds). From `MIN` to `MAX` of the small units, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scaled<const SCALE: u64, const MIN: u64, const MAX: u64>(u64);

pub(super) type Whole<const MIN: u64, const MAX: u64> = Scaled<1, MIN, MAX>;
/// A share, ratio or probability in millionths.
pub(super) type Ppm<const MIN: u64, const MAX: u64> = Scaled<1_000_000, MIN, MAX>;

/// The distance of a decimal from a whole number of small units, at most, in these: what binary fractions
/// cost.
const ROUNDING: f64 = 1e-6;

impl<const SCALE: u64, const MIN: u64, const MAX: u64> Scaled<SCALE, MIN, MAX> {
    /// Returns the number in its small unit.
    pub(super) const fn get(self) -> u64 {
        self.0
    }

    /// In small units, where `MAX` fits.
    pub(super) fn small(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    /// The value nearest to `small` units.
    pub(super) const fn nearest(small: u64) -> Self {
        Scaled(if small < MIN {
            MIN
        } else if small > MAX {
            MAX
        } else {
            small
        })
    }

    /// Times `to / from`.
    pub(super) fn stretched(self, from: u64, to: u64) -> Self {
        let product = u128::from(self.0) * u128::from(to) / u128::from(from.max(1));
        Self::nearest(u64::try_from(product).unwrap_or(u64::MAX))
    }

    fn allowed() -> String {
        format!("{} to {} are allowed", decimal(MIN, SCALE), decimal(MAX, SCALE))
    }

    fn of_f64(value: f64) -> Result<Self, String> {
        let scaled = value * SCALE as f64;
        if !(MIN as f64..=MAX as f64).contains(&scaled) {
            return Err(format!("{value} is out of range: {}", Self::allowed()));
        }
        let whole = scaled.round();
        if (scaled - whole).abs() > ROUNDING * whole.max(1.0) {
            let finest = decimal(1, SCALE);
            return Err(format!("{value} is finer than {finest}, the smallest step"));
        }
        // The cast cannot lose anything: the range was checked.
        Ok(Scaled(whole as u64))
    }
}

/// `small / scale` without needless zeros.
pub(crate) fn decimal(small: u64, scale: u64) -> String {
    let (whole, rest) = (small / scale, small % scale);
    if rest == 0 {
        return whole.to_string();
    }
    let digits = scale.ilog10() as usize;
    format!("{whole}.{rest:0digits$}").trim_end_matches('0').to_owned()
}

impl<'de, const SCALE: u64, const MIN: u64, const MAX: u64> Deserialize<'de> for Scaled<SCALE, MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Visitor::<SCALE, MIN, MAX>)
    }
}

struct Visitor<const SCALE: u64, const MIN: u64, const MAX: u64>;

impl<const SCALE: u64, const MIN: u64, const MAX: u64> de::Visitor<'_> for Visitor<SCALE, MIN, MAX> {
    type Value = Scaled<SCALE, MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if SCALE == 1 { "a whole number" } else { "a number" };
        write!(f, "{kind} from {} to {}", decimal(MIN, SCALE), decimal(MAX, SCALE))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        let small = u64::try_from(value).ok().and_then(|v| v.checked_mul(SCALE));
        match small.filter(|s| (MIN..=MAX).contains(s)) {
            Some(small) => Ok(Scaled(small)),
            None => Err(E::custom(format_args!("{value} is out of range: {}", Self::Value::allowed()))),
        }
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => Err(E::custom(format_args!("{value} is out of range: {}", Self::Value::allowed()))),
        }
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        if SCALE == 1 {
            return Err(E::invalid_type(de::Unexpected::Float(value), &self));
        }
        Self::Value::of_f64(value).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, Debug)]
    struct Doc {
        delay_ms: Scaled<1000, 0, 10_000_000>,
    }

    #[test]
    fn decimals_are_kept_whole() {
        let read =
            |text: &str| toml::from_str::<Doc>(&format!("delay_ms = {text}")).map(|d| d.delay_ms.get());
        assert_eq!(read("20").unwrap(), 20_000);
        assert_eq!(read("0.05").unwrap(), 50);
        assert_eq!(read("0.1").unwrap(), 100);
        assert_eq!(read("9999.999").unwrap(), 9_999_999);
        for (text, why) in [
            ("0.0005", "0.0005 is finer than 0.001"),
            ("-1", "-1 is out of range: 0 to 10000 are allowed"),
            ("1e300", "is out of range"),
            ("nan", "NaN is out of range"),
            ("10001", "10001 is out of range"),
            ("9223372036854775807", "is out of range"),
            ("\"20\"", "expected a number from 0 to 10000"),
            ("true", "expected a number from 0 to 10000"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(decimal(1_250_000, 1_000_000), "1.25");
        assert_eq!(decimal(50, 1_000_000), "0.00005");
    }
}
