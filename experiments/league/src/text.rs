//! The table, the heat map and the worst links, for a terminal.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, presets};

use crate::error::LeagueError;
use crate::link::FamilyLink;
use crate::score::{FIGURES, Figure, Standing, Table, percent, two};

/// The number of spaces between two columns.
const COLUMN_GAP: u16 = 2;

/// A column of the table: its heading, and an algorithm's figure.
type Column = (&'static str, fn(&Standing) -> String);

/// The columns of the table after the algorithm's name.
const COLUMNS: [Column; 11] = [
    ("links", |s| s.links.to_string()),
    ("won %", |s| percent(Some(s.won))),
    ("undom %", |s| percent(Some(s.undominated))),
    ("score", |s| two(Some(s.mean_score))),
    ("low", |s| two(Some(s.low_score))),
    ("share", |s| two(s.fair_share)),
    ("fair %", |s| percent(s.fair)),
    ("least", |s| two(s.least_share)),
    ("jain", |s| two(s.jain)),
    ("loss %", |s| two(Some(s.loss * 100.0))),
    ("settle s", |s| two(s.settled_s)),
];

/// One line for each algorithm.
#[must_use]
pub fn table(table: &Table) -> String {
    let row = |(name, standing): &(String, Standing)| -> Vec<String> {
        let figures = COLUMNS.iter().map(|(_, shown)| shown(standing));
        [name.clone()].into_iter().chain(figures).collect()
    };
    let header = ["algorithm"].into_iter().chain(COLUMNS.iter().map(|(name, _)| *name));
    columns(header.map(str::to_owned).collect(), table.total.iter().map(row).collect())
}

/// The figures that are wanted in the league as a whole, with a column for each algorithm.
#[must_use]
pub fn summary(table: &Table) -> String {
    let row = |figure: &Figure| -> Vec<String> {
        let of_all = table.summary.iter().map(|(_, summary)| (figure.shown)(summary));
        [figure.name.to_owned(), figure.wanted.to_owned()].into_iter().chain(of_all).collect()
    };
    let names = table.summary.iter().map(|(name, _)| name.clone());
    let header = ["summary".to_owned(), "wanted".to_owned()].into_iter().chain(names);
    columns(header.collect(), FIGURES.iter().map(row).collect())
}

/// Mean score over the best, in hundredths, by family and algorithm.
#[must_use]
pub fn heat(table: &Table) -> String {
    let names = || table.total.iter().map(|(name, _)| name);
    let rows = table.families.iter().map(|(family, standings)| -> Vec<String> {
        let scores = names().map(|name| percent(standings.get(name).map(|s| s.mean_score)));
        [family.clone()].into_iter().chain(scores).collect()
    });
    let header = ["score, of 100".to_owned()].into_iter().chain(names().cloned());
    columns(header.collect(), rows.collect())
}

/// Formats rows under a header: the first column at the left, figures at the right.
pub(crate) fn columns(header: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    for (n, column) in table.column_iter_mut().enumerate() {
        if n == 0 {
            column.set_padding((0, 0));
        } else {
            column.set_padding((COLUMN_GAP, 0));
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{}\n", table.trim_fmt())
}

/// An algorithm's worst links, with the command of `program` that replays each; a test link has none.
#[must_use]
pub fn worst(table: &Table, algorithm: &str, program: &str) -> String {
    let mut text = String::new();
    for worst in table.worst.get(algorithm).into_iter().flatten() {
        let (link, best) = (&worst.link, &worst.best);
        let both = if best == algorithm { best.clone() } else { format!("{algorithm},{best}") };
        let replayed = match link.parse::<FamilyLink>() {
            Err(LeagueError::Sealed { .. }) => format!("{link}, which no command plays alone"),
            _ => format!("{program} league --link {link} --algorithm {both}"),
        };
        let _ = writeln!(text, "{:.2} of the score of {best}: {replayed}", worst.score);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::testing::cell;

    #[test]
    fn tables_align_and_figures_that_are_not_there_are_dashes() {
        let cells = [cell("steady/training/0", "a", 10, 10), cell("steady/training/0", "long-name", 5, 10)];
        let of = Table::new(&cells);
        assert_eq!(
            table(&of),
            "algorithm  links  won %  undom %  score   low  share  fair %  least  jain  loss %  settle s\n\
             a              1    100      100   1.00  1.00      -       -      -     -    0.00         -\n\
             long-name      1      0        0   0.25  0.25      -       -      -     -    0.00         -\n"
        );
        assert_eq!(heat(&of), "score, of 100    a  long-name\nsteady         100         25\n");
        let summary = summary(&of);
        let figures = |line: &str| -> Vec<String> {
            line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
        };
        let lines: Vec<Vec<String>> = summary.lines().map(figures).collect();
        assert_eq!(lines.len(), 1 + FIGURES.len());
        assert_eq!(lines[0], ["summary", "wanted", "a", "long-name"]);
        assert_eq!(lines[1], ["alone on wired links: won %", "95, 97", "100", "0"]);
        assert_eq!(lines[2], ["beside CUBIC: won %", "80, 85", "-", "-"]);
    }

    #[test]
    fn a_test_links_command_would_be_refused_and_is_not_printed() {
        let shown = |set: &str| {
            let link = format!("steady/{set}/0");
            let cells = [cell(&link, "a", 10, 10), cell(&link, "b", 1, 10)];
            worst(&Table::new(&cells), "b", "ccplane")
        };
        assert_eq!(
            shown("validation"),
            "0.01 of the score of a: ccplane league --link steady/validation/0 --algorithm b,a\n"
        );
        assert_eq!(shown("test"), "0.01 of the score of a: steady/test/0, which no command plays alone\n");
    }
}
