//! mahimahi's command lines as shells.

use std::path::{Path, PathBuf};

use super::{Meters, Shell};
use crate::config::{Direction, LinkConfig};
use crate::error::Result;
use crate::impair::{Impairments, Loss, MAX_OUTAGE_US, Outages};
use crate::queue::Queue;
use crate::refusal::{ConfigError, check_delay_us, check_range};
use crate::shape::Shape;

const US_PER_S: f64 = 1e6;

/// `mm-delay MS`: a fixed delay in each direction and nothing else.
///
/// # Errors
/// A delay above [`crate::MAX_DELAY_US`].
pub fn mm_delay(delay_ms: u64) -> Result<Shell> {
    let delay_us = delay_ms.saturating_mul(1000);
    check_delay_us("delay", delay_us)?;
    Ok(Shell::new(LinkConfig::symmetric(Shape::Unlimited, delay_us), format!("[delay {delay_ms} ms] ")))
}

/// `mm-loss uplink|downlink RATE`: independent losses in one direction. `rate` is text, as prompts repeat it.
///
/// # Errors
/// A rate that is no number from 0 to 1.
pub fn mm_loss(direction: Direction, rate: &str, seed: u64) -> Result<Shell> {
    let loss = Loss { probability: number("rate", rate)?, seed };
    loss.check("rate")?;
    let mut link = LinkConfig::symmetric(Shape::Unlimited, 0);
    let name = match direction {
        Direction::Up => "up",
        Direction::Down => "down",
    };
    link.path_mut(direction).loss = loss;
    Ok(Shell::new(link, format!("[loss {name}={rate}] ")))
}

/// `mm-onoff uplink|downlink MEAN-ON-TIME MEAN-OFF-TIME`: one direction on and off in turn, for exponentially distributed
/// times whose means are given in seconds. They are text, as prompts repeat it.
///
/// # Errors
/// A time that is no number, below 0 or too long, or two times 0.
pub fn mm_onoff(direction: Direction, mean_on: &str, mean_off: &str, seed: u64) -> Result<Shell> {
    let (on_s, off_s) = (number("mean on-time", mean_on)?, number("mean off-time", mean_off)?);
    let most_s = MAX_OUTAGE_US as f64 / US_PER_S;
    check_range("mean on-time", on_s, 0.0, most_s, "s")?;
    check_range("mean off-time", off_s, 0.0, most_s, "s")?;
    let mean_us = |s: f64| (s * US_PER_S).round() as u64;
    let (mean_on_us, mean_off_us) = (mean_us(on_s), mean_us(off_s));
    if mean_on_us == 0 && mean_off_us == 0 {
        return Err(ConfigError::NeverOnNorOff.into());
    }
    let mut link = LinkConfig::symmetric(Shape::Unlimited, 0);
    let outages = Some(Outages { mean_on_us, mean_off_us });
    link.path_mut(direction).impairments = Impairments { outages, seed, ..Impairments::default() };
    let name = match direction {
        Direction::Up => "(up)",
        Direction::Down => "(down)",
    };
    Ok(Shell::new(link, format!("[onoff {name} on={mean_on}s off={mean_off}s] ")))
}

/// `mm-impair uplink|downlink|both`: what mahimahi has no shell for, in the directions given.
///
/// # Errors
/// A number out of range.
pub fn mm_impair(directions: &[Direction], impairments: Impairments) -> Result<Shell> {
    let mut link = LinkConfig::symmetric(Shape::Unlimited, 0);
    for direction in directions {
        link.path_mut(*direction).impairments = impairments;
    }
    link.check()?;
    let name = match directions {
        [Direction::Up] => "[impair up] ",
        [Direction::Down] => "[impair down] ",
        _ => "[impair] ",
    };
    Ok(Shell::new(link, name.to_owned()))
}

/// The command line of `mm-link`, in mahimahi's words.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MmLink {
    /// The trace of what the command sends.
    pub uplink: PathBuf,
    /// The trace of what it receives.
    pub downlink: PathBuf,
    pub uplink_log: Option<PathBuf>,
    pub downlink_log: Option<PathBuf>,
    /// The kind of the queue; `None` stands for `infinite`.
    pub uplink_queue: Option<String>,
    /// The kind of the queue; `None` stands for `infinite`.
    pub downlink_queue: Option<String>,
    /// `--uplink-queue-args`, as [`Queue::parse`] reads them
    pub uplink_queue_args: Option<String>,
    pub downlink_queue_args: Option<String>,
    /// `--once`: the traces do not start over, and the link delivers nothing after their end.
    pub once: bool,
    /// `--meter-uplink` and the others.
    pub meters: Meters,
    /// Of PIE's random drops.
    pub seed: u64,
}

impl MmLink {
    /// Reads the traces and the queues' arguments.
    ///
    /// # Errors
    /// A trace or an argument that is refused; nothing is made.
    pub fn shell(&self) -> Result<Shell> {
        let queue = |field, args_field, kind: &Option<String>, args: &Option<String>| {
            let (kind, args) = (kind.as_deref().unwrap_or("infinite"), args.as_deref().unwrap_or_default());
            // An unknown kind is the kind's fault; all else is the arguments'.
            let field = if Queue::KINDS.contains(&kind) { args_field } else { field };
            Queue::parse(field, kind, args).map(|queue| queue.seeded(self.seed))
        };
        let mut link = LinkConfig::symmetric(Shape::Unlimited, 0);
        link.up.shape = self.shape(&self.uplink)?;
        link.down.shape = self.shape(&self.downlink)?;
        link.up.queue =
            queue("--uplink-queue", "--uplink-queue-args", &self.uplink_queue, &self.uplink_queue_args)?;
        link.down.queue = queue(
            "--downlink-queue",
            "--downlink-queue-args",
            &self.downlink_queue,
            &self.downlink_queue_args,
        )?;
        link.up.log.clone_from(&self.uplink_log);
        link.down.log.clone_from(&self.downlink_log);
        Ok(Shell { meters: self.meters, ..Shell::new(link, "[link] ".to_owned()) })
    }

    fn shape(&self, path: &Path) -> Result<Shape> {
        Ok(match Shape::load(path)? {
            Shape::Trace { trace, source, .. } => Shape::Trace { trace, repeat: !self.once, source },
            other => other,
        })
    }
}

fn number(field: &'static str, text: &str) -> Result<f64> {
    Ok(text.parse().map_err(|_| ConfigError::NotANumber { field, found: text.to_owned() })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_mahimahis() {
        assert_eq!(mm_delay(20).unwrap().name, "[delay 20 ms] ");
        assert_eq!(mm_loss(Direction::Up, "0.10", 1).unwrap().name, "[loss up=0.10] ");
        let onoff = mm_onoff(Direction::Down, "5", "0.5", 1).unwrap();
        assert_eq!(onoff.name, "[onoff (down) on=5s off=0.5s] ");
        let outages = onoff.link.down.impairments.outages;
        assert_eq!(outages, Some(Outages { mean_on_us: 5_000_000, mean_off_us: 500_000 }));
        assert_eq!(onoff.link.up.impairments, Impairments::default());
    }

    #[test]
    fn refusals_name_the_argument() {
        let refusal = |shell: Result<Shell>| shell.unwrap_err().to_string();
        assert_eq!(refusal(mm_loss(Direction::Up, "2", 1)), "rate: 2 is outside 0..=1");
        assert_eq!(refusal(mm_loss(Direction::Up, "x", 1)), "rate: \"x\" is no number");
        assert_eq!(
            refusal(mm_onoff(Direction::Up, "-1", "1", 1)),
            "mean on-time: -1 is outside 0..=1099511.627776 s"
        );
        assert_eq!(
            refusal(mm_onoff(Direction::Up, "0", "0", 1)),
            "mean on-time and mean off-time: not both can be 0"
        );
        assert!(refusal(mm_delay(99_999)).starts_with("delay: 99999000 is outside"));
        let impairments = Impairments { duplicate: 1.5, ..Impairments::default() };
        assert!(refusal(mm_impair(&[Direction::Down], impairments)).starts_with("down.duplicate: 1.5"));
    }
}
