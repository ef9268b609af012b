//! `ccplane flows`: what `ss -tin` is to the kernel, to the agent.

use super::output::{print, print_json, table};
use crate::cli::FlowsArgs;
use ccplane_agent::control::{
    ArmRecord, FlowRecord, Flows, ModeName, Request, Response, Silence, SteeringRecord, ask,
};
use ccplane_agent::failure::Failure;
use ccplane_agent::place::Located;
use ccplane_monitor::units::bit_rate;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Clears a terminal and homes the cursor.
const CLEAR: &str = "\x1b[2J\x1b[H";
/// Of a terminal that does not say how high it is.
const DEFAULT_LINES: usize = 24;

pub(crate) fn flows(args: &FlowsArgs) -> Result<(), Failure> {
    let located = args.query.place.locate(None)?;
    let on_terminal = args.watch.is_some() && !args.query.json && std::io::stdout().is_terminal();
    let mut watched = Watched::default();
    loop {
        let flows = fetch(&located)?;
        if args.query.json {
            print_json(&flows)?
        } else if on_terminal {
            let lines = terminal_size::terminal_size().map_or(DEFAULT_LINES, |(_, height)| height.0.into());
            print(&format!("{CLEAR}{}", watched.screen(flows, Instant::now(), lines)))?
        } else {
            print(&text(&flows))?
        }
        let Some(seconds) = args.watch else { return Ok(()) };
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
}

/// Counters at the previous listing, from which rates are computed.
#[derive(Default)]
struct Watched {
    at: Option<Instant>,
    acked: HashMap<(String, u64), u64>,
}

impl Watched {
    /// One screen of at most so many lines: a line of totals, and the flows that deliver most.
    fn screen(&mut self, mut flows: Flows, now: Instant, lines: usize) -> String {
        let key = |f: &FlowRecord| (f.datapath.clone(), f.flow);
        let acked = |f: &FlowRecord| f.transport.bytes_acked.unwrap_or(0);
        let seconds = self.at.replace(now).map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        let rate = |f: &FlowRecord| match self.acked.get(&key(f)) {
            Some(before) if seconds > 0.0 => (acked(f).saturating_sub(*before) as f64 / seconds) as u64,
            _ => 0,
        };
        let rates: HashMap<_, _> = flows.flows.iter().map(|f| (key(f), rate(f))).collect();
        // By rate; those of the same rate stay in place from look to look.
        flows.flows.sort_by_key(|f| (Reverse(rates[&key(f)]), f.datapath.clone(), f.flow));
        self.acked = flows.flows.iter().map(|f| (key(f), acked(f))).collect();

        let all = flows.flows.len();
        let steered = flows.flows.iter().filter(|f| f.mode == ModeName::Program).count();
        let total: u64 = rates.values().sum();
        let lost: u64 = flows.flows.iter().filter_map(|f| f.transport.lost).sum();
        // The totals, the header, the cursor's line, and the lines about a silent agent and about unseen flows.
        let around = 3 + usize::from(flows.silent.is_some()) + usize::from(flows.unseen > 0);
        let room = lines.saturating_sub(around);
        let ends = flows.flows.iter().scan(0, |end, flow| {
            *end += lines_of(flow);
            Some(*end)
        });
        let fitting = ends.take_while(|end| *end <= room).count();
        flows.flows.truncate(fitting.max(1));
        let hidden = all - flows.flows.len();
        let more = if hidden > 0 { format!(", {hidden} more not shown") } else { String::new() };
        format!(
            "{all} flows, {steered} by program, {} in all, {lost} packets lost{more}\n{}",
            bit_rate(total as f64),
            text(&flows)
        )
    }
}

fn fetch(located: &Located) -> Result<Flows, Failure> {
    let timeout = located.config.control.timeout_ms.millis();
    match ask(&located.control_socket, timeout, &Request::Flows) {
        Ok(Response::Flows(flows)) => Ok(flows),
        Ok(other) => Err(super::control::unexpected(other)),
        Err(error) => fallback::flows(located, error),
    }
}

fn text(flows: &Flows) -> String {
    let header = ["datapath", "flow", "local", "remote", "algorithm", "program", "mode"];
    let rows: Vec<Vec<String>> = flows
        .flows
        .iter()
        .map(|f| {
            vec![
                f.datapath.clone(),
                f.flow.to_string(),
                f.local.to_string(),
                f.remote.to_string(),
                or_dash(f.algorithm.as_ref()),
                or_dash(f.program.as_ref()),
                mode(f, flows.silent.as_ref()),
            ]
        })
        .collect();
    let mut out = String::new();
    if let Some(silence) = &flows.silent {
        let _ = writeln!(out, "{}", silence_text(silence));
    }
    let lines = table(&header, &rows);
    let mut lines = lines.lines();
    let _ = writeln!(out, "{}", lines.next().unwrap_or_default());
    for (line, flow) in lines.zip(&flows.flows) {
        let _ = writeln!(out, "{line}\n\t {}", figures(flow));
        if let Some(arm) = &flow.arm {
            let _ = writeln!(
                out,
                "\t arm:{} ({}) switches:{} {}",
                arm.name,
                arm.why,
                arm.switches,
                evidence(&arm.evidence)
            );
        }
    }
    if flows.unseen > 0 {
        let _ = writeln!(out, "{} more ended before the agent heard of them", flows.unseen);
    }
    out
}

fn silence_text(silence: &Silence) -> String {
    match (silence.pid, silence.seconds) {
        (Some(pid), Some(s)) => format!("agent pid {pid} has been silent for {s:.1} s: native fallback"),
        (Some(pid), None) => format!("agent pid {pid} is silent: native fallback"),
        (None, _) => "no agent runs: native fallback".to_owned(),
    }
}

fn mode(flow: &FlowRecord, silence: Option<&Silence>) -> String {
    let words = flow.mode_words();
    if flow.mode == ModeName::Program {
        return match &flow.instead_of {
            Some(other) => format!("{words} (instead of {}: {})", other.algorithm, other.why),
            None => words.to_owned(),
        };
    }
    if flow.waits_for_ack {
        return format!("program ({words})");
    }
    let silent_s = silence.and_then(|silence| silence.seconds);
    match (flow.mode, &flow.native_reason, silent_s) {
        (ModeName::NativeNoProgram, Some(reason), _) => format!("native: {words} ({reason})"),
        (ModeName::NativeAgentSilent, _, Some(s)) => format!("native: {words} for {s:.1} s"),
        _ => format!("native: {words}"),
    }
}

/// The lines that [`text`] has for a flow: names, figures, and its arm if it has one.
fn lines_of(flow: &FlowRecord) -> usize {
    2 + usize::from(flow.arm.is_some())
}

/// Each arm's worth over the best one's, and how many intervals say so.
pub(super) fn evidence(arms: &[ArmRecord]) -> String {
    let of = |arm: &ArmRecord| format!("{}:{:.2}/{}", arm.name, arm.worth, arm.intervals);
    arms.iter().map(of).collect::<Vec<_>>().join(" ")
}

/// The value, or a dash where it is not known.
fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// One line in the vocabulary and order of `ss -tin`, as far as ours goes.
fn figures(f: &FlowRecord) -> String {
    let t = &f.transport;
    let ms = |us: Option<u32>| or_dash(us.map(|us| format!("{:.3}", f64::from(us) / 1000.0)));
    let mut line = format!(
        "rtt:{} minrtt:{} mss:{} cwnd:{}",
        ms(t.srtt_us),
        ms(t.min_rtt_us),
        or_dash(t.mss_bytes),
        or_dash(t.snd_cwnd)
    );
    if let Some(ssthresh) = t.snd_ssthresh {
        let _ = write!(line, " ssthresh:{ssthresh}");
    }
    let _ = write!(
        line,
        " bytes_acked:{} pacing_rate {} delivered:{} lost:{} unacked:{} reports:{} faults:{}",
        or_dash(t.bytes_acked),
        or_dash(t.pacing_rate.map(|rate| bit_rate(rate as f64))),
        or_dash(t.delivered),
        or_dash(t.lost),
        or_dash(t.unacked),
        or_dash(t.reports),
        or_dash(t.faults)
    );
    if let Some(SteeringRecord { priority, path, .. }) = &f.steering {
        let _ = write!(line, " priority:{priority} path:{path}");
    }
    if let Some(p) = &f.policy {
        let _ = write!(
            line,
            " snapshot:{}{} level:{} decisions:{} saturated:{} clipped:{} collapsed:{} trips:{}",
            p.uid,
            p.snapshot
                .as_deref()
                .map(|hash| format!("/{}", hash.get(..12).unwrap_or(hash)))
                .unwrap_or_default(),
            p.level,
            p.decisions,
            p.saturated,
            p.clipped,
            p.collapsed,
            p.trips
        );
    }
    line
}

/// The figures without an agent: from the maps that the kernel datapath pins.
mod fallback {
    use super::{Flows, Located, Silence};
    use ccplane_agent::control::{ClientError, FlowRecord};
    use ccplane_agent::failure::Failure;

    pub(super) fn flows(located: &Located, error: ClientError) -> Result<Flows, Failure> {
        let Ok(view) = ccplane_ebpf::read_flows(&located.ebpf_options()) else { return Err(error.into()) };
        let pid = match &error {
            ClientError::Silent { pid, .. } => Some(*pid),
            ClientError::NoAgent { .. } => None,
            // The control socket is served, but the loop behind it hangs.
            ClientError::Refused(_) if view.silent => Some(view.agent_pid),
            _ => return Err(error.into()),
        };
        let flows = view.flows.iter().map(|s| FlowRecord::new("ebpf", s, None)).collect();
        let silent = Some(Silence { pid, seconds: Some(view.silence.as_secs_f64()) });
        Ok(Flows { silent, flows, unseen: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_contract::KnownStats;

    fn record() -> FlowRecord {
        FlowRecord {
            datapath: "ebpf".into(),
            flow: 7,
            local: "10.0.0.1:5201".parse().unwrap(),
            remote: "10.0.0.2:40000".parse().unwrap(),
            cgroup: None,
            algorithm: Some("cubic".into()),
            program: Some("cubic".into()),
            arm: None,
            state: None,
            mode: ModeName::Program,
            waits_for_ack: false,
            native_reason: None,
            instead_of: None,
            last_error: None,
            transport: KnownStats {
                snd_cwnd: Some(42),
                snd_ssthresh: Some(21),
                mss_bytes: Some(1448),
                srtt_us: Some(20_125),
                min_rtt_us: Some(20_000),
                pacing_rate: Some(1_562_500),
                bytes_acked: Some(1_000_000),
                delivered: Some(691),
                lost: Some(3),
                unacked: Some(40),
                reports: Some(17),
                faults: Some(0),
            },
            policy: None,
            steering: None,
        }
    }

    fn shown(flows: Vec<FlowRecord>) -> Flows {
        Flows { silent: None, flows, unseen: 0 }
    }

    #[test]
    fn flows_that_nobody_saw_are_counted_last() {
        let flows = Flows { unseen: 3, ..shown(vec![record()]) };
        assert!(text(&flows).ends_with(" faults:0\n3 more ended before the agent heard of them\n"));
        let screen = Watched::default().screen(flows.clone(), Instant::now(), 6);
        assert!(screen.lines().count() < 6, "{screen}");
        assert_eq!(serde_json::to_value(&flows).unwrap()["unseen"], 3);
        assert_eq!(serde_json::to_value(shown(vec![])).unwrap(), serde_json::json!({ "flows": [] }));
    }

    #[test]
    fn priority_and_path_of_packets_end_the_line() {
        let steering = Some(SteeringRecord { priority: 2, path: 1, decisions: 9 });
        let flow = FlowRecord { steering, ..record() };
        assert!(figures(&flow).ends_with(" faults:0 priority:2 path:1"), "{}", figures(&flow));
        assert_eq!(serde_json::to_value(&flow).unwrap()["steering"]["decisions"], 9);
    }

    #[test]
    fn flows_are_printed_as_ss_does() {
        let flows = shown(vec![record()]);
        assert_eq!(
            text(&flows),
            "datapath  flow  local          remote          algorithm  program  mode\n\
             ebpf      7     10.0.0.1:5201  10.0.0.2:40000  cubic      cubic    program\n\
             \t rtt:20.125 minrtt:20.000 mss:1448 cwnd:42 ssthresh:21 bytes_acked:1000000 pacing_rate 12.50Mbps \
             delivered:691 lost:3 unacked:40 reports:17 faults:0\n"
        );
    }

    /// Nothing is made up for a flow whose datapath measures nothing.
    #[test]
    fn what_is_not_measured_is_a_dash() {
        let transport = KnownStats { mss_bytes: Some(1448), reports: Some(2), ..KnownStats::default() };
        let flow = FlowRecord { transport, ..record() };
        assert_eq!(
            figures(&flow),
            "rtt:- minrtt:- mss:1448 cwnd:- bytes_acked:- pacing_rate - delivered:- lost:- unacked:- reports:2 faults:-"
        );
        assert_eq!(serde_json::to_value(&flow).unwrap()["srtt_us"], serde_json::Value::Null);
    }

    #[test]
    fn a_screen_holds_the_busiest_flows_and_a_line_of_totals() {
        let (mut watched, start) = (Watched::default(), Instant::now());
        let flow = |n, acked| FlowRecord {
            flow: n,
            transport: KnownStats { bytes_acked: Some(acked), ..record().transport },
            ..record()
        };
        let flows = |acked: &dyn Fn(u64) -> u64| shown((0..1000).map(|n| flow(n, acked(n))).collect());
        watched.screen(flows(&|_| 0), start, 24);
        // Flow n delivers n kilobytes in one second.
        let screen = watched.screen(flows(&|n| n * 1000), start + Duration::from_secs(1), 24);
        assert!(screen.lines().count() < 24, "{screen}");
        let first = screen.lines().next().unwrap();
        assert_eq!(
            first,
            "1000 flows, 1000 by program, 4.00Gbps in all, 3000 packets lost, 990 more not shown"
        );
        let numbers: Vec<_> =
            screen.lines().skip(2).step_by(2).map(|l| l.split_whitespace().nth(1).unwrap()).collect();
        assert_eq!(numbers[..3], ["999", "998", "997"]);
        // However low the terminal, something is shown.
        assert_eq!(watched.screen(flows(&|_| 0), start + Duration::from_secs(2), 1).lines().count(), 4);
    }

    #[test]
    fn a_policys_decisions_are_listed_below_its_flow() {
        let policy = ccplane_agent::control::PolicyRecord {
            uid: 7,
            snapshot: Some("0123456789abcdef".into()),
            level: "last_good".into(),
            decisions: 90,
            saturated: 1,
            clipped: 2,
            collapsed: 3,
            trips: 4,
        };
        let flows = shown(vec![FlowRecord { policy: Some(policy), ..record() }]);
        let expected = " faults:0 snapshot:7/0123456789ab level:last_good decisions:90 saturated:1 clipped:2 collapsed:3 trips:4\n";
        assert!(text(&flows).ends_with(expected), "{}", text(&flows));
    }

    #[test]
    fn an_arm_comes_with_its_reason_and_the_evidence() {
        let arm = |name: &str, worth, intervals| ArmRecord { name: name.into(), worth, intervals };
        let arm = ccplane_agent::control::FlowArm {
            name: "copa".into(),
            why: "worth +12 % against dual".into(),
            switches: 5,
            evidence: vec![arm("dual", 0.89, 4), arm("copa", 1.0, 2)],
        };
        let flows = shown(vec![FlowRecord { arm: Some(arm), ..record() }]);
        let expected = "\n\t arm:copa (worth +12 % against dual) switches:5 dual:0.89/4 copa:1.00/2\n";
        assert!(text(&flows).ends_with(expected), "{}", text(&flows));
    }

    /// The receiving side of a connection.
    #[test]
    fn a_program_that_no_ack_has_started_yet_is_not_called_none() {
        let flow = FlowRecord { mode: ModeName::NativeNoProgram, waits_for_ack: true, ..record() };
        let shown = text(&shown(vec![flow]));
        assert!(shown.contains("  cubic      cubic    program (no ACK yet)\n"), "{shown}");
    }

    #[test]
    fn a_silent_agent_is_said_first() {
        let flow = FlowRecord {
            mode: ModeName::NativeAgentSilent,
            transport: KnownStats { snd_ssthresh: None, ..record().transport },
            ..record()
        };
        let silent = Some(Silence { pid: Some(99), seconds: Some(2.34) });
        let flows = Flows { silent, ..shown(vec![flow]) };
        let shown = text(&flows);
        assert!(shown.starts_with("agent pid 99 has been silent for 2.3 s: native fallback\n"), "{shown}");
        assert!(shown.contains("native: agent silent for 2.3 s"), "{shown}");
        assert!(!shown.contains("ssthresh"), "{shown}");
    }
}
