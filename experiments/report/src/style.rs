//! Which colour, dash and marker a flow has. Colours are the page's CSS variables `--s0` to `--s5`.

use crate::model::{Datapath, Flow, Report};

/// Distinct styles; a chart with more flows reuses them in turn. The first, the baseline's, is a broad pale band, so that
/// a line that runs on top of it can still be told from it.
pub const STYLES: [Style; 6] = [
    Style { colour: "var(--s0)", dash: "none", width: "4.5", opacity: "0.5" },
    Style { colour: "var(--s1)", dash: "7 4", width: "2", opacity: "1" },
    Style { colour: "var(--s2)", dash: "1.5 4.5", width: "2.4", opacity: "1" },
    Style { colour: "var(--s3)", dash: "12 4 2 4", width: "2", opacity: "1" },
    Style { colour: "var(--s4)", dash: "16 5", width: "2", opacity: "1" },
    Style { colour: "var(--s5)", dash: "4 3", width: "2", opacity: "1" },
];

/// How a flow's line looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// CSS colour.
    pub colour: &'static str,
    /// SVG `stroke-dasharray`, CSS pixels.
    pub dash: &'static str,
    /// CSS pixels.
    pub width: &'static str,
    /// 0 to 1.
    pub opacity: &'static str,
}

/// The flows of one algorithm, in the report's order.
pub struct Group<'a> {
    /// The algorithm.
    pub algorithm: &'a str,
    /// Index into the report's flows, the flow, its style.
    pub flows: Vec<(usize, &'a Flow, Style)>,
}

/// Groups a report's flows by algorithm, in order of first appearance. A datapath has the same style in every
/// group, as far as styles go round.
pub fn groups(report: &Report) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (i, flow) in report.flows.iter().enumerate() {
        let position = groups.iter().position(|g| g.algorithm == flow.algorithm).unwrap_or_else(|| {
            groups.push(Group { algorithm: &flow.algorithm, flows: Vec::new() });
            groups.len() - 1
        });
        let flows = &mut groups[position].flows;
        let style = free_style(flow.datapath, flows);
        flows.push((i, flow, style));
    }
    groups
}

fn free_style(datapath: Datapath, taken: &[(usize, &Flow, Style)]) -> Style {
    let preferred = match datapath {
        Datapath::KernelNative => 0,
        Datapath::CcplaneEbpf => 1,
        Datapath::Sim => 2,
    };
    [preferred]
        .into_iter()
        .chain(3..STYLES.len())
        .map(|i| STYLES[i])
        .find(|s| !taken.iter().any(|(_, _, t)| t == s))
        .unwrap_or(STYLES[(preferred + taken.len()) % STYLES.len()])
}
