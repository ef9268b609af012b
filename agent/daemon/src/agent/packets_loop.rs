//! The loop of the kernel's packets.

use super::observed::Observed;
use super::pace::Pace;
use super::source::{Packets as PacketsSource, Source};
use super::worker::{Partners, SpawnError, Worker};
use super::{PACKETS_LOOP, core, hosts};
use crate::config::{Config, Packets, Switch};
use crate::confine::Role;
use crate::failure::Failure;
use crate::learning::{Beginning, Post};
use crate::metrics::LoopMetrics;
use crate::place::Located;
use crate::privileges::{self, Powers};
use ccplane_alg::{Algorithm, configure};
use ccplane_algs::{AT_START, FLOWLET_GAP};
use ccplane_channel::clock;
use ccplane_core::{Core, Rules};
use ccplane_ebpf::EbpfError;
use ccplane_ebpf::packets::PacketsDatapath;
use ccplane_files::document::Problem;
use std::path::Path;
use std::sync::Arc;
use tracing::warn;

/// The loop's name in logs, metrics and its sockets.
const NAME: &str = "packets";

/// The algorithms, of which those that choose paths know the datapath's pauses, and whether only flows that start can be led.
pub(super) fn fitted(algorithms: &[Arc<dyn Algorithm>], packets: &Packets) -> Vec<Arc<dyn Algorithm>> {
    let gap_us = i64::try_from(packets.flowlet_gap_us.get()).unwrap_or(FLOWLET_GAP.max);
    let known = [(FLOWLET_GAP.name, gap_us), (AT_START.name, packets.leads_starts_alone().into())];
    let fit = |algorithm: &Arc<dyn Algorithm>| {
        let takes = |name: &str| algorithm.parameters().iter().any(|parameter| parameter.name == name);
        let values: Vec<(&str, i64)> = known.into_iter().filter(|(name, _)| takes(name)).collect();
        let fitted = if values.is_empty() { None } else { configure(algorithm, values).ok() };
        fitted.unwrap_or_else(|| Arc::clone(algorithm))
    };
    algorithms.iter().map(fit).collect()
}

/// The algorithms, of which the one that flows start with has the configured parameters.
pub(super) fn configured(
    file: Option<&Path>,
    algorithms: &[Arc<dyn Algorithm>],
    packets: &Packets,
) -> Result<Vec<Arc<dyn Algorithm>>, Failure> {
    let Packets { algorithm: name, parameters, .. } = packets;
    let mut all = fitted(algorithms, packets);
    if parameters.is_empty() {
        return Ok(all);
    }
    let refuse = |field: &str, message: String| {
        let field = format!("datapath.packets.{field}");
        Config::refusal(file, Problem::new(field, message))
    };
    let Some(found) = all.iter_mut().find(|algorithm| algorithm.name() == name) else {
        return Err(refuse("parameters", format!("`{name}` takes none")).into());
    };
    let values = parameters.iter().map(|(parameter, value)| (parameter.as_str(), *value));
    *found = configure(found, values)
        .map_err(|error| refuse(&format!("parameters.{}", error.parameter()), error.to_string()))?;
    Ok(all)
}

/// Attaches to the configured devices and starts the loop; `None` where that cannot be and need not.
pub(super) fn start(
    located: &Located,
    rules: &Rules,
    algorithms: &[Arc<dyn Algorithm>],
    observed: &mut Observed,
    post: Post,
    beginnings: &[Beginning],
) -> Result<Option<Worker>, Failure> {
    let metrics = observed.of_loop(NAME);
    let role = Some(Role::Kernel);
    match spawn(located, rules, algorithms, (metrics.clone(), role), post, beginnings)? {
        Ok(worker) => {
            observed.started(NAME, metrics, &worker);
            Ok(Some(worker))
        }
        Err(error) if located.config.datapath.packets.mode == Switch::Auto => {
            warn!(why = %error, "decisions about packets off; `ccplane doctor` says what is missing");
            Ok(None)
        }
        Err(error) => Err(Failure::runtime(error)),
    }
}

/// Attaches in the calling thread's network namespace and starts the loop, with its metrics and its role; the inner error says why
/// it cannot be attached.
pub(super) fn spawn(
    located: &Located,
    rules: &Rules,
    algorithms: &[Arc<dyn Algorithm>],
    (metrics, role): (Option<LoopMetrics>, Option<Role>),
    post: Post,
    beginnings: &[Beginning],
) -> Result<Result<Worker, EbpfError>, Failure> {
    let config = &located.config;
    let packets = &config.datapath.packets;
    let timeout = config.agent.heartbeat_timeout_ms.millis();
    let options = packets.options(&config.datapath.ebpf.run_dir, timeout);
    let attach = move |core: &mut Core| -> Result<Box<dyn Source>, EbpfError> {
        let datapath = PacketsDatapath::attach(options)?;
        Ok(Box::new(PacketsSource::new(datapath, core, clock::now_us())))
    };
    let core = core(algorithms, rules, config, PACKETS_LOOP, beginnings)?;
    let powers = Powers { capabilities: privileges::KERNEL, role };
    let hosts = hosts(located, NAME, algorithms)?;
    let partners = Partners { metrics, post, hosts };
    match Worker::spawn(NAME, powers, core, Pace::new(&config.agent), partners, attach) {
        Ok(worker) => Ok(Ok(worker)),
        Err(SpawnError::Attach(error)) => Ok(Err(error)),
        Err(error) => Err(Failure::runtime(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Bounded, PathConfig};
    use ccplane_alg::Control;

    /// The programs that flows start with, and the fields that are set then.
    fn first(packets: &Packets, name: &str) -> (Vec<&'static str>, Vec<(&'static str, i64)>) {
        let all = fitted(&ccplane_algs::on_packets(), packets);
        let found = all.iter().find(|algorithm| algorithm.name() == name).unwrap();
        let mut control = Control::default();
        found.first(&mut control);
        let programs = control.requests().filter_map(|request| request.program).collect();
        (programs, control.requests().flat_map(|request| request.fields.to_vec()).collect())
    }

    #[test]
    fn algorithms_of_paths_know_the_pauses_and_whether_marks_alone_lead() {
        let mark = |mark| PathConfig { mark, device: None };
        let marks = Packets {
            flowlet_gap_us: Bounded::clamped(120),
            paths: vec![mark(1), mark(2)],
            cgroup: Some("/".into()),
            ..Packets::default()
        };
        for name in ["path", "plb", "path-agent", "least-loaded"] {
            let devices = Packets {
                paths: vec![PathConfig { device: Some("a".into()), ..mark(1) }, mark(2)],
                ..marks.clone()
            };
            let (programs, fields) = first(&devices, name);
            assert_eq!(programs, [name]);
            assert!(fields.contains(&("flowlet_us", 120)), "{name}: {fields:?}");
        }
        assert_eq!(first(&marks, "path").0, ["path", "path-start"]);
        assert_eq!(first(&marks, "plb").0, ["plb", "plb-start"]);
        // Without a group no program runs at a start, and a flow label shows the path of what runs.
        let others = [
            Packets { cgroup: None, ..marks.clone() },
            Packets { flow_label: true, ..marks.clone() },
            Packets { paths: Vec::new(), ..marks },
        ];
        for packets in others {
            assert_eq!(first(&packets, "path").0, ["path"], "{packets:?}");
        }
        assert_eq!(first(&Packets::default(), "pias").0, ["pias"]);
    }
}
