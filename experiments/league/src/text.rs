//! The table, the heat map and the worst links, for a terminal.

use std::fmt::Write as _;

use crate::error::LeagueError;
use crate::link::Link;
use crate::score::Table;

/// One line for each algorithm.
#[must_use]
pub fn table(table: &Table) -> String {
    let mut text = format!(
        "{:<14} {:>5} {:>6} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>8}\n",
        "algorithm",
        "links",
        "won %",
        "undom %",
        "score",
        "low",
        "share",
        "fair %",
        "least",
        "jain",
        "loss %",
        "settle s"
    );
    for (name, s) in &table.total {
        let two = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |f| format!("{f:.2}"));
        let _ = writeln!(
            text,
            "{name:<14} {:>5} {:>6.0} {:>7.0} {:>6.2} {:>6.2} {:>6} {:>6} {:>6} {:>6} {:>7.2} {:>8}",
            s.links,
            s.won * 100.0,
            s.undominated * 100.0,
            s.mean_score,
            s.low_score,
            two(s.fair_share),
            s.fair.map_or_else(|| "-".to_owned(), |f| format!("{:.0}", f * 100.0)),
            two(s.least_share),
            two(s.jain),
            s.loss * 100.0,
            two(s.settled_s),
        );
    }
    text
}

/// Mean score over the best, in hundredths, by family and algorithm.
#[must_use]
pub fn heat(table: &Table) -> String {
    let mut text = format!("{:<14}", "score, of 100");
    table.total.iter().for_each(|(name, _)| {
        let _ = write!(text, " {name:>8.8}");
    });
    text.push('\n');
    for (family, standings) in &table.families {
        let _ = write!(text, "{family:<14}");
        for (name, _) in &table.total {
            let figure = standings
                .get(name)
                .map_or_else(|| "-".to_owned(), |s| format!("{:.0}", s.mean_score * 100.0));
            let _ = write!(text, " {figure:>8}");
        }
        text.push('\n');
    }
    text
}

/// An algorithm's worst links, with the command of `program` that replays each; a test link has none.
#[must_use]
pub fn worst(table: &Table, algorithm: &str, program: &str) -> String {
    let mut text = String::new();
    for worst in table.worst.get(algorithm).into_iter().flatten() {
        let (link, best) = (&worst.link, &worst.best);
        let both = if best == algorithm { best.clone() } else { format!("{algorithm},{best}") };
        let replayed = match link.parse::<Link>() {
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
