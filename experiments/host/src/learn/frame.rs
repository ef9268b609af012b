//! Measurements as a plain table: the settings, the results, and the counters of the host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ccplane_files::{Bound, ReadError};

use crate::sample::Sample;
use crate::space::{Cell, Knob, Role, Space};
use crate::table::{Table, TableError};

/// The largest CSV file that is read, bytes.
pub const MAX_CSV_BYTES: u64 = 256 << 20;
const CSV: Bound = Bound { what: "a table of measurements", bytes: MAX_CSV_BYTES };
/// Columns of a CSV file, at most.
pub const MAX_COLUMNS: usize = 256;
/// Words in the names of columns that say what was set, where the user names none.
const INPUT_WORDS: [&str; 16] = [
    "usec",
    "frame",
    "core",
    "cpu",
    "affinity",
    "application",
    "interrupt",
    "flow",
    "queue",
    "ring",
    "mtu",
    "gro",
    "threaded",
    "offload",
    "irq",
    "rps",
];
/// Words in the names of columns that hold processors.
const PROCESSOR_WORDS: [&str; 7] = ["core", "cpu", "affinity", "application", "interrupt", "flow", "irq"];
/// Words in the names of columns that count something, so that they are neither.
const COUNTER_WORDS: [&str; 6] = [" per ", "_per_", "share", "rate", "percent", "utili"];

/// The kind of an input's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputKind {
    /// A processor's number; empty where none was chosen.
    Processor,
    /// A number whose size matters.
    Number,
    /// One of a few words.
    Word,
}

/// Something that was set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    pub name: String,
    pub kind: InputKind,
}

impl Input {
    /// Returns the knobs of a space as inputs.
    pub fn of_space(space: &Space) -> Vec<Input> {
        let input = |knob: &Knob| {
            let is_number = knob.levels.iter().all(|level| level.parse::<f64>().is_ok());
            let kind = match (&knob.role, is_number) {
                (Role::Settings(_), true) => InputKind::Number,
                (Role::Settings(_), false) => InputKind::Word,
                _ => InputKind::Processor,
            };
            Input { name: knob.name.clone(), kind }
        };
        space.knobs().iter().map(input).collect()
    }
}

/// One setting with what was measured under it.
#[derive(Clone, PartialEq, Debug)]
pub struct FrameRow {
    /// One value for each input.
    pub values: Vec<String>,
    pub throughput: f64,
    pub efficiency: f64,
    /// One number for each counter.
    pub counters: Vec<f64>,
}

/// Measurements of one host, one row a setting.
#[derive(Clone, PartialEq, Debug)]
pub struct Frame {
    /// The origin in words; a model is called one.
    pub origin: String,
    pub inputs: Vec<Input>,
    pub rows: Vec<FrameRow>,
    pub counters: Vec<String>,
    /// The processors by memory node; empty where they are not known.
    pub nodes: Vec<Vec<u32>>,
}

/// The columns of a CSV file that are not guessed from their names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CsvColumns {
    /// Columns that say what was set; empty: guessed.
    pub inputs: Vec<String>,
    pub throughput: Option<String>,
    pub efficiency: Option<String>,
    /// The processors by memory node.
    pub nodes: Vec<Vec<u32>>,
}

/// Reasons why measurements are not read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The file of measurements is none.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The CSV file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The text is no CSV.
    #[error("{}: {source}", path.display())]
    Csv { path: PathBuf, source: csv::Error },
    /// A column is not there.
    #[error("{}: no column is called {column:?}; there are {}", path.display(), found.join(", "))]
    NoColumn { path: PathBuf, column: String, found: Vec<String> },
    /// No column looks like this one.
    #[error("{}: which column is the {what}? Name it with --{what}; there are {}", path.display(), found.join(", "))]
    Unknown { path: PathBuf, what: &'static str, found: Vec<String> },
    /// A cell is no number where one is needed.
    #[error("{}:{line}: {column} is {value:?}, no number", path.display())]
    NoNumber { path: PathBuf, line: u64, column: String, value: String },
    /// More columns than are read.
    #[error("{}: {count} columns, at most {MAX_COLUMNS} are allowed", path.display())]
    Columns { path: PathBuf, count: usize },
}

impl Frame {
    /// Takes the measured cells of a table, each with the mean of its repeats.
    pub fn of_table(table: &Table) -> Frame {
        let space = &table.header.space;
        let mean = |samples: &[Sample], of: &dyn Fn(&Sample) -> f64| {
            samples.iter().map(of).sum::<f64>() / samples.len().max(1) as f64
        };
        let row = |(cell, samples): (Cell, Vec<Sample>)| FrameRow {
            values: space.values(&cell).into_iter().map(str::to_owned).collect(),
            throughput: mean(&samples, &Sample::throughput_bps),
            efficiency: mean(&samples, &|sample| sample.efficiency().0),
            counters: (0..Sample::FEATURES.len()).map(|n| mean(&samples, &|s| s.features()[n])).collect(),
        };
        Frame {
            origin: table.header.source.words(),
            inputs: Input::of_space(space),
            rows: table.by_cell().into_iter().map(row).collect(),
            counters: Sample::FEATURES.map(str::to_owned).to_vec(),
            nodes: table.header.nodes.clone(),
        }
    }

    /// Reads a file: one of ours, or CSV with a head line.
    ///
    /// # Errors
    /// The file cannot be read, or it is not clear what its columns are.
    pub fn read(path: &Path, columns: &CsvColumns) -> Result<Frame, FrameError> {
        if Table::is_one(path) {
            return Ok(Frame::of_table(&Table::read(path)?));
        }
        let text = ccplane_files::read_text(path, CSV)?;
        parse(path, &text, columns)
    }

    /// Takes the counters as inputs, too, behind those that were set.
    pub(super) fn with_counters_as_inputs(mut self) -> Frame {
        let input = |name: &String| Input { name: name.clone(), kind: InputKind::Number };
        self.inputs.extend(self.counters.iter().map(input));
        for row in &mut self.rows {
            row.values.extend(row.counters.iter().map(f64::to_string));
        }
        self
    }

    /// Returns the numbers of the inputs that are a device's microseconds and frames, if both are there.
    pub fn coalescing(&self) -> Option<(usize, usize)> {
        let of = |word: &str| {
            let is_it = |input: &Input| input.kind == InputKind::Number && input.name.contains(word);
            self.inputs.iter().position(is_it)
        };
        Some((of("usec")?, of("frame")?))
    }

    /// Returns the values of an input in ascending order, numbers by their size.
    pub fn levels(&self, input: usize) -> Vec<String> {
        let mut values: Vec<String> = self.rows.iter().map(|row| row.values[input].clone()).collect();
        let size = |text: &String| text.parse::<f64>().unwrap_or(-1.0);
        values.sort_by(|a, b| size(a).total_cmp(&size(b)).then_with(|| a.cmp(b)));
        values.dedup();
        values
    }
}

fn parse(path: &Path, text: &str, columns: &CsvColumns) -> Result<Frame, FrameError> {
    let failed = |source| FrameError::Csv { path: path.to_owned(), source };
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let heads: Vec<String> = reader.headers().map_err(failed)?.iter().map(str::to_owned).collect();
    if heads.len() > MAX_COLUMNS {
        return Err(FrameError::Columns { path: path.to_owned(), count: heads.len() });
    }
    let named = |name: &String| {
        heads.iter().position(|head| head == name).ok_or_else(|| FrameError::NoColumn {
            path: path.to_owned(),
            column: name.clone(),
            found: heads.clone(),
        })
    };
    let target = |given: &Option<String>, what: &'static str, words: &[&str]| match given {
        Some(name) => named(name),
        None => heads
            .iter()
            .position(|head| words.iter().any(|word| head.to_lowercase().contains(word)))
            .ok_or_else(|| FrameError::Unknown { path: path.to_owned(), what, found: heads.clone() }),
    };
    let throughput =
        target(&columns.throughput, "throughput", &["throughput", "gbps", "gb/s", "mbps", "bps"])?;
    let of_efficiency = ["efficiency", "bytes_per_instruction", "bytes/instruction", "bytes per instruction"];
    let efficiency = target(&columns.efficiency, "efficiency", &of_efficiency)?;
    let has = |head: &str, words: &[&str]| words.iter().any(|word| head.to_lowercase().contains(word));
    let inputs: Vec<usize> = if columns.inputs.is_empty() {
        let is_input = |n: &usize| {
            ![throughput, efficiency].contains(n)
                && has(&heads[*n], &INPUT_WORDS)
                && !has(&heads[*n], &COUNTER_WORDS)
        };
        (0..heads.len()).filter(is_input).collect()
    } else {
        columns.inputs.iter().map(named).collect::<Result<_, _>>()?
    };
    if inputs.is_empty() {
        return Err(FrameError::Unknown { path: path.to_owned(), what: "input", found: heads.clone() });
    }
    let records: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>().map_err(failed)?;
    let number = |record: &csv::StringRecord, column: usize| {
        let value = record.get(column).unwrap_or_default();
        value.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(|| FrameError::NoNumber {
            path: path.to_owned(),
            line: record.position().map_or(0, csv::Position::line),
            column: heads[column].clone(),
            value: value.to_owned(),
        })
    };
    let is_number = |column: usize| {
        records.iter().all(|record| record.get(column).is_some_and(|value| value.parse::<f64>().is_ok()))
    };
    // What is a number everywhere and neither set nor wanted is a counter; texts beside them say nothing that can be learned.
    let is_counter =
        |n: &usize| ![throughput, efficiency].contains(n) && !inputs.contains(n) && is_number(*n);
    let counters: Vec<usize> = (0..heads.len()).filter(is_counter).collect();
    let mut settings: BTreeMap<Vec<String>, Vec<FrameRow>> = BTreeMap::new();
    for record in &records {
        let values: Vec<String> =
            inputs.iter().map(|n| record.get(*n).unwrap_or_default().to_owned()).collect();
        let row = FrameRow {
            values: values.clone(),
            throughput: number(record, throughput)?,
            efficiency: number(record, efficiency)?,
            counters: counters.iter().map(|n| number(record, *n)).collect::<Result<_, _>>()?,
        };
        settings.entry(values).or_default().push(row);
    }
    let kind = |column: usize| match (has(&heads[column], &PROCESSOR_WORDS), is_number(column)) {
        (true, _) => InputKind::Processor,
        (false, true) => InputKind::Number,
        (false, false) => InputKind::Word,
    };
    Ok(Frame {
        origin: format!("read from {}", path.display()),
        inputs: inputs.iter().map(|n| Input { name: heads[*n].clone(), kind: kind(*n) }).collect(),
        rows: settings.into_values().map(|rows| mean_row(&rows)).collect(),
        counters: counters.iter().map(|n| heads[*n].clone()).collect(),
        nodes: columns.nodes.clone(),
    })
}

/// Several measurements of one setting as one.
fn mean_row(rows: &[FrameRow]) -> FrameRow {
    // Divided first: sums of large numbers are infinite.
    let mean =
        |of: &dyn Fn(&FrameRow) -> f64| rows.iter().map(|row| of(row) / rows.len() as f64).sum::<f64>();
    let first = rows.first();
    FrameRow {
        values: first.map(|row| row.values.clone()).unwrap_or_default(),
        throughput: mean(&|row| row.throughput),
        efficiency: mean(&|row| row.efficiency),
        counters: (0..first.map_or(0, |row| row.counters.len()))
            .map(|n| mean(&|row| row.counters[n]))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_testing::fuzz::{Fuzz, shape};

    const CSV_TEXT: &str = "app_core,irq_core,rx-usecs,rx-frames,note,throughput_gbps,bytes_per_instruction,llc_misses\n\
                        1, 0, 8, 32, a, 10.0, 1.5, 7\n1, 0, 8, 32, b, 12.0, 1.7, 9\n2,0,16,32,c,20,2,3\n";

    fn read(text: &str, columns: &CsvColumns) -> Result<Frame, FrameError> {
        parse(Path::new("t.csv"), text, columns)
    }

    #[test]
    fn columns_are_told_by_their_names() {
        let frame = read(CSV_TEXT, &CsvColumns::default()).unwrap();
        let kinds: Vec<(&str, InputKind)> = frame.inputs.iter().map(|i| (i.name.as_str(), i.kind)).collect();
        assert_eq!(
            kinds,
            [
                ("app_core", InputKind::Processor),
                ("irq_core", InputKind::Processor),
                ("rx-usecs", InputKind::Number),
                ("rx-frames", InputKind::Number)
            ]
        );
        assert_eq!((frame.counters.as_slice(), frame.rows.len()), (&["llc_misses".to_owned()][..], 2));
        assert_eq!((frame.rows[0].throughput, frame.rows[0].counters[0]), (11.0, 8.0));
        assert_eq!((frame.coalescing(), frame.levels(2)), (Some((2, 3)), vec!["8".into(), "16".into()]));
    }

    /// Whatever is in a file, each row has a value for each input, and finite numbers.
    #[test]
    fn rows_of_any_csv_have_a_value_for_each_input_and_finite_numbers() {
        let target = Fuzz::new("host-csv", env!("CARGO_MANIFEST_DIR")).seeds([CSV_TEXT]).tokens([
            ",",
            "\n",
            "\"",
            "throughput",
            "efficiency",
            "core",
            "rx-usecs",
            "nan",
            "1e999",
            "-1",
            " per ",
        ]);
        target.max_bytes(512).run(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            match read(&text, &CsvColumns::default()) {
                Ok(frame) => {
                    for row in &frame.rows {
                        assert_eq!(
                            (row.values.len(), row.counters.len()),
                            (frame.inputs.len(), frame.counters.len())
                        );
                        assert!(row.throughput.is_finite() && row.efficiency.is_finite());
                    }
                    1 + (frame.rows.len().min(4) * 64
                        + frame.inputs.len().min(7) * 8
                        + frame.counters.len().min(7)) as u64
                }
                Err(error) => shape(&error),
            }
        });
    }

    #[test]
    fn columns_may_be_named() {
        let columns = CsvColumns {
            inputs: vec!["note".into()],
            throughput: Some("llc_misses".into()),
            ..CsvColumns::default()
        };
        let frame = read(CSV_TEXT, &columns).unwrap();
        assert_eq!((frame.inputs[0].kind, frame.rows.len()), (InputKind::Word, 3));
        let wrong = CsvColumns { throughput: Some("nothing".into()), ..CsvColumns::default() };
        assert!(matches!(read(CSV_TEXT, &wrong), Err(FrameError::NoColumn { .. })));
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let none = CsvColumns::default();
        for text in ["", "a,b\n1,2\n", "throughput,efficiency\n1,2\n"] {
            assert!(matches!(read(text, &none), Err(FrameError::Unknown { .. })), "{text}");
        }
        let short = format!("{CSV_TEXT}1,2\n");
        assert!(matches!(read(&short, &none), Err(FrameError::Csv { .. })));
        let word = CSV_TEXT.replace("20,2,3", "fast,2,3");
        let error = read(&word, &none).unwrap_err();
        assert_eq!(error.to_string(), "t.csv:4: throughput_gbps is \"fast\", no number");
        let wide = (0..=MAX_COLUMNS).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        assert!(matches!(read(&wide, &none), Err(FrameError::Columns { .. })));
    }
}
