//! Nimbus (Goyal, Narayan, Cangialosi, Narayana, Alizadeh, Balakrishnan, "Elasticity Detection: A Building Block for
//! Internet Congestion Control", SIGCOMM 2022): low delay unless the cross traffic is elastic.
//!
//! What `nimbus.fold` does, on every ACK, so that no packet waits for the agent:
//!
//! - **Pulses** (section 3.4): the rate is a base rate and a pulse of 5 Hz: for a quarter of the period half a sine up
//!   by `amplitude` percent of the link's rate. For the rest it is half a sine down by a third of that. The sine is
//!   Bhaskara's, in integers, within 0.2 % of the peak: `16 p (w - p) / (5 w^2 - 4 p (w - p))`.
//! - **Delay mode** (section 4.1, BasicDelay), once per round trip:
//!   `S + 0.8 (mu - S - z) + 0.5 mu / x (x_min + d - x)`. In it, `mu - S - z` is written as what it is by the estimate
//!   of `z`: `-mu` times the growth of the RTT over the time in which what was acknowledged had been sent. `x` is the
//!   last RTT; `x_min` the connection's smallest, taken anew after 50 round trips at the smallest rate with more than
//!   the target queued (the path has got longer). After five at more than 9/8 of `mu` with next to nothing queued, `mu`
//!   is too small, and slow start finds out.
//! - **Competitive mode** (section 4.1): Reno's window, paced over the smoothed RTT, with the pulse on top. The paper
//!   has Cubic or Reno. Slow start (in both modes), loss and timeout as in [`crate::RENO`]; in delay mode slow start ends
//!   when the target is queued, and a loss decides nothing.
//!
//! What the agent does, on reports every 10 ms:
//!
//! - **z** (section 3.1, equation 1): `mu S / R - S`, the cross traffic's rate, with `S` and `R` over the same packets: those
//!   acknowledged in the last RTT (at most a quarter of the period). When the first and the last of them left follows from
//!   their RTTs.
//! - **Elasticity** (section 3.3, equation 3): `eta`, z's spectrum over 5 s at the pulse's frequency over
//!   the largest between it and its double. Only those frequencies are computed, as a DFT under a Hann window (not the
//!   paper's): without it the transients of a flow that starts, or of a loss, drown the pulse for 5 s. A swing of
//!   less than a hundredth of the link's rate is no answer to a pulse.
//! - **Mode** (section 4.2): competitive where `eta` is above 2, delay again where it was not for 5 s. A switch to
//!   competitive mode goes back to the rate of 5 s ago, before elastic cross traffic took it away, if that was larger.
//! - **mu** (section 4.3): the largest delivery rate over a whole period, of the last 5 min, unless a parameter says
//!   the link's rate. A flow that never had the link for itself takes its largest share for the link, and
//!   with it inelastic cross traffic for elastic.
//!
//! Left out: several Nimbus flows on one link (section 5: one elected pulser, the others watch). They would
//! pulse at the same frequency and take each other for elastic, and share the link as Reno flows do. A flow that its
//! application limits does not show its pulses: its samples are dropped, and it stays in the mode that it is in.
//!
//! It does not fit stock CCP's limits (its registers do not); every datapath that runs the whole language runs it.

use crate::parameters::{MAX_MSS_BYTES, REPORT_US};
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter, Report};
use std::collections::VecDeque;
use std::f64::consts::TAU;
use std::sync::Arc;

/// Samples of z per period of the pulse.
const SAMPLES_PER_PERIOD: u64 = 20;
/// Periods that the spectrum is taken over: 5 s at 5 Hz, as in the paper.
const PERIODS: usize = 25;
/// Samples that the spectrum is taken over.
const SAMPLES: usize = PERIODS * SAMPLES_PER_PERIOD as usize;
/// The number of samples between two tests of the spectrum.
const SAMPLES_PER_TEST: u32 = 10;
/// Looks in a row without elastic cross traffic after which competitive mode ends: as long as the spectrum is taken over.
const TESTS_TO_LEAVE: u32 = SAMPLES as u32 / SAMPLES_PER_TEST;
/// The least amplitude of z that counts is the link's rate over this.
const MIN_SHARE_OF_LINK: f64 = 100.0;
/// Reports kept: more than a period's.
const MAX_MEASUREMENTS: usize = 256;
/// The time that `mu` remembers, in buckets of [`MU_BUCKET_US`].
const MU_BUCKETS: usize = 60;
/// The length of one of [`MU_BUCKETS`], microseconds.
const MU_BUCKET_US: u64 = 5_000_000;
/// Largest rate that the program takes, bytes per second.
const MAX_LINK_BYTES_PER_S: u64 = u32::MAX as u64;

// State

/// The measurements of one report.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    at_us: u64,
    delivered_bytes: u64,
    rtt_us: u64,
}

/// The agent's side of a Nimbus flow.
struct NimbusFlow {
    config: NimbusConfig,
    /// Reports of about the last period, oldest first.
    measurements: VecDeque<Measurement>,
    /// Largest delivery rates, bytes per second, each of one bucket of time, by the bucket's number.
    rates: VecDeque<(u64, u64)>,
    /// The link's rate that the program has, bytes per second.
    link_bytes_per_s: u64,
    /// Cross traffic and base rate, bytes per second, one sample per step of time, newest last.
    samples: VecDeque<(f64, u64)>,
    /// z at the last report and its time.
    last: Option<(u64, f64)>,
    /// The time when the newest sample was taken.
    sampled_us: u64,
    since_test: u32,
    /// The program's count of ACKs without a backlog.
    limited: i64,
    competitive: bool,
    /// Looks in a row that found no elastic cross traffic.
    inelastic_tests: u32,
}

// Behaviour

/// Returns the elasticity and the amplitude at the pulse's frequency in the samples' unit. Elasticity is the spectrum
/// at the pulse's frequency over the largest above it and below its double. A Hann window keeps a loss or a flow that
/// starts from drowning the pulse: a step's spectrum falls with the third power of the distance instead of the first.
/// Its peaks are three bins wide, so two bins next to each end are left out.
fn elasticity(samples: impl ExactSizeIterator<Item = f64>) -> (f64, f64) {
    let length = samples.len() as f64;
    let hann: Vec<f64> =
        samples.enumerate().map(|(n, z)| z * (0.5 - 0.5 * (TAU * n as f64 / length).cos())).collect();
    let amplitude = |periods: usize| {
        let turn = TAU * periods as f64 / length;
        let (re, im) = hann.iter().enumerate().fold((0.0, 0.0), |(re, im), (n, z)| {
            let (sin, cos) = (turn * n as f64).sin_cos();
            (re + z * cos, im + z * sin)
        });
        // The window halves an amplitude.
        4.0 * f64::hypot(re, im) / length
    };
    let at = amplitude(PERIODS);
    let beside = (PERIODS + 2..=2 * PERIODS - 2).map(amplitude).fold(0.0, f64::max);
    (if beside > 0.0 { at / beside } else { 0.0 }, at)
}

/// Returns the mean rate, bytes per second.
fn rate(bytes: u64, us: u64) -> u64 {
    (u128::from(bytes) * 1_000_000 / u128::from(us.max(1))).min(MAX_LINK_BYTES_PER_S.into()) as u64
}

impl NimbusFlow {
    fn new(config: NimbusConfig) -> NimbusFlow {
        NimbusFlow {
            link_bytes_per_s: config.link_bytes_per_s,
            config,
            measurements: VecDeque::with_capacity(MAX_MEASUREMENTS),
            rates: VecDeque::with_capacity(MU_BUCKETS),
            samples: VecDeque::with_capacity(SAMPLES),
            last: None,
            sampled_us: 0,
            since_test: 0,
            limited: 0,
            competitive: false,
            inelastic_tests: 0,
        }
    }

    /// The newest report that is at least this old, else the oldest.
    fn ago(&self, now: Measurement, us: u64) -> Option<Measurement> {
        let old = self.measurements.iter().rev().find(|s| now.at_us - s.at_us >= us);
        old.or(self.measurements.front()).copied()
    }

    /// mu: the largest delivery rate over a period, of the last 5 min.
    fn measure_link(&mut self, now: Measurement) -> u64 {
        if self.config.link_bytes_per_s > 0 {
            return self.config.link_bytes_per_s;
        }
        let period_us = self.config.pulse_period_us;
        let bucket = now.at_us / MU_BUCKET_US;
        if let Some(then) = self.ago(now, period_us).filter(|then| now.at_us - then.at_us >= period_us) {
            let rate = rate(now.delivered_bytes - then.delivered_bytes, now.at_us - then.at_us);
            match self.rates.back_mut().filter(|(n, _)| *n == bucket) {
                Some((_, largest)) => *largest = rate.max(*largest),
                None => self.rates.push_back((bucket, rate)),
            }
        }
        while self.rates.front().is_some_and(|(n, _)| n + MU_BUCKETS as u64 <= bucket) {
            self.rates.pop_front();
        }
        self.rates.iter().map(|(_, rate)| *rate).max().unwrap_or(0)
    }

    /// z over what was acknowledged in the last RTT.
    fn cross_traffic(&self, now: Measurement) -> Option<f64> {
        let most_us = self.config.pulse_period_us / 4;
        let then = self.ago(now, now.rtt_us.min(most_us))?;
        let took_us = now.at_us.checked_sub(then.at_us).filter(|us| *us > 0)?;
        // When the two left.
        let sent_us = (took_us + then.rtt_us).checked_sub(now.rtt_us).filter(|us| *us > 0)?;
        let bytes = (now.delivered_bytes - then.delivered_bytes) as f64;
        let fill = self.link_bytes_per_s as f64 * took_us as f64 / 1e6;
        Some((fill - bytes) * 1e6 / sent_us as f64)
    }

    /// Takes samples in even steps of time up to this report, on the line from the last one.
    fn sample(&mut self, now: Measurement, base: u64) {
        let step_us = self.config.pulse_period_us / SAMPLES_PER_PERIOD;
        let Some(z) = self.cross_traffic(now) else { return };
        let Some((last_us, last_z)) = self.last.replace((now.at_us, z)) else {
            self.sampled_us = now.at_us;
            return;
        };
        while self.sampled_us + step_us <= now.at_us {
            self.sampled_us += step_us;
            let part = (self.sampled_us.saturating_sub(last_us)) as f64 / (now.at_us - last_us).max(1) as f64;
            if self.samples.len() == SAMPLES {
                self.samples.pop_front();
            }
            self.samples.push_back((last_z + (z - last_z) * part, base));
            self.since_test += 1;
        }
    }

    /// Forgets all samples, since measurements before a gap say nothing about those after it.
    fn forget(&mut self) {
        self.samples.clear();
        self.measurements.clear();
        self.last = None;
    }

    /// Returns the fields to set after a test of the spectrum; `None` if the mode stays or no test is due.
    fn detect_mode(&mut self, srtt_us: u64) -> Option<[(&'static str, i64); 2]> {
        if self.samples.len() < SAMPLES || self.since_test < SAMPLES_PER_TEST {
            return None;
        }
        self.since_test = 0;
        let (eta, amplitude) = elasticity(self.samples.iter().map(|(z, _)| *z));
        let significant = amplitude * MIN_SHARE_OF_LINK >= self.link_bytes_per_s as f64;
        let elastic = significant && eta * 1000.0 > f64::from(self.config.eta_threshold_permille);
        self.inelastic_tests = if elastic { 0 } else { self.inelastic_tests + 1 };
        // Back to delay mode only when a whole window of tests agrees: one loss empties the queue and hides the pulse.
        let elastic = elastic || (self.competitive && self.inelastic_tests < TESTS_TO_LEAVE);
        if elastic == self.competitive {
            return None;
        }
        self.competitive = elastic;
        let then = [self.samples.front(), self.samples.back()].into_iter().flatten().map(|(_, base)| *base);
        let then = then.max().unwrap_or(0);
        let window = u128::from(then) * u128::from(srtt_us) / 1_000_000;
        let window = if elastic { window.min(crate::parameters::MAX_WINDOW_BYTES.into()) as i64 } else { 0 };
        Some([("competitive", i64::from(elastic)), ("window", window)])
    }
}

impl Flow for NimbusFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        let get = |name| report.get(name).unwrap_or(0).max(0) as u64;
        let now = Measurement { at_us: now_us, delivered_bytes: get("delivered"), rtt_us: get("rtt_us") };
        let stale_us = self.config.pulse_period_us / 2;
        let limited = report.get("limited").unwrap_or(0);
        let gap = self.measurements.back().is_some_and(|last| {
            now.at_us.saturating_sub(last.at_us) > stale_us
                || now.at_us < last.at_us
                || now.delivered_bytes < last.delivered_bytes
        });
        if gap || limited != self.limited {
            self.forget();
        }
        self.limited = limited;
        if now.rtt_us == 0 {
            return;
        }
        let link = self.measure_link(now);
        // A larger estimate counts when it is by more than a hundredth: with each, z means something else.
        if link > self.link_bytes_per_s + self.link_bytes_per_s / 100 || link < self.link_bytes_per_s {
            self.link_bytes_per_s = link;
            self.samples.clear();
            self.last = None;
            control.update(&[("link", link as i64)]);
        }
        if self.link_bytes_per_s > 0 && get("slow_start") == 0 {
            self.sample(now, get("base"));
        }
        if self.measurements.len() == MAX_MEASUREMENTS {
            self.measurements.pop_front();
        }
        self.measurements.push_back(now);
        if let Some(fields) = self.detect_mode(get("srtt_us")) {
            control.update(&fields);
        }
    }
}

// Config, defaults

const fn parameter(name: &'static str, about: &'static str, default: i64, min: i64, max: i64) -> Parameter {
    Parameter { name, about, default, min, max }
}

// The paper's values: 12.5 ms, a quarter of the link's rate, 5 Hz, 2.
const LINK: Parameter = parameter(
    "link_bytes_per_s",
    "the bottleneck's rate; 0 to measure it",
    0,
    0,
    MAX_LINK_BYTES_PER_S as i64,
);
const TARGET_DELAY: Parameter =
    parameter("target_delay_us", "queueing delay that delay mode keeps", 12_500, 100, 1_000_000);
const AMPLITUDE: Parameter =
    parameter("amplitude_percent", "height of a pulse, of the link's rate", 25, 0, 50);
const PULSE_PERIOD: Parameter = parameter("pulse_period_us", "a pulse's period", 200_000, 20_000, 4_000_000);
const ETA_THRESHOLD: Parameter = parameter(
    "eta_threshold_permille",
    "elasticity from which cross traffic is elastic",
    2_000,
    1_000,
    1_000_000,
);

/// The parameters that the agent's side of a flow reads.
#[derive(Clone, Copy, Debug)]
struct NimbusConfig {
    /// The bottleneck's rate, payload bytes per second; 0 to measure it.
    link_bytes_per_s: u64,
    pulse_period_us: u64,
    /// Cross traffic of at least this elasticity is elastic, thousandths.
    eta_threshold_permille: u32,
}

impl NimbusConfig {
    fn new(values: &[(&'static str, i64)]) -> NimbusConfig {
        NimbusConfig {
            link_bytes_per_s: LINK.value_in(values) as u64,
            pulse_period_us: PULSE_PERIOD.value_in(values) as u64,
            eta_threshold_permille: ETA_THRESHOLD.value_in(values) as u32,
        }
    }
}

// Factory

/// Makes Nimbus flows; a `report_us` of at most a tenth of the pulse's period makes sense.
#[derive(Clone, Default, Debug)]
pub struct Nimbus {
    values: Vec<(&'static str, i64)>,
}

impl Algorithm for Nimbus {
    ccplane_alg::one_program!("nimbus", "nimbus.fold");

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let mss_bytes = i64::from(info.mss_bytes.clamp(1, MAX_MSS_BYTES));
        let value = |parameter: Parameter| parameter.value_in(&self.values);
        let window = info.init_cwnd_bytes.min(crate::parameters::MAX_WINDOW_BYTES) as i64;
        let fields = [
            ("mss", mss_bytes),
            ("packet", mss_bytes),
            ("report_us", value(REPORT_US)),
            ("link", value(LINK)),
            ("window", window.max(mss_bytes)),
            ("target_us", value(TARGET_DELAY)),
            ("amplitude", value(AMPLITUDE)),
            ("quarter_us", value(PULSE_PERIOD) / 4),
        ];
        control.set_program("nimbus", &fields);
        Box::new(NimbusFlow::new(NimbusConfig::new(&self.values)))
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[LINK, TARGET_DELAY, AMPLITUDE, PULSE_PERIOD, ETA_THRESHOLD, REPORT_US]
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Nimbus { values: values.to_vec() }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ack, Bench, Extremes, MSS, rated_acks};
    use ccplane_alg::{Request, configure};
    use ccplane_program::ir::Prim;
    use proptest::prelude::*;

    const BASE_US: i64 = 50_000;
    /// Rate of the tests' link, bytes per second: 48 Mb/s.
    const RATE: i64 = 6_000_000;
    const QUARTER_US: i64 = 50_000;

    fn start(cwnd_segments: i64) -> Bench {
        let nimbus = Nimbus { values: vec![("link_bytes_per_s", RATE)] };
        Bench::new(&nimbus, MSS as u32, cwnd_segments * MSS)
    }

    fn one(bench: &mut Bench, after_us: i64, segments: i64, ack: Ack) {
        bench.ack_with(after_us, ack, |prims| {
            prims.set(Prim::AckPacketsAcked, segments).set(Prim::FlowBytesPending, 1 << 24);
        });
    }

    /// A round trip of this rate and RTT, in twenty ACKs.
    fn round(bench: &mut Bench, bytes_per_s: i64, rtt_us: i64) {
        let segments = bytes_per_s * rtt_us / 1_000_000 / MSS;
        for n in 0..20 {
            let segments = segments * (n + 1) / 20 - segments * n / 20;
            let in_flight = bench.cwnd();
            one(
                bench,
                rtt_us / 20,
                segments,
                Ack { bytes: segments * MSS, rtt_us, in_flight, ..Ack::default() },
            );
        }
    }

    /// A flow in competitive mode whose window stays: nothing is acknowledged. Its first pulse starts now.
    fn steady(cwnd_segments: i64) -> Bench {
        let mut bench = start(cwnd_segments);
        bench.set("competitive", 1);
        bench.set("Report.slow_start", 0);
        one(&mut bench, 0, 0, Ack { rtt_us: BASE_US, ..Ack::default() });
        bench
    }

    #[test]
    fn a_pulse_is_a_short_half_sine_up_and_a_long_one_down() {
        let mut bench = steady(100);
        let base = 100 * MSS * 1_000_000 / BASE_US;
        let mut sum = 0;
        for phase in 0..4 * QUARTER_US / 100 {
            let x = phase as f64 * 100.0 / QUARTER_US as f64;
            let sine = if x < 1.0 {
                (x * std::f64::consts::PI).sin()
            } else {
                -((x - 1.0) / 3.0 * std::f64::consts::PI).sin() / 3.0
            };
            let wanted = base as f64 + 0.25 * RATE as f64 * sine;
            assert!(
                (bench.rate() as f64 - wanted).abs() < 0.001 * RATE as f64,
                "{phase}: {} {wanted}",
                bench.rate()
            );
            sum += bench.rate() - base;
            one(&mut bench, 100, 0, Ack { rtt_us: BASE_US, ..Ack::default() });
        }
        let mean = sum / (4 * QUARTER_US / 100);
        assert!(mean.abs() < RATE / 1000, "pulses add nothing: {mean}");
        assert_eq!(bench.rate(), base, "the next one starts");
    }

    #[test]
    fn slow_start_ends_when_the_target_is_queued() {
        let mut bench = start(10);
        for _ in 0..3 {
            let rate = bench.cwnd() * 1_000_000 / BASE_US;
            round(&mut bench, rate, BASE_US);
        }
        let window = bench.cwnd();
        assert!(window > 70 * MSS && bench.reg("Report.slow_start") == 1, "{}", window / MSS);
        assert_eq!(bench.rate(), 2 * (window * 1_000_000 / BASE_US));
        round(&mut bench, RATE, BASE_US + 12_501);
        assert_eq!(bench.reg("Report.slow_start"), 0);
    }

    /// A flow in delay mode that has measured one round trip at this RTT.
    fn delayed(bytes_per_s: i64, rtt_us: i64) -> Bench {
        let mut bench = start(200);
        bench.set("Report.slow_start", 0);
        one(&mut bench, 1, 0, Ack { rtt_us: BASE_US, ..Ack::default() });
        (0..3).for_each(|_| round(&mut bench, bytes_per_s, rtt_us));
        bench
    }

    #[test]
    fn basic_delay_keeps_the_rate_at_the_target_and_corrects_beside_it() {
        for (rtt_us, wanted) in [
            (62_500, 3_000_000),
            // 0.5 mu / x of 12.5 ms more, or less.
            (50_000, 3_000_000 + RATE / 2 * 12_500 / 50_000),
            (75_000, 3_000_000 - RATE / 2 * 12_500 / 75_000),
        ] {
            let base = delayed(3_000_000, rtt_us).reg("Report.base");
            assert!((base - wanted).abs() < 3_000_000 / 10, "{rtt_us}: {base} for {wanted}");
        }
    }

    #[test]
    fn basic_delay_stays_between_a_twentieth_and_five_quarters_of_the_link() {
        assert_eq!(delayed(9_000_000, 50_000).reg("Report.base"), RATE * 5 / 4);
        assert_eq!(delayed(100_000, 400_000).reg("Report.base"), RATE / 20);
    }

    #[test]
    fn a_longer_path_is_believed_after_fifty_round_trips_at_the_smallest_rate() {
        let mut bench = delayed(100_000, 400_000);
        (0..40).for_each(|_| round(&mut bench, 100_000, 400_000));
        assert_eq!(bench.reg("Report.min_us"), BASE_US);
        (0..20).for_each(|_| round(&mut bench, 100_000, 400_000));
        assert_eq!(bench.reg("Report.min_us"), 400_000);
    }

    #[test]
    fn a_link_that_is_faster_than_thought_is_probed_by_slow_start() {
        let mut bench = delayed(9_000_000, BASE_US);
        assert_eq!(bench.reg("Report.slow_start"), 0);
        (0..4).for_each(|_| round(&mut bench, 9_000_000, BASE_US));
        assert_eq!((bench.reg("Report.slow_start"), bench.reg("ssthresh")), (1, 1 << 30));
    }

    #[test]
    fn in_competitive_mode_it_is_reno() {
        let mut bench = steady(100);
        round(&mut bench, 100 * MSS * 1_000_000 / BASE_US, BASE_US);
        round(&mut bench, 101 * MSS * 1_000_000 / BASE_US, BASE_US);
        assert_eq!(bench.reg("Report.window"), 101 * MSS);
        for _ in 0..9 {
            one(&mut bench, 100, 0, Ack { lost: 1, rtt_us: BASE_US, in_flight: 99 * MSS, ..Ack::default() });
        }
        assert_eq!(bench.reg("Report.window"), 101 * MSS / 2);
        assert_eq!(bench.cwnd(), 101 * MSS / 2 + RATE / 100, "and room for the pulse");
    }

    #[test]
    fn a_timeout_starts_over_from_one_segment() {
        let mut bench = steady(64);
        one(&mut bench, 1_000_000, 0, Ack { lost: 60, timeout: true, rtt_us: BASE_US, ..Ack::default() });
        assert_eq!((bench.cwnd(), bench.reg("Report.slow_start"), bench.reg("Report.timeouts")), (MSS, 1, 1));
        assert_eq!(bench.reg("ssthresh"), 16 * MSS, "halved for the loss, and for the timeout");
    }

    #[test]
    fn limited_is_a_flow_with_nothing_to_send_and_less_than_half_a_window_in_flight() {
        let mut bench = steady(64);
        for (in_flight, pending, limited) in [(40, 40, 0), (10, 90, 0), (10, 10, 1), (31, 31, 2)] {
            bench.ack_with(
                100,
                Ack { rtt_us: BASE_US, in_flight: in_flight * MSS, ..Ack::default() },
                |prims| {
                    prims.set(Prim::FlowBytesPending, pending * MSS);
                },
            );
            assert_eq!(bench.reg("Report.limited"), limited, "{in_flight} {pending}");
        }
    }

    #[test]
    fn the_agent_sets_the_window_once() {
        let mut bench = steady(64);
        bench.set("window", 10 * MSS);
        one(&mut bench, 100, 0, Ack { rtt_us: BASE_US, ..Ack::default() });
        assert_eq!((bench.reg("Report.window"), bench.reg("window")), (10 * MSS, 0));
    }

    #[test]
    fn rates_follow_the_golden_trajectory() {
        // A link of 48 Mb/s and 50 ms: base rate and RTT after each round trip, in kB/s and 0.1 ms.
        let (mut bench, mut queue, mut measurements) = (start(10), 0, vec![]);
        for _ in 0..24 {
            let rtt_us = BASE_US + queue * 1_000_000 / RATE;
            let sent =
                bench.rate().max(10 * MSS * 1_000_000 / BASE_US).min(bench.cwnd() * 1_000_000 / rtt_us);
            round(&mut bench, sent.min(RATE), rtt_us);
            queue = (queue + (sent - RATE) * rtt_us / 1_000_000).max(0);
            measurements.push((bench.reg("Report.base") / 1000, rtt_us / 100));
        }
        assert_eq!(measurements, GOLDEN);
    }

    #[rustfmt::skip]
    const GOLDEN: [(i64, i64); 24] = [
        // Slow start overshoots; what it queued drains below the target; then the target is 62.5 ms, pulses around it.
        (579, 500), (1158, 500), (2316, 500), (4633, 500), (9267, 500), (15261, 500),
        (6161, 772), (5236, 1271), (3730, 1252), (3853, 1000), (3381, 870), (4973, 500), (5438, 500), (5631, 500),
        (5907, 500), (6542, 500), (6387, 589), (5939, 628), (5831, 616), (6060, 595), (5755, 601), (5762, 560),
        (6507, 508), (6267, 614),
    ];

    /// White noise, the same on every run.
    fn noise(n: usize) -> f64 {
        let x = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f64 / f64::from(1 << 24) - 0.5
    }

    #[test]
    fn elasticity_is_a_peak_at_the_pulse() {
        let pulse = |n: usize| (TAU * n as f64 / SAMPLES_PER_PERIOD as f64).sin();
        let eta = |z: &dyn Fn(usize) -> f64| elasticity((0..SAMPLES).map(z));
        let (elastic, amplitude) = eta(&|n| 5.0 + 0.3 * pulse(n) + 0.3 * noise(n));
        assert!(elastic > 5.0 && (amplitude - 0.3).abs() < 0.05, "{elastic} {amplitude}");
        for inelastic in [
            eta(&|n| 5.0 + noise(n)).0,
            eta(&|n| n as f64).0,
            eta(&|n| f64::from(u8::from(n > 200))).0,
            eta(&|_| 1.0).0,
        ] {
            assert!(inelastic < 2.0, "{inelastic}");
        }
    }

    #[test]
    fn cross_traffic_is_what_the_link_carries_besides() {
        // S = 3 MB/s for 20 ms; the RTT grows by 4 ms meanwhile, so the link got 24 ms' worth in 20: z = 4.2 MB/s.
        let mut flow = NimbusFlow::new(NimbusConfig::new(&[("link_bytes_per_s", RATE)]));
        flow.measurements.push_back(Measurement { at_us: 1_000_000, delivered_bytes: 0, rtt_us: 60_000 });
        let now = Measurement { at_us: 1_024_000, delivered_bytes: 60_000, rtt_us: 64_000 };
        assert_eq!(flow.cross_traffic(now).map(|z| z.round()), Some(4_200_000.0));
    }

    /// Reports of a link shared with cross traffic of this rate, in bytes per second, at the flow's rate.
    fn watch(flow: &mut NimbusFlow, seconds: u64, limited: bool, z: impl Fn(f64) -> f64) -> Control {
        let names = ["delivered", "rtt_us", "srtt_us", "base", "slow_start", "limited"].map(String::from);
        let (mut control, mut delivered, mut queue) = (Control::default(), 0.0, 75_000.0);
        for n in 0..seconds * 100 {
            let t = n as f64 / 100.0;
            let sent = 2_500_000.0 + 750_000.0 * (TAU * 5.0 * t).sin();
            let cross = z(t);
            queue = (queue + (sent + cross - RATE as f64) / 100.0).max(0.0);
            delivered += RATE as f64 / 100.0 * sent / (sent + cross);
            let rtt_us = BASE_US + (queue * 1e6 / RATE as f64) as i64;
            let values = [delivered as i64, rtt_us, rtt_us, 2_500_000, 0, if limited { n as i64 } else { 0 }];
            let report = Report { program: "nimbus", names: &names, values: &values, truth: None };
            flow.on_report(1_000_000 + n * 10_000, &report, &mut control);
        }
        control
    }

    fn watching() -> NimbusFlow {
        NimbusFlow::new(NimbusConfig::new(&[("link_bytes_per_s", RATE)]))
    }

    #[test]
    fn the_mode_follows_the_elasticity() {
        let inelastic = |t: f64| 3_500_000.0 + 100_000.0 * noise((t * 100.0) as usize);
        // Gives way to the pulse, a round trip later.
        let elastic = |t: f64| 3_500_000.0 - 400_000.0 * (TAU * 5.0 * (t - 0.06)).sin();
        assert_eq!(watch(&mut watching(), 12, false, inelastic).requests().len(), 0);
        let mut flow = watching();
        let control = watch(&mut flow, 12, false, elastic);
        let requests: Vec<_> = control.requests().collect();
        let fields = [("competitive", 1), ("window", 2_500_000 * BASE_US / 1_000_000)];
        let [Request { program: None, fields: found }] = requests[..] else { panic!("{requests:?}") };
        assert_eq!((found[0], found[1].0), (fields[0], "window"));
        assert!((found[1].1 - fields[1].1).abs() < fields[1].1, "{found:?}");
        assert_eq!(
            watch(&mut watching(), 12, true, elastic).requests().len(),
            0,
            "what the application limits shows nothing"
        );
    }

    #[test]
    fn plans_set_it_by_name() {
        let nimbus: Arc<dyn Algorithm> = Arc::new(Nimbus::default());
        let set = configure(&nimbus, [("target_delay_us", 5_000), ("pulse_period_us", 400_000)]).unwrap();
        let bench = Bench::new(&*set, MSS as u32, 10 * MSS);
        assert_eq!(
            (bench.reg("target_us"), bench.reg("quarter_us"), bench.reg("amplitude")),
            (5_000, 100_000, 25)
        );
        assert!(configure(&nimbus, [("amplitude_percent", 60)]).is_err());
    }

    const EXTREMES: Extremes = Extremes { rtt_us: 20_000_000, ..Extremes::USUAL };

    /// Sometimes what the agent sets: the link's rate and the mode.
    fn agent() -> impl Strategy<Value = Option<(i64, i64)>> {
        prop_oneof![9 => Just(None), 1 => (0..1i64 << 32, 0..2i64).prop_map(Some)]
    }

    proptest! {
        /// Whatever a datapath and the agent say: no fault ([`Bench::ack`] checks), and the bounds hold.
        #[test]
        fn any_stream_keeps_the_bounds(
            mss in 1..=65_535u32,
            cwnd in 1..1i64 << 30,
            stream in prop::collection::vec((rated_acks(EXTREMES), agent()), 1..200),
        ) {
            let mut bench = Bench::new(&Nimbus::default(), mss, cwnd);
            let mss = i64::from(mss);
            for ((after_us, ack, _), agent) in stream {
                if let Some((link, competitive)) = agent {
                    bench.set("link", link);
                    bench.set("competitive", competitive);
                }
                bench.ack(after_us, ack);
                prop_assert!((mss..=1 << 30).contains(&bench.cwnd()));
                prop_assert!(bench.reg("Report.window") > 0);
                prop_assert!(bench.rate() > 0 || bench.reg("Report.srtt_us") == 0);
            }
        }
    }
}
