//! Models of windows, in bytes.

pub mod interval;

use super::Ack;

/// The segment size of the kit's default path.
pub const MSS: f64 = 1448.0;

pub trait Model {
    /// Starts from this window.
    fn begin(&mut self, cwnd: f64);
    fn on_ack(&mut self, ack: &Ack);
    fn cwnd(&self) -> f64;
    /// Returns whether the last decrease's recovery goes on: the data then in flight is not acknowledged yet. An
    /// algorithm without sequence numbers waits for a number of round trips instead, which also count.
    fn is_recovering(&self) -> bool;
}

/// RFC 6582's recovery point, by bytes instead of sequence numbers: the ACKs before it belong to the last decrease.
struct Recovery {
    /// The time that it lasts at least, round trips.
    round_trips: f64,
    acked: f64,
    point: f64,
    ends_s: f64,
    rtt_s: f64,
    ongoing: bool,
}

/// The recovery of a program: one and a half round trips.
impl Default for Recovery {
    fn default() -> Recovery {
        Recovery { round_trips: 1.5, acked: 0.0, point: 0.0, ends_s: 0.0, rtt_s: 0.0, ongoing: false }
    }
}

impl Recovery {
    /// Whether a new decrease is due.
    fn on_ack(&mut self, ack: &Ack) -> bool {
        self.acked += ack.acked;
        self.rtt_s = ack.rtt_s.unwrap_or(self.rtt_s);
        self.ongoing &= self.acked < self.point || ack.at_s < self.ends_s;
        let begins = ack.is_timeout || ack.is_congested && !self.ongoing;
        if begins {
            *self = Recovery {
                point: self.acked + ack.in_flight,
                ends_s: ack.at_s + self.round_trips * self.rtt_s,
                ongoing: true,
                ..*self
            };
        }
        begins
    }
}

/// RFC 5681 with the growth of RFC 3465 in slow start, as Linux has it, and the answer to marks of RFC 3168.
#[derive(Default)]
pub struct Reno {
    cwnd: f64,
    ssthresh: f64,
    recovery: Recovery,
}

impl Reno {
    /// Makes a model whose recovery lasts so many round trips at least.
    pub fn recovering_for(round_trips: f64) -> Reno {
        Reno { recovery: Recovery { round_trips, ..Recovery::default() }, ..Reno::default() }
    }
}

impl Model for Reno {
    fn begin(&mut self, cwnd: f64) {
        (self.cwnd, self.ssthresh) = (cwnd, f64::INFINITY);
    }

    fn on_ack(&mut self, ack: &Ack) {
        if self.recovery.on_ack(ack) {
            // (4), with the window in place of what is in flight.
            self.ssthresh = (self.cwnd / 2.0).max(2.0 * MSS);
            self.cwnd = if ack.is_timeout { MSS } else { self.ssthresh };
        } else if self.cwnd < self.ssthresh {
            // (2): one segment for each, up to the threshold.
            self.cwnd = (self.cwnd + ack.acked.min(self.cwnd)).min(self.ssthresh);
        } else if !self.recovery.ongoing {
            // (3): a segment a round trip.
            self.cwnd += MSS * ack.acked / self.cwnd;
        }
    }

    fn cwnd(&self) -> f64 {
        self.cwnd
    }

    fn is_recovering(&self) -> bool {
        self.recovery.ongoing
    }
}

/// RFC 9438, without slow start.
#[derive(Default)]
pub struct Cubic {
    cwnd: f64,
    w_max: f64,
    w_est: f64,
    /// The time when congestion avoidance began, and the window that it began with.
    epoch: (f64, f64),
    recovery: Recovery,
}

impl Cubic {
    const C: f64 = 0.4;
    const BETA: f64 = 0.7;
}

impl Model for Cubic {
    fn begin(&mut self, cwnd: f64) {
        (self.cwnd, self.w_max) = (cwnd, cwnd);
    }

    fn on_ack(&mut self, ack: &Ack) {
        if self.recovery.on_ack(ack) {
            // Section 4.7: fast convergence.
            self.w_max =
                if self.cwnd < self.w_max { self.cwnd * (1.0 + Self::BETA) / 2.0 } else { self.cwnd };
            // Section 4.6.
            self.cwnd *= Self::BETA;
            self.w_est = self.cwnd;
            self.epoch = (self.recovery.ends_s, self.cwnd);
        } else if !self.recovery.ongoing {
            // Section 4.2, in segments and seconds.
            let w_cubic = |t: f64| {
                let k = ((self.w_max - self.epoch.1).max(0.0) / MSS / Self::C).cbrt();
                Self::C * (t - k).powi(3) * MSS + self.w_max
            };
            let t = ack.at_s - self.epoch.0;
            // Section 4.3: Reno's friendly region.
            let alpha = 3.0 * (1.0 - Self::BETA) / (1.0 + Self::BETA);
            self.w_est += alpha * MSS * ack.acked / self.cwnd;
            if w_cubic(t) < self.w_est {
                self.cwnd = self.cwnd.max(self.w_est);
            } else {
                // Sections 4.4 and 4.5.
                let target = w_cubic(t + self.recovery.rtt_s).clamp(self.cwnd, 1.5 * self.cwnd);
                self.cwnd += (target - self.cwnd) * ack.acked / self.cwnd;
            }
        }
    }

    fn cwnd(&self) -> f64 {
        self.cwnd
    }

    fn is_recovering(&self) -> bool {
        self.recovery.ongoing
    }
}
