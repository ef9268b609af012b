//! The algorithms that there are, their programs compiled once, and the meaning of field names.

use crate::action::Fields;
use crate::limits::{MAX_ALGORITHMS, MAX_FIELDS, MAX_POLICIES, MAX_PROGRAMS};
use crate::panics::catch;
use crate::rules::NATIVE;
use ccplane_alg::{Algorithm, PolicySource};
use ccplane_contract::{Capabilities, Field, ProgramUid};
use ccplane_program::ir::{
    Hook, MAX_CWND_BYTES, MAX_POLICY_SLOTS, MAX_RATE_BYTES_PER_S, Program, RegDecl, RegId, RegKind, Type,
};
use ccplane_program::{Diagnostic, compile};
use ccplane_snapshot::{Admission, Snapshot, SnapshotError, Trust, TrustedSnapshot};
use std::borrow::Cow;
use std::sync::Arc;

/// The prefix by which report registers are declared.
const REPORT_PREFIX: &str = "Report.";

/// A compiled fold program.
#[derive(Debug)]
pub struct Compiled {
    uid: ProgramUid,
    algorithm: &'static str,
    name: Cow<'static, str>,
    program: Arc<Program>,
    report_names: Vec<String>,
    pub(crate) policy_slots: Vec<u8>,
}

impl Compiled {
    fn new(uid: u32, algorithm: &'static str, name: Cow<'static, str>, program: Program) -> Arc<Compiled> {
        Arc::new(Compiled {
            uid: ProgramUid(uid),
            algorithm,
            name,
            report_names: report_names(&program),
            policy_slots: program.policy_slots(),
            program: Arc::new(program),
        })
    }

    /// The same on every datapath.
    pub fn uid(&self) -> ProgramUid {
        self.uid
    }
    /// Returns the name of the algorithm that the program belongs to.
    pub fn algorithm(&self) -> &'static str {
        self.algorithm
    }
    /// Its name within the algorithm.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Returns the checked program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }
    /// The report registers, `Report.` prefix left out, in report order.
    pub fn report_names(&self) -> &[String] {
        &self.report_names
    }

    /// Resolves names of a command to a datapath's fields, and appends those with their values to `resolved`.
    pub(crate) fn resolve(
        &self,
        fields: &[(&'static str, i64)],
        resolved: &mut Fields,
    ) -> Result<(), CommandError> {
        if fields.len() > MAX_FIELDS {
            return Err(CommandError::TooManyFields { found: fields.len(), limit: MAX_FIELDS });
        }
        for (name, value) in fields {
            resolved.push((self.field(name, *value)?, *value));
        }
        Ok(())
    }

    #[inline]
    fn field(&self, name: &'static str, value: i64) -> Result<Field, CommandError> {
        let program = || self.name.clone().into_owned();
        let (field, min, max) = match name {
            "Cwnd" => (Field::Cwnd, 1, MAX_CWND_BYTES),
            "Rate" => (Field::Rate, 0, MAX_RATE_BYTES_PER_S),
            _ => match self.register(name) {
                Some((_, RegDecl { kind: RegKind::Report, .. })) => {
                    return Err(CommandError::ReportField { program: program(), field: name });
                }
                Some((_, RegDecl { kind: RegKind::Local, .. })) | None => {
                    return Err(CommandError::UnknownField { program: program(), field: name });
                }
                Some((reg, RegDecl { ty: Type::Bool, .. })) => (Field::Reg(reg), 0, 1),
                Some((reg, _)) => (Field::Reg(reg), i64::MIN, i64::MAX),
            },
        };
        if value < min || value > max {
            return Err(CommandError::OutOfRange { program: program(), field: name, value, min, max });
        }
        Ok(field)
    }

    /// The register of this name, with or without its `Report.` prefix.
    fn register(&self, name: &str) -> Option<(RegId, &RegDecl)> {
        let regs = self.program.regs();
        let position = |wanted: &dyn Fn(&RegDecl) -> bool| regs.iter().position(wanted);
        let found = position(&|r| r.name == name)
            .or_else(|| position(&|r| r.name.strip_prefix(REPORT_PREFIX) == Some(name)))?;
        Some((RegId::try_from(found).ok()?, regs.get(found)?))
    }
}

/// Reasons why a command of an algorithm was not carried out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The algorithm has no such program.
    #[error("there is no program `{program}`")]
    UnknownProgram {
        /// The name it gave.
        program: &'static str,
    },
    /// An update before the first program.
    #[error("no program is set, so nothing can be updated")]
    NoProgram,
    /// The program has no control register of that name.
    #[error("program `{program}` has no control register `{field}`")]
    UnknownField {
        program: String,
        /// The name it gave.
        field: &'static str,
    },
    /// Report registers are the program's to write.
    #[error("`{field}` of program `{program}` is a report register: only the program writes it")]
    ReportField {
        program: String,
        /// The name it gave.
        field: &'static str,
    },
    /// A value that the field cannot take.
    #[error("`{field}` of program `{program}` cannot be {value}: {min} to {max} are allowed")]
    OutOfRange {
        program: String,
        field: &'static str,
        /// The value it gave.
        value: i64,
        min: i64,
        max: i64,
    },
    /// Too many fields in one command.
    #[error("{found} fields in one command, at most {limit} are allowed")]
    TooManyFields { found: usize, limit: usize },
    /// Too many commands in one call; this and later ones were not carried out.
    #[error("{found} commands in one call, at most {limit} are allowed")]
    TooManyCommands { found: usize, limit: usize },
    /// The datapath is behind.
    #[error("{limit} commands wait for the datapath, the most there may be")]
    QueueFull { limit: usize },
    /// The datapath refused an update.
    #[error("the datapath refused the update: {0}")]
    Datapath(ccplane_contract::DatapathError),
}

/// Reasons why algorithms cannot be registered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// Too many of something.
    #[error("{found} {what}, at most {limit} are allowed")]
    TooMany { what: &'static str, found: usize, limit: usize },
    /// Two algorithms of one name, or one named [`NATIVE`].
    #[error("the name `{name}` of an algorithm is taken")]
    NameTaken { name: &'static str },
    /// Two programs of one name.
    #[error("algorithm `{algorithm}` has two programs `{program}`")]
    ProgramNameTaken { algorithm: &'static str, program: &'static str },
    /// A program that does not compile.
    #[error("program `{program}` of algorithm `{algorithm}`: {}", first(diagnostics))]
    Compile {
        algorithm: &'static str,
        program: &'static str,
        /// All that is wrong with it.
        diagnostics: Vec<Diagnostic>,
    },
    /// A policy's snapshot that is none.
    #[error("the snapshot of algorithm `{algorithm}` for policy slot {slot}: {reason}")]
    Snapshot { algorithm: &'static str, slot: u8, reason: String },
    /// A slot that datapaths do not have.
    #[error("algorithm `{algorithm}` uses policy slot {slot}: there are slots 0 to {}", MAX_POLICY_SLOTS - 1)]
    NoSuchSlot { algorithm: &'static str, slot: u8 },
    /// Two policies for one slot.
    #[error("algorithms `{first}` and `{second}` both use policy slot {slot}")]
    SlotTaken {
        slot: u8,
        first: &'static str,
        /// The other algorithm that asks for it.
        second: &'static str,
    },
    /// A program's histories do not fit the inputs of its policy.
    #[error(
        "the histories of program `{program}` of algorithm `{algorithm}` have {cells} cells, its policy takes {inputs}"
    )]
    Inputs {
        algorithm: &'static str,
        program: &'static str,
        /// Cells of the program's histories.
        cells: usize,
        /// Inputs of the policy.
        inputs: usize,
    },
    /// An arm that has arms itself.
    #[error("`{arm}` cannot be an arm of algorithm `{algorithm}`: it has arms itself")]
    NestedArms {
        /// The name of the algorithm that chooses.
        algorithm: &'static str,
        /// The name of the arm that has arms.
        arm: &'static str,
    },
    /// The algorithm panicked when it was asked for its name or programs.
    #[error("algorithm number {number} panicked: {message}")]
    Panicked {
        /// Its place in the list, from 0.
        number: usize,
        message: String,
    },
}

fn first(diagnostics: &[Diagnostic]) -> String {
    diagnostics.first().map(Diagnostic::to_string).unwrap_or_default()
}

/// The shape and first snapshot of a slot.
#[derive(Clone, Debug)]
pub struct Policy {
    slot: u8,
    snapshot: TrustedSnapshot,
}

impl Policy {
    /// Returns the slot's number.
    pub fn slot(&self) -> u8 {
        self.slot
    }
    /// The snapshot that flows start with.
    pub fn snapshot(&self) -> &TrustedSnapshot {
        &self.snapshot
    }
}

pub(crate) struct Entry {
    pub name: &'static str,
    pub algorithm: Arc<dyn Algorithm>,
    pub programs: Vec<Arc<Compiled>>,
    pub policies: Vec<Policy>,
    /// The algorithms that its flows run; none where they run its own programs.
    pub arms: Vec<&'static str>,
}

impl Entry {
    pub fn program(&self, name: &str) -> Option<&Arc<Compiled>> {
        self.programs.iter().find(|p| p.name == name)
    }

    /// Whether the algorithm decides where the datapath does. What is hosted or chosen among decides on ACKs.
    pub fn is_for(&self, capabilities: &Capabilities) -> bool {
        if self.programs.is_empty() {
            return capabilities.hooks.contains(&Hook::Ack);
        }
        self.programs.iter().any(|program| capabilities.hooks.contains(&program.program.hook()))
    }
}

/// Every algorithm, its programs compiled.
pub struct Catalog {
    entries: Vec<Entry>,
    /// The uid of the next program of a hosted algorithm.
    next_uid: u32,
}

impl Catalog {
    /// Compiles every program of `algorithms`; their uids count from `first_uid`. An agent that may meet
    /// programs of an earlier one on a datapath chooses `first_uid` beyond theirs.
    ///
    /// # Errors
    /// The first problem found.
    pub fn new(mut algorithms: Vec<Arc<dyn Algorithm>>, first_uid: u32) -> Result<Catalog, CatalogError> {
        limit("algorithms", algorithms.len(), MAX_ALGORITHMS)?;
        add_arms(&mut algorithms)?;
        limit("algorithms", algorithms.len(), MAX_ALGORITHMS)?;
        let mut entries: Vec<Entry> = Vec::with_capacity(algorithms.len());
        let mut next_uid = first_uid;
        for (number, algorithm) in algorithms.into_iter().enumerate() {
            let ask = || {
                let arms: Vec<&'static str> = algorithm.arms().iter().map(|arm| arm.name()).collect();
                (algorithm.name(), algorithm.programs(), algorithm.policies(), arms)
            };
            let (name, sources, policies, arms) =
                catch(ask).map_err(|message| CatalogError::Panicked { number, message })?;
            if name == NATIVE || entries.iter().any(|e| e.name == name) {
                return Err(CatalogError::NameTaken { name });
            }
            limit("programs of one algorithm", sources.len(), MAX_PROGRAMS)?;
            let policies = parse_policies(name, policies, &entries)?;
            let programs = Vec::with_capacity(sources.len());
            let mut entry = Entry { name, algorithm, programs, policies, arms };
            for source in sources {
                if entry.program(source.name).is_some() {
                    return Err(CatalogError::ProgramNameTaken { algorithm: name, program: source.name });
                }
                let program = compile(source.source).map_err(|diagnostics| CatalogError::Compile {
                    algorithm: name,
                    program: source.name,
                    diagnostics,
                })?;
                check_policies(&entry, source.name, &program)?;
                entry.programs.push(Compiled::new(next_uid, name, source.name.into(), program));
                next_uid = next_uid.wrapping_add(1);
            }
            entries.push(entry);
        }
        Ok(Catalog { entries, next_uid })
    }

    /// Lets flows of `algorithm` begin with `snapshot` in place of the one that its first policy ships with; false where
    /// programs that ask that one cannot ask this one.
    #[must_use]
    pub fn begin_with(&mut self, algorithm: &str, snapshot: TrustedSnapshot) -> bool {
        let entry = self.entries.iter_mut().find(|e| e.name == algorithm);
        let Some(first) = entry.and_then(|e| e.policies.first_mut()) else { return false };
        let fits = first.snapshot.shape() == snapshot.shape() && first.snapshot.spec() == snapshot.spec();
        if fits {
            first.snapshot = snapshot;
        }
        fits
    }

    /// Iterates over the names of the algorithms that others host.
    pub(crate) fn hosted(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().filter(|e| e.algorithm.is_hosted()).map(|e| e.name)
    }

    /// Adds a program of a hosted algorithm.
    pub(crate) fn add(&mut self, algorithm: &str, name: String, program: Program) -> Option<Arc<Compiled>> {
        let entry = self.entries.iter_mut().find(|e| e.name == algorithm)?;
        let compiled = Compiled::new(self.next_uid, entry.name, name.into(), program);
        self.next_uid = self.next_uid.wrapping_add(1);
        entry.programs.push(Arc::clone(&compiled));
        Some(compiled)
    }

    /// Forgets a program of a hosted algorithm.
    pub(crate) fn remove(&mut self, algorithm: &str, uid: ProgramUid) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.name == algorithm) {
            entry.programs.retain(|p| p.uid() != uid);
        }
    }

    /// The algorithms' names, in order of registration.
    pub fn names(&self) -> Vec<&'static str> {
        self.entries.iter().map(|e| e.name).collect()
    }

    /// Iterates over the programs of all algorithms.
    pub fn programs(&self) -> impl Iterator<Item = &Arc<Compiled>> {
        self.entries.iter().flat_map(|e| &e.programs)
    }

    /// Iterates over the policies of all algorithms, each with its algorithm's name.
    pub fn policies(&self) -> impl Iterator<Item = (&'static str, &Policy)> {
        self.entries.iter().flat_map(|e| e.policies.iter().map(|p| (e.name, p)))
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.name == name)
    }

    /// An algorithm and its arms: all whose programs its flows may run.
    pub(crate) fn with_arms(&self, name: &str) -> impl Iterator<Item = &Entry> {
        let entry = self.entry(name);
        let arms = entry.into_iter().flat_map(|e| e.arms.iter().filter_map(|arm| self.entry(arm)));
        entry.into_iter().chain(arms)
    }
}

/// Adds the arms that are not among the algorithms.
fn add_arms(algorithms: &mut Vec<Arc<dyn Algorithm>>) -> Result<(), CatalogError> {
    let panicked = |number| move |message| CatalogError::Panicked { number, message };
    for number in 0..algorithms.len() {
        let of = Arc::clone(&algorithms[number]);
        let (algorithm, arms) = catch(|| (of.name(), of.arms())).map_err(panicked(number))?;
        for arm in arms {
            let known = algorithms.iter().find(|a| a.name() == arm.name());
            let is_nested = !known.unwrap_or(&arm).arms().is_empty();
            if is_nested {
                return Err(CatalogError::NestedArms { algorithm, arm: arm.name() });
            }
            if known.is_none() {
                algorithms.push(arm);
            }
        }
    }
    Ok(())
}

/// Parses an algorithm's snapshots; `others`: the algorithms before it.
fn parse_policies(
    algorithm: &'static str,
    sources: Vec<PolicySource>,
    others: &[Entry],
) -> Result<Vec<Policy>, CatalogError> {
    limit("policies of one algorithm", sources.len(), MAX_POLICIES)?;
    let mut policies: Vec<Policy> = Vec::with_capacity(sources.len());
    for PolicySource { slot, snapshot, .. } in sources {
        if usize::from(slot) >= MAX_POLICY_SLOTS {
            return Err(CatalogError::NoSuchSlot { algorithm, slot });
        }
        let has = |policies: &[Policy]| policies.iter().any(|p| p.slot == slot);
        let taken = others.iter().find(|e| has(&e.policies)).map(|e| e.name);
        if let Some(first) = taken.or(has(&policies).then_some(algorithm)) {
            return Err(CatalogError::SlotTaken { slot, first, second: algorithm });
        }
        let wrong = |e: SnapshotError| CatalogError::Snapshot { algorithm, slot, reason: e.to_string() };
        let snapshot = Snapshot::built_in(snapshot).map_err(wrong)?;
        let snapshot = Trust::OURS.admit(snapshot, &Admission::default()).map_err(wrong)?;
        policies.push(Policy { slot, snapshot });
    }
    Ok(policies)
}

/// A program and the policies that it asks fit each other.
fn check_policies(entry: &Entry, name: &'static str, program: &Program) -> Result<(), CatalogError> {
    let algorithm = entry.name;
    for slot in program.policy_slots() {
        let policy = entry.policies.iter().find(|p| p.slot == slot);
        // A slot that nobody fills is the datapath's to refuse, where the program is to be installed.
        let Some(policy) = policy else { continue };
        let (cells, inputs) = (program.policy_inputs(), policy.snapshot.shape().inputs());
        if cells != inputs {
            return Err(CatalogError::Inputs { algorithm, program: name, cells, inputs });
        }
    }
    Ok(())
}

fn limit(what: &'static str, found: usize, limit: usize) -> Result<(), CatalogError> {
    if found > limit { Err(CatalogError::TooMany { what, found, limit }) } else { Ok(()) }
}

fn report_names(program: &Program) -> Vec<String> {
    let reports = program.regs().iter().take(program.report_len());
    reports.map(|r| r.name.strip_prefix(REPORT_PREFIX).unwrap_or(&r.name).to_owned()).collect()
}
