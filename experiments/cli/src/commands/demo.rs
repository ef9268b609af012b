//! Runs the shipped plan `demo` on the datapaths that this machine has, and writes its report: `ccplane demo`.

use super::output::{print, print_json};
use super::run::{PlanOutput, execute, exit_code, write_report};
use crate::cli::DemoArgs;
use ccplane_agent::agent::OwnLoop;
use ccplane_agent::failure::Failure;
use ccplane_agent::place::Located;
use ccplane_alg::Algorithm;
use ccplane_core::{NATIVE, Rules};
use ccplane_ebpf::EbpfError;
use ccplane_emulator::shell::{Ground, permit};
use ccplane_report::experiment::{LinkGlance, at_a_glance};
use ccplane_results::Datapath;
use ccplane_runner::experiment::Ended;
use ccplane_runner::missing_for_links;
use ccplane_runner::plan::{Known, Overrides, Plan, shipped};
use ccplane_runner::traffic::check_congestion;
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// The name of the plan and of its report.
const PLAN: &str = "demo";

/// Another agent holds the kernel's flows.
#[derive(Debug, thiserror::Error)]
#[error("{0}; stop it (`ccplane stop`), the demo brings its own")]
struct AgentRuns(EbpfError);

pub(crate) fn demo(args: &DemoArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<ExitCode, Failure> {
    ccplane_agent::agent::log_if_asked();
    let located = args.place.locate(None)?;
    let mut plan = plan(args, algorithms)?;
    // Before any thread starts. An ordinary user makes links in namespaces of their own.
    let best = best_datapath(args, &located)?;
    let notes = fit(&mut plan, &best, &|name| check_congestion(name).is_ok());
    notes.iter().for_each(|note| eprintln!("ccplane: {note}"));
    plan.about = [vec![plan.about.clone()], notes.clone()].concat().join(" ");
    let ended = execute(&plan, &args.report, true, located, algorithms)?;
    show(args, &plan, &ended, notes)?;
    Ok(exit_code(&ended))
}

fn plan(args: &DemoArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<Plan, Failure> {
    let cellular = args.trace.as_deref().map(std::path::absolute).transpose()?;
    let cellular = cellular.as_deref().map(Path::to_string_lossy);
    let traces = |name: &str| shipped::trace(Path::new(""), name);
    let known = Known { algorithms, kernel: None, traces: &traces, cellular: cellular.as_deref() };
    let overrides = Overrides { duration_ms: args.seconds.map(|s| s * 1000), ..Overrides::default() };
    shipped::load(PLAN, &known, overrides).map_err(Failure::input)
}

/// The best datapath for our flows on this machine, with the reason why there is no better one.
#[derive(Clone, PartialEq, Eq, Debug)]
enum BestDatapath {
    Kernel,
    Quic(String),
    Simulator(String),
}

fn best_datapath(args: &DemoArgs, located: &Located) -> Result<BestDatapath, Failure> {
    let ground = match permit() {
        Ok(ground) => ground,
        Err(error) => {
            let why = format!("links need root, or namespaces of one's own: {error}");
            return Ok(BestDatapath::Simulator(why));
        }
    };
    if let Some(missing) = missing_for_links().first() {
        return Ok(BestDatapath::Simulator(missing.to_string()));
    }
    if args.quic {
        return Ok(BestDatapath::Quic("--quic was given".to_owned()));
    }
    if ground == Ground::Own {
        return Ok(BestDatapath::Quic("only root steers the kernel's flows".to_owned()));
    }
    let nothing = Rules { rules: Vec::new(), default: NATIVE.to_owned() };
    match OwnLoop::start(located, &nothing, &[])? {
        Ok(agent) => agent.stop().map(|()| BestDatapath::Kernel),
        Err(busy @ EbpfError::Busy { .. }) => Err(Failure::runtime(AgentRuns(busy))),
        Err(error) => Ok(BestDatapath::Quic(error.to_string())),
    }
}

/// Gives each contender a datapath that this machine has, and returns notes on them for the reader.
fn fit(plan: &mut Plan, best: &BestDatapath, kernel_has: &dyn Fn(&str) -> bool) -> Vec<String> {
    let (ours, mut notes) = match best {
        BestDatapath::Kernel => (Datapath::Ebpf, Vec::new()),
        BestDatapath::Quic(why) => {
            let note = format!("Our flows run under QUIC, since the kernel's cannot be steered here: {why}.");
            (Datapath::Quic, vec![note])
        }
        BestDatapath::Simulator(why) => {
            plan.title = format!("SIMULATED: {}", plan.title);
            (Datapath::Sim, vec![format!("SIMULATED, nothing was sent: {why}.")])
        }
    };
    for contender in &mut plan.contenders {
        contender.datapath = match contender.datapath {
            Datapath::Kernel if ours == Datapath::Sim => Datapath::Sim,
            Datapath::Kernel if kernel_has(&contender.algorithm) => Datapath::Kernel,
            Datapath::Kernel => {
                notes.push(format!(
                    "{} is our program: the kernel lacks its own (the module tcp_{}).",
                    contender.name, contender.algorithm
                ));
                ours
            }
            _ => ours,
        };
    }
    notes
}

/// The JSON output of `ccplane demo`.
#[derive(Serialize)]
struct Summary<'a> {
    links: Vec<ShownLink>,
    notes: Vec<String>,
    #[serde(flatten)]
    outcome: PlanOutput<'a>,
}

#[derive(Serialize)]
struct ShownLink {
    link: String,
    verdict: String,
    decided: String,
    contenders: Vec<ShownContender>,
}

#[derive(Serialize)]
struct ShownContender {
    name: String,
    datapath: Option<Datapath>,
    throughput_mbit_per_s: f64,
    waiting_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fair_share: Option<f64>,
    best: bool,
}

fn show(args: &DemoArgs, plan: &Plan, ended: &Ended, notes: Vec<String>) -> Result<(), Failure> {
    let report = write_report(ended, &args.report, PLAN)?;
    let links = at_a_glance(&ended.results);
    if args.json {
        return print_json(&Summary {
            links: links.iter().map(|link| shown(plan, link)).collect(),
            notes,
            outcome: PlanOutput::new(ended, report.as_deref()),
        });
    }
    let mut text = String::new();
    for link in &links {
        text.push_str(&format!("{}\n  {}\n", link.link, link.sentence()));
        if !link.decided.is_empty() {
            text.push_str(&format!("  What it did: {}\n", link.decided));
        }
    }
    if ended.done < ended.total {
        text.push_str(&format!("{} of {} runs ended well\n", ended.done, ended.total));
    }
    if let Some(report) = report {
        text.push_str(&format!("report: {}\n", report.display()));
    }
    print(&text)
}

fn shown(plan: &Plan, link: &LinkGlance) -> ShownLink {
    let datapath = |name: &str| plan.contenders.iter().find(|c| c.name == name).map(|c| c.datapath);
    let contenders = link.contenders.iter().map(|c| ShownContender {
        name: c.name.clone(),
        datapath: datapath(&c.name),
        throughput_mbit_per_s: c.throughput_bps / 1e6,
        waiting_ms: c.waiting_us / 1e3,
        fair_share: c.fair_share,
        best: c.best,
    });
    ShownLink {
        link: link.link.clone(),
        verdict: link.sentence(),
        decided: link.decided.clone(),
        contenders: contenders.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped_plan() -> Plan {
        let algorithms = ccplane_algs::all();
        let traces = |name: &str| shipped::trace(Path::new(""), name);
        let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
        shipped::load(PLAN, &known, Overrides::default()).unwrap()
    }

    #[test]
    fn the_first_contender_is_ours_and_the_others_are_the_kernels() {
        let plan = shipped_plan();
        let datapaths: Vec<Datapath> = plan.contenders.iter().map(|c| c.datapath).collect();
        assert_eq!(datapaths, [Datapath::Ebpf, Datapath::Kernel, Datapath::Kernel]);
        assert_eq!(plan.contenders[0].name, plan.contenders[0].algorithm);
        let seconds = plan.scenarios.len() as u64 * plan.duration_ms / 1000;
        assert!(plan.at_once && seconds <= 160, "the links' time is most of three minutes: {seconds} s");
    }

    #[test]
    fn each_contender_gets_a_datapath_that_is_there_and_what_is_not_is_said() {
        use Datapath::{Ebpf, Kernel, Quic, Sim};
        let no_bbr = |name: &str| name != "bbr";
        let why = || "why".to_owned();
        let cases = [
            (BestDatapath::Kernel, [Ebpf, Kernel, Ebpf], 1),
            (BestDatapath::Quic(why()), [Quic, Kernel, Quic], 2),
            (BestDatapath::Simulator(why()), [Sim, Sim, Sim], 1),
        ];
        for (best, wanted, count) in cases {
            let mut plan = shipped_plan();
            let notes = fit(&mut plan, &best, &no_bbr);
            let found: Vec<Datapath> = plan.contenders.iter().map(|c| c.datapath).collect();
            assert_eq!(found, wanted, "{best:?}");
            assert_eq!(notes.len(), count, "{notes:?}");
            assert_eq!(plan.title.starts_with("SIMULATED"), wanted[0] == Sim);
            assert_eq!(notes.iter().any(|n| n.contains("tcp_bbr")), wanted[0] != Sim, "{notes:?}");
        }
        assert_eq!(fit(&mut shipped_plan(), &BestDatapath::Kernel, &|_| true), Vec::<String>::new());
    }
}
