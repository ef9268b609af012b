//! Algorithms whose fold program makes every decision, declared as data.

use crate::{Algorithm, Control, Flow, FlowInfo, Handover, Parameter, ProgramSource, Report};
use std::sync::Arc;

/// A congestion control algorithm whose fold program makes every decision, so that the agent only starts its flows.
///
/// ```
/// use ccplane_alg::{Algorithm, FoldAlgorithm, Parameter, field};
///
/// const GAIN: Parameter =
///     Parameter { name: "gain_percent", about: "growth per ACK, of a segment", default: 100, min: 1, max: 1000 };
/// const MINE: FoldAlgorithm = FoldAlgorithm {
///     name: "mine",
///     source: "(def (mss 1448) (gain 100)) (when true (:= Cwnd (+ Cwnd (/ (* gain mss) 100))))",
///     parameters: &[GAIN],
///     registers: &[("mss", |start| start.info.mss_bytes.into()), ("gain", |start| start.value(&GAIN))],
///     resumed: &[("Cwnd", |info, from| field(from.window_bytes(info.mss_bytes)))],
/// };
/// assert_eq!(MINE.parameters()[0].name, "gain_percent");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FoldAlgorithm {
    /// The name of the algorithm and of its program, as rules, plans and reports spell it.
    pub name: &'static str,
    /// The fold program's text.
    pub source: &'static str,
    /// The numbers that plans and rules may set.
    pub parameters: &'static [Parameter],
    /// The control registers that are set when a flow starts, and how their values are computed.
    pub registers: &'static [(&'static str, StartValue)],
    /// The fields that are set in addition when a flow is taken over from another algorithm.
    pub resumed: &'static [(&'static str, ResumedValue)],
}

/// Computes the first value of a control register.
pub type StartValue = fn(&Start<'_>) -> i64;

/// Computes the value of a field for a flow that is taken over.
pub type ResumedValue = fn(&FlowInfo, &Handover) -> i64;

/// The flow that starts and the parameters that were set.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    pub info: &'a FlowInfo,
    values: &'a [(&'static str, i64)],
}

impl Start<'_> {
    /// Returns the parameter's value for this flow, which lies within its range.
    pub fn value(&self, parameter: &Parameter) -> i64 {
        parameter.value_in(self.values)
    }
}

/// A declared algorithm with some of its parameters set.
#[derive(Clone, Debug)]
struct Configured {
    declared: FoldAlgorithm,
    values: Vec<(&'static str, i64)>,
}

/// The agent's side of a flow whose program decides everything.
struct FoldFlow;

impl Flow for FoldFlow {
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
}

impl FoldAlgorithm {
    fn start(
        &self,
        values: &[(&'static str, i64)],
        info: &FlowInfo,
        from: Option<&Handover>,
        control: &mut Control,
    ) -> Box<dyn Flow> {
        let start = Start { info, values };
        let registers: Vec<_> = self.registers.iter().map(|(name, value)| (*name, value(&start))).collect();
        control.set_program(self.name, &registers);
        if let Some(from) = from {
            let fields: Vec<_> =
                self.resumed.iter().map(|(name, value)| (*name, value(info, from))).collect();
            control.update(&fields);
        }
        Box::new(FoldFlow)
    }
}

impl Algorithm for FoldAlgorithm {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: self.name, source: self.source }]
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        self.start(&[], info, None, control)
    }

    fn resume(&self, info: &FlowInfo, from: &Handover, control: &mut Control) -> Box<dyn Flow> {
        self.start(&[], info, Some(from), control)
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.parameters
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Configured { declared: *self, values: values.to_vec() }))
    }
}

impl Algorithm for Configured {
    fn name(&self) -> &'static str {
        self.declared.name
    }

    fn programs(&self) -> Vec<ProgramSource> {
        self.declared.programs()
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        self.declared.start(&self.values, info, None, control)
    }

    fn resume(&self, info: &FlowInfo, from: &Handover, control: &mut Control) -> Box<dyn Flow> {
        self.declared.start(&self.values, info, Some(from), control)
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.declared.parameters
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        self.declared.configured(values)
    }
}
