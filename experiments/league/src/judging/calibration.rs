//! The calibration says whether a network has an opinion: the ranges of its inputs, and how many of them may
//! be beyond.

use super::{Family, Groups};
use ccplane_algs::{DEPTH, FEATURES, INPUTS};
use ccplane_snapshot::PolicySpec;
use std::collections::BTreeMap;

/// In each family, this share of a feature's values is below its range, and as large a one above.
const BEYOND_EACH_WAY: f64 = 0.0005;
/// In each family, this share of the intervals has more inputs beyond their ranges than may be.
const WITHOUT_OPINION: f64 = 0.001;

/// The range of each feature of an interval: what it has in each family, but for the outermost values. 0 is within, since a history
/// begins with it.
pub(super) fn ranges(groups: &Groups) -> [(i32, i32); FEATURES.len()] {
    std::array::from_fn(|feature| {
        let at = (DEPTH - 1) * FEATURES.len() + feature;
        let mut range = (0, 0);
        for mut values in by_family(groups, |cells| cells[at]).into_values() {
            values.sort_unstable();
            range.0 = quantile(&values, BEYOND_EACH_WAY).min(range.0);
            range.1 = quantile(&values, 1.0 - BEYOND_EACH_WAY).max(range.1);
        }
        // A range is not empty.
        (range.0, range.1.max(range.0 + 1))
    })
}

/// Inputs that are beyond their ranges.
pub(super) fn beyond(spec: &PolicySpec, cells: &[i32; INPUTS]) -> u32 {
    let inputs = spec.inputs().iter().zip(cells);
    inputs.filter(|(input, cell)| !(input.lo..=input.hi).contains(*cell)).count() as u32
}

/// So many inputs may be beyond their ranges.
pub(super) fn may_be_beyond(spec: &PolicySpec, groups: &Groups) -> u32 {
    let most = by_family(groups, |cells| beyond(spec, cells) as i32).into_values().map(|mut counts| {
        counts.sort_unstable();
        quantile(&counts, 1.0 - WITHOUT_OPINION)
    });
    most.max().unwrap_or(0) as u32
}

fn by_family(groups: &Groups, value: impl Fn(&[i32; INPUTS]) -> i32) -> BTreeMap<Family, Vec<i32>> {
    let mut families: BTreeMap<Family, Vec<i32>> = BTreeMap::new();
    for ((family, ..), examples) in groups {
        families.entry(*family).or_default().extend(examples.iter().map(|example| value(&example.cells)));
    }
    families
}

/// Of sorted values; 0 of none.
fn quantile(values: &[i32], share: f64) -> i32 {
    let at = (values.len().saturating_sub(1) as f64 * share).round() as usize;
    values.get(at).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::{Example, spec};
    use super::*;

    /// Two families: the one's values are 0 to 9,999, the other's as large as told; the rest of the cells is 7.
    fn groups(largest: i32) -> Groups {
        let example = |value: i32| {
            let mut cells = [7; INPUTS];
            cells[(DEPTH - 1) * FEATURES.len()] = value;
            Example { cells, rivals: false }
        };
        let steady = ((Family::Steady, 0, false), (0..10_000).map(example).collect());
        let deep = ((Family::Deep, 3, true), (0..10).map(|_| example(largest)).collect());
        Groups::from([steady, deep])
    }

    #[test]
    fn ranges_leave_out_the_outermost_values_of_each_family() {
        let found = ranges(&groups(500));
        assert_eq!((found[0], found[1]), ((0, 9994), (0, 7)));
        assert_eq!(ranges(&groups(20_000))[0], (0, 20_000), "of a small family nothing is left out");
        assert_eq!(ranges(&groups(-5))[0], (-5, 9994));
        assert_eq!(ranges(&Groups::new())[0], (0, 1));
    }

    #[test]
    fn a_thousandth_of_a_familys_intervals_may_be_without_an_opinion() {
        let (all, spec) = (groups(500), spec(&ranges(&groups(500))).unwrap());
        let of = |value| {
            let mut cells = [7; INPUTS];
            cells[0] = value;
            beyond(&spec, &cells)
        };
        assert_eq!((of(9994), of(9995), of(-1), of(i32::MAX)), (0, 1, 1, 1));
        // Five of the first family's are beyond, less than a thousandth.
        assert_eq!(may_be_beyond(&spec, &all), 0);
        assert_eq!(may_be_beyond(&spec, &groups(20_000)), 1, "and all of the second's");
        assert_eq!(may_be_beyond(&spec, &Groups::new()), 0);
    }
}
