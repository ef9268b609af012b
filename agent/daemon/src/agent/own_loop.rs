//! A datapath steered by a loop inside another command: the kernel's, as in plans, or one of the command's own.

use super::embedded::{Embedded, Woken};
use super::pace::Pace;
use super::source::{Kernel, Module, Source, open_module};
use super::worker::{Partners, Query, SpawnError, Worker};
use super::{KERNEL_LOOP, core, packets_loop};
use crate::config::{Config, Packets};
use crate::confine::Role;
use crate::control::{FlowRecord, LearnerRecord};
use crate::failure::Failure;
use crate::learning::{Beginning, LearnerView, Learning, Post, Running};
use crate::metrics::LoopMetrics;
use crate::owned::Folder;
use crate::place::Located;
use crate::privileges::{self, Powers};
use crate::qlog::{Filter, Subscription, channel};
use ccplane_alg::Algorithm;
use ccplane_channel::clock;
use ccplane_contract::Datapath;
use ccplane_core::{Core, NATIVE, Rules};
use ccplane_ebpf::{EbpfDatapath, EbpfError};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::oneshot;
use tracing::warn;

/// Whether policies learn from their live flows, and whether that outlives the loop.
#[derive(Debug)]
pub enum Learns {
    No,
    /// Policies that are learned end with the loop.
    Forgets,
    /// Promoted policies are kept in this folder, and flows begin with the given one.
    Keeps(Folder, Option<Box<Beginning>>),
}

impl From<bool> for Learns {
    fn from(learns: bool) -> Learns {
        if learns { Learns::Forgets } else { Learns::No }
    }
}

/// A running loop; [`OwnLoop::stop`] detaches.
pub struct OwnLoop {
    /// They end before it.
    learners: Option<Running>,
    worker: Worker,
    views: Vec<LearnerView>,
}

impl OwnLoop {
    /// Attaches and steers by `rules`. The inner error says why the kernel's flows cannot be steered.
    pub fn start(
        located: &Located,
        rules: &Rules,
        algorithms: &[Arc<dyn Algorithm>],
    ) -> Result<Result<OwnLoop, EbpfError>, Failure> {
        OwnLoop::start_counted(located, rules, algorithms, None, Post::none(), None, &[])
    }

    /// Starts a loop as [`OwnLoop::start`] does, whose algorithms with a policy learn beside their flows.
    ///
    /// They learn as configured, but `mode = "off"` is not obeyed.
    pub fn start_learning(
        located: &Located,
        rules: &Rules,
        algorithms: &[Arc<dyn Algorithm>],
    ) -> Result<Result<OwnLoop, EbpfError>, Failure> {
        let (located, learning) = learning(located, rules, algorithms, None, Vec::new())?;
        let post = learning.post(KERNEL_LOOP);
        let started = OwnLoop::start_counted(&located, rules, algorithms, None, post, None, &[])?;
        Ok(started.map(|kernel| kernel.with(learning)))
    }

    /// Starts the loop of packets in the calling thread's network namespace, without learning. The inner error is the reason
    /// why nothing was attached.
    pub fn start_packets(
        located: &Located,
        algorithms: &[Arc<dyn Algorithm>],
    ) -> Result<Result<OwnLoop, EbpfError>, Failure> {
        let rules = Rules { rules: Vec::new(), default: NATIVE.to_owned() };
        let fitted = packets_loop::fitted(algorithms, &located.config.datapath.packets);
        let started = packets_loop::spawn(located, &rules, &fitted, (None, None), Post::none(), &[])?;
        Ok(started.map(|worker| OwnLoop { worker, learners: None, views: Vec::new() }))
    }

    /// Steers a datapath of this process by `rules`; it calls for the loop by what `woken` belongs to. What learns does
    /// so as in [`OwnLoop::start_learning`].
    pub fn start_embedded(
        located: &Located,
        rules: &Rules,
        algorithms: &[Arc<dyn Algorithm>],
        datapath: Box<dyn Datapath + Send>,
        woken: Woken,
        learns: impl Into<Learns>,
    ) -> Result<OwnLoop, Failure> {
        let start = |config: &Config, core: Core, post: Post| -> Result<OwnLoop, Failure> {
            let attach = move |core: &mut Core| -> Result<Box<dyn Source>, Infallible> {
                Ok(Box::new(Embedded::new(datapath, woken, core)))
            };
            let pace = Pace::new(&config.agent);
            let hosts = super::hosts(located, &format!("embedded-{}", std::process::id()), algorithms)?;
            let partners = Partners { metrics: None, post, hosts };
            let spawned = Worker::spawn("embedded", Powers::NONE, core, pace, partners, attach);
            Ok(OwnLoop { worker: spawned.map_err(Failure::runtime)?, learners: None, views: Vec::new() })
        };
        let (folder, beginnings) = match learns.into() {
            Learns::No => {
                let core = core(algorithms, rules, &located.config, KERNEL_LOOP, &[])?;
                return start(&located.config, core, Post::none());
            }
            Learns::Forgets => (None, Vec::new()),
            Learns::Keeps(folder, beginning) => {
                (Some(folder), beginning.map(|beginning| *beginning).into_iter().collect())
            }
        };
        let core = core(algorithms, rules, &learns_on(located), KERNEL_LOOP, &beginnings)?;
        let (located, learning) = learning(located, rules, algorithms, folder, beginnings)?;
        Ok(start(&located.config, core, learning.post(KERNEL_LOOP))?.with(learning))
    }

    /// Decides about packets of a datapath of this process by one algorithm, and learns nothing.
    ///
    /// Pauses are those of `[datapath.packets]` in the configuration, which `file` holds; the parameters are, too, where that section
    /// names the algorithm.
    pub fn start_embedded_packets(
        located: &Located,
        file: Option<&Path>,
        algorithm: &Arc<dyn Algorithm>,
        datapath: Box<dyn Datapath + Send>,
        woken: Woken,
    ) -> Result<OwnLoop, Failure> {
        let section = &located.config.datapath.packets;
        let is_named = section.algorithm == algorithm.name();
        let packets = Packets {
            algorithm: algorithm.name().to_owned(),
            parameters: if is_named { section.parameters.clone() } else { BTreeMap::new() },
            flowlet_gap_us: section.flowlet_gap_us,
            ..Packets::default()
        };
        let algorithms = packets_loop::configured(file, std::slice::from_ref(algorithm), &packets)?;
        let rules = Rules::all(algorithm.name());
        OwnLoop::start_embedded(located, &rules, &algorithms, datapath, woken, Learns::No)
    }

    fn with(self, learning: Learning) -> OwnLoop {
        let views = learning.views();
        let learners = learning.start(super::ask(vec![self.worker.queries()]));
        OwnLoop { learners: Some(learners), views, ..self }
    }

    /// Starts a loop as [`OwnLoop::start`] does, with metrics, and confined to the system calls of a role, if there is
    /// one: threads that it starts are, too. Flows begin with what was learned before.
    pub(super) fn start_counted(
        located: &Located,
        rules: &Rules,
        algorithms: &[Arc<dyn Algorithm>],
        metrics: Option<LoopMetrics>,
        post: Post,
        role: Option<Role>,
        beginnings: &[Beginning],
    ) -> Result<Result<OwnLoop, EbpfError>, Failure> {
        let config = &located.config;
        let options = located.ebpf_options();
        let module = config.datapath.module.clone();
        let attach = move |core: &mut Core| -> Result<Box<dyn Source>, EbpfError> {
            if let Some(datapath) = open_module(&module, options.heartbeat_timeout)? {
                return Ok(Box::new(Module::new(&module.device, datapath, core, clock::now_us())));
            }
            let name = options.name.clone();
            let datapath = EbpfDatapath::attach(options)?;
            for requested in datapath.names_taken() {
                warn!(
                    "the kernel has a congestion control `{requested}` of its own: sockets that choose it are not ccplane's"
                );
            }
            Ok(Box::new(Kernel::new(&name, datapath, core, clock::now_us())))
        };
        let core = core(algorithms, rules, config, KERNEL_LOOP, beginnings)?;
        let pace = Pace::new(&config.agent);
        let powers = Powers { capabilities: privileges::KERNEL, role };
        let hosts = super::hosts(located, super::KERNEL_HOSTS, algorithms)?;
        let partners = Partners { metrics, post, hosts };
        match Worker::spawn("kernel", powers, core, pace, partners, attach) {
            Ok(worker) => Ok(Ok(OwnLoop { worker, learners: None, views: Vec::new() })),
            Err(SpawnError::Attach(error)) => Ok(Err(error)),
            Err(other) => Err(Failure::runtime(other)),
        }
    }

    /// The flows as they are; none if the loop has ended.
    pub fn flows(&self) -> Vec<FlowRecord> {
        let (answer, answered) = oneshot::channel();
        if !self.worker.ask(Query::Flows(answer)) {
            return Vec::new();
        }
        answered.blocking_recv().unwrap_or_default().0
    }

    /// Reports heard since the start; 0 if the loop has ended.
    pub fn reports(&self) -> u64 {
        let (answer, answered) = oneshot::channel();
        if !self.worker.ask(Query::Status(answer)) {
            return 0;
        }
        answered.blocking_recv().map_or(0, |status| status.counters.core.reports)
    }

    /// Everything that passes between its flows and the core from now on, until the loop ends; `None` if it has.
    pub fn events(&self) -> Option<Subscription> {
        let (subscriber, subscription) = channel(&Filter::default(), clock::now_us());
        let (answer, answered) = oneshot::channel();
        if !self.worker.ask(Query::Qlog(subscriber, answer)) {
            return None;
        }
        answered.blocking_recv().ok().flatten().map(|_| subscription)
    }

    /// The learners, if any.
    pub fn learners(&self) -> Vec<LearnerRecord> {
        self.views.iter().map(LearnerView::record).collect()
    }

    /// Hands the flows over and detaches.
    ///
    /// # Errors
    /// The loop panicked, or something is left in the kernel.
    pub fn stop(self) -> Result<(), Failure> {
        drop(self.learners);
        self.worker.join().map_err(Failure::runtime)
    }

    /// The loop, for the agent.
    pub(super) fn into_worker(self) -> Worker {
        self.worker
    }
}

/// Starts learners for the algorithms with a policy, and returns the handles on them. The policies are kept in `folder`, if
/// one is given.
fn learning(
    located: &Located,
    rules: &Rules,
    algorithms: &[Arc<dyn Algorithm>],
    folder: Option<Folder>,
    beginnings: Vec<Beginning>,
) -> Result<(Located, Learning), Failure> {
    let config = learns_on(located);
    // Who learns for a folder's flows finds them there.
    let sockets = folder.as_ref().map(|folder| folder.path().to_owned());
    let learning = Learning::new(&config.learn, algorithms, rules, folder, sockets.as_deref(), beginnings)?;
    Ok((Located { config, control_socket: located.control_socket.clone() }, learning))
}

/// Returns the configuration, except that algorithms with a policy learn.
fn learns_on(located: &Located) -> Config {
    Config { learn: located.config.learn.on(), ..located.config.clone() }
}
