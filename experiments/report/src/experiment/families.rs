//! Plans of one algorithm on several datapaths, times many: too many contenders for one chart, so that each algorithm gets its
//! own, and comparisons become a matrix.

use ccplane_results::{Contender, Datapath, Metric};
use maud::{Markup, html};

use super::compare::{Verdict, limit};
use super::tables::{Badge, head, scroll};
use super::view::View;
use super::{compare, figures};
use crate::format;

/// As many contenders can be told apart in one chart.
const CROWD: usize = 8;

/// One algorithm on several datapaths.
pub struct Family {
    /// What its contenders' names have in common.
    pub name: String,
    /// Indices of contenders, in the plan's order.
    pub members: Vec<usize>,
}

/// The families, if all contenders are in one and they are too many for one chart; else none.
pub fn families(contenders: &[Contender]) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for (index, contender) in contenders.iter().enumerate() {
        match families.iter_mut().find(|f| contenders[f.members[0]].is_same_algorithm(contender)) {
            Some(family) => family.members.push(index),
            None => families.push(Family { name: name(contender), members: vec![index] }),
        }
    }
    let ours = contenders.iter().all(|c| c.datapath != Datapath::Kernel);
    if contenders.len() > CROWD && ours && families.iter().all(|f| f.members.len() > 1) {
        families
    } else {
        Vec::new()
    }
}

fn name(contender: &Contender) -> String {
    let datapath = contender.name.strip_suffix(contender.datapath.name());
    datapath.map(str::trim_end).filter(|n| !n.is_empty()).unwrap_or(&contender.name).to_owned()
}

/// Datapaths in the order in which contenders name them: the index of each contender's.
pub fn datapaths(contenders: &[Contender]) -> Vec<usize> {
    let mut seen: Vec<Datapath> = Vec::new();
    let index = |contender: &Contender| {
        seen.iter().position(|d| *d == contender.datapath).unwrap_or_else(|| {
            seen.push(contender.datapath);
            seen.len() - 1
        })
    };
    contenders.iter().map(index).collect()
}

/// Comparisons with the same limit, of the same metric, against the same datapath: a block of the matrix.
#[derive(PartialEq)]
struct Block {
    metric: Metric,
    limit: String,
    against: Datapath,
}

/// A comparison within a family.
struct Cell<'v, 'a> {
    verdict: &'v Verdict<'a>,
    block: Block,
    family: usize,
    datapath: Datapath,
}

/// Algorithms by links and datapaths; `None` if some comparison is not one within a family.
pub fn matrix(view: &View<'_>, verdicts: &[Verdict<'_>]) -> Option<Markup> {
    let cells: Vec<Cell<'_, '_>> = verdicts.iter().map(|v| cell(view, v)).collect::<Option<_>>()?;
    let mut columns: Vec<(Option<usize>, Datapath)> = Vec::new();
    let mut blocks: Vec<&Block> = Vec::new();
    for cell in &cells {
        let column = (cell.verdict.scenario, cell.datapath);
        columns.extend(Some(column).filter(|c| !columns.contains(c)));
        blocks.extend(Some(&cell.block).filter(|b| !blocks.contains(b)));
    }
    columns.sort_by_key(|(scenario, _)| *scenario);
    let groups = columns.chunk_by(|a, b| a.0 == b.0);
    let find = |block: &Block, family, column| {
        cells
            .iter()
            .find(|c| c.block == *block && c.family == family && (c.verdict.scenario, c.datapath) == column)
    };
    let table = html! {
        thead {
            tr { th scope="col" {} @for group in groups { th.group scope="colgroup" colspan=(group.len()) { (view.scenario_name(group[0].0)) } } }
            tr { (head("Algorithm", "")) @for (_, datapath) in &columns { (head(datapath.name(), "")) } }
        }
        @for block in blocks {
            tbody {
                tr {
                    th.span scope="rowgroup" colspan=(columns.len() + 1) {
                        (figures::unit(block.metric).title) " against " (block.against.name())
                        @if !block.limit.is_empty() { ", " (block.limit) }
                    }
                }
                @for (index, family) in view.families.iter().enumerate() {
                    tr {
                        th scope="row" { (family.name) }
                        @for column in &columns { td { @if let Some(cell) = find(block, index, *column) { (ratio(cell.verdict)) } } }
                    }
                }
            }
        }
    };
    Some(scroll("Comparisons across datapaths", table))
}

fn cell<'v, 'a>(view: &View<'_>, verdict: &'v Verdict<'a>) -> Option<Cell<'v, 'a>> {
    let index = |name: &str| view.contenders().iter().position(|c| c.name == name);
    let (of, against) = (index(&verdict.comparison.of)?, index(&verdict.comparison.against)?);
    let family =
        view.families.iter().position(|f| f.members.contains(&of) && f.members.contains(&against))?;
    let block = Block {
        metric: verdict.comparison.metric,
        limit: limit(verdict.comparison),
        against: view.contenders()[against].datapath,
    };
    Some(Cell { verdict, block, family, datapath: view.contenders()[of].datapath })
}

fn ratio(verdict: &Verdict<'_>) -> Markup {
    let badge = Badge::of(verdict.outcome);
    let missed = matches!(verdict.outcome, compare::Outcome::Missed { .. });
    html! {
        span class=(format!("badge {}", badge.class)) title=(badge.title) {
            @if missed { "✗ " } (format::ratio(verdict.ratio.map(|r| r.ratio)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contenders(datapaths: &[Datapath]) -> Vec<Contender> {
        let each = |algorithm: &str| {
            let one = |datapath: &Datapath| Contender {
                name: format!("{algorithm} {}", datapath.name()),
                algorithm: algorithm.into(),
                datapath: *datapath,
                parameters: Default::default(),
                learning: false,
            };
            datapaths.iter().map(one).collect::<Vec<_>>()
        };
        ["reno", "cubic", "bbr"].into_iter().flat_map(each).collect()
    }

    #[test]
    fn a_crowd_falls_into_families_if_all_of_it_does() {
        let three = [Datapath::Ebpf, Datapath::Quic, Datapath::Sim];
        let crowd = contenders(&three);
        let found = families(&crowd);
        let members: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.members.clone())).collect();
        assert_eq!(members, [("reno", vec![0, 1, 2]), ("cubic", vec![3, 4, 5]), ("bbr", vec![6, 7, 8])]);
        assert_eq!(datapaths(&crowd), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert!(families(&contenders(&three[..2])).is_empty(), "six can be told apart");
        let mut odd = crowd.clone();
        odd[3].algorithm = "copa".into();
        assert!(families(&odd).is_empty(), "copa is alone");
        let mut kernel = crowd;
        kernel[3].datapath = Datapath::Kernel;
        assert!(families(&kernel).is_empty(), "the kernel's own is another implementation");
    }
}
