//! The flags of `ccplane snapshot`.

use super::{
    AgentPlace, QueryArgs, SnapshotBuildArgs, SnapshotInspectArgs, SnapshotKeygenArgs, SnapshotSignArgs,
    SnapshotVerifyArgs,
};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Snapshots: policies as integers, which datapaths decide by.
///
/// Algorithms with a policy bring a first snapshot; the agent learns beside their flows, and tries what it learned on a
/// share of them before all take it.
#[derive(Args, Debug)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SnapshotCommand {
    Build(SnapshotBuildArgs),
    Inspect(SnapshotInspectArgs),
    Verify(SnapshotVerifyArgs),
    Keygen(SnapshotKeygenArgs),
    Sign(SnapshotSignArgs),
    List(SnapshotListArgs),
    Push(SnapshotPushArgs),
    Rollback(SnapshotRollbackArgs),
}

/// List the policy slots of every datapath, what they hold, and what was decided of late.
///
/// Of each deployment: its number, its snapshot's hash, where it comes from, its age; the flows that decided by it
/// last, and their decisions. Of these it shows how many were out of bounds (saturated) and how many had inputs out
/// of range (clipped). Trips are how often the datapath's monitor made them fall back.
#[derive(Args, Debug)]
pub(crate) struct SnapshotListArgs {
    #[command(flatten)]
    pub(crate) query: QueryArgs,

    /// So many decisions, the latest.
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    pub(crate) decisions: usize,
}

/// Push a snapshot file into its algorithm's slot: first to a share of the flows, then, if their rewards are no worse, to
/// all.
#[derive(Args, Debug)]
pub(crate) struct SnapshotPushArgs {
    #[command(flatten)]
    pub(crate) place: AgentPlace,

    /// The snapshot file to push.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The slot; that of the snapshot's algorithm unless given.
    #[arg(long, value_name = "SLOT")]
    pub(crate) slot: Option<u8>,

    /// Share of the flows that try it, above 0 and below 1; the configuration's unless given.
    #[arg(long, value_name = "SHARE", conflicts_with = "force")]
    pub(crate) canary: Option<f64>,

    /// To all flows at once, untried.
    #[arg(long)]
    pub(crate) force: bool,

    /// Also if its signature has expired, or its sequence number is below that of a snapshot taken before.
    #[arg(long)]
    pub(crate) allow_older: bool,
}

/// Drop what a slot has on trial; where it has nothing on trial, make its last good snapshot active again.
#[derive(Args, Debug)]
pub(crate) struct SnapshotRollbackArgs {
    #[command(flatten)]
    pub(crate) place: AgentPlace,

    /// The slot, by its number in `ccplane snapshot list`.
    #[arg(value_name = "SLOT")]
    pub(crate) slot: u8,
}
