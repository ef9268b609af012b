//! Requests of an algorithm for its flow, turned into queued commands of the datapath.

use crate::action::{Command, Fields};
use crate::catalog::CommandError;
use crate::catalog::Compiled;
use crate::flow::FlowLog;
use crate::limits::MAX_COMMANDS_PER_CALL;
use crate::queue::Queue;
use ccplane_alg::{Control, Request};
use ccplane_contract::FlowId;
use std::sync::Arc;

/// Queues what an algorithm asks for its flow. `find`: its programs by name; `running`: the one that the flow runs. Commands
/// that cannot be carried out are logged. Returns the program that is set last, if one is.
pub(crate) fn queue_requests<'a>(
    find: impl Fn(&'static str) -> Option<&'a Arc<Compiled>>,
    control: &Control,
    running: Option<&Compiled>,
    flow: FlowId,
    queue: &mut Queue,
    mut log: FlowLog<'_>,
) -> Option<Arc<Compiled>> {
    let found = control.requests().len();
    let mut set: Option<&Arc<Compiled>> = None;
    for (n, Request { program, fields }) in control.requests().enumerate() {
        if n == MAX_COMMANDS_PER_CALL {
            log.refuse(CommandError::TooManyCommands { found, limit: MAX_COMMANDS_PER_CALL });
            break;
        }
        let queued = match program {
            Some(name) => {
                find(name).ok_or(CommandError::UnknownProgram { program: name }).and_then(|wanted| {
                    let command = Command::SetProgram { flow, uid: wanted.uid(), fields: Fields::new() };
                    queue.push_bounded(command, |to| wanted.resolve(fields, to))?;
                    set = Some(wanted);
                    log.counters.program_changes += 1;
                    Ok(())
                })
            }
            None => set.map(|set| &**set).or(running).ok_or(CommandError::NoProgram).and_then(|running| {
                let command = Command::Update { flow, fields: Fields::new() };
                queue.push_bounded(command, |to| running.resolve(fields, to))?;
                log.counters.updates += 1;
                Ok(())
            }),
        };
        if let Err(error) = queued {
            log.refuse(error);
        }
    }
    set.cloned()
}
