//! CoDel (RFC 8289), in integers: the pseudocode of its section 5, one packet at a time.

use super::Verdict;

/// A new dropping state within this many intervals of the last one starts from its rate (section 5.5, Linux).
const REMEMBERED_INTERVALS: u64 = 16;

/// The state of CoDel's control law, by the names of RFC 8289.
#[derive(Debug)]
pub struct Codel {
    target_ns: u64,
    interval_ns: u64,
    max_packet_bytes: u64,
    ecn: bool,
    /// The time at which the delay will have been above the target for an interval, nanoseconds.
    first_above_ns: Option<u64>,
    dropping: bool,
    drop_next_ns: u64,
    count: u64,
    last_count: u64,
}

impl Codel {
    /// Creates the law for a queue whose largest packet has `max_packet_bytes`; with `ecn` it marks rather than drops.
    #[must_use]
    pub fn new(target_ns: u64, interval_ns: u64, max_packet_bytes: u64, ecn: bool) -> Codel {
        Codel {
            target_ns,
            interval_ns,
            max_packet_bytes,
            ecn,
            first_above_ns: None,
            dropping: false,
            drop_next_ns: 0,
            count: 0,
            last_count: 0,
        }
    }

    /// Judges a packet that would leave after it waited for `waited_ns`, with `bytes_left` in the queue behind it.
    pub fn on_departure(&mut self, now_ns: u64, waited_ns: u64, bytes_left: u64, markable: bool) -> Verdict {
        let due = self.is_due(now_ns, waited_ns, bytes_left);
        let strike = if !self.dropping {
            due && self.enter(now_ns)
        } else if !due {
            self.dropping = false;
            false
        } else {
            now_ns >= self.drop_next_ns && self.go_on()
        };
        match strike {
            false => Verdict::Pass,
            true if self.ecn && markable => Verdict::Mark,
            true => Verdict::Drop,
        }
    }

    /// Leaves the dropping state as the queue has run empty.
    pub fn on_empty(&mut self) {
        self.first_above_ns = None;
        self.dropping = false;
    }

    /// Returns whether the delay has been above the target for an interval.
    fn is_due(&mut self, now_ns: u64, waited_ns: u64, bytes_left: u64) -> bool {
        // "It is an error to drop when less than one MTU is waiting" (section 5.5).
        if waited_ns < self.target_ns || bytes_left <= self.max_packet_bytes {
            self.first_above_ns = None;
            return false;
        }
        match self.first_above_ns {
            None => {
                self.first_above_ns = Some(now_ns + self.interval_ns);
                false
            }
            Some(at_ns) => now_ns >= at_ns,
        }
    }

    fn enter(&mut self, now_ns: u64) -> bool {
        self.dropping = true;
        // "If we were dropping recently, start from the rate that controlled the queue then."
        let recent = now_ns.saturating_sub(self.drop_next_ns) < REMEMBERED_INTERVALS * self.interval_ns;
        let delta = self.count - self.last_count;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.drop_next_ns = self.control_law(now_ns);
        self.last_count = self.count;
        true
    }

    fn go_on(&mut self) -> bool {
        self.count += 1;
        self.drop_next_ns = self.control_law(self.drop_next_ns);
        true
    }

    /// Returns `t + interval / sqrt(count)`, nanoseconds.
    fn control_law(&self, t_ns: u64) -> u64 {
        let root = (u128::from(self.count) << 32).isqrt();
        t_ns + ((u128::from(self.interval_ns) << 16) / root.max(1)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn drops_come_at_the_inverse_square_root() {
        let mut codel = Codel::new(5 * MS, 100 * MS, 1514, false);
        let drops: Vec<u64> = (0..600)
            .filter(|ms| codel.on_departure(ms * MS, 20 * MS, 30_000, true) == Verdict::Drop)
            .collect();
        // 100 ms above the target; then after 100, 100 / sqrt 2, 100 / sqrt 3, ...
        assert_eq!(drops, [100, 200, 271, 329, 379, 424, 464, 502, 538, 571]);
    }

    #[test]
    fn a_queue_that_drains_passes_all() {
        let mut codel = Codel::new(5 * MS, 100 * MS, 1514, false);
        for ms in 0..1000 {
            let waited_ns = if ms % 100 == 99 { 4 * MS } else { 90 * MS };
            assert_eq!(codel.on_departure(ms * MS, waited_ns, 30_000, true), Verdict::Pass);
        }
        for ms in 1000..2000 {
            assert_eq!(
                codel.on_departure(ms * MS, 90 * MS, 1514, true),
                Verdict::Pass,
                "one packet behind it"
            );
        }
    }

    #[test]
    fn packets_that_understand_ecn_are_marked() {
        let mut codel = Codel::new(5 * MS, 100 * MS, 1514, true);
        codel.on_departure(0, 6 * MS, 9000, true);
        assert_eq!(codel.on_departure(100 * MS, 6 * MS, 9000, true), Verdict::Mark);
        assert_eq!(codel.on_departure(200 * MS, 6 * MS, 9000, false), Verdict::Drop);
    }
}
