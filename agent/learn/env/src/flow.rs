//! One flow: an algorithm's program in the VM, its agent's side, and its transport.

use crate::foresight::{Foresight, Shadow};
use crate::interval::{Compiled, Interval};
use crate::link::{Bottleneck, Fate, NS_PER_S};
use crate::scenario::FlowSetup;
use crate::transport::{Acked, Transit, Transport};
use crate::{Decider, EnvError};
use ccplane_alg::{Algorithm, Control, FlowInfo, Row, Truth};
use ccplane_program::compile;
use ccplane_program::ir::MAX_REGS;
use ccplane_program::vm::{self, Decision, Knobs, Policies};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Bytes of IPv4 and TCP headers, with the timestamp option.
pub(crate) const HEADER_BYTES: u64 = 52;
/// Congestion window that a flow starts with, packets (RFC 6928).
const INITIAL_WINDOW: u64 = 10;
/// The largest congestion window, packets.
const MAX_WINDOW: u64 = 1 << 20;
/// A paced sender lets so many microseconds of its rate leave at once, at least two packets (Linux, tcp_tso_autosize).
const BURST_SHIFT: u32 = 10;
const MAX_BURST: u64 = 44;
/// The time of an event that never comes.
const NEVER: u64 = u64::MAX;
/// Control register that an environment sets where a program has it.
const START_RATE: &str = "start_rate";

/// An algorithm with its programs compiled.
#[derive(Clone)]
pub struct Prepared {
    algorithm: Arc<dyn Algorithm>,
    programs: Arc<[Compiled]>,
}

impl Prepared {
    /// # Errors
    /// A program that does not compile.
    pub fn new(algorithm: Arc<dyn Algorithm>) -> Result<Prepared, EnvError> {
        let compiled = |source: ccplane_alg::ProgramSource| {
            let program = compile(source.source).map_err(|diagnostics| EnvError::Program {
                program: source.name,
                count: diagnostics.len(),
            })?;
            let regs = program.regs();
            let report_names = regs[..program.report_len()]
                .iter()
                .map(|reg| reg.name.strip_prefix("Report.").unwrap_or(&reg.name).to_owned())
                .collect();
            let start_rate = program.reg(START_RATE);
            Ok(Compiled { name: source.name, program, report_names, start_rate })
        };
        let programs = algorithm.programs().into_iter().map(compiled).collect::<Result<_, EnvError>>()?;
        Ok(Prepared { algorithm, programs })
    }

    /// Returns the algorithm of the flows.
    pub fn algorithm(&self) -> &Arc<dyn Algorithm> {
        &self.algorithm
    }

    /// The same programs under the algorithm configured otherwise.
    pub(crate) fn configured(&self, algorithm: Arc<dyn Algorithm>) -> Prepared {
        Prepared { algorithm, programs: Arc::clone(&self.programs) }
    }

    /// Inputs of its policy: the most cells that a program of it keeps.
    pub fn policy_inputs(&self) -> usize {
        self.programs.iter().map(|p| p.program.policy_inputs()).max().unwrap_or(0)
    }

    /// The policy slot that its programs ask.
    pub fn slot(&self) -> Option<u8> {
        self.programs.iter().flat_map(|p| p.program.policy_slots()).next()
    }
}

/// The totals of a flow so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Decisions of its policy.
    pub(crate) steps: usize,
    /// Sum of rewards, and how many.
    pub(crate) rewards: (f64, usize),
}

pub(crate) struct EnvFlow<'a> {
    compiled: &'a [Compiled],
    running: usize,
    vm: vm::ProgramState,
    agent: Box<dyn ccplane_alg::Flow>,
    /// Hears reports before their interval's action is decided, where the decider wants that.
    shadow: Option<Shadow>,
    control: Control,
    pub(crate) transport: Transport,
    setup: &'a FlowSetup,
    /// The number of its agent in the decider.
    index: usize,
    window: u64,
    /// The time when the next packet may leave, and how many may.
    paced_ns: u64,
    gap_ns: u64,
    burst: u64,
    paced_rate: i64,
    last_back_ns: u64,
    /// Rate of its bottleneck that is left to it, payload bytes per second.
    pub(crate) link_bytes_per_s: u64,
    /// The time when anything happens to it.
    pub(crate) due_ns: u64,
    send_ns: u64,
    pub(crate) counts: Counts,
}

/// Asks the decider as one agent.
struct Asking<'d, D: ?Sized, M> {
    decider: &'d mut D,
    agent: usize,
    /// Decisions before this ACK.
    steps: usize,
    foresight: Option<Foresight<'d, M>>,
}

impl<D: Decider + ?Sized, M: vm::Measured> Policies for Asking<'_, D, M> {
    fn decide(&mut self, _slot: u8, inputs: &[i32], knobs: &mut Knobs) -> Decision {
        let reward = self.foresight.as_mut().and_then(Foresight::reward);
        // The first action's row tells of what was before it.
        if let Some(reward) = reward.filter(|_| self.steps > 0) {
            self.decider.foreseen(self.agent, reward);
        }
        self.decider.decide(self.agent, inputs, knobs)
    }
}

impl<'a> EnvFlow<'a> {
    pub(crate) fn new(
        prepared: &'a Prepared,
        setup: &'a FlowSetup,
        index: usize,
        foresees: bool,
    ) -> EnvFlow<'a> {
        let address = |host, port| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), port);
        let cwnd_bytes = INITIAL_WINDOW * setup.mss_bytes;
        let info = FlowInfo {
            mss_bytes: setup.mss_bytes as u32,
            init_cwnd_bytes: cwnd_bytes,
            local: address(1, 40_000),
            remote: address(2, 5001),
            cgroup: None,
            min_rtt_us: u32::try_from(setup.delay_ns / 1000).ok(),
        };
        let mut control = Control::default();
        let agent = prepared.algorithm.flow(&info, &mut control);
        let shadow = foresees.then(|| Shadow::new(&prepared.algorithm, &info));
        let mut flow = EnvFlow {
            compiled: &prepared.programs,
            running: 0,
            vm: vm::ProgramState::idle(cwnd_bytes as i64),
            agent,
            shadow,
            control,
            transport: Transport::new(setup.mss_bytes, setup.ack_every),
            setup,
            index,
            window: INITIAL_WINDOW,
            paced_ns: 0,
            gap_ns: 0,
            burst: 1,
            paced_rate: 0,
            last_back_ns: 0,
            link_bytes_per_s: 0,
            due_ns: setup.start_ns,
            send_ns: setup.start_ns,
            counts: Counts::default(),
        };
        flow.apply_requests(setup.start_ns);
        flow
    }

    /// Applies what its agent asked for.
    fn apply_requests(&mut self, now_ns: u64) {
        for request in self.control.requests() {
            if let Some(name) = request.program {
                self.running = self.compiled.iter().position(|c| c.name == name).unwrap_or(self.running);
                let compiled = &self.compiled[self.running];
                self.vm.start(&compiled.program, (now_ns / 1000) as i64);
                if let Some((reg, rate)) = compiled.start_rate.zip(self.setup.start_rate) {
                    self.vm.regs[usize::from(reg)] = rate as i64;
                }
            }
            for (name, value) in request.fields {
                match (*name, self.compiled[self.running].program.reg(name)) {
                    ("Cwnd", _) => self.vm.cwnd_bytes = *value,
                    ("Rate", _) => self.vm.rate_bytes_per_s = *value,
                    (_, Some(reg)) => self.vm.regs[usize::from(reg)] = *value,
                    _ => {}
                }
            }
        }
        self.control.clear();
    }

    /// Does what is due at its time. `Some` where an ACK came: its RTT, nanoseconds.
    pub(crate) fn advance<D: Decider + ?Sized>(
        &mut self,
        bottleneck: &mut Bottleneck<'_>,
        decider: &mut D,
    ) -> Option<u64> {
        let now_ns = self.due_ns;
        let mut rtt_ns = None;
        if self.transport.next_ns() <= now_ns {
            match self.transport.on_time(now_ns) {
                Some(acked) => {
                    self.on_ack(now_ns, &acked, decider);
                    rtt_ns = Some(acked.rtt_ns);
                }
                // A timeout: one packet, until an ACK comes.
                None => self.window = 1,
            }
        }
        if now_ns >= self.send_ns || self.paced_ns <= now_ns {
            self.send(now_ns, bottleneck);
        }
        let has_room = self.transport.in_flight < self.window;
        self.send_ns = if has_room { self.paced_ns.max(now_ns + u64::from(self.gap_ns == 0)) } else { NEVER };
        self.due_ns = self.send_ns.min(self.transport.next_ns());
        rtt_ns
    }

    fn send(&mut self, now_ns: u64, bottleneck: &mut Bottleneck<'_>) {
        if self.paced_ns > now_ns {
            return;
        }
        let wire_bytes = (self.setup.mss_bytes + HEADER_BYTES) as u32;
        let mut left = if self.gap_ns > 0 { self.burst } else { u64::MAX };
        let mut sent = 0;
        while left > 0 && self.transport.in_flight < self.window {
            let way = match bottleneck.offer(now_ns, wire_bytes) {
                Fate::Leaves { at_ns, delay_ns } => {
                    // Packets of a flow do not overtake each other.
                    self.last_back_ns = self.last_back_ns.max(at_ns + delay_ns + self.setup.delay_ns);
                    Transit::Back { at_ns: self.last_back_ns }
                }
                Fate::Dropped => Transit::Dropped,
                Fate::Lost => Transit::Lost,
            };
            self.transport.send(now_ns, way);
            left -= 1;
            sent += 1;
        }
        if sent > 0 {
            self.paced_ns = now_ns + self.gap_ns * sent;
        }
    }

    fn on_ack<D: Decider + ?Sized>(&mut self, now_ns: u64, acked: &Acked, decider: &mut D) {
        let prims = self.transport.prims(now_ns, acked, false);
        let compiled = &self.compiled[self.running];
        let mut values = [0; MAX_REGS];
        let truth = Truth {
            link_bytes_per_s: self.link_bytes_per_s as f64,
            random_losses: self.transport.random_losses,
        };
        let interval = Interval { compiled, now_us: now_ns / 1000, truth };
        let foresight = self.shadow.as_mut().map(|shadow| Foresight::new(shadow, &self.vm, interval, &prims));
        let (agent, steps) = (self.index, self.counts.steps);
        let mut asking = Asking { decider, agent, steps, foresight };
        let outcome = self.vm.invoke_with(&compiled.program, &prims, &mut asking, &mut values);
        if outcome.asked {
            self.counts.steps += 1;
        }
        if outcome.report {
            self.transport.random_losses = 0;
            let report = interval.report(&values);
            if let Some(foresight) = asking.foresight {
                foresight.missed(&report);
            }
            self.agent.on_report(interval.now_us, &report, &mut self.control);
            for row in self.control.take_rows() {
                self.tell(&row, decider);
            }
            self.apply_requests(now_ns);
        }
        let wanted = (self.vm.cwnd_bytes.max(0) as u64 / self.setup.mss_bytes).clamp(1, MAX_WINDOW);
        self.window = self.transport.window(wanted, self.vm.rate_bytes_per_s > 0, acked).max(1);
        if self.vm.rate_bytes_per_s != self.paced_rate {
            self.pace();
        }
    }

    fn pace(&mut self) {
        self.paced_rate = self.vm.rate_bytes_per_s;
        let rate = self.paced_rate.max(0) as u64;
        self.gap_ns = (self.setup.mss_bytes * NS_PER_S).checked_div(rate).map_or(0, |ns| ns.max(1));
        self.burst = 1;
        if self.setup.bursts {
            self.burst = ((rate >> BURST_SHIFT) / self.setup.mss_bytes).clamp(2, MAX_BURST);
        }
    }

    fn tell<D: Decider + ?Sized>(&mut self, row: &Row, decider: &mut D) {
        // The first action's row tells of what was before it.
        if self.counts.steps > 1 {
            self.counts.rewards.0 += f64::from(row.reward);
            self.counts.rewards.1 += 1;
            decider.outcome(self.index, row.reward, &row.inputs);
        }
    }
}
