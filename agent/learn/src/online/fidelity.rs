//! Distance of two policies on the same inputs.

/// LiteFlow's alpha: an update is necessary when the smallest difference over a batch exceeds this share of the output
/// range (Zhang et al., SIGCOMM 2022, section 3.3).
pub const NECESSITY: f32 = 0.05;

/// Differences of bounded actions over a batch, as shares of the action's range (twice its bound).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fidelity {
    /// The smallest: LiteFlow's fidelity loss.
    pub min: f32,
    pub mean: f32,
    pub max: f32,
    pub rows: usize,
}

impl Fidelity {
    /// Compares pairs of actions, which are bounded first; `None` without any.
    pub fn of(pairs: impl Iterator<Item = (f32, f32)>, bound: f32) -> Option<Fidelity> {
        let (mut min, mut max, mut sum, mut rows) = (f32::INFINITY, 0.0_f32, 0.0_f64, 0);
        for (a, b) in pairs {
            let difference = (a.clamp(-bound, bound) - b.clamp(-bound, bound)).abs() / (2.0 * bound);
            min = min.min(difference);
            max = max.max(difference);
            sum += f64::from(difference);
            rows += 1;
        }
        (rows > 0).then(|| Fidelity { min, mean: (sum / rows as f64) as f32, max, rows })
    }

    /// LiteFlow's test: whether even the closest pair differs by more than `alpha`, such as [`NECESSITY`].
    pub fn update_is_necessary(&self, alpha: f32) -> bool {
        self.min > alpha
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fidelity_is_a_share_of_the_range_of_actions() {
        assert_eq!(Fidelity::of(std::iter::empty(), 1.0), None);
        let fidelity = Fidelity::of([(0.0, 0.5), (-9.0, 9.0), (5.0, 2.0)].into_iter(), 2.0).unwrap();
        assert_eq!(fidelity, Fidelity { min: 0.0, mean: (0.125 + 1.0) / 3.0, max: 1.0, rows: 3 });
        assert!(!fidelity.update_is_necessary(NECESSITY));
        let apart = Fidelity::of([(0.0, 0.5), (1.0, 0.7)].into_iter(), 1.0).unwrap();
        assert!(apart.update_is_necessary(NECESSITY) && !apart.update_is_necessary(0.2));
    }
}
