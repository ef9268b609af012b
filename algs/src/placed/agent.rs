//! Placement `agent`, CCP's way: the datapath reports each `report_us`, the agent asks the network and sets the rate.
//!
//! The program measures intervals as the algorithm's own does, none shorter than `report_us`, and waits for the agent where
//! that would ask its slot. An interval under a new rate starts when the rate arrives. The agent keeps the history, runs the
//! same snapshot by the same arithmetic ([`ccplane_infer::Slot::decide`]), so on the same interval it decides the same bits; it
//! does not learn. This is what LiteFlow (SIGCOMM 2022, section 2) measures in-kernel networks against.

use std::sync::{Arc, LazyLock};

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter, ProgramSource, Report};
use ccplane_infer::{BUFFERS, Control as SlotControl, FlowPolicy, Knobs, Shape, Slot, Verdict};
use ccplane_program::lang::ast::{Expr, ExprKind, Literal, Stmt, StmtKind};
use ccplane_program::lang::parse;
use ccplane_snapshot::{DeployOptions, Snapshot};

use super::fields_of;
use crate::aurora::Aurora;
use crate::mocc::Mocc;
use crate::parameters::{DEFAULT_REPORT_US, REPORT_US};
use crate::policy_program::PolicyProgram;

/// Declarations, and a clause before the last one that applies the agent's decision.
///
/// The last clause starts the next interval, so that a decision takes effect at the same place as in the original program.
const DECIDED: &str = "
    (def (Report (asked 0) (intervals 0)) (decided 0) (report_us 10000) (reported_us 0))
    (when (> decided 0)
        (:= Rate decided)
        (:= before Report.rate)
        (:= delivered (/ (* (* Report.acked mss) 1000000) (max Report.took_us 1))))";
/// The end of that clause.
const NEXT: &str = "(def) (when true (:= decided 0) (:= over true))";
/// In place of the first history: an interval is over.
const INTERVAL: &str = "(:= Report.intervals (+ Report.intervals 1)) (:= Report.asked 0)";
/// The end of the program.
const REPORTS: &str = "
    (def)
    (when (>= (- Ack.now reported_us) report_us) (:= reported_us Ack.now) (report))";

// State

/// The data that all flows of an algorithm share.
#[derive(Debug)]
struct Version {
    name: &'static str,
    program: String,
    parameters: Vec<Parameter>,
    /// Cells of the histories and where each interval's come from.
    histories: Vec<(usize, Vec<Cell>)>,
    /// Least length of an interval unless the algorithm sets it, microseconds.
    floor_us: i64,
    shape: Shape,
    image: Vec<u64>,
}

/// Sources of a history's cell.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Cell {
    /// The report's register of this name.
    Reported(String),
    /// A register that the algorithm sets when the flow starts, and what it is otherwise.
    Set(String, i32),
}

/// The agent's side of a flow.
struct InAgentFlow {
    version: &'static Version,
    /// The fields that the algorithm set when the flow started.
    fields: Vec<(&'static str, i64)>,
    /// The last report's count of intervals.
    intervals: i64,
    /// Oldest interval first, as a datapath keeps them.
    cells: Vec<i32>,
    key: u64,
}

// Behaviour

impl InAgentFlow {
    /// The oldest interval of each history makes room.
    fn remember(&mut self, report: &Report<'_>) -> Option<()> {
        let mut at = 0;
        for (depth, cells) in &self.version.histories {
            let end = at + depth * cells.len();
            self.cells.get_mut(at..end)?.rotate_left(cells.len());
            for (to, cell) in self.cells.get_mut(end - cells.len()..end)?.iter_mut().zip(cells) {
                *to = match cell {
                    Cell::Reported(name) => saturate(report.get(name)?),
                    Cell::Set(name, otherwise) => {
                        let set = self.fields.iter().find(|(field, _)| field == name);
                        set.map_or(*otherwise, |(_, value)| saturate(*value))
                    }
                };
            }
            at = end;
        }
        Some(())
    }

    /// The rate that the policy makes of the interval's, bytes per second.
    fn decide(&self, report: &Report<'_>) -> Option<i64> {
        let rate = report.get("rate")?;
        let mut knobs = Knobs { cwnd_bytes: 0, rate_bytes_per_s: rate };
        let control = SlotControl { active: Some(0), ..SlotControl::EMPTY };
        let mut images: [&[u64]; BUFFERS] = [&[]; BUFFERS];
        images[0] = &self.version.image;
        let slot = Slot { shape: &self.version.shape, control, images };
        // Each decision is a flow's first: the monitor, which makes flows fall back, is a datapath's.
        match slot.decide(self.key, &mut FlowPolicy::default(), &self.cells, &mut knobs) {
            Verdict::Decided { .. } => {}
            Verdict::Native => return None,
        }
        Some(knobs.rate_bytes_per_s)
    }
}

impl Flow for InAgentFlow {
    fn on_report(&mut self, _now_us: u64, report: &Report<'_>, control: &mut Control) {
        let intervals = report.get("intervals").unwrap_or(0);
        if intervals == self.intervals || self.remember(report).is_none() {
            return;
        }
        self.intervals = intervals;
        if report.get("asked") == Some(1)
            && let Some(rate) = self.decide(report)
        {
            control.update(&[("decided", rate)]);
        }
    }
}

/// Saturates a value as a history's cells do.
fn saturate(value: i64) -> i32 {
    value.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

// Config, defaults

impl Version {
    /// `algorithm` with its policy in the agent; `None` if it asks none, or nothing can be made of it.
    fn of(algorithm: &dyn Algorithm, name: &'static str) -> Option<Version> {
        let [program] = &algorithm.programs()[..] else { return None };
        let mut asking = PolicyProgram::of(program.source)?;
        let policy = algorithm.policies().into_iter().find(|p| p.slot == asking.slot)?;
        let snapshot = Snapshot::built_in(policy.snapshot).ok()?;
        let image = snapshot.image(&DeployOptions::ONLY);
        let cell = |register: &String| match register.strip_prefix("Report.") {
            Some(name) => Some(Cell::Reported(name.to_owned())),
            None => match asking.decl(register)?.init {
                Literal::Num(n) => Some(Cell::Set(register.clone(), saturate(n))),
                Literal::Bool(b) => Some(Cell::Set(register.clone(), b.into())),
            },
        };
        let cells = |(depth, names): &(usize, Vec<String>)| {
            Some((*depth, names.iter().map(cell).collect::<Option<Vec<_>>>()?))
        };
        let histories = asking.histories.iter().map(cells).collect::<Option<Vec<_>>>()?;
        let floor_us = match asking.decl("floor_us")?.init {
            Literal::Num(n) => n,
            Literal::Bool(_) => return None,
        };
        reports_instead(&mut asking)?;
        let parameters = [algorithm.parameters(), &[REPORT_US]].concat();
        let shape = *snapshot.shape();
        let program = asking.source.to_string();
        Some(Version { name, program, parameters, histories, floor_us, shape, image })
    }
}

/// Lets a program report where it asks.
fn reports_instead(asking: &mut PolicyProgram) -> Option<()> {
    let mut first = true;
    asking.replace(|statement| match statement {
        StmtKind::History(..) if std::mem::take(&mut first) => Some(INTERVAL.to_owned()),
        StmtKind::History(..) | StmtKind::Report => Some(String::new()),
        StmtKind::Bind(_, Expr { kind: ExprKind::Name(name), .. }) if name.starts_with("Policy.") => {
            Some(String::new())
        }
        _ => None,
    })?;
    let asks = |s: &Stmt| matches!(s.kind, StmtKind::Policy(_));
    let clause = asking.source.clauses.iter_mut().find(|clause| clause.body.iter().any(asks))?;
    let at = clause.body.iter().position(asks)?;
    let after = clause.body.split_off(at + 1);
    asking.replace(|statement| match statement {
        StmtKind::Policy(_) => Some("(:= Report.asked 1)".to_owned()),
        _ => None,
    })?;
    let last = asking.source.clauses.len().checked_sub(1)?;
    asking.insert(last, DECIDED)?;
    let next = parse(NEXT).ok()?.clauses.into_iter().flat_map(|clause| clause.body);
    asking.source.clauses.get_mut(last)?.body.extend(after.into_iter().chain(next));
    asking.insert(usize::MAX, REPORTS)
}

// Factory

/// Makes flows whose policy the agent asks.
#[derive(Clone)]
pub struct InAgent {
    version: &'static Version,
    algorithm: Arc<dyn Algorithm>,
    report_us: u32,
}

impl InAgent {
    /// `aurora-agent`; `None` without a snapshot.
    pub fn aurora() -> Option<InAgent> {
        static VERSION: LazyLock<Option<Version>> =
            LazyLock::new(|| Version::of(&Aurora::default(), "aurora-agent"));
        InAgent::new(VERSION.as_ref()?, Arc::new(Aurora::default()))
    }

    /// `mocc-agent`; `None` without a snapshot.
    pub fn mocc() -> Option<InAgent> {
        static VERSION: LazyLock<Option<Version>> =
            LazyLock::new(|| Version::of(&Mocc::default(), "mocc-agent"));
        InAgent::new(VERSION.as_ref()?, Arc::new(Mocc::default()))
    }

    fn new(version: &'static Version, algorithm: Arc<dyn Algorithm>) -> Option<InAgent> {
        Some(InAgent { version, algorithm, report_us: DEFAULT_REPORT_US })
    }
}

impl Algorithm for InAgent {
    fn name(&self) -> &'static str {
        self.version.name
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: self.version.name, source: &self.version.program }]
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let mut fields = fields_of(&*self.algorithm, info);
        let report_us = i64::from(self.report_us);
        // No interval is shorter than the time between two reports: each is decided.
        for (_, floor_us) in fields.iter_mut().filter(|(name, _)| *name == "floor_us") {
            *floor_us = (*floor_us).max(report_us);
        }
        if !fields.iter().any(|(name, _)| *name == "floor_us") {
            fields.push(("floor_us", report_us.max(self.version.floor_us)));
        }
        fields.push(("report_us", report_us));
        control.set_program(self.version.name, &fields);
        let cells = self.version.histories.iter().map(|(depth, cells)| depth * cells.len()).sum();
        Box::new(InAgentFlow {
            version: self.version,
            fields,
            intervals: 0,
            cells: vec![0; cells],
            key: u64::from(info.local.port()),
        })
    }

    fn parameters(&self) -> &'static [Parameter] {
        &self.version.parameters
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        let mut configured = self.clone();
        let (own, others): (Vec<_>, Vec<_>) = values.iter().partition(|(name, _)| *name == REPORT_US.name);
        if let Some((_, report_us)) = own.last() {
            configured.report_us = u32::try_from(*report_us).unwrap_or(DEFAULT_REPORT_US);
        }
        if let Some(algorithm) = self.algorithm.configured(&others) {
            configured.algorithm = algorithm;
        }
        Some(Arc::new(configured))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, reported};
    use ccplane_alg::Request;

    /// A flow of `aurora-agent`, and the names of what its program reports.
    fn flow() -> (InAgent, Box<dyn Flow>, Control, Vec<String>) {
        let placed = InAgent::aurora().unwrap();
        let program = ccplane_program::compile(placed.programs()[0].source).unwrap();
        let mut control = Control::default();
        let flow = placed.flow(&FlowInfo::example(1000, 10_000), &mut control);
        control.clear();
        (placed, flow, control, reported(&program))
    }

    #[test]
    fn an_interval_is_decided_as_a_datapath_decides_it_and_once() {
        let (placed, mut flow, mut control, names) = flow();
        let version = placed.version;
        let model = ccplane_infer::Model::new(&version.shape, &version.image).unwrap();
        let mut cells = vec![0; 30];
        let mut signs = (false, false);
        for n in 1..200i64 {
            // The queue comes and goes; the rest follows in some way.
            let (inflation, ratio, sent) = (n % 7 * 900 - 3000, n % 50 * 500, n % 3 * 400 - 100);
            let of = |name: &str| match name {
                "inflation" => inflation,
                "ratio" => ratio,
                "sent" => sent,
                "rate" => 1_000_000,
                "acked" => 100,
                "took_us" => 20_000,
                "intervals" => n,
                "asked" => i64::from(n % 5 != 0),
                _ => 0,
            };
            let values: Vec<i64> = names.iter().map(|name| of(name)).collect();
            let report = Report { program: "aurora-agent", names: &names, values: &values, truth: None };
            flow.on_report(n as u64, &report, &mut control);
            cells.rotate_left(3);
            cells[27..].copy_from_slice(&[inflation as i32, ratio as i32, sent as i32]);
            let bound = i64::from(ccplane_infer::image::u32_at(
                &version.image,
                ccplane_infer::image::ACTION_BOUND_Q16,
            ));
            let action_q16 = model.infer(&cells).action_q16.clamp(-bound, bound);
            let mut knobs = Knobs { cwnd_bytes: 0, rate_bytes_per_s: 1_000_000 };
            ccplane_infer::apply(&version.image, action_q16, &mut knobs);
            let fields = [("decided", knobs.rate_bytes_per_s)];
            let expected = (n % 5 != 0).then_some(Request { program: None, fields: &fields });
            assert!(control.requests().eq(expected), "interval {n}: {control:?}");
            control.clear();
            signs = (signs.0 || action_q16 > 0, signs.1 || action_q16 < 0);
            // The same interval, reported again.
            flow.on_report(n as u64, &report, &mut control);
            assert_eq!(control.requests().len(), 0);
        }
        assert_eq!(signs, (true, true), "both up and down");
    }

    #[test]
    fn no_interval_is_shorter_than_the_time_between_reports() {
        let often = |report_us| {
            let placed: Arc<dyn Algorithm> = Arc::new(InAgent::aurora().unwrap());
            let configured =
                ccplane_alg::configure(&placed, [("report_us", report_us), ("slack_us", 500)]).unwrap();
            let bench = Bench::new(&*configured, 1448, 14_480);
            (bench.reg("report_us"), bench.reg("floor_us"), bench.reg("slack_us"))
        };
        assert_eq!(often(1000), (1000, 2000, 500));
        assert_eq!(often(100_000), (100_000, 100_000, 500));
    }

    #[test]
    fn programs_report_where_they_would_ask() {
        for algorithm in [&Aurora::default() as &dyn Algorithm, &Mocc::default()] {
            let mut asking = PolicyProgram::of(algorithm.programs()[0].source).unwrap();
            reports_instead(&mut asking).unwrap();
            let text = asking.source.to_string();
            let program = ccplane_program::compile(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
            assert!(!program.uses_policy() && program.histories().is_empty());
            assert_eq!(text.matches("(report)").count(), 1);
        }
    }
}
