//! The flags of `ccplane quic`.

use super::AgentPlace;
use ccplane_wait::Wake;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Move files over QUIC, steered by fold programs in user space: no privileges, no kernel support.
///
/// The side that sends runs the algorithm: the server of what is fetched, the client of what is put. A running agent
/// steers its flows by its rules, as it does those of other datapaths; where none runs, or where an algorithm is named,
/// the command has an agent of its own.
///
/// A transfer whose peer is gone fails within 13 s.
#[derive(Args, Debug)]
pub(crate) struct QuicArgs {
    #[command(subcommand)]
    pub(crate) command: QuicCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum QuicCommand {
    Serve(QuicServeArgs),
    Get(QuicGetArgs),
    Put(QuicPutArgs),
}

/// The arguments that `quic serve`, `quic get` and `quic put` have in common.
#[derive(Args, Debug)]
pub(crate) struct QuicSteering {
    #[command(flatten)]
    pub(crate) place: AgentPlace,

    /// Steer by this algorithm, in this process; see `ccplane agent --list-algorithms`.
    #[arg(long, value_name = "NAME", conflicts_with = "agent")]
    pub(crate) algorithm: Option<String>,

    /// Leave it to the agent of this machine, whether it runs already or not; without one, flows run Reno.
    #[arg(long)]
    pub(crate) agent: bool,

    /// Decide about packets on their way out by this algorithm, in this process: pias, size, size-agent (which flow first), plb, path,
    /// path-agent, least-loaded (which path, of which there is one here). Priorities leave as code points (DSCP): those of
    /// `datapath.packets.dscp` in the configuration, or else 46, 34, 26, 18, 10, 0, 0, 8. Without this, flows that are left to the agent
    /// of this machine are decided about there, where the configuration has `dscp` and names an algorithm.
    #[arg(long, value_name = "ALGORITHM")]
    pub(crate) packets: Option<String>,

    /// Write a qlog trace of the flows: window, pacing rate, RTT, who decides, and what policies decided.
    #[arg(long, value_name = "FILE")]
    pub(crate) qlog: Option<PathBuf>,

    /// One JSON object a line instead of text.
    #[arg(long)]
    pub(crate) json: bool,

    /// Memory for connections and their buffers, at most: what does not fit waits or is refused. k, M and G are powers of 1000,
    /// Ki, Mi and Gi of 1024.
    #[arg(long, value_name = "SIZE", default_value = "256Mi", value_parser = size)]
    pub(crate) memory: u64,

    #[cfg(feature = "dpdk")]
    #[command(flatten)]
    pub(crate) port: QuicPort,
}

/// "4G" or "512Mi" in bytes.
fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 7] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1));
    let number: u64 =
        number.parse().map_err(|_| "a size is a number, with k, M, G, T, Ki, Mi or Gi after it")?;
    number.checked_mul(bytes).ok_or_else(|| "too large".to_owned())
}

fn wake(text: &str) -> Result<Wake, String> {
    match text.parse::<Wake>().map_err(|error| error.to_string())? {
        Wake::Dispatch => Err("a server has no dispatcher: sleep, spin, busy or auto".to_owned()),
        wake => Ok(wake),
    }
}

/// A port that the kernel's network stack has no part in.
#[cfg(feature = "dpdk")]
#[derive(Args, Debug)]
pub(crate) struct QuicPort {
    /// Go over a DPDK port instead of a kernel socket: af_packet:IFACE, af_xdp:IFACE, tap:IFACE, pci:ADDRESS or
    /// vdev:DRIVER[,ARGUMENTS]. It polls: one core is busy.
    #[arg(long, value_name = "PORT", requires = "address")]
    pub(crate) port: Option<ccplane_dpdk::PortName>,

    /// An address of the port's own, which the kernel must not have; may be given again.
    #[arg(long, value_name = "ADDRESS/PREFIX", requires = "port")]
    pub(crate) address: Vec<ipnet::IpNet>,

    /// The router for addresses beyond the port's link; one of each address family.
    #[arg(long, value_name = "ADDRESS", requires = "port")]
    pub(crate) gateway: Vec<std::net::IpAddr>,

    /// The address of a neighbour that need not be asked for; may be given again.
    #[arg(long, value_name = "ADDRESS=MAC", requires = "port", value_parser = neighbour)]
    pub(crate) neighbour: Vec<(std::net::IpAddr, ccplane_dpdk::net::Mac)>,
}

#[cfg(feature = "dpdk")]
fn neighbour(text: &str) -> Result<(std::net::IpAddr, ccplane_dpdk::net::Mac), String> {
    let (address, mac) = text.split_once('=').ok_or("a neighbour is ADDRESS=MAC")?;
    let address = address.parse().map_err(|e| format!("{address}: {e}"))?;
    Ok((address, mac.parse().map_err(|e: ccplane_dpdk::net::MacError| e.to_string())?))
}

/// Serve a folder, until interrupted.
///
/// Nothing outside the folder is served, whatever a name or a symbolic link in it says. Nothing in it whose name begins
/// with a dot is served either. Anyone who reaches the address may fetch; only clients with the token or a known
/// certificate may put. The server's certificate is made for this run unless one is given; clients that have its
/// fingerprint can be sure of whom they talk to.
#[derive(Args, Debug)]
pub(crate) struct QuicServeArgs {
    #[command(flatten)]
    pub(crate) steering: QuicSteering,

    /// The folder whose files are served.
    #[arg(value_name = "FOLDER", default_value = ".")]
    pub(crate) folder: PathBuf,

    /// The address to listen on; `[::]:4433` for every address of this machine.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4433")]
    pub(crate) listen: String,

    /// The way to wait for datagrams: sleep; spin, for 50 us after each, or spin:MICROSECONDS; busy, which takes a core; auto,
    /// which polls when most come, within a tenth of a core, or auto:PERCENT.
    #[arg(long, value_name = "HOW", default_value = "sleep", value_parser = wake)]
    pub(crate) wake: Wake,

    /// Move to the core on which the system handles the datagrams, or away from it with `--wake spin` and `busy`.
    #[arg(long)]
    pub(crate) follow_cores: bool,

    /// Have the kernel poll the device for so long whenever the server waits, before it sleeps, and prefer that to interrupts
    /// (Linux 6.9). Refused where the kernel cannot.
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    #[cfg_attr(feature = "dpdk", arg(conflicts_with = "port"))]
    pub(crate) busy_poll: Option<u32>,

    /// Learn beside the flows, in this process, as `[learn]` in the configuration says: an algorithm with a policy goes on
    /// from the one that it ships. What is learned ends with the server, unless it is kept.
    #[arg(long, conflicts_with = "agent")]
    pub(crate) learn: bool,

    /// Keep promoted snapshots in this folder, and begin with one that an earlier server with this algorithm kept there.
    /// The folder is made if need be. A snapshot of another network than the algorithm's is not used. The folder must be
    /// this user's, and nobody else may write to it; where the configuration asks for signatures, kept snapshots need one,
    /// too (`ccplane snapshot sign`). Files that no server wrote there stay.
    #[arg(long, value_name = "FOLDER", requires = "learn")]
    pub(crate) keep: Option<PathBuf>,

    /// Begin also with a snapshot whose signature has expired, or is older than that of one that was taken.
    #[arg(long, requires = "keep")]
    pub(crate) allow_older: bool,

    /// Let clients put files there that have the token or a certificate that is known. A file appears when all of it has
    /// arrived, in place of one that had its name.
    #[arg(long, requires = "writers")]
    pub(crate) writable: bool,

    /// Let clients put that have the same token: a file that only you may read and write (0600), 16 to 4096 bytes. One with a random
    /// token is made where there is none.
    #[arg(long, value_name = "FILE", group = "writers", requires = "writable")]
    pub(crate) token: Option<PathBuf>,

    /// Let clients put that have the key of the certificate with this SHA-256, as `openssl x509 -fingerprint -sha256` prints it; may be
    /// given again.
    #[arg(long, value_name = "SHA256", group = "writers", requires = "writable")]
    pub(crate) writer: Vec<String>,

    /// All files in the folder together have at most so many bytes.
    #[arg(long, value_name = "SIZE", default_value = "16Gi", value_parser = size)]
    pub(crate) quota: u64,

    /// So many files may be in the folder.
    #[arg(long, value_name = "FILES", default_value_t = 10_000)]
    pub(crate) quota_files: u64,

    /// A file that is put has at most so many bytes.
    #[arg(long, value_name = "SIZE", default_value = "4Gi", value_parser = size)]
    pub(crate) max_file: u64,

    /// The certificate, PEM, with those that signed it after it.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// Be this user, by name or number, as soon as the address is taken and certificate, key and token are read: files are
    /// served, put and kept as that user may. Needs root. Without it a server that root starts becomes the owner of FOLDER; of a folder
    /// of root's it becomes `nobody` where it only reads and everybody may read what is served. Where that would not do it stays root and
    /// says why; `root` keeps root without a word.
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
}

/// The ways in which a client knows its server: by its fingerprint, by an authority, or not at all.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct QuicTrust {
    /// Trust the server whose certificate has this SHA-256, as `ccplane quic serve` prints it.
    #[arg(long, value_name = "SHA256")]
    pub(crate) fingerprint: Option<String>,

    /// Trust servers with a certificate for their name that an authority in this PEM file signed.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// Trust anyone: whoever sits on the path can read and change what is moved.
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// The arguments that `quic get` and `quic put` have in common.
#[derive(Args, Debug)]
pub(crate) struct QuicClientArgs {
    #[command(flatten)]
    pub(crate) steering: QuicSteering,

    #[command(flatten)]
    pub(crate) trust: QuicTrust,

    /// The server to connect to.
    #[arg(value_name = "HOST:PORT")]
    pub(crate) server: String,
}

/// Fetch a file from a server.
#[derive(Args, Debug)]
pub(crate) struct QuicGetArgs {
    #[command(flatten)]
    pub(crate) client: QuicClientArgs,

    /// The file's name in the folder that is served.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Write to FILE, `-` for standard output, instead of one of the same name here. A file is there when all of it has
    /// arrived, in place of one that had its name.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Send a file to a server.
#[derive(Args, Debug)]
pub(crate) struct QuicPutArgs {
    #[command(flatten)]
    pub(crate) client: QuicClientArgs,

    /// The file to send.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Its name there; its own unless given.
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Show the server that you have its token: the file that it was started with, or a copy. The token itself is not sent.
    #[arg(long, value_name = "FILE")]
    pub(crate) token: Option<PathBuf>,

    /// Show the server this certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
}
