//! `ccplane distill`: a policy as a program.

use super::output::{print, print_json};
use super::snapshot::read_file;
use crate::cli::DistillArgs;
use ccplane_agent::failure::Failure;
use ccplane_alg::Algorithm;
use ccplane_distill::{DistillConfig, Distilled, Errors, Report, Stock, Teacher, distill as distil};
use ccplane_learn::{Policy, PolicyError};
use ccplane_snapshot::{Snapshot, SnapshotError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reasons why nothing is distilled: exit code 2.
#[derive(Debug, thiserror::Error)]
enum NoTeacher {
    #[error("no algorithm is called `{name}`; those with a policy: {known}")]
    Algorithm { name: String, known: String },
    #[error("`{name}` comes without a policy: --policy or --snapshot must name one")]
    NoPolicy { name: String },
    #[error("{}: {source}", path.display())]
    Policy { path: PathBuf, source: PolicyError },
    #[error("{name}: {source}")]
    Snapshot { name: String, source: SnapshotError },
}

pub(crate) fn distill(args: &DistillArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    let algorithm = algorithms.iter().find(|a| a.name() == args.algorithm).ok_or_else(|| {
        let known: Vec<&str> =
            algorithms.iter().filter(|a| !a.policies().is_empty()).map(|a| a.name()).collect();
        Failure::input(NoTeacher::Algorithm { name: args.algorithm.clone(), known: known.join(", ") })
    })?;
    let teacher = teacher(args, algorithm)?;
    let config = DistillConfig {
        seed: args.seed,
        leaves: args.leaves,
        inputs: args.inputs,
        episodes: args.episodes,
        ..DistillConfig::default()
    };
    let Distilled { program, report, .. } =
        distil(Arc::clone(algorithm), &teacher, &config).map_err(Failure::input)?;
    std::fs::write(&args.out, headed(args, &teacher, &report, &program))?;
    if args.json { print_json(&report) } else { print(&text(&report, &args.out)) }
}

fn teacher(args: &DistillArgs, algorithm: &Arc<dyn Algorithm>) -> Result<Teacher, Failure> {
    if let Some(path) = &args.policy {
        let policy = Policy::read(path);
        let refused = |source| Failure::input(NoTeacher::Policy { path: path.clone(), source });
        return policy.map(Teacher::from).map_err(refused);
    }
    if let Some(path) = &args.snapshot {
        let (_, snapshot) = read_file(path).map_err(Failure::input)?;
        return Ok(Teacher::from(snapshot));
    }
    let name = || algorithm.name().to_owned();
    let own = algorithm.policies().into_iter().next();
    let own = own.ok_or_else(|| Failure::input(NoTeacher::NoPolicy { name: name() }))?;
    let refused = |source| Failure::input(NoTeacher::Snapshot { name: name(), source });
    Snapshot::built_in(own.snapshot).map(Teacher::from).map_err(refused)
}

/// The program under what it is and how it was made.
fn headed(args: &DistillArgs, teacher: &Teacher, report: &Report, program: &str) -> String {
    let of = match teacher {
        Teacher::Snapshot(snapshot, _) => format!("snapshot {}", snapshot.hash()),
        Teacher::Policy(policy) => format!("policy {}", policy.hash().unwrap_or_default()),
    };
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    format!(
        "# {} with its policy distilled into a tree of {} linear models; generated, not to be edited:\n\
         # ccplane distill --algorithm {} --leaves {} --inputs {} --seed {} --episodes {}\n\
         # Of {of}.\n\
         # Mean distance from its actions, of the action range: {} where flows go, {} anywhere.\n{program}",
        report.algorithm,
        report.leaves,
        args.algorithm,
        args.leaves,
        args.inputs,
        args.seed,
        args.episodes,
        percent(report.visited.mean),
        percent(report.random.mean),
    )
}

fn text(report: &Report, out: &Path) -> String {
    let errors = |e: &Errors| {
        let [mean, p95, max, opposite] = [e.mean, e.p95, e.max, e.opposite].map(|share| share * 100.0);
        format!(
            "mean {mean:.2} %, p95 {p95:.2} %, largest {max:.1} % of the action range; {opposite:.2} % the other way"
        )
    };
    let stock = match &report.stock {
        Stock::Fits => "stock CCP can run it".to_owned(),
        Stock::Refused(why) => format!("stock CCP cannot run it: {why}"),
    };
    format!(
        "{}: {} leaves over {}\n\
         visited states: {}\n\
         random states:  {}\n\
         reward: {:.4} under the policy, {:.4} under the tree\n\
         program: {} registers, {} instructions; {stock}\n\
         {}\n",
        report.algorithm,
        report.leaves,
        report.inputs.join(", "),
        errors(&report.visited),
        errors(&report.random),
        report.teacher_reward,
        report.student_reward,
        report.registers,
        report.instructions,
        out.display(),
    )
}
