//! `ccplane run` of a plan of load balancing, and `ccplane train --algorithm path`.

use super::fabric::{SIGNALLED, Written, report_folder, source, stoppable};
use super::print;
use super::trained::{finish, prepare};
use crate::cli::{RunArgs, TrainArgs};
use ccplane_agent::failure::Failure;
use ccplane_fabric::{
    BALANCE_PLANS, BalancePlan, BalancingConfig, balance_csv, balance_text, is_balance, learn_paths,
    play_balance,
};
use serde::Serialize;
use std::process::ExitCode;

/// The content of `path.json`, which `--json` prints.
#[derive(Serialize)]
struct Trained {
    algorithm: &'static str,
    command: String,
    seed: u64,
    decisions: usize,
    seconds: f64,
    snapshot: String,
}

/// Returns the plan of that name or file if it is one of load balancing.
pub(super) fn find(name: &str, args: &RunArgs) -> Result<Option<BalancePlan>, Failure> {
    let Some((file, text, repeats)) = source(name, args, BALANCE_PLANS)? else { return Ok(None) };
    if !is_balance(&text) {
        return Ok(None);
    }
    let mut plan = BalancePlan::parse(&file, &text, repeats).map_err(Failure::input)?;
    if args.quick {
        plan.name.push_str("-quick");
        plan.loads_percent.truncate(2);
        plan.flows = plan.flows.min(300);
    }
    Ok(Some(plan))
}

/// Checks or runs it.
pub(super) fn run(plan: &BalancePlan, args: &RunArgs) -> Result<ExitCode, Failure> {
    if args.check {
        let uplinks: Vec<&str> = plan.uplinks.iter().map(|uplinks| uplinks.name()).collect();
        let names: Vec<&str> = plan.contenders.iter().map(|contender| contender.name()).collect();
        let (uplinks, names) = (uplinks.join(", "), names.join(", "));
        let text = format!("{}: {}\n  {uplinks}\n  {names}\n  {} runs\n", plan.name, plan.title, plan.runs());
        return print(&text).map(|()| ExitCode::SUCCESS);
    }
    let Some(cells) = stoppable(|cores, told| play_balance(plan, cores, told))? else {
        return Ok(ExitCode::from(SIGNALLED));
    };
    let text = balance_text(plan, &cells);
    let written = Written {
        plan: &plan.name,
        runs: plan.runs(),
        results: (args.results.join(format!("{}.csv", plan.name)), balance_csv(plan, &cells)),
        report: (report_folder(args).join(format!("{}.txt", plan.name)), text.clone()),
        text,
    };
    written.finish(args.json).map(|()| ExitCode::SUCCESS)
}

pub(super) fn train(args: &TrainArgs) -> Result<(), Failure> {
    prepare(args, "path", "flows of fabrics that have ended", false)?;
    let began = std::time::Instant::now();
    let command = format!("ccplane train --algorithm path --seed {}", args.seed);
    let config = BalancingConfig { seed: args.seed, ..BalancingConfig::default() };
    let learned = learn_paths(&config, &command, &|step| eprintln!("{step}")).map_err(Failure::runtime)?;
    let trained = Trained {
        algorithm: "path",
        command,
        seed: args.seed,
        decisions: learned.examples,
        seconds: began.elapsed().as_secs_f64(),
        snapshot: learned.snapshot.hash().to_string(),
    };
    if finish(args, "path", &learned.policy, &learned.snapshot, &trained)? {
        return Ok(());
    }
    print(&format!("{} decisions in {:.0} s\n", trained.decisions, trained.seconds))
}
