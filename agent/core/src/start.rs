//! Starting an algorithm on a flow.

use crate::attached::Attached;
use crate::catalog::Entry;
use crate::flow::{FlowLog, FlowState, NativeReason, RunningAlgorithm};
use crate::panics::catch;
use crate::requests::queue_requests;
use ccplane_alg::{Algorithm, Control, Handover};
use ccplane_contract::FlowId;
use std::sync::Arc;

/// Starts an algorithm on a flow. `algorithm`: the entry's, or a variant of it; `from`: what it takes over from another one.
pub(crate) fn start(
    entry: &Entry,
    algorithm: Arc<dyn Algorithm>,
    attached: &mut Attached,
    flow: FlowId,
    state: &mut FlowState,
    from: Option<&Handover>,
) -> Result<RunningAlgorithm, NativeReason> {
    if let Some(refusal) = attached.refusal(entry) {
        return Err(refusal);
    }
    let mut control = Control::default();
    let make = || match from {
        Some(from) => algorithm.resume(&state.info, from, &mut control),
        None => algorithm.flow(&state.info, &mut control),
    };
    let code = catch(make).map_err(NativeReason::Panicked)?;
    let find = |name| entry.program(name);
    let log = FlowLog { counters: &mut state.counters, last_error: &mut state.last_error };
    match queue_requests(find, &control, None, flow, &mut attached.queue, log) {
        Some(program) => Ok(RunningAlgorithm { code, name: entry.name, algorithm, program }),
        None => {
            // A destructor that panics here is the panic of an algorithm that goes native anyway.
            catch(move || drop(code)).map_err(NativeReason::Panicked)?;
            Err(NativeReason::NoProgram)
        }
    }
}
