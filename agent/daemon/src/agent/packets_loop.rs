//! The loop of the kernel's packets.

use super::observed::Observed;
use super::privileges::{self, Powers};
use super::source::{Packets, Source};
use super::worker::{Pace, Partners, SpawnError, Worker};
use super::{PACKETS_LOOP, core, hosts};
use crate::config::Switch;
use crate::confine::Role;
use crate::failure::Failure;
use crate::learning::Post;
use crate::place::Located;
use ccplane_alg::Algorithm;
use ccplane_channel::clock;
use ccplane_core::{Core, Rules};
use ccplane_ebpf::EbpfError;
use ccplane_ebpf::packets::PacketsDatapath;
use std::sync::Arc;
use tracing::warn;

/// The loop's name in logs, metrics and its sockets.
const NAME: &str = "packets";

/// Attaches to the configured devices and starts the loop; `None` where that cannot be and need not.
pub(super) fn start(
    located: &Located,
    rules: &Rules,
    algorithms: &[Arc<dyn Algorithm>],
    observed: &mut Observed,
    post: Post,
) -> Result<Option<Worker>, Failure> {
    let config = &located.config;
    let packets = &config.datapath.packets;
    let timeout = config.agent.heartbeat_timeout_ms.millis();
    let options = packets.options(&config.datapath.ebpf.run_dir, timeout);
    let attach = move |core: &mut Core| -> Result<Box<dyn Source>, EbpfError> {
        let datapath = PacketsDatapath::attach(options)?;
        Ok(Box::new(Packets::new(datapath, core, clock::now_us())))
    };
    let rules = Rules { default: packets.algorithm.clone(), ..rules.clone() };
    let core = core(algorithms, &rules, config, PACKETS_LOOP, None)?;
    let powers = Powers { capabilities: privileges::KERNEL, role: Some(Role::Kernel) };
    let metrics = observed.of_loop(NAME);
    let hosts = hosts(located, NAME, algorithms)?;
    let default_algorithm = Some(packets.algorithm.clone());
    let partners = Partners { metrics: metrics.clone(), post, hosts, default_algorithm };
    match Worker::spawn(NAME, powers, core, Pace::new(&config.agent), partners, attach) {
        Ok(worker) => {
            observed.started(NAME, metrics, &worker);
            Ok(Some(worker))
        }
        Err(SpawnError::Attach(error)) if packets.mode == Switch::Auto => {
            warn!(why = %error, "decisions about packets off; `ccplane doctor` says what is missing");
            Ok(None)
        }
        Err(error) => Err(Failure::runtime(error)),
    }
}
