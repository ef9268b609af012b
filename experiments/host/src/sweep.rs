//! Goes through a space's cells in an order drawn from a seed, until all are measured or the time is used up.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use ccplane_learn::Rng;

use crate::sample::Sample;
use crate::space::{Cell, Space};
use crate::subject::{Fault, Subject};
use crate::table::{Row, RowOutcome, Table, TableError};

/// Failed measurements in a row after which a sweep ends.
pub const MAX_FAILURES: u32 = 5;
/// The stream of the cells' order.
const ORDER: u64 = 0x0de5;
/// The share of cells from which on they are drawn by shuffling all of them.
const DENSE: u64 = 4;
/// Rows of a model that are written to the disk together.
const MODEL_ROWS: usize = 512;

/// The way in which a sweep goes through a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SweepOptions {
    /// The number of cells that are drawn; all of them where there are fewer.
    pub cells: u64,
    /// Measurements of each cell.
    pub repeats: u32,
    pub seed: u64,
    /// The time after which no further measurement begins.
    pub budget: Option<Duration>,
}

/// The state of a sweep after one measurement.
#[derive(Clone, PartialEq, Debug)]
pub struct SweepStep<'a> {
    /// Measurements that are done, those of an earlier start included.
    pub done: u64,
    pub total: u64,
    /// The cell in words.
    pub cell: String,
    /// The measurement, or the reason why there is none.
    pub outcome: &'a Result<Sample, String>,
}

/// The result of a sweep.
#[derive(Debug)]
pub struct Swept {
    /// Cells and repeats that were measured now.
    pub measured: u64,
    /// Cells and repeats that failed now.
    pub failed: u64,
    /// Cells and repeats that are left.
    pub left: u64,
    pub end: SweepEnd,
}

/// The reason why a sweep ended.
#[derive(Debug)]
pub enum SweepEnd {
    All,
    /// The time was used up.
    Budget,
    /// The caller asked to stop.
    Stopped,
    /// Nothing more can be measured.
    Fault(Fault),
}

/// Returns so many cells of a space in an order that follows from the seed; the default cell comes first.
pub fn drawn(space: &Space, count: u64, seed: u64) -> Vec<Cell> {
    let mut rng = Rng::new(seed, &[ORDER]);
    let (all, count) = (space.cells(), count.min(space.cells()));
    let first = space.number(&space.default_cell());
    let mut numbers = vec![first];
    if count >= all / DENSE {
        let mut rest: Vec<u64> = (0..all).filter(|n| *n != first).collect();
        rng.shuffle(&mut rest);
        numbers.extend(rest);
    } else {
        let mut seen = HashSet::from([first]);
        while (numbers.len() as u64) < count {
            let number = rng.below(usize::try_from(all).unwrap_or(usize::MAX)) as u64;
            if seen.insert(number) {
                numbers.push(number);
            }
        }
    }
    numbers.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    numbers.into_iter().map(|n| space.cell(n)).collect()
}

/// Measures the cells of a subject that the table lacks, and brings the subject back to how it was found.
///
/// # Errors
/// The table cannot be written; the subject is as it was found all the same.
pub fn sweep(
    subject: &mut dyn Subject,
    table: &mut Table,
    options: &SweepOptions,
    stop: &dyn Fn() -> bool,
    told: &mut dyn FnMut(&SweepStep<'_>),
) -> Result<Swept, TableError> {
    let swept = measure_all(subject, table, options, stop, told);
    let restored = subject.restore();
    let mut swept = swept?;
    if let Err(fault) = restored
        && !matches!(swept.end, SweepEnd::Fault(_))
    {
        swept.end = SweepEnd::Fault(fault);
    }
    Ok(swept)
}

fn measure_all(
    subject: &mut dyn Subject,
    table: &mut Table,
    options: &SweepOptions,
    stop: &dyn Fn() -> bool,
    told: &mut dyn FnMut(&SweepStep<'_>),
) -> Result<Swept, TableError> {
    let space = subject.space().clone();
    let cells = drawn(&space, options.cells, options.seed);
    let total = cells.len() as u64 * u64::from(options.repeats);
    // Repeat by repeat, so that a sweep cut short has seen all cells.
    let all = (0..options.repeats).flat_map(|repeat| cells.iter().map(move |cell| (cell, repeat)));
    let to_do: Vec<(&Cell, u32)> = all.filter(|(cell, repeat)| !table.is_done(cell, *repeat)).collect();
    let at_once = if table.header.source.is_model() { MODEL_ROWS } else { 1 };
    let began = Instant::now();
    let mut done = total - to_do.len() as u64;
    let mut swept = Swept { measured: 0, failed: 0, left: to_do.len() as u64, end: SweepEnd::All };
    let (mut rows, mut failures) = (Vec::new(), 0);
    for (cell, repeat) in to_do {
        if stop() {
            swept.end = SweepEnd::Stopped;
            break;
        }
        if options.budget.is_some_and(|budget| began.elapsed() >= budget) {
            swept.end = SweepEnd::Budget;
            break;
        }
        let measured = subject.measure(cell, repeat);
        let outcome = match measured {
            Ok(sample) => Ok(sample),
            Err(fault) if fault.is_final() => {
                swept.end = SweepEnd::Fault(fault);
                break;
            }
            Err(fault) => {
                // A refusal says something of the setting; the rest of the host goes on.
                failures = if matches!(fault, Fault::Refused { .. }) { 0 } else { failures + 1 };
                let why = fault.to_string();
                if failures >= MAX_FAILURES {
                    swept.end = SweepEnd::Fault(fault);
                    break;
                }
                Err(why)
            }
        };
        (done, swept.left) = (done + 1, swept.left - 1);
        told(&SweepStep { done, total, cell: space.shown(cell), outcome: &outcome });
        match &outcome {
            Ok(_) => (swept.measured, failures) = (swept.measured + 1, 0),
            Err(_) => swept.failed += 1,
        }
        let outcome = outcome.map_or_else(RowOutcome::Failed, RowOutcome::Measured);
        rows.push(Row { cell: cell.clone(), repeat, outcome });
        if rows.len() >= at_once {
            table.append(std::mem::take(&mut rows))?;
        }
    }
    if !rows.is_empty() {
        table.append(rows)?;
    }
    Ok(swept)
}
