//! Link shells: a command behind an emulated link, as mahimahi's `mm-delay` and `mm-link` run it, nested or not.
//!
//! The command lives in an anonymous namespace whose default route is the link; the link's far end is a TUN device in the
//! caller's namespace, which both processes' end takes away, however they end. Each shell takes a block of 100.64.0.0/10 (RFC 6598)
//! and hands parts of it to the shells inside, so that packets find their way through all of them without address translation.
//! Beyond the outermost caller's own addresses nothing can be reached: that would take forwarding in a namespace that is not ours.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::{env, fs};

use nix::ifaddrs::getifaddrs;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::block::Block;
use crate::config::{LinkConfig, check_delay_us};
use crate::error::{Context, Error, Result};
use crate::link::Link;
use crate::netlink::Netlink;
use crate::netns::Namespace;
use crate::queue::Queue;
use crate::shape::Shape;
use crate::sys;
use crate::tun::Tun;

/// The inside device's name.
const INSIDE_DEVICE: &str = "ingress";
/// The outside device's name; the kernel fills in the first free number.
const OUTSIDE_DEVICE: &str = "ccplink%d";
/// The outermost shell's outside address, as in mahimahi.
const BASE_VARIABLE: &str = "MAHIMAHI_BASE";
/// The names of the shells around a command, as in mahimahi.
const PREFIX_VARIABLE: &str = "MAHIMAHI_SHELL_PREFIX";
/// The address block that a shell inside may take parts of.
const BLOCK_VARIABLE: &str = "CCPLANE_SHELL_BLOCK";
/// Run when no command is given and `SHELL` is not set.
const DEFAULT_SHELL: &str = "/bin/sh";

/// A link shell: its link and how prompts and logs name it.
#[derive(Clone, PartialEq, Debug)]
pub struct Shell {
    /// `up` carries what the command sends.
    pub link: LinkConfig,
    /// `[link] ` or `[delay 20 ms] `.
    pub name: String,
}

/// `mm-delay MS`: a fixed delay in each direction and nothing else.
///
/// # Errors
/// A delay above [`crate::MAX_DELAY_US`].
pub fn mm_delay(delay_ms: u64) -> Result<Shell> {
    let delay_us = delay_ms.saturating_mul(1000);
    check_delay_us("delay", delay_us)?;
    let link =
        LinkConfig { command_line: command_line(), ..LinkConfig::symmetric(Shape::Unlimited, delay_us) };
    Ok(Shell { link, name: format!("[delay {delay_ms} ms] ") })
}

/// The command line of `mm-link`, in mahimahi's words.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MmLink {
    /// The trace of what the command sends.
    pub uplink: PathBuf,
    /// The trace of what it receives.
    pub downlink: PathBuf,
    /// `--uplink-log`
    pub uplink_log: Option<PathBuf>,
    /// `--downlink-log`
    pub downlink_log: Option<PathBuf>,
    /// `--uplink-queue`; `None`: `infinite`
    pub uplink_queue: Option<String>,
    /// `--downlink-queue`; `None`: `infinite`
    pub downlink_queue: Option<String>,
    /// `--uplink-queue-args`, such as `packets=100` or `bytes=150000`
    pub uplink_queue_args: Option<String>,
    /// `--downlink-queue-args`
    pub downlink_queue_args: Option<String>,
    /// `--once`: the traces do not start over, and the link delivers nothing after their end.
    pub once: bool,
}

impl MmLink {
    /// Reads the traces and the queues' arguments.
    ///
    /// # Errors
    /// A trace or an argument that is refused; nothing is made.
    pub fn shell(&self) -> Result<Shell> {
        let queue = |field, kind: &Option<String>, args: &Option<String>| {
            Queue::parse(field, kind.as_deref().unwrap_or("infinite"), args.as_deref().unwrap_or_default())
        };
        let mut link = LinkConfig::symmetric(Shape::Unlimited, 0);
        link.command_line = command_line();
        link.up.shape = self.shape(&self.uplink)?;
        link.down.shape = self.shape(&self.downlink)?;
        link.up.queue = queue("--uplink-queue", &self.uplink_queue, &self.uplink_queue_args)?;
        link.down.queue = queue("--downlink-queue", &self.downlink_queue, &self.downlink_queue_args)?;
        link.up.log.clone_from(&self.uplink_log);
        link.down.log.clone_from(&self.downlink_log);
        Ok(Shell { link, name: "[link] ".into() })
    }

    fn shape(&self, path: &Path) -> Result<Shape> {
        Ok(match Shape::load(path)? {
            Shape::Trace { trace, source, .. } => Shape::Trace { trace, repeat: !self.once, source },
            other => other,
        })
    }
}

/// Runs a command (the user's shell if `argv` is empty) behind the shell's link, waits for it and writes the logs.
///
/// SIGTERM and SIGHUP are passed on to the command, and SIGINT unless a terminal has done so; if this process is killed, so is the
/// command. The handlers stay: the program is expected to end after.
///
/// # Errors
/// What is refused in the configuration, by the kernel, or in starting the command.
pub fn run_shell(shell: &Shell, argv: &[String]) -> Result<ExitStatus> {
    let mut link = shell.link.clone();
    link.shell_prefix = env::var(PREFIX_VARIABLE).unwrap_or_default();
    link.check()?;
    let block = free_block()?;
    let [outside, inside] = block.ends();
    let outside_tun = Tun::create(OUTSIDE_DEVICE, &outside.with_prefixes(block.prefix_len()))?;
    let namespace = Namespace::anonymous()?;
    let inside_tun = namespace.run(|| {
        let tun = Tun::create(INSIDE_DEVICE, &inside.with_prefixes(Block::END_PREFIX_LEN))?;
        let netlink = Netlink::open()?;
        netlink.add_default_route(INSIDE_DEVICE, outside.v4.into())?;
        netlink.add_default_route(INSIDE_DEVICE, outside.v6.into())?;
        // The namespace is ours: it forwards for the shells inside.
        for switch in ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"] {
            fs::write(switch, "1").context("switch on", switch)?;
        }
        Ok::<Tun, Error>(tun)
    })??;
    let mut running = Link::start(&link, inside_tun, outside_tun)?;

    let user_shell = || env::var("SHELL").unwrap_or_else(|_| DEFAULT_SHELL.into());
    let (program, arguments) = match argv.split_first() {
        Some((program, arguments)) => (program.clone(), arguments),
        None => (user_shell(), [].as_slice()),
    };
    let mut command = Command::new(&program);
    command.args(arguments);
    command.env(PREFIX_VARIABLE, format!("{}{}", link.shell_prefix, shell.name));
    command.env(BLOCK_VARIABLE, block.to_string());
    if env::var_os(BASE_VARIABLE).is_none() {
        command.env(BASE_VARIABLE, outside.v4.to_string());
    }
    let status = wait(namespace.enter(&mut command)?, &program);
    running.stop()?;
    status
}

/// Starts the command and waits, passing signals on.
fn wait(command: &mut Command, program: &str) -> Result<ExitStatus> {
    let failed = |source| Error::Command { command: program.to_owned(), source };
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("handle", "signals")?;
    let handle = signals.handle();
    sys::die_with_parent(command);
    let mut child = command.spawn().map_err(failed)?;
    let pid = Pid::from_raw(child.id() as i32);
    let pass_on = move || {
        for signal in signals.forever().filter(|signal| *signal != SIGINT || !std::io::stdin().is_terminal())
        {
            // The child is not yet waited for, or has just ended: then there is nothing to signal.
            let _ = Signal::try_from(signal).and_then(|signal| kill(pid, signal));
        }
    };
    let thread =
        std::thread::Builder::new().name("ccp-signals".into()).spawn(pass_on).map_err(Error::Thread)?;
    let status = child.wait().map_err(failed);
    handle.close();
    // It only passes signals on; should it have panicked, the command has ended all the same.
    let _ = thread.join();
    status
}

/// A block that no device of this namespace has an address of: part of the surrounding shell's, or an outermost one.
fn free_block() -> Result<Block> {
    let within = match env::var(BLOCK_VARIABLE) {
        Ok(text) => text.parse()?,
        Err(_) => Block::WHOLE,
    };
    let taken: Vec<_> = getifaddrs()
        .context("list", "addresses")?
        .filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip()))
        .collect();
    let is_free = |block: &Block| !taken.iter().any(|address| block.contains(*address));
    within.parts(std::process::id()).find(is_free).ok_or(Error::NoAddresses { within })
}

fn command_line() -> String {
    env::args().collect::<Vec<String>>().join(" ")
}
