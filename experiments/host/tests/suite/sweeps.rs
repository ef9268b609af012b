//! Sweeps that are cut short, go on, and run into a full disk.

use crate::acceptance::nowhere;
use ccplane_host::{
    Costs, Fault, ModelHost, Row, Source, Subject, SweepEnd, SweepOptions, SweepStep, Table, TableError,
    TableHeader, drawn, sweep,
};
use std::cell::Cell;
use std::time::Duration;

const OPTIONS: SweepOptions = SweepOptions { cells: 60, repeats: 2, seed: 4, budget: None };

fn model() -> ModelHost {
    ModelHost::new("2x4".parse().unwrap(), Costs::default(), 4, 4).unwrap()
}

fn header(model: &ModelHost, is_model: bool) -> TableHeader {
    let source = match is_model {
        true => Source::Model { nodes: 2, cores_per_node: 4 },
        // Rows of a host are written one by one.
        false => Source::Host { interface: "eth0".into(), is_own: false },
    };
    TableHeader::new(source, model.space().clone(), nowhere())
}

fn sorted(table: &Table) -> Vec<Row> {
    let mut rows = table.rows().to_vec();
    rows.sort_by(|a, b| a.cell.cmp(&b.cell).then(a.repeat.cmp(&b.repeat)));
    rows
}

/// Stopped after any number of measurements and started again, a sweep measures what one go would, each once.
#[test]
fn a_sweep_goes_on_where_it_was() {
    let mut whole = Table::in_memory(header(&model(), false));
    let all = sweep(&mut model(), &mut whole, &OPTIONS, &|| false, &mut |_| {}).unwrap();
    assert_eq!((all.measured, all.left), (120, 0));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h.jsonl");
    for stop_after in [1, 7, 59, 60, 61, 119] {
        let _ = std::fs::remove_file(&path);
        let count = Cell::new(0);
        let stop = || {
            count.set(count.get() + 1);
            count.get() > stop_after
        };
        let mut part = Table::open(&path, header(&model(), false)).unwrap();
        let first = sweep(&mut model(), &mut part, &OPTIONS, &stop, &mut |_| {}).unwrap();
        assert!(matches!(first.end, SweepEnd::Stopped) && first.measured == stop_after, "{first:?}");
        drop(part);
        let mut rest = Table::open(&path, header(&model(), false)).unwrap();
        let steps = Cell::new(0);
        let mut told = |step: &SweepStep<'_>| {
            steps.set(steps.get() + 1);
            assert_eq!((step.done, step.total), (stop_after + steps.get(), 120));
        };
        let second = sweep(&mut model(), &mut rest, &OPTIONS, &|| false, &mut told).unwrap();
        assert_eq!((second.measured, second.left), (120 - stop_after, 0));
        assert_eq!(sorted(&Table::read(&path).unwrap()), sorted(&whole));
    }
}

#[test]
fn no_time_measures_nothing() {
    let mut table = Table::in_memory(header(&model(), true));
    let options = SweepOptions { budget: Some(Duration::ZERO), ..OPTIONS };
    let swept = sweep(&mut model(), &mut table, &options, &|| false, &mut |_| {}).unwrap();
    assert!(
        matches!(swept.end, SweepEnd::Budget) && table.rows().is_empty() && swept.left == 120,
        "{swept:?}"
    );
}

/// Draws are from the seed, without a cell twice, the default first; few of many and all of few alike.
#[test]
fn cells_are_drawn_once() {
    let model = model();
    let space = model.space();
    for count in [1, 10, 1000, space.cells(), space.cells() + 5] {
        let cells = drawn(space, count, 9);
        let distinct: std::collections::BTreeSet<_> = cells.iter().collect();
        assert_eq!((cells.len() as u64, distinct.len()), (count.min(space.cells()), cells.len()));
        assert_eq!(cells[0], space.default_cell());
        assert_eq!(drawn(space, count, 9), cells);
    }
    assert_ne!(drawn(space, 10, 9), drawn(space, 10, 10));
}

/// A subject that counts how often it was restored, and loses its interface.
struct Counting {
    model: ModelHost,
    restored: u32,
    lost_after: u32,
    measured: u32,
}

impl Subject for Counting {
    fn space(&self) -> &ccplane_host::Space {
        self.model.space()
    }
    fn measure(&mut self, cell: &ccplane_host::Cell, repeat: u32) -> Result<ccplane_host::Sample, Fault> {
        self.measured += 1;
        if self.measured > self.lost_after {
            return Err(Fault::Lost { interface: "eth0".into(), why: "its link is down".into() });
        }
        self.model.measure(cell, repeat)
    }
    fn settle(&mut self, _cell: &ccplane_host::Cell) -> Result<(), Fault> {
        Ok(())
    }
    fn restore(&mut self) -> Result<(), Fault> {
        self.restored += 1;
        Ok(())
    }
}

#[test]
fn what_was_measured_before_a_fault_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h.jsonl");
    let mut subject = Counting { model: model(), restored: 0, lost_after: 13, measured: 0 };
    let mut table = Table::open(&path, header(&model(), false)).unwrap();
    let swept = sweep(&mut subject, &mut table, &OPTIONS, &|| false, &mut |_| {}).unwrap();
    let SweepEnd::Fault(fault) = swept.end else { panic!("{swept:?}") };
    assert_eq!(fault.to_string(), "eth0: its link is down");
    assert_eq!((Table::read(&path).unwrap().rows().len(), subject.restored), (13, 1));
}

/// A file that cannot grow ends the sweep after the host is as it was.
#[test]
fn a_full_disk_is_said_and_the_host_restored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h.jsonl");
    let mut subject = Counting { model: model(), restored: 0, lost_after: u32::MAX, measured: 0 };
    let mut table = Table::open(&path, header(&model(), false)).unwrap();
    let measured = Cell::new(0);
    let mut told = |_: &SweepStep<'_>| {
        measured.set(measured.get() + 1);
        if measured.get() == 9 {
            // From here on the name is that of a device that is always full.
            std::fs::rename(&path, path.with_extension("kept")).unwrap();
            std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        }
    };
    let error = sweep(&mut subject, &mut table, &OPTIONS, &|| false, &mut told).unwrap_err();
    assert!(
        matches!(error, TableError::Write { .. }) && error.to_string().contains("No space left"),
        "{error}"
    );
    assert_eq!(subject.restored, 1);
    assert_eq!(Table::read(&path.with_extension("kept")).unwrap().rows().len(), 8);
}
