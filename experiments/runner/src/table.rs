//! Flows while they run: a table redrawn in place on a terminal, a block of plain lines every second elsewhere.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::time::Duration;

use crate::tcp_info::{CaState, TcpInfo};

/// Throughput samples that a row's sparkline shows.
const SPARK: usize = 24;
/// Levels of a sparkline, from none to the most of any flow.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const SPARK_HEADER: &str = "Mb/s, latest";
/// Time between blocks of plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(1);

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const YELLOW: &str = "\x1b[33m";
const RESET: &str = "\x1b[0m";

/// One flow at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// Its name; unique in the table.
    pub flow: String,
    /// The name of what decides for the flow, such as "native" or a program's name.
    pub steered_by: String,
    pub info: TcpInfo,
    /// Payload delivered since the draw before, bits per second.
    pub throughput_bps: u64,
    /// Reports that the agent received; `None` without an agent.
    pub reports: Option<u64>,
    /// Saturations and divisions by zero in its programs; `None` without an agent.
    pub faults: Option<u64>,
}

/// The ways in which a table is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// A table that is redrawn in place and cut to the width of the terminal.
    Redraw {
        columns: u16,
        /// Whether to use colours.
        colour: bool,
    },
    /// Plain lines, at most once a second.
    Lines,
}

impl Style {
    /// Returns the style for a terminal of this width, or plain lines without one; `NO_COLOR` turns colours off.
    #[must_use]
    pub fn of(columns: Option<usize>) -> Self {
        match columns.and_then(|columns| u16::try_from(columns).ok()) {
            Some(columns) => {
                Self::Redraw { columns, colour: std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) }
            }
            None => Self::Lines,
        }
    }
}

/// A table of flows, drawn again and again.
#[derive(Debug)]
pub struct Table {
    style: Style,
    history: HashMap<String, VecDeque<u64>>,
    lines_drawn: usize,
    next_plain: Duration,
}

impl Table {
    /// Nothing is drawn yet.
    #[must_use]
    pub fn new(style: Style) -> Self {
        Self { style, history: HashMap::new(), lines_drawn: 0, next_plain: Duration::ZERO }
    }

    /// Shows the flows as they are at `elapsed`; `caption` says what the link does.
    ///
    /// # Errors
    /// Whatever `out` says.
    pub fn draw(
        &mut self,
        out: &mut dyn Write,
        elapsed: Duration,
        caption: &str,
        rows: &[Row],
    ) -> std::io::Result<()> {
        for row in rows {
            let history = self.history.entry(row.flow.clone()).or_default();
            history.push_back(row.throughput_bps);
            if history.len() > SPARK {
                history.pop_front();
            }
        }
        let title = format!("{:5.1} s  {caption}", elapsed.as_secs_f64());
        match self.style {
            Style::Redraw { columns, colour } => self.redraw(out, (columns.into(), colour), &title, rows),
            Style::Lines if elapsed >= self.next_plain => {
                self.next_plain = elapsed + PLAIN_EVERY;
                writeln!(out, "{title}\n{}", header())?;
                rows.iter().try_for_each(|row| writeln!(out, "{}", cells(row).trim_end()))?;
                out.flush()
            }
            Style::Lines => Ok(()),
        }
    }

    fn redraw(
        &mut self,
        out: &mut dyn Write,
        (columns, colour): (usize, bool),
        title: &str,
        rows: &[Row],
    ) -> std::io::Result<()> {
        let most = self.history.values().flatten().copied().max().unwrap_or(0);
        let mut lines = vec![
            styled(colour, BOLD, &cut(title, columns)),
            styled(colour, DIM, &cut(&format!("{} {SPARK_HEADER}", header()), columns)),
        ];
        for row in rows {
            let text = format!("{} {}", cells(row), sparkline(self.history.get(&row.flow), most));
            let mark =
                if matches!(row.info.ca_state, CaState::Recovery | CaState::Loss) { YELLOW } else { "" };
            lines.push(styled(colour, mark, &cut(text.trim_end(), columns)));
        }
        let mut frame = String::new();
        if self.lines_drawn > 0 {
            frame.push_str(&format!("\x1b[{}F", self.lines_drawn));
        }
        for line in &lines {
            frame.push_str(line);
            // Clears what the frame before left to the right.
            frame.push_str("\x1b[K\n");
        }
        // Clears rows of flows that are gone.
        frame.push_str("\x1b[J");
        self.lines_drawn = lines.len();
        out.write_all(frame.as_bytes())?;
        out.flush()
    }
}

fn header() -> String {
    format!(
        "{:<22} {:<16} {:<8} {:>6} {:>8} {:>13} {:>7} {:>7} {:>7} {:>7} {:>8} {:>6}",
        "flow",
        "steered by",
        "state",
        "cwnd",
        "ssthresh",
        "rtt/var ms",
        "min ms",
        "Mb/s",
        "pacing",
        "retrans",
        "reports",
        "faults",
    )
}

fn cells(row: &Row) -> String {
    let info = &row.info;
    let ms = |us: u32| f64::from(us) / 1e3;
    let or_dash = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let min_rtt =
        if info.min_rtt_us == u32::MAX { "-".to_owned() } else { format!("{:.1}", ms(info.min_rtt_us)) };
    let pacing = if info.pacing_rate == u64::MAX {
        "-".to_owned()
    } else {
        format!("{:.1}", info.pacing_rate as f64 * 8e-6)
    };
    format!(
        "{:<22} {:<16} {:<8} {:>6} {:>8} {:>13} {:>7} {:>7.1} {:>7} {:>7} {:>8} {:>6}",
        cut(&row.flow, 22),
        cut(&row.steered_by, 16),
        info.ca_state.name(),
        info.snd_cwnd,
        or_dash(info.ssthresh().map(u64::from)),
        format!("{:.1}/{:.1}", ms(info.rtt_us), ms(info.rttvar_us)),
        min_rtt,
        row.throughput_bps as f64 / 1e6,
        pacing,
        info.total_retrans,
        or_dash(row.reports),
        or_dash(row.faults),
    )
}

fn sparkline(history: Option<&VecDeque<u64>>, most: u64) -> String {
    let top = LEVELS.len() - 1;
    let level = |v: &u64| {
        let share = if most == 0 { 0.0 } else { *v as f64 / most as f64 };
        LEVELS[((share * top as f64).round() as usize).min(top)]
    };
    history.into_iter().flatten().map(level).collect()
}

/// The first `columns` characters; control characters become blanks, so that a name cannot move the cursor.
fn cut(text: &str, columns: usize) -> String {
    text.chars().take(columns).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn styled(colour: bool, code: &str, text: &str) -> String {
    if colour && !code.is_empty() { format!("{code}{text}{RESET}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(flow: &str, throughput_bps: u64) -> Row {
        let info = TcpInfo {
            snd_cwnd: 80,
            snd_ssthresh: ccplane_contract::INFINITE_SSTHRESH,
            rtt_us: 41_200,
            rttvar_us: 3_100,
            min_rtt_us: 40_050,
            pacing_rate: 3_437_500,
            total_retrans: 12,
            ..TcpInfo::default()
        };
        Row {
            flow: flow.into(),
            steered_by: "native".into(),
            info,
            throughput_bps,
            reports: None,
            faults: Some(0),
        }
    }

    #[test]
    fn plain_lines_once_a_second() {
        let (mut out, mut table) = (Vec::new(), Table::new(Style::Lines));
        for tick in 0..=10 {
            let elapsed = Duration::from_millis(tick * 100);
            table.draw(&mut out, elapsed, "fixed", &[row("reno", 22_900_000)]).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        let golden = "  0.0 s  fixed
flow                   steered by       state      cwnd ssthresh    rtt/var ms  min ms    Mb/s  pacing retrans  reports faults
reno                   native           open         80        -      41.2/3.1    40.0    22.9    27.5      12        -      0
  1.0 s  fixed
flow                   steered by       state      cwnd ssthresh    rtt/var ms  min ms    Mb/s  pacing retrans  reports faults
reno                   native           open         80        -      41.2/3.1    40.0    22.9    27.5      12        -      0
";
        assert_eq!(text, golden);
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn redraws_in_place_and_fits_the_width() {
        let (mut out, mut table) = (Vec::new(), Table::new(Style::Redraw { columns: 60, colour: false }));
        table.draw(&mut out, Duration::ZERO, "fixed", &[row("a", 1), row("b\x1b[2J", 2)]).unwrap();
        table.draw(&mut out, Duration::from_millis(100), "fixed", &[row("a", 1)]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("\x1b[4F").count(), 1, "back over title, header and two rows");
        assert!(!text.contains("\x1b[2J"), "a name cannot write control sequences");
        for line in text.lines() {
            let shown = line.replace("\x1b[K", "").replace("\x1b[J", "").replace("\x1b[4F", "");
            assert!(shown.chars().count() <= 60, "{shown}");
        }
    }

    #[test]
    fn sparklines_share_their_scale_and_are_bounded() {
        let (mut out, mut table) = (Vec::new(), Table::new(Style::Redraw { columns: 400, colour: true }));
        for _ in 0..100 {
            table.draw(&mut out, Duration::ZERO, "", &[row("a", 10), row("b", 5), row("c", 0)]).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        let last =
            |c: char| text.rsplit('\n').nth(c as usize - 'a' as usize).unwrap().matches(LEVELS).count();
        assert!(text.ends_with("\x1b[J"));
        assert_eq!([last('b'), last('c'), last('d')], [SPARK; 3]);
        assert!(text.contains(&"█".repeat(SPARK)) && text.contains(&"▁".repeat(SPARK)));
    }

    #[test]
    fn no_flow_has_a_level_without_a_most() {
        assert_eq!(sparkline(Some(&VecDeque::from([0, 0])), 0), "▁▁");
        assert_eq!(sparkline(Some(&VecDeque::from([u64::MAX])), u64::MAX), "█");
        assert_eq!(sparkline(None, 7), "");
    }
}
