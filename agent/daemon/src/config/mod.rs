//! The agent's configuration: TOML, parsed once at the edge.
//!
//! [`DEFAULT_TOML`] is what users read; [`Config::default`] is what the code uses. A test holds them equal, and
//! holds every key documented.

mod arm;
mod packets;
mod value;

pub use arm::Arm;
pub use packets::{Packets, PathConfig};
pub use value::{Bounded, Cores, Key, Ports, Prefix, PrefixError, Switch};

use ccplane_algs::{ArmsError, MAX_ARMS};
use ccplane_bridge::PORTUS;
use ccplane_core::{MAX_RULES, NATIVE, Necessity, PushRules, Rules};
use ccplane_files::Bound;
use ccplane_files::document::{DocumentError, Problem};
use ccplane_snapshot::Trust;
use ccplane_wait::{Mode, affinity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// The default configuration with its documentation.
pub const DEFAULT_TOML: &str = include_str!("default.toml");
/// The file that the agent reads when none is named; it need not exist.
pub const DEFAULT_PATH: &str = "/etc/ccplane.toml";
/// The mount point of the kernel's cgroup (v2) tree.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// The bound of a configuration file.
const CONFIGURATION: Bound = Bound { what: "a configuration", bytes: 1 << 20 };

/// The bound of a file of cores: as many as there can be, each with a separator.
const CORES_FILE: Bound = Bound { what: "a list of cores", bytes: 6 * (Cores::MAX + 1) };
const CORES_FIELD: &str = "agent.cores_file";

/// The version of the configuration's format that this agent reads.
pub const VERSION: u64 = 1;

/// The whole file. The keys are documented in [`DEFAULT_TOML`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Config {
    pub version: u64,
    pub default_algorithm: String,
    pub log: String,
    pub control: Control,
    pub agent: Agent,
    pub limits: Limits,
    pub datapath: Datapaths,
    pub metrics: MetricsConfig,
    pub learn: Learn,
    pub portfolio: Portfolio,
    pub portus: Portus,
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            version: VERSION,
            default_algorithm: "cubic".to_owned(),
            log: "info".to_owned(),
            control: Control::default(),
            agent: Agent::default(),
            limits: Limits::default(),
            datapath: Datapaths::default(),
            metrics: MetricsConfig::default(),
            learn: Learn::default(),
            portfolio: Portfolio::default(),
            portus: Portus::default(),
            rules: Vec::new(),
        }
    }
}

/// Section `[control]`: the control socket.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Control {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    pub max_clients: Bounded<1, 1024>,
    pub timeout_ms: Bounded<10, 60_000>,
}

impl Default for Control {
    fn default() -> Control {
        Control {
            socket: None,
            max_clients: const { Bounded::new(16) },
            timeout_ms: const { Bounded::new(2000) },
        }
    }
}

/// Section `[agent]`: periods of the datapath loops.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Agent {
    pub heartbeat_timeout_ms: Bounded<20, 60_000>,
    pub wake: Mode,
    pub spin_us: Bounded<1, 1_000_000>,
    pub wake_cpu_percent: Bounded<1, 100>,
    pub dispatch_fifo: bool,
    pub cores: Cores,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores_file: Option<PathBuf>,
    pub keep_cores_awake: bool,
    pub follow_cores: bool,
    pub poll_interval_ms: Bounded<1, 1000>,
}

impl Default for Agent {
    fn default() -> Agent {
        Agent {
            heartbeat_timeout_ms: const { Bounded::new(500) },
            wake: Mode::Sleep,
            spin_us: const { Bounded::new(50) },
            wake_cpu_percent: const { Bounded::new(10) },
            dispatch_fifo: false,
            cores: Cores::default(),
            cores_file: None,
            keep_cores_awake: false,
            follow_cores: false,
            poll_interval_ms: const { Bounded::new(20) },
        }
    }
}

impl Agent {
    /// Takes the cores from the file that is named, where there is one.
    fn read_cores(&mut self) -> Result<(), Problem> {
        let Some(file) = self.cores_file.as_deref().filter(|file| file.exists()) else { return Ok(()) };
        let text = ccplane_files::read_text(file, CORES_FILE);
        let text = text.map_err(|error| Problem::new(CORES_FIELD, error))?;
        let refused =
            |error: serde_json::Error| Problem::new(CORES_FIELD, format_args!("{}: {error}", file.display()));
        self.cores = serde_json::from_str(&text).map_err(refused)?;
        Ok(())
    }

    /// Checks that the process may run on the cores that the loops are to keep to.
    fn check_cores(&self) -> Result<(), Problem> {
        let from_file = self.cores_file.as_deref().is_some_and(Path::exists);
        let field = if from_file { CORES_FIELD } else { "agent.cores" };
        let allowed = affinity::cores().map_err(|error| Problem::new(field, error))?;
        match self.cores.get().iter().find(|core| !allowed.contains(core)) {
            None => Ok(()),
            Some(core) => {
                let allowed: Vec<String> = allowed.iter().map(usize::to_string).collect();
                let allowed = allowed.join(", ");
                Err(Problem::new(
                    field,
                    format_args!("core {core} is none of those that this process may run on: {allowed}"),
                ))
            }
        }
    }
}

/// Section `[limits]`: bounds of flows and memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Limits {
    pub max_flows: Bounded<1, 65_536>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { max_flows: const { Bounded::new(65_536) } }
    }
}

/// Section `[datapath]`: the datapaths that are attached.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Datapaths {
    pub ebpf: Ebpf,
    pub module: Module,
    pub packets: Packets,
    pub unix: Unix,
    pub ccp_kernel: CcpKernel,
}

/// Section `[datapath.ebpf]`: the kernel's TCP.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Ebpf {
    pub mode: Switch,
    pub name: String,
    pub run_dir: PathBuf,
    pub max_flows: Bounded<1, { ccplane_ebpf::MAX_FLOWS as u64 }>,
    pub sample_interval_ms: Bounded<1, 10_000>,
    pub handback: String,
}

impl Default for Ebpf {
    fn default() -> Ebpf {
        Ebpf {
            mode: Switch::Auto,
            name: "ccplane".to_owned(),
            run_dir: PathBuf::from("/run/ccplane"),
            max_flows: const { Bounded::new(4096) },
            sample_interval_ms: const { Bounded::new(10) },
            handback: "cubic".to_owned(),
        }
    }
}

/// Section `[datapath.module]`: the kernel's TCP under the kernel module.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Module {
    pub mode: Switch,
    pub device: PathBuf,
}

impl Default for Module {
    fn default() -> Module {
        Module { mode: Switch::Auto, device: PathBuf::from(ccplane_module::DEFAULT_DEVICE) }
    }
}

impl Module {
    /// Whether the agent is to use the module: always, or because it is loaded.
    pub fn is_wanted(&self) -> bool {
        match self.mode {
            Switch::On => true,
            Switch::Auto => self.device.exists(),
            Switch::Off => false,
        }
    }
}

/// Datapaths in other processes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Unix {
    pub mode: OnOff,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    pub max_peers: Bounded<1, 1024>,
    pub transport: Transport,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spin_us: Option<Bounded<1, 1_000_000>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_cpu_percent: Option<Bounded<1, 100>>,
}

impl Default for Unix {
    fn default() -> Unix {
        Unix {
            mode: OnOff::On,
            socket: None,
            max_peers: const { Bounded::new(64) },
            transport: Transport::Ring,
            wake: None,
            spin_us: None,
            wake_cpu_percent: None,
        }
    }
}

/// Section `[datapath.ccp_kernel]`: CCP's own kernel module.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct CcpKernel {
    pub link: CcpLink,
    pub device: PathBuf,
}

impl Default for CcpKernel {
    fn default() -> CcpKernel {
        CcpKernel { link: CcpLink::Off, device: PathBuf::from("/dev/ccpkp") }
    }
}

/// The link to ccp-kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum CcpLink {
    Off,
    Netlink,
    Device,
}

/// Section `[metrics]`: the Prometheus endpoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct MetricsConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    pub allow_remote: bool,
    pub max_clients: Bounded<1, 64>,
    pub timeout_ms: Bounded<10, 60_000>,
}

impl Default for MetricsConfig {
    fn default() -> MetricsConfig {
        MetricsConfig {
            listen: None,
            allow_remote: false,
            max_clients: const { Bounded::new(4) },
            timeout_ms: const { Bounded::new(2000) },
        }
    }
}

/// Learning beside live flows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Learn {
    pub mode: LearnMode,
    pub batch_ms: Bounded<100, 1000>,
    pub cpu_percent: Bounded<1, 100>,
    pub burst_cpu_percent: Bounded<1, 100>,
    pub alpha_percent: Bounded<0, 100>,
    pub necessity: NecessityName,
    pub canary_percent: Bounded<1, 99>,
    pub margin_percent: Bounded<0, 100>,
    pub settle_ms: Bounded<0, 10_000>,
    pub noise_percent: Bounded<0, 400>,
    pub pin: bool,
    pub require_signed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Key>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_log: Option<PathBuf>,
}

impl Default for Learn {
    fn default() -> Learn {
        Learn {
            mode: LearnMode::Twin,
            batch_ms: const { Bounded::new(200) },
            cpu_percent: const { Bounded::new(10) },
            burst_cpu_percent: const { Bounded::new(90) },
            alpha_percent: const { Bounded::new(5) },
            necessity: NecessityName::Mean,
            canary_percent: const { Bounded::new(25) },
            margin_percent: const { Bounded::new(5) },
            settle_ms: const { Bounded::new(1600) },
            noise_percent: const { Bounded::new(20) },
            pin: false,
            require_signed: false,
            keys: Vec::new(),
            state: None,
            folder: None,
            decision_log: None,
        }
    }
}

/// The `[portfolio]` section: the arms, the folder of the memory file, and the seconds between two writes of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Portfolio {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arms: Vec<Arm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    pub save_s: Bounded<1, 3600>,
}

impl Default for Portfolio {
    fn default() -> Portfolio {
        Portfolio { arms: Vec::new(), folder: None, save_s: const { Bounded::new(60) } }
    }
}

/// Section `[portus]`: the agent of the algorithm "portus".
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Portus {
    pub socket: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own: Option<PathBuf>,
    pub silence_ms: Bounded<100, 60_000>,
    pub max_flows: Bounded<1, 65_536>,
}

impl Default for Portus {
    fn default() -> Portus {
        Portus {
            socket: PathBuf::from("/tmp/ccp/portus"),
            own: None,
            silence_ms: const { Bounded::new(ccplane_bridge::SILENCE_US / 1000) },
            max_flows: const { Bounded::new(ccplane_bridge::MAX_FLOWS as u64) },
        }
    }
}

impl Learn {
    /// The same, but on, also where the agent itself is not to learn: for flows that are there to show learning.
    #[must_use]
    pub fn on(&self) -> Learn {
        let mode = if self.mode == LearnMode::Off { LearnMode::Twin } else { self.mode };
        Learn { mode, pin: false, ..self.clone() }
    }

    /// Standard deviation of the exploration noise on actions. Only learning from live flows needs any.
    pub fn noise(&self) -> f64 {
        if matches!(self.mode, LearnMode::Live | LearnMode::Outside) {
            self.noise_percent.get() as f64 / 100.0
        } else {
            0.0
        }
    }

    /// Returns the push rules in the core's units.
    pub fn push_rules(&self) -> PushRules {
        let share = |percent: u64| percent as f64 / 100.0;
        PushRules {
            alpha: share(self.alpha_percent.get()),
            necessity: match self.necessity {
                NecessityName::Mean => Necessity::Mean,
                NecessityName::Min => Necessity::Min,
            },
            canary_share: share(self.canary_percent.get()),
            margin: share(self.margin_percent.get()),
            settle_us: self.settle_ms.get() * 1000,
            pin: self.pin,
            noise_q16: (self.noise() * 65536.0) as u32,
        }
    }

    /// Returns whose snapshots are admitted, whichever way they come.
    pub fn trust(&self) -> Trust {
        if self.require_signed {
            Trust::SignedBy(self.keys.iter().map(Key::get).collect())
        } else {
            Trust::Any
        }
    }
}

/// Source of the experience that policies are improved with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LearnMode {
    /// A simulation of the flows' own link.
    Twin,
    /// The decisions of live flows, with exploration noise on their actions.
    Live,
    /// A process of its own, which hears of live flows and offers policies.
    Outside,
    Off,
}

impl LearnMode {
    /// Returns the name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            LearnMode::Twin => "twin",
            LearnMode::Live => "live",
            LearnMode::Outside => "outside",
            LearnMode::Off => "off",
        }
    }
}

/// Measure of the difference between two policies that makes a push necessary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NecessityName {
    /// The mean over the last states.
    Mean,
    Min,
}

/// Transports to datapaths in other processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Rings in shared memory, where the datapath takes them.
    Ring,
    Socket,
}

/// Whether a part that always can be used is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnOff {
    On,
    Off,
}

/// Assignment of an algorithm to the flows for which all conditions hold.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of a registered algorithm.
    pub algorithm: String,
    /// Path of a cgroup below the cgroup root, matched exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// The sender's port or ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_port: Option<Ports>,
    /// The receiver's port or ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_port: Option<Ports>,
    /// The congestion control that the flow's owner asked its datapath for by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<String>,
    /// The prefix in which the receiver's address lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Prefix>,
    /// The algorithm's parameters; those that are left out have their defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, i64>,
}

impl Rule {
    fn is_unconditional(&self) -> bool {
        self.cgroup.is_none()
            && self.local_port.is_none()
            && self.remote_port.is_none()
            && self.requested.is_none()
            && self.remote.is_none()
    }
}

impl Config {
    /// The names of rules by which sockets may choose the kernel datapath besides its own, in their order.
    pub(crate) fn requests(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for name in self.rules.iter().filter_map(|rule| rule.requested.as_ref()) {
            let is_new =
                ccplane_ebpf::is_name(name) && *name != self.datapath.ebpf.name && !names.contains(name);
            if is_new && names.len() < ccplane_ebpf::MAX_REQUESTS {
                names.push(name.clone());
            }
        }
        names
    }

    /// Reads `path`, or [`DEFAULT_PATH`] if there is one, or takes the defaults. `algorithms` are the names that
    /// rules may use; `None` leaves that to the agent.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or breaks a rule: with its line, column and field.
    pub fn load(path: Option<&Path>, algorithms: Option<&[&str]>) -> Result<Config, DocumentError> {
        let (file, text) = Config::source(path)?;
        Config::parse(file, &text, algorithms)
    }

    /// Names the line and column of a problem in the file that [`Config::load`] reads.
    pub fn refusal(path: Option<&Path>, problem: Problem) -> DocumentError {
        let (file, text) = match Config::source(path) {
            Ok(source) => source,
            Err(error) => return error,
        };
        let placed = match ccplane_files::document::parse(&text) {
            Ok(document) => ccplane_files::document::locate(&document, problem),
            Err(placed) => placed,
        };
        DocumentError::at(file, &text, placed)
    }

    fn source(path: Option<&Path>) -> Result<(&Path, String), DocumentError> {
        let path = match path {
            Some(path) => path,
            None if Path::new(DEFAULT_PATH).exists() => Path::new(DEFAULT_PATH),
            None => return Ok((Path::new("the built-in defaults"), DEFAULT_TOML.to_owned())),
        };
        Ok((path, ccplane_files::document::read(path, CONFIGURATION)?))
    }

    /// Parses the text of a configuration file; `file` is for the error.
    ///
    /// # Errors
    /// The first problem, with its line, column and field.
    pub fn parse(file: &Path, text: &str, algorithms: Option<&[&str]>) -> Result<Config, DocumentError> {
        let refuse = |placed| DocumentError::at(file, text, placed);
        let mut document = ccplane_files::document::parse(text).map_err(refuse)?;
        let advice = "run the agent of the file's version, or write the file anew from `ccplaned --print-default-config`";
        ccplane_files::document::take_version(&mut document, VERSION, advice).map_err(refuse)?;
        let placed = |problem| refuse(ccplane_files::document::locate(&document, problem));
        let mut config: Config = ccplane_files::document::value(document.clone()).map_err(refuse)?;
        if algorithms.is_some() {
            config.agent.read_cores().map_err(placed)?;
        }
        config.check(algorithms).map_err(placed)?;
        Ok(config)
    }

    /// Checks the conditions that involve several values.
    fn check(&self, algorithms: Option<&[&str]>) -> Result<(), Problem> {
        tracing_subscriber::EnvFilter::try_new(&self.log)
            .map_err(|e| Problem::new("log", format_args!("not a log filter: {e}")))?;
        if self.datapath.ebpf.mode == Switch::Off && self.datapath.unix.mode == OnOff::Off {
            return Err(Problem::new("datapath", "all are off: at least one of ebpf and unix must be used"));
        }
        self.datapath.packets.check()?;
        let ebpf = &self.datapath.ebpf;
        for (field, name) in [("name", &ebpf.name), ("handback", &ebpf.handback)] {
            if !ccplane_ebpf::is_name(name) {
                return Err(Problem::new(
                    format!("datapath.ebpf.{field}"),
                    format_args!(
                        "`{name}` is no congestion control's name: 1 to {} letters, digits or _",
                        ccplane_ebpf::MAX_NAME
                    ),
                ));
            }
        }
        let mut named = self.rules.iter().map(|r| r.algorithm.as_str()).chain([&*self.default_algorithm]);
        if self.datapath.unix.socket.as_ref() == Some(&self.portus.socket) && named.any(|name| name == PORTUS)
        {
            return Err(Problem::new(
                "datapath.unix.socket",
                "portus.socket is the same: the agent would be given its own flows for ever",
            ));
        }
        if self.datapath.ccp_kernel.link != CcpLink::Off && self.datapath.unix.mode == OnOff::Off {
            return Err(Problem::new(
                "datapath.ccp_kernel.link",
                "the loop that hears it is off: set datapath.unix.mode to \"on\"",
            ));
        }
        if let Some(address) = self.metrics.listen
            && !address.ip().is_loopback()
            && !self.metrics.allow_remote
        {
            return Err(Problem::new(
                "metrics.listen",
                format_args!(
                    "{address} is not a loopback address: anyone who can reach it could read the metrics; \
                     allow_remote = true permits that"
                ),
            ));
        }
        if self.learn.require_signed && self.learn.keys.is_empty() {
            return Err(Problem::new("learn.keys", "require_signed = true needs at least one key to trust"));
        }
        if self.learn.pin && self.learn.mode != LearnMode::Off {
            return Err(Problem::new(
                "learn.pin",
                "true needs mode = \"off\": flows that keep their snapshots cannot try what is learned",
            ));
        }
        if self.portfolio.arms.len() > MAX_ARMS {
            let found = self.portfolio.arms.len();
            return Err(Problem::new("portfolio.arms", ArmsError::Count { found }));
        }
        match algorithms {
            Some(algorithms) => {
                self.agent.check_cores()?;
                check_name("datapath.packets.algorithm", &self.datapath.packets.algorithm, algorithms)?;
                resolve_rules(&self.default_algorithm, &self.rules, algorithms).map(|_| ())
            }
            None => Ok(()),
        }
    }
}

/// Checks that there is an algorithm of this name.
fn check_name(field: &str, name: &str, algorithms: &[&str]) -> Result<(), Problem> {
    if name == NATIVE || algorithms.contains(&name) {
        return Ok(());
    }
    let names = algorithms.join(", ");
    Err(Problem::new(field, format_args!("no algorithm is called `{name}`; there are: {NATIVE}, {names}")))
}

/// Checks rules against the algorithms that there are, and looks up the cgroups that they name.
///
/// # Errors
/// The first problem; its field is a path such as `rule[2].algorithm`.
pub fn resolve_rules(default: &str, rules: &[Rule], algorithms: &[&str]) -> Result<Rules, Problem> {
    check_name("default_algorithm", default, algorithms)?;
    if rules.len() > MAX_RULES {
        return Err(Problem::new(
            "rule",
            format_args!("{} rules, at most {MAX_RULES} are allowed", rules.len()),
        ));
    }
    let resolve = |(n, rule): (usize, &Rule)| {
        check_name(&format!("rule[{n}].algorithm"), &rule.algorithm, algorithms)?;
        if rule.is_unconditional() {
            let expected = "needs a condition: cgroup, local_port, remote_port, requested or remote";
            return Err(Problem::new(format!("rule[{n}]"), expected));
        }
        let cgroup = rule.cgroup.as_deref().map(cgroup_id).transpose();
        Ok(ccplane_core::Rule {
            cgroup: cgroup.map_err(|message| Problem::new(format!("rule[{n}].cgroup"), message))?,
            local_port: rule.local_port.as_ref().map(Ports::range),
            remote_port: rule.remote_port.as_ref().map(Ports::range),
            requested: rule.requested.clone(),
            remote: rule.remote.map(Prefix::get),
            algorithm: rule.algorithm.clone(),
            parameters: rule.parameters.clone().into_iter().collect(),
        })
    };
    let rules = rules.iter().enumerate().map(resolve).collect::<Result<_, _>>()?;
    Ok(Rules { rules, default: default.to_owned() })
}

/// A cgroup's id is the inode number of its directory (cgroup_id() in include/linux/cgroup.h).
fn cgroup_id(path: &Path) -> Result<u64, String> {
    let below = path.strip_prefix("/").unwrap_or(path);
    if below.components().any(|c| !matches!(c, Component::Normal(_))) {
        return Err(format!(
            "`{}` is not a path below the cgroup root, such as /system.slice",
            path.display()
        ));
    }
    let directory = Path::new(CGROUP_ROOT).join(below);
    match std::fs::metadata(&directory) {
        Ok(meta) if meta.is_dir() => Ok(meta.ino()),
        Ok(_) => Err(format!("{} is not a cgroup", directory.display())),
        Err(error) => Err(format!("{}: {error}", directory.display())),
    }
}

#[cfg(test)]
mod tests;
