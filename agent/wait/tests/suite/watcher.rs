//! Watchers of real threads: whatever fills a queue, in memory or behind a descriptor, its owner is called.

use ccplane_testing::PATIENCE;
use ccplane_wait::{Class, DispatchError, Queues, Watched, affinity};
use nix::sched::CpuSet;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The way by which an item comes to an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Memory,
    Descriptor,
    /// A descriptor that is named anew at each sleep.
    Also,
}

/// A thread under a watcher, which tells of each item that it has taken.
struct Owner {
    memory: Arc<AtomicU64>,
    behind_descriptor: UnixStream,
    also: UnixStream,
    taken: Receiver<Way>,
    thread: JoinHandle<()>,
}

fn last_core() -> usize {
    *affinity::cores().unwrap().last().unwrap()
}

/// Takes a byte, if one is there.
fn take(mut stream: &UnixStream) -> bool {
    stream.read(&mut [0]).is_ok_and(|count| count > 0)
}

impl Owner {
    fn start() -> Owner {
        let memory = Arc::new(AtomicU64::new(0));
        let pair = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            (ours, theirs)
        };
        let ((behind_descriptor, first), (also, second)) = (pair(), pair());
        let (told, taken) = channel();
        let queue = Arc::clone(&memory);
        let thread = std::thread::spawn(move || {
            let looked = Arc::clone(&queue);
            let queues = Queues {
                in_memory: vec![Box::new(move || looked.load(Ordering::Relaxed) > 0)],
                descriptors: vec![OwnedFd::from(first.try_clone().unwrap())],
            };
            let watched = Watched::join(last_core(), Class::Fair, || (), queues).unwrap();
            loop {
                assert!(watched.sleep(PATIENCE, Some(second.as_fd())), "it was not called");
                let items = queue.swap(0, Ordering::Relaxed);
                let ways =
                    [(Way::Memory, items > 0), (Way::Descriptor, take(&first)), (Way::Also, take(&second))];
                // Who has started it has gone, where nobody hears.
                if ways.into_iter().any(|(way, is_there)| is_there && told.send(way).is_err()) {
                    return;
                }
            }
        });
        Owner { memory, behind_descriptor, also, taken, thread }
    }

    fn put(&self, way: Way) {
        match way {
            Way::Memory => self.memory.store(1, Ordering::Relaxed),
            Way::Descriptor => assert_eq!((&self.behind_descriptor).write(&[1]).unwrap(), 1),
            Way::Also => assert_eq!((&self.also).write(&[1]).unwrap(), 1),
        }
    }

    fn end(self) {
        drop(self.taken);
        self.memory.store(1, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

#[test]
fn owners_are_called_for_what_comes_in_any_way() {
    let owners = [Owner::start(), Owner::start(), Owner::start()];
    for round in 0..60 {
        let owner = &owners[round % owners.len()];
        let way = [Way::Memory, Way::Descriptor, Way::Also][round / owners.len() % 3];
        owner.put(way);
        assert_eq!(owner.taken.recv_timeout(PATIENCE).unwrap(), way, "round {round}");
    }
    owners.into_iter().for_each(Owner::end);
}

#[test]
fn without_an_item_a_sleep_ends_in_time() {
    let watched = Watched::join(last_core(), Class::Fair, || (), Queues::default()).unwrap();
    let began = Instant::now();
    assert!(!watched.sleep(Duration::from_millis(5), None));
    assert!(began.elapsed() >= Duration::from_millis(5));
    // From now on there is one.
    watched.set_queues(Queues { in_memory: vec![Box::new(|| true)], ..Queues::default() });
    assert!(watched.sleep(PATIENCE, None));
}

#[test]
fn a_core_that_is_not_there_has_no_watcher() {
    let core = CpuSet::count() - 1;
    if affinity::cores().unwrap().contains(&core) {
        return ccplane_testing::skipped("a core that is not there", "there are as many");
    }
    let refused = Watched::join(core, Class::Fair, || (), Queues::default()).err().unwrap();
    assert!(matches!(refused, DispatchError::Core { core: found, .. } if found == core), "{refused}");
}
