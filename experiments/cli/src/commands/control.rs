//! Commands that ask the running agent: status, programs, reload, stop.

use super::output::{print, print_json, table};
use crate::cli::{AdoptArgs, ProgramsArgs, ReloadArgs, StatusArgs, StopArgs};
use ccplane_agent::control::{ClientError, DatapathRecord, LoopRecord, Request, Response, Status, ask};
use ccplane_agent::failure::Failure;
use ccplane_agent::place::Located;
use ccplane_host::CpuSet;
use std::time::{Duration, Instant};

/// The interval at which `stop` checks whether the agent is gone.
const STOP_POLL: Duration = Duration::from_millis(20);
/// The time for which `stop` waits for the agent to hand its flows over, and then for it to be gone.
const STOP_WAIT: Duration = Duration::from_secs(30);

/// The agent's answer was to something else.
#[derive(Debug, thiserror::Error)]
#[error("the agent, perhaps of another version, answered {0:?}")]
struct UnexpectedAnswer(Response);

pub(super) fn unexpected(response: Response) -> Failure {
    Failure::runtime(UnexpectedAnswer(response))
}

pub(super) fn request(located: &Located, request: &Request) -> Result<Response, ClientError> {
    ask(&located.control_socket, located.config.control.timeout_ms.millis(), request)
}

pub(crate) fn status(args: &StatusArgs) -> Result<(), Failure> {
    match request(&args.query.place.locate(None)?, &Request::Status)? {
        Response::Status(status) if args.query.json => print_json(&status),
        Response::Status(status) => print(&status_text(&status)),
        other => Err(unexpected(other)),
    }
}

fn status_text(status: &Status) -> String {
    let header = ["datapath", "flows", "programs"];
    let of = |n: usize, max: usize| format!("{n} of {max}");
    let row =
        |d: &DatapathRecord| vec![d.kind.clone(), of(d.flows, d.max_flows), of(d.programs, d.max_programs)];
    let rows: Vec<Vec<String>> = status.datapaths.iter().map(row).collect();
    let c = &status.counters.core;
    let waits = |l: &LoopRecord| {
        let cores: CpuSet = l.cores.iter().copied().filter_map(|core| u32::try_from(core).ok()).collect();
        vec![l.name.clone(), l.wake.clone(), cores.to_string()]
    };
    let loops: Vec<Vec<String>> = status.loops.iter().map(waits).collect();
    format!(
        "agent pid {}, up {} s, default algorithm {}, {} rules\n{}{}\
         flows: {} created, {} closed, {} refused, {} ended unseen\n\
         reports: {} taken, {} stray, {} events dropped\n\
         trouble: {} commands refused, {} panics, {} malformed datagrams\n",
        status.pid,
        status.uptime_s,
        status.default_algorithm,
        status.rules,
        table(&header, &rows),
        table(&["loop", "waits by", "cores"], &loops),
        c.flows_created,
        c.flows_closed,
        c.flows_refused,
        status.counters.unseen_flows,
        c.reports,
        c.stray_reports,
        c.dropped_events,
        c.refused_commands,
        c.panics,
        status.counters.malformed_datagrams,
    )
}

pub(crate) fn programs(args: &ProgramsArgs) -> Result<(), Failure> {
    let response = request(&args.query.place.locate(None)?, &Request::Programs)?;
    let Response::Programs { programs } = &response else { return Err(unexpected(response)) };
    if args.query.json {
        return print_json(&response);
    }
    let header = ["algorithm", "program", "datapath", "uid", "instructions", "registers", "state"];
    let rows: Vec<Vec<String>> = programs
        .iter()
        .map(|p| {
            vec![
                p.algorithm.clone(),
                p.program.clone(),
                p.datapath.clone(),
                p.uid.to_string(),
                p.instructions.to_string(),
                p.registers.to_string(),
                p.refused.as_ref().map_or_else(|| "installed".to_owned(), |why| format!("refused: {why}")),
            ]
        })
        .collect();
    print(&table(&header, &rows))
}

pub(crate) fn reload(args: &ReloadArgs) -> Result<(), Failure> {
    let located = args.place.locate(None)?;
    let rules = located.config.rules.clone();
    let default_algorithm = located.config.default_algorithm.clone();
    match request(&located, &Request::SetRules { default_algorithm, rules }) {
        Ok(Response::Done) => Ok(()),
        Ok(other) => Err(unexpected(other)),
        Err(refused @ ClientError::Refused(_)) => Err(Failure::input(refused)),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn adopt(args: &AdoptArgs) -> Result<(), Failure> {
    let located = args.place.locate(None)?;
    let netns = args.netns.as_deref().map(std::path::absolute).transpose()?;
    match request(&located, &Request::Adopt { from: args.from.clone(), netns })? {
        Response::Adopted { flows } => print(&format!("{flows} flows adopted\n")),
        other => Err(unexpected(other)),
    }
}

/// The agent did not go, or not well.
#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error("agent pid {0} has stopped, and its process is still there after {STOP_WAIT:?}")]
    StillThere(u32),
    #[error("the agent has stopped: {0}")]
    NotWell(String),
}

pub(crate) fn stop(args: &StopArgs) -> Result<(), Failure> {
    let located = args.place.locate(None)?;
    // An agent that hangs is found out sooner than one that takes its time to stop.
    let pid = match request(&located, &Request::Version)? {
        Response::Version(version) => version.pid,
        other => return Err(unexpected(other)),
    };
    let ending = if args.leave { Request::Leave } else { Request::Stop };
    match ask(&located.control_socket, STOP_WAIT, &ending)? {
        Response::Stopped { problem: None } => {}
        Response::Stopped { problem: Some(problem) } => {
            return Err(Failure::runtime(StopError::NotWell(problem)));
        }
        other => return Err(unexpected(other)),
    }
    let start = Instant::now();
    while start.elapsed() < STOP_WAIT {
        match request(&located, &Request::Version) {
            Err(ClientError::NoAgent { .. }) => return Ok(()),
            _ => std::thread::sleep(STOP_POLL),
        }
    }
    Err(Failure::runtime(StopError::StillThere(pid)))
}
