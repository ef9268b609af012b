//! Percentiles of measured values.

use ccplane_results::Percentiles;

/// Of `values`, by nearest rank; zeros for none.
pub(crate) fn percentiles(mut values: Vec<u64>) -> Percentiles {
    values.sort_unstable();
    let at = |percent: usize| {
        let rank = (values.len() * percent).div_ceil(100).max(1);
        values.get(rank - 1).copied().unwrap_or(0)
    };
    let sum: u128 = values.iter().map(|v| u128::from(*v)).sum();
    let mean = sum.checked_div(values.len() as u128).unwrap_or(0);
    Percentiles { mean: u64::try_from(mean).unwrap_or(u64::MAX), p50: at(50), p95: at(95), p99: at(99) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let of = |values: &[u64]| {
            let p = percentiles(values.to_vec());
            (p.mean, p.p50, p.p95, p.p99)
        };
        assert_eq!(of(&[]), (0, 0, 0, 0));
        assert_eq!(of(&[7]), (7, 7, 7, 7));
        let hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(of(&hundred), (50, 50, 95, 99));
    }
}
