//! The progress of the runs: a bar redrawn in place on a terminal, a line a run elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Stderr, Write};
use std::time::{Duration, Instant};

use crate::table::{Row, Style, Table};

const BAR: &str = "{bar:24} {wide_msg}";
/// The parts of a run that the bar tells apart.
const PARTS: u64 = 1000;
/// The most drawings in a second.
const DRAWINGS_PER_S: u8 = 5;
/// Lines that a table of flows has beside theirs.
const TABLE_HEAD: usize = 3;
/// A run in the kernel takes so much longer than its time, before any was timed.
const OVERHEAD: Duration = Duration::from_millis(500);

/// The place and form in which progress is shown.
pub struct Progress<W> {
    out: W,
    /// Hidden where there is no terminal.
    bar: ProgressBar,
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
        let target = match size {
            Some(_) => ProgressDrawTarget::stderr_with_hz(DRAWINGS_PER_S),
            None => ProgressDrawTarget::hidden(),
        };
        Progress { lines, ..Progress::on(out, target, size.map(|(columns, _)| columns.0.into())) }
    }
}

impl<W: Write> Progress<W> {
    /// Creates a display of plain lines on `out`.
    pub fn new(out: W) -> Progress<W> {
        Progress::on(out, ProgressDrawTarget::hidden(), None)
    }

    /// Creates a display of lines on `out` and of a bar on `target`; `columns` is the width of `out` if it is a terminal.
    fn on(out: W, target: ProgressDrawTarget, columns: Option<usize>) -> Progress<W> {
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template(BAR).map(|style| style.progress_chars("█░"));
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        // Lines come before the first run, and no bar with them.
        bar.finish_and_clear();
        Progress {
            out,
            bar,
            columns,
            lines: usize::MAX,
            table: None,
            total: 0,
            done: 0,
            left: Duration::ZERO,
            current: None,
        }
    }

    /// Gives the output back.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// One line of text, above the bar.
    pub(super) fn say(&mut self, text: &str) {
        // A closed standard error is no failure.
        let _ = self.bar.suspend(|| writeln!(self.out, "{text}"));
    }

    pub(super) fn begin(&mut self, total: u64, done: u64) {
        (self.total, self.done) = (total, done);
    }

    /// A run starts. `left`: what it and those after it will take.
    pub(super) fn run(&mut self, label: String, expected: Duration, left: Duration) {
        self.left = left;
        self.table = None;
        self.current = Some(Current { label, begun: Instant::now(), expected });
    }

    /// Draws the runs' flows as they are after `elapsed`, or the bar if no flows are shown.
    pub(super) fn draw(&mut self, elapsed: Duration, rows: &[Row]) {
        if !rows.is_empty() {
            return self.draw_flows(elapsed, rows);
        }
        let (Some(current), None) = (&self.current, &self.table) else { return };
        if self.bar.is_hidden() {
            return;
        }
        let elapsed = current.begun.elapsed().min(current.expected);
        let part = elapsed.as_secs_f64() / current.expected.as_secs_f64().max(0.001);
        let left = time(self.left.saturating_sub(elapsed));
        self.bar.set_message(format!("{}/{}  {left} left  {}", self.done, self.total, current.label));
        if self.bar.is_finished() {
            self.bar.reset();
        }
        self.bar.update(|state| {
            state.set_len(self.total * PARTS);
            state.set_pos(self.done * PARTS + (part * PARTS as f64) as u64);
        });
    }

    fn draw_flows(&mut self, elapsed: Duration, rows: &[Row]) {
        let Some(current) = &self.current else { return };
        if !self.bar.is_finished() {
            self.bar.finish_and_clear();
        }
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
        self.bar.finish_and_clear();
    }
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
    use indicatif::InMemoryTerm;

    fn on(terminal: &InMemoryTerm) -> Progress<Vec<u8>> {
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        Progress::on(Vec::new(), target, Some(80))
    }

    #[test]
    fn times_are_in_two_units_at_most() {
        assert_eq!(time(Duration::from_millis(100)), "1 s");
        assert_eq!(time(Duration::from_secs(200)), "3 min 20 s");
        assert_eq!(time(Duration::from_secs(7500)), "2 h 5 min");
    }

    #[test]
    fn lines_where_there_is_no_terminal() {
        let mut progress = Progress::new(Vec::new());
        progress.begin(4, 1);
        progress.run("reno kernel".into(), Duration::from_secs(10), Duration::from_secs(30));
        progress.draw(Duration::ZERO, &[]);
        progress.ran("reno kernel", true, "24.0 Mb/s");
        let text = String::from_utf8(progress.into_inner()).unwrap();
        assert_eq!(text, "2/4 reno kernel: 24.0 Mb/s; 20 s left\n");
    }

    #[test]
    fn flows_that_are_shown_take_the_bars_place() {
        let terminal = InMemoryTerm::new(4, 80);
        let shown = |mut progress: Progress<Vec<u8>>| {
            progress.begin(1, 0);
            progress.run("a link".into(), Duration::from_secs(10), Duration::from_secs(10));
            let row = Row { flow: "a flow".into(), ..Row::default() };
            progress.draw(Duration::from_secs(1), &[row]);
            progress.draw(Duration::from_secs(1), &[]);
            String::from_utf8(progress.into_inner()).unwrap()
        };
        let (plain, redrawn) = (shown(Progress::new(Vec::new())), shown(on(&terminal)));
        for text in [&plain, &redrawn] {
            assert!(text.contains("1.0 s  a link") && text.contains("a flow"), "{text}");
        }
        assert!(!plain.contains('\x1b') && redrawn.contains("\x1b[K"));
        assert_eq!(terminal.contents(), "");
    }

    #[test]
    fn a_terminal_gets_a_bar_and_failures_stay() {
        let terminal = InMemoryTerm::new(4, 80);
        let mut progress = on(&terminal);
        progress.begin(10, 5);
        progress.say("5 of 10 runs are there");
        assert_eq!(terminal.contents(), "");
        // A run of no length leaves the clock out of what is shown.
        progress.run("reno".into(), Duration::ZERO, Duration::from_secs(9));
        progress.draw(Duration::ZERO, &[]);
        let bar = "████████████░░░░░░░░░░░░ 5/10  9 s left  reno";
        assert_eq!(terminal.contents(), bar);
        progress.ran("reno", false, "failed: no route");
        assert_eq!(terminal.contents(), bar);
        progress.end();
        assert_eq!(terminal.contents(), "");
        let text = String::from_utf8(progress.into_inner()).unwrap();
        assert_eq!(text, "5 of 10 runs are there\n5/10 reno: failed: no route; 9 s left\n");
    }
}
