//! Whether a candidate is better than what it is to replace: a sequential test on pairs of windows.
//!
//! A pair is two windows that follow each other, one under the candidate and one under the active snapshot; its difference
//! is one measurement ([`super::switchback`] says of what). Where one is more than [`OUTLIER`] times as far from 0 as half
//! of them are, it counts as that far only (it is winsorised): a flow that starts, or a link that steps, makes one large
//! difference that says little of the others' spread.
//!
//! *The test* is a mixture sequential probability ratio test for a mean of unknown variance (Lai, Annals of Statistics
//! 1976; Wang and Ramdas, Anytime-valid t-tests, 2023). Let `S` be the sum of `n` differences, `V` that of their
//! squares and `m` [`MIXTURE`]. The evidence against equal policies is then
//! `sqrt(m / (n + m)) (1 - S^2 / ((n + m) V))^(-n/2)`. Of equal policies it reaches `1 / a` with probability `a` at
//! most, however often it is checked, so each pair checks it. Harm needs less evidence than help: of two equal
//! policies the candidate is found *worse* in at most [`FALSE_WORSE`] of all trials, and *better* in at most
//! [`FALSE_BETTER`]. What is wrongly found worse costs learning; what is wrongly found better would cost flows. The
//! same evidence, of differences less a margin, tells at the end whether the candidate is *no worse*: what its learner
//! wants is taken where it costs nothing that can be measured.
//!
//! Two pairs in a row that are worse by [`COLLAPSE`] end a trial whatever their spread. One would not do: a link that loses
//! its rate between two windows looks the same.

use serde::{Deserialize, Serialize};

/// Pairs that a trial takes, at most.
pub const MAX_PAIRS: u32 = 12;
/// The largest probability with which a candidate as good as the active snapshot is found better.
pub const FALSE_BETTER: f64 = 0.05;
/// Highest share of equal candidates that the test may find worse.
pub const FALSE_WORSE: f64 = 0.2;
/// One over the variance of the effects that the test is made for, in variances of a difference: those of some 2.6 standard
/// deviations, which three or four pairs tell.
const MIXTURE: f64 = 0.15;
/// Differences beyond so many medians of their sizes are outliers.
const OUTLIER: f64 = 2.0;
/// A pair that is worse by this tells of a collapse, in units of the rewards' scale: a logarithm of the rate fell so.
const COLLAPSE: f64 = 1.0;
/// Flows that are better by this in a candidate's lead than before it were rescued by it, in the same units.
const RECOVERY: f64 = 0.5;
/// Rewards are logarithms of rates and sums of shares. They may well be 0 on average, and still mean this much.
const LEAST_SCALE: f64 = 1.0;

/// Outcome of one interim analysis of a trial.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// The candidate is better.
    Better,
    /// At the last look it is at most the margin worse.
    NoWorse,
    Worse,
    #[default]
    Open,
}

/// One pair of windows.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Pair {
    /// Mean reward under the candidate.
    pub candidate: f64,
    /// Mean reward under the active snapshot.
    pub active: f64,
    /// The candidate's gain in reward, less the change that all flows had.
    pub difference: f64,
    /// Flows that went from one to the other.
    pub flows: u32,
    /// Flows that stayed with the active snapshot.
    pub controls: u32,
}

/// A trial at one look.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Comparison {
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
    /// The difference in its standard errors: Student's t. `None` where all pairs are alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub t: Option<f64>,
    /// Half the width of the difference's interval.
    pub uncertainty: f64,
    /// The largest loss that still counts as no worse.
    pub margin: f64,
    #[serde(default)]
    pub finding: Finding,
}

/// Looks at `pairs`, oldest first; `None` where they are too few to show anything. `margin_share`: how much less is still no
/// worse, as a share of the rewards' scale.
pub(super) fn interim_analysis(pairs: &[Pair], margin_share: f64) -> Option<Comparison> {
    let last = pairs.last()?;
    let count = pairs.len() as u32;
    let n = f64::from(count);
    if count < 2 {
        return None;
    }
    let mean = |of: fn(&Pair) -> f64| pairs.iter().map(of).sum::<f64>() / n;
    let (canary_mean, active_mean) = (mean(|p| p.candidate), mean(|p| p.active));
    let differences = winsorised(pairs);
    let difference = differences.iter().sum::<f64>() / n;
    let scale = scale(active_mean);
    let collapsed = matches!(pairs, [.., before, last] if has_collapsed(before) && has_collapsed(last));
    let variance = differences.iter().map(|d| (d - difference).powi(2)).sum::<f64>() / n;
    let (to_better, to_worse) = (interval(n, variance, FALSE_BETTER), interval(n, variance, FALSE_WORSE));
    let margin = margin_share * scale;
    let finding = if collapsed || difference + to_worse < 0.0 {
        Finding::Worse
    } else if difference - to_better > 0.0 {
        Finding::Better
    } else if count == MAX_PAIRS && difference - to_better > -margin {
        Finding::NoWorse
    } else {
        Finding::Open
    };
    let uncertainty = if finding == Finding::Worse { to_worse } else { to_better };
    if finding == Finding::Open && !uncertainty.is_finite() {
        return None;
    }
    let error = (variance / (n - 1.0)).sqrt();
    let t = if difference == 0.0 { 0.0 } else { difference / error };
    let t = Some(t).filter(|t| t.is_finite());
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

/// Whether a pair of windows tells that flows which had come down have recovered.
pub(super) fn has_recovered(pair: &Pair) -> bool {
    pair.difference > RECOVERY * scale(pair.active)
}

/// Returns whether a pair of windows shows a collapse of the candidate's reward.
pub(super) fn has_collapsed(pair: &Pair) -> bool {
    pair.difference < -COLLAPSE * scale(pair.active)
}

/// The unit in which differences from this reward are measured.
fn scale(reward: f64) -> f64 {
    reward.abs().max(LEAST_SCALE)
}

/// Returns half the width of the confidence sequence of the mean of `n` differences of this variance. The truth is
/// outside of its side with probability `misses` at most. The width is infinite where so few can show nothing.
fn interval(n: f64, variance: f64, misses: f64) -> f64 {
    // Noise is symmetric: each side has half of the errors.
    let evidence = 1.0 / (2.0 * misses);
    let share = 1.0 - ((MIXTURE / (n + MIXTURE)).sqrt() / evidence).powf(2.0 / n);
    let taken = share * (n + MIXTURE);
    if taken >= n { f64::INFINITY } else { (variance * taken / (n - taken)).sqrt() }
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
    use ccplane_testing::fuzz::Draw;

    fn pairs(differences: &[f64]) -> Vec<Pair> {
        let pair = |d: &f64| Pair { candidate: *d, difference: *d, flows: 1, ..Pair::default() };
        differences.iter().map(pair).collect()
    }

    fn finding(differences: &[f64]) -> Option<Finding> {
        interim_analysis(&pairs(differences), 0.05).map(|c| c.finding)
    }

    #[test]
    fn harm_is_told_by_less_than_help() {
        assert_eq!(finding(&[1.0]), None);
        assert_eq!(finding(&[0.8, 1.0]), None, "two pairs promote nothing");
        assert_eq!(finding(&[-0.6, -0.5]), Some(Finding::Worse));
        assert_eq!(finding(&[1.0; 3]), Some(Finding::Better));
        assert_eq!(finding(&[0.8, 1.0, 1.4]), Some(Finding::Open));
        assert_eq!(finding(&[0.6, 1.0, 1.4, 1.0]), Some(Finding::Better));
        // The same spread to either side.
        let spread = [1.0, 0.3, 0.9, 0.5];
        assert_eq!(finding(&spread), Some(Finding::Open));
        assert_eq!(finding(&spread.map(|d| -d)), Some(Finding::Worse));
    }

    /// Equal policies that are compared after each pair seem different no more often than stated. Differences are normal, of
    /// two alternating sizes, or of heavy tails.
    #[test]
    fn errors_are_as_seldom_as_stated() {
        const TRIALS: u32 = 20_000;
        let mut rng = Draw::new(1);
        for kind in 0..3 {
            let (mut better, mut worse) = (0, 0);
            for _ in 0..TRIALS {
                let mut pairs = Vec::new();
                let finding = (0..MAX_PAIRS).find_map(|n| {
                    let size = match kind {
                        0 => 1.0,
                        1 => f64::from(1 + 4 * (n % 2)),
                        _ => 1.0 / ((0..3).map(|_| rng.normal().powi(2)).sum::<f64>() / 3.0).sqrt(),
                    };
                    let difference = 0.1 * size * rng.normal();
                    pairs.push(Pair { difference, ..Pair::default() });
                    interim_analysis(&pairs, 0.0).map(|c| c.finding).filter(|f| *f != Finding::Open)
                });
                better += u32::from(finding == Some(Finding::Better));
                worse += u32::from(finding == Some(Finding::Worse));
            }
            let share = |count: u32| f64::from(count) / f64::from(TRIALS);
            println!("{kind}: better {:.3}, worse {:.3}", share(better), share(worse));
            assert!(share(better) <= FALSE_BETTER && share(worse) <= FALSE_WORSE, "{kind}: {better} {worse}");
            assert!(worse > 2 * better, "harm needs less evidence");
        }
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
            for count in 2..MAX_PAIRS as usize {
                for at in 0..count {
                    let mut differences = vec![0.0; count];
                    differences[at] = step;
                    let found = finding(&differences).unwrap_or(Finding::Open);
                    assert_eq!(found, Finding::Open, "{step} at {at} of {count}");
                }
            }
        }
    }

    #[test]
    fn a_collapse_ends_it_at_the_second_pair() {
        assert_eq!(finding(&[-3.0, -1.2]), Some(Finding::Worse));
        assert_eq!(finding(&[-3.0, -0.9]), None);
        // Of rewards around 10, a loss of 3 is none.
        let pair = |difference| Pair { active: 10.0, difference, ..Pair::default() };
        assert!(has_collapsed(&Pair { active: 2.0, ..pair(-3.0) }) && !has_collapsed(&pair(-3.0)));
        assert_eq!(interim_analysis(&[pair(-3.0), pair(-1.2)], 0.05), None);
    }

    #[test]
    fn an_analysis_has_the_numbers_of_its_pairs() {
        let c = interim_analysis(&pairs(&[1.0, 2.0, 3.0]), 0.05).unwrap();
        assert_eq!((c.pairs, c.difference, c.canary_mean, c.margin), (3, 2.0, 2.0, 0.05));
        assert!((c.t.unwrap() - 2.0 * 3f64.sqrt()).abs() < 1e-12);
        // Were all differences less by this, the evidence would be just enough.
        let less: Vec<f64> = [1.0, 2.0, 3.0].iter().map(|d| d - 2.0 + c.uncertainty).collect();
        let (sum, squares) = (less.iter().sum::<f64>(), less.iter().map(|d| d * d).sum::<f64>());
        let evidence =
            (MIXTURE / (3.0 + MIXTURE)).sqrt() * (1.0 - sum * sum / ((3.0 + MIXTURE) * squares)).powf(-1.5);
        assert!((evidence * 2.0 * FALSE_BETTER - 1.0).abs() < 1e-9, "{evidence}");
    }

    /// A flow that starts makes the first pair; the others agree.
    #[test]
    fn an_outlier_does_not_hide_what_the_others_say() {
        let started = [2.25, 0.4, 0.55, 0.2, 0.35, 0.58];
        let c = interim_analysis(&pairs(&started), 0.05).unwrap();
        assert_eq!(c.finding, Finding::Better, "{c:?}");
        assert!((c.difference - (1.1 + 0.4 + 0.55 + 0.2 + 0.35 + 0.58) / 6.0).abs() < 1e-12);
    }
}
