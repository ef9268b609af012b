//! Flame graphs: stacks that perf sampled, drawn so that a function is as wide as the time it was in.

use std::collections::BTreeMap;

use ccplane_report::draw::font::{Face, width_px};
use ccplane_report::draw::scene::{Anchor, Canvas, EDGE_COLOUR, INK, Item, MUTED, Scene, Stroke};
use ccplane_report::draw::style::LIGHT;

const WIDTH: f32 = 1180.0;
const EDGE: f32 = 22.0;
const TITLE_SIZE: f32 = 16.0;
const TEXT_SIZE: f32 = 11.0;
const ROW: f32 = 17.0;
/// The narrowest function that is drawn, and the room beside a name.
const MIN_WIDTH: f32 = 0.4;
const PAD: f32 = 3.0;
/// The deepest stack that is drawn.
const MAX_DEPTH: usize = 64;

/// A function with those that it called.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Flame {
    /// Samples in which it was on the stack.
    pub samples: u64,
    pub callees: BTreeMap<String, Flame>,
}

impl Flame {
    /// Reads what `perf script -F comm,ip,sym` writes: for each sample the thread's name, then its stack, the innermost function
    /// first, then an empty line.
    pub(super) fn parse(text: &str) -> Flame {
        let mut root = Flame::default();
        let mut stack: Vec<&str> = Vec::new();
        let mut thread = None;
        for line in text.lines().chain([""]) {
            if line.trim().is_empty() {
                if let Some(thread) = thread.take() {
                    root.add(thread, &stack);
                }
                stack.clear();
            } else if line.starts_with(char::is_whitespace) {
                // The address, then the name, which may have blanks.
                let name = line.trim().split_once(' ').map_or("[unknown]", |(_, name)| name.trim());
                stack.push(name);
            } else {
                thread = Some(line.trim());
            }
        }
        root
    }

    fn add(&mut self, thread: &str, stack: &[&str]) {
        self.samples += 1;
        let mut at = self.callees.entry(thread.to_owned()).or_default();
        at.samples += 1;
        for name in stack.iter().rev().take(MAX_DEPTH) {
            at = at.callees.entry((*name).to_owned()).or_default();
            at.samples += 1;
        }
    }

    fn depth(&self) -> usize {
        self.callees.values().map(|callee| 1 + callee.depth()).max().unwrap_or(0)
    }
}

/// Draws a flame graph; callers are below what they call.
pub(super) fn draw(root: &Flame, title: &str) -> Scene {
    let mut canvas = Canvas::default();
    let height = 2.0 * EDGE + TITLE_SIZE + (root.depth() as f32 + 1.0) * ROW;
    canvas.text((EDGE, EDGE + TITLE_SIZE / 2.0), Anchor::Start, TITLE_SIZE, Face::Medium, INK, title);
    let about = format!("{} samples of all processors' stacks", root.samples);
    let at = (WIDTH - EDGE, EDGE + TITLE_SIZE / 2.0);
    canvas.text(at, Anchor::End, TEXT_SIZE, Face::Regular, MUTED, &about);
    let per_sample = (WIDTH - 2.0 * EDGE) / root.samples.max(1) as f32;
    row(&mut canvas, root, (EDGE, height - EDGE - ROW), per_sample, 0);
    Scene { width: WIDTH, height, title: format!("Flame graph: {title}, {about}"), items: canvas.items }
}

fn row(canvas: &mut Canvas, flame: &Flame, (left, top): (f32, f32), per_sample: f32, depth: usize) {
    let mut x = left;
    for (name, callee) in &flame.callees {
        let width = callee.samples as f32 * per_sample;
        if width >= MIN_WIDTH {
            function(canvas, name, (x, top), width, depth);
            row(canvas, callee, (x, top - ROW), per_sample, depth + 1);
        }
        x += width;
    }
}

fn function(canvas: &mut Canvas, name: &str, (x, y): (f32, f32), width: f32, depth: usize) {
    // Neighbours in a column differ, and a name has its colour wherever it is.
    let colour = LIGHT[(name.bytes().map(usize::from).sum::<usize>() + depth) % LIGHT.len()];
    canvas.items.push(Item::Path {
        points: vec![(x, y), (x + width, y), (x + width, y + ROW - 1.0), (x, y + ROW - 1.0)],
        closed: true,
        fill: Some((colour, 0.22)),
        stroke: Some(Stroke { colour: EDGE_COLOUR, width: 0.4, opacity: 1.0, dashes: Vec::new() }),
    });
    let room = width - 2.0 * PAD;
    let mut shown = name;
    while !shown.is_empty() && width_px(shown, TEXT_SIZE, Face::Regular) > room {
        let last = shown.char_indices().next_back().map_or(0, |(at, _)| at);
        shown = &shown[..last];
    }
    if !shown.is_empty() {
        canvas.text((x + PAD, y + ROW - 5.0), Anchor::Start, TEXT_SIZE, Face::Regular, INK, shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACKS: &str = "iperf 3 \n\tffffffff81 tcp_v4_rcv\n\tffffffff82 net_rx_action\n\niperf 3 \n\tffffffff83 copy\n\
                      \tffffffff82 net_rx_action\n\nswapper \n\tffffffff84\n\n";

    #[test]
    fn stacks_become_a_tree() {
        let root = Flame::parse(STACKS);
        assert_eq!((root.samples, root.depth()), (3, 3));
        let iperf = &root.callees["iperf 3"];
        let action = &iperf.callees["net_rx_action"];
        assert_eq!((iperf.samples, action.samples, action.callees["copy"].samples), (2, 2, 1));
        assert_eq!(root.callees["swapper"].callees["[unknown]"].samples, 1);
        assert_eq!(Flame::parse(""), Flame::default());
        assert_eq!(Flame::parse("\tffffffff81 no_thread\n"), Flame::default());
    }

    /// A function is as wide as its share of the samples.
    #[test]
    fn widths_are_shares() {
        let scene = draw(&Flame::parse(STACKS), "defaults");
        let widths: Vec<f32> = scene
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Path { points, .. } => Some(points[1].0 - points[0].0),
                Item::Text { .. } => None,
            })
            .collect();
        let unit = (WIDTH - 2.0 * EDGE) / 3.0;
        // iperf, net_rx_action, copy, tcp_v4_rcv, swapper, unknown
        let expected = [2.0, 2.0, 1.0, 1.0, 1.0, 1.0].map(|n| n * unit);
        assert!(widths.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.01), "{widths:?}");
        assert_eq!(widths.len(), 6);
    }
}
