//! A dispatcher for queues that nobody marks: other processes and the kernel fill them, so that it looks at each of them.
//!
//! A process has one for each core on which threads wait so. It looks only at the queues of threads that sleep, takes
//! nothing from them, and calls the thread whose queue has something: on its own core, which it gives away right after
//! the call. A look at a queue in memory costs a load or two. A look at a descriptor costs a system call, which is made
//! once for many of the others.

use crate::affinity::Pinned;
use crate::dispatch::{Class, DispatchError, POLLS_PER_ROUND, ROUNDS_PER_YIELD, begin, start_thread};
use crate::parker::Parker;
use crate::sys;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// A look at a queue, which takes nothing and never blocks; true where something waits.
pub type Look = Box<dyn Fn() -> bool + Send>;

/// The queues of one thread, as a watcher looks at them.
#[derive(Default)]
pub struct Queues {
    /// Queues in memory; a look at one costs a load or two.
    pub in_memory: Vec<Look>,
    /// Queues behind descriptors, such as sockets: something waits there while one is readable.
    pub descriptors: Vec<OwnedFd>,
}

/// A thread that waits by a watcher: it is kept on the watcher's core, and the watcher ends with the last such thread.
///
/// It is dropped on that thread, which may then run where it could before.
pub struct Watched {
    member: Arc<Member>,
    watcher: Arc<Watcher>,
    _pinned: Pinned,
}

/// A thread as its watcher knows it.
#[derive(Default)]
struct Member {
    parker: Parker,
    /// Its queues, and while it sleeps the descriptor that this sleep named.
    queues: Mutex<(Queues, Option<RawFd>)>,
}

/// A running watcher; dropped, it ends.
struct Watcher {
    shared: Arc<SharedWatch>,
    class: Class,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct SharedWatch {
    stop: AtomicBool,
    members: Mutex<Vec<Arc<Member>>>,
    /// The number of changes of the members.
    version: AtomicU64,
}

/// The watchers of this process, by their cores.
static RUNNING: Mutex<BTreeMap<usize, Weak<Watcher>>> = Mutex::new(BTreeMap::new());

impl Watched {
    /// Has the watcher of `core` look at these queues for the calling thread, which is moved to that core.
    ///
    /// Where there is no such watcher, one is started: of this class, which its threads have, too. It calls `settle` before it
    /// looks at anything.
    ///
    /// # Errors
    /// The core is not there or not allowed, or the class is not.
    pub fn join(
        core: usize,
        class: Class,
        settle: impl FnOnce() + Send + 'static,
        queues: Queues,
    ) -> Result<Watched, DispatchError> {
        let watcher = Watcher::of(core, class, settle)?;
        let pinned = begin(core, watcher.class)?;
        let member = Arc::new(Member { parker: Parker::new(), queues: Mutex::new((queues, None)) });
        watcher.shared.change(|members| members.push(Arc::clone(&member)));
        Ok(Watched { member, watcher, _pinned: pinned })
    }

    /// Looks at other queues from now on.
    pub fn set_queues(&self, queues: Queues) {
        locked(&self.member.queues).0 = queues;
    }

    /// Sleeps until a queue has something, `also` is readable, or `timeout` passed; true where the watcher called.
    pub fn sleep(&self, timeout: Duration, also: Option<BorrowedFd<'_>>) -> bool {
        let Some(also) = also else { return self.member.parker.wait(timeout) };
        // Borrowed until this returns, it stays open for as long as the watcher has its number.
        locked(&self.member.queues).1 = Some(also.as_raw_fd());
        let called = self.member.parker.wait(timeout);
        locked(&self.member.queues).1 = None;
        called
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watcher.shared.change(|members| members.retain(|member| !Arc::ptr_eq(member, &self.member)));
    }
}

impl Member {
    fn has_something(&self, with_descriptors: bool) -> bool {
        let queues = locked(&self.queues);
        let (Queues { in_memory, descriptors }, also) = &*queues;
        let mut descriptors = descriptors.iter().map(AsRawFd::as_raw_fd).chain(*also);
        in_memory.iter().any(|is_ready| is_ready()) || (with_descriptors && descriptors.any(sys::is_readable))
    }
}

impl Watcher {
    fn of(
        core: usize,
        class: Class,
        settle: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Watcher>, DispatchError> {
        let mut running = locked(&RUNNING);
        let there = running.get(&core).and_then(Weak::upgrade);
        if let Some(watcher) = there.filter(|watcher| !watcher.has_ended()) {
            return Ok(watcher);
        }
        let shared = Arc::new(SharedWatch::default());
        let theirs = Arc::clone(&shared);
        let run = move || {
            settle();
            watch(&theirs);
        };
        let thread = start_thread("ccp-watch", core, class, run)?;
        let watcher = Arc::new(Watcher { shared, class, thread: Some(thread) });
        running.insert(core, Arc::downgrade(&watcher));
        Ok(watcher)
    }

    /// Whether its thread is gone, as after a panic.
    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // It has nothing to tell: a panic is in the log already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl SharedWatch {
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Member>>)) {
        change(&mut locked(&self.members));
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// Locks what is whole at any time: no panic leaves it half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch(shared: &SharedWatch) {
    let (mut members, mut version): (Vec<Arc<Member>>, u64) = (Vec::new(), 0);
    let mut empty_rounds = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let now = shared.version.load(Ordering::Acquire);
        if now != version {
            version = now;
            members.clone_from(&locked(&shared.members));
        }
        match poll_members(&members) {
            Found::Nothing => empty_rounds += 1,
            // Those that are awake or were called are on this core, and run now.
            Found::NobodyAsleep | Found::Called => empty_rounds = ROUNDS_PER_YIELD,
        }
        if empty_rounds >= ROUNDS_PER_YIELD {
            empty_rounds = 0;
            std::thread::yield_now();
        }
    }
}

/// The outcome of a round of looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    Nothing,
    NobodyAsleep,
    Called,
}

/// Looks at the queues of all who sleep until some have something, but not for ever; at descriptors once.
fn poll_members(members: &[Arc<Member>]) -> Found {
    for n in 0..POLLS_PER_ROUND {
        let mut found = Found::NobodyAsleep;
        for member in members.iter().filter(|member| member.parker.is_asleep()) {
            if member.has_something(n == 0) {
                member.parker.call();
                found = Found::Called;
            } else if found == Found::NobodyAsleep {
                found = Found::Nothing;
            }
        }
        if found != Found::Nothing {
            return found;
        }
        std::hint::spin_loop();
    }
    Found::Nothing
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::affinity;
    use ccplane_testing::wait_until;

    fn last_core() -> usize {
        *affinity::cores().unwrap().last().unwrap()
    }

    fn join() -> Watched {
        Watched::join(last_core(), Class::Fair, || (), Queues::default()).unwrap()
    }

    #[test]
    fn threads_of_one_core_have_one_watcher_which_ends_with_the_last() {
        let (core, before) = (last_core(), affinity::cores().unwrap());
        let first = join();
        assert_eq!(affinity::cores().unwrap(), [core]);
        let second = Watched::join(core, Class::Fair, || panic!("started twice"), Queues::default()).unwrap();
        assert!(Arc::ptr_eq(&first.watcher, &second.watcher));
        let watcher = Arc::downgrade(&first.watcher);
        drop(second);
        assert!(watcher.upgrade().is_some());
        drop(first);
        assert!(watcher.upgrade().is_none());
        assert_eq!(affinity::cores().unwrap(), before);
    }

    #[test]
    fn a_round_finds_who_sleeps_and_has_something() {
        let queues = |waits: bool| Queues { in_memory: vec![Box::new(move || waits)], ..Queues::default() };
        let member =
            |waits| Arc::new(Member { queues: Mutex::new((queues(waits), None)), ..Member::default() });
        let members = [member(false), member(true)];
        assert_eq!(poll_members(&[]), Found::NobodyAsleep);
        assert_eq!(poll_members(&members), Found::NobodyAsleep, "whoever is awake looks itself");
        let sleepers = members.each_ref().map(|member| {
            let member = Arc::clone(member);
            std::thread::spawn(move || member.parker.wait(ccplane_testing::PATIENCE))
        });
        wait_until("both sleep", || members.iter().all(|member| member.parker.is_asleep()));
        assert_eq!(poll_members(&members[..1]), Found::Nothing);
        assert_eq!(poll_members(&members), Found::Called);
        assert!(members[0].parker.is_asleep() && !members[1].parker.is_asleep());
        members[0].parker.call();
        assert_eq!(sleepers.map(|sleeper| sleeper.join().unwrap()), [true, true]);
    }
}
