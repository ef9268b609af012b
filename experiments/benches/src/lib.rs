//! The figures of `ccplane bench`: each a value beside its baseline, from one run that alternates between them.

mod ack;
mod agent;
mod bridge;
mod classify;
mod cores;
#[cfg(feature = "dpdk")]
mod dpdk;
mod emu;
mod env;
mod error;
mod figure;
mod host;
mod ipc;
mod learn;
mod learn_cpu;
pub mod mahimahi;
mod module;
mod nn;
mod nn_ebpf;
mod oracle;
mod plain;
mod predict;
mod prefer;
mod preload;
mod processor;
mod proof;
mod push;
mod push_snapshot;
mod quic;
mod quiet;
mod rss;
mod rtt;
mod scale;
mod sim;
mod steer;
mod tput;
mod v1;
mod wake;

pub use error::BenchError;
pub use figure::{FIGURE_VERSION, Figure};
pub use proof::{Proof, Unproven};
pub use scale::run_sink;
pub use wake::table::Table;

/// A benchmark that `ccplane bench` offers.
pub struct Bench {
    /// The name for `ccplane bench NAME`; its figures' names start with it.
    pub name: &'static str,
    /// The measured quantity and its baseline, for `--list`.
    pub what: &'static str,
    /// The approximate run time, seconds.
    pub seconds: u32,
    run: fn() -> Result<Vec<Figure>, BenchError>,
}

/// All benchmarks, in the order in which `--all` runs them.
pub const ALL: &[Bench] = &[
    Bench {
        name: "ack.ebpf.reno",
        what: "all that an ACK of a live flow costs under the compiled Reno program, against libccp's VM and the kernel's Reno; \
               the empty dispatcher, the program and its fold alone",
        seconds: 30,
        run: ack::ebpf,
    },
    Bench {
        name: "ack.vm.reno",
        what: "time per ACK of Reno in the reference VM, against libccp's VM",
        seconds: 4,
        run: ack::vm,
    },
    Bench {
        name: "ack.module.reno",
        what: "time per ACK of Reno in the kernel module's interpreter, in user space, against libccp's VM and the same program as BPF",
        seconds: 6,
        run: module::reno,
    },
    Bench {
        name: "push.ebpf.live",
        what: "a loaded program to the first ACK of a live flow on it, against a byte into a pipe and out of it",
        seconds: 10,
        run: push::live,
    },
    Bench {
        name: "push.ebpf.install",
        what: "compile, load, verify and install a program of 50 instructions, against one that returns at once",
        seconds: 2,
        run: push::install,
    },
    Bench {
        name: "tput.ebpf.reno",
        what: "unshaped throughput over a veth pair, 1 and 8 flows, against the kernel's Reno",
        seconds: 50,
        run: tput::run,
    },
    Bench {
        name: "classify.tc",
        what: "decisions about packets at tc egress: a packet of a decided flow, against an empty classifier; a decision, against its \
               network alone; throughput of 8 flows, against none",
        seconds: 60,
        run: classify::run,
    },
    Bench {
        name: "agent.rtt",
        what: "report, agent, update: over the kernel's channel and the unix socket, against portus",
        seconds: 40,
        run: rtt::run,
    },
    Bench {
        name: "ccp.bridge",
        what: "a portus agent's flow over our kernel datapath on an emulated link: throughput and mean round trip, against the same \
               agent over stock libccp; report, agent, portus, update against portus alone",
        seconds: 110,
        run: bridge::run,
    },
    Bench {
        name: "ipc.ring",
        what: "report, agent, update over rings in shared memory, in each way to wait: the rings alone, and through the agent's \
               core; beside unix datagrams, against portus, which polls where they do",
        seconds: 40,
        run: ipc::run,
    },
    Bench {
        name: "wake",
        what: "from an event to the first instruction of the thread that waits for it, p50, p99, p99.9 and its processor time: futex, \
               eventfd, epoll, io_uring, unix datagram, BPF ring, spin, dispatch and auto, on the same core and another one, with 20 ms \
               and 1 ms gaps and back to back, over 1 and 100 queues, against a pipe; auto against the best of them, and its share of a core \
               against its budget; with idle cores kept awake, against without; half a trip to portus, against one over pipes; \
               dispatchers of 10 to 1000 queues, against one that looks at each",
        seconds: 300,
        run: wake::run,
    },
    Bench {
        name: "wake.preload.redis",
        what: "Redis under its own benchmark, one request at a time, server and client under the library for LD_PRELOAD: requests per \
               second, latency, the server's processor time, against neither under it",
        seconds: 20,
        run: preload::redis,
    },
    Bench {
        name: "wake.preload.iperf3",
        what: "iperf3 over loopback, both ends under the library for LD_PRELOAD: throughput and processor time, against neither under it",
        seconds: 30,
        run: preload::iperf3,
    },
    Bench {
        name: "emu.ceiling",
        what: "one flow through mm-delay and mm-link with traces of 1000, 2000 and 4000 Mb/s, against the trace",
        seconds: 50,
        run: emu::ceiling,
    },
    Bench {
        name: "emu.const12",
        what: "what Cubic uses of a constant 12 Mb/s trace behind mm-delay 20, against all of it",
        seconds: 30,
        run: emu::const12,
    },
    Bench {
        name: "emu.delay",
        what: "error of the mean round trip through mm-delay 20, against the round trip itself",
        seconds: 15,
        run: emu::delay,
    },
    Bench {
        name: "agent.rss",
        what: "resident memory of the agent with 10,000 flows, against portus with as many",
        seconds: 10,
        run: rss::run,
    },
    Bench {
        name: "scale.flows",
        what: "1 to 10,000 live TCP flows over a veth pair under one agent: processor time per byte, against the kernel's Reno; the \
               agent's share, memory and lost reports; 10,000 opens and closes at once",
        seconds: 300,
        run: scale::run,
    },
    Bench {
        name: "host.tune",
        what: "what a search of 30 trials finds on modelled hosts, as a share of the best of all settings, by perceptrons against at \
               random",
        seconds: 120,
        run: host::models,
    },
    Bench {
        name: "host.sweep",
        what: "every setting of a veth pair of this host measured: searches of 30 trials on that, by perceptrons against at random; \
               the error of predictions on what was held out, against predicting the median",
        seconds: 200,
        run: host::swept,
    },
    Bench {
        name: "sim.speed",
        what: "simulated packets per second on one core, with the Reno program, against turns of a plain heap",
        seconds: 4,
        run: sim::speed,
    },
    Bench {
        name: "sim.env",
        what: "training steps per second of one Aurora flow on published links, its packets simulated, on one core, \
               against runs of its network alone",
        seconds: 20,
        run: env::run,
    },
    Bench {
        name: "learn.prefer",
        what: "decisions until MOCC has learned a preference that it has not seen, against learning it from nothing; what the \
               old ones lose",
        seconds: 300,
        run: prefer::run,
    },
    Bench {
        name: "sim.flows",
        what: "time per simulated packet and memory per flow, 1 to 1000 flows against one",
        seconds: 20,
        run: sim::flows,
    },
    Bench {
        name: "nn.simd.aurora",
        what: "one inference of a network of Aurora's size in user space, against plain int8 and float32 loops",
        seconds: 1,
        run: nn::simd,
    },
    Bench {
        name: "nn.ebpf.aurora",
        what: "one inference of a network of Aurora's size inside the kernel, against plain int8 and float32 loops in \
               user space; and all of (policy slot)",
        seconds: 2,
        run: nn_ebpf::run,
    },
    Bench {
        name: "nn.module.aurora",
        what: "one inference of a network of Aurora's size by the kernel module's code, in user space, against plain int8 and float32 \
               loops",
        seconds: 2,
        run: module::aurora,
    },
    Bench {
        name: "learn.native",
        what: "a PPO update of 2048 rows, 4 epochs, networks of Aurora's size, on one thread; one action of such a network",
        seconds: 2,
        run: learn::run,
    },
    Bench {
        name: "agent.learn.cpu",
        what: "share of a core that the learning thread takes while 8 live Aurora flows run, at rest and while it adapts, against the \
               agent's other threads",
        seconds: 90,
        run: learn_cpu::run,
    },
    Bench {
        name: "push.snapshot",
        what: "a snapshot pushed, from its bytes on, checked; the datapath's part; the first ACK of a live flow on it; decisions that saw \
               half of one",
        seconds: 20,
        run: push_snapshot::run,
    },
    Bench {
        name: "tput.quic",
        what: "goodput of a QUIC flow over loopback, under Reno's program and with a snapshot asked each 10 ms, against stock \
               quinn; of quinn's controllers under our driver; the program against quinn's NewReno under the same driver",
        seconds: 150,
        run: quic::tput,
    },
    Bench {
        name: "pace.quic",
        what: "the rate at which a QUIC flow leaves, against the one that its program decided; its bursts",
        seconds: 40,
        run: quic::pace,
    },
    Bench {
        name: "ack.quic.reno",
        what: "time per ACK of a QUIC flow: its engine under Reno's program, its controller, a decision by Aurora's snapshot",
        seconds: 5,
        run: quic::ack,
    },
    Bench {
        name: "quic.connections",
        what: "1000 connections of one endpoint at once, each of which fetches a file under Reno's program, against one that \
               moves as much",
        seconds: 30,
        run: quic::connections,
    },
    Bench {
        name: "quic.memory",
        what: "memory of a QUIC connection beyond quinn's own, over 1000 that have sent under a program, against stock \
               quinn-proto",
        seconds: 30,
        run: quic::memory,
    },
    #[cfg(feature = "dpdk")]
    Bench {
        name: "tput.dpdk",
        what: "goodput of a QUIC flow over DPDK ports on a veth pair, Reno's program, against kernel sockets on another",
        seconds: 60,
        run: dpdk::tput,
    },
    #[cfg(feature = "dpdk")]
    Bench {
        name: "tput.dpdk.ring",
        what: "goodput of a QUIC flow between DPDK ports that share a ring in memory, against stock quinn over loopback; the time of a \
               datagram over that ring, af_packet and af_xdp, against the shim alone",
        seconds: 50,
        run: dpdk::ring_tput,
    },
    #[cfg(feature = "dpdk")]
    Bench {
        name: "pace.dpdk",
        what: "the rate at which a QUIC flow leaves a DPDK port, against the one that its program decided",
        seconds: 80,
        run: dpdk::pace,
    },
    #[cfg(feature = "dpdk")]
    Bench {
        name: "ack.dpdk.reno",
        what: "time per ACK of Reno's program and of a decision by Aurora's snapshot, on a live QUIC flow over DPDK ports, against \
               an empty program and one that does not ask",
        seconds: 20,
        run: dpdk::ack,
    },
    Bench {
        name: "predict",
        what: "requests per second, also to a core, and latency of the prediction server, by each datapath (DPDK where it is linked) and by \
               Exp3 and Exp4, with one outstanding request and in open loops, for a client that polls an XDP socket, against blocking \
               sockets; in XDP also for one with an ordinary socket, and against an echo and the networks' own time; regret on inputs \
               that drift",
        seconds: 120,
        run: predict::run,
    },
    Bench {
        name: "emu.vs-mahimahi",
        what: "utilisation and queueing delay of CUBIC through ccplane's mm-delay and mm-link, against the real mahimahi's",
        seconds: 200,
        run: mahimahi::run,
    },
];

/// Runs the benchmark called `name`.
///
/// # Errors
/// [`BenchError`], also where the measured code did not run; nothing is left behind.
pub fn run(name: &str) -> Result<Vec<Figure>, BenchError> {
    let bench = ALL.iter().find(|b| b.name == name).ok_or_else(|| BenchError::Unknown(name.into()))?;
    let _quiet = quiet::Quiet::ask();
    let figures = (bench.run)()?;
    figures.iter().try_for_each(Figure::check)?;
    Ok(figures)
}
