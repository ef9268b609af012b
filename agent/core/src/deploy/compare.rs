//! Whether a candidate is better than what it is to replace: Student's test on pairs of windows.
//!
//! A pair is two windows that follow each other, one under the candidate and one under the active snapshot; its difference
//! is one measurement ([`super::switchback`] says of what). Where one is more than [`OUTLIER`] times as far from 0 as half
//! of them are, it counts as that far only (it is winsorised): a flow that starts, or a link that steps, makes one large
//! difference that says little of the others' spread. With `d` the mean of `n` of them, `s` its standard error and
//! `t` Student's one-sided 1 % quantile at `n - 1` degrees of freedom, the candidate is *better* once `d - t s > 0` and
//! *worse* once `d + t s < 0`. It is looked at after 3, 4, 6, 9 and 12 pairs, each time at a fifth of 5 % to either side, so
//! that looking often proves nothing by chance (Bonferroni): of two equal policies one is found better, or worse, in at
//! most one trial of twenty. At the last look it is *no worse* if `d - t s > -margin`: what its learner wants is taken where
//! it costs nothing that can be measured.
//!
//! A candidate that starves its flows is not given three pairs: two in a row that are worse by [`COLLAPSE`] end its trial.
//! One would not do: a link that loses its rate between two windows looks the same.

/// Pairs at each look, and Student's quantile at 99 % with one degree of freedom fewer.
const LOOKS: [(u32, f64); 5] =
    [(3, 6.964_557), (4, 4.540_703), (6, 3.364_930), (9, 2.896_459), (12, 2.718_079)];
/// The same for two pairs, which are looked at for a collapse only.
const TWO_PAIRS: (u32, f64) = (2, 31.820_516);
/// Pairs that a trial takes, at most.
pub const MAX_PAIRS: u32 = LOOKS[LOOKS.len() - 1].0;
/// Differences beyond so many medians of their sizes are outliers.
const OUTLIER: f64 = 2.0;
/// How much worse a pair is that tells of a collapse, in units of the rewards' scale: a logarithm of the rate fell so.
const COLLAPSE: f64 = 1.0;
/// Rewards are logarithms of rates and sums of shares. They may well be 0 on average, and still mean this much.
const LEAST_SCALE: f64 = 1.0;

/// What a look has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// The candidate is better.
    Better,
    /// At the last look it is at most the margin worse.
    NoWorse,
    /// It is worse.
    Worse,
    /// Nothing is shown.
    Open,
}

/// One pair of windows.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Pair {
    /// Mean reward under the candidate.
    pub candidate: f64,
    /// Mean reward under the active snapshot.
    pub active: f64,
    /// How much more the candidate got, apart from what changed for everyone.
    pub difference: f64,
    /// Flows that went from one to the other.
    pub flows: u32,
    /// Flows that stayed with the active snapshot.
    pub controls: u32,
}

/// A trial at one look.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Comparison {
    /// Pairs of windows.
    pub pairs: u32,
    /// Flows that were compared with themselves in the last pair.
    pub flows: u32,
    /// Flows that stayed with the active snapshot in the last pair: what changed for them is taken off.
    pub controls: u32,
    /// Mean reward under the candidate.
    pub canary_mean: f64,
    /// Mean reward of the same flows under the active snapshot.
    pub active_mean: f64,
    /// Mean of the pairs' differences, outliers brought in.
    pub difference: f64,
    /// The difference in its standard errors: Student's t. Infinite where all pairs are alike.
    pub t: f64,
    /// Half the width of the difference's interval.
    pub uncertainty: f64,
    /// How much less is still no worse.
    pub margin: f64,
    /// What follows.
    pub finding: Finding,
}

/// Looks at `pairs`, oldest first, if it is time to. `margin_share`: how much less is still no worse, as a share of the
/// rewards' scale.
pub(super) fn look(pairs: &[Pair], margin_share: f64) -> Option<Comparison> {
    let last = pairs.last()?;
    let count = pairs.len() as u32;
    let n = f64::from(count);
    let mean = |of: fn(&Pair) -> f64| pairs.iter().map(of).sum::<f64>() / n;
    let (canary_mean, active_mean) = (mean(|p| p.candidate), mean(|p| p.active));
    let differences = winsorised(pairs);
    let difference = differences.iter().sum::<f64>() / n;
    let scale = active_mean.abs().max(LEAST_SCALE);
    let collapsed = |pair: &Pair| pair.difference < -COLLAPSE * scale;
    let collapsed = matches!(pairs, [.., before, last] if collapsed(before) && collapsed(last));
    let is_look = LOOKS.iter().any(|(at, _)| *at == count);
    if !is_look && !collapsed {
        return None;
    }
    let (_, quantile) = LOOKS.iter().copied().rfind(|(at, _)| *at <= count).unwrap_or(TWO_PAIRS);
    let squares: f64 = differences.iter().map(|d| (d - difference).powi(2)).sum();
    let error = (squares / (n - 1.0).max(1.0) / n).sqrt();
    let uncertainty = quantile * error;
    let margin = margin_share * scale;
    let finding = if collapsed || difference + uncertainty < 0.0 {
        Finding::Worse
    } else if difference - uncertainty > 0.0 {
        Finding::Better
    } else if count == MAX_PAIRS && difference - uncertainty > -margin {
        Finding::NoWorse
    } else {
        Finding::Open
    };
    let t = if difference == 0.0 { 0.0 } else { difference / error };
    Some(Comparison {
        pairs: count,
        flows: last.flows,
        controls: last.controls,
        canary_mean,
        active_mean,
        difference,
        t,
        uncertainty,
        margin,
        finding,
    })
}

/// The pairs' differences, without outliers.
fn winsorised(pairs: &[Pair]) -> Vec<f64> {
    let mut sizes: Vec<f64> = pairs.iter().map(|p| p.difference.abs()).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    let limit = OUTLIER * sizes.get(sizes.len() / 2).copied().unwrap_or(0.0);
    pairs.iter().map(|p| p.difference.clamp(-limit, limit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(differences: &[f64]) -> Vec<Pair> {
        let pair = |d: &f64| Pair { candidate: *d, difference: *d, flows: 1, ..Pair::default() };
        differences.iter().map(pair).collect()
    }

    fn finding(differences: &[f64]) -> Option<Finding> {
        look(&pairs(differences), 0.05).map(|c| c.finding)
    }

    #[test]
    fn looks_are_few_and_each_is_harder_to_pass_the_earlier_it_is() {
        assert_eq!(finding(&[1.0]), None);
        assert_eq!(finding(&[1.0; 2]), None);
        assert_eq!(finding(&[1.0; 5]), None);
        // t is 5: enough of four pairs, not of three.
        assert_eq!(finding(&[0.8, 1.0, 1.4]), Some(Finding::Open));
        assert_eq!(finding(&[0.6, 1.0, 1.4, 1.0]), Some(Finding::Better));
        assert_eq!(finding(&[-0.6, -0.5, -0.6]), Some(Finding::Worse));
    }

    #[test]
    fn no_worse_is_for_the_end() {
        let noise = [0.05, -0.05, 0.03, -0.03];
        assert_eq!(finding(&noise), Some(Finding::Open));
        assert_eq!(finding(&noise.repeat(3)), Some(Finding::NoWorse));
        let loud: Vec<f64> = noise.repeat(3).iter().map(|d| 10.0 * d).collect();
        assert_eq!(finding(&loud), Some(Finding::Open));
        assert_eq!(finding(&[0.0; 12]), Some(Finding::NoWorse), "the same policy");
    }

    /// A step within one pair, however large, is one outlier: t is 1 whatever their number.
    #[test]
    fn one_step_decides_nothing() {
        for step in [-1.0, -9.0, 9.0] {
            for count in [3, 4, 6, 9] {
                for at in 0..count {
                    let mut differences = vec![0.0; count];
                    differences[at] = step;
                    assert_eq!(finding(&differences), Some(Finding::Open), "{step} at {at} of {count}");
                }
            }
        }
    }

    #[test]
    fn a_collapse_ends_it_at_the_second_pair() {
        assert_eq!(finding(&[-3.0, -1.2]), Some(Finding::Worse));
        assert_eq!(finding(&[-3.0, -0.9]), None);
        // Of rewards around 10, a loss of 3 is none.
        let pair = Pair { active: 10.0, difference: -3.0, ..Pair::default() };
        assert_eq!(look(&[pair; 2], 0.05), None);
    }

    #[test]
    fn numbers() {
        let c = look(&pairs(&[1.0, 2.0, 3.0]), 0.05).unwrap();
        assert_eq!((c.pairs, c.difference, c.canary_mean, c.margin), (3, 2.0, 2.0, 0.05));
        assert!(
            (c.t - 2.0 * 3f64.sqrt()).abs() < 1e-12 && (c.uncertainty - 6.964_557 / 3f64.sqrt()).abs() < 1e-9
        );
    }

    /// A flow that starts makes the first pair; the others agree.
    #[test]
    fn an_outlier_does_not_hide_what_the_others_say() {
        let started = [2.25, 0.4, 0.55, 0.2, 0.35, 0.58];
        let c = look(&pairs(&started), 0.05).unwrap();
        assert_eq!(c.finding, Finding::Better, "{c:?}");
        assert!((c.difference - (1.1 + 0.4 + 0.55 + 0.2 + 0.35 + 0.58) / 6.0).abs() < 1e-12);
    }
}
