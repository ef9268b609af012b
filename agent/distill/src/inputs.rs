//! The inputs of a tree, computed from a history.

use ccplane_snapshot::PolicySpec;

/// A register of the program that is an input.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Input {
    /// The newest interval's value of a feature.
    Now(usize),
    /// The feature's value in the interval before.
    Before(usize),
    /// A moving average: after each interval `(tenths * old + (10 - tenths) * new) / 10`.
    Average(usize, u8),
    /// The last input of a kind that does not change, such as a preference.
    Constant(usize),
}

/// Weights of the old value of moving averages that are tried.
const TENTHS: [u8; 2] = [5, 8];

impl Input {
    /// All there are for these histories.
    pub(crate) fn candidates(layout: &Layout) -> Vec<Input> {
        let of = |feature| [Input::Now(feature), Input::Before(feature)];
        let averages = |feature| TENTHS.map(|tenths| Input::Average(feature, tenths));
        let varying = (0..layout.features).flat_map(|f| of(f).into_iter().chain(averages(f)));
        varying.chain((0..layout.constants).map(Input::Constant)).collect()
    }
}

/// The layout of a policy's cells: intervals of features, then constants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Values of an interval.
    pub features: usize,
    pub depth: usize,
    /// Number of constants at the end of the cells.
    pub constants: usize,
}

impl Layout {
    /// Returns the number of history cells.
    pub const fn cells(&self) -> usize {
        self.features * self.depth + self.constants
    }
}

/// A flow's inputs, kept as the program keeps them.
#[derive(Clone, Debug)]
pub struct Inputs {
    layout: Layout,
    /// The range of each feature and constant, as the policy clips it.
    ranges: Vec<(i64, i64)>,
    cells: Vec<i32>,
    before: Vec<i64>,
    now: Vec<i64>,
    averages: Vec<[i64; TENTHS.len()]>,
}

impl Inputs {
    /// Starts before the first interval: all 0.
    pub fn new(layout: Layout, spec: &PolicySpec) -> Inputs {
        let range = |n: usize| spec.inputs().get(n).map_or((0, 0), |f| (f.lo.into(), f.hi.into()));
        let constants = layout.features * layout.depth..layout.cells();
        Inputs {
            layout,
            ranges: (0..layout.features).chain(constants).map(range).collect(),
            cells: vec![0; layout.cells()],
            before: vec![0; layout.features],
            now: vec![0; layout.features],
            averages: vec![[0; TENTHS.len()]; layout.features],
        }
    }

    /// The flow asks, with these cells: the intervals that have ended since it asked last are the fewest that make the
    /// old cells these. There may have been more: equal ones in a row, or more than the cells hold.
    pub fn update(&mut self, cells: &[i32]) {
        let (width, end) = (self.layout.features, self.layout.features * self.layout.depth);
        let since = (1..self.layout.depth)
            .find(|n| self.cells.get(n * width..end) == cells.get(..end - n * width))
            .unwrap_or(self.layout.depth);
        for interval in (self.layout.depth - since)..self.layout.depth {
            self.now.iter().zip(&mut self.before).for_each(|(now, before)| *before = *now);
            for feature in 0..width {
                let (lo, hi) = self.ranges[feature];
                let new =
                    i64::from(cells.get(interval * width + feature).copied().unwrap_or(0)).clamp(lo, hi);
                self.now[feature] = new;
                for (average, tenths) in self.averages[feature].iter_mut().zip(TENTHS.map(i64::from)) {
                    *average = (tenths * *average + (10 - tenths) * new) / 10;
                }
            }
        }
        self.cells.clear();
        self.cells.extend_from_slice(cells);
        self.cells.resize(self.layout.cells(), 0);
    }

    /// Returns the value of one input.
    pub fn get(&self, input: Input) -> i64 {
        match input {
            Input::Now(feature) => self.now[feature],
            Input::Before(feature) => self.before[feature],
            Input::Average(feature, tenths) => {
                let at = TENTHS.iter().position(|t| *t == tenths).unwrap_or(0);
                self.averages[feature][at]
            }
            Input::Constant(n) => {
                let (lo, hi) = self.ranges[self.layout.features + n];
                let cell = self.cells[self.layout.features * self.layout.depth + n];
                i64::from(cell).clamp(lo, hi)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_snapshot::{Action, ActionMap, Feature};

    const LAYOUT: Layout = Layout { features: 1, depth: 3, constants: 0 };
    const HALF: Input = Input::Average(0, 5);

    /// Returns the inputs after these intervals, of a flow that asks after so many of them each time.
    fn asked_after(intervals: &[i32], counts: &[usize]) -> Inputs {
        let feature = |n| Feature { name: format!("x[{n}]"), lo: -1000, hi: 1000 };
        let action =
            Action { map: ActionMap::None, bound_q16: 1 << 16, step_q20: 1, knob_min: 1, knob_max: 2 };
        let spec = PolicySpec::new("toy", (0..LAYOUT.depth).map(feature).collect(), action).unwrap();
        let mut inputs = Inputs::new(LAYOUT, &spec);
        let mut cells = vec![0; LAYOUT.depth];
        let mut rest = intervals;
        for count in counts {
            for interval in &rest[..*count] {
                cells.remove(0);
                cells.push(*interval);
            }
            rest = &rest[*count..];
            inputs.update(&cells);
        }
        inputs
    }

    #[test]
    fn intervals_between_questions_count_where_they_can_be_told() {
        let intervals = [100, 200, 400, 50, 80, 640];
        let each = asked_after(&intervals, &[1; 6]);
        let some = asked_after(&intervals, &[3, 1, 2]);
        for input in [Input::Now(0), Input::Before(0), HALF, Input::Average(0, 8)] {
            assert_eq!(some.get(input), each.get(input), "{input:?}");
        }
        // Four at once: the first is beyond the history. Of two equal ones, the history shows one.
        assert_eq!(asked_after(&[100, 200, 400, 50], &[4]).get(HALF), 150);
        assert_eq!(asked_after(&[100, 200, 400, 50], &[1; 4]).get(HALF), 156);
        let (told, untold) = (&[3, 1, 1][..], &[3, 2][..]);
        let equal = [64; 5];
        assert_eq!(asked_after(&equal, told).get(HALF), 62);
        assert_eq!(asked_after(&equal, untold).get(HALF), 60);
    }
}
