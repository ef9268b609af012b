//! The loop of the kernel's packets.

use super::observed::Observed;
use super::pace::Pace;
use super::privileges::{self, Powers};
use super::source::{Packets as PacketsSource, Source};
use super::worker::{Partners, SpawnError, Worker};
use super::{PACKETS_LOOP, core, hosts};
use crate::args::AgentArgs;
use crate::config::{Config, Packets, Switch};
use crate::confine::Role;
use crate::failure::Failure;
use crate::learning::{Beginning, Post};
use crate::metrics::LoopMetrics;
use crate::place::Located;
use ccplane_alg::{Algorithm, configure};
use ccplane_channel::clock;
use ccplane_core::{Core, Rules};
use ccplane_ebpf::EbpfError;
use ccplane_ebpf::packets::PacketsDatapath;
use ccplane_files::document::Problem;
use std::sync::Arc;
use tracing::warn;

/// The loop's name in logs, metrics and its sockets.
const NAME: &str = "packets";

/// The algorithms, of which the one that flows start with has the configured parameters.
pub(super) fn configured(
    args: &AgentArgs,
    algorithms: &[Arc<dyn Algorithm>],
    located: &Located,
) -> Result<Vec<Arc<dyn Algorithm>>, Failure> {
    let Packets { algorithm: name, parameters, .. } = &located.config.datapath.packets;
    let mut all = algorithms.to_vec();
    if parameters.is_empty() {
        return Ok(all);
    }
    let refuse = |field: &str, message: String| {
        let field = format!("datapath.packets.{field}");
        Config::refusal(args.place.config.as_deref(), Problem::new(field, message))
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
    let rules = Rules { default: packets.algorithm.clone(), ..rules.clone() };
    let core = core(algorithms, &rules, config, PACKETS_LOOP, beginnings)?;
    let powers = Powers { capabilities: privileges::KERNEL, role };
    let hosts = hosts(located, NAME, algorithms)?;
    let partners = Partners { metrics, post, hosts, default_algorithm: Some(packets.algorithm.clone()) };
    match Worker::spawn(NAME, powers, core, Pace::new(&config.agent), partners, attach) {
        Ok(worker) => Ok(Ok(worker)),
        Err(SpawnError::Attach(error)) => Ok(Err(error)),
        Err(error) => Err(Failure::runtime(error)),
    }
}
