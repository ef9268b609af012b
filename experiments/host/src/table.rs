//! Measurements on disk, as versioned JSON Lines: a header, then a line for each cell that was tried.
//!
//! Lines are written whole and synced, so that a sweep that was cut short goes on where it was.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ccplane_files::{Bound, ReadError};
use ccplane_results::Host;
use serde::{Deserialize, Serialize};

use crate::sample::Sample;
use crate::space::{Cell, Space};

/// The format's version; a file of another is refused.
pub const TABLE_VERSION: u32 = 1;
/// The largest file of measurements, bytes.
pub const MAX_TABLE_BYTES: u64 = 1 << 30;
const TABLE: Bound = Bound { what: "a file of a host's measurements", bytes: MAX_TABLE_BYTES };
/// The word that tells such a file from others.
const KIND: &str = "host-measurements";

/// The origin of measurements.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub enum Source {
    /// The host at hand, over a veth pair of our own or over an interface that the user named.
    Host {
        interface: String,
        /// Whether the interface is one end of a pair in namespaces of our own.
        is_own: bool,
    },
    /// A model of a host: nothing was measured.
    Model { nodes: u32, cores_per_node: u32 },
}

impl Source {
    /// Describes the origin in a few words; a model is called one.
    pub fn words(&self) -> String {
        match self {
            Source::Host { interface, is_own: false } => format!("measured on this host over {interface}"),
            Source::Host { is_own: true, .. } => {
                "measured on this host over a veth pair of its own".to_owned()
            }
            Source::Model { nodes, cores_per_node } => {
                format!(
                    "computed by a model of a host with {nodes} nodes of {cores_per_node} cores, not measured"
                )
            }
        }
    }

    /// Whether a model gave the figures.
    pub fn is_model(&self) -> bool {
        matches!(self, Source::Model { .. })
    }
}

/// The first line of a file: what was measured, where and how.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableHeader {
    pub kind: String,
    /// The version of the format, [`TABLE_VERSION`].
    pub version: u32,
    pub source: Source,
    pub space: Space,
    /// Flows that run at the same time.
    pub flows: u32,
    /// The length of one measurement, milliseconds.
    pub duration_ms: u64,
    pub seed: u64,
    /// The processors by memory node.
    pub nodes: Vec<Vec<u32>>,
    pub host: Host,
}

impl TableHeader {
    /// Makes the header of a new file.
    pub fn new(source: Source, space: Space, host: Host) -> TableHeader {
        TableHeader {
            kind: KIND.to_owned(),
            version: TABLE_VERSION,
            source,
            space,
            flows: 1,
            duration_ms: 0,
            seed: 0,
            nodes: Vec::new(),
            host,
        }
    }

    /// Returns the first part in which measurements under two headers cannot be compared.
    fn difference(&self, other: &TableHeader) -> Option<&'static str> {
        [
            (self.source == other.source, "another host or interface"),
            (self.space == other.space, "other knobs or levels"),
            (self.flows == other.flows, "another number of flows"),
            (self.duration_ms == other.duration_ms, "another duration"),
            (self.seed == other.seed, "another seed"),
            (self.host.kernel == other.host.kernel, "another kernel"),
        ]
        .into_iter()
        .find_map(|(same, what)| (!same).then_some(what))
    }
}

/// One cell that was tried.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub cell: Cell,
    /// The number of the repeat, from 0.
    pub repeat: u32,
    pub outcome: RowOutcome,
}

/// The end of one measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowOutcome {
    Measured(Sample),
    /// The host refused the settings, or the flow broke.
    Failed(String),
}

/// Reasons why measurements are not read or written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file cannot be written; what it holds already stays.
    #[error("{}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// A line is none of such a file.
    #[error("{}:{line}: {reason}", path.display())]
    BadLine { path: PathBuf, line: usize, reason: String },
    /// The existing file holds measurements of something else.
    #[error("{}: it holds measurements of {what}; name another file, or remove it", path.display())]
    Other {
        path: PathBuf,
        /// The part that differs.
        what: &'static str,
    },
}

/// Measurements with the file that they are in, if any.
#[derive(Debug)]
pub struct Table {
    path: Option<PathBuf>,
    pub header: TableHeader,
    rows: Vec<Row>,
    done: HashSet<(u64, u32)>,
}

impl Table {
    /// Starts a table that is kept in memory alone.
    pub fn in_memory(header: TableHeader) -> Table {
        Table { path: None, header, rows: Vec::new(), done: HashSet::new() }
    }

    /// Opens a file for more measurements: makes it, or goes on with it if it holds such under the same header.
    ///
    /// # Errors
    /// The file cannot be used, or holds something else.
    pub fn open(path: &Path, header: TableHeader) -> Result<Table, TableError> {
        let failed = |source| TableError::Write { path: path.to_owned(), source };
        if path.exists() {
            let text = ccplane_files::read_text(path, TABLE)?;
            let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
            if !whole.is_empty() {
                let mut table = parse(path, whole)?;
                if let Some(what) = table.header.difference(&header) {
                    return Err(TableError::Other { path: path.to_owned(), what });
                }
                if whole.len() < text.len() {
                    // The last line was not written to its end.
                    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
                    file.set_len(whole.len() as u64).and_then(|()| file.sync_data()).map_err(failed)?;
                }
                table.path = Some(path.to_owned());
                return Ok(table);
            }
            fs::remove_file(path).map_err(failed)?;
        }
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
        let line = serde_json::to_string(&header).map_err(|error| failed(error.into()))?;
        file.write_all((line + "\n").as_bytes()).and_then(|()| file.sync_data()).map_err(failed)?;
        Ok(Table { path: Some(path.to_owned()), ..Table::in_memory(header) })
    }

    /// Reads a file; a last line without its end is not counted.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn read(path: &Path) -> Result<Table, TableError> {
        let text = ccplane_files::read_text(path, TABLE)?;
        parse(path, text.rfind('\n').map_or("", |end| &text[..=end]))
    }

    /// Whether the file begins as one of these does.
    pub fn is_one(path: &Path) -> bool {
        use std::io::Read;
        let mut start = [0; 64];
        // What is no regular file is none, and is not waited for.
        let Ok(mut file) = ccplane_files::open(path, TABLE) else { return false };
        file.read(&mut start).is_ok_and(|count| String::from_utf8_lossy(&start[..count]).contains(KIND))
    }

    /// Returns the rows in the order in which they ended.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Whether the cell was measured in this repeat.
    pub fn is_done(&self, cell: &Cell, repeat: u32) -> bool {
        self.done.contains(&(self.header.space.number(cell), repeat))
    }

    /// Adds rows; they are on the disk on return, or none of them is counted.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, rows: Vec<Row>) -> Result<(), TableError> {
        if let Some(path) = &self.path {
            let failed = |source| TableError::Write { path: path.clone(), source };
            let mut text = String::new();
            for row in &rows {
                text += &serde_json::to_string(row).map_err(|error| failed(error.into()))?;
                text.push('\n');
            }
            let mut file = OpenOptions::new().append(true).open(path).map_err(failed)?;
            let before = file.metadata().map_err(failed)?.len();
            if let Err(source) = file.write_all(text.as_bytes()).and_then(|()| file.sync_data()) {
                // Half a line would hide those that follow; where even that fails, the next start cuts it off.
                let _ = file.set_len(before);
                return Err(failed(source));
            }
        }
        rows.into_iter().for_each(|row| self.keep(row));
        Ok(())
    }

    /// A cell that failed is tried again at the next start.
    fn keep(&mut self, row: Row) {
        if matches!(row.outcome, RowOutcome::Measured(_)) {
            self.done.insert((self.header.space.number(&row.cell), row.repeat));
        }
        self.rows.push(row);
    }

    /// Returns each measured cell with its samples, ordered by the cells' numbers.
    pub fn by_cell(&self) -> Vec<(Cell, Vec<Sample>)> {
        let mut cells: std::collections::BTreeMap<&Cell, Vec<Sample>> = std::collections::BTreeMap::new();
        for row in &self.rows {
            if let RowOutcome::Measured(sample) = row.outcome {
                cells.entry(&row.cell).or_default().push(sample);
            }
        }
        cells.into_iter().map(|(cell, samples)| (cell.clone(), samples)).collect()
    }

    /// Writes the measured rows as CSV: the knobs' values, the counters, and what follows from them.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn write_csv(&self, out: impl Write) -> Result<(), csv::Error> {
        let mut writer = csv::Writer::from_writer(out);
        let knobs = self.header.space.knobs().iter().map(|knob| knob.name.as_str());
        let origin = if self.header.source.is_model() { "model" } else { "host" };
        let figures = ["origin", "repeat", "throughput_bps", "efficiency", "efficiency_unit"];
        writer.write_record(knobs.chain(figures).chain(Sample::FEATURES))?;
        for row in &self.rows {
            let RowOutcome::Measured(sample) = row.outcome else { continue };
            let (efficiency, unit) = sample.efficiency();
            let values = self.header.space.values(&row.cell).into_iter().map(str::to_owned);
            let figures = [
                origin.to_owned(),
                row.repeat.to_string(),
                format!("{:.0}", sample.throughput_bps()),
                efficiency.to_string(),
                unit.words().to_owned(),
            ];
            let features = sample.features().into_iter().map(|feature| feature.to_string());
            writer.write_record(values.chain(figures).chain(features))?;
        }
        writer.flush()?;
        Ok(())
    }
}

fn parse(path: &Path, text: &str) -> Result<Table, TableError> {
    let bad = |line: usize, reason: String| TableError::BadLine { path: path.to_owned(), line, reason };
    let mut lines = text.lines().enumerate();
    let (_, first) = lines.next().ok_or_else(|| bad(1, "no header".to_owned()))?;
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    match serde_json::from_str::<Versioned>(first) {
        Ok(Versioned { version }) if version != TABLE_VERSION => {
            return Err(bad(
                1,
                format!("version {version} of the format; this program knows {TABLE_VERSION}"),
            ));
        }
        _ => {}
    }
    let header: TableHeader = serde_json::from_str(first).map_err(|error| bad(1, error.to_string()))?;
    if header.kind != KIND {
        return Err(bad(1, format!("{:?} is not {KIND:?}", header.kind)));
    }
    let mut table = Table::in_memory(header);
    for (n, line) in lines {
        let row: Row = serde_json::from_str(line).map_err(|error| bad(n + 1, error.to_string()))?;
        if !table.header.space.contains(&row.cell) {
            return Err(bad(n + 1, "a cell that the header's knobs do not have".to_owned()));
        }
        table.keep(row);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{Knob, Role};
    use ccplane_testing::fuzz::{Fuzz, JSON, words};

    fn header() -> TableHeader {
        let levels = vec!["1".to_owned(), "2".to_owned()];
        let knob = Knob { name: "a".into(), role: Role::Application, levels, default: 0 };
        let host = Host { kernel: "Linux".into(), ..Host::default() };
        let source = Source::Model { nodes: 2, cores_per_node: 4 };
        TableHeader::new(source, Space::new(vec![knob]).unwrap(), host)
    }

    fn row(level: usize, repeat: u32) -> Row {
        let sample = Sample { duration_us: 1_000_000, bytes: 125 * (level as u64 + 1), ..Sample::default() };
        Row { cell: Cell(vec![level]), repeat, outcome: RowOutcome::Measured(sample) }
    }

    /// Whatever byte the file ends at, the whole lines count and more can be added.
    #[test]
    fn a_file_cut_short_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        let mut table = Table::open(&path, header()).unwrap();
        table.append(vec![row(0, 0), row(1, 0)]).unwrap();
        let text = fs::read(&path).unwrap();
        let ends: Vec<usize> = (0..text.len()).filter(|n| text[*n] == b'\n').map(|n| n + 1).collect();
        for cut in (0..=text.len()).step_by(7).chain(ends.iter().copied()) {
            fs::write(&path, &text[..cut]).unwrap();
            let mut table = Table::open(&path, header()).unwrap();
            let rows = ends.iter().filter(|end| **end <= cut).count().saturating_sub(1);
            assert_eq!(table.rows().len(), rows, "{cut} bytes");
            assert_eq!(table.is_done(&Cell(vec![1]), 0), rows == 2);
            table.append(vec![row(1, 1)]).unwrap();
            assert_eq!(Table::read(&path).unwrap().rows().len(), rows + 1);
        }
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        drop(Table::open(&path, header()).unwrap());
        let other = TableHeader { seed: 7, ..header() };
        let error = Table::open(&path, other).unwrap_err();
        assert!(matches!(error, TableError::Other { what: "another seed", .. }), "{error}");
        let text = fs::read_to_string(&path).unwrap();
        for (bad, line) in [
            (text.replace("\"version\":1", "\"version\":2"), 1),
            (text.replace(KIND, "something"), 1),
            (format!("{text}{{}}\n"), 2),
            (format!("{text}{}\n", serde_json::to_string(&row(9, 0)).unwrap()), 2),
        ] {
            fs::write(&path, bad).unwrap();
            let error = Table::read(&path).unwrap_err();
            assert!(matches!(error, TableError::BadLine { line: found, .. } if found == line), "{error}");
        }
    }

    /// A table that was read is read as the same once it is written again, and all of its cells are of its space.
    #[test]
    fn a_table_that_is_read_is_written_as_the_same() {
        let written = |table: &Table| {
            let rows = table.rows.iter().map(|row| serde_json::to_string(row).unwrap() + "\n");
            serde_json::to_string(&table.header).unwrap() + "\n" + &rows.collect::<String>()
        };
        let mut table = Table::in_memory(header());
        table.append(vec![row(0, 0), row(1, 0)]).unwrap();
        let good = written(&table);
        let tokens = ["\n", "\"cell\":[0]", "\"repeat\":", "\"outcome\":", "\"failed\":", "\"default\":1"];
        let target =
            Fuzz::new("host-table", env!("CARGO_MANIFEST_DIR")).seeds([&good]).tokens(JSON).tokens(tokens);
        target.max_bytes(2048).max_kept_bytes(2048).run(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            match parse(Path::new("fuzz"), &text) {
                Ok(table) => {
                    assert!(table.rows.iter().all(|row| table.header.space.contains(&row.cell)));
                    let again = parse(Path::new("fuzz"), &written(&table)).unwrap();
                    assert_eq!((&again.header, &again.rows), (&table.header, &table.rows));
                    1 + table.rows.len().min(8) as u64
                }
                Err(TableError::BadLine { line, reason, .. }) => words(line, &reason),
                Err(error) => panic!("{error}"),
            }
        });
    }

    #[test]
    fn rows_become_csv() {
        let mut table = Table::in_memory(header());
        table.append(vec![row(1, 3)]).unwrap();
        let mut out = Vec::new();
        table.write_csv(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let mut lines = text.lines();
        assert!(lines.next().unwrap().starts_with("a,origin,repeat,throughput_bps,efficiency,"));
        assert!(lines.next().unwrap().starts_with("2,model,3,2000,"), "{text}");
    }
}
