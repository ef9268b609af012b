//! The rows of a flow's policy, from the reports of its intervals.

use crate::{Report, Row};

/// The report register that holds `Policy.action`.
const ACTION: &str = "action";
/// The report register that holds `Policy.snapshot`.
const SNAPSHOT: &str = "snapshot";

/// Rebuilds what a policy saw from consecutive reports, as the datapath keeps it: for a program that on each interval
/// runs `(history depth feature...)`, and perhaps a `(history 1 constant...)` after it. The program then asks
/// `(policy slot)` and reports the features, `action` and `snapshot`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowBuilder {
    slot: u8,
    features: &'static [&'static str],
    constants: Vec<i32>,
    /// Oldest interval first, as [`Row::inputs`].
    cells: Vec<i32>,
    /// Intervals to come until all cells are known again.
    unknown: usize,
    depth: usize,
}

impl RowBuilder {
    /// Starts for a flow whose program has just been set. Its inputs are `depth` intervals, all 0, of the report
    /// registers `features`, spelt without `Report.`; then `constants`, which end every row's inputs.
    pub fn new(slot: u8, depth: usize, features: &'static [&'static str], constants: Vec<i32>) -> RowBuilder {
        let cells = vec![0; depth * features.len()];
        RowBuilder { slot, features, constants, cells, unknown: 0, depth }
    }

    /// The row of an interval; `reward` is what the interval was worth. `None` if no policy decided, a register is
    /// missing, or lost reports leave a part of the history unknown.
    pub fn row(&mut self, now_us: u64, report: &Report<'_>, reward: f32) -> Option<Row> {
        self.append(report)?;
        let snapshot = u32::try_from(report.get(SNAPSHOT)?).ok().filter(|uid| *uid != 0)?;
        let action_q16 = saturate(report.get(ACTION)?);
        if self.unknown > 0 {
            return None;
        }
        let inputs = [self.cells.as_slice(), &self.constants].concat();
        Some(Row {
            at_us: now_us,
            slot: self.slot,
            snapshot,
            inputs,
            action_q16,
            reward,
            follows: true,
            target_q16: None,
        })
    }

    /// Reports were lost: to be called from [`Flow::on_lost_reports`](crate::Flow::on_lost_reports). The next rows are
    /// withheld until the history holds known intervals only.
    pub fn lost(&mut self) {
        self.unknown = self.depth;
    }

    /// The program was set again: its history starts over.
    pub fn restart(&mut self) {
        self.cells.fill(0);
        self.unknown = 0;
    }

    /// Changes what ends the inputs, from the next row on: the registers of the program's `(history 1 ...)`.
    pub fn set_constants(&mut self, constants: Vec<i32>) {
        self.constants = constants;
    }

    /// The oldest interval makes room. Appends nothing if a register is missing.
    fn append(&mut self, report: &Report<'_>) -> Option<()> {
        let width = self.features.len();
        let newest = self.cells.len().checked_sub(width)?;
        let values = self.features.iter().map(|name| report.get(name).map(saturate));
        let values = values.collect::<Option<Vec<i32>>>()?;
        self.cells.copy_within(width.., 0);
        self.cells[newest..].copy_from_slice(&values);
        self.unknown = self.unknown.saturating_sub(1);
        Some(())
    }
}

/// Saturates a value to 32 bits, as a history's cells hold it.
fn saturate(value: i64) -> i32 {
    value.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["gradient", "action", "ratio", "snapshot"].map(str::to_owned).to_vec()
    }

    fn row(rows: &mut RowBuilder, values: [i64; 4]) -> Option<Row> {
        rows.row(7, &Report { program: "p", names: &names(), values: &values, truth: None }, 0.5)
    }

    fn builder() -> RowBuilder {
        RowBuilder::new(2, 3, &["gradient", "ratio"], vec![50, 60])
    }

    #[test]
    fn the_oldest_interval_makes_room() {
        let mut rows = builder();
        let first = row(&mut rows, [1, -9, 2, 11]).unwrap();
        let expected = Row {
            at_us: 7,
            slot: 2,
            snapshot: 11,
            inputs: vec![0, 0, 0, 0, 1, 2, 50, 60],
            action_q16: -9,
            reward: 0.5,
            follows: true,
            target_q16: None,
        };
        assert_eq!(first, expected);
        row(&mut rows, [3, 0, 4, 11]);
        assert_eq!(row(&mut rows, [5, 0, 6, 12]).unwrap().inputs, [1, 2, 3, 4, 5, 6, 50, 60]);
        assert_eq!(row(&mut rows, [7, 0, 8, 12]).unwrap().inputs, [3, 4, 5, 6, 7, 8, 50, 60]);
        rows.restart();
        rows.set_constants(vec![70]);
        assert_eq!(row(&mut rows, [9, 0, 10, 12]).unwrap().inputs, [0, 0, 0, 0, 9, 10, 70]);
    }

    #[test]
    fn values_saturate_as_cells_do() {
        let seen = row(&mut builder(), [i64::MAX, i64::MIN, i64::MIN, u32::MAX.into()]).unwrap();
        assert_eq!(seen.inputs[4..6], [i32::MAX, i32::MIN]);
        assert_eq!((seen.action_q16, seen.snapshot), (i32::MIN, u32::MAX));
    }

    #[test]
    fn rows_wait_until_lost_intervals_have_left_the_history() {
        let mut rows = builder();
        row(&mut rows, [1, 0, 2, 11]);
        rows.lost();
        assert_eq!(row(&mut rows, [3, 0, 4, 11]), None);
        assert_eq!(row(&mut rows, [5, 0, 6, 11]), None);
        assert_eq!(row(&mut rows, [7, 0, 8, 11]).unwrap().inputs, [3, 4, 5, 6, 7, 8, 50, 60]);
    }

    #[test]
    fn an_interval_that_no_policy_decided_still_enters_the_history() {
        let mut rows = builder();
        assert_eq!(row(&mut rows, [1, 0, 2, 0]), None);
        assert_eq!(row(&mut rows, [3, 0, 4, 11]).unwrap().inputs, [0, 0, 1, 2, 3, 4, 50, 60]);
    }

    #[test]
    fn another_programs_report_changes_nothing() {
        let mut rows = builder();
        let other = Report { program: "q", names: &["gradient".to_owned()], values: &[9], truth: None };
        assert_eq!(rows.row(7, &other, 0.0), None);
        assert_eq!(rows, builder());
    }
}
