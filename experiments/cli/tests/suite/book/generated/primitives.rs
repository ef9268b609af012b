//! The page of primitives, from the table that declares them and the files in which datapaths measure them.

use super::{heading, source, without_links};
use std::fmt::Write as _;

/// The file that declares the primitives.
const DECLARED: &str = "agent/program/src/hook.rs";
/// The files in which each datapath measures what programs read on ACKs.
const ON_ACKS: [(&str, &str); 4] = [
    ("Linux TCP, BPF", "datapath-shims/ebpf/src/host.rs"),
    ("Linux TCP, module", "datapath-shims/module/kernel/tcp.c"),
    ("QUIC, DPDK", "datapath-shims/quic/src/controller.rs"),
    ("simulator", "datapath-shims/sim/src/transport.rs"),
];
/// The same of packets.
const ON_PACKETS: [(&str, &str); 2] = [
    ("packets, BPF", "datapath-shims/ebpf/src/packets/host.rs"),
    ("QUIC, DPDK, simulated hosts", "datapath-shims/engine/src/packets"),
];

/// A primitive, as it is declared.
struct Declared {
    about: String,
    variant: String,
    name: String,
    ty: String,
    hooks: String,
}

/// Every primitive of the table; of the paths' only the first path's.
fn declared() -> Vec<Declared> {
    let text = source(DECLARED);
    let table = text.split("\nprimitives! {\n").nth(1).and_then(|rest| rest.split("\n}").next());
    let (mut found, mut about) = (Vec::new(), String::new());
    for line in table.expect("the table of primitives").lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("/// ") {
            about = comment.to_owned();
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let [variant, name, ty, hooks] = words[..] else { panic!("{DECLARED}: {line}") };
        let other_path = (1..8).any(|n| variant.starts_with(&format!("Path{n}")));
        if !other_path {
            let about = std::mem::take(&mut about).replace("path 0", "path N");
            let name = name.trim_matches('"').replace("Path0", "PathN");
            let [variant, ty, hooks] = [variant, ty, hooks].map(str::to_owned);
            found.push(Declared { about, variant, name, ty, hooks });
        }
    }
    found
}

pub fn page() -> String {
    let mut out =
        heading("Primitives by datapath", &format!("{DECLARED} and the files in which datapaths measure"));
    out.push_str(
        "What a program reads. A primitive is a number, if its type is not said. libccp knows those of the first table, by the same numbers, and \
        which of them are more than 0 there is up to the datapath around it.\n\n",
    );
    let declared = declared();
    let (on_acks, on_packets): (Vec<&Declared>, Vec<&Declared>) =
        declared.iter().partition(|prim| prim.hooks == "ACK");
    out.push_str("## On ACKs\n\n");
    table(&mut out, &on_acks, &ON_ACKS, false);
    out.push_str("\n## On packets, and where a flow starts\n\n`PathN` is `Path0` to `Path7`.\n\n");
    table(&mut out, &on_packets, &ON_PACKETS, true);
    out
}

fn table(out: &mut String, prims: &[&Declared], datapaths: &[(&str, &str)], hooks: bool) {
    let names: Vec<&str> = datapaths.iter().map(|(name, _)| *name).collect();
    let hook = if hooks { " hooks |" } else { "" };
    writeln!(out, "| primitive | |{hook} {} |", names.join(" | ")).unwrap();
    writeln!(out, "|{}", "---|".repeat(2 + usize::from(hooks) + names.len())).unwrap();
    let sources: Vec<String> = datapaths.iter().map(|(_, path)| measured_in(path)).collect();
    for (text, (name, path)) in sources.iter().zip(datapaths) {
        // Fewer are measured elsewhere: the code has moved.
        let measured = prims.iter().filter(|prim| measures(text, &prim.variant)).count();
        assert!(2 * measured > prims.len(), "{name}: {measured} of {} primitives in {path}", prims.len());
    }
    for prim in prims {
        let about = without_links(&prim.about).replace("crate::ir::INFINITY", "+infinity");
        let ty = if prim.ty == "Bool" { " A boolean." } else { "" };
        let hook = match (hooks, prim.hooks.as_str()) {
            (false, _) => "",
            (true, "BOTH") => " send, connect |",
            (true, _) => " send |",
        };
        let has: Vec<&str> =
            sources.iter().map(|text| if measures(text, &prim.variant) { "yes" } else { "no" }).collect();
        writeln!(out, "| `{}` | {about}{ty} |{hook} {} |", prim.name, has.join(" | ")).unwrap();
    }
}

/// A source file, or all of a folder.
fn measured_in(path: &str) -> String {
    let place = super::root().join(path);
    if place.is_file() {
        return source(path);
    }
    let mut files: Vec<_> = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// Whether the text names the primitive, as Rust or as the module's C does.
fn measures(text: &str, variant: &str) -> bool {
    let constant = variant.chars().fold(String::new(), |out, c| {
        let gap = if c.is_uppercase() && !out.is_empty() { "_" } else { "" };
        out + gap + &c.to_uppercase().to_string()
    });
    let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    // The paths' primitives are counted from the first one on.
    let variant = if variant.starts_with("Path0") { "Path0RttUs" } else { variant };
    [format!("Prim::{variant}"), format!("v[CCPLANE_{constant}")]
        .iter()
        .any(|name| text.match_indices(name.as_str()).any(|(at, _)| is_end(&text[at + name.len()..])))
}
