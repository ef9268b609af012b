//! Processes that are killed, interrupted and forked while they wait.

use ccplane_testing::{PATIENCE, skipped, wait_until};
use ccplane_wait::{AwakeCores, CPU_DMA_LATENCY, Parker};
use std::fs::File;
use std::io::Read;
use std::os::unix::thread::JoinHandleExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Has the holder's process hold the cores awake.
const HOLDS: &str = "CCPLANE_WAIT_HOLDS";

/// The machine's limit of the latency of idle cores, microseconds.
fn limit_us() -> std::io::Result<i32> {
    let mut bytes = [0; 4];
    File::open(CPU_DMA_LATENCY)?.read_exact(&mut bytes)?;
    Ok(i32::from_ne_bytes(bytes))
}

/// The child of the test below; alone it does nothing.
#[test]
fn holder() {
    if std::env::var_os(HOLDS).is_some() {
        let mut cores = AwakeCores::open().unwrap();
        cores.event(1).unwrap();
        println!("held");
        // Until it is killed, or whoever would kill it has ended.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }
}

#[test]
fn cores_may_sleep_again_once_their_holder_is_killed() {
    if let Err(error) = AwakeCores::open() {
        return skipped("cores held awake", error);
    }
    let before = limit_us().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::holder", "--nocapture"]).env(HOLDS, "1").stdout(Stdio::piped());
    command.stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    wait_until("the limit of the child's", || limit_us().unwrap() == 0);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the limit of before", || limit_us().unwrap() == before);
}

/// Signals that were handled.
static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn signals_do_not_end_a_sleep() {
    let action = nix::sys::signal::SigAction::new(
        nix::sys::signal::SigHandler::Handler(count),
        nix::sys::signal::SaFlags::empty(),
        nix::sys::signal::SigSet::empty(),
    );
    // SAFETY: the handler adds to an atomic number, and no other test of this program uses the signal.
    unsafe { nix::sys::signal::sigaction(nix::sys::signal::Signal::SIGUSR2, &action) }.unwrap();
    let parker = Arc::new(Parker::new());
    let state = Arc::new(AtomicU32::new(0));
    let (sleeps, progress) = (Arc::clone(&parker), Arc::clone(&state));
    let sleeper = std::thread::spawn(move || {
        progress.store(1, Ordering::SeqCst);
        let called = sleeps.wait(PATIENCE);
        progress.store(2, Ordering::SeqCst);
        called
    });
    wait_until("the thread runs", || state.load(Ordering::SeqCst) == 1);
    for sent_before in 0..20 {
        // SAFETY: the thread has not been joined, so that its name is still its own.
        let sent = unsafe { libc::pthread_kill(sleeper.as_pthread_t(), libc::SIGUSR2) };
        assert_eq!(sent, 0);
        wait_until("the signal is handled", || HANDLED.load(Ordering::SeqCst) > sent_before);
    }
    assert_eq!(state.load(Ordering::SeqCst), 1, "it still sleeps");
    parker.call();
    assert!(sleeper.join().unwrap());
}

#[test]
fn a_forked_child_waits_on_its_own_copy() {
    let parker = Parker::new();
    // SAFETY: the child calls nothing but the kernel, through code that neither allocates nor locks, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        parker.call();
        let called = parker.wait(Duration::from_secs(1));
        let again = parker.wait(Duration::from_millis(1));
        // SAFETY: _exit(2) takes a number, and runs nothing of this process's.
        unsafe { libc::_exit(i32::from(!called || again)) }
    }
    let status = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None).unwrap();
    assert_eq!(status, nix::sys::wait::WaitStatus::Exited(nix::unistd::Pid::from_raw(child), 0));
    assert!(!parker.is_called(), "the child's call is the child's");
}
