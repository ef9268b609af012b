//! A portus that no longer reads its messages is detected by its silence.

/// Watches how many bytes wait unread, and for how long none of them was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Silence {
    limit_us: u64,
    unread: usize,
    /// The last time that portus was seen to read or to answer, microseconds.
    alive_us: u64,
}

impl Silence {
    pub fn new(limit_us: u64, now_us: u64) -> Silence {
        Silence { limit_us, unread: 0, alive_us: now_us }
    }

    /// Takes note of a message from portus.
    pub fn note_answer(&mut self, now_us: u64) {
        self.alive_us = now_us;
    }

    /// Takes note of the bytes that wait unread. Returns for how long none was read, if that is too long, microseconds.
    pub fn check(&mut self, unread: usize, now_us: u64) -> Option<u64> {
        if unread == 0 || unread < self.unread {
            self.alive_us = now_us;
        }
        self.unread = unread;
        let silent_us = self.silent_us(now_us);
        (silent_us >= self.limit_us).then_some(silent_us)
    }

    /// Returns for how long portus has not been seen to read or to answer, microseconds.
    pub fn silent_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.alive_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unread_bytes_that_stay_are_silence() {
        let mut silence = Silence::new(100, 0);
        assert_eq!(silence.check(0, 500), None, "nothing was sent");
        assert_eq!(silence.check(10, 599), None);
        assert_eq!(silence.check(20, 600), Some(100), "more was sent, nothing read");
        assert_eq!(silence.check(15, 650), None, "some was read");
        silence.note_answer(700);
        assert_eq!(silence.check(15, 799), None, "it answered");
        assert_eq!(silence.check(15, 800), Some(100));
        assert_eq!(silence.check(0, 900), None, "all was read");
    }
}
