//! Parameters, registers and bounds that several algorithms share.

use ccplane_alg::{FlowInfo, Handover, Parameter, StartValue};

/// Largest segment a program is told of, bytes: the bounds of its arithmetic rest on it.
pub const MAX_MSS_BYTES: u32 = 65_535;
/// Largest slow start threshold, and CUBIC's largest window, bytes: 1 GiB.
pub const MAX_WINDOW_BYTES: u64 = 1 << 30;
/// Reports of one flow are at least this far apart unless configured otherwise, microseconds.
pub const DEFAULT_REPORT_US: u32 = 10_000;

/// The parameter of [`DEFAULT_REPORT_US`].
pub(crate) const REPORT_US: Parameter = Parameter {
    name: "report_us",
    about: "least time between two reports of a flow",
    default: DEFAULT_REPORT_US as i64,
    min: 0,
    max: 10_000_000,
};

/// The parameter of the slow start threshold.
pub(crate) const SSTHRESH_BYTES: Parameter = Parameter {
    name: "initial_ssthresh_bytes",
    about: "slow start threshold of a new flow",
    default: MAX_WINDOW_BYTES as i64,
    min: 1,
    max: MAX_WINDOW_BYTES as i64,
};

/// The register of the segment size, bytes.
pub(crate) const MSS_BYTES: Register =
    ("mss", |start| i64::from(start.info.mss_bytes.clamp(1, MAX_MSS_BYTES)));
/// The register of [`SSTHRESH_BYTES`].
pub(crate) const SSTHRESH: Register = ("ssthresh", |start| start.value(&SSTHRESH_BYTES));
/// The register of [`REPORT_US`].
pub(crate) const REPORT: Register = ("report_us", |start| start.value(&REPORT_US));

/// A control register and the function that computes its first value.
pub(crate) type Register = (&'static str, StartValue);

/// Returns [`REPORT_US`] as set among `values`, microseconds.
pub(crate) fn report_us(values: &[(&'static str, i64)]) -> u32 {
    u32::try_from(REPORT_US.value_in(values)).unwrap_or(DEFAULT_REPORT_US)
}

/// Limits a window to what programs hold, bytes.
pub(crate) fn window_of(bytes: u64) -> i64 {
    bytes.clamp(1, MAX_WINDOW_BYTES) as i64
}

/// Returns the window that keeps the rate of a flow that is taken over, bytes.
pub(crate) fn window(info: &FlowInfo, from: &Handover) -> i64 {
    window_of(from.window_bytes(info.mss_bytes))
}

/// Returns the window that keeps the rate of a flow that is taken over once its queue is gone, bytes.
pub(crate) fn drained_window(info: &FlowInfo, from: &Handover) -> i64 {
    window_of(from.drained_window_bytes(info.mss_bytes))
}

/// Limits a rate to what programs hold, bytes per second.
pub(crate) fn bounded_rate(bytes_per_s: u64) -> i64 {
    i64::from(u32::try_from(bytes_per_s).unwrap_or(u32::MAX - 1).max(1))
}
