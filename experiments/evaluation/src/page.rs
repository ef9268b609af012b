//! The report as one page of HTML, with an interval drawn for each check and a command for each case.

use ccplane_report::shell;
use maud::{Markup, html};

use crate::conformance::{Conformed, LinkConformance};
use crate::envelope::{Envelope, Point};
use crate::evaluation::{CaseFigures, CheckResult, CriterionResult, Evaluation, figure, interval};
use crate::text;
use crate::verdict::{Bound, Verdict};

/// Width and height of a check's picture, pixels.
const STRIP: (f64, f64) = (180.0, 22.0);
/// Width and height of a pair of envelopes.
const PLOT: (f64, f64) = (320.0, 200.0);
/// Corners of a picture are so far from its edge.
const MARGIN: f64 = 6.0;

/// Renders the page.
#[must_use]
pub fn html(evaluation: &Evaluation) -> String {
    let title = format!("{}: the criteria of {}", evaluation.algorithm, evaluation.rfc);
    let content = html! {
        header {
            p.eyebrow { "ccplane evaluate" }
            h1 { (title) }
            p.lead { (text::counts(evaluation)) "." }
            (facts(evaluation))
        }
        section {
            h2 { "Verdicts" }
            p.hint {
                "A check passes if the whole 95 % interval of its mean over all cases keeps to the limit; all else is a concern. The RFC \
                 sets no thresholds: the limits are ours. Relative ones are ratios to the worse of Reno and CUBIC in the same case, and what \
                 is better than they counts as equal."
            }
            (verdicts(&evaluation.criteria))
        }
        @if let Some(conformed) = &evaluation.conformance { (conformance(conformed)) }
        @for criterion in evaluation.criteria.iter().filter(|criterion| !criterion.checks.is_empty()) {
            (checks(evaluation, criterion))
        }
        section {
            h2 { "Cases" }
            p.hint {
                "Every case of each set, with the command that repeats it, live where it was live; with " code { "--qlog FILE" }
                " behind it, the command also writes what the algorithm's flows and the agent tell each other, as a qlog trace. The JSON \
                 beside this page has all figures."
            }
            (cases("Simulated", &evaluation.cases, &evaluation.algorithm))
            @if !evaluation.live.is_empty() {
                (cases("Live, with the kernel's own algorithms", &evaluation.live, &evaluation.algorithm))
            }
        }
    };
    shell::page(&title, content)
}

fn facts(evaluation: &Evaluation) -> Markup {
    let p = &evaluation.provenance;
    html! {
        dl.facts {
            div { dt { "Cases" } dd { (evaluation.cases.len()) " simulated, " (p.cases) " of each set; " (evaluation.live.len()) " live" } }
            div { dt { "Version" } dd { (p.version) @if !p.commit.is_empty() { ", " (p.commit) } } }
            div { dt { "Command" } dd { code { (p.command) } } }
        }
    }
}

fn badge(verdict: Verdict, is_clear: bool) -> Markup {
    let class = match (verdict, is_clear) {
        (Verdict::Pass, _) => "badge met",
        (Verdict::Concern, true) => "badge missed",
        (Verdict::Concern, false) => "badge missed weak",
        (Verdict::NotApplicable, _) => "badge none",
    };
    html! { span class=(class) { (verdict.name()) } }
}

/// Whether any check of a criterion is clearly a concern.
fn is_clear(criterion: &CriterionResult) -> bool {
    let mut judged = criterion.checks.iter().filter_map(|check| check.simulated);
    judged.any(|judged| judged.verdict == Verdict::Concern && judged.is_clear)
}

fn verdicts(criteria: &[CriterionResult]) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th { "criterion" } th.text { "section" } th.text { "verdict" } th.text { "why" } } }
            tbody {
                @for criterion in criteria {
                    tr {
                        th.wide {
                            @if criterion.checks.is_empty() { (criterion.title) }
                            @else { a href=(format!("#{}", criterion.name)) { (criterion.title) } }
                        }
                        td.text { (criterion.section) }
                        td.text { (badge(criterion.verdict, is_clear(criterion))) }
                        td.text { (criterion.why) }
                    }
                }
            }
        } }
    }
}

fn checks(evaluation: &Evaluation, criterion: &CriterionResult) -> Markup {
    html! {
        section id=(criterion.name) {
            h2 { (criterion.title) " " (badge(criterion.verdict, is_clear(criterion))) }
            p.hint { "Section " (criterion.section) ". " (criterion.asks) }
            div.scroll { table {
                thead { tr {
                    th { "check" } th.text { "limit" } th { (evaluation.algorithm) small { "mean, 95 % interval" } }
                    th.text { "" } th.text { "references" } th { "live" small { "cases" } } th.text { "verdict" } th.text { "worst case" }
                } }
                tbody { @for check in &criterion.checks { (row(check)) } }
            } }
        }
    }
}

fn row(check: &CheckResult) -> Markup {
    let judged = check.simulated;
    html! {
        tr {
            th.wide { (check.title) small { (check.scenarios) } }
            td.text { (check.limit_text()) }
            td { @if let Some(judged) = &judged { (interval(judged)) } @else { "–" } }
            td.text { (strip(check)) }
            td.text { (text::references(check)) }
            td { @if let Some(live) = &check.live { (interval(live)) " (" (live.cases) ")" } @else { "–" } }
            td.text { (badge(check.verdict, judged.is_some_and(|j| j.is_clear))) }
            td.text { @if let Some(worst) = &check.worst { (figure(worst.value)) ": " code { (worst.command) } } }
        }
    }
}

/// The interval, the limit as a line, and the references as dots; the side that keeps to the limit is shaded.
fn strip(check: &CheckResult) -> Markup {
    let Some(judged) = check.simulated else { return html! {} };
    let others = check.references.iter().skip(1).map(|r| r.judged);
    let all = others.clone().chain([judged.low, judged.high, check.limit]);
    let most = all.fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.1;
    let (width, height) = STRIP;
    let x = |value: f64| format!("{:.1}", (value / most).clamp(0.0, 1.0) * width);
    let (from, to) = match check.bound {
        Bound::AtMost => (0.0, check.limit),
        Bound::AtLeast => (check.limit, most),
    };
    let shade = format!("{:.1}", ((to - from) / most * width).max(0.0));
    let length = format!("{:.1}", ((judged.high - judged.low) / most * width).max(2.0));
    let middle = format!("{:.1}", height / 2.0);
    let colour = if check.verdict == Verdict::Pass { "var(--met)" } else { "var(--missed)" };
    html! {
        svg viewBox=(format!("0 0 {width} {height}")) width=(width) height=(height) role="img" aria-label=(check.text()) {
            rect x=(x(from)) y="0" width=(shade) height=(height) fill="var(--met-bg)" {}
            rect x=(x(judged.low)) y="8" width=(length) height="6" fill=(colour) {}
            @for other in others { circle cx=(x(other)) cy=(middle) r="2.5" fill="var(--muted)" {} }
            line x1=(x(check.limit)) x2=(x(check.limit)) y1="0" y2=(height) stroke="var(--ink)" {}
        }
    }
}

fn conformance(conformed: &Conformed) -> Markup {
    html! {
        section {
            h2 { "Conformance to the kernel's " (conformed.algorithm) " " (badge(conformed.verdict, true)) }
            p.hint {
                "Throughput-delay envelopes of our program (filled) and of the kernel's algorithm (outlined), each point a flow over ten round \
                 trips. Conformance is the share of all points that lie in both, here over that of two halves of the kernel's own runs: "
                @if let Some(judged) = &conformed.judged { (interval(judged)) ", at least " (conformed.limit) "." }
            }
            div.grid { @for link in &conformed.links { (envelopes(link)) } }
        }
    }
}

fn envelopes(link: &LinkConformance) -> Markup {
    let all = || link.ours.iter().chain(&link.kernels);
    let most = |of: fn(&Point) -> f64| all().map(of).fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.05;
    let (x_most, y_most) = (most(|p| p.rtt_ms), most(|p| p.throughput_mbit));
    let (width, height) = PLOT;
    let place = |p: &Point| {
        let x = MARGIN + p.rtt_ms / x_most * (width - 2.0 * MARGIN);
        let y = height - MARGIN - p.throughput_mbit / y_most * (height - 2.0 * MARGIN);
        (format!("{x:.1}"), format!("{y:.1}"))
    };
    let outline = |points: &[Point]| {
        let corners = Envelope::of(points).corners;
        corners.iter().map(place).map(|(x, y)| format!("{x},{y}")).collect::<Vec<_>>().join(" ")
    };
    let label = format!("Envelopes on {}", link.link);
    html! {
        figure {
            figcaption { h3 { (link.case) } span.unit { (link.link) } }
            svg viewBox=(format!("0 0 {width} {height}")) width="100%" role="img" aria-label=(label) {
                polygon points=(outline(&link.ours)) fill="var(--s0)" fill-opacity="0.2" stroke="none" {}
                polygon points=(outline(&link.kernels)) fill="none" stroke="var(--s1)" stroke-width="1.5" {}
                @for (points, colour) in [(&link.ours, "var(--s0)"), (&link.kernels, "var(--s1)")] {
                    @for (x, y) in points.iter().map(place) { circle cx=(x) cy=(y) r="1.6" fill=(colour) {} }
                }
            }
            p.caption {
                "Throughput to " (figure(y_most)) " Mb/s against RTT to " (figure(x_most)) " ms; conformance " (figure(link.conformance))
                ", the kernel's own " (figure(link.kernels_own)) "."
            }
        }
    }
}

fn cases(title: &str, cases: &[CaseFigures], algorithm: &str) -> Markup {
    html! {
        details.point {
            summary { (title) ", " (cases.len()) " cases" }
            div.scroll { table {
                thead { tr {
                    th { "case" small { "its link" } } th { "throughput" small { "Mb/s" } } th { "queue" small { "ms" } }
                    th { "dropped" } th.text { "references, Mb/s" } th.text { "command" }
                } }
                tbody { @for case in cases { (case_row(case, algorithm)) } }
            } }
        }
    }
}

fn case_row(case: &CaseFigures, algorithm: &str) -> Markup {
    let own = case.contenders.get(algorithm);
    let others = case.contenders.iter().filter(|(name, _)| *name != algorithm);
    let others: Vec<String> =
        others.map(|(name, f)| format!("{name} {}", figure(f.throughput_bps as f64 / 1e6))).collect();
    let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), figure);
    html! {
        tr {
            th.wide { (case.case) small { (case.link) } }
            td { (number(own.map(|f| f.throughput_bps as f64 / 1e6))) }
            td { (number(own.map(|f| f.queue_us as f64 / 1e3))) }
            td { (number(own.map(|f| f.dropped_ppm as f64 / 1e6))) }
            td.text { (others.join(", ")) }
            td.text { code { (case.command) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::testing::evaluation;

    #[test]
    fn the_page_has_every_case_and_fetches_nothing() {
        let mut evaluation = evaluation("copa", 2);
        let point = |throughput_mbit, rtt_ms| Point { throughput_mbit, rtt_ms };
        let link = LinkConformance {
            case: "conformance/0".to_owned(),
            link: "<24 Mb/s>".to_owned(),
            conformance: 0.5,
            kernels_own: 1.0,
            ours: vec![point(1.0, 2.0), point(2.0, 2.0), point(2.0, 3.0)],
            kernels: vec![point(1.0, 2.0)],
        };
        evaluation.conformance = Some(Conformed::new("reno", vec![link]));
        let page = html(&evaluation);
        for case in evaluation.cases.iter().chain(&evaluation.live) {
            assert!(page.contains(&case.command), "{}", case.command);
        }
        assert!(page.contains("&lt;24 Mb/s&gt;") && page.contains("<polygon") && !page.contains("https:"));
        assert!(page.len() < 400_000, "{}", page.len());
        assert_eq!(page, html(&evaluation));
    }
}
