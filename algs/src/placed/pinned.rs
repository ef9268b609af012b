//! An algorithm under a snapshot of its own, in a slot of its own: an arm of a portfolio beside the one that ships.

use super::LABEL_SIGN;
use crate::policy_program::PolicyProgram;
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Handover, PolicySource, ProgramSource, Report};
use ccplane_program::ir::MAX_POLICY_SLOTS;
use ccplane_snapshot::{Hash, Snapshot, TrustedSnapshot};
use std::ops::Range;
use std::sync::Arc;

/// The first slot that no algorithm here asks.
const FIRST_FREE_SLOT: u8 = 6;
/// Digits of the hash in the name.
const DIGITS: usize = 8;

/// Counts out the slots that no algorithm here asks: one for each snapshot that is tried.
pub fn free_slots() -> Range<u8> {
    FIRST_FREE_SLOT..MAX_POLICY_SLOTS as u8
}

/// Reasons to refuse an algorithm a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnfitSnapshot {
    /// The programs ask no policy, or several.
    #[error("`{algorithm}` asks no policy of its own")]
    NoPolicy { algorithm: &'static str },
    /// The snapshot sees or decides something else.
    #[error("snapshot {hash} is of `{of}`, or has other inputs or another action than that of `{algorithm}`")]
    Other { algorithm: &'static str, hash: Hash, of: String },
}

// State

/// The agent's side of a flow whose intervals are not learned from, since learners belong to the shipped snapshots.
struct Pinned {
    flow: Box<dyn Flow>,
    control: Control,
}

// Behaviour

impl Flow for Pinned {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        self.flow.on_report(now_us, report, &mut self.control);
        self.control.take_rows();
        pass_on(&self.control, control);
        self.control.clear();
    }

    fn on_lost_reports(&mut self, count: u32) {
        self.flow.on_lost_reports(count);
    }

    fn on_close(&mut self) {
        self.flow.on_close();
    }

    fn rivals(&self) -> Option<bool> {
        self.flow.rivals()
    }

    fn kept(&self) -> Vec<(&'static str, i64)> {
        self.flow.kept()
    }

    fn state(&self) -> Option<&'static str> {
        self.flow.state()
    }
}

fn pass_on(asked: &Control, control: &mut Control) {
    for request in asked.requests() {
        match request.program {
            Some(program) => control.set_program(program, request.fields),
            None => control.update(request.fields),
        }
    }
}

// Factory

/// Makes flows of an algorithm that ask another snapshot than the one that ships.
#[derive(Clone)]
pub struct WithSnapshot {
    algorithm: Arc<dyn Algorithm>,
    name: &'static str,
    programs: Vec<ProgramSource>,
    slot: u8,
    snapshot: &'static [u8],
}

impl WithSnapshot {
    /// `slot` is nobody else's. Names, programs and the snapshot stay in memory until the process ends.
    ///
    /// # Errors
    /// The snapshot does not fit the algorithm: [`UnfitSnapshot`] says why.
    pub fn new(
        algorithm: Arc<dyn Algorithm>,
        snapshot: &TrustedSnapshot,
        slot: u8,
    ) -> Result<WithSnapshot, UnfitSnapshot> {
        let of = algorithm.name();
        let none = UnfitSnapshot::NoPolicy { algorithm: of };
        let [shipped] = &algorithm.policies()[..] else { return Err(none) };
        let fits =
            Snapshot::built_in(shipped.snapshot).is_ok_and(|shipped| sees_the_same(&shipped, snapshot));
        if !fits {
            let (hash, other) = (snapshot.hash(), snapshot.spec().algorithm().to_owned());
            return Err(UnfitSnapshot::Other { algorithm: of, hash, of: other });
        }
        let programs = algorithm.programs().into_iter().map(|program| {
            let source: &'static str = asking(program.source, slot)?.leak();
            Some(ProgramSource { source, ..program })
        });
        let programs = programs.collect::<Option<Vec<_>>>().ok_or(none)?;
        let digits: String = snapshot.hash().to_string().chars().take(DIGITS).collect();
        let name: &'static str = format!("{of}{LABEL_SIGN}{digits}").leak();
        Ok(WithSnapshot { algorithm, name, programs, slot, snapshot: snapshot.to_bytes().leak() })
    }
}

/// The name of the algorithm that one of this name runs.
pub(crate) fn algorithm_of(name: &str) -> &str {
    name.split(LABEL_SIGN).next().unwrap_or(name)
}

/// Whether inputs and action mean the same. Ranges may differ, and so may the layers between.
fn sees_the_same(one: &Snapshot, other: &Snapshot) -> bool {
    let (one, other) = (one.spec(), other.spec());
    let names = one.inputs().iter().zip(other.inputs()).all(|(one, other)| one.name == other.name);
    let counts = one.inputs().len() == other.inputs().len();
    names && counts && one.algorithm() == other.algorithm() && one.action() == other.action()
}

/// The program, asking the other slot.
fn asking(source: &str, slot: u8) -> Option<String> {
    PolicyProgram::of(source)?.asking(&format!("(policy {slot})"))
}

impl Algorithm for WithSnapshot {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<ProgramSource> {
        self.programs.clone()
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        Box::new(Pinned { flow: self.algorithm.flow(info, control), control: Control::default() })
    }

    fn resume(&self, info: &FlowInfo, from: &Handover, control: &mut Control) -> Box<dyn Flow> {
        Box::new(Pinned { flow: self.algorithm.resume(info, from, control), control: Control::default() })
    }

    fn policies(&self) -> Vec<PolicySource> {
        // Without the float policy there is nothing that learning could go on from.
        vec![PolicySource { slot: self.slot, snapshot: self.snapshot, policy: Arc::new([]) }]
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aurora::Aurora;
    use crate::mocc::Mocc;
    use crate::neural::Neural;
    use crate::reno::RENO;
    use crate::testing::reported;
    use ccplane_program::compile;
    use ccplane_snapshot::{Admission, Trust};

    /// The shipped snapshot of an algorithm under another seed's name.
    fn another(algorithm: &dyn Algorithm) -> TrustedSnapshot {
        let shipped = algorithm.policies().remove(0);
        let mut parts = Snapshot::built_in(shipped.snapshot).unwrap().into_parts();
        parts.provenance.seed += 1;
        Trust::OURS.admit(Snapshot::new(parts).unwrap(), &Admission::default()).unwrap()
    }

    #[test]
    fn no_algorithm_here_asks_a_free_slot_and_no_two_the_same() {
        let all = crate::all().into_iter().chain(crate::on_packets());
        let mut slots: Vec<u8> = all.flat_map(|a| a.policies()).map(|policy| policy.slot).collect();
        assert!(slots.len() >= 5 && slots.iter().all(|slot| *slot < FIRST_FREE_SLOT), "{slots:?}");
        let all = slots.len();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), all);
    }

    #[test]
    fn only_slot_name_and_snapshot_are_others() {
        for algorithm in [
            Arc::new(Aurora::default()) as Arc<dyn Algorithm>,
            Arc::new(Mocc::default()),
            Arc::new(Neural::default()),
        ] {
            let snapshot = another(&*algorithm);
            let pinned = WithSnapshot::new(Arc::clone(&algorithm), &snapshot, 7).unwrap();
            let digits: String = snapshot.hash().to_string().chars().take(8).collect();
            assert_eq!(pinned.name(), format!("{}@{digits}", algorithm.name()));
            assert_eq!(algorithm_of(pinned.name()), algorithm.name());
            let [own, theirs] =
                [&pinned as &dyn Algorithm, &*algorithm].map(|a| compile(a.programs()[0].source).unwrap());
            assert_eq!((own.policy_slots(), own.insts().len()), (vec![7], theirs.insts().len()));
            assert_eq!(own.histories(), theirs.histories());
            let policy = pinned.policies().remove(0);
            assert_eq!(Snapshot::built_in(policy.snapshot).unwrap().hash(), snapshot.hash());
            assert!(policy.slot == 7 && !pinned.learns());
        }
    }

    #[test]
    fn the_first_free_slot_follows_those_of_all_algorithms() {
        let path: Arc<dyn Algorithm> = Arc::new(crate::Path::default());
        let all = crate::all().into_iter().chain(crate::on_packets()).chain([path]);
        let slots = all.flat_map(|algorithm| algorithm.policies()).map(|policy| policy.slot);
        assert_eq!(slots.max(), Some(FIRST_FREE_SLOT - 1));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let of_mocc = another(&Mocc::default());
        let refused =
            |algorithm: Arc<dyn Algorithm>| WithSnapshot::new(algorithm, &of_mocc, 7).err().unwrap();
        let other = refused(Arc::new(Aurora::default())).to_string();
        assert!(other.contains("is of `mocc`") && other.contains(&of_mocc.hash().to_string()), "{other}");
        assert_eq!(refused(Arc::new(RENO)), UnfitSnapshot::NoPolicy { algorithm: "reno" });
    }

    /// The algorithm steers its flow and teaches no learner.
    #[test]
    fn flows_are_steered_and_taught_nobody() {
        let aurora: Arc<dyn Algorithm> = Arc::new(Aurora::default());
        let pinned = WithSnapshot::new(Arc::clone(&aurora), &another(&*aurora), 7).unwrap();
        let program = compile(pinned.programs()[0].source).unwrap();
        let names = reported(&program);
        let values: Vec<i64> = names.iter().map(|_| 1000).collect();
        let rows = |algorithm: &dyn Algorithm| {
            let mut control = Control::default();
            let mut flow = algorithm.flow(&FlowInfo::example(1448, 14_480), &mut control);
            let set: Vec<_> = control.requests().map(|r| (r.program, r.fields.to_vec())).collect();
            for n in 0..20 {
                let report = Report { program: "aurora", names: &names, values: &values, truth: None };
                flow.on_report(n * 100_000, &report, &mut control);
            }
            (set, control.take_rows().len())
        };
        let (own, theirs) = (rows(&pinned), rows(&*aurora));
        assert_eq!(own.0, theirs.0);
        assert!(own.1 == 0 && theirs.1 > 0, "{} {}", own.1, theirs.1);
    }
}
