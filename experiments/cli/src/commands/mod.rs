//! The subcommands: each module runs one, with the arguments that [`crate::cli`] has parsed.

mod bench;
mod control;
mod demo;
mod deployments;
mod distill;
mod doctor;
mod evaluate;
mod fabric;
mod flows;
mod host;
mod invoked;
mod judging;
mod league;
mod manuals;
mod monitor;
mod new;
mod output;
mod pathing;
mod predict;
mod prog;
mod qlog;
mod qlog_file;
mod quic;
mod record;
mod run;
mod shells;
mod signals;
mod sim;
mod sizing;
mod snapshot;
mod trace;
mod train;
mod trained;
mod variants;

pub(crate) use bench::bench;
pub(crate) use control::{adopt, programs, reload, status, stop};
pub(crate) use demo::demo;
pub(crate) use distill::distill;
pub(crate) use doctor::doctor;
pub(crate) use evaluate::evaluate;
pub(crate) use flows::flows;
pub(crate) use host::host;
pub(crate) use invoked::Invoked;
pub(crate) use league::league;
pub(crate) use manuals::manuals;
pub(crate) use monitor::{top, web};
pub(crate) use new::new;
pub(crate) use predict::predict;
pub(crate) use prog::prog;
pub(crate) use qlog::qlog;
pub(crate) use quic::quic;
pub(crate) use record::record;
pub(crate) use run::run;
pub(crate) use shells::{mm_delay, mm_impair, mm_link, mm_loss, mm_onoff};
pub(crate) use sim::sim;
pub(crate) use trace::trace;
pub(crate) use train::train;

use crate::cli::SnapshotCommand;
use ccplane_agent::failure::Failure;
use std::process::ExitCode;

pub(crate) fn snapshot(command: &SnapshotCommand) -> Result<ExitCode, Failure> {
    match command {
        SnapshotCommand::Verify(args) => return snapshot::verify(args),
        SnapshotCommand::Build(args) => snapshot::build(args),
        SnapshotCommand::Inspect(args) => snapshot::inspect(args),
        SnapshotCommand::Keygen(args) => snapshot::keygen(args),
        SnapshotCommand::Sign(args) => snapshot::sign(args),
        SnapshotCommand::List(args) => deployments::list(args),
        SnapshotCommand::Push(args) => deployments::push(args),
        SnapshotCommand::Rollback(args) => deployments::rollback(args),
    }
    .map(|()| ExitCode::SUCCESS)
}
