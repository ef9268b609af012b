//! Writes a tree into the program of its algorithm, in place of the question to the policy.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ccplane_algs::PolicyProgram;
use ccplane_program::lang::ast::StmtKind;
use ccplane_snapshot::{ActionMap, PolicySpec};

use crate::inputs::{Input, Layout};
use crate::student::{Node, ONE};
use crate::{DistillError, Student};

/// The layout of a program's histories: one of intervals, and then constants.
pub(crate) fn layout(asking: &PolicyProgram) -> Option<Layout> {
    let ((depth, features), constants) = asking.histories.split_first()?;
    let constants = constants.iter().map(|(depth, names)| (*depth == 1).then_some(names.len()));
    let constants = constants.collect::<Option<Vec<usize>>>()?.into_iter().sum();
    Some(Layout { features: features.len(), depth: *depth, constants })
}

/// Names of registers that inputs are kept in.
struct Names<'a> {
    asking: &'a PolicyProgram,
}

impl Names<'_> {
    fn of(&self, input: Input) -> String {
        match input {
            Input::Now(f) => self.feature(f),
            Input::Before(f) => format!("{}_before", self.feature(f)),
            Input::Average(f, tenths) => format!("{}_mean{tenths}", self.feature(f)),
            Input::Constant(n) => self.register(self.asking.histories.iter().skip(1), n),
        }
    }

    /// A feature's register without `Report.`: `seen_ratio`.
    fn feature(&self, feature: usize) -> String {
        let register = self.register(self.asking.histories.iter().take(1), feature);
        format!("seen_{}", register.trim_start_matches("Report."))
    }

    fn register<'b>(&self, histories: impl Iterator<Item = &'b (usize, Vec<String>)>, n: usize) -> String {
        histories.flat_map(|(_, names)| names).nth(n).cloned().unwrap_or_default()
    }
}

/// The program `source` with the tree in it.
///
/// # Errors
/// A program that asks no policy, or in another way than at one place on the whole history.
pub fn emit(
    algorithm: &'static str,
    source: &str,
    student: &Student,
    spec: &PolicySpec,
) -> Result<String, DistillError> {
    let refuse = |why| DistillError::Program { algorithm, why };
    let asking = PolicyProgram::of(source).ok_or_else(|| refuse("its program asks no policy"))?;
    let at = asking
        .source
        .clauses
        .iter()
        .position(|clause| clause.body.iter().any(|s| matches!(s.kind, StmtKind::Policy(_))))
        .ok_or_else(|| refuse("its program asks no policy"))?;
    let guard = asking.source.clauses[at].guard.to_string();
    let names = Names { asking: &asking };
    let memory = memory(&names, student, spec);
    let leaves = leaves(&names, student, &guard);
    let action = action(spec).ok_or_else(|| refuse("its action changes neither rate nor window"))?;

    let mut program = asking.clone();
    let added = declarations(&names, student) + &leaves;
    program.insert(at, &added).ok_or_else(|| refuse("the tree is no program"))?;
    let mut first = true;
    program
        .replace(|statement| match statement {
            StmtKind::History(..) if std::mem::take(&mut first) => Some(memory.clone()),
            StmtKind::History(..) => Some(String::new()),
            StmtKind::Policy(_) => Some(action.clone()),
            StmtKind::Bind(to, from) if from.to_string().starts_with("Policy.") => {
                let own = if from.to_string() == "Policy.action" { "act" } else { "0" };
                Some(format!("(:= {} {own})", to.text))
            }
            _ => None,
        })
        .ok_or_else(|| refuse("the tree is no program"))?;
    Ok(program.source.to_string())
}

/// Features that some input needs.
fn needed(student: &Student) -> BTreeSet<usize> {
    let feature = |input: &Input| match input {
        Input::Now(f) | Input::Before(f) | Input::Average(f, _) => Some(*f),
        Input::Constant(_) => None,
    };
    student.inputs.iter().filter_map(feature).collect()
}

fn declarations(names: &Names<'_>, student: &Student) -> String {
    let registers: BTreeSet<String> = needed(student)
        .into_iter()
        .map(|f| names.feature(f))
        .chain(student.inputs.iter().filter(|i| !matches!(i, Input::Constant(_))).map(|i| names.of(*i)))
        .chain(["act".to_owned()])
        .collect();
    let declared: Vec<String> = registers.iter().map(|register| format!("({register} 0)")).collect();
    format!("(def {})\n", declared.join(" "))
}

/// Returns the statements that keep an interval's features.
fn memory(names: &Names<'_>, student: &Student, spec: &PolicySpec) -> String {
    let mut text = String::new();
    let histories = &names.asking.histories;
    for f in needed(student) {
        let seen = names.feature(f);
        let register = names.register(histories.iter().take(1), f);
        let (lo, hi) = spec.inputs().get(f).map_or((0, 0), |feature| (feature.lo, feature.hi));
        if student.inputs.contains(&Input::Before(f)) {
            let _ = write!(text, "(:= {seen}_before {seen}) ");
        }
        let _ = write!(text, "(:= {seen} (max (min {register} {hi}) {lo})) ");
        for input in &student.inputs {
            if let Input::Average(of, tenths) = input
                && *of == f
            {
                let (mean, rest) = (names.of(*input), 10 - tenths);
                let _ = write!(text, "(:= {mean} (/ (+ (* {tenths} {mean}) (* {rest} {seen})) 10)) ");
            }
        }
    }
    text
}

/// A clause for each leaf, which runs where the policy would be asked and the way to the leaf is taken.
fn leaves(names: &Names<'_>, student: &Student, guard: &str) -> String {
    let mut text = String::new();
    let mut ways = vec![(0, String::from(guard))];
    while let Some((at, way)) = ways.pop() {
        match &student.nodes[at] {
            Node::Split { input, threshold, left, right } => {
                let name = names.of(student.inputs[*input]);
                ways.push((*right, format!("(&& {way} (>= {name} {threshold}))")));
                ways.push((*left, format!("(&& {way} (< {name} {threshold}))")));
            }
            Node::Leaf { bias, weights } => {
                let terms = student.inputs.iter().zip(weights).filter(|(_, weight)| **weight != 0);
                let sum = terms.fold(bias.to_string(), |sum, (input, weight)| {
                    format!("(+ {sum} (* {weight} {}))", names.of(*input))
                });
                let bound = student.bound_q16;
                let _ = writeln!(text, "(when {way} (:= act (max (min (/ {sum} {ONE}) {bound}) -{bound})))");
            }
        }
    }
    text
}

/// The action map; `None` if there is none.
fn action(spec: &PolicySpec) -> Option<String> {
    let action = spec.action();
    let knob = match action.map {
        ActionMap::Rate => "Rate",
        ActionMap::Cwnd => "Cwnd",
        ActionMap::None => return None,
    };
    let (min, max, step) = (action.knob_min, action.knob_max, action.step_q20);
    Some(format!(
        "(:= change (/ (* (max act (- 0 act)) {step}) 65536)) \
         (:= knob (max (min {knob} {max}) {min})) \
         (:= up (+ knob (/ (* knob change) 1048576))) \
         (:= {knob} (/ (* knob 1048576) (+ change 1048576))) \
         (:= {knob} (if (>= act 0) up)) \
         (:= {knob} (max (min {knob} {max}) {min}))"
    ))
}
