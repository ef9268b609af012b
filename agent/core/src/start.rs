//! Starting an algorithm on a flow.

use crate::action::{Command, Fields};
use crate::attached::Attached;
use crate::catalog::{Compiled, Entry};
use crate::flow::{FlowLog, FlowState, NativeReason, RunningAlgorithm};
use crate::panics::catch;
use crate::queue::Queue;
use crate::requests::queue_requests;
use ccplane_alg::{Algorithm, Control, Handover, Request};
use ccplane_contract::FlowId;
use ccplane_program::ir::Hook;
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
        Some(from) => {
            let code = algorithm.resume(&state.info, from, &mut control);
            if let Some(kept) = state.kept.iter().find(|kept| kept.arm == entry.name) {
                control.update(&kept.fields);
            }
            code
        }
        None => algorithm.flow(&state.info, &mut control),
    };
    let code = catch(make).map_err(NativeReason::Panicked)?;
    let find = |name| entry.program(name);
    let sets_program = control.requests().any(|request| request.program.is_some());
    let first = if sets_program { None } else { queue_first(entry, &*algorithm, flow, &mut attached.queue)? };
    let log = FlowLog { counters: &mut state.counters, last_error: &mut state.last_error };
    let set = queue_requests(find, &control, first.as_deref(), flow, &mut attached.queue, log);
    match set.or(first) {
        Some(program) => Ok(RunningAlgorithm { code, name: entry.name, algorithm, program }),
        None => {
            // A destructor that panics here is the panic of an algorithm that goes native anyway.
            catch(move || drop(code)).map_err(NativeReason::Panicked)?;
            Err(NativeReason::NoProgram)
        }
    }
}

/// Asks that a flow runs the program of `(hook send)` that flows of its algorithm start with, if there is one.
fn queue_first(
    entry: &Entry,
    algorithm: &dyn Algorithm,
    flow: FlowId,
    queue: &mut Queue,
) -> Result<Option<Arc<Compiled>>, NativeReason> {
    let mut control = Control::default();
    catch(|| algorithm.first(&mut control)).map_err(NativeReason::Panicked)?;
    for Request { program, fields } in control.requests() {
        let found = program.and_then(|name| entry.program(name));
        let Some(found) = found.filter(|found| found.program().hook() == Hook::Send) else { continue };
        let command = Command::EnsureProgram { flow, uid: found.uid(), fields: Fields::new() };
        return match queue.push_bounded(command, |to| found.resolve(fields, to)) {
            Ok(()) => Ok(Some(Arc::clone(found))),
            Err(_) => Ok(None),
        };
    }
    Ok(None)
}
