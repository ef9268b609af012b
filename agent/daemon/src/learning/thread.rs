//! A learner's thread: what processors leave over, a share of one core, and nothing but learning lost if it fails.

use super::budget::{Budget, Pressure, Shares, cpu_time};
use super::learner::Learn;
use super::mailbox::{Mail, Mailbox};
use crate::privileges;
use ccplane_core::{Batch, Candidate};
use ccplane_snapshot::Hash;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// Processor time after which a step of a learner ends.
///
/// A step finishes the update of thousands of rows, or the comparison of policies, that it has begun: some tens of
/// milliseconds. The share of the processor is kept over longer turns then, and no other thread waits for a step.
pub(super) const STEP: Duration = Duration::from_millis(5);
/// The time for which a learner waits for rows before it checks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(500);
/// The scheduler's least favourable priority.
const LOWEST_PRIORITY: i32 = 19;
/// With so many processors, learners keep to the last quarter of them; with fewer they may run on all.
const SPARE_CPUS: usize = 4;

/// Counters of a learner, for other threads to read.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// Processor time, microseconds.
    pub(crate) cpu_us: AtomicU64,
    /// Rows taken by the learner.
    pub(crate) rows: AtomicU64,
    /// Bits of the sum of their rewards; the learner's thread alone writes it.
    reward_sum_bits: AtomicU64,
    /// Candidates offered.
    pub(crate) candidates: AtomicU64,
    /// Whether conditions have changed and it learns them.
    pub(crate) adapting: AtomicBool,
    /// The learner panicked, and nothing more is learned.
    pub(crate) failed: AtomicBool,
}

impl Gauges {
    /// Sum of the rewards of the rows that were taken.
    pub(crate) fn reward_sum(&self) -> f64 {
        f64::from_bits(self.reward_sum_bits.load(Relaxed))
    }

    /// Counts rows; a reward that is no number counts as 0.
    fn took(&self, batch: &Batch) {
        let rewards = batch.rows.iter().map(|(_, row)| f64::from(row.reward)).filter(|r| r.is_finite());
        self.reward_sum_bits.store((self.reward_sum() + rewards.sum::<f64>()).to_bits(), Relaxed);
        self.rows.fetch_add(batch.rows.len() as u64, Relaxed);
    }
}

/// Request of a learner to the loops that hold its slot.
pub(super) enum Wish {
    /// Offers a candidate; the flag becomes true if no loop takes it.
    Try(Candidate, Arc<AtomicBool>),
    Withdraw(Hash),
}

/// Starts a thread that makes a learner and runs it until `mailbox` is closed; `ask` says whether anyone was asked.
pub(super) fn spawn(
    name: &'static str,
    mailbox: Mailbox,
    shares: Shares,
    gauges: Arc<Gauges>,
    make: impl FnOnce() -> Option<Box<dyn Learn>> + Send + 'static,
    ask: impl Fn(Wish) -> bool + Send + 'static,
) -> io::Result<std::thread::JoinHandle<()>> {
    let run = move || {
        // The agent gives up its own only when its threads run.
        privileges::keep(privileges::NOTHING);
        stand_back();
        let shared = gauges.clone();
        let learned = catch_unwind(AssertUnwindSafe(|| {
            if let Some(mut learner) = make() {
                learn(&mut *learner, &mailbox, shares, &shared, &ask);
            }
        }));
        if learned.is_err() {
            gauges.failed.store(true, Relaxed);
            error!(
                algorithm = name,
                "its learner panicked: nothing more is learned until the agent starts anew"
            );
        }
        // Nobody empties it any more.
        mailbox.close();
    };
    std::thread::Builder::new().name(format!("ccp-learn-{name}")).spawn(run)
}

fn learn(
    learner: &mut dyn Learn,
    mailbox: &Mailbox,
    shares: Shares,
    gauges: &Gauges,
    ask: &dyn Fn(Wish) -> bool,
) {
    let mut patience = PATIENCE;
    // Of what was offered last.
    let mut refused: Option<Arc<AtomicBool>> = None;
    let clock = Instant::now();
    let mut budget = Budget::new(shares, Duration::ZERO);
    while let Some(Mail { decisions, batches }) = mailbox.take(patience) {
        let (began, cpu) = (clock.elapsed(), cpu_time());
        decisions.iter().for_each(|d| learner.on_decision(d));
        for (from, batch) in &batches {
            gauges.took(batch);
            learner.take(*from, batch);
        }
        if refused.take_if(|refused| refused.load(Relaxed)).is_some() {
            learner.not_asked();
        }
        if let Some(candidate) = learner.withdrawn() {
            ask(Wish::Withdraw(candidate));
        }
        // The step that ends a training is part of it: at the steady share its offer would wait for ten times as long as it took.
        let before = learner.pressure();
        if let Some(candidate) = learner.step(STEP) {
            gauges.candidates.fetch_add(1, Relaxed);
            let flag = refused.insert(Arc::default()).clone();
            if !ask(Wish::Try(candidate, flag)) {
                learner.not_asked();
            }
        }
        let used = cpu_time().saturating_sub(cpu);
        gauges.cpu_us.fetch_add(used.as_micros() as u64, Relaxed);
        let pressure = learner.pressure();
        gauges.adapting.store(pressure == Pressure::Adapting, Relaxed);
        std::thread::sleep(budget.rest(used, began, clock.elapsed(), pressure.max(before)));
        patience = if pressure == Pressure::Steady { PATIENCE } else { Duration::ZERO };
    }
}

/// Makes way for everything else: the scheduler lets it run where a processor has nothing else to do (`SCHED_IDLE`), or if
/// that is refused at the lowest priority; with [`SPARE_CPUS`] processors or more, only on the last quarter of them. Where
/// control groups or sessions share processors (cgroups(7), autogroup of sched(7)), that is among the threads of its own.
fn stand_back() {
    if let Err(error) = ccplane_ebpf::run_when_idle() {
        warn!(%error, "a learner does not keep to idle processors");
        if let Err(errno) = rustix::process::setpriority_process(None, LOWEST_PRIORITY) {
            warn!(%errno, "a learner runs at normal priority");
        }
    }
    let me = nix::unistd::Pid::from_raw(0);
    let Ok(allowed) = nix::sched::sched_getaffinity(me) else { return };
    let cpus: Vec<usize> =
        (0..nix::sched::CpuSet::count()).filter(|c| allowed.is_set(*c).unwrap_or(false)).collect();
    if cpus.len() < SPARE_CPUS {
        return;
    }
    let mut last = nix::sched::CpuSet::new();
    for cpu in &cpus[cpus.len() - cpus.len() / 4..] {
        if last.set(*cpu).is_err() {
            return;
        }
    }
    if nix::sched::sched_setaffinity(me, &last).is_ok() {
        info!(cpus = cpus.len() / 4, "a learner keeps to the last processors");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::mailbox::{LoopId, Poster};
    use ccplane_core::Decision;
    use ccplane_snapshot::{Admission, Trust, TrustedSnapshot};

    const BAD_SLOT: u8 = 15;
    /// The time for which a learner is watched.
    const WATCH: Duration = Duration::from_secs(1);
    const LONGEST_WATCH: Duration = Duration::from_secs(120);

    struct Busy(Pressure);

    fn batch(slot: u8) -> Batch {
        let (rows, measures) = (Vec::new(), Vec::new());
        let datapath = ccplane_core::DatapathId(0);
        Batch { datapath, algorithm: "test", slot, rows, dropped: 0, measures }
    }

    impl Learn for Busy {
        fn take(&mut self, _: LoopId, batch: &Batch) {
            assert_ne!(batch.slot, BAD_SLOT, "told to");
        }
        fn on_decision(&mut self, _: &Decision) {}
        fn not_asked(&mut self) {}
        fn step(&mut self, budget: Duration) -> Option<Candidate> {
            let start = cpu_time();
            while cpu_time() - start < budget {
                std::hint::spin_loop();
            }
            None
        }
        fn pressure(&self) -> Pressure {
            self.0
        }
    }

    fn start(pressure: Pressure) -> (Mailbox, Poster, Arc<Gauges>, std::thread::JoinHandle<()>) {
        let (mailbox, gauges) = (Mailbox::default(), Arc::<Gauges>::default());
        let shares = Shares { steady_percent: 10, burst_percent: 40 };
        let make = move || Some(Box::new(Busy(pressure)) as Box<dyn Learn>);
        let thread = spawn("test", mailbox.clone(), shares, gauges.clone(), make, |_| true).unwrap();
        let poster = Poster::new(mailbox.clone(), LoopId(0));
        (mailbox, poster, gauges, thread)
    }

    #[test]
    fn a_learner_keeps_to_its_share() {
        for (pressure, percent) in [(Pressure::Steady, 10), (Pressure::Adapting, 40)] {
            let start_at = Instant::now();
            let (mailbox, mut poster, gauges, thread) = start(pressure);
            // A busy machine leaves it nothing for a while.
            let looks_on = || {
                let elapsed = start_at.elapsed();
                elapsed < WATCH || (gauges.cpu_us.load(Relaxed) == 0 && elapsed < LONGEST_WATCH)
            };
            while looks_on() {
                poster.batch(batch(0));
                std::thread::sleep(Duration::from_millis(10));
            }
            mailbox.close();
            thread.join().unwrap();
            let used_us = gauges.cpu_us.load(Relaxed);
            // One step may be under way at the end.
            let allowed_us = start_at.elapsed().as_micros() as u64 * percent / 100 + STEP.as_micros() as u64;
            assert!(used_us > 0 && used_us <= allowed_us, "{pressure:?}: {used_us} us, {allowed_us} allowed");
        }
    }

    #[test]
    fn a_learner_that_panics_costs_learning_only() {
        let (_, mut poster, gauges, thread) = start(Pressure::Steady);
        poster.batch(batch(BAD_SLOT));
        thread.join().unwrap();
        assert!(gauges.failed.load(Relaxed));
        // Nobody waits for it, now or later.
        poster.batch(batch(0));
    }

    /// Offers its candidate again each time that no loop took the last offer.
    struct Offering {
        offers: bool,
        snapshot: TrustedSnapshot,
        told: std::sync::mpsc::Sender<()>,
    }

    impl Learn for Offering {
        fn take(&mut self, _: LoopId, _: &Batch) {}
        fn on_decision(&mut self, _: &Decision) {}
        fn not_asked(&mut self) {
            self.offers = true;
            let _ = self.told.send(());
        }
        fn step(&mut self, _: Duration) -> Option<Candidate> {
            let origin = ccplane_core::Origin::Operator { share: None, force: false };
            let snapshot = self.snapshot.clone();
            std::mem::take(&mut self.offers).then_some(Candidate { snapshot, origin })
        }
        fn pressure(&self) -> Pressure {
            Pressure::Adapting
        }
    }

    #[test]
    fn a_learner_hears_that_nobody_takes_its_candidate() {
        const TIMES: usize = 3;
        let mailbox = Mailbox::default();
        let (told, times) = std::sync::mpsc::channel();
        // Here: a learner has a processor only when nobody else wants it.
        let (_, snapshot) = crate::learning::twin::tests::policy_and_snapshot(1);
        let snapshot = Trust::OURS.admit(snapshot, &Admission::default()).unwrap();
        let make = || Some(Box::new(Offering { offers: true, snapshot, told }) as Box<dyn Learn>);
        // A loop that was asked, and lets go of the candidate.
        let ask = |wish| {
            if let Wish::Try(_, refused) = wish {
                refused.store(true, Relaxed);
            }
            true
        };
        let shares = Shares { steady_percent: 100, burst_percent: 100 };
        let thread = spawn("test", mailbox.clone(), shares, Arc::default(), make, ask).unwrap();
        for _ in 0..TIMES {
            times.recv_timeout(LONGEST_WATCH).unwrap();
        }
        mailbox.close();
        thread.join().unwrap();
    }
}
