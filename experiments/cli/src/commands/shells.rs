//! `ccplane mm-delay`, `mm-link`, `mm-loss`, `mm-onoff`, `mm-impair`: a command behind an emulated link.

use crate::cli::{
    DirectionArg, DirectionsArg, MmDelayArgs, MmImpairArgs, MmLinkArgs, MmLossArgs, MmOnoffArgs, ShellArgs,
};
use ccplane_agent::failure::Failure;
use ccplane_emulator::shell::{self, Meters, MmLink, Shell, run_shell};
use ccplane_emulator::{BurstLoss, Direction, Error, Impairments, Jitter, Policer, Reorder};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

/// Shells add this to a signal's number to make a command's exit code.
const SIGNALLED: i32 = 128;
const US_PER_MS: f64 = 1e3;
const BIT_PER_MBIT: f64 = 1e6;

pub(crate) fn mm_delay(args: &MmDelayArgs) -> Result<ExitCode, Failure> {
    run(shell::mm_delay(args.delay_ms), &args.shell)
}

pub(crate) fn mm_loss(args: &MmLossArgs) -> Result<ExitCode, Failure> {
    run(shell::mm_loss(args.direction.into(), &args.rate, args.shell.seed), &args.shell.shell)
}

pub(crate) fn mm_onoff(args: &MmOnoffArgs) -> Result<ExitCode, Failure> {
    let shell = shell::mm_onoff(args.direction.into(), &args.mean_on, &args.mean_off, args.shell.seed);
    run(shell, &args.shell.shell)
}

pub(crate) fn mm_impair(args: &MmImpairArgs) -> Result<ExitCode, Failure> {
    let directions: &[Direction] = match args.direction {
        DirectionsArg::Uplink => &[Direction::Up],
        DirectionsArg::Downlink => &[Direction::Down],
        DirectionsArg::Both => &[Direction::Up, Direction::Down],
    };
    run(shell::mm_impair(directions, impairments(args)?), &args.shell.shell)
}

pub(crate) fn mm_link(args: &MmLinkArgs) -> Result<ExitCode, Failure> {
    let meters = Meters {
        uplink: args.meter_uplink,
        uplink_delay: args.meter_uplink_delay,
        downlink: args.meter_downlink,
        downlink_delay: args.meter_downlink_delay,
    };
    let link = MmLink {
        uplink: args.uplink.clone(),
        downlink: args.downlink.clone(),
        uplink_log: args.uplink_log.clone(),
        downlink_log: args.downlink_log.clone(),
        uplink_queue: args.uplink_queue.clone(),
        downlink_queue: args.downlink_queue.clone(),
        uplink_queue_args: args.uplink_queue_args.clone(),
        downlink_queue_args: args.downlink_queue_args.clone(),
        once: args.once,
        meters: if args.meter_all { Meters::ALL } else { meters },
        seed: args.shell.seed,
    };
    run(link.shell(), &args.shell.shell)
}

/// Returns as the command does.
fn run(shell: Result<Shell, Error>, args: &ShellArgs) -> Result<ExitCode, Failure> {
    let shell = Shell { outside: args.outside.clone(), ..shell.map_err(classify)? };
    let status = run_shell(&shell, &args.command).map_err(classify)?;
    let code = status.code().or(status.signal().map(|s| SIGNALLED + s)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn impairments(args: &MmImpairArgs) -> Result<Impairments, Failure> {
    let us = |ms: f64| (ms * US_PER_MS).round() as u64;
    let jitter = args.jitter_ms.map(|ms| positive("--jitter-ms", ms)).transpose()?;
    let reorder = args.reorder.as_deref().map(|text| numbers("--reorder", text, [None, None])).transpose()?;
    let policer = args.policer.as_deref().map(|text| numbers("--policer", text, [None, None])).transpose()?;
    let missing_losses = [None, None, Some(1.0), Some(0.0)];
    let burst = args.burst_loss.as_deref().map(|text| numbers("--burst-loss", text, missing_losses));
    Ok(Impairments {
        burst_loss: burst.transpose()?.map(|[to_bad, to_good, loss_bad, loss_good]| BurstLoss {
            to_bad,
            to_good,
            loss_good,
            loss_bad,
        }),
        outages: None,
        policer: policer.map(|[mbit, bytes]| Policer {
            bit_per_s: (mbit * BIT_PER_MBIT).round() as u64,
            burst_bytes: bytes as u64,
        }),
        duplicate: args.duplicate.unwrap_or(0.0),
        jitter: jitter.map(|ms| Jitter { max_us: us(ms), reorder: args.jitter_reorders }),
        reorder: reorder.map(|[probability, ms]| Reorder { probability, hold_us: us(ms) }),
        seed: args.shell.seed,
    })
}

/// An option's value that is not as many numbers as it should be.
#[derive(Debug, thiserror::Error)]
#[error("{option}: cannot read {found:?}; expected {expected} numbers of at least 0, separated by commas")]
struct BadNumbers {
    option: &'static str,
    found: String,
    expected: String,
}

/// Reads `N` numbers, the last of which may be missing where there is a default.
fn numbers<const N: usize>(
    option: &'static str,
    text: &str,
    defaults: [Option<f64>; N],
) -> Result<[f64; N], Failure> {
    let least = defaults.iter().filter(|default| default.is_none()).count();
    let expected = if least == N { N.to_string() } else { format!("{least} to {N}") };
    let refused =
        || Failure::input(BadNumbers { option, found: text.to_owned(), expected: expected.clone() });
    let mut words = text.split(',');
    let mut values = [0.0; N];
    for (value, default) in values.iter_mut().zip(defaults) {
        let word = words.next().map(|word| word.trim().parse().map_err(|_| refused())).transpose()?;
        *value = positive(option, word.or(default).ok_or_else(refused)?)?;
    }
    if words.next().is_some() { Err(refused()) } else { Ok(values) }
}

/// A number of at least 0; the upper bounds are the link's.
fn positive(option: &'static str, value: f64) -> Result<f64, Failure> {
    if value >= 0.0 && value.is_finite() {
        return Ok(value);
    }
    Err(Failure::input(BadNumbers { option, found: value.to_string(), expected: "only".to_owned() }))
}

impl From<DirectionArg> for Direction {
    fn from(arg: DirectionArg) -> Direction {
        match arg {
            DirectionArg::Uplink => Direction::Up,
            DirectionArg::Downlink => Direction::Down,
        }
    }
}

fn classify(error: Error) -> Failure {
    match error {
        Error::Config(_) | Error::Trace(_) => Failure::input(error),
        other => Failure::runtime(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_defaults_at_their_end() {
        let read = |text| numbers("--burst-loss", text, [None, None, Some(1.0), Some(0.0)]);
        assert_eq!(read("0.1,0.2").unwrap(), [0.1, 0.2, 1.0, 0.0]);
        assert_eq!(read("0.1, 0.2, 0.5").unwrap(), [0.1, 0.2, 0.5, 0.0]);
        for text in ["", "0.1", "x,1", "0.1,-1", "1,2,3,4,5", "nan,1"] {
            let message = read(text).unwrap_err().message();
            assert!(message.starts_with("--burst-loss: cannot read"), "{message}");
        }
    }
}
