//! One loop of the agent, on a thread of its own, so that nothing but its datapaths' events and short questions
//! ever keeps it waiting.

use super::pace::{Pace, PlaceError, Placed};
use super::source::{Source, warn_of_fallback};
use crate::confine::Threads;
use crate::control::{
    Counters, DatapathRecord, DecisionRecord, DeploymentRecord, FlowRecord, LoopRecord, ProgramRecord,
    SlotRecord,
};
use crate::learning::{Ask, Offer, Post};
use crate::metrics::{DatapathSample, LoopMetrics, LoopSample};
use crate::privileges::Powers;
use crate::qlog::{Subscriber, Taps};
use ccplane_bridge::Links;
use ccplane_channel::clock;
use ccplane_contract::Capabilities;
use ccplane_core::{Candidate, Core, DatapathId, Decision, InstallState, Rules, RulesError};
use ccplane_ebpf::EbpfError;
use ccplane_infer::FlowPolicy;
use ccplane_wait::affinity::Follower;
use ccplane_wait::{AwakeCores, WaitStep, Waiter, Wake, affinity, sleep_time};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tracing::{debug, error, info_span, warn};

/// Questions that may wait for one loop.
const MAX_QUERIES: usize = 64;
/// The time for which a stopping loop tries to hand its flows over.
const HAND_OVER: Duration = Duration::from_secs(2);
/// The time for which it waits for a datapath to read before it tries again.
const HAND_OVER_NAP: Duration = Duration::from_millis(1);
/// The interval at which queries and the learners' mail are handled while datapaths have events, microseconds.
const ATTEND_EVERY_US: u64 = 50;
/// A pause of a loop, beyond its longest sleep, that is worth a line in the log.
const STANDSTILL: Duration = Duration::from_secs(2);

/// Request to a loop's thread.
pub(super) enum Query {
    /// Answered with the flows, and how many ended before the agent heard of them.
    Flows(oneshot::Sender<(Vec<FlowRecord>, u64)>),
    Status(oneshot::Sender<LoopStatus>),
    Programs(oneshot::Sender<Vec<ProgramRecord>>),
    Sample(oneshot::Sender<LoopSample>),
    /// A reader of events; answered with how many flows there are that it asks for, `None`: there are too many readers.
    Qlog(Subscriber, oneshot::Sender<Option<usize>>),
    SetRules(Rules, oneshot::Sender<Result<(), RulesError>>),
    /// Congestion control and network namespace; answered with `None` where there is no kernel datapath.
    Adopt(String, Option<PathBuf>, oneshot::Sender<Option<Result<u64, EbpfError>>>),
    Snapshots(oneshot::Sender<(Vec<SlotRecord>, Vec<DecisionRecord>)>),
    /// A learner's request for an algorithm's slot.
    Learner(Ask),
    /// A snapshot by hand, for a slot or its algorithm's; answered with what was decided.
    Push(Candidate, Option<u8>, oneshot::Sender<Vec<Pushed>>),
    /// Answered with why nothing was rolled back; `None`: there is no such slot.
    Rollback(u8, oneshot::Sender<Result<(), Option<String>>>),
}

/// Decision of one datapath on a push by an operator.
pub(super) struct Pushed {
    /// Whether flows decide by the snapshot.
    pub(super) done: bool,
    /// In a few words.
    pub(super) text: String,
}

/// A loop's share of the agent's status.
pub(super) struct LoopStatus {
    pub(super) record: LoopRecord,
    pub(super) datapaths: Vec<DatapathRecord>,
    pub(super) counters: Counters,
}

/// The time in nanoseconds, as a [`Waiter`] counts.
fn ns(us: u64) -> u64 {
    us.saturating_mul(1000)
}

/// Makes a follower within the cores that the calling thread may run on.
fn follower() -> Option<Follower> {
    Follower::new().inspect_err(|error| warn!(%error, "the loop follows nobody's core")).ok()
}

/// Reasons why a loop could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpawnError<E> {
    /// No thread could be started.
    #[error("start a thread: {0}")]
    Thread(io::Error),
    /// The thread cannot run where it is to, or not wait as it is to.
    #[error("{0}")]
    Place(#[from] PlaceError),
    /// The datapath could not be attached.
    #[error("{0}")]
    Attach(E),
    /// The thread panicked while it attached.
    #[error("the loop's thread ended")]
    Ended,
}

/// The ways in which a loop can fail.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoopError {
    #[error("a loop of the agent ended unexpectedly; its flows run their native algorithm")]
    Panicked,
    /// Flows or pins are left in the kernel.
    #[error("the kernel datapath is not taken out entirely, `ccplane doctor --clean` removes the rest: {0}")]
    Detach(#[from] EbpfError),
}

/// The fate of the flows when a loop ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// They go to their native algorithms, and nothing stays attached.
    HandOver,
    /// They stay where they are, under what is attached, for the next agent.
    Leave,
}

/// A running loop; dropped, it hands its flows over, detaches and ends.
pub(super) struct Worker {
    queries: SyncSender<Query>,
    /// Asks it to end, and how: however many questions wait.
    ending: Arc<OnceLock<Ending>>,
    thread: Option<JoinHandle<Result<(), LoopError>>>,
    /// Resolves when the thread ends, however it ends.
    pub(super) ended: oneshot::Receiver<()>,
}

/// The parties that a loop talks to besides its datapaths.
pub(super) struct Partners {
    pub(super) metrics: Option<LoopMetrics>,
    pub(super) post: Post,
    /// The ways to a portus agent and to algorithms hosted in this process.
    pub(super) hosts: Links,
}

impl Worker {
    /// Starts a thread, attaches there, gives up all that `powers` do not name, and runs.
    pub(super) fn spawn<E: Send + 'static>(
        name: &'static str,
        powers: Powers,
        mut core: Core,
        pace: Pace,
        partners: Partners,
        attach: impl FnOnce(&mut Core) -> Result<Box<dyn Source>, E> + Send + 'static,
    ) -> Result<Worker, SpawnError<E>> {
        let Partners { metrics, post, hosts } = partners;
        let (queries, inbox) = sync_channel(MAX_QUERIES);
        let (gone, ended) = oneshot::channel::<()>();
        let (attached, outcome) = sync_channel(1);
        let wish = Arc::new(OnceLock::new());
        let wished = Arc::clone(&wish);
        let run = move || {
            let _span = info_span!("loop", name).entered();
            // Dropped at the thread's end, also by a panic.
            let _gone = gone;
            let begun = pace.place(powers).map_err(SpawnError::Place).and_then(|placed| {
                // What it starts to attach must not wait for a dispatcher to give its core away.
                let aside = placed.aside();
                let mut source = attach(&mut core).map_err(SpawnError::Attach)?;
                drop(aside);
                placed.watch(|| source.queues())?;
                Ok((placed, source))
            });
            let (placed, mut source) = match begun {
                Ok(begun) => begun,
                Err(error) => {
                    let _ = attached.send(Err(error));
                    return Ok(());
                }
            };
            let awake_cores = pace.keep_cores_awake().then(AwakeCores::open).and_then(|opened| {
                opened.inspect_err(|error| warn!(%error, "cores are not kept awake")).ok()
            });
            powers.keep_only(Threads::This);
            let (mut taps, verdicts) = (Taps::default(), BTreeMap::new());
            // Programs are in place before anybody hears that it has started: the kernel takes up to a second to verify one.
            source.drive(&mut core, clock::now_us(), &mut taps);
            let _ = attached.send(Ok(()));
            let looped = Loop {
                name,
                core,
                source,
                follower: pace.follows_cores().then(follower).flatten(),
                pace,
                placed,
                awake_cores,
                metrics,
                post,
                hosts,
                verdicts,
                taps,
                inbox,
                ending: wished,
            };
            looped.run()
        };
        let thread =
            std::thread::Builder::new().name(format!("ccp-{name}")).spawn(run).map_err(SpawnError::Thread)?;
        match outcome.recv() {
            Ok(Ok(())) => Ok(Worker { queries, ending: wish, thread: Some(thread), ended }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(SpawnError::Ended),
        }
    }

    /// Puts a question; false if the loop has ended or has too many waiting.
    pub(super) fn ask(&self, query: Query) -> bool {
        match self.queries.try_send(query) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// Returns the sender for questions to the loop.
    pub(super) fn queries(&self) -> SyncSender<Query> {
        self.queries.clone()
    }

    /// Asks it to end. The first wish counts.
    pub(super) fn stop(&self, ending: Ending) {
        let _ = self.ending.set(ending);
    }

    /// Stops it and waits for its end.
    ///
    /// # Errors
    /// It panicked, or something is left in the kernel.
    pub(super) fn join(mut self) -> Result<(), LoopError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), LoopError> {
        self.stop(Ending::HandOver);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or(Err(LoopError::Panicked))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            error!(%error, "a loop's end");
        }
    }
}

struct Loop {
    name: &'static str,
    core: Core,
    source: Box<dyn Source>,
    pace: Pace,
    placed: Placed,
    awake_cores: Option<AwakeCores>,
    follower: Option<Follower>,
    metrics: Option<LoopMetrics>,
    post: Post,
    hosts: Links,
    /// Decisions so far, by algorithm and verdict.
    verdicts: BTreeMap<(&'static str, &'static str), u64>,
    taps: Taps,
    inbox: Receiver<Query>,
    ending: Arc<OnceLock<Ending>>,
}

impl Loop {
    fn run(mut self) -> Result<(), LoopError> {
        let mut now_us = clock::now_us();
        let mut attend_us = now_us;
        let mut waiter = Waiter::new(self.pace.wake(), ns(now_us));
        if let Err(error) = ccplane_wait::prepare(&mut waiter) {
            warn!(%error, "measure what a sleep takes");
        }
        let ending = loop {
            let mut driven = self.source.drive(&mut self.core, now_us, &mut self.taps);
            if self.hosts.exchange(&mut self.core, now_us) {
                let again = self.source.drive(&mut self.core, now_us, &mut self.taps);
                driven.events += again.events;
                driven.refused += again.refused;
            }
            let busy = driven.events > 0;
            // Once a turn, and where nobody waits for it: the datapath has its answers.
            let turned_us = clock::now_us();
            if let Some(metrics) = &self.metrics {
                let took = Duration::from_micros(turned_us.saturating_sub(now_us));
                metrics.record_turn(now_us, busy.then_some(took));
            }
            if driven.refused > 0 {
                debug!(refused = driven.refused, "the datapath refused commands");
            }
            if !busy || turned_us >= attend_us {
                attend_us = turned_us.saturating_add(ATTEND_EVERY_US);
                self.deliver();
                if let Some(ending) = self.answer() {
                    break ending;
                }
            }
            if busy {
                waiter.event(ns(turned_us));
            }
            self.keep_cores_awake(busy, turned_us);
            let slept_from_us = turned_us;
            now_us = match waiter.wake() {
                Wake::Sleep | Wake::Auto { .. } if busy => {
                    // Whoever was answered runs first, should it wait for this core.
                    std::thread::yield_now();
                    clock::now_us()
                }
                // The watcher, which waits for this core, would look for nothing: it is awake.
                Wake::Dispatch if busy => clock::now_us(),
                _ => self.wait(waiter.next(ns(turned_us)), turned_us),
            };
            self.note_standstill(now_us.saturating_sub(slept_from_us));
        };
        // Nobody looks at the datapath's queues any more.
        self.placed.unwatch();
        // Another loop's dispatcher may still be there.
        let _aside = self.placed.aside();
        match ending {
            Ending::HandOver => self.hand_over(),
            Ending::Leave => Ok(self.source.leave()?),
        }
    }

    /// A pause that no sleep of ours explains: flows ran without the agent meanwhile.
    fn note_standstill(&self, paused_us: u64) {
        let paused = Duration::from_micros(paused_us);
        if paused > self.pace.poll_interval() + STANDSTILL {
            warn!(
                for_s = paused.as_secs_f64(),
                "the agent stood still (stopped by a signal, or without a processor); flows ran their native algorithm"
            );
        }
    }

    /// Rows and decisions, to whom they concern; what flows do without, to the log.
    fn deliver(&mut self) {
        self.core.take_fallbacks().iter().for_each(warn_of_fallback);
        self.core.take_rows().into_iter().for_each(|batch| self.post.batch(batch));
        for decision in self.core.take_decisions() {
            *self.verdicts.entry((decision.algorithm, decision.verdict.name())).or_default() += 1;
            self.post.decision(self.place(&decision), decision);
        }
        self.post.flush();
    }

    fn kind(&self, id: DatapathId) -> &'static str {
        self.core.datapaths().find(|(d, _)| *d == id).map_or("", |(_, c)| c.kind)
    }

    /// The kind of datapath that a decision is about.
    fn place(&self, decision: &Decision) -> &'static str {
        decision.datapath.map_or("", |id| self.kind(id))
    }

    /// Waits as it is told, until something arrives or is due; returns the time then, microseconds.
    fn wait(&mut self, step: WaitStep, now_us: u64) -> u64 {
        let WaitStep::Sleep { until_ns } = step else { return self.source.pause(now_us) };
        let due = self.core.next_tick_us().map(|at| Duration::from_micros(at.saturating_sub(now_us)));
        let longest = self.pace.poll_interval();
        let timeout = due.unwrap_or(longest).min(longest);
        // In whole milliseconds, which take epoll(7) one call less; rounding down to none would make it a busy loop at the end.
        let timeout = Duration::from_millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1));
        let timeout = sleep_time(until_ns, ns(now_us), timeout);
        let also = self.hosts.ready();
        let waited = match self.placed.watched() {
            Some(by) => self.source.doze(timeout, also, by),
            None => self.source.wait(timeout, also),
        };
        if let Err(error) = waited {
            warn!(%error, "wait for the datapath");
            std::thread::sleep(timeout);
        }
        if let (Some(follower), Some(waker)) = (&mut self.follower, self.source.waker_core()) {
            match follower.observe(waker, self.pace.polls()) {
                Ok(None) => {}
                Ok(Some(core)) => debug!(core, "the loop follows its datapath"),
                Err(error) => warn!(%error, "follow a datapath"),
            }
        }
        clock::now_us()
    }

    fn keep_cores_awake(&mut self, busy: bool, now_us: u64) {
        let Some(cores) = &mut self.awake_cores else { return };
        let kept = if busy { cores.event(ns(now_us)) } else { cores.idle(ns(now_us)) };
        if let Err(error) = kept {
            warn!(%error, "cores are not kept awake any more");
            self.awake_cores = None;
        }
    }

    /// Answers what was asked; how to end, if it is to. A client that left does not mind.
    fn answer(&mut self) -> Option<Ending> {
        if let Some(ending) = self.ending.get() {
            return Some(*ending);
        }
        while let Ok(query) = self.inbox.try_recv() {
            match query {
                Query::Flows(to) => {
                    let _ = to.send((self.source.flows(&self.core), self.source.unseen_flows()));
                }
                Query::Status(to) => drop(to.send(self.status())),
                Query::Programs(to) => drop(to.send(self.programs())),
                Query::Sample(to) => drop(to.send(self.sample())),
                Query::Qlog(subscriber, to) => drop(to.send(self.subscribe(subscriber))),
                Query::Adopt(from, netns, to) => {
                    let _aside = self.placed.aside();
                    let _ = to.send(self.source.adopt(&from, netns.as_deref()));
                }
                Query::SetRules(rules, to) => drop(to.send(self.core.set_rules(rules))),
                Query::Snapshots(to) => drop(to.send(self.snapshots())),
                Query::Learner(Ask::Try(offer)) => {
                    let Offer { algorithm, slot, candidate, .. } = &*offer;
                    if self.core.propose(algorithm, *slot, candidate, clock::now_us()) {
                        offer.take();
                    }
                }
                Query::Learner(Ask::Withdraw { algorithm, slot, candidate }) => {
                    self.core.withdraw(algorithm, slot, candidate);
                }
                Query::Push(candidate, slot, to) => drop(to.send(self.push(&candidate, slot))),
                Query::Rollback(slot, to) => {
                    let refused = self.core.roll_back(slot).map_err(|why| why.map(|v| v.to_string()));
                    let _ = to.send(refused);
                }
            }
        }
        None
    }

    /// Offers a snapshot by hand, at once.
    fn push(&mut self, candidate: &Candidate, slot: Option<u8>) -> Vec<Pushed> {
        let named = candidate.snapshot.spec().algorithm();
        let slots: Vec<(&'static str, u8)> = self.core.slots().map(|s| (s.algorithm, s.slot)).collect();
        let wanted =
            |(algorithm, n): &&(&'static str, u8)| slot.map_or(*algorithm == named, |slot| slot == *n);
        let Some((algorithm, slot)) = slots.iter().find(wanted).copied() else { return Vec::new() };
        let now_us = clock::now_us();
        self.core.propose(algorithm, slot, candidate, now_us);
        self.source.drive(&mut self.core, now_us, &mut self.taps);
        let hash = candidate.snapshot.hash();
        let ours = |d: &&Decision| d.at_us >= now_us && d.snapshot == Some(hash);
        let pushed = |d: &Decision| Pushed {
            done: d.verdict.is_pushed(),
            text: format!("{} slot {}: {}", self.place(d), d.slot, d.verdict),
        };
        let decided = self.core.decisions().filter(ours).map(pushed).collect();
        self.deliver();
        decided
    }

    fn snapshots(&mut self) -> (Vec<SlotRecord>, Vec<DecisionRecord>) {
        let now_us = clock::now_us();
        let samples = self.source.samples(&self.core);
        let policies = |id: DatapathId| -> Vec<FlowPolicy> {
            samples.iter().filter(|s| s.id.0 == id).filter_map(|s| s.policy).collect()
        };
        let slot = |view: ccplane_core::SlotView<'_>| {
            let policies = policies(view.datapath);
            let roles = [("active", view.active), ("canary", view.canary), ("last good", view.last_good)];
            let deployment = |(role, deployment): (&str, Option<&ccplane_core::Deployment>)| {
                Some(DeploymentRecord::new(role, deployment?, policies.iter(), now_us))
            };
            SlotRecord {
                datapath: self.kind(view.datapath).to_owned(),
                slot: view.slot,
                algorithm: view.algorithm.to_owned(),
                deployments: roles.into_iter().filter_map(deployment).collect(),
            }
        };
        let decision = |d: &Decision| DecisionRecord::new(self.place(d), d);
        (self.core.slots().map(slot).collect(), self.core.decisions().map(decision).collect())
    }

    fn status(&self) -> LoopStatus {
        let datapaths = self
            .core
            .datapaths()
            .map(|(id, capabilities)| DatapathRecord {
                kind: capabilities.kind.to_owned(),
                flows: self.core.flows().filter(|f| f.datapath() == id).count(),
                max_flows: capabilities.max_flows,
                programs: self.installed(id),
                max_programs: capabilities.max_programs,
            })
            .collect();
        let wake = self.pace.wake().mode().name().to_owned();
        // Where they cannot be asked for, nothing is said of them.
        let cores = affinity::cores().unwrap_or_default();
        let record = LoopRecord { name: self.name.to_owned(), wake, cores };
        LoopStatus { record, datapaths, counters: self.counters() }
    }

    fn sample(&mut self) -> LoopSample {
        let datapath = |(id, capabilities): (DatapathId, &Capabilities)| DatapathSample {
            kind: capabilities.kind,
            max_flows: capabilities.max_flows,
            programs: self.installed(id),
            max_programs: capabilities.max_programs,
        };
        LoopSample {
            datapaths: self.core.datapaths().map(datapath).collect(),
            algorithms: self.core.algorithms(),
            counters: self.counters(),
            verdicts: self.verdicts.clone(),
            flows: self.source.samples(&self.core),
        }
    }

    /// A reader of one flow that is not here is not taken in.
    fn subscribe(&mut self, subscriber: Subscriber) -> Option<usize> {
        let flows = self.source.samples(&self.core);
        let count = flows.iter().filter(|f| subscriber.takes(f.datapath, f.id.1.0)).count();
        if count == 0 && subscriber.wants_one() {
            return Some(0);
        }
        self.taps.subscribe(subscriber).then_some(count)
    }

    fn installed(&self, on: DatapathId) -> usize {
        let here = self.core.installs().filter(|i| i.datapath == on);
        here.filter(|i| *i.state == InstallState::Installed).count()
    }

    fn counters(&self) -> Counters {
        Counters {
            core: self.core.counters(),
            malformed_datagrams: self.source.malformed(),
            unseen_flows: self.source.unseen_flows(),
        }
    }

    fn programs(&self) -> Vec<ProgramRecord> {
        self.core
            .installs()
            .filter(|i| *i.state != InstallState::Pending)
            .map(|i| ProgramRecord {
                algorithm: i.program.algorithm().to_owned(),
                program: i.program.name().to_owned(),
                datapath: self.kind(i.datapath).to_owned(),
                uid: i.program.uid().0,
                instructions: i.program.program().insts().len(),
                registers: i.program.program().regs().len(),
                refused: match i.state {
                    InstallState::Refused(error) => Some(error.to_string()),
                    InstallState::Pending | InstallState::Installed => None,
                },
            })
            .collect()
    }

    /// Hands every flow to its native algorithm and detaches.
    fn hand_over(mut self) -> Result<(), LoopError> {
        self.core.shutdown();
        self.hosts.exchange(&mut self.core, clock::now_us());
        let start = Instant::now();
        loop {
            self.source.drive(&mut self.core, clock::now_us(), &mut self.taps);
            let backlog = self.source.has_backlog();
            if (self.core.is_idle() && !backlog) || start.elapsed() > HAND_OVER {
                break;
            }
            if backlog {
                std::thread::sleep(HAND_OVER_NAP);
            }
        }
        Ok(self.source.detach()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::FlowSample;
    use ccplane_bridge::Options;
    use ccplane_core::{Catalog, Config, Driven, NATIVE};
    use ccplane_testing::{PATIENCE, wait_for_ok, wait_until};
    use ccplane_wait::{Queues, Watched};
    use std::os::fd::BorrowedFd;
    use std::path::Path;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    /// Has one event at its first turn, then as many as are put into its queue.
    #[derive(Clone, Default)]
    struct Idle {
        turns: Arc<AtomicU64>,
        sleeps: Arc<AtomicU64>,
        queue: Arc<AtomicU64>,
        /// The cores of a thread that attaching started.
        attached_on: Arc<OnceLock<Vec<usize>>>,
    }

    /// The cores of a thread that the calling one starts.
    fn cores_of_a_thread() -> Vec<usize> {
        std::thread::spawn(|| affinity::cores().unwrap()).join().unwrap()
    }

    impl Source for Idle {
        fn drive(&mut self, _: &mut Core, _: u64, _: &mut Taps) -> Driven {
            let queued = self.queue.swap(0, Relaxed) as usize;
            let events = queued + usize::from(self.turns.fetch_add(1, Relaxed) == 0);
            Driven { events, ..Driven::default() }
        }
        fn wait(&mut self, timeout: Duration, _: Option<BorrowedFd<'_>>) -> io::Result<()> {
            self.sleeps.fetch_add(1, Relaxed);
            std::thread::sleep(timeout);
            Ok(())
        }
        fn queues(&mut self) -> io::Result<Queues> {
            let queue = Arc::clone(&self.queue);
            Ok(Queues { in_memory: vec![Box::new(move || queue.load(Relaxed) > 0)], ..Queues::default() })
        }
        fn doze(&mut self, timeout: Duration, _: Option<BorrowedFd<'_>>, by: &Watched) -> io::Result<()> {
            self.sleeps.fetch_add(1, Relaxed);
            by.sleep(timeout, None);
            Ok(())
        }
        /// Takes over as many flows as a thread that it starts has cores.
        fn adopt(&mut self, _: &str, _: Option<&Path>) -> Option<Result<u64, EbpfError>> {
            Some(Ok(cores_of_a_thread().len() as u64))
        }
        fn flows(&mut self, _: &Core) -> Vec<FlowRecord> {
            Vec::new()
        }
        fn samples(&mut self, _: &Core) -> Vec<FlowSample> {
            Vec::new()
        }
        fn detach(self: Box<Self>) -> Result<(), EbpfError> {
            Ok(())
        }
    }

    /// Between two sleeps of a loop with nothing to do.
    const POLL: Duration = Duration::from_millis(10);

    /// A loop with nothing to do, watched while `watch` does so.
    fn idle<T>(wake: Wake, watch: impl FnOnce(&Idle) -> T) -> T {
        let idle = Idle::default();
        let worker = started(&idle, Pace::plain(wake, POLL)).map_err(|_| "no loop").unwrap();
        let watched = watch(&idle);
        worker.join().unwrap();
        watched
    }

    fn started(idle: &Idle, pace: Pace) -> Result<Worker, SpawnError<io::Error>> {
        let catalog = Catalog::new(Vec::new(), 1).unwrap();
        let core = Core::new(catalog, Rules::all(NATIVE), Config::default()).unwrap();
        let source = Box::new(idle.clone());
        let attach = move |_: &mut Core| {
            source.attached_on.get_or_init(cores_of_a_thread);
            Ok::<Box<dyn Source>, io::Error>(source)
        };
        let nobody = PathBuf::from("/nonexistent");
        let (silence_us, max_flows) = (ccplane_bridge::SILENCE_US, ccplane_bridge::MAX_FLOWS);
        let options =
            Options { socket: nobody.clone(), own: nobody, silence_us, max_flows, takes_kernel_flows: false };
        let hosts = Links::new(options, &[], || ()).unwrap();
        let partners = Partners { metrics: None, post: Post::none(), hosts };
        Worker::spawn("idle", Powers::NONE, core, pace, partners, attach)
    }

    /// Once `count` is as large, however late this machine makes it.
    fn reaches(count: &AtomicU64, enough: u64) -> u64 {
        wait_for_ok(PATIENCE, "enough of them", || {
            let found = count.load(Relaxed);
            if found >= enough { Ok(found) } else { Err(format!("{found} of {enough}")) }
        })
    }

    #[test]
    fn a_loop_with_nothing_to_do_sleeps_unless_it_is_to_be_busy() {
        for wake in [Wake::Spin { us: 1000 }, Wake::Sleep, Wake::Auto { cpu_percent: 10 }, Wake::Dispatch] {
            let start = Instant::now();
            let (turns, sleeps) = idle(wake, |idle| {
                // It sleeps: the time that it may poll has passed. What is read later cannot make it look busier.
                let before = (reaches(&idle.sleeps, 2), idle.turns.load(Relaxed));
                reaches(&idle.sleeps, before.0 + 10);
                let turns = idle.turns.load(Relaxed) - before.1;
                (turns, idle.sleeps.load(Relaxed) - before.0)
            });
            assert!(turns <= sleeps + 1, "{wake:?}: {turns} turns, {sleeps} sleeps");
            let took = start.elapsed();
            assert!(took >= POLL / 2 * sleeps as u32, "{wake:?}: {sleeps} sleeps in {took:?}");
        }
        let sleeps = idle(Wake::Busy, |idle| {
            reaches(&idle.turns, 1000);
            idle.sleeps.load(Relaxed)
        });
        assert_eq!(sleeps, 0);
    }

    /// A loop that would sleep for a minute is called for each item, by a look at memory.
    #[test]
    fn a_loop_that_waits_by_a_dispatcher_is_called_for_what_is_in_its_queue() {
        let idle = Idle::default();
        let pace = Pace::plain(Wake::Dispatch, Duration::from_secs(60));
        let worker = started(&idle, pace).map_err(|_| "no loop").unwrap();
        for n in 1..=20 {
            reaches(&idle.sleeps, n);
            idle.queue.store(1, Relaxed);
            // It takes the item, finds nothing more, and sleeps again.
            wait_until("the item is taken", || idle.queue.load(Relaxed) == 0);
        }
        // Asked to end, it has to be called: the next sleep would be a long one.
        worker.stop(Ending::HandOver);
        idle.queue.store(1, Relaxed);
        worker.join().unwrap();
    }

    /// The latency that the machine's idle cores may have now, microseconds.
    fn idle_latency_us() -> io::Result<i32> {
        let mut bytes = [0; size_of::<i32>()];
        io::Read::read_exact(&mut std::fs::File::open(ccplane_wait::CPU_DMA_LATENCY)?, &mut bytes)?;
        Ok(i32::from_ne_bytes(bytes))
    }

    #[test]
    fn idle_cores_are_kept_awake_while_a_loop_has_events() {
        let test = "idle cores that a loop keeps awake";
        let Some(before_us) = ccplane_testing::found(test, idle_latency_us()) else { return };
        if before_us == 0 {
            return ccplane_testing::skipped(test, "another process keeps them awake");
        }
        let idle = Idle::default();
        let worker = started(&idle, Pace::plain(Wake::Sleep, POLL).awake()).map_err(|_| "no loop").unwrap();
        ccplane_testing::wait_until("cores are kept awake", || {
            idle.queue.store(1, Relaxed);
            idle_latency_us().unwrap() == 0
        });
        ccplane_testing::wait_until("cores may halt again", || idle_latency_us().unwrap() > 0);
        worker.join().unwrap();
    }

    #[test]
    fn a_loop_keeps_to_its_cores() {
        let before = affinity::cores().unwrap();
        let last = *before.last().unwrap();
        for wake in [Wake::Sleep, Wake::Dispatch] {
            let pace = Pace::plain(wake, POLL).on(vec![last]);
            let worker = started(&Idle::default(), pace).map_err(|_| "no loop").unwrap();
            let (to, answered) = oneshot::channel();
            assert!(worker.ask(Query::Status(to)));
            let record = answered.blocking_recv().unwrap().record;
            let expected =
                LoopRecord { name: "idle".into(), wake: wake.mode().name().into(), cores: vec![last] };
            assert_eq!(record, expected);
            worker.join().unwrap();
        }
        assert_eq!(affinity::cores().unwrap(), before, "only the loop is kept there");
    }

    /// Under SCHED_FIFO the dispatcher would hardly let them run.
    #[test]
    fn what_a_loop_starts_keeps_off_its_dispatchers_core() {
        let before = affinity::cores().unwrap();
        let [others @ .., last] = &before[..] else { panic!("no core") };
        if others.is_empty() {
            return ccplane_testing::skipped("a loop that leaves its dispatcher's core", "one core");
        }
        for cores in [Vec::new(), vec![*last]] {
            let idle = Idle::default();
            let worker = started(&idle, Pace::plain(Wake::Dispatch, POLL).on(cores)).map_err(|_| "no loop");
            let worker = worker.unwrap();
            assert_eq!(idle.attached_on.get().unwrap(), others);
            let (to, answered) = oneshot::channel();
            assert!(worker.ask(Query::Adopt("cubic".into(), None, to)));
            assert_eq!(answered.blocking_recv().unwrap().unwrap().unwrap(), others.len() as u64);
            let (to, answered) = oneshot::channel();
            assert!(worker.ask(Query::Status(to)));
            assert_eq!(answered.blocking_recv().unwrap().record.cores, [*last], "it is back");
            worker.join().unwrap();
        }
    }

    #[test]
    fn a_loop_does_not_begin_on_a_core_that_is_not_there() {
        for wake in [Wake::Sleep, Wake::Dispatch] {
            let idle = Idle::default();
            let Err(refused) = started(&idle, Pace::plain(wake, POLL).on(vec![1023])) else {
                return ccplane_testing::skipped("a core that is not there", "there are as many");
            };
            assert!(refused.to_string().starts_with("run on cores 1023: "), "{refused}");
            assert_eq!(idle.turns.load(Relaxed), 0, "nothing was attached");
        }
    }
}
