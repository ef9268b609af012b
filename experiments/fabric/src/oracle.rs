//! An oracle: flows have the priority of their size, which nobody else knows when they start.
//!
//! Its flows' applications write everything at once, so that the first packet's hook sees all that waits.

use crate::queue::LEVELS;
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Report, field};
use ccplane_algs::THRESHOLDS;

/// The registers of the thresholds.
const REGISTERS: [&str; THRESHOLDS] = ["t1", "t2", "t3", "t4", "t5", "t6", "t7"];
const _: () = assert!(LEVELS == THRESHOLDS + 1);

/// The agent's side of a flow, which has nothing to do.
struct KnownFlow;

impl Flow for KnownFlow {
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
}

/// Makes flows whose size is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Oracle {
    /// Sizes from which on flows have the next priority, bytes, ascending.
    pub sizes: [u64; THRESHOLDS],
}

impl Algorithm for Oracle {
    ccplane_alg::one_program!("oracle", "oracle.fold");

    fn first(&self, control: &mut Control) {
        let mut fields = REGISTERS.map(|name| (name, 0));
        for ((_, value), bytes) in fields.iter_mut().zip(self.sizes) {
            *value = field(bytes);
        }
        control.set_program("oracle", &fields);
    }

    fn flow(&self, _info: &FlowInfo, _control: &mut Control) -> Box<dyn Flow> {
        Box::new(KnownFlow)
    }
}
