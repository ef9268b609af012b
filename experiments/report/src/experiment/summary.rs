//! Tables of means with confidence intervals: on the page, as Markdown, as LaTeX.

use ccplane_results::RunFigures;

use super::figures::{self, METRICS};
use super::view::View;
use crate::format;
use crate::statistics::Estimate;

/// Contenders by metrics, in one scenario.
pub struct Summary {
    pub scenario: String,
    /// Heading and unit of each column.
    pub columns: Vec<(&'static str, &'static str)>,
    /// In the plan's order.
    pub rows: Vec<Row>,
}

/// The figures of one contender in one scenario.
pub struct Row {
    /// Index of the contender.
    pub contender: usize,
    pub name: String,
    /// Runs that ended well.
    pub runs: usize,
    /// For each column the mean over runs, in the column's unit.
    pub cells: Vec<Option<Estimate>>,
}

/// The columns are the metrics that some run of the scenario has.
pub fn summary(view: &View<'_>, scenario: usize) -> Summary {
    let mut columns = Vec::new();
    let mut rows: Vec<Row> = view
        .contenders()
        .iter()
        .enumerate()
        .map(|(c, contender)| Row {
            contender: c,
            name: contender.name.clone(),
            runs: view.runs(scenario, c).len(),
            cells: Vec::new(),
        })
        .collect();
    let mut add = |title, unit, scale: f64, value: &dyn Fn(&RunFigures) -> Option<f64>| {
        let cells: Vec<Option<Estimate>> = (0..view.contenders().len())
            .map(|c| {
                let runs = view.runs(scenario, c).iter();
                let values: Vec<f64> = runs.filter_map(|r| value(r.measured)).map(|v| v / scale).collect();
                Estimate::of(&values)
            })
            .collect();
        if cells.iter().any(Option::is_some) {
            columns.push((title, unit));
            rows.iter_mut().zip(cells).for_each(|(row, cell)| row.cells.push(cell));
        }
    };
    for metric in METRICS {
        let unit = figures::unit(metric);
        add(unit.title, unit.unit, unit.scale, &|m| view.value(metric, m));
    }
    Summary { scenario: view.scenarios()[scenario].name.clone(), columns, rows }
}

fn cell(estimate: Option<Estimate>) -> String {
    estimate.map_or_else(|| format::NONE.into(), |e| format::estimate(e.mean, e.half_width))
}

fn heading((title, unit): &(&str, &str)) -> String {
    if unit.is_empty() { (*title).into() } else { format!("{title} ({unit})") }
}

/// Writes a Markdown table.
pub fn markdown(summary: &Summary) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('|', "\\|").replace(['\n', '\r'], " ");
    let mut out = format!("**{}**\n\n| | Runs |", escaped(&summary.scenario));
    summary.columns.iter().for_each(|c| out.push_str(&format!(" {} |", heading(c))));
    out.push_str("\n|---|---:|");
    out.push_str(&"---:|".repeat(summary.columns.len()));
    for row in &summary.rows {
        out.push_str(&format!("\n| {} | {} |", escaped(&row.name), row.runs));
        row.cells.iter().for_each(|e| out.push_str(&format!(" {} |", cell(*e))));
    }
    out.push('\n');
    out
}

/// Writes a LaTeX table; needs the package booktabs.
pub fn latex(summary: &Summary) -> String {
    let mut out = format!(
        "\\begin{{table}}\n\\centering\n\\caption{{{}: mean $\\pm$ 95\\,\\% confidence interval over runs.}}\n\\begin{{tabular}}{{lr{}}}\n\\toprule\n & Runs",
        escaped_latex(&summary.scenario),
        "r".repeat(summary.columns.len())
    );
    summary.columns.iter().for_each(|c| out.push_str(&format!(" & {}", escaped_latex(&heading(c)))));
    out.push_str(" \\\\\n\\midrule\n");
    for row in &summary.rows {
        out.push_str(&format!("{} & {}", escaped_latex(&row.name), row.runs));
        row.cells.iter().for_each(|e| out.push_str(&format!(" & {}", escaped_latex(&cell(*e)))));
        out.push_str(" \\\\\n");
    }
    out.push_str("\\bottomrule\n\\end{tabular}\n\\end{table}\n");
    out
}

fn escaped_latex(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\textbackslash{}"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => out.extend(['\\', c]),
            '~' => out.push_str("\\textasciitilde{}"),
            '^' => out.push_str("\\textasciicircum{}"),
            '<' | '>' => out.extend(['$', c, '$']),
            '±' => out.push_str("$\\pm$"),
            '×' => out.push_str("$\\times$"),
            '−' => out.push_str("$-$"),
            '–' => out.push_str("--"),
            '’' => out.push('\''),
            '\u{202f}' => out.push_str("\\,"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Summary {
        let estimate = |mean, half_width| Some(Estimate { n: 5, mean, half_width });
        Summary {
            scenario: "12 Mb/s & 1 % loss".into(),
            columns: vec![("Throughput", "Mb/s"), ("Jain’s index", "")],
            rows: vec![
                Row {
                    contender: 0,
                    name: "a|b_c".into(),
                    runs: 5,
                    cells: vec![estimate(11.52, Some(0.04)), None],
                },
                Row {
                    contender: 1,
                    name: "d".into(),
                    runs: 1,
                    cells: vec![estimate(1234.0, None), estimate(0.99, Some(0.01))],
                },
            ],
        }
    }

    #[test]
    fn a_summary_in_markdown_has_a_row_for_each_contender() {
        assert_eq!(
            markdown(&example()),
            "**12 Mb/s & 1 % loss**\n\n| | Runs | Throughput (Mb/s) | Jain’s index |\n|---|---:|---:|---:|\n\
             | a\\|b_c | 5 | 11.52 ± 0.04 | – |\n| d | 1 | 1\u{202f}234 | 0.99 ± 0.01 |\n"
        );
    }

    #[test]
    fn a_summary_in_latex_has_a_row_for_each_contender() {
        let text = latex(&example());
        for part in [
            "\\caption{12 Mb/s \\& 1 \\% loss: mean",
            "\\begin{tabular}{lrrr}",
            " & Runs & Throughput (Mb/s) & Jain's index \\\\",
            "a|b\\_c & 5 & 11.52 $\\pm$ 0.04 & -- \\\\",
            "d & 1 & 1\\,234 & 0.99 $\\pm$ 0.01 \\\\",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
