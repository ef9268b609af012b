//! The matrix of comparisons across datapaths, for plans whose contenders fall into [families](super::families).

use ccplane_results::{Datapath, Metric};
use maud::{Markup, html};

use super::compare::{ComparisonVerdict, limit};
use super::tables::{Badge, head, scroll};
use super::view::View;
use super::{compare, figures};
use crate::format;

/// Comparisons with the same limit, of the same metric, against the same datapath: a block of the matrix.
#[derive(PartialEq)]
struct Block {
    metric: Metric,
    limit: String,
    against: Datapath,
}

/// A comparison within a family.
struct Cell<'v, 'a> {
    verdict: &'v ComparisonVerdict<'a>,
    block: Block,
    family: usize,
    datapath: Datapath,
}

/// Algorithms by links and datapaths; `None` if some comparison is not one within a family.
pub fn matrix(view: &View<'_>, verdicts: &[ComparisonVerdict<'_>]) -> Option<Markup> {
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

fn cell<'v, 'a>(view: &View<'_>, verdict: &'v ComparisonVerdict<'a>) -> Option<Cell<'v, 'a>> {
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

fn ratio(verdict: &ComparisonVerdict<'_>) -> Markup {
    let badge = Badge::of(verdict.outcome);
    let missed = matches!(verdict.outcome, compare::LimitVerdict::Missed { .. });
    html! {
        span class=(format!("badge {}", badge.class)) title=(badge.title) {
            @if missed { "✗ " } (format::ratio(verdict.ratio.map(|r| r.ratio)))
        }
    }
}
