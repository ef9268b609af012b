//! Marks and calls under loom: every way in which two threads may run, and every value that a load may see.

use crate::parker::Parker;
use crate::ready::Ready;
use loom::model::Builder;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use std::sync::Arc;
use std::time::Duration;

/// Switches between threads that nothing asked for, in one run.
const PREEMPTIONS: usize = 3;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// A producer's items are all found by an owner that sleeps whenever it may; loom says so if it never wakes.
#[test]
fn no_item_is_left_behind_a_mark() {
    const ITEMS: u32 = 2;
    check(|| {
        let ready = Arc::new(Ready::new(1).unwrap());
        let items = Arc::new(AtomicU32::new(0));
        let (marks, put) = (Arc::clone(&ready), Arc::clone(&items));
        let producer = thread::spawn(move || {
            for n in 0..ITEMS {
                put.store(n + 1, Ordering::Relaxed);
                marks.mark(0);
            }
        });
        let mut found = 0;
        while found < ITEMS {
            if ready.take(|_| found = items.load(Ordering::Relaxed)) == 0 {
                thread::yield_now();
            }
        }
        producer.join().unwrap();
    });
}

#[test]
fn no_call_is_lost() {
    const CALLS: u32 = 2;
    check(|| {
        let parker = Arc::new(Parker::new());
        let calls = Arc::new(AtomicU32::new(0));
        let (caller, called) = (Arc::clone(&parker), Arc::clone(&calls));
        let calling = thread::spawn(move || {
            for _ in 0..CALLS {
                called.fetch_add(1, Ordering::Relaxed);
                caller.call();
            }
        });
        // Calls may fall together, but the last one is always followed by a look.
        while calls.load(Ordering::Relaxed) < CALLS {
            parker.wait(Duration::MAX);
        }
        calling.join().unwrap();
    });
}

/// The whole hand-over: a mark, a dispatcher that takes it, and an owner that sleeps.
#[test]
fn an_owner_wakes_for_what_was_marked() {
    check(|| {
        let ready = Arc::new(Ready::new(1).unwrap());
        let parker = Arc::new(Parker::new());
        let item = Arc::new(AtomicU32::new(0));
        let (marks, put) = (Arc::clone(&ready), Arc::clone(&item));
        let producer = thread::spawn(move || {
            put.store(1, Ordering::Relaxed);
            marks.mark(0);
        });
        let (takes, caller) = (Arc::clone(&ready), Arc::clone(&parker));
        let dispatcher = thread::spawn(move || {
            while takes.take(|_| _ = caller.call()) == 0 {
                thread::yield_now();
            }
        });
        assert!(parker.wait(Duration::MAX));
        assert_eq!(item.load(Ordering::Relaxed), 1);
        producer.join().unwrap();
        dispatcher.join().unwrap();
    });
}
