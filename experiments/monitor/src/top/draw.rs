//! Draws the model; changes nothing.

use super::ui::{Panel, Ui};
use crate::model::{FlowView, LearnerView, Model};
use crate::series::Series;
use crate::units::{bit_rate, duration, milliseconds};
use ccplane_agent::control::{ArmRecord, DecisionRecord, StandingRecord};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Block, Cell, Chart, Dataset, GraphType, Paragraph, Row, Sparkline, Table, TableState, Tabs, Wrap,
};

/// Rows of the panel at the bottom, where there is room.
const PANEL_ROWS: u16 = 12;
/// Digits of a hash that people read.
const SHORT_HASH: usize = 12;

const DIM: Style = Style::new().fg(Color::DarkGray);
const BAD: Style = Style::new().fg(Color::Red);
const HEADER: Style = Style::new().add_modifier(Modifier::BOLD);

/// Draws the whole page.
pub fn draw(frame: &mut Frame<'_>, model: &Model, ui: &Ui) {
    let [head, total, flows, tabs, panel, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(2),
        Constraint::Min(4),
        Constraint::Length(1),
        Constraint::Max(PANEL_ROWS),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, model, ui);
    draw_total(frame, total, model);
    draw_flows(frame, flows, model, ui);
    let names = Panel::ALL.map(Panel::name);
    frame.render_widget(Tabs::new(names).select(ui.panel.index()), tabs);
    match ui.panel {
        Panel::Flow => draw_flow(frame, panel, model, ui),
        Panel::Learning => draw_learning(frame, panel, model),
        Panel::Decisions => draw_decisions(frame, panel, model),
        Panel::Arms => draw_arms(frame, panel, model, ui),
    }
    let help = "q quit  up/down choose a flow  1-4 or Tab panel  p pause";
    frame.render_widget(Paragraph::new(help).style(DIM), keys);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, model: &Model, ui: &Ui) {
    let first = match (&model.trouble, &model.status) {
        (Some(why), _) => Line::styled(why.clone(), BAD),
        (None, None) => Line::styled("asking the agent", DIM),
        (None, Some(status)) => Line::from(vec![
            Span::styled(format!("agent pid {}", status.pid), HEADER),
            Span::raw(format!(
                "  up {}  default {}  {} rules",
                duration(status.uptime_s as f64),
                status.default_algorithm,
                status.rules
            )),
            Span::styled(if ui.paused { "  paused" } else { "" }, BAD),
        ]),
    };
    let second = model.status.as_ref().map_or_else(String::new, |status| {
        let core = &status.counters.core;
        let datapaths: Vec<String> =
            status.datapaths.iter().map(|d| format!("{} {}", d.kind, d.flows)).collect();
        format!(
            "datapaths: {}  reports {}  refused commands {}  panics {}",
            if datapaths.is_empty() { "none".to_owned() } else { datapaths.join(", ") },
            core.reports,
            core.refused_commands,
            core.panics
        )
    });
    frame.render_widget(Paragraph::new(vec![first, Line::from(second)]), area);
}

fn draw_total(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let [words, line] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let rate = model.total_rate.last().map_or_else(|| "-".to_owned(), |point| bit_rate(point.value));
    let more = match model.hidden_flows {
        0 => String::new(),
        hidden => format!(", {hidden} not listed"),
    };
    let flows = model.flows.len() + model.hidden_flows;
    frame.render_widget(Paragraph::new(format!("{flows} flows{more}, {rate} in all")), words);
    frame.render_widget(sparkline(&model.total_rate, line.width).style(Color::Cyan), line);
}

/// The newest points, as many as fit, as bars from the least to the largest value.
fn sparkline(series: &Series, width: u16) -> Sparkline<'static> {
    let skipped = series.points().len().saturating_sub(width.into());
    let values: Vec<f64> = series.points().skip(skipped).map(|point| point.value).collect();
    let least = values.iter().copied().fold(0.0, f64::min);
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    const STEPS: f64 = 1000.0;
    let bars: Vec<u64> = values.iter().map(|v| ((v - least) / (most - least) * STEPS) as u64).collect();
    Sparkline::default().data(bars).max(STEPS as u64)
}

fn draw_flows(frame: &mut Frame<'_>, area: Rect, model: &Model, ui: &Ui) {
    let header =
        ["datapath", "flow", "remote", "algorithm", "mode", "rate", "rtt ms", "min ms", "cwnd", "lost"];
    let rows = model.flows.iter().map(flow_row);
    let widths = [
        Constraint::Length(8),
        Constraint::Length(6),
        Constraint::Min(18),
        Constraint::Min(14),
        Constraint::Length(14),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(8),
    ];
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(HEADER))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(ui.selected(model));
    frame.render_stateful_widget(table, area, &mut state);
}

fn flow_row(flow: &FlowView) -> Row<'static> {
    let transport = &flow.record.transport;
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let mode_style = if flow.record.is_steered() { Style::new() } else { BAD };
    Row::new([
        Cell::from(flow.record.datapath.clone()),
        Cell::from(flow.record.flow.to_string()),
        Cell::from(flow.record.remote.to_string()),
        Cell::from(flow.algorithm()),
        Cell::from(flow.mode_words).style(mode_style),
        Cell::from(flow.rate.map_or_else(|| "-".to_owned(), bit_rate)),
        Cell::from(milliseconds(transport.srtt_us)),
        Cell::from(milliseconds(transport.min_rtt_us)),
        Cell::from(number(transport.snd_cwnd.map(u64::from))),
        Cell::from(number(transport.lost)),
    ])
}

/// The chosen flow.
fn chosen<'a>(model: &'a Model, ui: &Ui) -> Option<&'a FlowView> {
    model.flows.get(ui.selected(model)?)
}

fn draw_flow(frame: &mut Frame<'_>, area: Rect, model: &Model, ui: &Ui) {
    let Some(flow) = chosen(model, ui) else {
        return frame.render_widget(Paragraph::new("no flows").style(DIM), area);
    };
    let [words, charts] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    frame.render_widget(Paragraph::new(about(flow)), words);
    let Some(history) = &flow.history else { return };
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(charts);
    let points = |series: &Series, scale: f64| -> Vec<(f64, f64)> {
        series.points().map(|point| (point.at_s - model.at_s, point.value * scale)).collect()
    };
    chart(frame, left, "Mb/s", &points(&history.rate, 8e-6), Color::Cyan);
    chart(frame, right, "RTT ms", &points(&history.srtt_us, 1e-3), Color::Yellow);
}

/// Says on one line what is known of a flow beside its figures.
fn about(flow: &FlowView) -> String {
    let record = &flow.record;
    let mut words = vec![format!("{} flow {}", record.datapath, record.flow)];
    words.extend(record.program.as_ref().map(|program| format!("program {program}")));
    words.extend(record.state.clone());
    words.extend(record.arm.as_ref().map(|arm| format!("arm {} ({})", arm.name, arm.why)));
    words.extend(
        record.policy.as_ref().map(|p| format!("snapshot {} {}, {} decisions", p.uid, p.level, p.decisions)),
    );
    words.extend(
        record.instead_of.as_ref().map(|other| format!("instead of {}: {}", other.algorithm, other.why)),
    );
    words.extend(record.native_reason.clone());
    words.extend(record.last_error.as_ref().map(|error| format!("last error: {error}")));
    words.join("; ")
}

fn chart(frame: &mut Frame<'_>, area: Rect, title: &str, points: &[(f64, f64)], colour: Color) {
    let oldest = points.first().map_or(-1.0, |point| point.0).min(-1.0);
    let most = points.iter().map(|point| point.1).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let top = most * 1.05;
    let lines =
        Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).style(colour).data(points);
    let chart = Chart::new(vec![lines])
        .block(Block::new().title(title.to_owned()))
        .legend_position(None)
        .x_axis(
            Axis::default()
                .bounds([oldest, 0.0])
                .labels([format!("{oldest:.0} s"), "now".to_owned()])
                .style(DIM),
        )
        .y_axis(Axis::default().bounds([0.0, top]).labels(["0".to_owned(), format!("{top:.1}")]).style(DIM));
    frame.render_widget(chart, area);
}

fn draw_learning(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    if model.learners.is_empty() {
        let words = "nothing learns: no algorithm has a policy, or [learn] mode is \"off\"";
        return frame.render_widget(Paragraph::new(words).style(DIM), area);
    }
    let rows = Layout::vertical(model.learners.iter().map(|_| Constraint::Length(3))).split(area);
    for (learner, area) in model.learners.iter().zip(rows.iter()) {
        let [words, curve] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(*area);
        frame.render_widget(Paragraph::new(learner_words(learner)), words);
        frame.render_widget(sparkline(&learner.curve, curve.width).style(Color::Green), curve);
    }
}

fn learner_words(learner: &LearnerView) -> String {
    let record = &learner.record;
    let state = match (record.failed, record.adapting) {
        (true, _) => "failed",
        (false, true) => "adapts",
        (false, false) => "steady",
    };
    let reward = learner.curve.last().map_or_else(|| "-".to_owned(), |point| format!("{:.3}", point.value));
    format!(
        "{}: {state}, reward {reward}, {} rows, {} dropped, {} candidates, {:.1} s of processor time",
        record.algorithm, record.rows, record.dropped_rows, record.candidates, record.cpu_s
    )
}

fn draw_decisions(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let header = ["ago", "slot", "algorithm", "snapshot", "origin", "reward", "decision"];
    let row = |decision: &DecisionRecord| {
        let hash = decision.snapshot.as_deref().map_or("-", |hash| hash.get(..SHORT_HASH).unwrap_or(hash));
        let reward = decision.comparison.map_or_else(
            || "-".to_owned(),
            |c| format!("{:+.3} ±{:.3}, {} pairs", c.difference, c.uncertainty, c.pairs),
        );
        Row::new([
            duration(model.time_s - decision.time_s),
            format!("{} {}", decision.datapath, decision.slot),
            decision.algorithm.clone(),
            hash.to_owned(),
            decision.origin.clone(),
            reward,
            decision.text.clone(),
        ])
    };
    let widths = [
        Constraint::Length(13),
        Constraint::Length(10),
        Constraint::Length(12),
        Constraint::Length(12),
        Constraint::Length(9),
        Constraint::Length(25),
        Constraint::Min(10),
    ];
    let table = Table::new(model.decisions.iter().map(row), widths).header(Row::new(header).style(HEADER));
    frame.render_widget(table, area);
}

fn draw_arms(frame: &mut Frame<'_>, area: Rect, model: &Model, ui: &Ui) {
    let of = |arm: &ArmRecord| format!("{} {:.2}/{}", arm.name, arm.worth, arm.intervals);
    let evidence = |arms: &[ArmRecord]| arms.iter().map(of).collect::<Vec<_>>().join("  ");
    let standing = |s: &StandingRecord| {
        Line::from(format!("{} {} {}: {}", s.prefix, s.algorithm, s.arm, evidence(&s.evidence)))
    };
    let mut lines = vec![Line::styled("destination algorithm arm: worth/intervals of each", HEADER)];
    lines.extend(chosen(model, ui).and_then(|flow| flow.record.arm.as_ref()).map(|arm| {
        Line::from(format!(
            "chosen flow: {} ({}), {} switches: {}",
            arm.name,
            arm.why,
            arm.switches,
            evidence(&arm.evidence)
        ))
    }));
    lines.extend(model.standings.iter().map(standing));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), area);
}
