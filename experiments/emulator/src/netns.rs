//! Network namespaces that we make, own and remove.
//!
//! A named namespace is bound at `/run/netns/ccp-<pid>-<tag>`, so that `ip netns exec` finds it; [`Namespace`]'s drop removes it.
//! What a killed process leaves is found by its name: [`clean_leftovers`]. An anonymous namespace lives as long as
//! something holds it and leaves nothing, however its process ends.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{Context, Error, Result};
use crate::netlink::Netlink;
use crate::refusal::ConfigError;
use crate::sys;

pub use crate::refusal::MAX_TAG;

/// The folder in which iproute2 keeps named namespaces.
const DIRECTORY: &str = "/run/netns";
/// The prefix of our namespaces' names. The owner's process id and a tag follow, separated by `-`.
pub const PREFIX: &str = "ccp";

/// The names that this process has bound and not yet removed.
static OWNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Whether this process may make namespaces; tests say why they skip.
pub fn available() -> bool {
    geteuid().is_root() && Path::new("/dev/net/tun").exists()
}

/// Returns what this process lacks to make namespaces, if anything.
pub fn missing() -> Option<&'static str> {
    (!available()).then_some("needs root and /dev/net/tun")
}

/// A network namespace with its loopback device up; gone when dropped, once no process is left in it.
#[derive(Debug)]
pub struct Namespace {
    name: Option<String>,
    fd: OwnedFd,
}

impl Namespace {
    /// Makes a namespace named `ccp-<pid>-<tag>`.
    ///
    /// # Errors
    /// A tag that is not 1 to [`MAX_TAG`] letters, digits, `-` or `_`; a name that is taken; the kernel's refusal.
    pub fn create(tag: &str) -> Result<Namespace> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if tag.is_empty() || tag.len() > MAX_TAG || !tag.chars().all(fits) {
            return Err(ConfigError::Tag { found: tag.to_owned() }.into());
        }
        let name = format!("{PREFIX}-{}-{tag}", std::process::id());
        prepare_directory()?;
        clean_at_exit();
        let path = path_of(&name);
        File::options().write(true).create_new(true).open(&path).context("create", path.display())?;
        owned(|names| names.insert(name.clone()));
        make(Some(&path)).map(|fd| Namespace { name: Some(name.clone()), fd }).inspect_err(|_| remove(&name))
    }

    /// Makes a namespace with no name: it leaves nothing behind even if this process is killed.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn anonymous() -> Result<Namespace> {
        Ok(Namespace { name: None, fd: make(None)? })
    }

    /// The calling thread's own namespace; dropping it removes nothing.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn current() -> Result<Namespace> {
        Ok(Namespace { name: None, fd: current_fd()? })
    }

    /// The namespace that a process is in, such as a command behind a link shell; dropping it removes nothing.
    ///
    /// # Errors
    /// No such process, or none that this user may look into.
    pub fn of_process(pid: u32) -> Result<Namespace> {
        let path = format!("/proc/{pid}/ns/net");
        let fd = File::open(&path).map(OwnedFd::from).context("open", path)?;
        Ok(Namespace { name: None, fd })
    }

    /// The namespace that `ip netns` lists under this name; dropping it removes nothing.
    ///
    /// # Errors
    /// No such namespace, or none that this user may enter.
    pub fn named(name: &str) -> Result<Namespace> {
        let path = path_of(name);
        let fd = File::open(&path).map(OwnedFd::from).context("open", path.display())?;
        Ok(Namespace { name: None, fd })
    }

    /// The name under which `ip netns` lists it; `None` for an anonymous one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns its device and inode, which tell it from all other namespaces.
    pub(crate) fn identity(&self) -> Result<(u64, u64)> {
        let found = nix::sys::stat::fstat(&self.fd).context("look at", self)?;
        Ok((found.st_dev, found.st_ino))
    }

    /// Runs `work` on a thread of its own inside the namespace and returns what it returns; a panic is passed on.
    /// Sockets opened inside stay in the namespace wherever they are used later.
    ///
    /// # Errors
    /// The thread cannot start, or the kernel does not let it in.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        on_own_thread(|| {
            setns(&self.fd, CloneFlags::CLONE_NEWNET).context("enter", self)?;
            Ok(work())
        })
    }

    /// Runs `work` as [`Namespace::run`] does, with the files of this namespace's devices in `/sys`, for it and for
    /// what it starts alone.
    ///
    /// # Errors
    /// The thread cannot start, or the kernel refuses to mount.
    pub fn run_with_sysfs<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        self.run(|| {
            unshare(CloneFlags::CLONE_NEWNS).context("unshare", "the mounts")?;
            let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).context("make private", "/")?;
            mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>)
                .context("mount", "/sys")?;
            Ok(work())
        })?
    }

    /// Makes the child that `command` starts live inside the namespace.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn enter<'c>(&self, command: &'c mut Command) -> Result<&'c mut Command> {
        let fd = self.fd.try_clone().context("duplicate the descriptor of", self)?;
        sys::enter_before_exec(command, fd);
        Ok(command)
    }
}

impl std::fmt::Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "namespace {}", self.name.as_deref().unwrap_or("(anonymous)"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            remove(name);
        }
    }
}

/// Removes this project's named namespaces whose owner is dead, and returns their names.
///
/// Where another process has taken the dead owner's process id, a namespace stays until that process ends.
pub fn clean_leftovers() -> Vec<String> {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return Vec::new() };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    let leftovers: Vec<String> = names.filter(|name| owner(name).is_some_and(is_dead)).collect();
    leftovers.iter().for_each(|name| remove(name));
    leftovers
}

/// Removes the namespaces that this process still owns, then lets SIGINT, SIGTERM and SIGHUP end it as they do by default.
/// For programs with no signal handling of their own; the others drop their [`Namespace`]s and need nothing.
///
/// # Errors
/// The handlers cannot be installed.
pub fn clean_on_signals() -> Result<()> {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    if INSTALLED.set(()).is_err() {
        return Ok(());
    }
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("handle", "signals")?;
    let wait = move || {
        for signal in signals.forever() {
            remove_owned();
            // Ends the process; should the kernel refuse, the next signal tries again.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new().name("ccp-signals".into()).spawn(wait).map(drop).map_err(Error::Thread)
}

/// Unshares on a thread of its own, brings `lo` up and binds the namespace to `path`.
fn make(path: Option<&PathBuf>) -> Result<OwnedFd> {
    on_own_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).context("make", "a network namespace")?;
        Netlink::open()?.set_up("lo", Vec::new())?;
        if let Some(path) = path {
            mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .context("bind", path.display())?;
        }
        current_fd()
    })
}

fn current_fd() -> Result<OwnedFd> {
    File::open("/proc/thread-self/ns/net").map(OwnedFd::from).context("open", "/proc/thread-self/ns/net")
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("ccp-netns".into())
            .spawn_scoped(scope, work)
            .map_err(Error::Thread)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes the directory a shared mount point, as `ip netns add` does and relies on; done once a boot.
fn prepare_directory() -> Result<()> {
    fs::create_dir_all(DIRECTORY).context("create", DIRECTORY)?;
    let directory = File::open(DIRECTORY).context("open", DIRECTORY)?;
    // iproute2 takes the same lock, so that only one process binds the directory to itself.
    let _lock = Flock::lock(directory, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .context("lock", DIRECTORY)?;
    let share =
        || mount(None::<&str>, DIRECTORY, None::<&str>, MsFlags::MS_SHARED | MsFlags::MS_REC, None::<&str>);
    match share() {
        Err(Errno::EINVAL) => {
            let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(DIRECTORY), DIRECTORY, None::<&str>, bind, None::<&str>).context("bind", DIRECTORY)?;
            share()
        }
        done => done,
    }
    .context("share the mount", DIRECTORY)
}

/// Unbinds and unlinks; what is not there is not missed.
fn remove(name: &str) {
    let path = path_of(name);
    let _ = umount2(&path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(&path);
    owned(|names| names.remove(name));
}

fn remove_owned() {
    for name in owned(std::mem::take) {
        remove(&name);
    }
}

/// Covers `std::process::exit`, which drops nothing.
fn clean_at_exit() {
    extern "C" fn hook() {
        remove_owned();
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| sys::at_exit(hook));
}

fn owned<T>(work: impl FnOnce(&mut BTreeSet<String>) -> T) -> T {
    work(&mut OWNED.lock().unwrap_or_else(PoisonError::into_inner))
}

fn path_of(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// The process id in one of our names.
fn owner(name: &str) -> Option<Pid> {
    let (pid, tag) = name.strip_prefix(PREFIX)?.strip_prefix('-')?.split_once('-')?;
    let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
    (!tag.is_empty()).then_some(Pid::from_raw(pid))
}

fn is_dead(pid: Pid) -> bool {
    kill(pid, None) == Err(Errno::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_owner() {
        assert_eq!(owner("ccp-12-link0-tx"), Some(Pid::from_raw(12)));
        for foreign in [
            "ccp",
            "ccp-",
            "ccp-12",
            "ccp-12-",
            "ccp--3-x",
            "ccp-0-x",
            "ccp-x-12",
            "other-12-x",
            "ccplane-1-x",
        ] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn tags_are_checked() {
        for tag in ["", "a/b", "..", "a b", &"x".repeat(MAX_TAG + 1)] {
            let refused = Namespace::create(tag).unwrap_err();
            assert!(matches!(refused, Error::Config(ConfigError::Tag { .. })), "{tag}: {refused}");
        }
    }
}
