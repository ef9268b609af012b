//! The league: algorithms ranked on hundreds of links that are drawn at random.
//!
//! A [`Family`] is a kind of link, such as those with random loss; `FamilyLink::draw` draws its members from ranges by number. A
//! [`Set`] is for training, for validation or for the final test: the three have seeds of their own, and only the test reaches the
//! outermost ends of ranges. A [`Fixture`] is one algorithm on one link; [`play`] runs them on all cores, each in a virtual time of
//! its own, so that results do not depend on cores or order. [`Table`] scores them, [`page`] draws them.
//!
//! A link is a plan, as `ccplane run` takes it: [`FamilyLink::plan`] is its text.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agreement;
mod cell;
mod draw;
mod error;
mod family;
mod hour;
mod judging;
mod link;
pub mod page;
mod play;
mod record;
mod score;
mod set;
mod text;
mod traces;

pub use agreement::{Agreement, Both, Pair};
pub use cell::{Cell, Goal};
pub use draw::Draw;
pub use error::LeagueError;
pub use family::{Family, with_rivals};
pub use hour::{HELD_AGAINST, HourConfig, PlayedHour, Segment};
pub use judging::{CheckpointError, Count, Judged, JudgingConfig, JudgingError, Keeping, judging};
pub use link::{FamilyLink, MAX_LINKS};
pub use play::{Fixture, on_cores_until, play};
pub use record::{Permit, Use, record};
pub use score::{Standing, Summary, Table, Worst};
pub use set::{EVALUATION_SEED, Set};
pub use text::{heat, summary, table, worst};
pub use traces::{Traces, recordings};
