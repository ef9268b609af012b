//! Lines with a bounded number of points.

/// At most `limit` points: of each run of points the smallest and the largest, in order of place.
pub fn thinned(points: Vec<(f64, f64)>, limit: usize) -> Vec<(f64, f64)> {
    if points.len() <= limit {
        return points;
    }
    let run = points.len().div_ceil(limit / 2);
    points
        .chunks(run)
        .flat_map(|chunk| {
            let low = chunk.iter().min_by(|a, b| a.1.total_cmp(&b.1)).copied();
            let high = chunk.iter().max_by(|a, b| a.1.total_cmp(&b.1)).copied();
            if low.map(|p| p.0) <= high.map(|p| p.0) { [low, high] } else { [high, low] }
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_POINTS: usize = 1_600;

    #[test]
    fn thinning_keeps_extremes_order_and_bound() {
        let points: Vec<(f64, f64)> = (0..100_000)
            .map(|t| (f64::from(t), if t == 54_321 { 9_999.0 } else { f64::from(t % 100) }))
            .collect();
        let thin = thinned(points, MAX_POINTS);
        assert!(thin.len() <= MAX_POINTS);
        assert!(thin.contains(&(54_321.0, 9_999.0)));
        assert!(thin.is_sorted_by_key(|p| p.0));
    }
}
