//! The kernel's datapath, steered by a loop inside another command: what `demo` uses.

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
use ccplane_core::{Core, Rules};
use ccplane_ebpf::{EbpfDatapath, EbpfError};
use std::sync::Arc;
use tokio::sync::oneshot;

/// A running loop; [`KernelLoop::stop`] detaches.
pub(crate) struct KernelLoop {
    worker: Worker,
    /// They end with it.
    learners: Option<Running>,
}

impl KernelLoop {
    /// Attaches and steers by `rules`. The inner error says why the kernel's flows cannot be steered.
    pub(crate) fn start(
        located: &Located,
        rules: &Rules,
        algorithms: &[Arc<dyn Algorithm>],
    ) -> Result<Result<KernelLoop, EbpfError>, Failure> {
        KernelLoop::start_counted(located, rules, algorithms, None, Post::none())
    }

    /// As [`KernelLoop::start`]; algorithms with a policy learn beside their flows, as the configuration says, but also where it
    /// says that none is to learn: whoever calls this lists its flows as learning.
    pub(crate) fn start_learning(
        located: &Located,
        rules: &Rules,
        algorithms: &[Arc<dyn Algorithm>],
    ) -> Result<Result<KernelLoop, EbpfError>, Failure> {
        let learn = located.config.learn.on();
        let config = Config { learn, ..located.config.clone() };
        let located = &Located { config, control_socket: located.control_socket.clone() };
        let learning = Learning::new(&located.config.learn, algorithms, rules, None)?;
        let post = learning.post(KERNEL_LOOP);
        let mut started = KernelLoop::start_counted(located, rules, algorithms, None, post)?;
        if let Ok(kernel) = &mut started {
            kernel.learners = Some(learning.start(super::ask(vec![kernel.worker.queries()])));
        }
        Ok(started)
    }

    /// As [`KernelLoop::start`], with metrics.
    pub(super) fn start_counted(
        located: &Located,
        rules: &Rules,
        algorithms: &[Arc<dyn Algorithm>],
        metrics: Option<LoopMetrics>,
        post: Post,
    ) -> Result<Result<KernelLoop, EbpfError>, Failure> {
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
            Ok(worker) => Ok(Ok(KernelLoop { worker, learners: None })),
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
