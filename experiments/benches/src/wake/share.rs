//! `wake.auto.share`: the processor time that `auto` takes beyond a loop that only sleeps, against its budget.
//!
//! The loop is the same in both, asleep and choosing, so what is left of the difference was polled. Where gaps are shorter
//! than a sleep costs, polling is cheaper than sleeping, and the difference is counted as nothing.

use super::ways::{ASLEEP, AUTO_CPU_PERCENT, CHOSEN, Place};
use super::{Load, ROUNDS, block};
use crate::error::BenchError;
use crate::figure::{Figure, Pair, in_turn, percentile};
use crate::proof::{self, Proof};
use std::time::Duration;

/// The time before a block in which `auto` gets to know the load.
const WARM: Duration = Duration::from_millis(500);

/// Loads of about a second each: a budget is kept over a second.
const LOADS: [Load; 3] = [
    Load { name: "100us", gap: Duration::from_micros(100), events: 6000, warm: WARM },
    Load { name: "1ms", gap: Duration::from_millis(1), events: 900, warm: WARM },
    Load { name: "20ms", gap: Duration::from_millis(20), events: 50, warm: WARM },
];

pub(super) fn run() -> Result<Vec<Figure>, BenchError> {
    let mut figures = LOADS.iter().map(measure).collect::<Result<Vec<_>, _>>()?;
    let worst = figures.iter().max_by(|a, b| a.value.total_cmp(&b.value)).cloned();
    figures.extend(worst.map(|worst| {
        let note = format!("the worst of all loads: {}", worst.name);
        worst.named("wake.auto.share").with_note(note)
    }));
    Ok(figures)
}

fn measure(load: &Load) -> Result<Figure, BenchError> {
    let (mut shares, mut asleep): (Vec<Pair>, Vec<f64>) = Default::default();
    let mut proofs: Vec<Proof> = Vec::new();
    for round in 0..ROUNDS {
        let place = Place::OtherCore;
        let (chosen, slept) =
            in_turn(round, || block(&CHOSEN, place, load, 1), || block(&ASLEEP, place, load, 1))?;
        shares.push(beyond(chosen.cpu_percent, slept.cpu_percent));
        asleep.push(slept.cpu_percent);
        proofs.extend([chosen.proof, slept.proof]);
    }
    let name = format!("wake.auto.share.{}", load.name);
    let baseline = "its budget";
    let note = format!("asleep, the same loop takes {:.2} %", percentile(&asleep, 0.5));
    let figure = Figure::paired(name, "%", baseline, &shares, &proof::all(&proofs)?);
    Ok(figure.or_zero().with_note(note))
}

/// A share of a core beyond that of sleeping, beside the budget.
fn beyond(chosen_percent: f64, asleep_percent: f64) -> Pair {
    ((chosen_percent - asleep_percent).max(0.0), f64::from(AUTO_CPU_PERCENT))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cores::OneCore;

    #[test]
    fn sleeping_is_not_counted_against_the_budget() {
        assert_eq!(beyond(12.5, 2.5), (10.0, 10.0));
        assert_eq!(beyond(1.0, 2.5), (0.0, 10.0));
    }

    #[test]
    fn both_loops_take_all_events_and_some_of_the_core() {
        if OneCore::all().len() < 2 {
            return ccplane_testing::skipped("the share of auto", "one core");
        }
        let _alone = crate::cores::alone();
        let load = Load { name: "test", gap: Duration::ZERO, events: 50, warm: Duration::from_millis(1) };
        for way in [CHOSEN, ASLEEP] {
            let measured = block(&way, Place::OtherCore, &load, 1).unwrap();
            assert!(measured.cpu_percent > 0.0, "{}: {}", way.name, measured.cpu_percent);
        }
    }
}
