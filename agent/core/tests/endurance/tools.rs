//! Random numbers from a seed, and the trace of a run.

use ccplane_testing::fuzz::Draw;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// Random numbers, in the ways that a run draws them.
pub struct Random(Draw);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Draw::new(seed.wrapping_mul(0xa076_1d64_78bd_642f) ^ 0x5851_f42d_4c95_7f2d))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`, which is above 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number from `from` to `to`, both included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True so many times out of a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// A number of other random numbers.
    pub fn fork(&mut self) -> Random {
        Random(Draw::new(self.next()))
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { Some(of[self.below(of.len() as u64) as usize]) }
    }
}

/// Events of a run: a hash of all lines, which are printed where the run is replayed.
#[derive(Clone)]
pub struct Trace(Rc<RefCell<Lines>>);

struct Lines {
    hash: u64,
    now_us: u64,
    shown: bool,
}

impl fmt::Write for Lines {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.hash = text.bytes().fold(self.hash, add);
        Ok(())
    }
}

impl Trace {
    pub fn new(shown: bool) -> Trace {
        Trace(Rc::new(RefCell::new(Lines { hash: 0xcbf2_9ce4_8422_2325, now_us: 0, shown })))
    }

    pub fn at(&self, now_us: u64) {
        self.0.borrow_mut().now_us = now_us;
    }

    pub fn say(&self, line: fmt::Arguments<'_>) {
        let mut lines = self.0.borrow_mut();
        let now_us = lines.now_us;
        fmt::write(&mut *lines, format_args!("{now_us} {line}\n")).unwrap();
        if lines.shown {
            eprintln!("{:>14.6} s  {line}", now_us as f64 / 1e6);
        }
    }

    pub fn hash(&self) -> u64 {
        self.0.borrow().hash
    }
}

/// One line of a [`Trace`].
#[macro_export]
macro_rules! say {
    ($trace:expr, $($line:tt)*) => { $trace.say(format_args!($($line)*)) };
}
