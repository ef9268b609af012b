//! Axes with round labels.

/// Labels of an axis, at most, not counting the first.
const MAX_TICKS: f64 = 8.0;

/// Round numbers from `low` to `high`.
pub(super) struct Axis {
    low: f64,
    high: f64,
    step: f64,
}

impl Axis {
    /// Ends as given.
    pub(super) fn between(low: f64, high: f64) -> Axis {
        let high = if high > low { high } else { low + 1.0 };
        let raw = (high - low) / MAX_TICKS;
        let magnitude = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0].map(|m| m * magnitude).into_iter().find(|s| *s >= raw);
        Axis { low, high, step: step.unwrap_or(10.0 * magnitude) }
    }

    /// From zero to the first label that is not below `high`.
    pub(super) fn covering(high: f64) -> Axis {
        let axis = Axis::between(0.0, high.max(0.0));
        Axis { high: (axis.high / axis.step).ceil() * axis.step, ..axis }
    }

    /// The labels: where, 0 to 1, and what.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, String)> + '_ {
        let decimals = (-self.step.log10().floor()).clamp(0.0, 6.0) as usize;
        let first = (self.low / self.step).ceil() as i64;
        let last = (self.high / self.step * (1.0 + 1e-9)).floor() as i64;
        (first..=last).map(move |n| {
            let value = n as f64 * self.step;
            (self.at(value), format!("{value:.decimals$}"))
        })
    }

    /// Where a value lies; what is outside is moved to the end.
    pub(super) fn at(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_round_and_inside() {
        let labels = |axis: Axis| axis.ticks().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(Axis::covering(24.0)), ["0", "5", "10", "15", "20", "25"]);
        assert_eq!(labels(Axis::covering(0.7)), ["0.0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"]);
        assert_eq!(labels(Axis::between(0.0, 59.4)), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(labels(Axis::covering(0.0)).len(), 6);
        assert_eq!((Axis::covering(24.0).at(50.0), Axis::covering(24.0).at(-1.0)), (1.0, 0.0));
    }
}
