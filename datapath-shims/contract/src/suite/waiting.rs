//! Waits for events of datapaths whose flows are live.

use crate::datapath::Datapath;
use crate::event::Event;
use crate::ids::{FlowId, ProgramUid};
use std::time::{Duration, Instant};

/// Polls, with heartbeats, until `done` accepts an event; `wait` is called where there was none. Later events are left for the next
/// call.
///
/// # Panics
/// None is accepted within `patience`.
#[track_caller]
pub fn wait_for_event<D: Datapath, T>(
    datapath: &mut D,
    patience: Duration,
    what: &str,
    mut wait: impl FnMut(&mut D),
    mut done: impl FnMut(&Event) -> Option<T>,
) -> T {
    let start = Instant::now();
    let mut events = Vec::new();
    while start.elapsed() < patience {
        datapath.heartbeat();
        if datapath.poll(1, &mut events) == 0 {
            wait(datapath);
        }
        if let Some(found) = events.pop().and_then(|e| done(&e)) {
            return found;
        }
    }
    panic!("no {what} within {patience:?}");
}

/// The number and values that an event reports, if it is a report of this flow by this program.
pub fn report_in(event: &Event, of: FlowId, by: ProgramUid) -> Option<(u32, Vec<i64>)> {
    match event {
        Event::Report { flow, program, seq, values, .. } if *flow == of && *program == by => {
            Some((*seq, values.to_vec()))
        }
        _ => None,
    }
}
