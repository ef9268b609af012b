//! Which style a flow has.

use super::model::{Datapath, Flow, Report};
use crate::draw::Style;

/// Distinct styles; a chart with more flows uses them again in turn. The first is the baseline's.
pub const STYLES: [Style; 6] = [
    Style::band(0, 0),
    Style::line(1, 1),
    Style::line(2, 2),
    Style::line(3, 3),
    Style::line(4, 4),
    Style::line(5, 5),
];

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
        Datapath::CcplaneEbpf | Datapath::CcplaneQuic => 1,
        Datapath::Sim => 2,
    };
    [preferred]
        .into_iter()
        .chain(3..STYLES.len())
        .map(|i| STYLES[i])
        .find(|s| !taken.iter().any(|(_, _, t)| t == s))
        .unwrap_or(STYLES[(preferred + taken.len()) % STYLES.len()])
}
