//! A datapath steered by a loop inside another command: the kernel's, as in `demo` and plans, or one of the command's own.

use super::embedded::{Embedded, Woken};
use super::source::{Kernel, Source};
use super::worker::{Pace, Query, SpawnError, Worker};
use super::{KERNEL_LOOP, core, privileges};
use crate::clock;
use crate::config::Config;
use crate::control::{DecisionRecord, FlowRecord, SlotRecord};
use crate::failure::Failure;
use crate::learning::{Learning, Post, Running};
use crate::metrics::LoopMetrics;
use crate::place::Located;
use ccplane_alg::Algorithm;
use ccplane_contract::Datapath;
use ccplane_core::{Core, Rules};
use ccplane_ebpf::{EbpfDatapath, EbpfError};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A running loop; [`OwnLoop::stop`] detaches.
pub(crate) struct OwnLoop {
    worker: Worker,
    /// They end with it.
    learners: Option<Running>,
}

impl OwnLoop {
    /// Attaches and steers by `rules`. The inner error says why the kernel's flows cannot be steered.
    pub(crate) fn start(
        located: &Located,
        rules: &Rules,
        algorithms: &[Arc<dyn Algorithm>],
    ) -> Result<Result<OwnLoop, EbpfError>, Failure> {
        OwnLoop::start_counted(located, rules, algorithms, None, Post::none())
    }

    /// As [`OwnLoop::start`]; algorithms with a policy learn beside their flows, as the configuration says, but also where it
    /// says that none is to learn: whoever calls this lists its flows as learning.
    pub(crate) fn start_learning(
        located: &Located,
        rules: &Rules,
        algorithms: &[Arc<dyn Algorithm>],
    ) -> Result<Result<OwnLoop, EbpfError>, Failure> {
        let located = &learning_on(located);
        let learning = Learning::new(&located.config.learn, algorithms, rules, None)?;
        let post = learning.post(KERNEL_LOOP);
        let started = OwnLoop::start_counted(located, rules, algorithms, None, post)?;
        Ok(started.map(|kernel| kernel.with(learning)))
    }

    /// Steers a datapath of this process by `rules`; it calls for the loop by what `woken` belongs to. Where `learns`, as
    /// [`OwnLoop::start_learning`].
    pub(crate) fn start_embedded(
        located: &Located,
        rules: &Rules,
        algorithms: &[Arc<dyn Algorithm>],
        datapath: Box<dyn Datapath + Send>,
        woken: Woken,
        learns: bool,
    ) -> Result<OwnLoop, Failure> {
        let learning_on = learns.then(|| learning_on(located));
        let config = &learning_on.as_ref().unwrap_or(located).config;
        let learning = match learns {
            true => Some(Learning::new(&config.learn, algorithms, rules, None)?),
            false => None,
        };
        let post = learning.as_ref().map_or_else(Post::none, |learning| learning.post(KERNEL_LOOP));
        let attach = move |core: &mut Core| -> Result<Box<dyn Source>, Infallible> {
            Ok(Box::new(Embedded::new(datapath, woken, core)))
        };
        let core = core(algorithms, rules, config, KERNEL_LOOP)?;
        let pace = Pace::new(&config.agent);
        let spawned = Worker::spawn("embedded", privileges::NOTHING, core, pace, None, post, attach);
        let own = OwnLoop { worker: spawned.map_err(Failure::runtime)?, learners: None };
        Ok(match learning {
            Some(learning) => own.with(learning),
            None => own,
        })
    }

    fn with(self, learning: Learning) -> OwnLoop {
        let learners = learning.start(super::ask(vec![self.worker.queries()]));
        OwnLoop { learners: Some(learners), ..self }
    }

    /// As [`OwnLoop::start`], with metrics.
    pub(super) fn start_counted(
        located: &Located,
        rules: &Rules,
        algorithms: &[Arc<dyn Algorithm>],
        metrics: Option<LoopMetrics>,
        post: Post,
    ) -> Result<Result<OwnLoop, EbpfError>, Failure> {
        let config = &located.config;
        let options = located.ebpf_options();
        let attach = move |core: &mut Core| -> Result<Box<dyn Source>, EbpfError> {
            let name = options.name.clone();
            let datapath = EbpfDatapath::attach(options)?;
            Ok(Box::new(Kernel::new(&name, datapath, core, clock::now_us())))
        };
        let core = core(algorithms, rules, config, KERNEL_LOOP)?;
        let pace = Pace::new(&config.agent);
        match Worker::spawn("kernel", privileges::KERNEL, core, pace, metrics, post, attach) {
            Ok(worker) => Ok(Ok(OwnLoop { worker, learners: None })),
            Err(SpawnError::Attach(error)) => Ok(Err(error)),
            Err(other) => Err(Failure::runtime(other)),
        }
    }

    /// The flows as they are; none if the loop has ended.
    pub(crate) fn flows(&self) -> Vec<FlowRecord> {
        let (answer, answered) = oneshot::channel();
        if !self.worker.ask(Query::Flows(answer)) {
            return Vec::new();
        }
        answered.blocking_recv().unwrap_or_default()
    }

    /// Reports heard since the start; 0 if the loop has ended.
    pub(crate) fn reports(&self) -> u64 {
        let (answer, answered) = oneshot::channel();
        if !self.worker.ask(Query::Status(answer)) {
            return 0;
        }
        answered.blocking_recv().map_or(0, |status| status.counters.reports)
    }

    /// Slots of policies, and what was decided of late; nothing if the loop has ended.
    pub(crate) fn snapshots(&self) -> (Vec<SlotRecord>, Vec<DecisionRecord>) {
        let (answer, answered) = oneshot::channel();
        if !self.worker.ask(Query::Snapshots(answer)) {
            return Default::default();
        }
        answered.blocking_recv().unwrap_or_default()
    }

    /// Hands the flows over and detaches.
    pub(crate) fn stop(self) {
        drop(self.learners);
        self.worker.ask(Query::Stop);
        self.worker.join();
    }

    /// The loop, for the agent.
    pub(super) fn into_worker(self) -> Worker {
        self.worker
    }
}

/// As configured, but algorithms with a policy learn.
fn learning_on(located: &Located) -> Located {
    let config = Config { learn: located.config.learn.on(), ..located.config.clone() };
    Located { config, control_socket: located.control_socket.clone() }
}
