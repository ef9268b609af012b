//! Proof that the code that a figure is about ran while it was measured.
//!
//! A figure is made with a [`Proof`], which holds only counts that are not 0. A live flow's is made by a [`Witness`], which
//! polls the flow from the start of a measurement to its end: its program ran throughout, packets were acknowledged, and
//! the program counted about as many of their bytes as the transport did. Where another process has the reports, they are
//! counted, and the bytes are those acknowledged under the program. All else is an [`Unproven`].

use std::collections::{BTreeMap, BTreeSet};

use ccplane_contract::{Event, FlowId, FlowStats, Mode, ProgramUid};
use serde::{Serialize, Serializer};

/// Of the bytes that a flow moves its program counts at least this share: before the agent has set the program, and after
/// the last report, it counts nothing.
pub const MIN_COVERAGE: f64 = 0.9;

/// Reasons why a figure is worth nothing.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Unproven {
    /// Something that must have happened did not.
    #[error("{what} did not grow while it was measured: {before} before, {after} after")]
    Idle {
        /// The counted quantity.
        what: &'static str,
        /// The count when the measurement began.
        before: u64,
        /// The count when it ended.
        after: u64,
    },
    /// Something happened another number of times than it must have.
    #[error("{what}: {counted} counted, {wanted} wanted")]
    Count {
        /// The counted quantity.
        what: &'static str,
        /// The actual count.
        counted: u64,
        /// The expected count.
        wanted: u64,
    },
    /// The flow was steered by the native algorithm.
    #[error("flow {flow:?} has left its program: {mode:?} after {polls} polls; its policy: {policy}")]
    LeftProgram {
        flow: FlowId,
        /// The mode in which the flow ran.
        mode: Mode,
        /// Polls of the flow before.
        polls: u32,
        /// The state of the flow's policy, as far as known.
        policy: String,
    },
    /// The flow never ran its program.
    #[error("flow {flow:?} never ran its program: {mode:?} at all of {polls} polls")]
    NeverRan {
        flow: FlowId,
        /// The mode in which the flow ran.
        mode: Mode,
        /// Polls of the flow.
        polls: u32,
    },
    /// The flow was to run the native algorithm.
    #[error("flow {flow:?} is not steered by the native algorithm: {mode:?}")]
    NotNative {
        flow: FlowId,
        /// The mode in which the flow ran.
        mode: Mode,
    },
    /// Another program steered the flow.
    #[error("flow {flow:?} runs program {found:?}, not {wanted:?}")]
    Replaced {
        flow: FlowId,
        /// The program that is measured.
        wanted: Option<ProgramUid>,
        /// The program that was there.
        found: Option<ProgramUid>,
    },
    /// The datapath carried fewer flows than there were.
    #[error("the datapath steered {found} flows, {wanted} ran")]
    NoFlow {
        /// Flows that the datapath steered.
        found: usize,
        /// Flows that were measured.
        wanted: usize,
    },
    /// The program saw too few of the acknowledged bytes.
    #[error("programs counted {counted} of {acked} acknowledged bytes, fewer than {least}")]
    Coverage {
        /// Bytes that programs have counted.
        counted: u64,
        /// Bytes that the flows have moved.
        acked: u64,
        /// Bytes that programs must have counted.
        least: u64,
    },
    /// A figure is no number above 0, or stands on no sample.
    #[error("{figure} is {value} over {samples} samples beside a baseline of {baseline}")]
    NoFigure {
        /// The figure's name.
        figure: String,
        value: f64,
        baseline: f64,
        samples: usize,
    },
}

/// Counts taken during a measurement, none of which is 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proof(BTreeMap<&'static str, u64>);

impl Proof {
    /// Proof by one count.
    ///
    /// # Errors
    /// The count is 0.
    pub fn counted(what: &'static str, count: u64) -> Result<Proof, Unproven> {
        Proof::grown(what, 0, count)
    }

    /// Proof by a counter that has grown.
    ///
    /// # Errors
    /// The count has not grown.
    pub fn grown(what: &'static str, before: u64, after: u64) -> Result<Proof, Unproven> {
        match after.checked_sub(before) {
            Some(grown) if grown > 0 => Ok(Proof(BTreeMap::from([(what, grown)]))),
            _ => Err(Unproven::Idle { what, before, after }),
        }
    }

    /// Proof by a count that must be `wanted`.
    ///
    /// # Errors
    /// It is another one, or 0.
    pub fn exactly(what: &'static str, counted: u64, wanted: u64) -> Result<Proof, Unproven> {
        if counted != wanted {
            return Err(Unproven::Count { what, counted, wanted });
        }
        Proof::counted(what, counted)
    }

    /// Both; counts of the same things are added.
    #[must_use]
    pub fn and(mut self, other: &Proof) -> Proof {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
        self
    }

    /// The counts, each with the name of the counted quantity.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(what, count)| (*what, *count))
    }
}

/// All of the proofs of a measurement's parts.
///
/// # Errors
/// There are no parts.
pub fn all<'a>(parts: impl IntoIterator<Item = &'a Proof>) -> Result<Proof, Unproven> {
    let sum = parts.into_iter().fold(None, |sum: Option<Proof>, part| match sum {
        None => Some(part.clone()),
        Some(sum) => Some(sum.and(part)),
    });
    sum.ok_or(Unproven::Idle { what: "runs", before: 0, after: 0 })
}

impl Serialize for Proof {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(&self.0)
    }
}

/// The control that a flow is expected to run under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SteeredBy {
    /// By a program, this one if it is known; each of its reports begins with the bytes acknowledged since it started.
    Program(Option<ProgramUid>),
    /// By a program that asks a policy.
    Policy(Option<ProgramUid>),
    /// By this program, which does nothing, so that it cannot count.
    Empty(ProgramUid),
    /// By the datapath's native algorithm.
    Native,
}

impl SteeredBy {
    fn program(self) -> Option<ProgramUid> {
        match self {
            SteeredBy::Program(uid) | SteeredBy::Policy(uid) => uid,
            SteeredBy::Empty(uid) => Some(uid),
            SteeredBy::Native => None,
        }
    }
}

/// A datapath's statistics of a flow at one poll.
#[derive(Clone, Copy, Debug)]
struct Poll {
    mode: Mode,
    delivered: u64,
    bytes_acked: u64,
    decisions: u32,
    /// Reports that the flow's programs have made.
    reports: u64,
    sampled_at_us: u64,
}

/// A flow under watch.
#[derive(Debug)]
struct Watched {
    first: Poll,
    previous: Poll,
    last: Poll,
    polls: u32,
    /// The first poll that found it under its program.
    began: Option<Poll>,
    reports: u64,
    /// The last count of bytes that its program has reported.
    counted: Option<i64>,
    /// From a sample that follows a report to the last one that a report follows.
    span: Option<Span>,
}

/// Part of a flow: what it moves there its program counts between the reports around it.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Bytes acknowledged at its first sample, and bytes counted by the report before.
    from: (u64, i64),
    /// The same at its last sample, and by the report after; none yet.
    to: Option<(u64, i64)>,
}

impl Span {
    fn acked(&self) -> u64 {
        self.to.map_or(0, |(acked, _)| acked.saturating_sub(self.from.0))
    }

    fn counted(&self) -> u64 {
        self.to.map_or(0, |(_, counted)| counted.saturating_sub(self.from.1).max(0) as u64)
    }
}

/// Watches flows while they are measured. A fault is kept, and returned when a proof is asked for.
#[derive(Debug)]
pub struct Witness {
    steering: SteeredBy,
    flows: BTreeMap<FlowId, Watched>,
    /// Flows of earlier measurements, which may be about to end.
    earlier: BTreeSet<FlowId>,
    fault: Option<Unproven>,
}

impl Witness {
    /// Creates a witness that has seen no flow yet.
    pub fn new(steering: SteeredBy) -> Witness {
        Witness { steering, flows: BTreeMap::new(), earlier: BTreeSet::new(), fault: None }
    }

    /// Records one poll of all flows of a datapath.
    pub fn observe(&mut self, flows: &[FlowStats]) {
        flows.iter().for_each(|flow| self.add_flow(flow));
    }

    fn add_flow(&mut self, stats: &FlowStats) {
        let flow = stats.flow;
        if self.earlier.contains(&flow) {
            return;
        }
        let now = Poll {
            mode: stats.mode,
            delivered: stats.transport.delivered,
            bytes_acked: stats.transport.bytes_acked,
            decisions: stats.policy.map_or(0, |policy| policy.decisions),
            reports: stats.transport.reports,
            sampled_at_us: stats.sampled_at_us,
        };
        let fresh = || Watched {
            first: now,
            previous: now,
            last: now,
            polls: 0,
            began: None,
            reports: 0,
            counted: None,
            span: None,
        };
        let watched = self.flows.entry(flow).or_insert_with(fresh);
        let fault = fault(self.steering, watched, stats);
        if now.mode == Mode::Program {
            watched.began.get_or_insert(now);
        }
        if let Some(counted) = watched.counted {
            watched.span.get_or_insert(Span { from: (now.bytes_acked, counted), to: None });
        }
        watched.previous = watched.last;
        watched.last = now;
        watched.polls += 1;
        if self.fault.is_none() {
            self.fault = fault;
        }
    }

    /// Records an event of the datapath.
    pub fn hear(&mut self, event: &Event) {
        let Event::Report { flow, program, values, at_us, .. } = event else { return };
        if self.earlier.contains(flow) {
            return;
        }
        if let (None, Some(wanted)) = (&self.fault, self.steering.program().filter(|uid| uid != program)) {
            let (wanted, found) = (Some(wanted), Some(*program));
            self.fault = Some(Unproven::Replaced { flow: *flow, wanted, found });
        }
        let Some(watched) = self.flows.get_mut(flow) else { return };
        watched.reports += 1;
        if let Some(bytes) = values.first() {
            watched.counted = Some(*bytes);
            // Reports arrive after the poll that follows them: the sample before them may be the one before the last.
            let before =
                [watched.last, watched.previous].into_iter().find(|poll| poll.sampled_at_us <= *at_us);
            if let (Some(span), Some(before)) = (&mut watched.span, before)
                && span.to.map_or(span.from.0, |(acked, _)| acked) < before.bytes_acked
            {
                span.to = Some((before.bytes_acked, *bytes));
            }
        }
    }

    /// Begins another measurement, of other flows: the flows seen so far are ignored from now on.
    pub fn restart(&mut self) {
        self.earlier.extend(std::mem::take(&mut self.flows).into_keys());
        self.fault = None;
    }

    /// Proves that `flows` whole flows, which moved `moved_bytes` together, were steered as intended.
    ///
    /// # Errors
    /// [`Unproven`].
    pub fn prove_whole(&self, flows: usize, moved_bytes: u64) -> Result<Proof, Unproven> {
        let counted = |f: &Watched| f.counted.map_or(0, |bytes| bytes.max(0) as u64);
        self.prove(self.prove_started(flows)?, moved_bytes, counted)
    }

    /// Proves that `flows` flows were steered as intended from the first poll to the last.
    ///
    /// # Errors
    /// [`Unproven`].
    pub fn prove_part(&self, flows: usize) -> Result<Proof, Unproven> {
        let acked = self.flows.values().map(|f| f.span.map_or(0, |span| span.acked())).sum();
        let counted = |f: &Watched| f.span.map_or(0, |span| span.counted());
        self.prove(self.prove_steered(flows)?, acked, counted)
    }

    /// Proves that `flows` flows, which moved `moved_bytes` together, were steered as intended, where another process has their
    /// programs' reports: these were made, and about as many bytes were acknowledged under the programs.
    ///
    /// # Errors
    /// What is missing of that, as an [`Unproven`].
    pub fn prove_unheard(&self, flows: usize, moved_bytes: u64) -> Result<Proof, Unproven> {
        let steered = self.prove_steered(flows)?;
        let sum = |of: fn(&Poll) -> u64| {
            let grown = |f: &Watched| f.began.map_or(0, |began| of(&f.last).saturating_sub(of(&began)));
            self.flows.values().map(grown).sum::<u64>()
        };
        let counted = sum(|poll| poll.bytes_acked);
        let proof = steered
            .and(&Proof::counted("reports of programs", sum(|poll| poll.reports))?)
            .and(&Proof::counted("bytes acknowledged under programs", counted)?);
        let least = (MIN_COVERAGE * moved_bytes as f64) as u64;
        if counted < least {
            return Err(Unproven::Coverage { counted, acked: moved_bytes, least });
        }
        Ok(proof)
    }

    /// Proves that `flows` flows were steered as intended from the first poll to the last, where others count their
    /// programs' reports.
    ///
    /// # Errors
    /// [`Unproven`].
    pub fn prove_steered(&self, flows: usize) -> Result<Proof, Unproven> {
        self.steered(flows, |f| (f.first.delivered, f.first.decisions.into()))
    }

    /// Proves the same of flows whose start was measured, so that all of their counts belong to the measurement.
    ///
    /// # Errors
    /// [`Unproven`].
    pub fn prove_started(&self, flows: usize) -> Result<Proof, Unproven> {
        self.steered(flows, |_| (0, 0))
    }

    /// `before`: packets delivered and decisions of a flow when the measurement began.
    fn steered(&self, flows: usize, before: fn(&Watched) -> (u64, u64)) -> Result<Proof, Unproven> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.flows.len() < flows || flows == 0 {
            return Err(Unproven::NoFlow { found: self.flows.len(), wanted: flows });
        }
        let sum = |of: &dyn Fn(&Watched) -> u64| self.flows.values().map(of).sum::<u64>();
        let delivered = sum(&|f| f.last.delivered);
        let proof = Proof::grown("packets acknowledged", sum(&|f| before(f).0), delivered)?
            .and(&Proof::counted("looks", sum(&|f| f.polls.into()))?);
        if self.steering == SteeredBy::Native {
            return Ok(proof);
        }
        if let Some((flow, never)) = self.flows.iter().find(|(_, f)| f.began.is_none()) {
            return Err(Unproven::NeverRan { flow: *flow, mode: never.last.mode, polls: never.polls });
        }
        if !matches!(self.steering, SteeredBy::Policy(_)) {
            return Ok(proof);
        }
        let decisions = sum(&|f| f.last.decisions.into());
        Ok(proof.and(&Proof::grown("decisions", sum(&|f| before(f).1), decisions)?))
    }

    /// The same of flows whose programs count the bytes that are acknowledged, and report them.
    fn prove(
        &self,
        steered: Proof,
        acked: u64,
        counted: impl Fn(&Watched) -> u64,
    ) -> Result<Proof, Unproven> {
        if matches!(self.steering, SteeredBy::Empty(_) | SteeredBy::Native) {
            return Ok(steered);
        }
        if let Some(idle) = self.flows.values().find(|f| f.reports == 0) {
            let after = idle.reports;
            return Err(Unproven::Idle { what: "reports", before: 0, after });
        }
        let sum = |of: &dyn Fn(&Watched) -> u64| self.flows.values().map(of).sum::<u64>();
        let proof = steered.and(&Proof::counted("reports", sum(&|f| f.reports))?);
        // Of no bytes any count would be enough.
        Proof::counted("bytes acknowledged between reports", acked)?;
        let (counted, least) = (sum(&counted), (MIN_COVERAGE * acked as f64) as u64);
        if counted < least {
            return Err(Unproven::Coverage { counted, acked, least });
        }
        Ok(proof.and(&Proof::counted("bytes that programs counted", counted)?))
    }
}

/// Returns the fault that one poll of a flow shows, if any.
fn fault(steering: SteeredBy, watched: &Watched, stats: &FlowStats) -> Option<Unproven> {
    let (flow, mode) = (stats.flow, stats.mode);
    if steering == SteeredBy::Native {
        return (mode == Mode::Program).then_some(Unproven::NotNative { flow, mode });
    }
    let (wanted, found) = (steering.program(), stats.program);
    // None: it is about to be released, which shows in the mode of its next ACK.
    if mode == Mode::Program && wanted.is_some() && found.is_some() && found != wanted {
        return Some(Unproven::Replaced { flow, wanted, found });
    }
    // A flow begins without a program. What must not be is that it loses it.
    (watched.began.is_some() && mode != Mode::Program).then(|| Unproven::LeftProgram {
        flow,
        mode,
        polls: watched.polls,
        policy: stats.policy.map_or_else(|| "none".to_owned(), |policy| format!("{policy:?}")),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use ccplane_contract::FlowInfo;
    use ccplane_contract::TransportStats;
    use ccplane_infer::FlowPolicy;

    const FLOW: FlowId = FlowId(7);
    const UID: ProgramUid = ProgramUid(3);

    fn stats(mode: Mode, program: Option<ProgramUid>, acked: u64) -> FlowStats {
        let info = FlowInfo::example(1000, 10_000);
        FlowStats {
            flow: FLOW,
            info,
            mode,
            program,
            transport: TransportStats {
                snd_cwnd: 10,
                mss_bytes: 1000,
                srtt_us: 1,
                min_rtt_us: 1,
                bytes_acked: acked * 1000,
                delivered: acked,
                ..TransportStats::default()
            },
            policy: None,
            sampled_at_us: 0,
        }
    }

    fn report(program: ProgramUid, bytes: i64) -> Event {
        Event::Report { flow: FLOW, program, seq: 1, at_us: 1, values: [bytes].into_iter().collect() }
    }

    /// A flow that starts natively, gets its program, and moves a million bytes under it.
    fn healthy(steering: SteeredBy) -> Witness {
        let mut witness = Witness::new(steering);
        witness.observe(&[stats(Mode::NativeNoProgram, None, 0)]);
        witness.observe(&[stats(Mode::Program, Some(UID), 1)]);
        witness.hear(&report(UID, 0));
        witness.observe(&[stats(Mode::Program, Some(UID), 500)]);
        witness.observe(&[stats(Mode::Program, Some(UID), 1000)]);
        witness.hear(&report(UID, 999_000));
        witness
    }

    #[test]
    fn a_flow_that_ran_is_proved_by_its_counts() {
        let proof = healthy(SteeredBy::Program(Some(UID))).prove_whole(1, 1_000_000).unwrap();
        let counts: BTreeMap<_, _> = proof.counts().collect();
        assert_eq!((counts["packets acknowledged"], counts["reports"], counts["looks"]), (1000, 2, 4));
        assert_eq!(counts["bytes that programs counted"], 999_000);
        assert!(healthy(SteeredBy::Program(None)).prove_part(1).is_ok());
    }

    #[test]
    fn reports_that_another_process_has_are_counted() {
        let at = |acked, reports| {
            let mut stats = stats(Mode::Program, Some(UID), acked);
            stats.transport.reports = reports;
            stats
        };
        let mut witness = Witness::new(SteeredBy::Program(None));
        witness.observe(&[stats(Mode::NativeNoProgram, None, 0)]);
        witness.observe(&[at(10, 1)]);
        let idle = Unproven::Idle { what: "reports of programs", before: 0, after: 0 };
        assert_eq!(witness.prove_unheard(1, 10_000).unwrap_err(), idle);
        witness.observe(&[at(1000, 9)]);
        let proof = witness.prove_unheard(1, 1_000_000).unwrap();
        let counts: BTreeMap<_, _> = proof.counts().collect();
        assert_eq!(
            (counts["reports of programs"], counts["bytes acknowledged under programs"]),
            (8, 990_000)
        );
        let error = witness.prove_unheard(1, 2_000_000).unwrap_err();
        assert_eq!(error, Unproven::Coverage { counted: 990_000, acked: 2_000_000, least: 1_800_000 });
    }

    /// A report that is older than the poll before its arrival still ends a part.
    #[test]
    fn reports_may_arrive_late() {
        let at = |acked| FlowStats { sampled_at_us: acked * 10, ..stats(Mode::Program, Some(UID), acked) };
        let hear = |at_us, bytes| match report(UID, bytes) {
            Event::Report { flow, program, seq, values, .. } => {
                Event::Report { flow, program, seq, at_us, values }
            }
            other => other,
        };
        let mut witness = Witness::new(SteeredBy::Program(Some(UID)));
        for n in 1..10 {
            witness.observe(&[at(100 * n)]);
            witness.hear(&hear(1000 * n - 50, 100_000 * n as i64 - 5000));
        }
        assert!(
            witness.prove_part(1).unwrap().counts().any(|c| c == ("bytes that programs counted", 800_000))
        );
    }

    #[test]
    fn no_acks_are_an_error() {
        let mut witness = Witness::new(SteeredBy::Program(None));
        for _ in 0..3 {
            witness.observe(&[stats(Mode::Program, Some(UID), 5)]);
            witness.hear(&report(UID, 5000));
        }
        let error = witness.prove_part(1).unwrap_err();
        assert_eq!(error, Unproven::Idle { what: "packets acknowledged", before: 5, after: 5 });
    }

    #[test]
    fn a_flow_that_fell_to_native_is_an_error_though_it_came_back() {
        for mode in [Mode::NativeAgentSilent, Mode::NativePolicy, Mode::NativeNoProgram] {
            let mut witness = healthy(SteeredBy::Program(Some(UID)));
            witness.observe(&[stats(mode, Some(UID), 1001)]);
            witness.observe(&[stats(Mode::Program, Some(UID), 1002)]);
            let error = witness.prove_whole(1, 1_000_000).unwrap_err();
            assert!(matches!(error, Unproven::LeftProgram { mode: m, polls: 4, .. } if m == mode), "{error}");
        }
    }

    /// Between two polls a flow may be native, and under its program at both.
    #[test]
    fn a_fall_between_two_polls_shows_in_the_bytes() {
        let mut witness = healthy(SteeredBy::Program(Some(UID)));
        witness.observe(&[stats(Mode::Program, Some(UID), 2000)]);
        witness.hear(&report(UID, 1_100_000));
        let error = witness.prove_part(1).unwrap_err();
        assert_eq!(error, Unproven::Coverage { counted: 1_100_000, acked: 1_500_000, least: 1_350_000 });
        assert!(witness.prove_whole(1, 1_200_000).is_ok());
    }

    #[test]
    fn another_program_is_an_error() {
        let other = ProgramUid(4);
        let replaced = Unproven::Replaced { flow: FLOW, wanted: Some(UID), found: Some(other) };
        let mut witness = healthy(SteeredBy::Program(Some(UID)));
        witness.observe(&[stats(Mode::Program, Some(other), 1001)]);
        assert_eq!(witness.prove_whole(1, 1_000_000).unwrap_err(), replaced);
        // One that came and went between two polls has reported.
        let mut witness = healthy(SteeredBy::Program(Some(UID)));
        witness.hear(&report(other, 1_000_000));
        assert_eq!(witness.prove_whole(1, 1_000_000).unwrap_err(), replaced);
    }

    #[test]
    fn a_datapath_that_is_not_there_is_an_error() {
        let none = Witness::new(SteeredBy::Program(None));
        assert_eq!(none.prove_whole(1, 1_000_000), Err(Unproven::NoFlow { found: 0, wanted: 1 }));
        let one = healthy(SteeredBy::Program(None));
        assert_eq!(one.prove_whole(8, 1_000_000), Err(Unproven::NoFlow { found: 1, wanted: 8 }));
    }

    #[test]
    fn a_measurement_knows_nothing_of_the_flows_before() {
        let mut witness = healthy(SteeredBy::Program(Some(UID)));
        witness.observe(&[stats(Mode::NativeAgentSilent, Some(UID), 1001)]);
        witness.restart();
        witness.observe(&[stats(Mode::NativeAgentSilent, Some(UID), 1002)]);
        assert_eq!(witness.prove_whole(1, 1), Err(Unproven::NoFlow { found: 0, wanted: 1 }));
    }

    #[test]
    fn a_program_that_never_ran_or_never_reported_is_an_error() {
        let mut never = Witness::new(SteeredBy::Program(None));
        let mut silent = Witness::new(SteeredBy::Program(None));
        for acked in 0..3 {
            never.observe(&[stats(Mode::NativeNoProgram, Some(UID), acked)]);
            silent.observe(&[stats(Mode::Program, Some(UID), acked)]);
        }
        assert!(matches!(never.prove_part(1), Err(Unproven::NeverRan { polls: 3, .. })));
        let idle = Unproven::Idle { what: "reports", before: 0, after: 0 };
        assert_eq!(silent.prove_part(1), Err(idle));
    }

    #[test]
    fn a_policy_must_have_decided() {
        let decided = |decisions| {
            let mut stats = stats(Mode::Program, Some(UID), 1000 + u64::from(decisions));
            stats.policy = Some(FlowPolicy { decisions, ..FlowPolicy::default() });
            stats
        };
        let mut witness = healthy(SteeredBy::Policy(Some(UID)));
        let idle = Unproven::Idle { what: "decisions", before: 0, after: 0 };
        assert_eq!(witness.prove_whole(1, 1_000_000).unwrap_err(), idle);
        witness.observe(&[decided(5)]);
        assert!(witness.prove_whole(1, 1_000_000).unwrap().counts().any(|c| c == ("decisions", 5)));
    }

    #[test]
    fn a_native_flow_must_be_native() {
        let mut witness = Witness::new(SteeredBy::Native);
        witness.observe(&[stats(Mode::NativeNoProgram, None, 0)]);
        witness.observe(&[stats(Mode::NativeNoProgram, None, 9)]);
        assert!(witness.prove_part(1).is_ok());
        witness.observe(&[stats(Mode::Program, Some(UID), 10)]);
        assert_eq!(
            witness.prove_part(1).unwrap_err(),
            Unproven::NotNative { flow: FLOW, mode: Mode::Program }
        );
    }

    #[test]
    fn a_proof_holds_no_zero() {
        assert!(Proof::counted("ACKs", 0).is_err());
        assert!(Proof::grown("ACKs", 5, 4).is_err());
        assert_eq!(
            Proof::exactly("decisions", 9, 10),
            Err(Unproven::Count { what: "decisions", counted: 9, wanted: 10 })
        );
        assert!(all([]).is_err());
        let two = all([&Proof::counted("ACKs", 2).unwrap(), &Proof::counted("ACKs", 3).unwrap()]).unwrap();
        assert_eq!(serde_json::to_string(&two).unwrap(), r#"{"ACKs":5}"#);
    }
}
