//! The picture of a plan's links at a glance: for each link what the contenders carry and how long packets wait, over time.

use super::glance::{ContenderGlance, LinkGlance, spans, telling_flow};
use super::series::{Moment, base_rtts_us, mean_capacity_bps, moments};
use super::view::View;
use crate::draw::font::{Face, width_px};
use crate::draw::scene::{AREA, Anchor, Canvas, EDGE_COLOUR, GRID, INK, Item, MUTED, Scene, Stroke};
use crate::draw::{Axis, Style};
use crate::format;

const WIDTH: f32 = 1080.0;
const MARGIN: f32 = 24.0;
const COLUMNS: usize = 2;
const GUTTER: f32 = 40.0;
const CELL: f32 = (WIDTH - 2.0 * MARGIN - GUTTER) / COLUMNS as f32;
/// Room for the vertical axis' labels, and for the figures beside a plot.
const LEFT: f32 = 34.0;
const FIGURES: f32 = 128.0;
const PLOT: f32 = CELL - LEFT - FIGURES;
const CELL_HEIGHT: f32 = 398.0;
const CARRIED_HEIGHT: f32 = 124.0;
const WAITING_HEIGHT: f32 = 84.0;
const RIBBON_HEIGHT: f32 = 15.0;
const TITLE: f32 = 19.0;
const NAME: f32 = 15.0;
const TEXT: f32 = 12.0;
const ROW: f32 = 19.0;
/// Points of a line.
const STEPS: u64 = 68;
/// The strengths of the states' tints: the one that lasts longest hardly, what is short so that it can be seen.
const TINTS: [f32; 4] = [0.12, 0.42, 0.75, 1.0];

/// Draws `links`, which are of the scenarios of `view`.
pub fn picture(view: &View<'_>, links: &[LinkGlance]) -> Scene {
    let states = states(view);
    let mut drawing = Drawing { view, canvas: Canvas::default(), states };
    let mut y = MARGIN + TITLE;
    drawing.canvas.text(
        (MARGIN, y),
        Anchor::Start,
        TITLE,
        Face::Medium,
        INK,
        &view.results.header.plan.title,
    );
    y += 28.0;
    drawing.legend(y);
    y += 34.0;
    for (n, link) in links.iter().enumerate() {
        let column = n % COLUMNS;
        let at = (MARGIN + column as f32 * (CELL + GUTTER), y + (n / COLUMNS) as f32 * CELL_HEIGHT);
        drawing.cell(at, n, link);
    }
    y += links.len().div_ceil(COLUMNS) as f32 * CELL_HEIGHT;
    Scene {
        width: WIDTH,
        height: y,
        title: view.results.header.plan.title.clone(),
        items: drawing.canvas.items,
    }
}

/// The states that flows tell, over all links, the longest first.
fn states(view: &View<'_>) -> Vec<String> {
    let mut all: Vec<(String, u64)> = Vec::new();
    for scenario in 0..view.scenarios().len() {
        for (_, run) in view.all_runs(scenario) {
            for (state, end_ms) in telling_flow(run.measured).into_iter().flat_map(spans) {
                let ms = end_ms.saturating_sub(state.t_ms);
                match all.iter_mut().find(|(name, _)| *name == state.state) {
                    Some((_, sum_ms)) => *sum_ms = sum_ms.saturating_add(ms),
                    None => all.push((state.state.clone(), ms)),
                }
            }
        }
    }
    all.sort_by_key(|(_, ms)| std::cmp::Reverse(*ms));
    all.into_iter().map(|(name, _)| name).collect()
}

struct Drawing<'a> {
    view: &'a View<'a>,
    canvas: Canvas,
    states: Vec<String>,
}

/// A plot's place and axes.
struct Plot {
    left: f32,
    top: f32,
    height: f32,
    x: Axis,
    y: Axis,
}

impl Plot {
    fn at(&self, (x, y): (f64, f64)) -> (f32, f32) {
        (self.left + self.x.at(x) as f32 * PLOT, self.top + (1.0 - self.y.at(y) as f32) * self.height)
    }
}

impl Drawing<'_> {
    fn line(&mut self, points: Vec<(f32, f32)>, colour: &'static str, width: f32) {
        self.canvas.line(points, colour, width, Vec::new());
    }

    fn filled(&mut self, points: Vec<(f32, f32)>, colour: &'static str, opacity: f32) {
        self.canvas.items.push(Item::Path {
            points,
            closed: true,
            fill: Some((colour, opacity)),
            stroke: None,
        });
    }

    /// Returns a line's width, which is larger for our contender, pixels.
    fn width(&self, contender: usize) -> f32 {
        if contender == 0 { 2.6 } else { 1.5 }
    }

    fn style(&self, contender: usize) -> Style {
        self.view.styles[contender]
    }

    fn legend(&mut self, y: f32) {
        let mut x = MARGIN;
        for (n, contender) in self.view.contenders().iter().enumerate() {
            let colour = self.style(n).hex();
            self.line(vec![(x, y - 4.5), (x + 26.0, y - 4.5)], colour, self.width(n));
            let face = if n == 0 { Face::Medium } else { Face::Regular };
            self.canvas.text((x + 33.0, y), Anchor::Start, NAME, face, colour, &contender.name);
            x += 33.0 + width_px(&contender.name, NAME, face) + 26.0;
        }
        self.filled(rectangle(x, y - 11.0, 18.0, 12.0), AREA, 1.0);
        self.line(vec![(x, y - 11.0), (x + 18.0, y - 11.0)], EDGE_COLOUR, 1.0);
        let area = "what the link can carry";
        self.canvas.text((x + 25.0, y), Anchor::Start, TEXT, Face::Regular, MUTED, area);
        x += 25.0 + width_px(area, TEXT, Face::Regular) + 26.0;
        for (n, state) in self.states.clone().into_iter().enumerate() {
            let colour = self.style(0).hex();
            self.filled(rectangle(x, y - 11.0, 18.0, 12.0), colour, TINTS[n % TINTS.len()]);
            self.canvas.text((x + 25.0, y), Anchor::Start, TEXT, Face::Regular, MUTED, &state);
            x += 25.0 + width_px(&state, TEXT, Face::Regular) + 18.0;
        }
    }

    fn cell(&mut self, (x, y): (f32, f32), scenario: usize, link: &LinkGlance) {
        let plan = &self.view.results.header.plan;
        let (end_ms, sample_ms) = (plan.duration_ms.max(1), plan.sample_ms);
        self.canvas.text((x, y + NAME), Anchor::Start, NAME, Face::Medium, INK, &link.link);
        self.best((x + CELL, y + NAME), link);
        let shown = &self.view.scenarios()[scenario];
        let about = shortened(&shown.link.description, CELL);
        self.canvas.text((x, y + NAME + ROW), Anchor::Start, TEXT, Face::Regular, MUTED, &about);
        let step_ms = end_ms.div_ceil(STEPS).max(sample_ms).max(1);
        let timelines: Vec<(usize, Vec<Moment>)> = link
            .contenders
            .iter()
            .filter_map(|c| {
                let run = self.view.representative(scenario, c.index)?;
                Some((c.index, averaged(&moments(run.measured, sample_ms), step_ms)))
            })
            .collect();
        let capacity: Vec<(f64, f64)> = (0..end_ms.div_ceil(step_ms))
            .map(|n| n * step_ms)
            .filter_map(|t| {
                Some((
                    t as f64 / 1e3,
                    mean_capacity_bps(&shown.link, t, end_ms.min(t.saturating_add(step_ms)))? / 1e6,
                ))
            })
            .collect();
        let base = base_rtts_us(&shown.link);
        let carried = |m: &Moment| Some(m.throughput_bps as f64 / 1e6);
        let waiting = |m: &Moment| {
            let base_us = base.iter().take_while(|(t, _)| *t <= m.t_ms).last().map_or(0, |(_, us)| *us);
            (m.srtt_us > 0).then(|| m.srtt_us.saturating_sub(base_us) as f64 / 1e3)
        };
        let top = y + NAME + 2.0 * ROW + 14.0;
        let plot = self.plot((x, top), CARRIED_HEIGHT, "carried, Mb/s", &timelines, &capacity, &carried);
        self.equal_share(&plot, scenario, link);
        let beside = link.contenders.iter().any(|c| c.fair_share.is_some());
        let carries = |c: &ContenderGlance| match c.fair_share {
            Some(share) => format::percent(Some(share)),
            None => format!("{} Mb/s", format::mbps(Some(c.throughput_bps))),
        };
        let heading = if beside { "of an equal share" } else { "more is better" };
        self.figures((x + CELL, plot.top), heading, &link.contenders, &carries);
        let top = plot.top + CARRIED_HEIGHT + 2.0 * ROW - 2.0;
        let plot = self.plot((x, top), WAITING_HEIGHT, "waiting in the queue, ms", &timelines, &[], &waiting);
        let waits = |c: &ContenderGlance| format!("{} ms", format::ms(Some(c.waiting_us)));
        self.figures((x + CELL, plot.top), "less is better", &link.contenders, &waits);
        self.ribbon(&plot, scenario, link);
    }

    fn best(&mut self, at: (f32, f32), link: &LinkGlance) {
        let mut x = at.0;
        for contender in link.contenders.iter().filter(|c| c.best).rev() {
            let colour = self.style(contender.index).hex();
            self.canvas.text((x, at.1), Anchor::End, NAME, Face::Medium, colour, &contender.name);
            x -= width_px(&contender.name, NAME, Face::Medium) + 8.0;
        }
        if x < at.0 {
            self.canvas.text((x, at.1), Anchor::End, TEXT, Face::Regular, MUTED, "best:");
        }
    }

    /// Axes, area and lines; `at`: the left end of its heading.
    fn plot(
        &mut self,
        at: (f32, f32),
        height: f32,
        title: &str,
        timelines: &[(usize, Vec<Moment>)],
        area: &[(f64, f64)],
        value: &dyn Fn(&Moment) -> Option<f64>,
    ) -> Plot {
        let values = || timelines.iter().flat_map(|(_, moments)| moments).filter_map(value);
        let largest = values().fold(0.0, f64::max);
        let edge = area.iter().map(|step| step.1).fold(0.0, f64::max);
        // A burst of capacity must not flatten the rest.
        let limit = if largest > 0.0 { edge.min(largest * 1.25) } else { edge };
        let plot = Plot {
            left: at.0 + LEFT,
            top: at.1 + 8.0,
            height,
            x: Axis::to(self.view.results.header.plan.duration_ms.max(1) as f64 / 1e3),
            y: Axis::covering(largest.max(limit)),
        };
        self.canvas.text(at, Anchor::Start, TEXT, Face::Medium, INK, title);
        let bottom = plot.top + height;
        if let (Some(first), Some(last)) = (area.first(), area.last()) {
            let mut outline = vec![(plot.at(*first).0, bottom)];
            let ends = area.iter().skip(1).map(|step| step.0).chain([plot.x.max]);
            for ((from, mbps), to) in area.iter().zip(ends) {
                outline.extend([plot.at((*from, *mbps)), plot.at((to, *mbps))]);
            }
            outline.push((plot.at((plot.x.max, last.1)).0, bottom));
            self.filled(outline.clone(), AREA, 1.0);
            self.line(outline[1..outline.len() - 1].to_vec(), EDGE_COLOUR, 1.0);
        }
        // Every second label: the plots are low.
        for (n, tick) in plot.y.ticks().into_iter().enumerate() {
            let (_, y) = plot.at((0.0, tick));
            if n > 0 {
                self.line(vec![(plot.left, y), (plot.left + PLOT, y)], GRID, 1.0);
            }
            if n % 2 == 0 {
                let label = plot.y.label(tick);
                self.canvas.text(
                    (plot.left - 6.0, y + 4.0),
                    Anchor::End,
                    TEXT - 1.0,
                    Face::Regular,
                    MUTED,
                    &label,
                );
            }
        }
        self.line(vec![(plot.left, bottom), (plot.left + PLOT, bottom)], EDGE_COLOUR, 1.0);
        // Ours is drawn last, on top.
        for (contender, moments) in timelines.iter().rev() {
            let points: Vec<(f32, f32)> =
                moments.iter().filter_map(|m| Some(plot.at((m.t_ms as f64 / 1e3, value(m)?)))).collect();
            self.line(points, self.style(*contender).hex(), self.width(*contender));
        }
        plot
    }

    /// Draws the rate that each flow would get if the contender's and the background's flows had equal shares.
    fn equal_share(&mut self, plot: &Plot, scenario: usize, link: &LinkGlance) {
        let run = link.contenders.iter().find(|c| c.fair_share.is_some());
        let Some(run) = run.and_then(|c| self.view.representative(scenario, c.index)) else { return };
        let flows = &run.measured.flows;
        let from_ms = flows.iter().map(|f| f.start_ms).max().unwrap_or(0);
        let to_ms = flows.iter().map(|f| f.end_ms).min().unwrap_or(0);
        let shown = &self.view.scenarios()[scenario].link;
        let Some(bps) = mean_capacity_bps(shown, from_ms, to_ms) else { return };
        let mbps = bps / 1e6 / flows.len().max(1) as f64;
        let at = |ms: u64| plot.at((ms as f64 / 1e3, mbps));
        let stroke = Some(Stroke { colour: MUTED, width: 1.2, opacity: 1.0, dashes: vec![4.0, 4.0] });
        self.canvas.items.push(Item::Path {
            points: vec![at(from_ms), at(to_ms)],
            closed: false,
            fill: None,
            stroke,
        });
        let (left, y) = at(from_ms);
        self.canvas.text(
            (left + 6.0, y - 6.0),
            Anchor::Start,
            TEXT - 1.0,
            Face::Regular,
            MUTED,
            "an equal share",
        );
    }

    /// The contenders' means, right of a plot.
    fn figures(
        &mut self,
        (right, top): (f32, f32),
        heading: &str,
        contenders: &[ContenderGlance],
        figure: &dyn Fn(&ContenderGlance) -> String,
    ) {
        self.canvas.text((right, top - 8.0), Anchor::End, TEXT - 1.0, Face::Regular, MUTED, heading);
        let mut y = top + 16.0;
        for contender in contenders {
            let colour = self.style(contender.index).hex();
            let face = if contender.index == 0 { Face::Medium } else { Face::Regular };
            let left = right - FIGURES + 14.0;
            self.canvas.text((left, y), Anchor::Start, TEXT, face, colour, &contender.name);
            self.canvas.text((right, y), Anchor::End, TEXT, face, colour, &figure(contender));
            y += ROW;
        }
    }

    /// Draws our flow's decisions below the last plot, with the times.
    fn ribbon(&mut self, plot: &Plot, scenario: usize, link: &LinkGlance) {
        let mut y = plot.top + plot.height + 7.0;
        let run = |c: &ContenderGlance| {
            let measured = self.view.representative(scenario, c.index)?.measured;
            Some((c.index, telling_flow(measured)?))
        };
        if let Some((contender, flow)) = link.contenders.iter().find_map(run) {
            let style = self.style(contender);
            let shown: Vec<(usize, f32, f32)> = spans(flow)
                .filter_map(|(state, end_ms)| {
                    let n = self.states.iter().position(|s| *s == state.state)?;
                    let x = |ms: u64| plot.at((ms as f64 / 1e3, 0.0)).0;
                    Some((n, x(state.t_ms), x(end_ms)))
                })
                .collect();
            for (n, from, to) in shown {
                let tint = TINTS[n % TINTS.len()];
                self.filled(rectangle(from, y, (to - from).max(1.0), RIBBON_HEIGHT), style.hex(), tint);
                let state = self.states[n].clone();
                if width_px(&state, TEXT - 1.0, Face::Regular) + 8.0 < to - from {
                    let colour = if tint > 0.6 { "#ffffff" } else { INK };
                    let at = ((from + to) / 2.0, y + 11.5);
                    self.canvas.text(at, Anchor::Middle, TEXT - 1.0, Face::Regular, colour, &state);
                }
            }
            let name = format!("what {} does", self.view.contenders()[contender].name);
            self.canvas.text(
                (plot.left + PLOT + 14.0, y + 11.5),
                Anchor::Start,
                TEXT - 1.0,
                Face::Regular,
                MUTED,
                &shortened(&name, FIGURES),
            );
            y += RIBBON_HEIGHT;
        }
        y += 14.0;
        for tick in plot.x.ticks() {
            let at = (plot.at((tick, 0.0)).0, y);
            let label = format!("{} s", plot.x.label(tick));
            self.canvas.text(at, Anchor::Middle, TEXT - 1.0, Face::Regular, MUTED, &label);
        }
    }
}

fn rectangle(x: f32, y: f32, width: f32, height: f32) -> Vec<(f32, f32)> {
    vec![(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
}

/// Returns as much of `text` as fits.
fn shortened(text: &str, width: f32) -> String {
    let mut shown = text.to_owned();
    while width_px(&shown, TEXT, Face::Regular) > width && shown.pop().is_some() {}
    if shown.len() < text.len() {
        shown.pop();
        shown.push('…');
    }
    shown
}

/// Means over equal steps of time.
fn averaged(moments: &[Moment], step_ms: u64) -> Vec<Moment> {
    let mut all = Vec::new();
    for step in moments.chunk_by(|a, b| a.t_ms / step_ms == b.t_ms / step_ms) {
        let n = step.len() as u64;
        let mean = |of: fn(&Moment) -> u64| step.iter().map(of).fold(0, u64::saturating_add) / n;
        let rtts = step.iter().filter(|m| m.srtt_us > 0).count() as u64;
        all.push(Moment {
            t_ms: mean(|m| m.t_ms),
            throughput_bps: mean(|m| m.throughput_bps),
            srtt_us: step.iter().map(|m| m.srtt_us).fold(0, u64::saturating_add) / rtts.max(1),
            cwnd_pkts: mean(|m| m.cwnd_pkts),
        });
    }
    all
}
