//! The page as a terminal shows it.

use super::{Panel, Ui, draw};
use crate::model::Model;
use crate::model::tests::{flow, learner, sample};
use ccplane_agent::control::{ArmRecord, DecisionRecord, StandingRecord};
use ccplane_core::{Comparison, Finding};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn screen(model: &Model, ui: &Ui, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, ui)).unwrap();
    terminal.backend().to_string()
}

/// Two seconds of an agent with three flows, of which the second delivers most, and one learner.
fn model() -> Model {
    let mut model = Model::default();
    for round in 0..3u64 {
        let flows = vec![flow(1, round * 125_000), flow(2, round * 1_250_000), flow(3, 0)];
        let mut sample =
            sample(round as f64, flows, vec![learner(100 * round, 50.0 * (round * round) as f64)]);
        let comparison = Comparison {
            pairs: 4,
            flows: 1,
            controls: 0,
            canary_mean: 1.5,
            active_mean: 1.0,
            difference: 0.5,
            t: Some(5.5),
            uncertainty: 0.4,
            margin: 0.05,
            finding: Finding::Better,
        };
        sample.snapshots.decisions = vec![DecisionRecord {
            time_s: 940.0,
            datapath: "quic".into(),
            algorithm: "aurora".into(),
            slot: 1,
            snapshot: Some("0123456789abcdef".into()),
            uid: Some(7),
            origin: "learned".into(),
            verdict: "promoted".into(),
            text: "promoted".into(),
            evidence: None,
            comparison: Some(comparison),
        }];
        sample.snapshots.standings = vec![StandingRecord {
            algorithm: "portfolio".into(),
            prefix: "192.0.2.0/24".into(),
            arm: "copa".into(),
            why: "cubic was worth -30 %".into(),
            evidence: vec![ArmRecord { name: "vegas".into(), intervals: 5, worth: 0.25 }],
        }];
        model.take(sample);
    }
    model
}

/// The words of the line that has this one.
fn line(screen: &str, with: &str) -> Vec<String> {
    let line =
        screen.lines().find(|line| line.contains(with)).unwrap_or_else(|| panic!("no {with}: {screen}"));
    line.trim_matches('"').split_whitespace().map(str::to_owned).collect()
}

#[test]
fn flows_are_listed_by_rate_with_their_figures() {
    let (model, mut ui) = (model(), Ui::default());
    ui.keep_within(&model);
    let screen = screen(&model, &ui, 120, 40);
    assert!(screen.contains("agent pid 4321  up 1 min 42 s  default cubic  2 rules"), "{screen}");
    assert!(screen.contains("3 flows, 11.00Mbps in all"), "{screen}");
    let header = screen.lines().position(|line| line.contains("rtt ms")).unwrap();
    let numbers: Vec<String> = screen
        .lines()
        .skip(header + 1)
        .take(3)
        .map(|line| line.trim_matches('"').split_whitespace().nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(numbers, ["2", "1", "3"]);
    assert_eq!(
        line(&screen, "10.00Mbps "),
        ["quic", "2", "192.0.2.2:40000", "portfolio/copa", "program", "10.00Mbps", "25.0", "20.0", "40", "2"]
    );
    assert!(screen.contains("quic flow 2; program copa; arm copa (best there)"), "{screen}");
    // Ten megabits a second for two samples, charted up to 5 % more.
    assert!(screen.contains("Mb/s") && screen.contains("10.5"), "{screen}");
}

#[test]
fn each_panel_shows_its_part() {
    let model = model();
    let with = |panel: Panel| screen(&model, &Ui { panel, ..Ui::default() }, 130, 40);
    let learning = with(Panel::Learning);
    // 100 rows with rewards of 150 in all came last.
    assert!(
        learning.contains("aurora: steady, reward 1.500, 200 rows, 0 dropped, 1 candidates"),
        "{learning}"
    );
    let decisions = with(Panel::Decisions);
    assert!(decisions.contains("0123456789ab") && !decisions.contains("0123456789abc"), "{decisions}");
    assert_eq!(line(&decisions, "promoted")[..3], ["1", "min", "2"]);
    assert!(decisions.contains("+0.500 ±0.400, 4 pairs"), "{decisions}");
    let arms = with(Panel::Arms);
    assert!(arms.contains("192.0.2.0/24 portfolio copa: vegas 0.25/5"), "{arms}");
}

#[test]
fn trouble_and_emptiness_are_said() {
    let mut empty = Model::default();
    assert!(screen(&empty, &Ui::default(), 100, 30).contains("asking the agent"));
    empty.fail("no agent runs at /run/ccplane/control.sock".into());
    let shown = screen(&empty, &Ui::default(), 100, 30);
    assert!(
        shown.contains("no agent runs at /run/ccplane/control.sock") && shown.contains("no flows"),
        "{shown}"
    );
    let learning = screen(&empty, &Ui { panel: Panel::Learning, ..Ui::default() }, 100, 30);
    assert!(learning.contains("nothing learns"), "{learning}");
}

/// Words that come from a flow's owner cannot change the terminal.
#[test]
fn control_characters_are_not_written() {
    let mut odd = flow(1, 0);
    odd.state = Some("\u{1b}]0;x\u{7}\u{1b}[2Jgone".into());
    let mut model = Model::default();
    model.take(sample(1.0, vec![odd], vec![]));
    let mut ui = Ui::default();
    ui.keep_within(&model);
    let shown = screen(&model, &ui, 120, 40);
    assert!(shown.contains("gone") && !shown.contains('\u{1b}') && !shown.contains('\u{7}'), "{shown:?}");
}

proptest! {
    #[test]
    fn a_terminal_of_any_size_is_drawn(width in 1u16..200, height in 1u16..60, panel in 0usize..4, flows in 0u64..40) {
        let mut model = model();
        let flows = (0..flows).map(|n| flow(n, n)).collect();
        model.take(sample(3.0, flows, vec![learner(300, f64::NAN), learner(0, 0.0)]));
        let mut ui = Ui { panel: Panel::ALL[panel], ..Ui::default() };
        ui.keep_within(&model);
        prop_assert_eq!(screen(&model, &ui, width, height).lines().count(), usize::from(height));
    }
}
