//! The mode, from the environment, and the counts of served and unserved waits.

use ccplane_wait::{Wake, WakeError};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable that names the mode.
const VARIABLE: &str = "CCPLANE_WAKE";
/// Asks for the counts at the end.
const COUNTS: &str = "CCPLANE_WAKE_COUNTS";
/// Has the first call that is not served end the program.
const STRICT: &str = "CCPLANE_WAKE_STRICT";
/// The exit code of a program whose mode or call is refused.
const REFUSED: i32 = 2;
/// Share of a core that `auto` may poll where nothing is said, percent.
const DEFAULT_PERCENT: u8 = 10;

static MODE: OnceLock<Wake> = OnceLock::new();
/// Waits that polled, over all threads.
pub(crate) static POLLS: AtomicU64 = AtomicU64::new(0);
/// Waits that slept, over all threads.
pub(crate) static SLEEPS: AtomicU64 = AtomicU64::new(0);

static IS_STRICT: OnceLock<bool> = OnceLock::new();

/// A call that may wait and is not served, with how often it was made.
pub(crate) struct Unserved {
    name: &'static str,
    calls: AtomicU64,
}

pub(crate) static RECEIVE_ALL: Unserved = Unserved::new("recv with MSG_WAITALL");
pub(crate) static WRITE: Unserved = Unserved::new("write for want of room");
pub(crate) static READV: Unserved = Unserved::new("readv");
pub(crate) static ACCEPT: Unserved = Unserved::new("accept");
pub(crate) static RECVMMSG: Unserved = Unserved::new("recvmmsg");
pub(crate) static PSELECT: Unserved = Unserved::new("pselect");
pub(crate) static EPOLL_PWAIT2: Unserved = Unserved::new("epoll_pwait2");

/// All of them, as they are listed at the end.
static UNSERVED: [&Unserved; 7] = [&RECEIVE_ALL, &WRITE, &READV, &ACCEPT, &RECVMMSG, &PSELECT, &EPOLL_PWAIT2];

impl Unserved {
    const fn new(name: &'static str) -> Unserved {
        Unserved { name, calls: AtomicU64::new(0) }
    }

    /// Notes one call; it ends the program where that was asked for.
    pub(crate) fn note(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if IS_STRICT.get().is_some_and(|is_strict| *is_strict) {
            eprintln!("ccplane: {} is not served, and {STRICT} is set", self.name);
            std::process::exit(REFUSED);
        }
    }
}

/// The mode of this process.
pub(crate) fn mode() -> Wake {
    *MODE.get_or_init(|| match std::env::var(VARIABLE) {
        Err(std::env::VarError::NotPresent) => Wake::Auto { cpu_percent: DEFAULT_PERCENT },
        Ok(text) => parse(&text).unwrap_or_else(|why| refuse(&text, &why)),
        Err(std::env::VarError::NotUnicode(text)) => refuse(&text.to_string_lossy(), "not text"),
    })
}

fn parse(text: &str) -> Result<Wake, String> {
    let why = match text.parse::<Wake>() {
        Ok(Wake::Busy) => "signals would not end a call that polls for ever; spin or auto serve".to_owned(),
        Ok(Wake::Dispatch) => "an unmodified program has no queues to mark; spin or auto serve".to_owned(),
        Ok(wake) => return Ok(wake),
        Err(WakeError::Mode(_)) => "expected sleep, spin:US or auto:PERCENT".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(why)
}

fn refuse(text: &str, why: &str) -> ! {
    eprintln!("ccplane: {VARIABLE}={text}: {why}");
    std::process::exit(REFUSED)
}

/// Runs when the program starts: a mode that is refused ends it before it has done anything.
extern "C" fn start() {
    mode();
    IS_STRICT.get_or_init(|| std::env::var_os(STRICT).is_some());
}

/// Runs when the program ends.
extern "C" fn end() {
    if std::env::var_os(COUNTS).is_some() {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        eprintln!("ccplane: {} waits polled, {} slept", count(&POLLS), count(&SLEEPS));
        let made =
            UNSERVED.iter().map(|call| (call.name, count(&call.calls))).filter(|(_, calls)| *calls > 0);
        let made: Vec<String> = made.map(|(name, calls)| format!("{calls} of {name}")).collect();
        if !made.is_empty() {
            eprintln!("ccplane: calls that were not served: {}", made.join(", "));
        }
    }
}

#[used]
#[allow(unsafe_code)]
// SAFETY: the loader calls what the section lists, once, and ignores what it is called with.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[allow(unsafe_code)]
// SAFETY: as above, when the program ends.
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
