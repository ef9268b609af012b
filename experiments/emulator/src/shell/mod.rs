//! Link shells: a command behind an emulated link, as mahimahi's `mm-delay` and `mm-link` run it, nested or not.
//!
//! The command lives in an anonymous namespace whose default route is the link; the link's far end is a TUN device in
//! the caller's namespace, which both processes' end takes away, however they end. Each shell takes a block of
//! 100.64.0.0/10 (RFC 6598) and hands parts of it to the shells inside. So packets find their way through all of them
//! without address translation. Beyond the outermost caller's own addresses nothing can be reached: that would take
//! forwarding in a namespace that is not ours.

mod child;
mod commands;
mod meter;
mod rootless;
mod watcher;

pub use commands::{MmLink, mm_delay, mm_impair, mm_loss, mm_onoff};
pub use meter::Meters;
pub use rootless::{Ground, is_permitted, permit};

use std::process::{Command, ExitStatus};
use std::{env, fs};

use nix::ifaddrs::getifaddrs;

use self::child::Outside;
use self::meter::Meter;
use self::watcher::Watcher;
use crate::addresses::Addresses;
use crate::block::Block;
use crate::config::LinkConfig;
use crate::error::{Context, Error, Result};
use crate::link::EmulatedLink;
use crate::netlink::Netlink;
use crate::netns::Namespace;
use crate::tun::{self, Tun};

/// The inside device's name.
const INSIDE_DEVICE: &str = "ingress";
/// The outside device's name; the kernel fills in the first free number.
const OUTSIDE_DEVICE: &str = "ccplink%d";
/// The outermost shell's outside address, as in mahimahi.
const BASE_VARIABLE: &str = "MAHIMAHI_BASE";
/// The names of the shells around a command, as in mahimahi.
const PREFIX_VARIABLE: &str = "MAHIMAHI_SHELL_PREFIX";
/// The command that bash runs before its first prompt, as in mahimahi: the prompt then begins with the shells' names.
const PROMPT: (&str, &str) = ("PROMPT_COMMAND", "PS1=\"$MAHIMAHI_SHELL_PREFIX$PS1\" PROMPT_COMMAND=");
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
    /// Lines on standard error.
    pub meters: Meters,
    /// A command line for `/bin/sh` that runs outside, where `$MAHIMAHI_BASE` is an address, while the shell lives.
    pub outside: Option<String>,
}

impl Shell {
    /// A shell of this process's command line, with no meter and no command outside.
    pub fn new(link: LinkConfig, name: String) -> Shell {
        let link = LinkConfig { command_line: command_line(env::args()), ..link };
        Shell { link, name, meters: Meters::default(), outside: None }
    }
}

/// Runs a command (the user's shell if `argv` is empty) behind the shell's link, waits for it and writes the logs.
///
/// A process that may not make devices in its network namespace (an ordinary user's) first moves to namespaces of its
/// own. For that it must have one thread only: then the outside is empty but for the command that [`Shell::outside`]
/// names.
///
/// SIGTERM and SIGHUP are passed on to the command, and SIGINT unless a terminal has done so; if this process is killed, so is the
/// command, and in either case what the command left running behind the link. The handlers stay: the program is expected to end after.
///
/// # Errors
/// What is refused in the configuration, by the kernel, or in starting the command.
pub fn run_shell(shell: &Shell, argv: &[String]) -> Result<ExitStatus> {
    let mut link = shell.link.clone();
    link.shell_prefix = env::var(PREFIX_VARIABLE).unwrap_or_default();
    link.check()?;
    let logs = link.create_logs()?;
    tun::check_access()?;
    // In an outside of our own no surrounding shell's addresses exist.
    let fresh = permit()? == Ground::Own;
    let block = free_block(fresh)?;
    let [outside, inside] = block.ends();
    let (namespace, current) = (Namespace::anonymous()?, Namespace::current()?);
    let watched: &[&Namespace] = if fresh { &[&namespace, &current] } else { &[&namespace] };
    let watcher = Watcher::start(watched)?;
    let outside_tun = Tun::create(OUTSIDE_DEVICE, &outside.with_prefixes(block.prefix_len()))?;
    let inside_tun = namespace.run(|| inside_device(outside, inside))??;
    let mut running = EmulatedLink::start(&link, logs, inside_tun, outside_tun)?;
    let base = match env::var(BASE_VARIABLE) {
        Ok(base) if !fresh => base,
        _ => outside.v4.to_string(),
    };
    let meter = Meter::start(shell.meters, running.stats_reader())?;
    let start_outside = |line: &String| Outside::start(line, (BASE_VARIABLE, base.clone()));
    let outside_command = shell.outside.as_ref().map(start_outside).transpose()?;

    let user_shell = || env::var("SHELL").unwrap_or_else(|_| DEFAULT_SHELL.into());
    let (program, arguments) = match argv.split_first() {
        Some((program, arguments)) => (program.clone(), arguments),
        None => (user_shell(), [].as_slice()),
    };
    let mut command = Command::new(&program);
    command.args(arguments);
    command.env(PREFIX_VARIABLE, format!("{}{}", link.shell_prefix, shell.name));
    command.env(PROMPT.0, PROMPT.1);
    command.env(BLOCK_VARIABLE, block.to_string());
    command.env(BASE_VARIABLE, base);
    let status = child::run(namespace.enter(&mut command)?, &program);
    drop((outside_command, meter));
    running.stop()?;
    drop(watcher);
    status
}

/// The link's end in the calling thread's namespace, by which all packets leave.
fn inside_device(outside: Addresses, inside: Addresses) -> Result<Tun> {
    let tun = Tun::create(INSIDE_DEVICE, &inside.with_prefixes(Block::END_PREFIX_LEN))?;
    let netlink = Netlink::open()?;
    netlink.add_default_route(INSIDE_DEVICE, outside.v4.into())?;
    netlink.add_default_route(INSIDE_DEVICE, outside.v6.into())?;
    // The namespace is ours: it forwards for the shells inside.
    for switch in ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"] {
        fs::write(switch, "1").context("switch on", switch)?;
    }
    Ok(tun)
}

/// A block that no device of this namespace has an address of: part of the surrounding shell's, or an outermost one.
fn free_block(fresh: bool) -> Result<Block> {
    let within = match env::var(BLOCK_VARIABLE) {
        Ok(text) if !fresh => text.parse()?,
        _ => Block::WHOLE,
    };
    let taken: Vec<_> = getifaddrs()
        .context("list", "addresses")?
        .filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip()))
        .collect();
    let is_free = |block: &Block| !taken.iter().any(|address| block.contains(*address));
    within.parts(std::process::id()).find(is_free).ok_or(Error::NoAddresses { within })
}

/// Each word in single quotes, as mahimahi logs it.
fn command_line(words: impl Iterator<Item = String>) -> String {
    let quoted = words.map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    quoted.collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_can_be_pasted() {
        let words = ["mm-link", "a b", "it's"].map(String::from);
        assert_eq!(command_line(words.into_iter()), r"'mm-link' 'a b' 'it'\''s'");
    }
}
