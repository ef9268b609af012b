//! The configuration of a link, checked before anything is made.

use std::fs::File;
use std::path::PathBuf;

use crate::impair::{self, Impairments, Loss};
use crate::queue::Queue;
use crate::refusal::{ConfigError, check_delay_us, check_range};
use crate::shape::Shape;

/// Packets that one direction can hold at once unless configured: 1.5 GB x 8 / 65536, or half a second at 1.5 Gb/s.
pub const DEFAULT_BUFFER_PACKETS: u32 = 1 << 16;
/// Most packets that one direction can hold at once: 1.5 GiB of memory.
pub const MAX_BUFFER_PACKETS: u32 = 1 << 20;

/// One direction of a link.
#[derive(Clone, PartialEq, Debug)]
pub struct PathConfig {
    /// Propagation delay, microseconds, at most [`MAX_DELAY_US`](crate::MAX_DELAY_US).
    pub delay_us: u64,
    /// The speed at which the bottleneck delivers.
    pub shape: Shape,
    pub queue: Queue,
    pub loss: Loss,
    /// Burst losses, outages, a policer, copies, jitter, reordering; by default none.
    pub impairments: Impairments,
    /// The file for a log in mahimahi's format.
    pub log: Option<PathBuf>,
    /// Packets held at once, delayed or queued, up to [`MAX_BUFFER_PACKETS`]; what exceeds them is refused and counted.
    /// Memory is only used as it is needed.
    pub buffer_packets: u32,
}

impl PathConfig {
    /// A direction with no loss, no log and an infinite queue.
    pub fn new(shape: Shape, delay_us: u64) -> PathConfig {
        PathConfig {
            delay_us,
            shape,
            queue: Queue::Infinite,
            loss: Loss::default(),
            impairments: Impairments::default(),
            log: None,
            buffer_packets: DEFAULT_BUFFER_PACKETS,
        }
    }

    fn check(&self, fields: &Fields) -> Result<(), ConfigError> {
        self.shape.check(fields.shape)?;
        self.queue.check(fields.queue)?;
        self.loss.check(fields.impair.loss)?;
        self.impairments.check(&fields.impair)?;
        check_delay_us(fields.delay, self.delay_us)?;
        let buffer_packets = f64::from(self.buffer_packets);
        check_range(fields.buffer, buffer_packets, 1.0, f64::from(MAX_BUFFER_PACKETS), "packets")
    }
}

/// Field names of one direction, for refusals.
pub(crate) struct Fields {
    pub(crate) shape: &'static str,
    pub(crate) delay: &'static str,
    pub(crate) impair: impair::Fields,
    queue: &'static str,
    buffer: &'static str,
}

impl Direction {
    pub(crate) fn fields(self) -> &'static Fields {
        match self {
            Direction::Up => &UP,
            Direction::Down => &DOWN,
        }
    }
}

const UP: Fields = Fields {
    shape: "up.shape",
    queue: "up.queue",
    delay: "up.delay_us",
    impair: impair::Fields {
        loss: "up.loss.probability",
        burst_loss: "up.burst_loss",
        outages: "up.outages",
        policer: "up.policer",
        duplicate: "up.duplicate",
        jitter: "up.jitter",
        reorder: "up.reorder",
    },
    buffer: "up.buffer_packets",
};
const DOWN: Fields = Fields {
    shape: "down.shape",
    queue: "down.queue",
    delay: "down.delay_us",
    impair: impair::Fields {
        loss: "down.loss.probability",
        burst_loss: "down.burst_loss",
        outages: "down.outages",
        policer: "down.policer",
        duplicate: "down.duplicate",
        jitter: "down.jitter",
        reorder: "down.reorder",
    },
    buffer: "down.buffer_packets",
};

/// One of a link's directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the sender to the receiver.
    Up,
    /// From the receiver to the sender.
    Down,
}

/// The files of a link's logs, empty.
#[derive(Debug)]
pub(crate) struct Logs {
    pub(crate) up: Option<File>,
    pub(crate) down: Option<File>,
}

/// A link: `up` carries from the sender (a shell's inside) to the receiver (its outside), `down` back.
#[derive(Clone, PartialEq, Debug)]
pub struct LinkConfig {
    /// From the sender to the receiver.
    pub up: PathConfig,
    /// From the receiver to the sender.
    pub down: PathConfig,
    /// The command line that the headers of logs give for the link.
    pub command_line: String,
    /// The shells around it, as the logs' headers name them: `[delay 20 ms] `; empty: none.
    pub shell_prefix: String,
}

impl LinkConfig {
    /// A link of the same shape and delay in both directions, with infinite queues.
    pub fn symmetric(shape: Shape, delay_us: u64) -> LinkConfig {
        let path = PathConfig::new(shape, delay_us);
        LinkConfig {
            up: path.clone(),
            down: path,
            command_line: "ccplane".into(),
            shell_prefix: String::new(),
        }
    }

    /// One of its directions.
    pub fn path_mut(&mut self, direction: Direction) -> &mut PathConfig {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }

    /// Checks the range of every number.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.up.check(Direction::Up.fields())?;
        self.down.check(Direction::Down.fields())
    }

    /// Creates the logs, before anything else is made; what they held is lost.
    ///
    /// # Errors
    /// The first log that cannot be created.
    pub(crate) fn create_logs(&self) -> Result<Logs, ConfigError> {
        let create = |path: &PathBuf| {
            File::create(path).map_err(|e| ConfigError::Log { path: path.clone(), kind: e.kind() })
        };
        Ok(Logs {
            up: self.up.log.as_ref().map(create).transpose()?,
            down: self.down.log.as_ref().map(create).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_field() {
        let good = LinkConfig::symmetric(Shape::mbit(12), 20_000);
        assert_eq!(good.check(), Ok(()));
        let refusal = |change: fn(&mut LinkConfig)| {
            let mut config = good.clone();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(
            refusal(|c| c.up.delay_us = crate::MAX_DELAY_US + 1),
            "up.delay_us: 10000001 is outside 0..=10000000 us"
        );
        assert!(refusal(|c| c.down.loss.probability = 1.5).starts_with("down.loss.probability: 1.5"));
        assert!(refusal(|c| c.down.loss.probability = f64::NAN).starts_with("down.loss.probability: NaN"));
        assert!(refusal(|c| c.down.shape = Shape::mbit(0)).starts_with("down.shape: 0 is outside"));
        assert!(refusal(|c| c.up.queue = Queue::packets(0)).starts_with("up.queue: a droptail queue needs"));
        assert!(refusal(|c| c.up.buffer_packets = 0).starts_with("up.buffer_packets: 0"));
    }
}
