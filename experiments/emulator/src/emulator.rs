//! Two namespaces and the link between them.

use crate::addresses::Addresses;
use crate::config::{Direction, LinkConfig};
use crate::error::Result;
use crate::half_link::Change;
use crate::impair::Loss;
use crate::link::EmulatedLink;
use crate::netns::Namespace;
use crate::refusal::check_delay_us;
use crate::shape::Shape;
use crate::stats::LinkStats;
use crate::tun::Tun;

/// The device's name in both namespaces.
pub const DEVICE: &str = "ccp0";

/// Of both ends' IPv4 addresses: the two and no more.
const PREFIX_LEN: u8 = 30;

/// An emulated link between a sender's and a receiver's namespace. Any number may run at once.
///
/// Dropping it stops the link and removes the namespaces; so does the end of the process, SIGKILL included, for they have no names. Only
/// processes that were started in them keep them: let those end with their parent.
///
/// ```no_run
/// use ccplane_emulator::{Emulator, LinkConfig, Queue, Shape};
/// let mut config = LinkConfig::symmetric(Shape::mbit(12), 20_000);
/// config.up.queue = Queue::packets(60);
/// let emulator = Emulator::start(&config)?;
/// let mut iperf = std::process::Command::new("iperf3");
/// iperf.args(["-s", "-1"]);
/// let server = emulator.receiver_ns().enter(&mut iperf)?.spawn();
/// # Ok::<(), ccplane_emulator::Error>(())
/// ```
#[derive(Debug)]
pub struct Emulator {
    // Dropped in this order: the thread ends before its namespaces go.
    link: EmulatedLink,
    sender: Namespace,
    receiver: Namespace,
}

impl Emulator {
    /// Makes the namespaces and starts the link.
    ///
    /// # Errors
    /// A refused configuration or a log that cannot be created (nothing is made), or the kernel's refusal (what was made is removed).
    pub fn start(config: &LinkConfig) -> Result<Emulator> {
        config.check()?;
        let logs = config.create_logs()?;
        let (sender, receiver) = (Namespace::anonymous()?, Namespace::anonymous()?);
        let end = |addresses: Addresses| move || Tun::create(DEVICE, &addresses.with_prefixes(PREFIX_LEN));
        let link = EmulatedLink::start(
            config,
            logs,
            sender.run(end(Addresses::SENDER))??,
            receiver.run(end(Addresses::RECEIVER))??,
        )?;
        Ok(Emulator { link, sender, receiver })
    }

    /// The namespace whose packets go up.
    pub fn sender_ns(&self) -> &Namespace {
        &self.sender
    }

    /// The namespace whose packets go down.
    pub fn receiver_ns(&self) -> &Namespace {
        &self.receiver
    }

    /// Returns the sender's addresses.
    pub fn sender_addresses(&self) -> Addresses {
        Addresses::SENDER
    }

    /// Returns the receiver's addresses.
    pub fn receiver_addresses(&self) -> Addresses {
        Addresses::RECEIVER
    }

    /// Changes how fast a direction delivers, within a millisecond; what is queued stays.
    ///
    /// # Errors
    /// A rate out of range, or a link that has stopped.
    pub fn set_shape(&self, direction: Direction, shape: Shape) -> Result<()> {
        shape.check(direction.fields().shape)?;
        self.link.change(direction, Change::Shape(shape))
    }

    /// Changes a direction's propagation delay, microseconds, for packets that enter from now on.
    ///
    /// # Errors
    /// A delay above [`crate::MAX_DELAY_US`], or a link that has stopped.
    pub fn set_delay_us(&self, direction: Direction, delay_us: u64) -> Result<()> {
        check_delay_us(direction.fields().delay, delay_us)?;
        self.link.change(direction, Change::DelayUs(delay_us))
    }

    /// Changes a direction's random loss, and starts its sequence anew.
    ///
    /// # Errors
    /// A probability outside 0 to 1, or a link that has stopped.
    pub fn set_loss(&self, direction: Direction, loss: Loss) -> Result<()> {
        loss.check(direction.fields().impair.loss)?;
        self.link.change(direction, Change::Loss(loss))
    }

    /// Returns a snapshot of the counters.
    pub fn stats(&self) -> LinkStats {
        self.link.stats()
    }

    /// Stops the link, flushes its logs and removes the namespaces; returns the last counters.
    ///
    /// # Errors
    /// A log that could not be written, or what ended the link before.
    pub fn stop(mut self) -> Result<LinkStats> {
        self.link.stop()
    }
}
