//! The report: one HTML page without scripts or pictures, small however many links were played.

use std::fmt::Write as _;

use crate::family::Family;
use crate::score::{FIGURES, Table};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .6em;text-align:right}th:first-child,td:first-child{text-align:left}\
th{border-bottom:1px solid #999;vertical-align:bottom}td{white-space:nowrap}td.about,th.about{text-align:left;color:#666;white-space:normal}dt{font-weight:600}dd{margin:0 0 .3em 1.5em}code{background:#f2f2f2;padding:.1em .3em}";

/// Renders the page. `about` names the links, `program` is the command that plays them again.
#[must_use]
pub fn html(table: &Table, about: &str, program: &str) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>League</title><style>{STYLE}</style>\n\
         <h1>League: algorithms on links that nobody made for them</h1>\n<p>{}. Each algorithm has played each link, drawn by number from families.</p>\n",
        escaped(about)
    );
    page.push_str(
        "<table><tr><th rowspan=\"2\">algorithm<th rowspan=\"2\">links<th rowspan=\"2\">won<th rowspan=\"2\">not dominated\
         <th colspan=\"2\">score over the best one<th colspan=\"3\">share beside rivals<th rowspan=\"2\">Jain's index<br>of its own kind\
         <th rowspan=\"2\">packets<br>lost<th rowspan=\"2\">time to settle<br>after a step</tr>\n\
         <tr><th>mean<th>5th percentile<th>median<th>fair on<th>least</tr>\n",
    );
    for (name, s) in &table.total {
        let or = |figure: Option<f64>, unit: &str| {
            figure.map_or_else(|| "–".to_owned(), |f| format!("{f:.2}{unit}"))
        };
        let _ = writeln!(
            page,
            "<tr><td>{}<td>{}<td>{:.0} %<td>{:.0} %<td>{:.2}<td>{:.2}<td>{}<td>{}<td>{}<td>{}<td>{:.2} %<td>{}</tr>",
            escaped(name),
            s.links,
            s.won * 100.0,
            s.undominated * 100.0,
            s.mean_score,
            s.low_score,
            or(s.fair_share, ""),
            s.fair.map_or_else(|| "–".to_owned(), |f| format!("{:.0} %", f * 100.0)),
            or(s.least_share, ""),
            or(s.jain, ""),
            s.loss * 100.0,
            or(s.settled_s, " s"),
        );
    }
    page.push_str("</table>\n");
    page.push_str(&summary(table));
    page.push_str(
        "<dl><dt>Score<dd>Alone on a link: throughput squared over mean round-trip time. Beside rivals: how near the flow's share is to \
         an equal one. Among its own kind: as alone, times Jain's index, which is 1 where all flows have the same.\
         <dt>Won<dd>Links on which the score is within a tenth of the best contender's.\
         <dt>Not dominated<dd>Links on which nobody is clearly better in throughput or delay without being worse in the other.\
         <dt>Share beside rivals<dd>1 is what each flow would have if all had the same; 0.8 to 1.25 of it is fair.\
         <dt>Time to settle<dd>Median time from a step of the link's rate until 90 % of what an oracle would earn.</dl>\n\
         <h2>By family</h2>\n<p>The mean score in hundredths of the best contender's on each link: 100 and green is the best.</p>\n<table><tr><th>family",
    );
    table.total.iter().for_each(|(name, _)| {
        let _ = write!(page, "<th>{}", escaped(name));
    });
    page.push_str("<th class=\"about\">its links</tr>\n");
    for (family, standings) in &table.families {
        let _ = write!(page, "<tr><td>{}", escaped(family));
        for (name, _) in &table.total {
            match standings.get(name) {
                Some(s) => {
                    let _ = write!(
                        page,
                        "<td style=\"background:{}\">{:.0}",
                        colour(s.mean_score),
                        s.mean_score * 100.0
                    );
                }
                None => page.push_str("<td>–"),
            }
        }
        let about = family.parse::<Family>().map_or("", Family::about);
        let _ = writeln!(page, "<td class=\"about\">{}</tr>", escaped(about));
    }
    page.push_str(
        "</table>\n<h2>Worst links</h2>\n<p>Where each algorithm's score is the smallest part of the best contender's. The command plays that link again, \
         with both; <code>--plots</code> after it draws them. A test link is played by <code>--final</code> only.</p>\n",
    );
    for (name, _) in &table.total {
        let _ = writeln!(page, "<h3>{}</h3>\n<ul>", escaped(name));
        for line in crate::text::worst(table, name, program).lines() {
            let (score, command) = line.split_once(": ").unwrap_or(("", line));
            let _ = writeln!(page, "<li>{}: <code>{}</code></li>", escaped(score), escaped(command));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</html>\n");
    page
}

/// The figures that are wanted in the league as a whole, with a column for each algorithm.
fn summary(table: &Table) -> String {
    let mut text = "<h2>Summary</h2>\n<p>What is wanted of an algorithm that is to be a good choice everywhere: of <code>dual</code> and, where it \
         is more, of <code>neural</code>.</p>\n<table><tr><th>figure<th>wanted"
        .to_owned();
    table.summary.iter().for_each(|(name, _)| {
        let _ = write!(text, "<th>{}", escaped(name));
    });
    text.push_str("</tr>\n");
    for figure in &FIGURES {
        let _ = write!(text, "<tr><td>{}<td>{}", escaped(figure.name), figure.wanted);
        for (_, summary) in &table.summary {
            let _ = write!(text, "<td>{}", escaped(&(figure.shown)(summary)));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table>\n");
    text
}

/// From red over yellow to green.
fn colour(score: f64) -> String {
    format!("hsl({:.0},70%,80%)", score.clamp(0.0, 1.0) * 120.0)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Cell, Goal};
    use ccplane_results::RunFigures;
    use std::time::Instant;

    /// The bound of the issue, with room: 5,000 runs in 30 s and 20 MB.
    #[test]
    fn the_page_of_five_thousand_runs_is_small_and_quick() {
        let names = ["a", "b", "c", "d", "<e>"];
        let cells: Vec<Cell> = (0..5000u64)
            .map(|n| {
                let link = format!("family{}/test/{}", n / 5 % 20, n / 5);
                let family = link.split('/').next().unwrap().to_owned();
                let cell =
                    Cell::new(&link, &family, Goal::Alone, names[(n % 5) as usize], &RunFigures::default());
                Cell { throughput_bps: 1 + n * 7919 % 1000, mean_rtt_us: 1 + n % 13, ..cell }
            })
            .collect();
        let begun = Instant::now();
        let page = html(&Table::new(&cells), "5,000 runs", "ccplane");
        assert!(begun.elapsed().as_secs() < 10);
        assert!(page.len() < 100_000, "{}", page.len());
        assert!(page.contains("--algorithm a,") && page.contains("&lt;e&gt;") && !page.contains("<e>"));
        assert_eq!(page.matches("<li>").count(), 50);
        let summary = page.split("<h2>Summary</h2>").nth(1).and_then(|rest| rest.split("</table>").next());
        assert_eq!(summary.unwrap().matches("<tr>").count(), 1 + FIGURES.len());
    }
}
