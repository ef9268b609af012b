//! `ccplane demo`: the shipped plan of that name, on the datapaths that this machine has, and its report.

use super::run::{execute, exit_code};
use super::{print, print_json};
use crate::agent::OwnLoop;
use crate::cli::DemoArgs;
use crate::failure::Failure;
use crate::place::Located;
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
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The plan, and the name of its report.
const PLAN: &str = "demo";

/// An agent holds the kernel's flows.
#[derive(Debug, thiserror::Error)]
#[error("{0}; stop it (`ccplane stop`), the demo brings its own")]
struct AgentRuns(EbpfError);

/// `ccplane demo`
pub(crate) fn demo(args: &DemoArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<ExitCode, Failure> {
    crate::agent::log_if_asked();
    let located = args.place.locate(None)?;
    let mut plan = plan(args, algorithms)?;
    // Before any thread starts. An ordinary user makes links in namespaces of their own.
    let reach = reach(args, &located)?;
    let notes = fit(&mut plan, &reach, &|name| check_congestion(name).is_ok());
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

/// The best that this machine has for our flows, and why it is no better.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Reach {
    Kernel,
    Quic(String),
    Simulator(String),
}

fn reach(args: &DemoArgs, located: &Located) -> Result<Reach, Failure> {
    let ground = match permit() {
        Ok(ground) => ground,
        Err(error) => {
            let why = format!("links need root, or namespaces of one's own: {error}");
            return Ok(Reach::Simulator(why));
        }
    };
    if let Some(missing) = missing_for_links().first() {
        return Ok(Reach::Simulator(missing.to_string()));
    }
    if args.quic {
        return Ok(Reach::Quic("--quic was given".to_owned()));
    }
    if ground == Ground::Own {
        return Ok(Reach::Quic("only root steers the kernel's flows".to_owned()));
    }
    let nothing = Rules { rules: Vec::new(), default: NATIVE.to_owned() };
    match OwnLoop::start(located, &nothing, &[])? {
        Ok(agent) => agent.stop().map(|()| Reach::Kernel),
        Err(busy @ EbpfError::Busy { .. }) => Err(Failure::runtime(AgentRuns(busy))),
        Err(error) => Ok(Reach::Quic(error.to_string())),
    }
}

/// Gives each contender a datapath that is there; what a reader should know of that.
fn fit(plan: &mut Plan, reach: &Reach, kernel_has: &dyn Fn(&str) -> bool) -> Vec<String> {
    let (ours, mut notes) = match reach {
        Reach::Kernel => (Datapath::Ebpf, Vec::new()),
        Reach::Quic(why) => {
            let note = format!("Our flows run under QUIC, since the kernel's cannot be steered here: {why}.");
            (Datapath::Quic, vec![note])
        }
        Reach::Simulator(why) => {
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

/// What `--json` prints.
#[derive(Serialize)]
struct Shown<'a> {
    links: Vec<ShownLink>,
    notes: Vec<String>,
    results: &'a Path,
    report: Option<PathBuf>,
    runs: u64,
    done: u64,
    failed: u64,
    interrupted: bool,
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
    let report = match ended.done {
        0 => None,
        _ => {
            let files = ccplane_report::experiment::write(&ended.results, &args.report, PLAN);
            Some(files.map_err(Failure::runtime)?.html)
        }
    };
    let links = at_a_glance(&ended.results);
    if args.json {
        return print_json(&Shown {
            links: links.iter().map(|link| shown(plan, link)).collect(),
            notes,
            results: &ended.path,
            report,
            runs: ended.total,
            done: ended.done,
            failed: ended.failed,
            interrupted: ended.interrupted,
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
            (Reach::Kernel, [Ebpf, Kernel, Ebpf], 1),
            (Reach::Quic(why()), [Quic, Kernel, Quic], 2),
            (Reach::Simulator(why()), [Sim, Sim, Sim], 1),
        ];
        for (reach, wanted, count) in cases {
            let mut plan = shipped_plan();
            let notes = fit(&mut plan, &reach, &no_bbr);
            let found: Vec<Datapath> = plan.contenders.iter().map(|c| c.datapath).collect();
            assert_eq!(found, wanted, "{reach:?}");
            assert_eq!(notes.len(), count, "{notes:?}");
            assert_eq!(plan.title.starts_with("SIMULATED"), wanted[0] == Sim);
            assert_eq!(notes.iter().any(|n| n.contains("tcp_bbr")), wanted[0] != Sim, "{notes:?}");
        }
        assert_eq!(fit(&mut shipped_plan(), &Reach::Kernel, &|_| true), Vec::<String>::new());
    }
}
