//! Equal-cost multipath for live runs: where routes know one path, a program spreads flows over all of them by their hash.

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Report};

/// The agent's side of a flow, which has nothing to do.
struct HashedFlow;

impl Flow for HashedFlow {
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
}

/// Makes flows that stay on the path of their hash.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Ecmp;

impl Algorithm for Ecmp {
    ccplane_alg::one_program!("ecmp", "ecmp.fold");

    fn first(&self, control: &mut Control) {
        control.set_program("ecmp", &[]);
    }

    fn flow(&self, _info: &FlowInfo, _control: &mut Control) -> Box<dyn Flow> {
        Box::new(HashedFlow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_program::ir::{INFINITY, MAX_REGS, Prim};
    use ccplane_program::vm::{NoPolicies, ProgramState, SendPrims};

    #[test]
    fn a_flow_has_the_path_of_its_hash_and_is_asked_no_more() {
        let program = ccplane_program::compile(Ecmp.programs()[0].source).unwrap();
        for (hash, count, path) in [(0, 1, 0), (7, 4, 3), (u32::MAX, 8, 7), (9, 3, 0)] {
            let mut flow = ProgramState::new(&program, 0, 0);
            let mut prims = SendPrims::default();
            prims.set(Prim::FlowHash, hash.into()).set(Prim::PathCount, count);
            flow.invoke_with(&program, &prims, &mut NoPolicies, &mut [0; MAX_REGS]);
            assert_eq!((flow.path, flow.decide_at_bytes, flow.faults), (path, INFINITY, 0), "{hash}");
        }
    }
}
