//! The figures of a plan of load balancing, as text and as CSV.

use super::plan::{BalancePlan, Balancer};
use super::play::BalanceCell;
use super::uplinks::Uplinks;
use crate::figures::{Figure, Interval, SizeClass, geometric_mean};
use std::fmt::Write as _;

/// What is asked of the ratios: whose completion times `path`'s are held against, where, and at most so much.
const WANTED: [(Balancer, SizeClass, bool, f64); 9] = [
    (Balancer::PathAgent, SizeClass::Small, true, 1.0 - 0.343),
    (Balancer::PathAgent, SizeClass::Medium, true, 1.0 - 0.567),
    (Balancer::PathAgent, SizeClass::Large, true, 1.0 - 0.567),
    (Balancer::Oracle, SizeClass::Small, true, 1.1),
    (Balancer::Oracle, SizeClass::Medium, true, 1.1),
    (Balancer::Oracle, SizeClass::Large, true, 1.1),
    (Balancer::Ecmp, SizeClass::Small, false, 1.03),
    (Balancer::Ecmp, SizeClass::Medium, false, 1.03),
    (Balancer::Ecmp, SizeClass::Large, false, 1.03),
];

type Pair = (Balancer, Balancer);

/// The ratio of one contender's figure to another's on the same flows, over all repeats of these loads.
fn ratio(
    cells: &[BalanceCell],
    (sizes, uplinks): (usize, Uplinks),
    loads_percent: &[u32],
    (of, against): Pair,
    class: SizeClass,
    figure: Figure,
) -> Option<Interval> {
    let mut ratios = Vec::new();
    for load in loads_percent {
        let values = |contender: Balancer| {
            let own = cells.iter().filter(move |cell| {
                (cell.sizes, cell.uplinks, cell.load_percent, cell.contender)
                    == (sizes, uplinks, *load, contender)
            });
            own.map(move |cell| figure.of(&cell.completions_ns[class as usize]))
        };
        ratios.extend(values(of).zip(values(against)).filter_map(|(of, against)| Some(of? / against?)));
    }
    geometric_mean(&ratios)
}

fn interval(interval: Option<Interval>) -> String {
    interval.map_or_else(|| "-".to_owned(), |i| format!("{:.2} ({:.2} to {:.2})", i.value, i.low, i.high))
}

/// Returns the ratios and verdicts as text.
pub fn balance_text(plan: &BalancePlan, cells: &[BalanceCell]) -> String {
    let mut text = String::new();
    for (n, sizes) in plan.sizes.iter().enumerate() {
        for uplinks in plan.uplinks.iter().copied() {
            let at = (n, uplinks);
            let _ = writeln!(
                text,
                "\n{}, {}: mean completion times to ecmp's, all loads",
                sizes.name(),
                uplinks.name()
            );
            for contender in plan.contenders.iter().copied() {
                let _ = write!(text, "  {:12}", contender.name());
                for class in SizeClass::ALL {
                    let pair = (contender, Balancer::Ecmp);
                    let found = ratio(cells, at, &plan.loads_percent, pair, class, Figure::Mean);
                    let _ = write!(text, "  {}: {}", class.name(), interval(found));
                }
                text.push('\n');
            }
            for (against, class, differ, at_most) in WANTED {
                if differ != (uplinks != Uplinks::Even) {
                    continue;
                }
                let pair = (Balancer::Path, against);
                let Some(found) = ratio(cells, at, &plan.loads_percent, pair, class, Figure::Mean) else {
                    continue;
                };
                let verdict = if found.value <= at_most { "met" } else { "missed" };
                let (against, class, found) = (against.name(), class.name(), interval(Some(found)));
                let _ = writeln!(
                    text,
                    "  wanted: path to {against}, {class}: {found}, at most {at_most:.3}: {verdict}"
                );
            }
        }
    }
    text
}

/// Returns every run's figures as CSV.
pub fn balance_csv(plan: &BalancePlan, cells: &[BalanceCell]) -> String {
    let mut text = String::from(
        "sizes,uplinks,load_percent,contender,repeat,class,flows,mean_us,p50_us,p95_us,p99_us,unfinished,dropped_packets\n",
    );
    for cell in cells {
        for class in SizeClass::ALL {
            let times = &cell.completions_ns[class as usize];
            let figures =
                Figure::ALL.map(|figure| figure.of(times).map_or_else(String::new, |us| format!("{us:.1}")));
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{},{},{}",
                plan.sizes[cell.sizes].name(),
                cell.uplinks.name(),
                cell.load_percent,
                cell.contender.name(),
                cell.repeat,
                class.name(),
                times.len(),
                figures.join(","),
                cell.unfinished,
                cell.dropped
            );
        }
    }
    text
}
