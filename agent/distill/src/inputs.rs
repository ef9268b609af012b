//! What a tree sees of a history.

use ccplane_snapshot::PolicySpec;

/// A register of the program that is an input.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Input {
    /// The newest interval's value of a feature.
    Now(usize),
    /// That of the interval before.
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

/// How a policy's cells are laid out: intervals of features, then constants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Values of an interval.
    pub features: usize,
    /// Intervals.
    pub depth: usize,
    /// What ends the cells.
    pub constants: usize,
}

impl Layout {
    /// Cells of all.
    pub const fn cells(&self) -> usize {
        self.features * self.depth + self.constants
    }
}

/// A flow's inputs, kept as the program keeps them.
#[derive(Clone, Debug)]
pub struct Inputs {
    layout: Layout,
    /// Of each feature and constant, as the policy clips it.
    ranges: Vec<(i64, i64)>,
    cells: Vec<i32>,
    before: Vec<i64>,
    now: Vec<i64>,
    averages: Vec<[i64; TENTHS.len()]>,
}

impl Inputs {
    /// Before the first interval: all 0.
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

    /// The flow asks, with these cells: what intervals have ended since it asked last follows from them.
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

    /// An input's value.
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
