//! Formats numbers for readers.

/// Between groups of three digits, and between a number and its unit.
const THIN_SPACE: char = '\u{202f}';

/// The text in place of a missing value.
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

/// Three significant digits, at most three decimals; `None` and what is not finite becomes a dash.
pub fn number(value: Option<f64>) -> String {
    match value.filter(|v| v.is_finite()) {
        None => NONE.into(),
        Some(v) => with_decimals(v, decimals(v)),
    }
}

/// A mean and half the width of its interval: `23.5 ± 0.4`. Both have as many decimals as the mean needs, or more where the
/// interval would else look empty.
pub fn estimate(mean: f64, half_width: Option<f64>) -> String {
    if !mean.is_finite() {
        return NONE.into();
    }
    match half_width.filter(|h| h.is_finite()) {
        None => with_decimals(mean, decimals(mean)),
        Some(half) => {
            let visible = |d: &usize| half == 0.0 || half * 10f64.powi(*d as i32) >= 0.95;
            let digits = (decimals(mean)..MAX_MEAN_DECIMALS).find(visible).unwrap_or(MAX_MEAN_DECIMALS);
            format!("{} ± {}", with_decimals(mean, digits), with_decimals(half, digits))
        }
    }
}

/// Decimals of a mean, at most.
const MAX_MEAN_DECIMALS: usize = 3;

fn decimals(value: f64) -> usize {
    match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 || v == 0.0 => 2,
        _ => 3,
    }
}

fn with_decimals(value: f64, decimals: usize) -> String {
    if value.abs() < 1000.0 {
        return format!("{value:.decimals$}");
    }
    format!("{}{}", if value < 0.0 { "−" } else { "" }, count(value.abs().round() as u64))
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

/// Decimals of an axis label, at most.
const MAX_DECIMALS: usize = 6;

/// An axis label: as many decimals as the step between labels has.
pub fn tick(value: f64, step: f64) -> String {
    let decimals = (0..MAX_DECIMALS)
        .find(|d| {
            let scaled = step * 10f64.powi(*d as i32);
            (scaled - scaled.round()).abs() < 1e-6 * scaled.max(1.0) && scaled > 0.5
        })
        .unwrap_or(MAX_DECIMALS);
    if decimals == 0 { count(value.max(0.0).round() as u64) } else { format!("{value:.decimals$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
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
        assert_eq!(number(Some(-4_200.0)), "−4\u{202f}200");
        assert_eq!(number(Some(0.0042)), "0.004");
        assert_eq!(estimate(23.456, Some(0.4321)), "23.5 ± 0.4");
        assert_eq!(estimate(23.456, None), "23.5");
        assert_eq!(estimate(23.456, Some(0.04)), "23.46 ± 0.04");
        assert_eq!(estimate(23.456, Some(0.0)), "23.5 ± 0.0");
        assert_eq!(estimate(23.456, Some(0.000_04)), "23.456 ± 0.000");
        assert_eq!(estimate(f64::NAN, None), NONE);
    }

    #[test]
    fn ticks_have_as_many_decimals_as_their_step_needs() {
        assert_eq!(tick(20.0, 5.0), "20");
        assert_eq!(tick(0.5, 0.5), "0.5");
        assert_eq!(tick(0.25, 0.05), "0.25");
        assert_eq!(tick(0.75, 0.25), "0.75");
        assert_eq!(tick(0.002, 0.001), "0.002");
        assert_eq!(tick(12_500.0, 2_500.0), "12\u{202f}500");
    }
}
