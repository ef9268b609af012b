//! The rates at which a modelled host's flows settle.
//!
//! All flows are raised together until a core, the line or a window is full; those that it holds stay, the others go on.

use super::cost::Costs;

/// Halvings of the interval in which a rate is searched.
const HALVINGS: usize = 40;
/// The share of a core or window that counts as full.
const FULL: f64 = 1.0 - 1e-6;

/// The work's places in a modelled host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Placement {
    /// The first processor of each kind of work; those of further flows and queues follow.
    pub application: u32,
    pub interrupt: u32,
    pub flow: u32,
    pub queues: u32,
    /// The device interrupts after so many microseconds,
    pub usecs: f64,
    /// or after so many frames.
    pub frames: f64,
    pub flows: u32,
    pub cores: u32,
    pub cores_per_node: u32,
}

/// The load of a modelled host, each second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Load {
    pub bytes_per_s: f64,
    /// Processors that are busy, on average.
    pub busy: f64,
    pub softirq: f64,
    pub instructions_per_s: f64,
    pub interrupts_per_s: f64,
    pub softirqs_per_s: f64,
    pub steered_per_s: f64,
    pub squeezed_per_s: f64,
    pub drops_per_s: f64,
    pub wakes_per_s: f64,
}

/// The state under given rates.
struct State {
    /// The load of each core, from 0 (idle) to 1 (full).
    cores: Vec<f64>,
    /// The share of its window that each flow uses.
    windows: Vec<f64>,
    /// The share of the line that all flows use.
    line: f64,
    load: Load,
}

/// Finds the rates of all flows and the load that they make.
pub(super) fn solve(costs: &Costs, placement: &Placement) -> Load {
    let flows = placement.flows as usize;
    let mut rates = vec![0.0; flows];
    let mut is_free = vec![true; flows];
    let mut level = 0.0;
    for _ in 0..flows {
        let with = |rate: f64| {
            let pairs = rates.iter().zip(&is_free);
            pairs.map(|(fixed, free)| if *free { rate } else { *fixed }).collect::<Vec<f64>>()
        };
        let (mut low, mut high) = (level, costs.line_frames_per_s());
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            let state = state(costs, placement, &with(middle));
            let is_full = state.line > 1.0
                || state.cores.iter().any(|core| *core > 1.0)
                || state.windows.iter().any(|window| *window > 1.0);
            (low, high) = if is_full { (low, middle) } else { (middle, high) };
        }
        level = low;
        rates = with(level);
        let state = state(costs, placement, &rates);
        for (flow, free) in is_free.iter_mut().enumerate() {
            let cores = cores_of(placement, flow);
            let is_held = state.line >= FULL
                || state.windows[flow] >= FULL
                || cores.iter().any(|core| state.cores[*core] >= FULL);
            *free &= !is_held;
        }
        if is_free.iter().all(|free| !free) {
            break;
        }
    }
    state(costs, placement, &rates).load
}

/// The cores that take a flow's interrupts, run TCP for it, and run its application.
fn cores_of(placement: &Placement, flow: usize) -> [usize; 3] {
    let (cores, queues) = (placement.cores as usize, placement.queues as usize);
    let queue = flow % queues;
    [
        (placement.interrupt as usize + queue) % cores,
        (placement.flow as usize + queue) % cores,
        (placement.application as usize + flow) % cores,
    ]
}

/// The frames that have come when the device interrupts. Arrivals jitter, so that time and count come first in turn where they are close.
fn batch_frames(placement: &Placement, rate: f64) -> f64 {
    let (count, time) = (placement.frames - 1.0, rate * placement.usecs * 1e-6);
    let both = count * time;
    if both > 0.0 { 1.0 + both / (count * count + time * time).sqrt() } else { 1.0 }
}

/// The share of frames that find no descriptor, where a batch fills more than half of the ring.
fn lost_share(costs: &Costs, batch: f64) -> f64 {
    /// The share where a batch is as large as the ring.
    const FULL_RING: f64 = 0.01;
    FULL_RING * 2.0 * (batch / costs.ring_frames - 0.5).max(0.0)
}

fn state(costs: &Costs, placement: &Placement, rates: &[f64]) -> State {
    let queues = placement.queues as usize;
    let node = |core: usize| core / placement.cores_per_node as usize;
    let payload = costs.payload_bytes();
    let mut state = State {
        cores: vec![0.0; placement.cores as usize],
        windows: vec![0.0; rates.len()],
        line: rates.iter().sum::<f64>() / costs.line_frames_per_s(),
        load: Load::default(),
    };
    let mut in_queue = vec![0.0; queues];
    for (flow, rate) in rates.iter().enumerate() {
        in_queue[flow % queues] += rate;
    }
    let batch = |rate: f64| batch_frames(placement, rate);
    let held: f64 = in_queue.iter().map(|rate| if *rate > 0.0 { batch(*rate) * payload } else { 0.0 }).sum();
    let crowding = held / costs.device_cache_bytes;
    let kept = 1.0 / (1.0 + crowding * crowding);
    let mut seconds = |core: usize, ns: f64, is_softirq: bool, load: &mut Load| {
        state.cores[core] += ns * 1e-9;
        load.busy += ns * 1e-9;
        load.softirq += if is_softirq { ns * 1e-9 } else { 0.0 };
    };
    let mut load = Load::default();
    let [of_interrupt, of_frame, of_segment, of_wake, of_batch] = costs.instructions;
    for (queue, rate) in in_queue.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
        let core = cores_of(placement, queue)[0];
        let interrupts = rate / batch(*rate);
        let polls = interrupts * (batch(*rate) / costs.budget_frames).max(1.0);
        let far = if node(core) == 0 { 0.0 } else { costs.frame_remote };
        let ns = interrupts * costs.interrupt + rate * (costs.frame + far);
        seconds(core, ns, true, &mut load);
        load.interrupts_per_s += interrupts;
        load.softirqs_per_s += polls;
        load.squeezed_per_s += polls - interrupts;
        load.instructions_per_s += interrupts * of_interrupt + rate * of_frame;
        load.drops_per_s += rate * lost_share(costs, batch(*rate));
    }
    for (flow, rate) in rates.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
        let [interrupt, tcp, application] = cores_of(placement, flow);
        let of_queue = in_queue[flow % queues];
        let frames = batch(of_queue);
        let batches = (of_queue / frames).min(*rate);
        let merged = (frames * rate / of_queue).min(costs.segment_bytes / payload).max(1.0);
        let segments = rate / merged;
        if tcp != interrupt {
            seconds(
                interrupt,
                segments * costs.steer_segment + batches * costs.steer_batch.0,
                true,
                &mut load,
            );
            let fetch = if node(tcp) == node(interrupt) { costs.fetch.0 } else { costs.fetch.1 };
            seconds(tcp, segments * fetch + batches * costs.steer_batch.1, true, &mut load);
            load.steered_per_s += segments;
            load.interrupts_per_s += batches;
            load.instructions_per_s += batches * of_batch;
        }
        seconds(tcp, segments * costs.segment, true, &mut load);
        // The device writes to the cache of its own node alone.
        let kept = if node(interrupt) == 0 { kept } else { 0.0 };
        let is_local = node(application) == node(interrupt);
        let (cached, missed) = if is_local { costs.copy } else { costs.copy_remote };
        let warm = if application == tcp { costs.copy_warm } else { 1.0 };
        let copy = rate * payload * warm * (kept * cached + (1.0 - kept) * missed);
        let far = if node(application) == node(tcp) { 1.0 } else { costs.wake_remote };
        if application == tcp {
            seconds(application, copy + batches * costs.wake.0, false, &mut load);
        } else {
            seconds(tcp, batches * costs.wake.1 * far, true, &mut load);
            seconds(application, copy + batches * costs.wake.2 * far, false, &mut load);
        }
        load.wakes_per_s += batches;
        load.instructions_per_s +=
            segments * of_segment + batches * of_wake + rate * payload * costs.instructions_byte;
        load.bytes_per_s += rate * payload * (1.0 - lost_share(costs, frames));
        // A frame waits for the rest of its batch.
        let rtt = costs.rtt_s + (frames - 1.0).max(0.0) / of_queue;
        state.windows[flow] = rate * payload * rtt / costs.window_bytes;
    }
    state.load = load;
    state
}
