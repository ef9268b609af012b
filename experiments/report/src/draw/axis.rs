//! Axes with round labels.

use crate::format;

/// Labels per axis, at most, not counting zero.
const MAX_TICKS: f64 = 5.0;

/// An axis from `min` to `max`, labelled at every multiple of `step`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Axis {
    /// The value at the near end; a multiple of `step`.
    pub min: f64,
    /// The value at the far end; above `min`.
    pub max: f64,
    /// Distance between labels; above 0. On a logarithmic axis it has no meaning.
    pub step: f64,
    /// Whether equal ratios lie at equal distances; `min` is above 0 then.
    pub logarithmic: bool,
}

/// Up to this many decades, a logarithmic axis is labelled at 1, 2 and 5; beyond, at powers of ten only.
const FINE_DECADES: f64 = 2.0;

impl Axis {
    /// An axis from zero that shows `largest`: the end is a labelled, round number.
    pub fn covering(largest: f64) -> Self {
        let axis = Self::to(largest);
        Self { max: (axis.max / axis.step * (1.0 - 1e-9)).ceil() * axis.step, ..axis }
    }

    /// An axis that shows `smallest` to `largest`, and no more below than a round number needs. Both ends are labelled.
    pub fn between(smallest: f64, largest: f64) -> Self {
        let from_zero = Self::covering(largest);
        let span = largest - smallest;
        if !(smallest > 0.0 && span > 0.0 && from_zero.max.is_finite()) {
            return from_zero;
        }
        let step = Self::to(span).step;
        Self {
            min: (smallest / step).floor() * step,
            max: (largest / step).ceil() * step,
            step,
            logarithmic: false,
        }
    }

    /// A logarithmic axis that shows `smallest` to `largest`; both ends are 1, 2 or 5 times a power of ten.
    pub fn logarithmic(smallest: f64, largest: f64) -> Self {
        if !(smallest > 0.0 && largest.is_finite() && largest >= smallest) {
            return Self::covering(largest);
        }
        let below = |v: f64| round_values(v / 10.0, v).last().unwrap_or(v);
        let above = |v: f64| round_values(v, v * 10.0).next().unwrap_or(v);
        let min = below(smallest);
        let max = above(largest);
        let max = if max > min { max } else { above(max * 1.5) };
        Self { min, max, step: min, logarithmic: true }
    }

    /// An axis from zero that ends exactly at `max`, which need not be labelled.
    pub fn to(max: f64) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let raw = max / MAX_TICKS;
        let magnitude = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .map(|m| m * magnitude)
            // 2.5 reads well only where it needs no extra decimal.
            .find(|s| *s >= raw * (1.0 - 1e-9) && (s.fract() == 0.0 || *s < 1.0))
            .unwrap_or(10.0 * magnitude);
        Self { min: 0.0, max, step, logarithmic: false }
    }

    /// The labelled values, in order.
    pub fn ticks(self) -> Vec<f64> {
        if self.logarithmic {
            let fine = (self.max / self.min).log10() <= FINE_DECADES;
            return round_values(self.min, self.max).filter(|v| fine || is_power_of_ten(*v)).collect();
        }
        let n = ((self.max - self.min) / self.step * (1.0 + 1e-9)).floor().min(2.0 * MAX_TICKS) as u32;
        (0..=n).map(|i| self.min + f64::from(i) * self.step).collect()
    }

    /// Returns the text of `value`, one of [`ticks`](Self::ticks).
    pub fn label(self, value: f64) -> String {
        format::tick(value, if self.logarithmic { value } else { self.step })
    }

    /// Returns the place of `value`, 0 to 1; what lies outside is clamped to the ends.
    pub fn at(self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value / self.min).ln() / (self.max / self.min).ln()
        } else {
            (value - self.min) / (self.max - self.min)
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// Exponents of ten that a logarithmic axis can show.
const EXPONENTS: std::ops::RangeInclusive<i32> = -12..=18;

/// 1, 2 and 5 times powers of ten, from `min` to `max`, in order.
fn round_values(min: f64, max: f64) -> impl Iterator<Item = f64> {
    EXPONENTS
        .flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e)))
        .filter(move |v| *v >= min * (1.0 - 1e-9) && *v <= max * (1.0 + 1e-9))
}

fn is_power_of_ten(value: f64) -> bool {
    let exponent = value.log10();
    (exponent - exponent.round()).abs() < 1e-6
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ticks_are_round_numbers() {
        let ticks = |v: f64| Axis::covering(v).ticks();
        assert_eq!(ticks(24.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!(ticks(97.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(Axis::to(24_000.0).ticks().len(), 5);
    }

    proptest! {
        #[test]
        fn covers_what_it_was_asked_to(v in 0.0f64..1e12) {
            let axis = Axis::covering(v);
            prop_assert!(axis.max >= v * (1.0 - 1e-9) && axis.max > 0.0);
            prop_assert!((2..=7).contains(&axis.ticks().len()));
            prop_assert!((0.0..=1.0).contains(&axis.at(v)));
        }
    }

    #[test]
    fn zooms_to_a_range() {
        let axis = Axis::between(41.0, 118.0);
        assert_eq!(axis.ticks(), [40.0, 60.0, 80.0, 100.0, 120.0]);
        assert_eq!((axis.at(40.0), axis.at(80.0), axis.at(120.0), axis.at(0.0)), (0.0, 0.5, 1.0, 0.0));
        assert_eq!(Axis::between(0.0, 24.0), Axis::covering(24.0));
        assert_eq!(Axis::between(7.0, 7.0), Axis::covering(7.0));
    }

    #[test]
    fn logarithmic_axes_end_at_round_values() {
        let axis = Axis::logarithmic(3.0, 70.0);
        assert_eq!(axis.ticks(), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!((axis.at(2.0), axis.at(100.0), axis.at(0.0)), (0.0, 1.0, 0.0));
        assert_eq!(Axis::logarithmic(0.4, 30_000.0).label(0.2), "0.2");
        assert_eq!(Axis::logarithmic(0.4, 30_000.0).ticks().len(), 5, "1 to 10 000");
        let narrow = Axis::logarithmic(10.0, 10.0);
        assert!(narrow.max > narrow.min);
        assert!(!Axis::logarithmic(0.0, 5.0).logarithmic);
    }

    proptest! {
        #[test]
        fn logarithmic_axes_cover(a in 1e-9f64..1e12, factor in 1.0f64..1e6) {
            let axis = Axis::logarithmic(a, a * factor);
            prop_assert!(axis.min <= a * (1.0 + 1e-9) && axis.max >= a * factor * (1.0 - 1e-9));
            prop_assert!((1..=16).contains(&axis.ticks().len()), "{:?}", axis.ticks());
            prop_assert!((0.0..=1.0).contains(&axis.at(a)));
        }
    }

    #[test]
    fn nonsense_still_gives_an_axis() {
        for v in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            let axis = Axis::covering(v);
            assert!(axis.max.is_finite() && axis.max > 0.0, "{v} gave {axis:?}");
            assert_eq!(axis.at(f64::NAN), 0.0);
        }
    }
}
