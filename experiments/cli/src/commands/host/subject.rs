//! The host or model that `ccplane host measure` and `ccplane host tune` work on, from their arguments.

use crate::cli::SubjectArgs;
use ccplane_agent::failure::Failure;
use ccplane_host::{
    Cell, Costs, Knob, LiveError, LiveHost, LiveOptions, MODEL_INTERFACE, MarkedWork, ModelHost,
    NamedInterface, Role, Setting, Source, Space, Subject, TableHeader, Topology,
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::Path;
use std::time::Duration;

/// Flows of a model, where no number is given.
const MODEL_FLOWS: u32 = 4;
/// The most drawings in a second.
const DRAWINGS_PER_S: u8 = 5;
const BAR: &str = "{bar:24} {pos}/{len}  {eta} left  {msg}";

/// The host at hand, or a model of one.
pub(super) enum Host {
    Live(Box<LiveHost>),
    Model(Box<ModelHost>),
}

/// A host, with the header that its measurements get.
pub(super) struct Opened {
    pub(super) host: Host,
    pub(super) header: TableHeader,
    /// Whether it is an interface of this host that the user named.
    pub(super) is_named: bool,
}

impl Opened {
    pub(super) fn new(args: &SubjectArgs, journal: &Path) -> Result<Opened, Failure> {
        let about = ccplane_runner::host::here(std::env::args().collect::<Vec<_>>().join(" "));
        let header = |source, space: &Space, flows, nodes| TableHeader {
            flows,
            duration_ms: args.duration_ms,
            seed: args.seed,
            nodes,
            ..TableHeader::new(source, space.clone(), about.clone())
        };
        if let Some(size) = args.model {
            let flows = args.flows.unwrap_or(MODEL_FLOWS);
            let model = ModelHost::new(size, Costs::default(), flows, args.seed).map_err(Failure::input)?;
            let source = Source::Model { nodes: size.nodes, cores_per_node: size.cores_per_node };
            let header = header(source, model.space(), flows, model.nodes());
            return Ok(Opened { host: Host::Model(Box::new(model)), header, is_named: false });
        }
        let pair = args.interface.clone().zip(args.peer.clone());
        let named = pair.map(|(interface, peer)| NamedInterface { interface, peer });
        let options = LiveOptions {
            flows: args.flows.unwrap_or(1),
            duration: Duration::from_millis(args.duration_ms),
            named,
            knobs: args.knob.clone(),
            journal: journal.to_owned(),
        };
        let live = LiveHost::new(&options).map_err(|error| match error {
            LiveError::NoInterface { .. } | LiveError::Knobs(_) | LiveError::Bounds { .. } => {
                Failure::input(error)
            }
            error => Failure::runtime(error),
        })?;
        let is_named = options.named.is_some();
        let source = Source::Host { interface: live.interface().to_owned(), is_own: !is_named };
        let header = header(source, live.space(), options.flows, live.nodes());
        Ok(Opened { host: Host::Live(Box::new(live)), header, is_named })
    }

    pub(super) fn subject(&mut self) -> &mut dyn Subject {
        match &mut self.host {
            Host::Live(live) => live.as_mut(),
            Host::Model(model) => model.as_mut(),
        }
    }

    pub(super) fn topology(&self) -> Topology {
        match &self.host {
            Host::Live(live) => live.topology().clone(),
            Host::Model(model) => model.topology(),
        }
    }

    pub(super) fn interface(&self) -> &str {
        match &self.host {
            Host::Live(live) => live.interface(),
            Host::Model(_) => MODEL_INTERFACE,
        }
    }

    /// Returns the processors that work may be placed on.
    fn processors(&self) -> Vec<u32> {
        match &self.host {
            Host::Live(live) => live.processors().to_vec(),
            Host::Model(model) => model.nodes().into_iter().flatten().collect(),
        }
    }

    /// Returns the cores that an agent's loops are best kept to in a cell: those that wake them, where the kernel works on packets.
    pub(super) fn agent_cores(&self, cell: &Cell) -> Vec<u32> {
        self.header.space.stack(cell, self.header.flows, &self.processors())
    }

    /// Returns the place of each process in a cell.
    pub(super) fn places(&self, cell: &Cell) -> Vec<MarkedWork> {
        let places = self.header.space.places(cell, self.header.flows, &self.processors());
        places.into_iter().map(|(name, processors)| MarkedWork { name, processors }).collect()
    }

    /// Returns the commands that bring the host into a cell; those of a model would do so if it were one.
    pub(super) fn commands(&self, cell: &Cell) -> Vec<String> {
        let mut commands = match &self.host {
            Host::Live(live) => live.commands(cell),
            Host::Model(_) => settings_of(&self.header.space, cell),
        };
        let application = self.header.space.knobs().iter().position(|knob| knob.role == Role::Application);
        let place = application.map(|knob| self.header.space.values(cell)[knob]).unwrap_or_default();
        if !place.is_empty() {
            commands.push(format!("taskset -acp {place} PID  # the process that receives"));
        }
        commands
    }

    /// Describes the changes and measurements without making them.
    pub(super) fn dry_run(&self) -> String {
        let (space, default) = (&self.header.space, self.header.space.default_cell());
        let mut text = format!(
            "# would try combinations of {} settings of {}, {} in all, by commands such as these:\n",
            space.knobs().len(),
            self.interface(),
            space.cells()
        );
        for (n, knob) in space.knobs().iter().enumerate() {
            for level in (0..knob.levels.len()).filter(|level| *level != knob.default) {
                let mut cell = default.clone();
                cell.0[n] = level;
                self.commands(&cell).iter().for_each(|command| text += &format!("{command}\n"));
            }
        }
        text + "# nothing was changed: --apply makes the changes\n"
    }
}

fn settings_of(space: &Space, cell: &Cell) -> Vec<String> {
    let command = |(knob, level): (&Knob, &usize)| {
        let Role::Settings(names) = &knob.role else { return Vec::new() };
        let settings = names.iter().filter(|_| *level != knob.default).filter_map(|name| name.parse().ok());
        settings.filter_map(|setting: Setting| setting.command(&knob.levels[*level]).ok()).collect()
    };
    space.knobs().iter().zip(&cell.0).flat_map(command).collect()
}

/// A bar on standard error, since standard output is for results; it is hidden where that is no terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new() -> Bar {
        Bar::on(ProgressDrawTarget::stderr_with_hz(DRAWINGS_PER_S))
    }

    fn on(target: ProgressDrawTarget) -> Bar {
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template(BAR).map(|style| style.progress_chars("█░"));
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Bar(bar)
    }

    /// Shows so many of all, and what is at hand.
    pub(super) fn draw(&mut self, done: u64, total: u64, says: &str) {
        self.0.set_length(total);
        self.0.set_position(done);
        self.0.set_message(crate::commands::output::shown(says));
    }
}

impl Drop for Bar {
    /// Leaves the terminal as it was.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::InMemoryTerm;

    #[test]
    fn a_sweep_shows_its_share() {
        let terminal = InMemoryTerm::new(4, 120);
        let mut bar = Bar::on(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        bar.draw(30, 60, "gro=on");
        bar.0.force_draw();
        let text = terminal.contents();
        assert!(text.starts_with("████████████░░░░░░░░░░░░ 30/60  "), "{text}");
        assert!(text.ends_with(" left  gro=on"), "{text}");
        drop(bar);
        assert_eq!(terminal.contents(), "");
    }
}
