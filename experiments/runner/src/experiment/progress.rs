//! The progress of the runs: a bar redrawn in place on a terminal, a line a run elsewhere.

use std::io::{IsTerminal, Stderr, Write};
use std::time::{Duration, Instant};

use crate::table::{Row, Style, Table};

/// Columns of the bar itself.
const BAR: usize = 24;
/// The time between two drawings.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// Lines that a table of flows has beside theirs.
const TABLE_HEAD: usize = 3;
/// A run in the kernel takes so much longer than its time, before any was timed.
const OVERHEAD: Duration = Duration::from_millis(500);

/// The place and form in which progress is shown.
pub struct Progress<W> {
    out: W,
    /// Columns of the terminal; `None`: plain lines.
    columns: Option<usize>,
    /// The height of the terminal, lines.
    lines: usize,
    /// The flows of runs that are shown.
    table: Option<Table>,
    /// Runs in all, those done, and those done before.
    total: u64,
    done: u64,
    /// Time that the runs still to be done are expected to take, the current one included.
    left: Duration,
    current: Option<Current>,
    next_draw: Instant,
}

struct Current {
    label: String,
    begun: Instant,
    expected: Duration,
}

impl Progress<Stderr> {
    /// On standard error: standard output is for results.
    #[must_use]
    pub fn stderr() -> Progress<Stderr> {
        let out = std::io::stderr();
        let size = if out.is_terminal() { terminal_size::terminal_size_of(&out) } else { None };
        let lines = size.map_or(0, |(_, lines)| lines.0.into());
        Progress { lines, ..Progress::new(out, size.map(|(columns, _)| columns.0.into())) }
    }
}

impl<W: Write> Progress<W> {
    /// Creates a display on `out`; `columns` is its width if it is a terminal.
    pub fn new(out: W, columns: Option<usize>) -> Progress<W> {
        Progress {
            out,
            columns,
            lines: usize::MAX,
            table: None,
            total: 0,
            done: 0,
            left: Duration::ZERO,
            current: None,
            next_draw: Instant::now(),
        }
    }

    /// Gives the output back.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// One line of text, above the bar.
    pub(super) fn say(&mut self, text: &str) {
        let clear = if self.columns.is_some() { "\r\x1b[K" } else { "" };
        // A closed standard error is no failure.
        let _ = writeln!(self.out, "{clear}{text}");
        self.next_draw = Instant::now();
    }

    pub(super) fn begin(&mut self, total: u64, done: u64) {
        (self.total, self.done) = (total, done);
    }

    /// A run starts. `left`: what it and those after it will take.
    pub(super) fn run(&mut self, label: String, expected: Duration, left: Duration) {
        self.left = left;
        self.table = None;
        self.current = Some(Current { label, begun: Instant::now(), expected });
        self.next_draw = Instant::now();
    }

    /// Draws the runs' flows as they are after `elapsed`, or the bar if it is time to and no flows are shown.
    pub(super) fn draw(&mut self, elapsed: Duration, rows: &[Row]) {
        if !rows.is_empty() {
            return self.draw_flows(elapsed, rows);
        }
        let (Some(columns), Some(current)) = (self.columns, &self.current) else { return };
        if Instant::now() < self.next_draw || self.table.is_some() {
            return;
        }
        self.next_draw = Instant::now() + DRAW_EVERY;
        let elapsed = current.begun.elapsed().min(current.expected);
        let part = elapsed.as_secs_f64() / current.expected.as_secs_f64().max(0.001);
        let line = bar(self.done, self.total, part, self.left.saturating_sub(elapsed), &current.label);
        let cut: String = line.chars().take(columns.saturating_sub(1)).collect();
        let _ = write!(self.out, "\r{cut}\x1b[K");
        let _ = self.out.flush();
    }

    fn draw_flows(&mut self, elapsed: Duration, rows: &[Row]) {
        let Some(current) = &self.current else { return };
        let style = Style::of(self.columns.filter(|_| self.lines > rows.len() + TABLE_HEAD));
        let table = self.table.get_or_insert_with(|| Table::new(style));
        // A closed standard error is no failure.
        let _ = table.draw(&mut self.out, elapsed, &current.label, rows);
    }

    /// A run has ended, and what came of it.
    pub(super) fn ran(&mut self, label: &str, counts: bool, outcome: &str) {
        self.done += u64::from(counts);
        let Some(current) = &self.current else { return };
        let left = self.left.saturating_sub(current.expected);
        let line = format!("{}/{} {label}: {outcome}; {} left", self.done, self.total, time(left));
        if self.columns.is_none() || outcome.starts_with("failed") {
            self.say(&line);
        }
    }

    /// Leaves the terminal as it was.
    pub(super) fn end(&mut self) {
        self.current = None;
        if self.columns.is_some() {
            let _ = write!(self.out, "\r\x1b[K");
            let _ = self.out.flush();
        }
    }
}

fn bar(done: u64, total: u64, part: f64, left: Duration, label: &str) -> String {
    let share = (done as f64 + part) / total.max(1) as f64;
    let full = ((share * BAR as f64) as usize).min(BAR);
    format!("{}{} {done}/{total}  {} left  {label}", "█".repeat(full), "░".repeat(BAR - full), time(left))
}

/// "45 s", "3 min 20 s", "2 h 5 min".
pub(super) fn time(time: Duration) -> String {
    let s = time.as_secs_f64().ceil() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

/// The durations of runs so far, from which those to come are estimated.
#[derive(Default)]
pub(super) struct Estimate {
    live: (Duration, u32),
    simulated: (Duration, u32),
}

impl Estimate {
    pub(super) fn add(&mut self, simulated: bool, took: Duration) {
        let of = if simulated { &mut self.simulated } else { &mut self.live };
        of.0 += took;
        of.1 += 1;
    }

    /// `length`: of a run's virtual or real time.
    pub(super) fn of(&self, simulated: bool, length: Duration) -> Duration {
        match (simulated, self.simulated, self.live) {
            (true, (sum, n), _) if n > 0 => sum / n,
            (false, _, (sum, n)) if n > 0 => sum / n,
            (true, ..) => length / 10,
            (false, ..) => length + OVERHEAD,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_bars() {
        assert_eq!(time(Duration::from_millis(100)), "1 s");
        assert_eq!(time(Duration::from_secs(200)), "3 min 20 s");
        assert_eq!(time(Duration::from_secs(7500)), "2 h 5 min");
        let shown = bar(5, 10, 0.5, Duration::from_secs(9), "reno");
        assert_eq!(shown, "█████████████░░░░░░░░░░░ 5/10  9 s left  reno");
    }

    #[test]
    fn lines_where_there_is_no_terminal() {
        let mut progress = Progress::new(Vec::new(), None);
        progress.begin(4, 1);
        progress.run("reno kernel".into(), Duration::from_secs(10), Duration::from_secs(30));
        progress.draw(Duration::ZERO, &[]);
        progress.ran("reno kernel", true, "24.0 Mb/s");
        let text = String::from_utf8(progress.into_inner()).unwrap();
        assert_eq!(text, "2/4 reno kernel: 24.0 Mb/s; 20 s left\n");
    }

    #[test]
    fn flows_that_are_shown_take_the_bars_place() {
        let shown = |columns: Option<usize>| {
            let mut progress = Progress::new(Vec::new(), columns);
            progress.begin(1, 0);
            progress.run("a link".into(), Duration::from_secs(10), Duration::from_secs(10));
            let row = Row { flow: "a flow".into(), ..Row::default() };
            progress.draw(Duration::from_secs(1), &[row]);
            progress.draw(Duration::from_secs(1), &[]);
            String::from_utf8(progress.into_inner()).unwrap()
        };
        let (plain, terminal) = (shown(None), shown(Some(80)));
        for text in [&plain, &terminal] {
            assert!(text.contains("1.0 s  a link") && text.contains("a flow"), "{text}");
        }
        assert!(!plain.contains('\x1b') && terminal.contains("\x1b[K") && !terminal.contains('░'));
    }

    #[test]
    fn a_terminal_gets_one_line_and_failures_stay() {
        let mut progress = Progress::new(Vec::new(), Some(40));
        progress.begin(2, 0);
        progress.run("a".into(), Duration::from_secs(1), Duration::from_secs(2));
        progress.draw(Duration::ZERO, &[]);
        progress.ran("a", false, "failed: no route");
        progress.end();
        let text = String::from_utf8(progress.into_inner()).unwrap();
        assert!(text.starts_with("\r░") && text.contains("\r\x1b[K0/2 a: failed: no route; 1 s left\n"));
        assert!(text.ends_with("\r\x1b[K"));
    }
}
