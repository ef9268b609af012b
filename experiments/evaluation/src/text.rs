//! The report as Markdown, and as a table for a terminal.

use std::fmt::Write as _;

use crate::evaluation::{CheckResult, CriterionResult, Evaluation, figure, interval};
use crate::verdict::Verdict;

/// One line for each criterion, and the counts.
#[must_use]
pub fn table(evaluation: &Evaluation) -> String {
    let mut text = format!("{:<20} {:<9} {:<15} {}\n", "criterion", "section", "verdict", "why");
    for criterion in &evaluation.criteria {
        let CriterionResult { name, section, verdict, why, .. } = criterion;
        let _ = writeln!(text, "{name:<20} {section:<9} {:<15} {why}", verdict.name());
    }
    let _ = writeln!(text, "\n{}", counts(evaluation));
    if let Some(conformed) = &evaluation.conformance {
        let judged = conformed.judged.as_ref().map(interval).unwrap_or_default();
        let _ = writeln!(
            text,
            "conformance to the kernel's {}: {judged}, at least {}: {}",
            conformed.algorithm,
            conformed.limit,
            conformed.verdict.name()
        );
    }
    text
}

/// The verdicts, counted, and what they come to for general use.
#[must_use]
pub fn counts(evaluation: &Evaluation) -> String {
    format!(
        "{} pass, {} raise concerns, {} are not applicable; general use (sections 5 and 6): {}",
        evaluation.count(Verdict::Pass),
        evaluation.count(Verdict::Concern),
        evaluation.count(Verdict::NotApplicable),
        evaluation.general_use.name()
    )
}

/// Verdicts of several algorithms in one table of Markdown, for criteria that can be measured; the first one's criteria are the rows.
#[must_use]
pub fn summary(evaluations: &[Evaluation]) -> String {
    let Some(first) = evaluations.first() else { return String::new() };
    let names: Vec<String> = evaluations.iter().map(|e| cell(&e.algorithm)).collect();
    let mut text =
        format!("| criterion | section | {} |\n|---|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    let of = |evaluation: &Evaluation, name: &str| {
        let found = evaluation.criteria.iter().find(|criterion| criterion.name == name);
        found.map_or_else(|| "-".to_owned(), |criterion| marked(criterion.verdict))
    };
    for criterion in first.criteria.iter().filter(|criterion| !criterion.checks.is_empty()) {
        let verdicts: Vec<String> = evaluations.iter().map(|e| of(e, &criterion.name)).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            cell(&criterion.title),
            criterion.section,
            verdicts.join(" | ")
        );
    }
    let general: Vec<String> = evaluations.iter().map(|e| marked(e.general_use)).collect();
    let _ = writeln!(text, "| General use: all of sections 5 and 6 | 6 | {} |", general.join(" | "));
    text
}

/// The whole report but for the cases, which are in JSON and HTML.
#[must_use]
pub fn markdown(evaluation: &Evaluation) -> String {
    let p = &evaluation.provenance;
    let mut text = format!(
        "# {}: the criteria of {}\n\n{}.\n\n{} simulated cases of each set, drawn by number; made by `{}`{}.\n\n\
         | criterion | section | verdict | why |\n|---|---|---|---|\n",
        cell(&evaluation.algorithm),
        evaluation.rfc,
        counts(evaluation),
        p.cases,
        p.command,
        if p.commit.is_empty() { String::new() } else { format!(" at {}", p.commit) }
    );
    for criterion in &evaluation.criteria {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            cell(&criterion.title),
            criterion.section,
            marked(criterion.verdict),
            cell(&criterion.why)
        );
    }
    if let Some(conformed) = &evaluation.conformance {
        let _ = writeln!(
            text,
            "\n## Conformance to the kernel's {}\n\nShare of the points of both that lie in both throughput-delay envelopes, over the same \
             of two halves of the kernel's own: {}, at least {}: {}.\n\n| link | ours and the kernel's | the kernel's own |\n|---|---|---|",
            conformed.algorithm,
            conformed.judged.as_ref().map(interval).unwrap_or_default(),
            conformed.limit,
            marked(conformed.verdict)
        );
        for link in &conformed.links {
            let (both, own) = (figure(link.conformance), figure(link.kernels_own));
            let _ = writeln!(text, "| {}: {} | {both} | {own} |", link.case, cell(&link.link));
        }
    }
    for criterion in evaluation.criteria.iter().filter(|criterion| !criterion.checks.is_empty()) {
        section(&mut text, evaluation, criterion);
    }
    text
}

/// A criterion with its checks.
fn section(text: &mut String, evaluation: &Evaluation, criterion: &CriterionResult) {
    let _ = writeln!(
        text,
        "\n## {}: {}\n\nSection {}. {}\n\n| check | scenarios | limit | {} | references | live | verdict | worst case |\n\
         |---|---|---|---|---|---|---|---|",
        cell(&criterion.title),
        criterion.verdict.name(),
        criterion.section,
        criterion.asks,
        cell(&evaluation.algorithm)
    );
    for check in &criterion.checks {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            cell(&check.title),
            cell(&check.scenarios),
            check.limit_text(),
            check.simulated.as_ref().map_or_else(|| "-".to_owned(), interval),
            references(check),
            check.live.as_ref().map_or_else(|| "-".to_owned(), |l| format!("{} ({})", interval(l), l.cases)),
            marked(check.verdict),
            check
                .worst
                .as_ref()
                .map_or_else(|| "-".to_owned(), |w| format!("{}: `{}`", figure(w.value), w.command))
        );
    }
}

/// The references' judged means: "reno 1, cubic 0.9".
pub(crate) fn references(check: &CheckResult) -> String {
    let others = check.references.iter().skip(1);
    others.map(|r| format!("{} {}", r.algorithm, figure(r.judged))).collect::<Vec<_>>().join(", ")
}

/// Emphasises what a reader looks for.
fn marked(verdict: Verdict) -> String {
    match verdict {
        Verdict::Concern => "**concern**".to_owned(),
        _ => verdict.name().to_owned(),
    }
}

/// Text that may stand in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::testing::evaluation;

    #[test]
    fn every_criterion_and_worst_case_is_told() {
        let evaluation = evaluation("copa", 10);
        let text = markdown(&evaluation);
        for criterion in &evaluation.criteria {
            assert!(text.contains(&criterion.title), "{}", criterion.title);
            for worst in criterion.checks.iter().filter_map(|c| c.worst.as_ref()) {
                assert!(text.contains(&format!("`{}`", worst.command)), "{}", worst.command);
            }
        }
        // Rows of one table have as many cells as its head.
        let cells = |line: &str| line.matches('|').count() - line.matches("\\|").count();
        let mut checks = text.lines().filter(|line| line.contains("`ccplane evaluate")).map(cells);
        assert!(checks.all(|n| n == 9));
        let table = table(&evaluation);
        assert_eq!(table.lines().count(), evaluation.criteria.len() + 3);
        assert!(table.contains("0 pass, "), "{table}");
    }

    #[test]
    fn a_summary_has_a_column_for_each_algorithm() {
        let text = summary(&[evaluation("copa", 1), evaluation("vegas", 10)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| criterion | section | copa | vegas |");
        assert!(lines[2].ends_with("| 5.1.1, 5.2 | pass | **concern** |"), "{}", lines[2]);
        assert!(lines.iter().all(|line| line.matches('|').count() == 5) && !text.contains("Multicast"));
        assert_eq!(summary(&[]), "");
    }

    #[test]
    fn foreign_text_breaks_no_table() {
        assert_eq!(cell("a|b\n<c>"), "a\\|b &lt;c>");
    }
}
