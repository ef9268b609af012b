//! Whether a path has changed, or is only busy: a CUSUM chart (Page, Biometrika 1954) of each quantity, whose rates of false
//! alarms are measured.
//!
//! Each second of a path gives one value of each quantity, as a logarithm: what its flows delivered, the shortest round
//! trip, the share lost where there was no queue. (Queues are left out: they are what flows and cross traffic make, and
//! no policy is trained anew for theirs). After a restart a chart is anchored at the median of its first [`ANCHOR`]
//! values; after an alarm its latest ones do, which have led to it. From then on a value at distance `d` from the
//! anchor scores `d / k - 1`, at least -1 and at most [`MOST`]. Each direction has a sum of scores that never falls
//! below 0; the alarm is at [`LIMIT`]. `k` is half of the least change that matters, or [`NOISE`] times the scale of
//! the noise, whichever is more. Bounded scores, medians and quantiles: no single value, however far out, moves much.
//! While a policy is on trial, nothing that it may have made better is a change.
//!
//! *The limit.* Scores of noise have a negative mean. Let `theta` be such that the mean of `exp(theta score)` is 1:
//! then a sum of independent scores reaches `h` at most once in `exp(theta h)` values (Lorden, Annals of Mathematical
//! Statistics 1971). For Student's t with three degrees of freedom, whose variance hardly exists, `theta` is above 2.3
//! (a test computes it). Noise that stays for `c` values counts as one value in `c`: `c exp(theta h / c)`. Take
//! [`LIMIT`], `c = 3` and a known scale of the noise: by this, six charts of one value a second have less than one
//! false alarm in a day; with its estimate they have more: seven in a hundred hours of such noise were measured, four
//! in 400 with another generator. What stays longer is told from a change only by what follows.
//!
//! *The noise.* Its scale is the 90th percentile of deviations, of those that ended in no alarm, or 1.48 times their
//! median, whichever is more; it outlives a restart, as what crosses a path does. An alarm was false where the path
//! comes back to what it was within [`MEMORY`] changes. So was one after which the same quantity changes the other way
//! within [`STAYS`] seconds: what was between is noise from then on, and the limit is higher for an hour. Where rate
//! and round trip come back to what they were within [`STAYS`] seconds of an alarm, that alarm is taken back
//! ([`Detection::Returned`]). Nothing new is then said of the path. So most of what comes and goes is learned as what
//! it is; what alternates evenly, each 20 s, is still told at times.
//!
//! What this amounts to on simulated links is measured by `tests_change.rs` beside this: see FIGURES.

use std::collections::VecDeque;
use std::fmt;

/// Values that anchor a chart.
pub(super) const ANCHOR: usize = 4;
/// An anchor follows the median of so many values while nothing is suspected.
const ANCHOR_GROWS_TO: usize = 30;
/// Most that one value scores.
const MOST: f64 = 2.0;
/// The sum that is an alarm.
const LIMIT: f64 = 16.0;
/// Share of the limit that the charts of delivery rate and of losses must reach together to tell a flow's collapse.
/// Two independent sums reach 1.25 limits together no more often than one reaches its own.
const JOINT: f64 = 1.25;
/// Share of the limit that each of the two must reach.
const LEAST_JOINT: f64 = 0.5;
/// Reference value of the charts, in scales of the noise.
const NOISE: f64 = 1.5;
/// Deviations that the noise is taken from: of four minutes, or of half an hour, whichever have more of it.
const LATEST: usize = 240;
const DEVIATIONS: usize = 1800;
/// The scale is taken again when one in so many deviations is new.
const KNOWN: usize = 50;
/// Earlier anchors that are remembered.
const MEMORY: usize = 8;
/// The time for which a path has to stay as it is to count as changed, seconds: shorter disturbances are cross traffic.
const STAYS: u64 = 40;
/// Each alarm of so many seconds that was false raises the limit by as much as it is, up to so many times.
const WARY: u64 = 3600;
const WARIEST: f64 = 5.0;
/// A normal distribution's standard deviation is this many of its median absolute deviations, and its 90th percentile of
/// absolute deviations this many standard deviations.
const OF_MEDIAN: f64 = 1.4826;
const P90: f64 = 1.645;

/// A quantity of the path whose changes are detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Quantity {
    Rate,
    Rtt,
    Loss,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Quantity::Rate => "rate",
            Quantity::Rtt => "round trip",
            Quantity::Loss => "loss",
        })
    }
}

/// Verdict on the path after one more second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Detection {
    /// The path has changed, in this quantity first.
    Changed(Quantity),
    /// The path is again what it was before the last alarm.
    Returned,
}

/// The least changes that matter, natural logarithms: by half, by a quarter, by two (of the share lost and [`LOSS_FLOOR`]).
const LEAST: [(Quantity, f64); 3] =
    [(Quantity::Rate, 0.405), (Quantity::Rtt, 0.223), (Quantity::Loss, 0.693)];
/// Added to a share of packets lost before its logarithm: what is below it matters little.
const LOSS_FLOOR: f64 = 0.01;

/// One second of a path.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Block {
    /// Delivery rate of the path's flows together, payload bytes per second.
    pub(super) bytes_per_s: f64,
    /// Shortest smoothed round trip, microseconds.
    pub(super) rtt_us: f64,
    /// Share of packets lost while there was no queue, where enough were sent.
    pub(super) loss: Option<f64>,
}

/// The charts of a path.
#[derive(Debug)]
pub(super) struct Watch {
    charts: [Chart; LEAST.len()],
    /// The latest seconds, for trials.
    latest: VecDeque<Block>,
    /// Seconds so far, when the last alarm was, and when it showed of late that one had been false.
    seconds: u64,
    alarm: Option<(u64, Quantity, Side)>,
    false_alarms: VecDeque<u64>,
    /// When the last alarm of rate or round trip was, which may be taken back, and the anchors of rate and round trip before it.
    left: Option<(u64, [f64; 2])>,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            charts: LEAST.map(|(_, least)| Chart::new(least)),
            latest: VecDeque::new(),
            seconds: 0,
            alarm: None,
            false_alarms: VecDeque::new(),
            left: None,
        }
    }
}

impl Watch {
    /// In a trial flows go back and forth between two policies, never three windows of four seconds on the same: the better of
    /// so many seconds is of the path.
    const TRIAL: usize = 9;

    /// Adds one second of the path, and returns a detection if there is a new one. With `on_trial` the policies alternate.
    pub(super) fn push(&mut self, block: Block, on_trial: bool) -> Option<Detection> {
        let values = self.values(block, on_trial);
        self.seconds += 1;
        while self.false_alarms.front().is_some_and(|at| at + WARY < self.seconds) {
            self.false_alarms.pop_front();
        }
        let limit = LIMIT * (1.0 + self.false_alarms.len() as f64).min(WARIEST);
        let mut changed = None;
        for ((chart, value), (quantity, _)) in self.charts.iter_mut().zip(values).zip(LEAST) {
            // The better of two policies may be what brings more, sooner, or with less loss.
            let unwatched =
                on_trial.then_some(if quantity == Quantity::Rate { Side::Up } else { Side::Down });
            if let Some(side) = value.and_then(|value| chart.push(value, self.seconds, limit, unwatched)) {
                changed.get_or_insert((quantity, side));
            }
        }
        if changed.is_none() && !on_trial && self.has_collapsed(limit) {
            changed = Some((Quantity::Rate, Side::Down));
        }
        let returned = self.charts.iter_mut().filter_map(|chart| chart.returned.take()).count() > 0;
        // Further the same way, or of something else, the same change goes on.
        let is_short = self.alarm.zip(changed).is_some_and(|((at, before, side), (quantity, now))| {
            self.seconds - at < STAYS && before == quantity && side != now
        });
        let is_back = (changed.is_none() || is_short) && self.is_back();
        if returned || is_short || is_back {
            self.false_alarms.push_back(self.seconds);
        }
        if is_back {
            (self.left, self.alarm) = (None, None);
            self.anchor_anew(true, limit);
            return Some(Detection::Returned);
        }
        let (quantity, side) = changed?;
        let is_seen = quantity != Quantity::Loss && self.is_anchored();
        self.left = is_seen.then(|| (self.seconds, [0, 1].map(|n| self.charts[n].centre)));
        self.alarm = Some((self.seconds, quantity, side));
        self.anchor_anew(is_short, limit);
        Some(Detection::Changed(quantity))
    }

    /// Whether less arrives and more is lost, by both charts together.
    fn has_collapsed(&self, limit: f64) -> bool {
        let sums = [self.charts[0].sums[Side::Down as usize], self.charts[2].sums[Side::Up as usize]];
        sums.iter().all(|sum| *sum >= LEAST_JOINT * limit) && sums.iter().sum::<f64>() >= JOINT * limit
    }

    /// The second's value of each quantity, as a logarithm.
    fn values(&mut self, block: Block, on_trial: bool) -> [Option<f64>; LEAST.len()] {
        if self.latest.len() >= Watch::TRIAL {
            self.latest.pop_front();
        }
        self.latest.push_back(block);
        let back = if on_trial { Watch::TRIAL } else { 1 };
        let seen = || self.latest.iter().rev().take(back);
        let bytes_per_s = seen().map(|b| b.bytes_per_s).fold(0.0, f64::max);
        let rtt_us = seen().map(|b| b.rtt_us).fold(f64::INFINITY, f64::min);
        let loss = block.loss.map(|loss| seen().filter_map(|b| b.loss).fold(loss, f64::min));
        [
            Some(bytes_per_s.max(1.0).ln()),
            Some(rtt_us.max(1.0).ln()),
            loss.map(|loss| (loss + LOSS_FLOOR).ln()),
        ]
    }

    /// Whether rate and round trip are again what they were before an alarm of less than [`STAYS`] seconds ago.
    fn is_back(&self) -> bool {
        let Some((at, centres)) = self.left.filter(|(at, _)| self.seconds - at < STAYS) else { return false };
        self.seconds > at
            && self.charts.iter().zip(centres).all(|(chart, centre)| {
                let latest = chart.latest(self.seconds);
                let is_near = |value: &f64| (value - centre).abs() < chart.least / 2.0;
                latest.len() >= ANCHOR && latest.iter().all(is_near)
            })
    }

    /// Begins anew with the latest values, which are what the path is like now.
    fn anchor_anew(&mut self, is_short: bool, limit: f64) {
        let now: Vec<Vec<f64>> = self.charts.iter().map(|chart| chart.latest(self.seconds)).collect();
        self.restart_charts(is_short);
        for (chart, values) in self.charts.iter_mut().zip(now) {
            values.into_iter().for_each(|value| {
                chart.push(value, self.seconds, limit, None);
            });
        }
    }

    /// Whether enough is known since the last restart. Losses may take longer to tell.
    pub(super) fn is_anchored(&self) -> bool {
        self.charts.iter().take(2).all(Chart::is_anchored)
    }

    /// Begins anew, without an alarm: the path is another, or its flows have another policy.
    pub(super) fn restart(&mut self) {
        self.left = None;
        self.restart_charts(false);
    }

    /// Begins anew under another policy. Where flows recover by it, their path has not come back to what it was: the alarm before was
    /// not false.
    pub(super) fn restart_under_another_policy(&mut self) {
        self.restart();
        self.alarm = None;
        for chart in &mut self.charts {
            chart.before.clear();
            chart.passed_by = None;
        }
    }

    fn restart_charts(&mut self, is_short: bool) {
        self.latest.clear();
        self.charts.iter_mut().for_each(|chart| chart.restart(is_short));
    }
}

/// A direction of changes, by its place among a chart's sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Up,
    Down,
}

/// The chart of one quantity.
#[derive(Debug)]
struct Chart {
    least: f64,
    /// The first values since the restart, as far as nothing was suspected.
    anchors: Vec<f64>,
    centre: f64,
    /// The latest values and their seconds.
    recent: VecDeque<(u64, f64)>,
    deviations: VecDeque<f64>,
    /// The scale of the noise, and deviations that it does not know of yet.
    scale: f64,
    unknown: usize,
    /// Sums of the two directions, and the deviations since one of them left 0.
    sums: [f64; 2],
    suspected: Vec<f64>,
    /// The earlier anchors, and the number of values that each was for, latest last.
    before: VecDeque<(f64, usize)>,
    /// The same, where that was for a short while only.
    passed_by: Option<(f64, usize)>,
    /// The chart was anchored where it had been before.
    returned: Option<()>,
    values: usize,
}

impl Chart {
    fn new(least: f64) -> Chart {
        Chart {
            least,
            anchors: Vec::new(),
            centre: 0.0,
            recent: VecDeque::new(),
            deviations: VecDeque::new(),
            scale: 0.0,
            unknown: 0,
            sums: [0.0; 2],
            suspected: Vec::new(),
            before: VecDeque::new(),
            passed_by: None,
            returned: None,
            values: 0,
        }
    }

    fn is_anchored(&self) -> bool {
        self.anchors.len() >= ANCHOR
    }

    /// The values of the latest [`ANCHOR`] seconds.
    fn latest(&self, now: u64) -> Vec<f64> {
        self.recent.iter().filter(|(at, _)| at + ANCHOR as u64 > now).map(|(_, value)| *value).collect()
    }

    /// Takes the value of the second `now`; the direction, if it is an alarm. Where one side is not watched, nothing is learned of noise.
    fn push(&mut self, value: f64, now: u64, limit: f64, unwatched: Option<Side>) -> Option<Side> {
        self.values += 1;
        if self.recent.len() >= ANCHOR {
            self.recent.pop_front();
        }
        self.recent.push_back((now, value));
        if !self.is_anchored() {
            self.anchors.push(value);
            if self.is_anchored() {
                self.anchor();
            }
            return None;
        }
        let (distance, k) = (value - self.centre, self.k());
        let score = |d: f64| (d / k - 1.0).clamp(-1.0, MOST);
        self.sums = [self.sums[0] + score(distance), self.sums[1] + score(-distance)].map(|s| s.max(0.0));
        if let Some(side) = unwatched {
            self.sums[side as usize] = 0.0;
        }
        self.suspected.push(distance.abs());
        if self.sums == [0.0; 2] {
            // It has passed: noise. One direction's end may be the other's beginning.
            let passed = std::mem::take(&mut self.suspected);
            if unwatched.is_some() {
                return None;
            }
            passed.into_iter().for_each(|deviation| self.note(deviation));
            if self.anchors.len() < ANCHOR_GROWS_TO {
                self.anchors.push(value);
                self.centre = quantile(self.anchors.clone(), 0.5);
            }
        }
        [Side::Up, Side::Down].into_iter().find(|side| self.sums[*side as usize] >= limit)
    }

    /// Returns the chart's reference value.
    fn k(&mut self) -> f64 {
        // A few of many hardly move a quantile.
        if self.unknown > self.deviations.len() / KNOWN {
            self.unknown = 0;
            let scale = [LATEST, DEVIATIONS].map(|count| {
                let deviations: Vec<f64> = self.deviations.iter().rev().take(count).copied().collect();
                (OF_MEDIAN * quantile(deviations.clone(), 0.5)).max(quantile(deviations, 0.9) / P90)
            });
            self.scale = scale[0].max(scale[1]);
        }
        (self.least / 2.0).max(NOISE * self.scale)
    }

    fn note(&mut self, deviation: f64) {
        if self.deviations.len() >= DEVIATIONS {
            self.deviations.pop_front();
        }
        self.deviations.push_back(deviation);
        self.unknown += 1;
    }

    fn anchor(&mut self) {
        self.centre = quantile(self.anchors.clone(), 0.5);
        for value in self.anchors.clone() {
            self.note((value - self.centre).abs());
        }
        if let Some((centre, values)) = self.passed_by.take() {
            (0..values).for_each(|_| self.note((centre - self.centre).abs()));
        }
        // What it comes back from was noise.
        let returned = |(centre, _): &(f64, usize)| (centre - self.centre).abs() < self.least / 2.0;
        let Some(at) = self.before.iter().rposition(returned) else { return };
        let between: Vec<(f64, usize)> = self.before.drain(at + 1..).collect();
        self.returned =
            between.iter().any(|(centre, _)| (centre - self.centre).abs() >= self.least).then_some(());
        for (centre, values) in between {
            let deviation = (centre - self.centre).abs();
            (0..values.min(LATEST / 2)).for_each(|_| self.note(deviation));
        }
    }

    fn restart(&mut self, is_short: bool) {
        if self.is_anchored() && is_short {
            self.passed_by = Some((self.centre, self.values));
        } else if self.is_anchored() {
            if self.before.len() >= MEMORY {
                self.before.pop_front();
            }
            self.before.push_back((self.centre, self.values));
        }
        self.anchors.clear();
        self.suspected.clear();
        (self.sums, self.values) = ([0.0; 2], 0);
    }
}

/// Of values; 0 without any.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let at = ((last as f64 * share).round() as usize).min(last);
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_learn::Rng;
    use statrs::distribution::{ContinuousCDF, Normal};

    #[test]
    fn the_scales_of_deviations_are_those_of_the_normal_distribution() {
        let normal = Normal::standard();
        // Half of all deviations lie below the 75th percentile, and nine of ten below the 95th.
        assert!((normal.inverse_cdf(0.75).recip() - OF_MEDIAN).abs() < 1e-4);
        assert!((normal.inverse_cdf(0.95) - P90).abs() < 1e-3);
    }

    /// Student's t with three degrees of freedom.
    fn heavy(rng: &mut Rng) -> f64 {
        let chi = (0..3).map(|_| rng.normal().powi(2)).sum::<f64>() / 3.0;
        rng.normal() / chi.sqrt()
    }

    #[test]
    fn the_limit_is_for_noise_as_heavy_as_has_a_variance() {
        const THETA: f64 = 2.3;
        let mut rng = Rng::new(100, &[]);
        let noise: Vec<f64> = (0..200_000).map(|_| heavy(&mut rng)).collect();
        let sizes: Vec<f64> = noise.iter().map(|x| x.abs()).collect();
        let scale = (OF_MEDIAN * quantile(sizes.clone(), 0.5)).max(quantile(sizes, 0.9) / P90);
        let score = |x: &f64| (x / (NOISE * scale) - 1.0).clamp(-1.0, MOST);
        let mean = noise.iter().map(|x| (THETA * score(x)).exp()).sum::<f64>() / noise.len() as f64;
        assert!(mean < 1.0, "{mean}");
        let stays = 3.0;
        let hours = stays * (THETA * LIMIT / stays).exp() / 6.0 / 3600.0;
        assert!(hours > 24.0, "{hours}");
    }

    /// Twenty hours each of independent noise, and of noise that stays for three seconds: at most two alarms once the noise has
    /// been seen for ten minutes, and at most three before.
    #[test]
    fn heavy_noise_is_no_change() {
        const KNOWN_S: u32 = 600;
        const HOURS: u32 = 20;
        let mut rng = Rng::new(101, &[]);
        for (stays, most) in [(1, [0, 0]), (3, [3, 2])] {
            for scale in [0.02, 0.3] {
                let (mut watch, mut alarms, mut block) = (Watch::default(), [0, 0], None);
                for second in 0..HOURS * 3600 {
                    if second % stays == 0 {
                        let mut noisy = |value: f64| value * (scale * heavy(&mut rng)).exp();
                        let loss = Some(noisy(0.02).min(1.0));
                        block = Some(Block { bytes_per_s: noisy(1e6), rtt_us: noisy(4e4), loss });
                    }
                    let detection = block.and_then(|block| watch.push(block, false));
                    let is_alarm = matches!(detection, Some(Detection::Changed(_)));
                    alarms[usize::from(second >= KNOWN_S)] += u32::from(is_alarm);
                }
                assert!(
                    alarms[0] <= most[0] && alarms[1] <= most[1],
                    "{alarms:?} of noise {scale} that stays {stays} s"
                );
            }
        }
    }

    const BLOCK: Block = Block { bytes_per_s: 1e6, rtt_us: 4e4, loss: Some(0.0) };

    fn seconds(watch: &mut Watch, count: usize, block: Block) -> Option<(usize, Detection)> {
        (1..=count).find_map(|n| watch.push(block, false).map(|detection| (n, detection)))
    }

    #[test]
    fn what_changes_and_stays_is_told_in_seconds() {
        let changes = [
            (Block { bytes_per_s: 2e6, ..BLOCK }, Quantity::Rate),
            (Block { bytes_per_s: 5e5, ..BLOCK }, Quantity::Rate),
            (Block { rtt_us: 6e4, ..BLOCK }, Quantity::Rtt),
            (Block { loss: Some(0.03), ..BLOCK }, Quantity::Loss),
        ];
        let collapsed = Block { bytes_per_s: 2e5, loss: Some(0.1), ..BLOCK };
        let mut watch = Watch::default();
        assert_eq!(seconds(&mut watch, 60, BLOCK), None);
        assert_eq!(seconds(&mut watch, 10, collapsed), Some((5, Detection::Changed(Quantity::Rate))));
        for (changed, quantity) in changes {
            let mut watch = Watch::default();
            assert_eq!(seconds(&mut watch, 60, BLOCK), None);
            assert!(watch.is_anchored());
            assert_eq!(seconds(&mut watch, 10, changed), Some((8, Detection::Changed(quantity))));
            assert!(watch.is_anchored(), "by what has led to the alarm");
            assert_eq!(seconds(&mut watch, 60, changed), None, "once");
        }
        let mut watch = Watch::default();
        let less = Block { bytes_per_s: 1.15e6, rtt_us: 4.4e4, loss: Some(0.003) };
        assert_eq!((seconds(&mut watch, 60, BLOCK), seconds(&mut watch, 600, less)), (None, None));
    }

    /// Half of the rate for twenty seconds is told, and taken back once the path has been what it was for four.
    #[test]
    fn what_passes_is_taken_back() {
        let mut watch = Watch::default();
        seconds(&mut watch, 60, BLOCK);
        let half = Block { bytes_per_s: 5e5, ..BLOCK };
        assert_eq!(seconds(&mut watch, 20, half), Some((8, Detection::Changed(Quantity::Rate))));
        assert_eq!(seconds(&mut watch, 12, half), None);
        assert_eq!(seconds(&mut watch, 10, BLOCK), Some((4, Detection::Returned)));
        assert_eq!(seconds(&mut watch, 600, BLOCK), None, "once");
        // What has stayed for longer is another path.
        let mut watch = Watch::default();
        seconds(&mut watch, 60, BLOCK);
        seconds(&mut watch, 8, half);
        assert_eq!(seconds(&mut watch, 60, half), None);
        assert_eq!(seconds(&mut watch, 10, BLOCK), Some((8, Detection::Changed(Quantity::Rate))));
    }

    /// Flows come down, another policy takes them up again, and the next change is told as soon as any.
    #[test]
    fn a_rescue_is_no_false_alarm() {
        for (is_rescued, told_after) in [(true, 8), (false, 16)] {
            let mut watch = Watch::default();
            seconds(&mut watch, 60, BLOCK);
            let quarter = Block { bytes_per_s: 2.5e5, ..BLOCK };
            assert!(seconds(&mut watch, 50, quarter).is_some());
            seconds(&mut watch, 50, quarter);
            if is_rescued {
                watch.restart_under_another_policy();
            }
            seconds(&mut watch, 60, BLOCK);
            let further = Block { rtt_us: 3e5, ..BLOCK };
            let told = Some((told_after, Detection::Changed(Quantity::Rtt)));
            assert_eq!(seconds(&mut watch, 60, further), told, "{is_rescued}");
        }
    }

    /// Windows of four seconds on two policies, one of which delivers a quarter.
    #[test]
    fn a_trial_is_no_change_but_what_changes_in_it_is_told() {
        let mut watch = Watch::default();
        seconds(&mut watch, 60, BLOCK);
        let worse = Block { bytes_per_s: 2.5e5, rtt_us: 5.5e4, ..BLOCK };
        for n in 0..64 {
            // a c c a
            let is_candidate = (n / 4 % 4 == 1) || (n / 4 % 4 == 2);
            assert_eq!(watch.push(if is_candidate { worse } else { BLOCK }, true), None, "{n}");
        }
        // Nor one that delivers four times as much, with half of the round trip and without the loss.
        let mut better = Watch::default();
        let poor = Block { loss: Some(0.05), ..BLOCK };
        seconds(&mut better, 60, poor);
        let much = Block { bytes_per_s: 4e6, rtt_us: 2e4, loss: Some(0.0) };
        for n in 0..64 {
            let is_candidate = (n / 4 % 4 == 1) || (n / 4 % 4 == 2);
            assert_eq!(better.push(if is_candidate { much } else { poor }, true), None, "{n}");
        }
        let half = |block: Block| Block { bytes_per_s: block.bytes_per_s / 2.0, ..block };
        let told = (0..40).position(|n| {
            let block = if n / 4 % 2 == 1 { worse } else { BLOCK };
            watch.push(half(block), true).is_some()
        });
        assert!(told.is_some_and(|n| n <= 20), "{told:?}");
    }
}
