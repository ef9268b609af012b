//! Runs the demo.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ccplane_emulator::{Direction, DirectionStats, Emulator, Loss};
use ccplane_engine::Engine;
use ccplane_report::{BaseRtt, Datapath, Decision, Flow, Learned, Link, Report, Sample, Totals};

use super::capacity::capacity;
use super::config::{DemoConfig, FlowPlan, LOSS_SEED, PhasePlan};
use super::preflight::{missing_for_flow, missing_for_links};
use crate::error::{Error, Result};
use crate::host;
use crate::quic::{QuicPlan, udp_wires};
use crate::table::{Row, Table};
use crate::tcp_info::TcpInfo;
use crate::traffic::{BulkFlow, FlowConfig, Outcome, TcpSample};

/// Time between draws of the table.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// Longest sleep between looks at the caller's wish to stop.
const NAP: Duration = Duration::from_millis(20);
/// IP packets of the links, bytes: the TUN devices' default.
const MTU_BYTES: u64 = 1500;

/// A flow under way, as the hooks see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeenFlow<'a> {
    /// What it is.
    pub plan: &'a FlowPlan,
    /// The sender's address; the same in every link but for the port.
    pub local: SocketAddr,
    /// The receiver's address; its port is the plan's.
    pub remote: SocketAddr,
}

/// What the agent knows of a flow.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AgentView {
    /// For the table: the program that runs, or why none does.
    pub steered_by: String,
    /// Reports received.
    pub reports: u64,
    /// Times that its program was changed.
    pub program_switches: u64,
    /// Saturations and divisions by zero in its programs.
    pub faults: u64,
}

/// What the caller adds to the demo.
pub trait Hooks {
    /// What the agent knows of this flow now; `None` if it does not steer it. Called at each draw of the table, and once
    /// for each flow right before its end.
    fn agent(&mut self, flow: &SeenFlow<'_>) -> Option<AgentView> {
        let _ = flow;
        None
    }

    /// What carries the flows under QUIC; `None` leaves them out.
    fn engine(&self) -> Option<Engine> {
        None
    }

    /// Flows of the same algorithms that ran elsewhere (the simulator), on a link like `config`'s; called once, after the
    /// kernel's flows have ended, also when those could not run.
    ///
    /// # Errors
    /// Ends the demo.
    fn further_flows(
        &mut self,
        config: &DemoConfig,
    ) -> std::result::Result<Vec<Flow>, Box<dyn std::error::Error + Send + Sync>> {
        let _ = config;
        Ok(Vec::new())
    }

    /// What was decided about policies since `started`, on the time axis that starts then; called once, after the kernel's
    /// flows have ended.
    fn decisions(&mut self, started: SystemTime) -> Vec<Decision> {
        let _ = started;
        Vec::new()
    }

    /// Whether to end early, with a report of what was measured so far. Asked often.
    fn stopped(&self) -> bool {
        false
    }
}

/// Runs the demo and returns its report. What this machine cannot run is left out, and the report's notes say precisely why;
/// the caller prints them. Links, namespaces, threads and sockets are gone on return, also on an error.
///
/// # Errors
/// A refused configuration, a link or a flow that could not start, or what a hook says.
pub fn run<W: std::io::Write>(
    config: &DemoConfig,
    hooks: &mut dyn Hooks,
    table: &mut Table<W>,
) -> Result<Report> {
    config.check()?;
    let run = host::run_now(config.command.clone());
    let mut notes = Vec::new();
    let (_, mut flows) = possible_flows(config, hooks, table, &mut notes)?;
    flows.extend(hooks.further_flows(config).map_err(Error::Hook)?);
    Ok(Report {
        title: config.title.clone(),
        summary: "Each flow crosses a link of its own, alone; all links are alike and run at the same time."
            .into(),
        run,
        link: link_of(config),
        phases: config.phase_times(),
        flows,
        learned: None,
        notes,
    })
}

/// Runs the part in which a policy learns beside its flow. What this machine cannot run is left out; `notes` say why.
///
/// # Errors
/// As [`run`].
pub fn learned<W: std::io::Write>(
    config: &DemoConfig,
    hooks: &mut dyn Hooks,
    table: &mut Table<W>,
    notes: &mut Vec<String>,
) -> Result<Learned> {
    config.check()?;
    let (epoch, flows) = possible_flows(config, hooks, table, notes)?;
    // The learner's flow is the first one; what is decided about another's policy is not of this part.
    let learner = config.flows.first().map(|f| f.algorithm.as_str());
    let mut decisions = epoch.map(|epoch| hooks.decisions(epoch)).unwrap_or_default();
    decisions.retain(|d| Some(d.algorithm.as_str()) == learner);
    let base_rtt = |(t_ms, base_rtt_us)| BaseRtt { t_ms, base_rtt_us };
    Ok(Learned {
        link: link_of(config),
        base_rtts: config.base_rtts().into_iter().map(base_rtt).collect(),
        phases: config.phase_times(),
        flows,
        decisions,
    })
}

/// The flows that this machine can run, after they have run; and when their time axis began, if any did.
fn possible_flows<W: std::io::Write>(
    config: &DemoConfig,
    hooks: &mut dyn Hooks,
    table: &mut Table<W>,
    notes: &mut Vec<String>,
) -> Result<(Option<SystemTime>, Vec<Flow>)> {
    let missing = missing_for_links();
    if !missing.is_empty() {
        notes.extend(missing.iter().map(|m| format!("No flow was run live: {m}.")));
        return Ok((None, Vec::new()));
    }
    let (plans, refused): (Vec<_>, Vec<_>) = config
        .flows
        .iter()
        .map(|plan| (plan, missing_for_flow(plan)))
        .partition(|(_, missing)| missing.is_none());
    notes.extend(refused.into_iter().filter_map(|(_, missing)| missing).map(|m| format!("Not run: {m}.")));
    let plans: Vec<&FlowPlan> = plans.into_iter().map(|(plan, _)| plan).collect();
    live_flows(config, &plans, hooks, table, notes)
}

/// One flow on its link.
struct Lane<'a> {
    plan: &'a FlowPlan,
    // Dropped in this order: the flow ends before its link goes.
    flow: BulkFlow,
    emulator: Emulator,
    drawn: Option<TcpSample>,
    throughput_bps: u64,
    agent: Option<AgentView>,
    /// Packets that the link has dropped so far, by time (microseconds since the epoch).
    dropped: Vec<(u64, u64)>,
}

impl Lane<'_> {
    fn live(&self) -> SeenFlow<'_> {
        SeenFlow { plan: self.plan, local: self.flow.local(), remote: self.flow.remote() }
    }

    fn row(&mut self) -> Row {
        let newest = self.flow.latest();
        if let (Some(before), Some(now)) = (self.drawn, newest)
            && now.at_us > before.at_us
        {
            self.throughput_bps = rate_bps(&before, &now);
        }
        self.drawn = newest;
        let agent = self.agent.as_ref();
        Row {
            flow: self.plan.label.clone(),
            steered_by: agent
                .map_or_else(|| format!("kernel {}", self.plan.congestion), |a| a.steered_by.clone()),
            info: newest.map_or_else(TcpInfo::default, |s| s.info),
            throughput_bps: self.throughput_bps,
            reports: agent.map(|a| a.reports),
            faults: agent.map(|a| a.faults),
        }
    }
}

fn live_flows<W: std::io::Write>(
    config: &DemoConfig,
    plans: &[&FlowPlan],
    hooks: &mut dyn Hooks,
    table: &mut Table<W>,
    notes: &mut Vec<String>,
) -> Result<(Option<SystemTime>, Vec<Flow>)> {
    if plans.is_empty() {
        return Ok((None, Vec::new()));
    }
    let link = config.link(&config.phases[0].shape);
    let emulators: Vec<Emulator> =
        plans.iter().map(|_| Ok(Emulator::start(&link)?)).collect::<Result<_>>()?;
    // Samples count from the one, decisions have times of the other.
    let (epoch, started) = (Instant::now(), SystemTime::now());
    let mut lanes = start_lanes(config, plans, emulators, hooks.engine().as_ref(), epoch)?;
    let stopped_at = watch(config, &mut lanes, hooks, table, epoch)?;
    if let Some(elapsed) = stopped_at {
        notes.push(format!("Stopped by the user after {:.1} s.", elapsed.as_secs_f64()));
        lanes.iter().for_each(|lane| lane.flow.stop());
    }
    let mut flows = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let plan = lane.plan;
        // One broken flow does not cost the others their report.
        match finish(lane, config.sample_every, notes) {
            Ok(flow) => flows.push(flow),
            Err(error) => notes.push(format!("{} broke and is left out: {error}.", plan.label)),
        }
    }
    Ok((Some(started), flows))
}

/// Connects all flows at the same time: each connection takes a round trip.
fn start_lanes<'a>(
    config: &DemoConfig,
    plans: &[&'a FlowPlan],
    emulators: Vec<Emulator>,
    engine: Option<&Engine>,
    epoch: Instant,
) -> Result<Vec<Lane<'a>>> {
    let start = |plan: &'a FlowPlan, emulator: Emulator| {
        let receiver = SocketAddr::new(emulator.receiver_addresses().v4.into(), plan.port);
        let (sender_ns, receiver_ns) = (emulator.sender_ns(), emulator.receiver_ns());
        let (duration, sample_every) = (config.duration(), config.sample_every);
        let flow = match (plan.datapath, engine) {
            (Datapath::CcplaneQuic, Some(engine)) => {
                let wires = udp_wires(sender_ns, receiver_ns, receiver)?;
                BulkFlow::start_quic(wires, engine, QuicPlan { duration, sample_every, epoch })?
            }
            _ => {
                let congestion = plan.congestion.clone();
                let flow = FlowConfig { congestion, receiver, duration, bytes: None, sample_every };
                BulkFlow::start(&flow, sender_ns, receiver_ns, epoch)?
            }
        };
        Ok(Lane { plan, flow, emulator, drawn: None, throughput_bps: 0, agent: None, dropped: Vec::new() })
    };
    thread::scope(|scope| {
        let threads: Vec<_> = plans
            .iter()
            .zip(emulators)
            .map(|(plan, emulator)| scope.spawn(move || start(plan, emulator)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or(Err(Error::Panicked("starter")))).collect()
    })
}

/// Changes the links' shapes and draws the table until the flows end. `Some(elapsed)` if the caller stopped it.
fn watch<W: std::io::Write>(
    config: &DemoConfig,
    lanes: &mut [Lane<'_>],
    hooks: &mut dyn Hooks,
    table: &mut Table<W>,
    epoch: Instant,
) -> Result<Option<Duration>> {
    let mut phases = config.phases.iter().zip(config.phase_times()).skip(1).peekable();
    let mut caption = config.phases[0].label.clone();
    let end = config.duration();
    let mut next_draw = Duration::ZERO;
    loop {
        let elapsed = epoch.elapsed();
        if hooks.stopped() {
            return Ok(Some(elapsed));
        }
        if let Some((plan, _)) = phases.next_if(|(_, phase)| elapsed >= Duration::from_millis(phase.t0_ms)) {
            caption.clone_from(&plan.label);
            for lane in lanes.iter() {
                change(&lane.emulator, plan)?;
            }
        }
        let over = elapsed >= end || lanes.iter().all(|lane| lane.flow.is_finished());
        // The last look at the agent comes a draw before the end, as ended flows are soon forgotten.
        if elapsed >= next_draw && !over {
            for lane in lanes.iter_mut() {
                lane.agent = hooks.agent(&lane.live()).or(lane.agent.take());
                lane.dropped.push((elapsed.as_micros() as u64, lost_on_link(&lane.emulator.stats().up)));
            }
            let rows: Vec<Row> = lanes.iter_mut().map(Lane::row).collect();
            table
                .draw(elapsed, &format!("of {:.0} s, {caption}", end.as_secs_f64()), &rows)
                .map_err(|error| Error::Io { what: "draw the table", error })?;
            next_draw += DRAW_EVERY;
        }
        if over {
            return Ok(None);
        }
        let until = phases
            .peek()
            .map_or(end, |(_, phase)| Duration::from_millis(phase.t0_ms))
            .min(next_draw)
            .min(end);
        thread::sleep(until.saturating_sub(epoch.elapsed()).min(NAP));
    }
}

/// The link becomes what the phase says.
fn change(emulator: &Emulator, plan: &PhasePlan) -> Result<()> {
    emulator.set_shape(Direction::Up, plan.shape.clone())?;
    if let Some(delay) = plan.one_way_delay {
        let delay_us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        emulator.set_delay_us(Direction::Up, delay_us)?;
        emulator.set_delay_us(Direction::Down, delay_us)?;
    }
    if let Some(probability) = plan.loss {
        emulator.set_loss(Direction::Up, Loss { probability, seed: LOSS_SEED })?;
    }
    Ok(())
}

fn finish(lane: Lane<'_>, sample_every: Duration, notes: &mut Vec<String>) -> Result<Flow> {
    let outcome = lane.flow.finish()?;
    let up = lane.emulator.stop()?.up;
    let lost_pkts = lost_on_link(&up);
    let agent = lane.agent.as_ref();
    let flow = Flow {
        name: lane.plan.label.clone(),
        algorithm: lane.plan.algorithm.clone(),
        datapath: lane.plan.datapath,
        totals: totals(&outcome, lost_pkts, agent),
        samples: report_samples(&outcome.samples, sample_every, &lane.dropped),
    };
    if up.refused_packets + up.undeliverable_packets > 0 {
        notes.push(format!(
            "{}: the emulator itself lost {} packets, so its figures are not to be trusted.",
            flow.name,
            up.refused_packets + up.undeliverable_packets
        ));
    }
    Ok(flow)
}

fn lost_on_link(up: &DirectionStats) -> u64 {
    up.dropped_packets + up.lost_packets
}

fn totals(outcome: &Outcome, lost_pkts: u64, agent: Option<&AgentView>) -> Totals {
    let (Some(first), Some(last)) = (outcome.samples.first(), outcome.samples.last()) else {
        return Totals::default();
    };
    Totals {
        duration_ms: (last.at_us - first.at_us) / 1000,
        acked_bytes: last.info.bytes_acked - first.info.bytes_acked,
        lost_pkts,
        retransmitted_pkts: last.info.total_retrans.into(),
        min_rtt_us: if last.info.min_rtt_us == u32::MAX { 0 } else { last.info.min_rtt_us.into() },
        reports: agent.map(|a| a.reports),
        program_switches: agent.map(|a| a.program_switches),
        faults: agent.map(|a| a.faults),
    }
}

/// Each sample against the one before; the first, taken before any data was sent, is what the others count from. A sample
/// that comes sooner than half of `every` (a flow's last one) says little about a rate and is left out.
fn report_samples(samples: &[TcpSample], every: Duration, lost: &[(u64, u64)]) -> Vec<Sample> {
    let Some(first) = samples.first() else { return Vec::new() };
    let least_us = every.as_micros() as u64 / 2;
    let mut before = first;
    let mut kept = Vec::with_capacity(samples.len());
    for now in samples.iter().filter(|s| s.at_us > first.at_us) {
        if now.at_us - before.at_us < least_us {
            continue;
        }
        let lost_before = &lost[..lost.partition_point(|(at_us, _)| *at_us <= now.at_us)];
        kept.push(Sample {
            t_ms: now.at_us / 1000,
            throughput_bps: rate_bps(before, now),
            srtt_us: now.info.rtt_us.into(),
            cwnd_pkts: now.info.snd_cwnd.into(),
            pacing_bps: now.info.pacing_rate.checked_mul(8).unwrap_or(0),
            acked_bytes: now.info.bytes_acked - first.info.bytes_acked,
            lost_pkts: lost_before.last().map_or(0, |(_, packets)| *packets),
            retransmitted_pkts: now.info.total_retrans.into(),
        });
        before = now;
    }
    kept
}

/// Payload delivered between two samples, bits per second. Counts packets, also those acknowledged selectively: a cumulative
/// ACK that closes a gap is no burst of the network's.
fn rate_bps(before: &TcpSample, now: &TcpSample) -> u64 {
    let packets = now.info.delivered.wrapping_sub(before.info.delivered);
    let bits = u64::from(packets) * u64::from(now.info.snd_mss_bytes) * 8;
    bits * 1_000_000 / now.at_us.saturating_sub(before.at_us).max(1)
}

fn link_of(config: &DemoConfig) -> Link {
    let base_rtt = config.one_way_delay * 2;
    Link {
        description: format!(
            "{:.0} ms each way, droptail queue of {} packets",
            config.one_way_delay.as_secs_f64() * 1e3,
            config.queue_packets
        ),
        base_rtt_us: u64::try_from(base_rtt.as_micros()).ok(),
        mtu_bytes: MTU_BYTES,
        capacity: capacity(config),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_us: u64, delivered: u32, bytes_acked: u64) -> TcpSample {
        let info = TcpInfo {
            delivered,
            bytes_acked,
            snd_mss_bytes: 1000,
            pacing_rate: u64::MAX,
            ..TcpInfo::default()
        };
        TcpSample { at_us, info }
    }

    #[test]
    fn samples_count_from_the_first_and_a_hasty_last_is_left_out() {
        let samples = [
            sample(40_000, 1, 1),
            sample(100_000, 61, 30_001),
            sample(200_000, 161, 160_001),
            sample(200_900, 161, 160_001),
        ];
        let lost = [(50_000, 1), (150_000, 3), (250_000, 9)];
        let kept = report_samples(&samples, Duration::from_millis(100), &lost);
        let seen: Vec<_> = kept
            .iter()
            .map(|s| (s.t_ms, s.throughput_bps, s.acked_bytes, s.lost_pkts, s.pacing_bps))
            .collect();
        assert_eq!(seen, [(100, 8_000_000, 30_000, 1, 0), (200, 8_000_000, 160_000, 3, 0)]);
        assert!(report_samples(&[], Duration::ZERO, &[]).is_empty());
    }
}
