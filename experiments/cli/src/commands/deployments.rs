//! `ccplane snapshot list`, `push` and `rollback`: what the running agent deploys.

use super::control::{request, unexpected};
use super::flows::evidence;
use super::output::{print, print_json, table};
use super::snapshot::read_file;
use crate::cli::{SnapshotListArgs, SnapshotPushArgs, SnapshotRollbackArgs};
use ccplane_agent::control::{
    ClientError, DecisionRecord, LearnerRecord, Request, Response, SlotRecord, Snapshots, StandingRecord,
    to_hex,
};
use ccplane_agent::failure::Failure;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Digits of a hash that people read.
const SHORT_HASH: usize = 12;

pub(crate) fn list(args: &SnapshotListArgs) -> Result<(), Failure> {
    let mut all = match request(&args.query.place.locate(None)?, &Request::Snapshots)? {
        Response::Snapshots(all) => all,
        other => return Err(unexpected(other)),
    };
    let skipped = all.decisions.len().saturating_sub(args.decisions);
    all.decisions.drain(..skipped);
    if args.query.json {
        return print_json(&all);
    }
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    print(&text(&all, now_s))
}

pub(crate) fn push(args: &SnapshotPushArgs) -> Result<(), Failure> {
    let (bytes, _) = read_file(&args.file).map_err(Failure::input)?;
    let push = Request::Push {
        snapshot: to_hex(&bytes),
        slot: args.slot,
        canary: args.canary,
        force: args.force,
        allow_older: args.allow_older,
    };
    match request(&args.place.locate(None)?, &push) {
        Ok(Response::Pushed { decisions }) => print(&format!("{}\n", decisions.join("\n"))),
        Ok(other) => Err(unexpected(other)),
        Err(refused @ ClientError::Refused(_)) => Err(Failure::input(refused)),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn rollback(args: &SnapshotRollbackArgs) -> Result<(), Failure> {
    match request(&args.place.locate(None)?, &Request::Rollback { slot: args.slot })? {
        Response::Done => Ok(()),
        other => Err(unexpected(other)),
    }
}

fn text(all: &Snapshots, now_s: f64) -> String {
    let mut out = slots(&all.slots);
    for learner in &all.learners {
        let _ = writeln!(out, "\n{}", learner_text(learner));
    }
    if !all.standings.is_empty() {
        let _ = write!(out, "\n{}", standings(&all.standings));
    }
    if !all.decisions.is_empty() {
        let _ = write!(out, "\n{}", decisions(&all.decisions, now_s));
    }
    out
}

fn short(hash: Option<&String>) -> String {
    hash.map_or("-", |hash| hash.get(..SHORT_HASH).unwrap_or(hash)).to_owned()
}

fn slots(slots: &[SlotRecord]) -> String {
    let header = [
        "datapath",
        "slot",
        "algorithm",
        "role",
        "uid",
        "snapshot",
        "origin",
        "age",
        "flows",
        "decisions",
        "saturated",
        "clipped",
        "trips",
    ];
    let row = |s: &SlotRecord, d: &ccplane_agent::control::DeploymentRecord| {
        vec![
            s.datapath.clone(),
            s.slot.to_string(),
            s.algorithm.clone(),
            d.role.clone(),
            d.uid.to_string(),
            short(d.snapshot.as_ref()),
            d.origin.clone(),
            format!("{:.0} s", d.age_s),
            d.flows.to_string(),
            d.decisions.to_string(),
            d.saturated.to_string(),
            d.clipped.to_string(),
            d.trips.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> =
        slots.iter().flat_map(|s| s.deployments.iter().map(move |d| row(s, d))).collect();
    table(&header, &rows)
}

fn standings(standings: &[StandingRecord]) -> String {
    let row = |s: &StandingRecord| {
        vec![s.prefix.clone(), s.algorithm.clone(), s.arm.clone(), evidence(&s.evidence), s.why.clone()]
    };
    let rows: Vec<Vec<String>> = standings.iter().map(row).collect();
    table(&["destination", "algorithm", "arm", "worth/intervals", "why"], &rows)
}

pub(super) fn learner_text(l: &LearnerRecord) -> String {
    let state = match (l.failed, l.adapting) {
        (true, _) => "failed: nothing more is learned",
        (false, true) => "adapts to a path that has changed",
        (false, false) => "steady",
    };
    format!(
        "{} learner: {state}; {} rows taken, {} dropped, {} candidates, {:.1} s of processor time",
        l.algorithm, l.rows, l.dropped_rows, l.candidates, l.cpu_s
    )
}

fn decisions(decisions: &[DecisionRecord], now_s: f64) -> String {
    let header =
        ["ago", "datapath", "slot", "algorithm", "snapshot", "origin", "fidelity", "reward", "decision"];
    let row = |d: &DecisionRecord| {
        vec![
            format!("{:.0} s", now_s - d.time_s),
            d.datapath.clone(),
            d.slot.to_string(),
            d.algorithm.clone(),
            short(d.snapshot.as_ref()),
            d.origin.clone(),
            d.evidence.map_or_else(|| "-".to_owned(), |e| format!("{:.1} %", 100.0 * e.fidelity_mean)),
            d.comparison.map_or_else(
                || "-".to_owned(),
                |c| format!("{:+.3} +-{:.3} ({} pairs)", c.difference, c.uncertainty, c.pairs),
            ),
            d.text.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = decisions.iter().map(row).collect();
    table(&header, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_agent::control::ArmRecord;
    use ccplane_agent::control::DeploymentRecord;
    use ccplane_core::{Comparison, Evidence, Finding};

    #[test]
    fn slots_learners_and_decisions_read_as_tables() {
        let deployment = DeploymentRecord {
            role: "active".into(),
            uid: 7,
            snapshot: Some("0123456789abcdef".into()),
            origin: "learned".into(),
            age_s: 61.2,
            flows: 3,
            decisions: 900,
            saturated: 2,
            clipped: 1,
            trips: 0,
        };
        let slot = SlotRecord {
            datapath: "ebpf".into(),
            slot: 0,
            algorithm: "aurora".into(),
            deployments: vec![deployment],
        };
        let evidence = Evidence {
            converged: true,
            stability: 0.001,
            fidelity_min: 0.01,
            fidelity_mean: 0.123,
            safe: true,
            quantisation_error: 0.002,
            gain: Some(0.1),
            states: 2048,
        };
        let comparison = Comparison {
            pairs: 4,
            flows: 1,
            controls: 0,
            canary_mean: 1.5,
            active_mean: 1.0,
            difference: 0.5,
            t: Some(5.5),
            uncertainty: 0.4,
            margin: 0.05,
            finding: Finding::Better,
        };
        let decision = DecisionRecord {
            time_s: 1000.0,
            datapath: "ebpf".into(),
            algorithm: "aurora".into(),
            slot: 0,
            snapshot: Some("0123456789abcdef".into()),
            uid: Some(7),
            origin: "learned".into(),
            verdict: "promoted".into(),
            text: "promoted".into(),
            evidence: Some(evidence),
            comparison: Some(comparison),
        };
        let learner = LearnerRecord {
            algorithm: "aurora".into(),
            rows: 5000,
            reward_sum: 1250.0,
            dropped_rows: 0,
            candidates: 1,
            cpu_s: 2.5,
            adapting: false,
            failed: false,
        };
        let arm = ArmRecord { name: "copa".into(), intervals: 3, worth: 1.0 };
        let standing = StandingRecord {
            algorithm: "portfolio".into(),
            prefix: "192.0.2.0/24".into(),
            arm: "copa".into(),
            why: "cubic was worth -30 %".into(),
            evidence: vec![arm],
        };
        let (slots, decisions, learners) = (vec![slot], vec![decision], vec![learner]);
        let all = Snapshots { slots, decisions, learners, standings: vec![standing] };
        assert_eq!(
            text(&all, 1030.0),
            "datapath  slot  algorithm  role    uid  snapshot      origin   age   flows  decisions  saturated  clipped  trips\n\
             ebpf      0     aurora     active  7    0123456789ab  learned  61 s  3      900        2          1        0\n\
             \n\
             aurora learner: steady; 5000 rows taken, 0 dropped, 1 candidates, 2.5 s of processor time\n\
             \n\
             destination   algorithm  arm   worth/intervals  why\n\
             192.0.2.0/24  portfolio  copa  copa:1.00/3      cubic was worth -30 %\n\
             \n\
             ago   datapath  slot  algorithm  snapshot      origin   fidelity  reward                   decision\n\
             30 s  ebpf      0     aurora     0123456789ab  learned  12.3 %    +0.500 +-0.400 (4 pairs)  promoted\n"
                .replace("reward                   decision", "reward                    decision")
        );
    }
}
