//! The largest of late, in constant memory.

/// The largest of the last one to two windows of time.
#[derive(Clone, Copy, Debug)]
pub struct Largest {
    window_us: u64,
    /// The largest value of the window before, and of this one.
    was: f64,
    is: f64,
    since_us: u64,
}

impl Largest {
    /// Windows of so many microseconds.
    pub const fn within(window_us: u64) -> Largest {
        Largest { window_us, was: 0.0, is: 0.0, since_us: 0 }
    }

    /// Takes a value, not negative, at a time that is not before the last one's; returns the largest.
    pub fn update(&mut self, value: f64, now_us: u64) -> f64 {
        if now_us >= self.since_us.saturating_add(self.window_us) {
            (self.was, self.is, self.since_us) = (self.is, 0.0, now_us);
        }
        self.is = self.is.max(value);
        self.is.max(self.was)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_large_counts_for_one_to_two_windows() {
        let mut largest = Largest::within(60_000_000);
        let mut seen = |value, at_s: u64| largest.update(value, at_s * 1_000_000);
        assert_eq!((seen(3.0, 1), seen(1.0, 59), seen(1.0, 100)), (3.0, 3.0, 3.0));
        assert_eq!((seen(1.0, 161), seen(2.0, 162)), (1.0, 2.0));
    }
}
