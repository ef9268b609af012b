//! Threads wait for events: asleep, polling, through a dispatcher, or by a choice under a budget.
//!
//! | mode | while nothing comes | a wake-up costs |
//! |---|---|---|
//! | `sleep` | the thread blocks | a system call, and across cores tens of microseconds |
//! | `spin` | it polls for a while after the last event, then blocks | nothing within that while |
//! | `busy` | it polls | nothing, and a core |
//! | `dispatch` | it blocks, and one thread of its core polls for it and others | a call on the same core |
//! | `auto` | it polls in the part of each gap in which most events come, as far as a budget goes | nothing where that was right |
//!
//! [`Waiter`] makes the choices without I/O. Who waits asks it what to do, and does it: there is no loop here that knows sockets
//! or rings. [`Dispatcher`] is a thread, to which producers speak through marks ([`Ready`]) and which calls owners ([`Parker`]); where
//! the producers are other processes or the kernel, one looks at the queues instead ([`Watched`]).
//! [`affinity`], [`set_busy_poll`], [`BusyWait`] and [`AwakeCores`] are what the system can do beside.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod affinity;
mod atomic;
mod auto;
mod cost;
mod dispatch;
pub mod futex;
mod gaps;
mod latency;
#[cfg(all(loom, test))]
mod model;
mod parker;
mod plan;
mod ready;
mod sockets;
mod step;
mod sys;
mod waiter;
mod watch;

pub use auto::DWELL_NS;
pub use cost::{measure_sleeps, prepare, sleep_exactly, thread_time};
pub use dispatch::{Class, DispatchError, Dispatched, Dispatcher, FIFO_PRIORITY, begin};
pub use latency::{AwakeCores, CPU_DMA_LATENCY, LINGER_NS};
pub use parker::Parker;
pub use plan::{SleepCosts, Window};
pub use ready::{MAX_QUEUES, QueuesError, Ready};
pub use sockets::{BusyPollError, BusyWait, busy_poll_us, incoming_napi, set_busy_poll};
pub use step::{WaitStep, sleep_time};
pub use waiter::{Mode, ModeError, Waiter, Wake, WakeError};
pub use watch::{Look, Queues, Watched};
