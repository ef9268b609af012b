//! A host as a picture: memory nodes with their cores, the interfaces with their queues and interrupts, and which
//! processor takes which interrupt.

use ccplane_report::draw::font::{Face, width_px};
use ccplane_report::draw::scene::{AREA, Anchor, Canvas, EDGE_COLOUR, INK, Item, MUTED, Scene, Stroke};
use ccplane_report::draw::style::LIGHT;

use crate::topology::{Interface, Topology};

const WIDTH: f32 = 760.0;
const EDGE: f32 = 22.0;
const TITLE_SIZE: f32 = 16.0;
const TEXT_SIZE: f32 = 12.0;
/// The side of the square that stands for a processor, and the distance to the next.
const CPU: f32 = 34.0;
const CPU_GAP: f32 = 6.0;
const PAD: f32 = 12.0;
const HEAD: f32 = 24.0;
/// The height of an interface's line.
const ROW: f32 = 30.0;
/// The space between the nodes and the interfaces, where the interrupts' lines run.
const WIRES: f32 = 90.0;
/// Interrupts of one interface that are drawn, at most.
const MAX_WIRES: usize = 64;
const WIRE: &str = "#2f6db3";

/// A place in the picture, pixels from its upper left corner.
type Point = (f32, f32);

/// The width, height and distance of the marks on a processor that say what runs there.
const MARK: (f32, f32, f32) = (8.0, 3.5, 10.0);
/// Kinds of work that are marked, at most: as many as fit on a processor.
const MAX_MARKS: usize = 3;

/// A kind of work and the processors that do it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkedWork {
    pub name: String,
    pub processors: Vec<u32>,
}

/// Draws a host; `interface` alone, or every one. The processors of each place have a mark.
pub fn picture(topology: &Topology, interface: Option<&str>, places: &[MarkedWork]) -> Scene {
    let mut canvas = Canvas::default();
    let mut y = EDGE + TITLE_SIZE;
    canvas.text(
        (EDGE, y),
        Anchor::Start,
        TITLE_SIZE,
        Face::Medium,
        INK,
        "Processors, interfaces and interrupts",
    );
    legend(&mut canvas, places, y);
    y += HEAD / 2.0;
    let (centres, below) = nodes(&mut canvas, topology, y);
    marks(&mut canvas, places, &centres);
    let shown = |i: &&Interface| interface.is_none_or(|name| i.name == name);
    let top = below + WIRES;
    let mut row = top;
    for interface in topology.interfaces.iter().filter(shown) {
        wires(&mut canvas, topology, interface, &centres, below, row);
        label(&mut canvas, interface, row);
        row += ROW;
    }
    let title =
        "The host's processors by memory node, its interfaces, and the processors that take their interrupts";
    Scene { width: WIDTH, height: row + EDGE, title: title.into(), items: canvas.items }
}

/// Draws the nodes side by side; returns the place below each processor and the height at which they end.
fn nodes(canvas: &mut Canvas, topology: &Topology, top: f32) -> (Vec<(u32, Point)>, f32) {
    let count = topology.nodes.len().max(1) as f32;
    let width = (WIDTH - 2.0 * EDGE - (count - 1.0) * PAD) / count;
    let per_row = (((width - 2.0 * PAD + CPU_GAP) / (CPU + CPU_GAP)) as usize).max(1);
    let rows = topology.nodes.iter().map(|n| n.processors.len().div_ceil(per_row)).max().unwrap_or(0).max(1);
    let height = HEAD + PAD + rows as f32 * (CPU + CPU_GAP);
    let mut centres = Vec::new();
    for (n, node) in topology.nodes.iter().enumerate() {
        let left = EDGE + n as f32 * (width + PAD);
        rectangle(canvas, (left, top), (width, height), Some(AREA), EDGE_COLOUR);
        let gib = node.memory_bytes as f64 / f64::from(1 << 30);
        let head = format!("node {}: {} processors, {gib:.0} GiB", node.number, node.processors.len());
        canvas.text((left + PAD, top + HEAD - 6.0), Anchor::Start, TEXT_SIZE, Face::Medium, INK, &head);
        for (i, cpu) in node.processors.iter().enumerate() {
            let x = left + PAD + (i % per_row) as f32 * (CPU + CPU_GAP);
            let y = top + HEAD + (i / per_row) as f32 * (CPU + CPU_GAP);
            let takes: u64 = topology.interrupts.iter().filter_map(|irq| irq.counts.get(&cpu)).sum();
            rectangle(canvas, (x, y), (CPU, CPU), Some("#ffffff"), EDGE_COLOUR);
            let centre = x + CPU / 2.0;
            canvas.text((centre, y + 15.0), Anchor::Middle, TEXT_SIZE, Face::Medium, INK, &cpu.to_string());
            canvas.text((centre, y + 28.0), Anchor::Middle, 9.0, Face::Regular, MUTED, &short(takes));
            centres.push((cpu, (centre, y + CPU)));
        }
    }
    (centres, top + height)
}

/// Names the kinds of work, from the right.
fn legend(canvas: &mut Canvas, places: &[MarkedWork], y: f32) {
    let mut x = WIDTH - EDGE;
    for (n, place) in places.iter().enumerate().take(MAX_MARKS).rev() {
        canvas.text((x, y), Anchor::End, TEXT_SIZE, Face::Regular, MUTED, &place.name);
        x -= width_px(&place.name, TEXT_SIZE, Face::Regular) + MARK.2 + 4.0;
        rectangle(canvas, (x, y - 7.0), (MARK.0, MARK.1), Some(LIGHT[n]), LIGHT[n]);
        x -= 2.0 * PAD;
    }
}

/// Marks the processors of each kind of work; `centres` are below them.
fn marks(canvas: &mut Canvas, places: &[MarkedWork], centres: &[(u32, Point)]) {
    for (n, place) in places.iter().enumerate().take(MAX_MARKS) {
        let shift = MARK.2 * (n as f32 - (MAX_MARKS as f32 - 1.0) / 2.0) - MARK.0 / 2.0;
        for (_, (x, y)) in centres.iter().filter(|(cpu, _)| place.processors.contains(cpu)) {
            rectangle(canvas, (x + shift, y - CPU + 2.0), (MARK.0, MARK.1), Some(LIGHT[n]), LIGHT[n]);
        }
    }
}

/// Draws a line from each interrupt of an interface to the processors that may take it.
fn wires(
    canvas: &mut Canvas,
    topology: &Topology,
    interface: &Interface,
    centres: &[(u32, Point)],
    below: f32,
    row: f32,
) {
    let ours =
        topology.interrupts.iter().filter(|irq| interface.interrupts.contains(&irq.number)).take(MAX_WIRES);
    for (n, irq) in ours.enumerate() {
        let from = (EDGE + PAD + 6.0 * n as f32, row);
        for (cpu, at) in centres.iter().filter(|(cpu, _)| irq.affinity.contains(*cpu)) {
            // An interrupt is taken by one of the processors that may.
            let is_taken = irq.counts.get(cpu).is_some_and(|count| *count > 0);
            let bend = (at.0, below + WIRES / 3.0);
            let dashes = if is_taken { Vec::new() } else { vec![2.0, 3.0] };
            canvas.line(vec![from, bend, *at], WIRE, if is_taken { 1.4 } else { 0.6 }, dashes);
        }
    }
}

fn label(canvas: &mut Canvas, interface: &Interface, row: f32) {
    rectangle(canvas, (EDGE, row), (WIDTH - 2.0 * EDGE, ROW - 6.0), Some("#ffffff"), EDGE_COLOUR);
    canvas.text((EDGE + PAD, row + 16.0), Anchor::Start, TEXT_SIZE, Face::Medium, INK, &interface.name);
    let node = interface.node.map_or(String::new(), |node| format!(", next to node {node}"));
    let about = format!(
        "{}{node}, {}, MTU {}, {} receive and {} transmit queues, {} interrupts",
        interface.driver.as_deref().unwrap_or("no device"),
        interface.state,
        interface.mtu_bytes.unwrap_or(0),
        interface.receive_queues.len(),
        interface.transmit_queues.len(),
        interface.interrupts.len(),
    );
    let end = WIDTH - EDGE - PAD;
    canvas.text((end, row + 16.0), Anchor::End, TEXT_SIZE, Face::Regular, MUTED, &about);
}

fn rectangle(
    canvas: &mut Canvas,
    (x, y): (f32, f32),
    (width, height): (f32, f32),
    fill: Option<&'static str>,
    colour: &'static str,
) {
    canvas.items.push(Item::Path {
        points: vec![(x, y), (x + width, y), (x + width, y + height), (x, y + height)],
        closed: true,
        fill: fill.map(|fill| (fill, 1.0)),
        stroke: Some(Stroke { colour, width: 1.0, opacity: 1.0, dashes: Vec::new() }),
    });
}

/// A count in at most four characters.
fn short(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{}k", count / 1_000),
        1_000_000..1_000_000_000 => format!("{}M", count / 1_000_000),
        _ => format!("{}G", count / 1_000_000_000),
    }
}
