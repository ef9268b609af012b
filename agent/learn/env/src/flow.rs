//! One flow: an algorithm's program in the VM, its agent's side, and its transport.

use crate::decider::Decider;
use crate::error::EnvError;
use crate::foresight::{Foresight, Shadow};
use crate::interval::{Compiled, Interval};
use crate::scenario::FlowSetup;
use ccplane_alg::{Algorithm, Control, FlowInfo, Row, Truth};
use ccplane_netsim::{Delivery, FlowIndex, Network};
use ccplane_program::compile;
use ccplane_program::ir::MAX_REGS;
use ccplane_program::vm::{self, Decision, FastVm, Knobs, Policies};
use ccplane_sim::{Acked, Carrier, Departure, FlowConfig, HEADER_BYTES, Transport, Wanted};
use std::collections::VecDeque;
use std::sync::Arc;

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
            let machine = FastVm::new(&program).ok();
            Ok(Compiled { name: source.name, program, machine, report_names, start_rate })
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
    /// The running program's machine, if one can run it; the flow's registers are its then.
    machine: Option<Box<FastVm>>,
    vm: vm::ProgramState,
    /// The registers of the last report.
    values: [i64; MAX_REGS],
    agent: Box<dyn ccplane_alg::Flow>,
    /// Hears reports before their interval's action is decided, where the decider wants that.
    shadow: Option<Shadow>,
    control: Control,
    pub(crate) transport: Transport,
    mss_bytes: u32,
    start_rate: Option<u64>,
    /// Payload after which it ends, bytes, where it does.
    bytes: Option<u64>,
    /// Whether all of that has arrived, so that it does nothing more.
    pub(crate) ended: bool,
    /// The flow's number in the network, and that of its agent in the decider.
    index: FlowIndex,
    /// Round trip of the empty path when the flow starts, nanoseconds.
    base_rtt_ns: u64,
    /// Transmissions that the link lost at random, in order, of which the transport has not found out.
    random: VecDeque<u64>,
    /// Such losses found since the last report.
    random_losses: u32,
    /// Rate of its bottleneck that is left to it, payload bytes per second.
    link_bytes_per_s: u64,
    pub(crate) counts: Counts,
}

/// One flow's way into the network, which notes what the link loses at random.
struct Outlet<'a> {
    net: &'a mut Network,
    index: FlowIndex,
    random: &'a mut VecDeque<u64>,
}

impl Carrier for Outlet<'_> {
    #[inline]
    fn carry(&mut self, departure: &Departure) {
        if self.net.send(self.index, departure.segment()) {
            self.random.push_back(departure.tx);
        }
    }
}

/// Asks the decider as one agent.
struct Asking<'d, D: ?Sized, M> {
    decider: &'d mut D,
    agent: usize,
    /// Decisions before this ACK.
    steps: usize,
    foresight: Option<Foresight<'d, M>>,
}

impl<D: Decider + ?Sized, M: vm::PrimValues> Policies for Asking<'_, D, M> {
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
        setup: &FlowSetup,
        config: &FlowConfig,
        index: FlowIndex,
        base_rtt_ns: u64,
        foresees: bool,
    ) -> EnvFlow<'a> {
        let cwnd_bytes = u64::from(config.init_cwnd_packets) * u64::from(config.mss_bytes);
        let info = FlowInfo {
            mss_bytes: config.mss_bytes,
            init_cwnd_bytes: cwnd_bytes,
            local: config.local,
            remote: config.remote,
            cgroup: config.cgroup,
            min_rtt_us: u32::try_from(base_rtt_ns / 1000).ok().filter(|us| *us != 0),
        };
        let mut control = Control::default();
        let agent = prepared.algorithm.flow(&info, &mut control);
        let shadow = foresees.then(|| Shadow::new(&prepared.algorithm, &info));
        EnvFlow {
            compiled: &prepared.programs,
            running: 0,
            machine: None,
            vm: vm::ProgramState::idle(cwnd_bytes as i64),
            values: [0; MAX_REGS],
            agent,
            shadow,
            control,
            transport: Transport::new(config),
            mss_bytes: config.mss_bytes,
            start_rate: setup.start_rate,
            bytes: setup.bytes,
            ended: false,
            index,
            base_rtt_ns,
            random: VecDeque::new(),
            random_losses: 0,
            link_bytes_per_s: 0,
            counts: Counts::default(),
        }
    }

    /// Sets the flow's share of the link, which is given in wire bytes per second.
    pub(crate) fn set_link_share(&mut self, wire_bytes_per_s: u64) {
        let mss_bytes = u64::from(self.mss_bytes);
        self.link_bytes_per_s = wire_bytes_per_s * mss_bytes / (mss_bytes + u64::from(HEADER_BYTES));
    }

    /// Starts the flow, whose handshake is over.
    pub(crate) fn start(&mut self, net: &mut Network) {
        self.transport.connected(self.base_rtt_ns);
        self.transmit(net);
    }

    /// Applies what its agent has asked for, at the next ACK as in a datapath.
    fn apply_requests(&mut self, now_ns: u64) {
        if self.control.requests().len() == 0 {
            return;
        }
        self.fetch_registers();
        for request in self.control.requests() {
            if let Some(name) = request.program {
                self.running = self.compiled.iter().position(|c| c.name == name).unwrap_or(self.running);
                let compiled = &self.compiled[self.running];
                self.machine = compiled.machine.clone().map(Box::new);
                if let Some(shadow) = &mut self.shadow {
                    shadow.program(compiled);
                }
                self.vm.start(&compiled.program, (now_ns / 1000) as i64);
                if let Some((reg, rate)) = compiled.start_rate.zip(self.start_rate) {
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
        if let Some(machine) = &mut self.machine {
            machine.load(&self.vm);
        }
    }

    /// Copies the registers from the machine, which alone keeps them up to date, into the state.
    fn fetch_registers(&mut self) {
        if let Some(machine) = &self.machine {
            let regs = machine.regs();
            self.vm.regs[..regs.len()].copy_from_slice(regs);
        }
    }

    /// Takes an ACK that tells of these segments, under the flow's program.
    pub(crate) fn on_ack<D: Decider + ?Sized>(
        &mut self,
        now_ns: u64,
        deliveries: &[Delivery],
        decider: &mut D,
    ) -> Acked {
        let acked = self.transport.on_ack(now_ns, deliveries);
        self.find_random_losses();
        self.apply_requests(now_ns);
        self.invoke(now_ns, &acked, decider);
        let wanted = self.wanted();
        self.transport.apply_window(&wanted, &acked);
        acked
    }

    /// Processes an expiry of the loss timer.
    pub(crate) fn on_loss_timer(&mut self, now_ns: u64) {
        self.transport.on_loss_timer(now_ns);
        self.find_random_losses();
        let wanted = self.wanted();
        self.transport.apply_window(&wanted, &Acked::default());
    }

    /// Counts the random losses that the transport has found by now.
    fn find_random_losses(&mut self) {
        let oldest = self.transport.oldest_transmission();
        while self.random.front().is_some_and(|tx| *tx < oldest) {
            self.random.pop_front();
            self.random_losses += 1;
        }
    }

    fn wanted(&self) -> Wanted {
        Wanted::of_program(&self.vm, self.mss_bytes)
    }

    /// Sends what window, pacing and application allow, and sets the flow's timers; ends a flow that is complete.
    pub(crate) fn transmit(&mut self, net: &mut Network) {
        if self.bytes.is_some_and(|bytes| self.transport.acked_bytes() >= bytes) {
            self.ended = true;
            self.transport.close();
            net.close(self.index);
            return;
        }
        if let Some(rtt_ns) = self.transport.timestamped_rtt_ns() {
            net.tell_rtt(self.index, rtt_ns);
        }
        let (now_ns, wanted) = (net.now_ns(), self.wanted());
        let mut outlet = Outlet { net, index: self.index, random: &mut self.random };
        // One without an end always has more to send.
        let written_bytes = self.bytes.unwrap_or(u64::MAX);
        let deadlines = self.transport.transmit(now_ns, written_bytes, &wanted, &mut outlet);
        deadlines.set(outlet.net, self.index);
    }

    /// Bytes that are written and not yet acknowledged.
    fn pending_bytes(&self) -> u64 {
        match self.bytes {
            None => self.transport.bulk_pending_bytes(),
            Some(bytes) => bytes.saturating_sub(self.transport.acked_bytes()),
        }
    }

    fn invoke<D: Decider + ?Sized>(&mut self, now_ns: u64, acked: &Acked, decider: &mut D) {
        let prims = self.transport.prims(now_ns, acked, self.pending_bytes());
        let compiled = &self.compiled[self.running];
        let truth =
            Truth { link_bytes_per_s: self.link_bytes_per_s as f64, random_losses: self.random_losses };
        let interval = Interval { compiled, now_us: now_ns / 1000, truth };
        let foresight = self.shadow.as_mut().map(|shadow| {
            let regs = self.machine.as_ref().map_or(&self.vm.regs[..], |machine| machine.regs());
            Foresight::new(shadow, &self.vm, regs, interval, &prims)
        });
        let (agent, steps) = (self.index as usize, self.counts.steps);
        let mut asking = Asking { decider, agent, steps, foresight };
        let outcome = match &mut self.machine {
            Some(machine) => machine.step(&mut self.vm, &prims, &mut asking, &mut self.values),
            None => self.vm.invoke_with(&compiled.program, &prims, &mut asking, &mut self.values),
        };
        if outcome.asked {
            self.counts.steps += 1;
        }
        if outcome.report {
            self.random_losses = 0;
            let report = interval.report(&self.values);
            if let Some(foresight) = asking.foresight {
                foresight.missed(&report);
            }
            self.agent.on_report(interval.now_us, &report, &mut self.control);
            for row in self.control.take_rows() {
                self.pass_row(&row, decider);
            }
        }
    }

    fn pass_row<D: Decider + ?Sized>(&mut self, row: &Row, decider: &mut D) {
        // The first action's row tells of what was before it.
        if self.counts.steps > 1 {
            self.counts.rewards.0 += f64::from(row.reward);
            self.counts.rewards.1 += 1;
            decider.outcome(self.index as usize, row.reward, &row.inputs);
        }
    }
}
