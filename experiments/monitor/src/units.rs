//! Figures as people read them.

/// Writes a rate in bits per second with a unit, as `ss` does, in as many digits as change little from look to look.
pub fn bit_rate(bytes_per_s: f64) -> String {
    let bits = bytes_per_s * 8.0;
    match bits {
        b if b >= 1e9 => format!("{:.2}Gbps", b / 1e9),
        b if b >= 1e6 => format!("{:.2}Mbps", b / 1e6),
        b if b >= 1e3 => format!("{:.1}kbps", b / 1e3),
        b => format!("{b:.0}bps"),
    }
}

/// Writes microseconds as milliseconds; a dash where they are not known.
pub fn milliseconds(us: Option<u32>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| format!("{:.1}", f64::from(us) / 1000.0))
}

/// Writes a duration in its two largest units.
pub fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_units() {
        assert_eq!([0.0, 125.0, 125e3, 125e6].map(bit_rate), ["0bps", "1.0kbps", "1.00Mbps", "1.00Gbps"]);
        assert_eq!([None, Some(20_540)].map(milliseconds), ["-", "20.5"]);
        assert_eq!(
            [-1.0, 59.9, 61.0, 3660.0, 90_000.0].map(duration),
            ["0 s", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]
        );
    }
}
