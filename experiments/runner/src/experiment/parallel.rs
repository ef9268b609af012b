//! Simulated runs on all cores: they depend on nothing but their seed, so neither cores nor company change them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use ccplane_results::Run;

use super::Slot;

/// The time between two checks whether to stop.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// Makes all attempts of a slot, or returns `None` once its second argument says to stop.
pub(super) type Attempts<'a> = dyn Fn(Slot, &dyn Fn() -> bool) -> Option<Vec<Run>> + Sync + 'a;

/// Receives the runs on the thread that asked for them.
pub(super) trait RunSink {
    /// The reason why a run could not be taken.
    type Error;

    /// Takes all attempts of one slot.
    fn take(&mut self, slot: Slot, attempts: Vec<Run>) -> Result<(), Self::Error>;

    /// Returns whether to stop; it is called again and again.
    fn stops(&mut self) -> bool;
}

/// Runs these slots on so many cores; `sink` gets them in the slots' order. Returns whether it was stopped before
/// its end.
pub(super) fn run_all<T: RunSink>(
    slots: &[Slot],
    cores: usize,
    run: &Attempts<'_>,
    sink: &mut T,
) -> Result<bool, T::Error> {
    let (next, halt) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (send, ended) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..cores.clamp(1, slots.len().max(1)) {
            let send = send.clone();
            scope.spawn(|| {
                let send = send;
                let halted = || halt.load(Ordering::Relaxed);
                while let Some((n, slot)) = take_next(slots, &next).filter(|_| !halted()) {
                    let Some(runs) = run(slot, &halted) else { return };
                    if send.send((n, runs)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let taken = hand_over(slots, &ended, sink);
        halt.store(true, Ordering::Relaxed);
        taken
    })
}

fn take_next(slots: &[Slot], next: &AtomicUsize) -> Option<(usize, Slot)> {
    let n = next.fetch_add(1, Ordering::Relaxed);
    slots.get(n).map(|slot| (n, *slot))
}

fn hand_over<T: RunSink>(
    slots: &[Slot],
    ended: &mpsc::Receiver<(usize, Vec<Run>)>,
    sink: &mut T,
) -> Result<bool, T::Error> {
    let mut waiting = BTreeMap::new();
    let mut due = 0;
    while let Some(slot) = slots.get(due) {
        if sink.stops() {
            return Ok(true);
        }
        if let Some(runs) = waiting.remove(&due) {
            sink.take(*slot, runs)?;
            due += 1;
            continue;
        }
        match ended.recv_timeout(POLL_EVERY) {
            Ok((n, runs)) => {
                waiting.insert(n, runs);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(true),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_results::RunOutcome;
    use std::collections::HashSet;
    use std::sync::{Barrier, Mutex};

    fn slot(scenario: usize) -> Slot {
        Slot { scenario, contender: 0, repeat: 0 }
    }

    fn ended(slot: Slot) -> Vec<Run> {
        vec![Run {
            scenario: slot.scenario.to_string(),
            contender: String::new(),
            repeat: 0,
            attempt: 1,
            seed: 0,
            started_at: String::new(),
            wall_ms: 0,
            outcome: RunOutcome::Failed { error: String::new() },
        }]
    }

    struct Notes {
        seen: Vec<usize>,
        stop_at: usize,
    }

    impl RunSink for Notes {
        type Error = ();
        fn take(&mut self, slot: Slot, attempts: Vec<Run>) -> Result<(), ()> {
            assert_eq!(attempts[0].scenario, slot.scenario.to_string());
            self.seen.push(slot.scenario);
            Ok(())
        }
        fn stops(&mut self) -> bool {
            self.seen.len() == self.stop_at
        }
    }

    #[test]
    fn all_cores_work_at_once_and_the_order_stays() {
        const CORES: usize = 4;
        let slots: Vec<Slot> = (0..4 * CORES).map(slot).collect();
        let (together, threads) = (Barrier::new(CORES), Mutex::new(HashSet::new()));
        let run = |slot: Slot, _: &dyn Fn() -> bool| {
            // None goes on before all are here.
            together.wait();
            threads.lock().unwrap().insert(thread::current().id());
            Some(ended(slot))
        };
        let mut notes = Notes { seen: Vec::new(), stop_at: usize::MAX };
        assert_eq!(run_all(&slots, CORES, &run, &mut notes), Ok(false));
        assert_eq!(notes.seen, (0..4 * CORES).collect::<Vec<_>>());
        assert_eq!(threads.lock().unwrap().len(), CORES);
    }

    #[test]
    fn runs_under_way_are_given_up_when_it_stops() {
        let slots: Vec<Slot> = (0..100).map(slot).collect();
        let run = |slot: Slot, halted: &dyn Fn() -> bool| {
            while slot.scenario >= 3 && !halted() {
                thread::yield_now();
            }
            (!halted()).then(|| ended(slot))
        };
        let mut notes = Notes { seen: Vec::new(), stop_at: 3 };
        assert_eq!(run_all(&slots, 2, &run, &mut notes), Ok(true));
        assert_eq!(notes.seen, [0, 1, 2]);
    }
}
