//! Costs of a modelled host's work, in nanoseconds of a core unless a name says otherwise.

/// The costs and sizes that a model computes with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// The device's rate, bits per second.
    pub line_bps: f64,
    pub mtu_bytes: f64,
    /// Headers of a packet within the MTU, bytes.
    pub header_bytes: f64,
    /// Bytes on the wire beyond the MTU: Ethernet's header, checksum, preamble and gap.
    pub wire_bytes: f64,
    /// One interrupt with the softirq that it raises.
    pub interrupt: f64,
    /// One frame through the driver and GRO.
    pub frame: f64,
    /// The same frame's surcharge where the interrupt is on another node than the device.
    pub frame_remote: f64,
    /// Handing a segment to another core, on the core that hands over.
    pub steer_segment: f64,
    /// The interrupt between cores for a batch of segments, on the core that hands over and on the one that gets it.
    pub steer_batch: (f64, f64),
    /// Fetching a segment's headers from another core of the same node, and from another node.
    pub fetch: (f64, f64),
    /// One segment through IP and TCP, with its share of an ACK.
    pub segment: f64,
    /// The largest segment that GRO makes, bytes.
    pub segment_bytes: f64,
    /// Copying a byte from the last cache and from memory, on the node where the data are.
    pub copy: (f64, f64),
    /// The same from another node.
    pub copy_remote: (f64, f64),
    /// The share of a copy's cost that is left where TCP ran on the same core just before.
    pub copy_warm: f64,
    /// Waking the application for a batch: on the same core; on another, for the waker and for the woken.
    pub wake: (f64, f64, f64),
    /// The factor of a wake-up on another node.
    pub wake_remote: f64,
    /// The part of the last cache that the device writes to, bytes.
    pub device_cache_bytes: f64,
    /// The last cache of a node, bytes.
    pub last_cache_bytes: u64,
    /// Descriptors of each receive queue.
    pub ring_frames: f64,
    /// Frames that one softirq takes at most.
    pub budget_frames: f64,
    /// A flow's receive window, bytes.
    pub window_bytes: f64,
    /// The round trip without coalescing, seconds.
    pub rtt_s: f64,
    /// Instructions of an interrupt, a frame, a segment, a wake-up and a hand-over of a batch.
    pub instructions: [f64; 5],
    /// Instructions for each copied byte.
    pub instructions_byte: f64,
    /// The standard deviation of measurements, as a share.
    pub noise: f64,
}

impl Default for Costs {
    /// A 200 Gb/s device with frames of 1500 bytes, so that the host is what holds the flows. Copies cost what lets one flow come to
    /// NESCAT's throughput next to the device and on the other node; wakes and interrupts between cores are a guest's, measured.
    fn default() -> Costs {
        Costs {
            line_bps: 200e9,
            mtu_bytes: 1500.0,
            header_bytes: 52.0,
            wire_bytes: 38.0,
            interrupt: 2200.0,
            frame: 230.0,
            frame_remote: 120.0,
            steer_segment: 140.0,
            steer_batch: (700.0, 1000.0),
            fetch: (90.0, 300.0),
            segment: 1500.0,
            segment_bytes: 65_536.0,
            copy: (0.195, 0.30),
            copy_remote: (0.30, 0.42),
            copy_warm: 0.92,
            wake: (900.0, 500.0, 1100.0),
            wake_remote: 1.4,
            device_cache_bytes: 250e3,
            last_cache_bytes: 32 << 20,
            ring_frames: 256.0,
            budget_frames: 64.0,
            window_bytes: 300e3,
            rtt_s: 60e-6,
            instructions: [4500.0, 430.0, 3300.0, 3600.0, 2100.0],
            instructions_byte: 0.06,
            noise: 0.006,
        }
    }
}

impl Costs {
    /// A 40 Gb/s device with frames of 9000 bytes, as in NESCAT's measurements.
    pub fn jumbo_40g() -> Costs {
        Costs {
            line_bps: 40e9,
            mtu_bytes: 9000.0,
            window_bytes: 6e6,
            device_cache_bytes: 3e6,
            ..Costs::default()
        }
    }

    /// The payload of a frame, bytes.
    pub(super) fn payload_bytes(&self) -> f64 {
        self.mtu_bytes - self.header_bytes
    }

    /// Frames that the device receives in a second, at most.
    pub(super) fn line_frames_per_s(&self) -> f64 {
        self.line_bps / 8.0 / (self.mtu_bytes + self.wire_bytes)
    }
}
