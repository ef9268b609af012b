//! PIAS (Bai et al., NSDI 2015): flows that have sent little are served before those that have sent much.
//!
//! Its program decides on a flow's packets on their way out. Nothing about a flow needs to be known when it starts: it has the
//! first priority until it has sent the first threshold's bytes, and so on. The thresholds follow from the distribution of sizes.

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter, Report, field};
use std::sync::Arc;

/// Thresholds between the eight priorities.
pub const THRESHOLDS: usize = 7;

/// The registers of the thresholds.
const REGISTERS: [&str; THRESHOLDS] = ["t1", "t2", "t3", "t4", "t5", "t6", "t7"];

// State

/// The agent's side of a flow, which has nothing to do.
struct PiasFlow;

// Behaviour

impl Flow for PiasFlow {
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
}

// Config, defaults

/// Bytes that a flow has sent when it falls to the next priority, ascending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demotions(pub [u64; THRESHOLDS]);

impl Demotions {
    /// Returns the demotions that these values of [`PARAMETERS`] say.
    pub(crate) fn configured(values: &[(&'static str, i64)]) -> Demotions {
        Demotions(PARAMETERS.each_ref().map(|parameter| parameter.value_in(values).unsigned_abs()))
    }
}

impl Default for Demotions {
    /// A third of a decade apart, from the bytes of a first window on.
    fn default() -> Demotions {
        Demotions([20_000, 60_000, 200_000, 600_000, 2_000_000, 6_000_000, 20_000_000])
    }
}

// Factory

/// Makes flows that fall in priority as they send.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pias {
    pub demotions: Demotions,
}

macro_rules! threshold {
    ($name:literal, $default:literal) => {
        Parameter {
            name: $name,
            about: "bytes sent at which flows fall to the next priority",
            default: $default,
            min: 1,
            max: 1 << 40,
        }
    };
}

/// The thresholds, for rules.
pub(crate) const PARAMETERS: [Parameter; THRESHOLDS] = [
    threshold!("demote_1_bytes", 20_000),
    threshold!("demote_2_bytes", 60_000),
    threshold!("demote_3_bytes", 200_000),
    threshold!("demote_4_bytes", 600_000),
    threshold!("demote_5_bytes", 2_000_000),
    threshold!("demote_6_bytes", 6_000_000),
    threshold!("demote_7_bytes", 20_000_000),
];

impl Algorithm for Pias {
    ccplane_alg::one_program!("pias", "pias.fold");

    fn first(&self, control: &mut Control) {
        let mut fields = REGISTERS.map(|name| (name, 0));
        for ((_, value), bytes) in fields.iter_mut().zip(self.demotions.0) {
            *value = field(bytes);
        }
        control.set_program("pias", &fields);
    }

    fn flow(&self, _info: &FlowInfo, _control: &mut Control) -> Box<dyn Flow> {
        Box::new(PiasFlow)
    }

    fn parameters(&self) -> &'static [Parameter] {
        &PARAMETERS
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Pias { demotions: Demotions::configured(values) }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_program::ir::{INFINITY, MAX_REGS, Prim};
    use ccplane_program::vm::{NoPolicies, ProgramState, SendPrims};

    #[test]
    fn a_flow_falls_by_one_priority_with_each_threshold_and_is_asked_at_no_other_packet() {
        let program = ccplane_program::compile(Pias::default().programs()[0].source).unwrap();
        let mut flow = ProgramState::new(&program, 0, 0);
        let mut sent = 0;
        for (level, bytes) in Demotions::default().0.into_iter().chain([u64::MAX]).enumerate() {
            let mut prims = SendPrims::default();
            prims.set(Prim::FlowBytesSent, sent);
            flow.invoke_with(&program, &prims, &mut NoPolicies, &mut [0; MAX_REGS]);
            let next = i64::try_from(bytes).unwrap_or(INFINITY);
            assert_eq!((flow.priority, flow.decide_at_bytes), (level as i64, next));
            sent = next;
        }
    }

    #[test]
    fn thresholds_are_parameters() {
        let pias: Arc<dyn Algorithm> = Arc::new(Pias::default());
        let other = ccplane_alg::configure(&pias, [("demote_2_bytes", 70_000)]).unwrap();
        let mut control = Control::default();
        other.first(&mut control);
        let set = control.requests().next().unwrap();
        assert_eq!(
            (set.program, set.fields[0], set.fields[1]),
            (Some("pias"), ("t1", 20_000), ("t2", 70_000))
        );
    }
}
