//! The processors, interfaces and interrupts of a host.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cpus::CpuSet;
use crate::machine::Machine;

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";
const INTERFACES: &str = "/sys/class/net";
const BYTES_PER_KIB: u64 = 1024;
/// Parents of a network device that may hold its interrupts: that of a virtio device is one above.
const INTERRUPT_HOLDERS: [&str; 2] = ["device/msi_irqs", "device/../msi_irqs"];

/// The processors, memory nodes, interfaces and interrupts of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Topology {
    pub nodes: Vec<Node>,
    pub processors: Vec<Processor>,
    pub interfaces: Vec<Interface>,
    /// The interrupts of devices; those between processors are left out.
    pub interrupts: Vec<Interrupt>,
}

/// A memory node with the processors next to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Node {
    pub number: u32,
    pub processors: CpuSet,
    /// The node's memory, bytes.
    pub memory_bytes: u64,
}

/// A processor that runs one thread at a time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Processor {
    pub number: u32,
    /// The socket that the processor sits in.
    pub package: Option<u32>,
    /// The core, unique within its package.
    pub core: Option<u32>,
    /// The processors of the same core, this one among them.
    pub siblings: CpuSet,
    pub caches: Vec<Cache>,
    /// The frequency governor, where the kernel has one for this processor.
    pub governor: Option<String>,
}

/// A cache with the processors that share it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Cache {
    pub level: u32,
    /// The kernel's word: `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// The cache's size, bytes.
    pub bytes: u64,
    pub shared_by: CpuSet,
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Interface {
    pub name: String,
    /// The driver, where a device stands behind the interface.
    pub driver: Option<String>,
    /// The memory node that the device is next to.
    pub node: Option<u32>,
    /// The kernel's word: `up`, `down`, `unknown` and others.
    pub state: String,
    /// The largest packet, bytes.
    pub mtu_bytes: Option<u32>,
    pub receive_queues: Vec<u32>,
    pub transmit_queues: Vec<u32>,
    /// The numbers of the device's interrupts.
    pub interrupts: Vec<u32>,
}

/// An interrupt line of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Interrupt {
    pub number: u32,
    /// The kernel's name of the handler, such as `virtio3-rx`.
    pub name: String,
    /// The processors that the interrupt may be raised on.
    pub affinity: CpuSet,
    /// The number of times that it was raised on each processor since boot.
    pub counts: BTreeMap<u32, u64>,
}

impl Topology {
    /// Reads a machine's topology; what it does not say is missing.
    pub fn of(machine: &Machine) -> Topology {
        Topology {
            nodes: machine.numbered(NODES, "node").into_iter().map(|n| node(machine, n)).collect(),
            processors: machine.numbered(CPUS, "cpu").into_iter().map(|n| processor(machine, n)).collect(),
            interfaces: machine.names(INTERFACES).into_iter().filter_map(|n| interface(machine, n)).collect(),
            interrupts: interrupts(machine),
        }
    }

    /// Returns the interface of this name.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// Returns the node that a processor is next to.
    pub fn node_of(&self, cpu: u32) -> Option<u32> {
        self.nodes.iter().find(|node| node.processors.contains(cpu)).map(|node| node.number)
    }
}

fn cpu_list(machine: &Machine, path: &str) -> CpuSet {
    machine.text(path).and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn node(machine: &Machine, number: u32) -> Node {
    let folder = format!("{NODES}/node{number}");
    // "Node 0 MemTotal:       24646652 kB"
    let meminfo = machine.text(&format!("{folder}/meminfo")).unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.split_once("MemTotal:"));
    let kib = total.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok());
    Node {
        number,
        processors: cpu_list(machine, &format!("{folder}/cpulist")),
        memory_bytes: kib.unwrap_or(0).saturating_mul(BYTES_PER_KIB),
    }
}

fn processor(machine: &Machine, number: u32) -> Processor {
    let folder = format!("{CPUS}/cpu{number}");
    let caches = machine.numbered(&format!("{folder}/cache"), "index");
    Processor {
        number,
        package: machine.number(&format!("{folder}/topology/physical_package_id")),
        core: machine.number(&format!("{folder}/topology/core_id")),
        siblings: cpu_list(machine, &format!("{folder}/topology/thread_siblings_list")),
        caches: caches
            .into_iter()
            .filter_map(|n| cache(machine, &format!("{folder}/cache/index{n}")))
            .collect(),
        governor: machine.text(&format!("{folder}/cpufreq/scaling_governor")),
    }
}

fn cache(machine: &Machine, folder: &str) -> Option<Cache> {
    // "32K"
    let size = machine.text(&format!("{folder}/size"))?;
    let kib: u64 = size.strip_suffix('K')?.parse().ok()?;
    Some(Cache {
        level: machine.number(&format!("{folder}/level"))?,
        kind: machine.text(&format!("{folder}/type"))?,
        bytes: kib.saturating_mul(BYTES_PER_KIB),
        shared_by: cpu_list(machine, &format!("{folder}/shared_cpu_list")),
    })
}

fn interface(machine: &Machine, name: String) -> Option<Interface> {
    let folder = format!("{INTERFACES}/{name}");
    // The folder holds more than interfaces: `bonding_masters`, for one.
    let state = machine.text(&format!("{folder}/operstate"))?;
    let queues = |prefix| machine.numbered(&format!("{folder}/queues"), prefix);
    let mut interrupts = Vec::new();
    for holder in INTERRUPT_HOLDERS {
        if interrupts.is_empty() {
            interrupts = machine.numbered(&format!("{folder}/{holder}"), "");
        }
    }
    // -1 where the machine has one node alone.
    let node = machine.number::<i64>(&format!("{folder}/device/numa_node"));
    Some(Interface {
        driver: machine.link_name(&format!("{folder}/device/driver")),
        node: node.and_then(|node| u32::try_from(node).ok()),
        state,
        mtu_bytes: machine.number(&format!("{folder}/mtu")),
        receive_queues: queues("rx-"),
        transmit_queues: queues("tx-"),
        interrupts,
        name,
    })
}

/// Reads /proc/interrupts: a head that names the processors, then a line an interrupt.
fn interrupts(machine: &Machine) -> Vec<Interrupt> {
    let text = machine.text("/proc/interrupts").unwrap_or_default();
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let cpus: Vec<u32> =
        head.split_whitespace().filter_map(|name| name.strip_prefix("CPU")?.parse().ok()).collect();
    let interrupt = |line: &str| {
        let (number, rest) = line.split_once(':')?;
        let number: u32 = number.trim().parse().ok()?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        let counts: Option<Vec<u64>> =
            words.get(..cpus.len())?.iter().map(|count| count.parse().ok()).collect();
        Some(Interrupt {
            number,
            name: words
                .last()
                .filter(|_| words.len() > cpus.len())
                .map_or(String::new(), |&name| name.to_owned()),
            affinity: cpu_list(machine, &format!("/proc/irq/{number}/smp_affinity_list")),
            counts: cpus.iter().copied().zip(counts?).collect(),
        })
    };
    lines.filter_map(interrupt).collect()
}
