//! Checks the changes of a link during a run.

use super::{Checked, refuse};
use crate::plan::MAX_CHANGES;
use crate::plan::model::{Change, Medium, PlanLink};
use crate::plan::source::{ChangeSource, LinkSource};

/// The changes of link `n`, in order of time. Its queue stays as long as it is.
pub(super) fn changes(
    n: usize,
    source: &LinkSource,
    link: &PlanLink,
    duration_ms: u64,
) -> Checked<Vec<Change>> {
    if source.change.len() > MAX_CHANGES {
        return refuse(format!("link[{n}].change"), format_args!("at most {MAX_CHANGES} are allowed"));
    }
    let mut changes: Vec<Change> = Vec::with_capacity(source.change.len());
    for (c, source_change) in source.change.iter().enumerate() {
        let field = |key: &str| format!("link[{n}].change[{c}]{key}");
        let ChangeSource { at_s, rate_mbit, delay_ms, loss } = source_change;
        if rate_mbit.is_none() && delay_ms.is_none() && loss.is_none() {
            return refuse(field(""), "one of rate_mbit, delay_ms and loss is needed");
        }
        if rate_mbit.is_some() && !matches!(link.medium, Medium::Rate(_)) {
            return refuse(field(".rate_mbit"), "the link has no rate_mbit that could change");
        }
        if at_s.get() >= duration_ms || changes.last().is_some_and(|before| before.at_ms >= at_s.get()) {
            return refuse(field(".at_s"), "changes follow each other, all before the run's end");
        }
        changes.push(Change {
            at_ms: at_s.get(),
            bit_per_s: rate_mbit.map(|rate| rate.get()),
            delay_us: delay_ms.map(|delay| delay.get()),
            loss_ppm: loss.map(|share| share.small()),
        });
    }
    Ok(changes)
}
