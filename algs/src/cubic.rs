//! CUBIC (RFC 9438), with slow start and ECN as in [`crate::Reno`].
//!
//! What `cubic.fold` does, in integers; windows in bytes, `C = 0.4`, `beta = 0.7`:
//!
//! - **Decrease** (sections 4.6, 4.7): `w_max = Cwnd`, or `0.85 Cwnd` if `Cwnd < w_max` (fast convergence);
//!   `ssthresh = max(0.7 Cwnd, 2 segments)`, `Cwnd = ssthresh`. One per episode, guarded by time as in Reno.
//!   As section 4.6 allows, `Cwnd` stands for flight_size: it only grows while used.
//! - **K** (section 4.2, figure 2): `cbrt((w_max - Cwnd) / (0.4 mss))` seconds, kept in milliseconds:
//!   `k_ms^3 = 2.5e9 (w_max - Cwnd) / mss`. A seed within [1/2.6, 3.1] of the root and six Newton steps end
//!   within 1 ms of it for every K from 0.1 s to 512 s; below, the cubic term is under a thousandth of a
//!   segment anyway. A window of 1 GiB has K = 122 s at 1448-byte segments.
//! - **W_cubic(t)** (figure 1): `w_max ± (|t - k|^3 / 1e6) mss / 2500` with t and k in milliseconds, capped at
//!   |t - k| = 1000 s: the cube stays below 2^60 and is rounded by less than a byte; time is rounded by 1 ms.
//! - **Target** (section 4.2): W_cubic(t + RTT) clamped to [Cwnd, 1.5 Cwnd]; `Cwnd` grows by
//!   `(target - Cwnd) / Cwnd` per byte acknowledged (sections 4.4, 4.5). `rest` carries the remainder.
//! - **Reno-friendly region** (section 4.3): `w_est`, in 1/1024 byte, grows by `alpha mss / Cwnd` per byte
//!   acknowledged, `alpha = 3 (1 - beta) / (1 + beta) = 9/17` until it reaches the window before the decrease, then
//!   1. Where W_cubic(t) is below it, `Cwnd` is raised to it; an ACK never shrinks the window.
//! - **Timeout** (section 4.8) and slow start's end without loss (section 4.10): K = 0 and `w_max` = `Cwnd` when
//!   congestion avoidance starts.
//! - **Application-limited flows** (section 5.8): neither growth nor time (`t_us`) counts unless at least half
//!   of `Cwnd` was in flight; silence counts for at most two RTTs.
//!
//! All of that runs sixteen times per window (on every ACK while the window is below 16 segments), so the common
//! ACK costs what Reno's does. Spurious decreases are not undone (section 4.9, a MAY).
//!
//! Bounds: the program keeps `Cwnd` within 1 GiB and segments are at most 64 KiB, so no product passes 2^63.

use crate::{DEFAULT_REPORT_US, MAX_WINDOW_BYTES, fields};
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report};

// State

/// The agent's side of a CUBIC flow. Every decision is the program's, so there is none.
struct CubicFlow;

// Behaviour

impl Flow for CubicFlow {
    /// Reports are for those who watch: Reno's values and `w_max`, `k_ms`, `t_us`, `w_est`.
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
}

// Config

/// What can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CubicConfig {
    /// Slow start threshold of a new flow, bytes; at most [`MAX_WINDOW_BYTES`].
    pub initial_ssthresh_bytes: u64,
    /// Least time between two reports of a flow, microseconds. Decreases are reported at once.
    pub report_us: u32,
}

// Defaults

impl Default for CubicConfig {
    fn default() -> Self {
        CubicConfig { initial_ssthresh_bytes: MAX_WINDOW_BYTES, report_us: DEFAULT_REPORT_US }
    }
}

// Factory

/// Makes CUBIC flows.
#[derive(Clone, Default, Debug)]
pub struct Cubic {
    /// For every flow that starts.
    pub config: CubicConfig,
}

impl Algorithm for Cubic {
    fn name(&self) -> &'static str {
        "cubic"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "cubic", source: include_str!("cubic.fold") }]
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let CubicConfig { initial_ssthresh_bytes, report_us } = self.config;
        control.set_program("cubic", &fields(info.mss_bytes, initial_ssthresh_bytes, report_us));
        Box::new(CubicFlow)
    }
}

// Tests

#[cfg(test)]
mod tests {}
