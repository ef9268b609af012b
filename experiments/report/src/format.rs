//! How numbers are written.

/// Between groups of three digits, and between a number and its unit.
const THIN_SPACE: char = '\u{202f}';

/// What stands where there is no value.
pub const NONE: &str = "–";

/// A count: `12 345`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 2);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(THIN_SPACE);
        }
        out.push(c);
    }
    out
}

/// Three significant digits, at most two decimals; `None` and what is not finite becomes a dash.
pub fn number(value: Option<f64>) -> String {
    match value.filter(|v| v.is_finite()) {
        None => NONE.into(),
        Some(v) if v.abs() >= 1000.0 => count(v.abs().round() as u64),
        Some(v) if v.abs() >= 100.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 10.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.2}"),
    }
}

/// Bits per second as megabits per second, without the unit.
pub fn mbps(bps: Option<f64>) -> String {
    number(bps.map(|v| v / 1e6))
}

/// Microseconds as milliseconds, without the unit.
pub fn ms(us: Option<f64>) -> String {
    number(us.map(|v| v / 1e3))
}

/// A share as a whole percentage: `97 %`.
pub fn percent(share: Option<f64>) -> String {
    match share.filter(|v| v.is_finite()) {
        None => NONE.into(),
        Some(v) => format!("{:.1}{THIN_SPACE}%", v * 100.0),
    }
}

/// A ratio to a baseline: `0.99×`.
pub fn ratio(value: Option<f64>) -> String {
    match value.filter(|v| v.is_finite()) {
        None => NONE.into(),
        Some(v) => format!("{v:.2}×"),
    }
}

/// An axis label: no more decimals than the step between labels needs.
pub fn tick(value: f64, step: f64) -> String {
    let decimals = if step >= 1.0 {
        0
    } else if step >= 0.1 {
        1
    } else {
        2
    };
    if decimals == 0 { count(value.max(0.0).round() as u64) } else { format!("{value:.decimals$}") }
}

/// A name from the data with its first letter in upper case.
pub fn capitalised(name: &str) -> String {
    let mut chars = name.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_digits() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
    }

    #[test]
    fn three_significant_digits_and_never_nan() {
        assert_eq!(mbps(Some(23_456_000.0)), "23.5");
        assert_eq!(mbps(Some(940_400_000.0)), "940");
        assert_eq!(mbps(Some(9_404_000_000.0)), "9\u{202f}404");
        assert_eq!(ms(Some(41_270.0)), "41.3");
        assert_eq!(ms(Some(999.0)), "1.00");
        assert_eq!(ms(None), NONE);
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(number(Some(bad)), NONE);
            assert_eq!(percent(Some(bad)), NONE);
            assert_eq!(ratio(Some(bad)), NONE);
        }
        assert_eq!(ratio(Some(0.987)), "0.99×");
    }

    #[test]
    fn ticks_have_as_many_decimals_as_their_step_needs() {
        assert_eq!(tick(20.0, 5.0), "20");
        assert_eq!(tick(0.5, 0.5), "0.5");
        assert_eq!(tick(0.25, 0.05), "0.25");
    }
}
