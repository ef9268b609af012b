//! The command line: each flag of `ccplane` is defined here or in a module below.

mod distill;
mod evaluate;
mod host;
mod league;
mod manuals;
mod monitor;
mod new;
mod predict;
mod quic;
mod record;
mod snapshot;
mod snapshot_file;
mod trace;
mod train;

pub(crate) use distill::*;
pub(crate) use evaluate::*;
pub(crate) use host::*;
pub(crate) use league::*;
pub(crate) use manuals::*;
pub(crate) use monitor::*;
pub(crate) use new::*;
pub(crate) use predict::*;
pub(crate) use quic::*;
pub(crate) use record::*;
pub(crate) use snapshot::*;
pub(crate) use snapshot_file::*;
pub(crate) use trace::*;
pub(crate) use train::*;

pub(crate) use ccplane_agent::args::{AgentArgs, AgentPlace};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// The congestion control plane: one agent learns, many datapaths decide.
///
/// `ccplane agent` steers the TCP flows of this machine, and those of other processes' datapaths. Fold programs
/// that run inside the datapath decide on every ACK. Packets never wait for the agent: without it, flows go on
/// under a native algorithm.
///
/// Exit codes: 0 done; 1 something failed at run time; 2 the input (arguments, configuration, program, trace) is
/// wrong: the message says where, and nothing was changed.
#[derive(Parser, Debug)]
#[command(name = "ccplane", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Agent(AgentArgs),
    Flows(FlowsArgs),
    Top(TopArgs),
    Web(WebArgs),
    Qlog(QlogArgs),
    Status(StatusArgs),
    Programs(ProgramsArgs),
    Reload(ReloadArgs),
    Adopt(AdoptArgs),
    Snapshot(SnapshotArgs),
    Distill(DistillArgs),
    Stop(StopArgs),
    Prog(ProgArgs),
    New(NewArgs),
    Doctor(DoctorArgs),
    Host(HostArgs),
    MmDelay(MmDelayArgs),
    MmLink(MmLinkArgs),
    MmLoss(MmLossArgs),
    MmOnoff(MmOnoffArgs),
    MmImpair(MmImpairArgs),
    Demo(DemoArgs),
    Sim(SimArgs),
    Run(RunArgs),
    League(LeagueArgs),
    Evaluate(EvaluateArgs),
    Quic(Box<QuicArgs>),
    Record(RecordArgs),
    Predict(PredictArgs),
    Trace(TraceArgs),
    Train(TrainArgs),
    Bench(BenchArgs),
    #[command(hide = true)]
    Manuals(ManualsArgs),
}

/// The way in which a question to the agent is asked and its answer printed.
#[derive(Args, Debug)]
pub(crate) struct QueryArgs {
    #[command(flatten)]
    pub(crate) place: AgentPlace,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the flows that the agent steers, one line a flow and its figures below, as `ss -tin` does.
///
/// The figures are tcp_info's: cwnd and ssthresh in packets, rtt and minrtt in milliseconds, pacing_rate in bits per
/// second, bytes_acked, delivered, lost and unacked as the kernel counts them. `mode` says who steers the flow at the
/// moment: its program, or the native algorithm and why. If the agent does not answer, the figures are read from the
/// datapath itself, and the first line says so.
#[derive(Args, Debug)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    pub(crate) query: QueryArgs,

    /// List them again every SECONDS until interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    pub(crate) watch: Option<f64>,
}

/// Follow what happens to a flow, or to all, as a qlog trace.
///
/// Reports with their registers, changes of program and fields, window, RTT and pacing rate as they change. One flow's
/// trace ends with the flow. The agent never waits for a slow reader: what does not fit is dropped, and a
/// `ccplane:events_dropped` record says how much.
#[derive(Args, Debug)]
pub(crate) struct QlogArgs {
    #[command(flatten)]
    pub(crate) place: AgentPlace,

    /// The flow, by its number in `ccplane flows`.
    #[arg(value_name = "FLOW", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) flow: Option<u64>,

    /// Follow every flow, until interrupted.
    #[arg(long)]
    pub(crate) all: bool,

    /// Only flows of this kind of datapath, as `ccplane flows` names it.
    #[arg(long, value_name = "KIND")]
    pub(crate) datapath: Option<String>,

    /// Write to FILE instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Records separated by line feeds alone, for tools that do not read JSON text sequences (RFC 7464).
    #[arg(long)]
    pub(crate) ndjson: bool,
}

/// Show the agent's state: its process, rules, datapaths and counters.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

/// List the installed programs and the datapaths that hold them.
#[derive(Args, Debug)]
pub(crate) struct ProgramsArgs {
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

/// Give the running agent the rules of its configuration file anew.
///
/// Only the rules and the default algorithm change, and only new flows follow them. A file with a mistake is refused
/// as a whole.
#[derive(Args, Debug)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) place: AgentPlace,
}

/// Take over the running TCP flows of another congestion control.
///
/// New flows choose ccplane themselves (TCP_CONGESTION, or the sysctl net.ipv4.tcp_congestion_control); this is for
/// those that run already. From then on the agent's rules decide on them.
#[derive(Args, Debug)]
pub(crate) struct AdoptArgs {
    #[command(flatten)]
    pub(crate) place: AgentPlace,

    /// The congestion control whose flows to take, such as cubic; see `ss -ti`.
    #[arg(value_name = "CONGESTION_CONTROL")]
    pub(crate) from: String,

    /// Only those of this network namespace, such as /run/netns/NAME; without it, of every one that can be reached.
    #[arg(long, value_name = "PATH")]
    pub(crate) netns: Option<PathBuf>,
}

/// Stop the running agent gracefully and wait until it is gone.
#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) place: AgentPlace,

    /// Leave flows, programs and slots to the next agent, as before a restart; nothing is detached.
    #[arg(long)]
    pub(crate) leave: bool,
}

/// Look at a fold program without running it.
///
/// A fold program declares registers and says, in `when` clauses, what to do at each ACK. Both subcommands compile it
/// as the agent would; a mistake is shown with its line, column and what was expected, and ends with exit code 2.
#[derive(Args, Debug)]
pub(crate) struct ProgArgs {
    #[command(subcommand)]
    pub(crate) command: ProgCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ProgCommand {
    /// Compile a program and say which datapaths can run it.
    Check {
        /// The program's source, `-` for standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Judge it as portus's compiler does: its limits of registers and numbers, and locals that nothing reads.
        #[arg(long)]
        as_portus: bool,

        /// One JSON object on one line.
        #[arg(long)]
        json: bool,
    },
    /// Show what a program compiles to.
    Show {
        /// The program's source, `-` for standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// The intermediate representation, which every datapath's code is made from; the default.
        #[arg(long, group = "form")]
        ir: bool,

        /// CCP's bytecode, as libccp datapaths run it.
        #[arg(long, group = "form")]
        stock: bool,

        /// The BPF instructions for this machine's kernel; of a program that asks a policy also those that decide,
        /// where an algorithm has a policy in that slot.
        #[arg(long, group = "form")]
        bpf: bool,

        /// With --stock: one JSON object on one line, with the bytes of the INSTALL message and the place of each register.
        #[arg(long, requires = "stock")]
        json: bool,
    },
}

/// Say what this machine can run and what to do about the rest.
///
/// Exit code 0 if Linux TCP flows can be steered here, 1 if not.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) query: QueryArgs,

    /// Remove what a killed agent left: its flows get another congestion control, its pins and sockets go. Refused
    /// while an agent runs.
    #[arg(long)]
    pub(crate) clean: bool,
}

/// Run a command behind a link with a fixed delay, as mahimahi's mm-delay does.
///
/// The link shells nest in any order: `ccplane mm-delay 20 ccplane mm-link up.trace down.trace`.
#[derive(Args, Debug)]
#[command(after_help = SHELLS_HELP)]
pub(crate) struct MmDelayArgs {
    /// Delay of each direction, milliseconds.
    #[arg(value_name = "MILLISECONDS")]
    pub(crate) delay_ms: u64,

    #[command(flatten)]
    pub(crate) shell: ShellArgs,
}

/// Run a command behind a link that loses packets, as mahimahi's mm-loss does.
#[derive(Args, Debug)]
#[command(after_help = SHELLS_HELP)]
pub(crate) struct MmLossArgs {
    /// The direction that loses packets: of those that the command sends (uplink) or receives (downlink).
    #[arg(value_name = "DIRECTION")]
    pub(crate) direction: DirectionArg,

    /// The share of packets lost, 0 to 1, each independent of the others.
    #[arg(value_name = "RATE")]
    pub(crate) rate: String,

    #[command(flatten)]
    pub(crate) shell: SeededShellArgs,
}

/// Run a command behind a link that is on and off in turn, as mahimahi's mm-onoff does.
///
/// Each time is drawn from an exponential distribution. Packets that enter while the link is off are lost.
#[derive(Args, Debug)]
#[command(after_help = SHELLS_HELP)]
pub(crate) struct MmOnoffArgs {
    /// The direction that is on and off in turn: of packets that the command sends (uplink) or receives (downlink).
    #[arg(value_name = "DIRECTION")]
    pub(crate) direction: DirectionArg,

    /// The mean time on, seconds.
    #[arg(value_name = "MEAN-ON-TIME")]
    pub(crate) mean_on: String,

    /// The mean time off, seconds.
    #[arg(value_name = "MEAN-OFF-TIME")]
    pub(crate) mean_off: String,

    #[command(flatten)]
    pub(crate) shell: SeededShellArgs,
}

/// Run a command behind a link with jitter, reordering, copies, burst losses or a policer.
///
/// For what mahimahi has no shell for. Nests with the other link shells.
#[derive(Args, Debug)]
#[command(after_help = SHELLS_HELP)]
pub(crate) struct MmImpairArgs {
    /// The direction that is impaired: of packets that the command sends (uplink), receives (downlink), or both alike.
    #[arg(value_name = "DIRECTION")]
    pub(crate) direction: DirectionsArg,

    /// Delay each packet by a further time, uniform from 0 to this.
    #[arg(long, value_name = "MILLISECONDS")]
    pub(crate) jitter_ms: Option<f64>,

    /// Let packets overtake each other by their jitter; else a late one holds up those behind it.
    #[arg(long, requires = "jitter_ms")]
    pub(crate) jitter_reorders: bool,

    /// Hold back this share of packets for so long, so that later ones overtake them.
    #[arg(long, value_name = "SHARE,MILLISECONDS")]
    pub(crate) reorder: Option<String>,

    /// Deliver this share of packets twice.
    #[arg(long, value_name = "SHARE")]
    pub(crate) duplicate: Option<f64>,

    /// Drop what exceeds a token bucket.
    #[arg(long, value_name = "MBIT_PER_S,BUCKET_BYTES")]
    pub(crate) policer: Option<String>,

    /// Lose packets in bursts (Gilbert-Elliott): the chance of a burst to begin and to end with each packet. Then the
    /// chance of a packet to be lost in one (1 unless given) and outside (0 unless given).
    #[arg(long, value_name = "BEGIN,END[,LOSS_IN[,LOSS_OUT]]")]
    pub(crate) burst_loss: Option<String>,

    #[command(flatten)]
    pub(crate) shell: SeededShellArgs,
}

/// Run a command behind a link that delivers as traces say, as mahimahi's mm-link does.
///
/// Each line of a trace is a millisecond at which 1504 bytes can be delivered; at its end it starts over.
///
/// A QUEUE is infinite, droptail, drophead, priority (by the DSCP's class selector, 7 first), codel or pie; QUEUE_ARGS
/// are NAME=NUMBER separated by commas: packets and bytes (limits, of which all but infinite need one). For codel also
/// target and interval (5 and 100 unless given), for pie qdelay_ref and max_burst (needed), all four in milliseconds.
#[derive(Args, Debug)]
#[command(after_help = SHELLS_HELP)]
pub(crate) struct MmLinkArgs {
    /// The trace of what the command sends.
    #[arg(value_name = "UPLINK")]
    pub(crate) uplink: PathBuf,

    /// The trace of what the command receives.
    #[arg(value_name = "DOWNLINK")]
    pub(crate) downlink: PathBuf,

    /// Log every packet sent, in mahimahi's format.
    #[arg(short = 'u', long, value_name = "FILE")]
    pub(crate) uplink_log: Option<PathBuf>,

    /// Log every packet received, in mahimahi's format.
    #[arg(short = 'd', long, value_name = "FILE")]
    pub(crate) downlink_log: Option<PathBuf>,

    /// The uplink's queue, for packets that the command sends.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) uplink_queue: Option<String>,

    /// The downlink's queue, for packets that the command receives.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) downlink_queue: Option<String>,

    /// Arguments of the uplink's queue.
    #[arg(long, value_name = "QUEUE_ARGS")]
    pub(crate) uplink_queue_args: Option<String>,

    /// Arguments of the downlink's queue.
    #[arg(long, value_name = "QUEUE_ARGS")]
    pub(crate) downlink_queue_args: Option<String>,

    /// Do not start the traces over: the link delivers nothing after their end.
    #[arg(long)]
    pub(crate) once: bool,

    /// Print the uplink's throughput twice a second, as lines on standard error where mahimahi opens a window.
    #[arg(long)]
    pub(crate) meter_uplink: bool,

    /// Print the uplink's longest queueing delay twice a second.
    #[arg(long)]
    pub(crate) meter_uplink_delay: bool,

    /// Print the downlink's throughput.
    #[arg(long)]
    pub(crate) meter_downlink: bool,

    /// Print the downlink's longest queueing delay.
    #[arg(long)]
    pub(crate) meter_downlink_delay: bool,

    /// Print throughput and longest queueing delay of both directions.
    #[arg(long)]
    pub(crate) meter_all: bool,

    #[command(flatten)]
    pub(crate) shell: SeededShellArgs,
}

/// The arguments that all link shells have in common.
#[derive(Args, Debug)]
pub(crate) struct ShellArgs {
    /// Run a command line in the outside namespace while the shell lives, such as `iperf3 -s`. What it prints goes to
    /// standard error.
    #[arg(long, value_name = "COMMAND_LINE")]
    pub(crate) outside: Option<String>,

    /// The command and its arguments; the user's shell if left out.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

/// The arguments of link shells whose links have random parts.
#[derive(Args, Debug)]
pub(crate) struct SeededShellArgs {
    /// Decides what is random: the same packets in the same order have the same fates.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) shell: ShellArgs,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub(crate) enum DirectionArg {
    Uplink,
    Downlink,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub(crate) enum DirectionsArg {
    Uplink,
    Downlink,
    Both,
}

const SHELLS_HELP: &str = "\
The command's network is the link; its far end has the address $MAHIMAHI_BASE. As root that is the caller's own network. An
ordinary user needs no setuid and changes nothing on the host: the shell makes a user namespace, and its outside is a network
of its own with only loopback, where --outside runs a server. Needs a /dev/net/tun that the user may open.";

/// Watch ccplane's own algorithm, CUBIC and BBR on four kinds of link: the shipped plan `demo`, with a picture of who does best.
///
/// The three send at the same time, each over a link of its own: a wired one whose speed steps, a cellular one, one beside
/// somebody else's CUBIC, a lossy one. A table shows their flows meanwhile; at the end one HTML page shows who did best where, and
/// what ours decided. As root ours runs in the kernel; where that cannot be it runs under QUIC, and where no link can be made all
/// three are simulated: the page says so. Ctrl-C ends it early; a page is made of the links that are done. CCPLANE_LOG=info makes
/// the agent say on standard error what it does.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) place: AgentPlace,

    /// A recorded cellular trace, in mahimahi's format; without it one that comes with ccplane.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Length of each link's run; without it as long as the plan says.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(2..=600))]
    pub(crate) seconds: Option<u64>,

    /// Run our flows under QUIC in this process, as happens by itself where the kernel's flows cannot be steered: without
    /// root, or without BPF.
    #[arg(long)]
    pub(crate) quic: bool,

    /// The folder to write the report to; made if it is not there.
    #[arg(long, value_name = "DIR", default_value = "demo-report")]
    pub(crate) report: PathBuf,

    /// Print the figures as one JSON object; the table goes to standard error.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run algorithms in the simulator: a bulk flow of each over one link, in virtual time.
///
/// Deterministic: the same arguments give the same figures. RTTs are round-trip times, queueing included.
#[derive(Args, Debug)]
pub(crate) struct SimArgs {
    /// The algorithms; all if none is named (`ccplane agent --list-algorithms`).
    #[arg(value_name = "ALGORITHM")]
    pub(crate) algorithms: Vec<String>,

    /// The link's rate, megabits per second.
    #[arg(long, value_name = "MBIT_PER_S", default_value_t = 24.0, value_parser = rate)]
    pub(crate) rate_mbit: f64,

    /// A trace in mahimahi's format, in place of a rate.
    #[arg(long, value_name = "FILE", conflicts_with = "rate_mbit")]
    pub(crate) trace: Option<PathBuf>,

    /// The delay of each direction, milliseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub(crate) delay_ms: u64,

    /// Packets that wait at the link, at most.
    #[arg(long, value_name = "PACKETS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) queue_packets: u32,

    /// Share of packets that the link loses at random, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub(crate) loss: f64,

    /// The length of the simulation, seconds of virtual time.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) duration_s: u64,

    /// Flows of each algorithm. More than one share the link.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) flows: u16,

    /// All flows share one link; without it each algorithm's flow has one of its own.
    #[arg(long)]
    pub(crate) shared: bool,

    /// The time between two samples, milliseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) sample_ms: u64,

    /// Seeds the random losses; the same seed loses the same packets.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Write an HTML report to this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run a plan: algorithms on links, alternating and repeated, into one results file and one HTML report.
///
/// A plan is TOML; ten lines are enough (`ccplane run --list` names those that come with ccplane, `--show NAME` prints
/// one). It is checked before anything starts. Each run is recorded as it ends, in RESULTS/NAME.jsonl: a plan that was
/// interrupted goes on where it stopped when it is run again. A run that fails is recorded and tried once more. Needs
/// root for contenders in the kernel, none for simulated ones. Exit code 0 if every run ended well, 1 if one stayed
/// failed, 2 if the plan is wrong, 130 if it was interrupted.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) place: AgentPlace,

    /// The plan: a file, or the name of one that comes with ccplane.
    #[arg(value_name = "PLAN", required_unless_present_any = ["list", "show"])]
    pub(crate) plan: Option<String>,

    /// Say which plans come with ccplane.
    #[arg(long, conflicts_with = "plan")]
    pub(crate) list: bool,

    /// Print a plan that comes with ccplane, to start one's own from.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["plan", "list"])]
    pub(crate) show: Option<String>,

    /// Check the plan, say what it would run, and exit.
    #[arg(long)]
    pub(crate) check: bool,

    /// The folder to write the results to; made if it is not there.
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub(crate) results: PathBuf,

    /// The folder to write the report to, if not beside the results.
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,

    /// Run nothing: draw the plots of one scenario of the results that are there. Reports of more than 1,000 runs come without plots.
    #[arg(long, value_name = "SCENARIO", conflicts_with_all = ["check", "force", "json"])]
    pub(crate) plots: Option<String>,

    /// Repeats, in place of the plan's. Raised, the runs that are there count.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeats: Option<u32>,

    /// Length of a run, in place of the plan's; all its other times keep their share of it.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=36_000))]
    pub(crate) duration: Option<u64>,

    /// A recorded trace, in mahimahi's format, to take where the plan says `cellular.up`, which is synthetic.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Ask a fabric's plan of this machine's own flows, over emulated links; as root. The results are called NAME-live.
    #[arg(long)]
    pub(crate) live: bool,

    /// One repeat of at most five seconds each, or of few flows, to try a plan; the results are called NAME-quick.
    #[arg(long, conflicts_with_all = ["repeats", "duration"])]
    pub(crate) quick: bool,

    /// Start anew where there are results of another plan; they are kept as NAME.jsonl.old.
    #[arg(long)]
    pub(crate) force: bool,

    /// One JSON object on one line: what was run, where it is, what the comparisons came to.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure ccplane beside its baselines.
///
/// Each figure comes from one run that alternates with its baseline, and is printed as it is measured. Ratios travel
/// between machines better than times do. Behind the figures of `wake` its cells follow as a table.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// The figures to measure, by the names that `--list` prints.
    #[arg(value_name = "NAME", required_unless_present_any = ["all", "list", "sink"])]
    pub(crate) names: Vec<String>,

    /// Receive for `scale.flows`, which starts this.
    #[arg(long, hide = true, exclusive = true)]
    pub(crate) sink: bool,

    /// Measure every figure.
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,

    /// Say what there is, what it measures and how long it takes.
    #[arg(long, conflicts_with_all = ["names", "all"])]
    pub(crate) list: bool,

    /// One JSON object a figure, each on one line.
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw the cells of `wake` as SVG into FILE.
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    pub(crate) plot: Option<PathBuf>,
}

/// Parses a number within a range, which an error says.
fn within(text: &str, what: &str, low: f64, high: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (low..=high).contains(number));
    number.ok_or_else(|| format!("{what}, {low} to {high}"))
}

fn rate(text: &str) -> Result<f64, String> {
    within(text, "Mb/s", 0.001, 1_000_000.0)
}

fn share(text: &str) -> Result<f64, String> {
    within(text, "a share", 0.0, 1.0)
}

/// For a trace: a millisecond to a day.
fn seconds_long(text: &str) -> Result<f64, String> {
    within(text, "seconds", 0.001, 86_400.0)
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, "seconds", 0.1, 3600.0)
}
