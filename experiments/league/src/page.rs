//! The report: one HTML page without scripts or pictures, small however many links were played.

use std::fmt::Write as _;

use crate::score::Table;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .6em;text-align:right}th:first-child,td:first-child{text-align:left}\
th{border-bottom:1px solid #999}code{background:#f2f2f2;padding:.1em .3em}";

/// The page. `about` says what was played, `program` plays it again.
#[must_use]
pub fn html(table: &Table, about: &str, program: &str) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>League</title><style>{STYLE}</style>\n\
         <h1>League</h1>\n<p>{}</p>\n",
        escaped(about)
    );
    page.push_str(
        "<table><tr><th>algorithm<th>links<th>won<th>not dominated<th>score<th>its 5th percentile\
         <th>fair share<th>fair<th>least<th>Jain<th>loss<th>settled</tr>\n",
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
    page.push_str(
        "</table>\n<p>Won: a score within a tenth of the best contender's. Score: throughput squared over mean RTT, beside others \
         the nearness to the fair share, among its own kind the first times Jain's index; here over the best contender's. Fair: links with 0.8 to 1.25 of the fair share.</p>\n\
         <h2>By family</h2>\n<table><tr><th>score, of 100",
    );
    table.total.iter().for_each(|(name, _)| {
        let _ = write!(page, "<th>{}", escaped(name));
    });
    page.push_str("</tr>\n");
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
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n<h2>Worst links</h2>\n");
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
    use ccplane_results::Measured;
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
                    Cell::new(&link, &family, Goal::Alone, names[(n % 5) as usize], &Measured::default());
                Cell { throughput_bps: 1 + n * 7919 % 1000, mean_rtt_us: 1 + n % 13, ..cell }
            })
            .collect();
        let begun = Instant::now();
        let page = html(&Table::new(&cells), "5,000 runs", "ccplane");
        assert!(begun.elapsed().as_secs() < 10);
        assert!(page.len() < 100_000, "{}", page.len());
        assert!(page.contains("--algorithm a,") && page.contains("&lt;e&gt;") && !page.contains("<e>"));
        assert_eq!(page.matches("<li>").count(), 50);
    }
}
