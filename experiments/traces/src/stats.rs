//! Plain statistics over samples.

/// The value that a share `q` (0 to 1) of `sorted` does not exceed, by the nearest rank; 0 for none.
pub fn percentile(sorted: &[u64], q: f64) -> u64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// The mean; 0 for none.
pub fn mean(values: &[u64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().map(|v| *v as f64).sum::<f64>() / values.len() as f64 }
}

/// The standard deviation of these values (not an estimate of a population's).
pub fn std_dev(values: &[u64]) -> f64 {
    if values.is_empty() { 0.0 } else { autocovariance(values, 0).sqrt() }
}

/// The correlation of the values with those `lag` later, -1 to 1; 0 when the values do not vary or are too few.
pub fn autocorrelation(values: &[u64], lag: usize) -> f64 {
    let variance = autocovariance(values, 0);
    if variance > 0.0 && lag < values.len() { autocovariance(values, lag) / variance } else { 0.0 }
}

fn autocovariance(values: &[u64], lag: usize) -> f64 {
    let mean = mean(values);
    let products =
        values.iter().zip(values.iter().skip(lag)).map(|(a, b)| (*a as f64 - mean) * (*b as f64 - mean));
    products.sum::<f64>() / (values.len().saturating_sub(lag)).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_means_and_deviations_have_their_known_values() {
        let ten: Vec<u64> = (1..=10).collect();
        assert_eq!([0.0, 0.05, 0.5, 0.95, 1.0].map(|q| percentile(&ten, q)), [1, 1, 5, 10, 10]);
        assert_eq!((mean(&ten), std_dev(&[2, 4, 4, 4, 5, 5, 7, 9])), (5.5, 2.0));
        assert_eq!((percentile(&[], 0.5), mean(&[]), std_dev(&[])), (0, 0.0, 0.0));
    }

    #[test]
    fn correlation_tells_alternation_from_persistence() {
        let alternating: Vec<u64> = (0..1000).map(|n| n % 2).collect();
        assert!((autocorrelation(&alternating, 1) + 1.0).abs() < 1e-9);
        assert!((autocorrelation(&alternating, 2) - 1.0).abs() < 1e-9);
        let blocks: Vec<u64> = (0..1000).map(|n| n / 100 % 2).collect();
        assert!(autocorrelation(&blocks, 1) > 0.95);
        assert_eq!(autocorrelation(&[3, 3, 3], 1), 0.0);
        assert_eq!(autocorrelation(&[1, 2], 2), 0.0);
    }
}
