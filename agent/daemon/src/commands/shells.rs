//! `ccplane mm-delay` and `ccplane mm-link`: a command behind an emulated link.

use crate::cli::{MmDelayArgs, MmLinkArgs};
use crate::failure::Failure;
use ccplane_emulator::Error;
use ccplane_emulator::shell::{MmLink, Shell, mm_delay as delay_shell, run_shell};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

/// What shells add to a signal's number in a command's exit code.
const SIGNALLED: i32 = 128;

/// `ccplane mm-delay`
pub(crate) fn mm_delay(args: &MmDelayArgs) -> Result<ExitCode, Failure> {
    run(&delay_shell(args.delay_ms).map_err(classify)?, &args.command)
}

/// `ccplane mm-link`
pub(crate) fn mm_link(args: &MmLinkArgs) -> Result<ExitCode, Failure> {
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
    };
    run(&link.shell().map_err(classify)?, &args.command)
}

/// Returns as the command does.
fn run(shell: &Shell, command: &[String]) -> Result<ExitCode, Failure> {
    let status = run_shell(shell, command).map_err(classify)?;
    let code = status.code().or(status.signal().map(|s| SIGNALLED + s)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn classify(error: Error) -> Failure {
    match error {
        Error::Config(_) | Error::Trace(_) => Failure::input(error),
        other => Failure::runtime(other),
    }
}
