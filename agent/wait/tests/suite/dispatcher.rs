//! Dispatchers of real threads: everything that is put into a queue reaches its owner, and nobody sleeps for ever.

use ccplane_testing::{PATIENCE, skipped, wait_until};
use ccplane_wait::{Class, DispatchError, Dispatcher, Parker, Ready, affinity, begin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// A queue that holds a number of items, and counts those that its owner took.
#[derive(Default)]
struct Queue {
    items: AtomicU64,
    taken: AtomicU64,
}

/// Owners, each with some queues, under one dispatcher.
struct World {
    ready: Arc<Ready>,
    queues: Arc<Vec<Queue>>,
    dispatcher: Option<Dispatcher>,
    stop: Arc<AtomicBool>,
    owners: Vec<JoinHandle<()>>,
}

impl World {
    /// `queues` queues, which `owners` threads share in turn.
    fn new(queues: usize, owners: usize, class: Class) -> Result<World, DispatchError> {
        let core = *affinity::cores().unwrap().last().unwrap();
        let ready = Arc::new(Ready::new(queues).unwrap());
        let parkers: Vec<Arc<Parker>> = (0..owners).map(|_| Arc::new(Parker::new())).collect();
        let parker_of = (0..queues).map(|queue| Arc::clone(&parkers[queue % owners])).collect();
        let dispatcher = Dispatcher::start(core, class, Arc::clone(&ready), parker_of)?;
        let held: Arc<Vec<Queue>> = Arc::new((0..queues).map(|_| Queue::default()).collect());
        let stop = Arc::new(AtomicBool::new(false));
        let owner = |n: usize| {
            let (parker, queues, stop) = (Arc::clone(&parkers[n]), Arc::clone(&held), Arc::clone(&stop));
            std::thread::spawn(move || {
                let _pinned = begin(core, class).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    parker.wait(PATIENCE);
                    for queue in queues.iter().skip(n).step_by(owners) {
                        let items = queue.items.swap(0, Ordering::AcqRel);
                        queue.taken.fetch_add(items, Ordering::Relaxed);
                    }
                }
            })
        };
        let owners = (0..owners).map(owner).collect();
        Ok(World { ready, queues: held, dispatcher: Some(dispatcher), stop, owners })
    }

    fn put(&self, queue: usize) {
        self.queues[queue].items.fetch_add(1, Ordering::AcqRel);
        self.ready.mark(queue);
    }

    fn taken(&self) -> u64 {
        self.queues.iter().map(|queue| queue.taken.load(Ordering::Relaxed)).sum()
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Its end calls every owner.
        drop(self.dispatcher.take());
        for owner in self.owners.drain(..) {
            owner.join().unwrap();
        }
    }
}

fn every_item_reaches_its_owner(queues: usize, owners: usize, class: Class) -> Result<(), DispatchError> {
    const ROUNDS: usize = 20;
    let world = World::new(queues, owners, class)?;
    for round in 0..ROUNDS {
        for queue in 0..queues {
            world.put((queue * 7 + round) % queues);
        }
        // Owners that have nothing left fall asleep, and are called again.
        let so_far = (queues * (round + 1)) as u64;
        wait_until("every item is taken", || world.taken() == so_far);
    }
    let all = (queues * ROUNDS) as u64;
    let dispatched = world.dispatcher.as_ref().unwrap().dispatched();
    assert!(dispatched.marks > 0 && dispatched.marks <= all, "{dispatched:?}");
    assert!(dispatched.wakes > 0 && dispatched.wakes <= dispatched.marks, "{dispatched:?}");
    world.end();
    Ok(())
}

#[test]
fn every_item_of_ten_to_a_thousand_queues_reaches_its_owner() {
    for (queues, owners) in [(10, 1), (100, 8), (1_000, 16)] {
        every_item_reaches_its_owner(queues, owners, Class::Fair).unwrap();
    }
}

#[test]
fn under_sched_fifo_nothing_is_lost_either() {
    if affinity::cores().unwrap().len() < 2 {
        // The only core would be the dispatcher's.
        return skipped("a dispatcher under SCHED_FIFO", "one core");
    }
    match every_item_reaches_its_owner(100, 4, Class::Fifo) {
        Ok(()) => {}
        Err(error @ DispatchError::Class(_)) => skipped("a dispatcher under SCHED_FIFO", error),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn owners_wake_when_their_dispatcher_ends() {
    let world = World::new(2, 2, Class::Fair).unwrap();
    world.end();
}

#[test]
fn a_dispatcher_without_its_owners_or_its_core_does_not_start() {
    let ready = Arc::new(Ready::new(2).unwrap());
    let core = affinity::cores().unwrap()[0];
    let start = |core, owners| Dispatcher::start(core, Class::Fair, Arc::clone(&ready), owners);
    let error = start(core, vec![Arc::new(Parker::new())]).unwrap_err();
    assert!(matches!(error, DispatchError::Owners { queues: 2, owners: 1 }), "{error}");
    let owners = || vec![Arc::new(Parker::new()), Arc::new(Parker::new())];
    let error = start(100_000, owners()).unwrap_err();
    assert!(matches!(error, DispatchError::Core { core: 100_000, .. }), "{error}");
}

#[test]
fn a_seat_may_have_many_callers() {
    const CALLERS: u64 = 4;
    const CALLS: u64 = 500;
    let parker = Arc::new(Parker::new());
    let calls = Arc::new(AtomicU64::new(0));
    let callers: Vec<JoinHandle<()>> = (0..CALLERS)
        .map(|_| {
            let (parker, calls) = (Arc::clone(&parker), Arc::clone(&calls));
            std::thread::spawn(move || {
                for _ in 0..CALLS {
                    calls.fetch_add(1, Ordering::Relaxed);
                    parker.call();
                    std::thread::yield_now();
                }
            })
        })
        .collect();
    while calls.load(Ordering::Relaxed) < CALLERS * CALLS {
        assert!(parker.wait(PATIENCE));
    }
    callers.into_iter().for_each(|caller| caller.join().unwrap());
}
