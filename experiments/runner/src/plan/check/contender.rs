//! Algorithms and their contenders.

use std::collections::BTreeMap;
use std::sync::Arc;

use ccplane_alg::{Algorithm, configure};
use ccplane_files::document::Problem;
use ccplane_results::{Contender, Datapath};

use super::{Checked, name, refuse, unique};
use crate::plan::source::{AlgorithmSource, PlacementName};
use crate::plan::{Known, MAX_CONTENDERS};

/// The algorithm of a contender or of background traffic, resolved and checked.
pub(super) fn algorithm(
    field: &str,
    asked: &str,
    datapath: Datapath,
    parameters: &BTreeMap<String, i64>,
    known: &Known<'_>,
) -> Checked<()> {
    if datapath == Datapath::Kernel {
        if let Some(key) = parameters.keys().next() {
            let message = "the kernel's own algorithms take no parameters";
            return refuse(format!("{field}.parameters.{key}"), message);
        }
        return match known.kernel {
            Some(names) if !names.iter().any(|name| name == asked) => refuse(
                format!("{field}.algorithm"),
                format_args!("this kernel has no algorithm called `{asked}`; there are {}", names.join(", ")),
            ),
            _ => Ok(()),
        };
    }
    let found = find(asked, known).ok_or_else(|| {
        let names: Vec<&str> = known.algorithms.iter().map(|a| a.name()).collect();
        Problem::new(
            format!("{field}.algorithm"),
            format_args!("no algorithm is called `{asked}`; there are {}", names.join(", ")),
        )
    })?;
    let values = parameters.iter().map(|(name, value)| (name.as_str(), *value));
    match configure(found, values) {
        Ok(_) => Ok(()),
        Err(error) => {
            let key = error.parameter().to_owned();
            refuse(format!("{field}.parameters.{key}"), error)
        }
    }
}

/// Ours of this name.
pub(super) fn find<'k>(name: &str, known: &Known<'k>) -> Option<&'k Arc<dyn Algorithm>> {
    known.algorithms.iter().find(|a| a.name() == name)
}

/// The contenders, each with the index of the table that names it.
pub(in crate::plan) fn contenders(
    sources: &[AlgorithmSource],
    known: &Known<'_>,
) -> Checked<Vec<(usize, Contender)>> {
    if sources.is_empty() {
        return refuse("algorithm", "at least one [[algorithm]] is needed");
    }
    let mut contenders = Vec::new();
    for (n, source) in sources.iter().enumerate() {
        for datapath in source.datapath.all() {
            contenders.push((n, contender(&format!("algorithm[{n}]"), source, *datapath, known)?));
        }
    }
    if contenders.len() > MAX_CONTENDERS {
        return refuse("algorithm", format_args!("at most {} are allowed", MAX_CONTENDERS));
    }
    unique(contenders.iter().map(|(n, c)| (c.name.as_str(), format!("algorithm[{n}]"))), "contenders")?;
    Ok(contenders)
}

fn contender(
    field: &str,
    source: &AlgorithmSource,
    datapath: Datapath,
    known: &Known<'_>,
) -> Checked<Contender> {
    let resolved = placed(field, source, datapath, known)?;
    algorithm(field, &resolved, datapath, &source.parameters, known)?;
    if source.learning {
        can_learn(field, &resolved, datapath, known)?;
    }
    let called = match (&source.name, source.datapath.all()) {
        (Some(given), [_]) => name(format!("{field}.name"), given)?,
        (given, _) => {
            let base = given.as_ref().unwrap_or(&resolved);
            name(format!("{field}.name"), &format!("{base} {}", datapath.name()))?
        }
    };
    Ok(Contender {
        name: called,
        algorithm: resolved,
        datapath,
        parameters: source.parameters.clone(),
        learning: source.learning,
    })
}

/// An agent improves policies, of live flows.
fn can_learn(field: &str, name: &str, datapath: Datapath, known: &Known<'_>) -> Checked<()> {
    let learned = |a: &&Arc<dyn Algorithm>| a.learns();
    if datapath == Datapath::Kernel {
        let message = "nobody learns beside the kernel's own algorithms; datapath = \"ebpf\", say, is ours";
        return refuse(format!("{field}.learning"), message);
    }
    if find(name, known).filter(learned).is_none() {
        let names: Vec<&str> = known.algorithms.iter().filter(learned).map(|a| a.name()).collect();
        let message = format!("`{name}` has no policy to improve; those that have one: {}", names.join(", "));
        return refuse(format!("{field}.learning"), message);
    }
    Ok(())
}

/// The algorithm's name where its decisions are made as asked. What decides per report in the agent is called `ccp-NAME` or
/// `NAME-agent`, a policy that was distilled `NAME-fold`; other programs are folds, and ask snapshots, as they are.
fn placed(field: &str, source: &AlgorithmSource, datapath: Datapath, known: &Known<'_>) -> Checked<String> {
    let (Some(placement), asked) = (source.placement, &source.algorithm) else {
        return Ok(source.algorithm.clone());
    };
    let refused = |message: String| refuse(format!("{field}.placement"), message);
    if datapath == Datapath::Kernel {
        return refused("the kernel's own algorithms decide in the kernel".to_owned());
    }
    let learned = find(asked, known).is_some_and(|a| !a.policies().is_empty());
    let names = known.algorithms.iter().map(|a| a.name());
    match placement {
        PlacementName::Agent => {
            let versions = [format!("ccp-{asked}"), format!("{asked}-agent")];
            if let Some(version) = versions.into_iter().find(|v| find(v, known).is_some()) {
                return Ok(version);
            }
            let base = |n: &'static str| n.strip_prefix("ccp-").or_else(|| n.strip_suffix("-agent"));
            let able: Vec<&str> = names.filter_map(base).collect();
            refused(format!("only {} can decide in the agent", able.join(", ")))
        }
        PlacementName::Fold if learned => {
            let distilled = format!("{asked}-fold");
            if find(&distilled, known).is_some() {
                return Ok(distilled);
            }
            let able: Vec<&str> = names.filter_map(|n| n.strip_suffix("-fold")).collect();
            refused(format!("no distilled program of `{asked}`; there are those of {}", able.join(", ")))
        }
        PlacementName::Snapshot if !learned => refused(format!("`{asked}` asks no policy")),
        PlacementName::Fold | PlacementName::Snapshot => Ok(asked.clone()),
    }
}
