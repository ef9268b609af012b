//! `ccplane top` and `ccplane web`: live pages of the running agent.

use super::output::print;
use super::signals::stop_on_signals;
use crate::cli::{AgentPlace, TopArgs, WebArgs};
use ccplane_agent::failure::Failure;
use ccplane_monitor::source::Target;
use ccplane_monitor::top::{self, TopError};
use ccplane_monitor::web::{Server, Token, WebError};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

fn target(place: &AgentPlace, every_s: f64) -> Result<Target, Failure> {
    let located = place.locate(None)?;
    let timeout = located.config.control.timeout_ms.millis();
    Ok(Target { socket: located.control_socket, timeout, every: Duration::from_secs_f64(every_s) })
}

pub(crate) fn top(args: &TopArgs) -> Result<(), Failure> {
    let target = target(&args.place, args.every)?;
    let stop = stop_on_signals()?;
    top::run(target, &stop).map_err(|error| match error {
        TopError::NoTerminal => Failure::input(error),
        TopError::Io(_) => Failure::runtime(error),
    })
}

pub(crate) fn web(args: &WebArgs) -> Result<(), Failure> {
    let target = target(&args.place, args.every)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let token = Token::random().map_err(Failure::runtime)?;
        let server = Server::bind(args.listen, token, target).await.map_err(|error| match error {
            WebError::NotLoopback(_) => Failure::input(error),
            error => Failure::runtime(error),
        })?;
        print(&format!("{}\n", server.url()))?;
        let stop = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        server.serve(stop).await;
        Ok(())
    })
}
