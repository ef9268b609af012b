//! A host as its network traffic meets it: processors, nodes, interfaces, queues, interrupts, and the settings that decide
//! where packets are worked on.
//!
//! [`Machine`] reads a host's files, [`Topology`] says what is there, and [`Setting`] names what can be changed.
//! [`Journal`] holds the old value of each change before it is made, so that [`Journal::undo`] takes all of them back.
//!
//! A [`Space`] is what can be varied, a [`Subject`] what is varied: this host ([`LiveHost`]), or a model of one ([`ModelHost`]).
//! [`sweep`] measures a space's cells into a [`Table`], [`learn`] learns from it, [`tune`] searches for what carries more.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cpus;
mod ethtool;
mod journal;
mod learn;
mod live;
mod machine;
mod model;
mod napi;
mod page;
mod picture;
mod sample;
mod setting;
mod space;
mod state;
mod subject;
mod sweep;
mod table;
mod topology;
mod tune;

pub use cpus::{CpuSet, CpuSetError, MAX_CPUS};
pub use ethtool::{EthtoolError, Group, Values};
pub use journal::{Applied, Entry, Journal, JournalError, MAX_JOURNAL_BYTES, UndoOutcome, Undone};
pub use learn::{
    Coalescing, Component, CsvColumns, Encoder, Ensemble, EnsembleConfig, Features, Frame, FrameError,
    FrameRow, Groups, GroupsError, HeldOut, HostLearnError, Input, InputKind, LearnConfig, Learned,
    MAX_COLUMNS, MAX_CSV_BYTES, MAX_GROUPS, MIN_SETTINGS, PerceptronError, Prediction, Predictors,
    SettingGroup, Telling, TooManyInputs, best_coalescing, group, learn,
};
pub use live::{
    BadKnob, KnobError, LiveError, LiveHost, LiveOptions, MAX_DURATION, MAX_FLOWS, NamedInterface, PerfError,
    WantedKnob,
};
pub use machine::{MAX_FILE_BYTES, Machine};
pub use model::{BadModelSize, CORES, Costs, MAX_NODES, MODEL_INTERFACE, ModelHost, ModelSize};
pub use page::{Page, learned_section, settings_section, swept_section, tuned_section};
pub use picture::{MarkedWork, picture};
pub use sample::{EfficiencyUnit, Sample};
pub use setting::{Setting, SettingError, UnknownSetting};
pub use space::{Cell, Knob, MAX_CELLS, MAX_KNOBS, MAX_LEVELS, Role, Space, SpaceError};
pub use state::{SettingState, states};
pub use subject::{Fault, Subject};
pub use sweep::{MAX_FAILURES, SweepEnd, SweepOptions, SweepStep, Swept, drawn, sweep};
pub use table::{MAX_TABLE_BYTES, Row, RowOutcome, Source, TABLE_VERSION, Table, TableError, TableHeader};
pub use topology::{Cache, Interface, Interrupt, Node, Processor, Topology};
pub use tune::{
    Best, DEFAULT_REPEATS, DEFAULT_TRIALS, MIN_GAIN, Objective, Search, SearchError, Told, Trial, TuneEnd,
    TuneError, TuneOptions, Tuned, tune,
};
