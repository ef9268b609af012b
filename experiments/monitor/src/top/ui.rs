//! The choices of the page's user, and the keys that change them.

use crate::model::{FlowKey, FlowView, Model};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::ops::ControlFlow;

/// Rows that the keys for a page move by.
const PAGE_ROWS: usize = 10;

/// The panel below the list of flows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Panel {
    /// Rate and round-trip time of the chosen flow.
    #[default]
    Flow,
    Learning,
    Decisions,
    Arms,
}

impl Panel {
    /// All, in the order of the keys 1 to 4.
    pub const ALL: [Panel; 4] = [Panel::Flow, Panel::Learning, Panel::Decisions, Panel::Arms];

    /// The name on its tab.
    pub fn name(self) -> &'static str {
        match self {
            Panel::Flow => "1 Flow",
            Panel::Learning => "2 Learning",
            Panel::Decisions => "3 Decisions",
            Panel::Arms => "4 Arms",
        }
    }

    /// Its place among [`Panel::ALL`].
    pub fn index(self) -> usize {
        Panel::ALL.iter().position(|panel| *panel == self).unwrap_or(0)
    }

    fn next(self) -> Panel {
        Panel::ALL[(self.index() + 1) % Panel::ALL.len()]
    }
}

/// The user's choices.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Ui {
    pub panel: Panel,
    /// Whether samples are ignored.
    pub paused: bool,
    /// The chosen flow, which stays chosen where it moves in the list.
    pub(super) chosen: Option<FlowKey>,
}

impl Ui {
    /// Returns the place of the chosen flow in the list.
    pub fn selected(&self, model: &Model) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        model.flows.iter().position(|flow| flow.key() == *chosen)
    }

    /// Chooses the first flow where none is chosen, or the chosen one has ended.
    pub fn keep_within(&mut self, model: &Model) {
        if self.selected(model).is_none() {
            self.choose(model, 0);
        }
    }

    fn choose(&mut self, model: &Model, index: usize) {
        let last = model.flows.len().saturating_sub(1);
        let flow = model.flows.get(index.min(last));
        self.chosen = flow.map(FlowView::key);
    }

    /// Takes a key; breaks where it leaves the page.
    pub fn press(&mut self, key: KeyEvent, model: &Model) -> ControlFlow<()> {
        let at = self.selected(model).unwrap_or(0);
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return ControlFlow::Break(());
            }
            KeyCode::Char('q') | KeyCode::Esc => return ControlFlow::Break(()),
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('j') | KeyCode::Down => self.choose(model, at + 1),
            KeyCode::Char('k') | KeyCode::Up => self.choose(model, at.saturating_sub(1)),
            KeyCode::PageDown => self.choose(model, at + PAGE_ROWS),
            KeyCode::PageUp => self.choose(model, at.saturating_sub(PAGE_ROWS)),
            KeyCode::Home => self.choose(model, 0),
            KeyCode::End => self.choose(model, usize::MAX),
            KeyCode::Tab => self.panel = self.panel.next(),
            KeyCode::Char(digit @ '1'..='4') => {
                self.panel = Panel::ALL[usize::from(digit as u8 - b'1')];
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{flow, sample};

    #[test]
    fn keys_choose_flows_and_panels() {
        let mut model = Model::default();
        for (at_s, grown) in [(1.0, 0), (2.0, 100)] {
            model.take(sample(at_s, (1..=3).map(|n| flow(n, grown * n)).collect(), vec![]));
        }
        let mut ui = Ui::default();
        let press = |ui: &mut Ui, model: &Model, code: KeyCode| ui.press(KeyEvent::from(code), model);
        ui.keep_within(&model);
        assert_eq!(ui.selected(&model), Some(0));
        for (code, selected) in [
            (KeyCode::Down, 1),
            (KeyCode::Char('j'), 2),
            (KeyCode::Down, 2),
            (KeyCode::Up, 1),
            (KeyCode::End, 2),
            (KeyCode::PageUp, 0),
            (KeyCode::PageDown, 2),
            (KeyCode::Home, 0),
        ] {
            assert!(press(&mut ui, &model, code).is_continue());
            assert_eq!(ui.selected(&model), Some(selected), "{code:?}");
        }
        let chosen = model.flows[0].record.flow;
        // Another one delivers more now.
        model.take(sample(3.0, vec![flow(1, 90_000), flow(2, 200), flow(3, 300)], vec![]));
        ui.keep_within(&model);
        assert_eq!(ui.selected(&model).map(|at| model.flows[at].record.flow), Some(chosen));
        model.take(sample(4.0, vec![flow(1, 90_000)], vec![]));
        ui.keep_within(&model);
        assert_eq!(ui.selected(&model), Some(0), "the chosen one has ended");

        for panel in Panel::ALL.into_iter().cycle().skip(1).take(4) {
            let _ = press(&mut ui, &model, KeyCode::Tab);
            assert_eq!(ui.panel, panel);
        }
        let _ = press(&mut ui, &model, KeyCode::Char('3'));
        assert_eq!(ui.panel, Panel::Decisions);
        let _ = press(&mut ui, &model, KeyCode::Char('p'));
        assert!(ui.paused);
        assert!(press(&mut ui, &model, KeyCode::Char('q')).is_break());
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(ui.press(interrupt, &model).is_break());
    }
}
