//! A teacher made by hand, its student, and the student's program.

use std::sync::Arc;

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource};
use ccplane_algs::Aurora;
use ccplane_env::spec::{Steps, aurora};
use ccplane_env::{ActionMap, Decider, Family, FlowTotals, NoObserver, Prepared, Range, RealLinks, run};
use ccplane_learn::{Architecture, Policy, Provenance};
use ccplane_program::vm::{Decision, Knobs};
use ccplane_quantize::{Activation, Dense, Mlp};

use crate::inputs::{Inputs, Layout};
use crate::{DistillConfig, DistillError, Distilled, Student, Teacher, distill};

const LAYOUT: Layout = Layout { features: 3, depth: 10, constants: 0 };

/// Slows down the more, the longer the queue is and the faster it grows.
fn teacher() -> Teacher {
    let architecture =
        Architecture { inputs: 30, hidden: vec![2], activation: Activation::Tanh, preference: None };
    let mut weights = vec![0.0; 60];
    // The last interval's inflation and ratio; the ratio's mean over all.
    (weights[27], weights[28]) = (1.5, 0.5);
    (0..10).for_each(|interval| weights[30 + 3 * interval + 1] = 0.2);
    let hidden =
        Dense { inputs: 30, outputs: 2, weights, bias: vec![0.0, 1.5], activation: Some(Activation::Tanh) };
    let output =
        Dense { inputs: 2, outputs: 1, weights: vec![-4.0, -3.0], bias: vec![0.5], activation: None };
    let actor = Mlp::new(vec![hidden, output]).unwrap();
    let spec = aurora(Steps::REAL).unwrap();
    let critic = Policy::initial(architecture.clone(), spec.clone(), 0.0, 1).unwrap().critic().clone();
    Policy::new(architecture, actor, critic, 0.0, spec, Provenance::default()).unwrap().into()
}

fn quick() -> DistillConfig {
    DistillConfig { rounds: 2, episodes: 6, steps: 150, leaves: 6, ..DistillConfig::default() }
}

fn distilled() -> Distilled {
    distill(Arc::new(Aurora::default()), &teacher(), &quick()).unwrap()
}

#[test]
fn a_tree_does_what_its_teacher_does_and_says_how_well() {
    let Distilled { report, student, program } = distilled();
    assert!(report.visited.mean < 0.02 && report.visited.p95 < 0.08, "{report:?}");
    assert!(report.random.mean > report.visited.mean, "{report:?}");
    assert!((report.student_reward - report.teacher_reward).abs() < 0.1, "{report:?}");
    assert!(report.leaves > 1 && report.leaves <= 6 && student.leaves() == report.leaves);
    assert!(report.states > 500 && report.registers <= 96 && report.instructions <= 1024, "{report:?}");
    assert!(matches!(&report.stock, crate::Stock::Refused(why) if !why.is_empty()), "{report:?}");
    assert!(!program.contains("(policy") && !program.contains("(history"), "{program}");
    assert_eq!(distilled().program, program, "the same seed, the same program");
}

#[test]
fn what_cannot_be_distilled_is_refused() {
    let refused =
        |algorithm: Arc<dyn Algorithm>, config| distill(algorithm, &teacher(), &config).unwrap_err();
    let many = DistillConfig { leaves: 25, ..quick() };
    assert_eq!(refused(Arc::new(Aurora::default()), many).to_string(), "leaves is 25, 1 to 24 are allowed");
    let long = DistillConfig { rounds: 100, episodes: 1000, steps: 21, ..quick() };
    let long = refused(Arc::new(Aurora::default()), long).to_string();
    assert_eq!(long, "the product of rounds, episodes and steps is 2100000, 1 to 2000000 are allowed");
    let reno = refused(Arc::new(ccplane_algs::RENO), quick());
    assert_eq!(reno.to_string(), "algorithm reno: its program asks no policy");
    let mocc = refused(Arc::new(ccplane_algs::Mocc::default()), quick());
    assert!(matches!(mocc, DistillError::Program { why, .. } if why.contains("other inputs")), "{mocc}");
}

/// The student in the policy's place.
struct InPlace<'a> {
    student: &'a Student,
    teacher: Teacher,
    flows: Vec<Inputs>,
}

impl Decider for InPlace<'_> {
    fn decide(&mut self, agent: usize, cells: &[i32], knobs: &mut Knobs) -> Decision {
        while self.flows.len() <= agent {
            self.flows.push(Inputs::new(LAYOUT, self.teacher.spec()));
        }
        self.flows[agent].update(cells);
        let action_q16 = self.student.action_q16(|input| self.flows[agent].get(input));
        ActionMap::new(self.teacher.spec()).apply(action_q16, knobs);
        Decision::Action { action_q16, snapshot: 1 }
    }
}

/// Aurora with another program.
struct Other(&'static str);

impl Algorithm for Other {
    fn name(&self) -> &'static str {
        "other"
    }
    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "other", source: self.0 }]
    }
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let mut asked = Control::default();
        let flow = Aurora::default().flow(info, &mut asked);
        let request = asked.requests().next().unwrap();
        assert!(request.program.is_some());
        control.set_program("other", request.fields);
        flow
    }
}

#[test]
fn the_program_decides_bit_for_bit_what_the_tree_decides() {
    let Distilled { student, program, .. } = distilled();
    // No start and no timeouts: until the flow asks again, more intervals may end than the history holds, and the tree in
    // the policy's place hears of no others.
    let queue_bdp = Range(1.0, 5.0);
    let calm =
        RealLinks { queue_bdp, lossy: 0.0, stepping: 0.0, walking: 0.0, cold: 1.0, ..RealLinks::default() };
    let links = RealLinks { crossed: 0.0, shared: 0.0, rivals: 0.0, ..calm };
    let family = Family::Real(links);
    let asking = [Prepared::new(Arc::new(Aurora::default())).unwrap()];
    let written = [Prepared::new(Arc::new(Other(Box::leak(program.into_boxed_str())))).unwrap()];
    let counts = |m: Vec<FlowTotals>| m.iter().map(|m| (m.delivered, m.lost)).collect::<Vec<_>>();
    let mut delivered = 0;
    for seed in 100..112 {
        let mut scenario = family.draw(seed, 200, false);
        // By time alone: the written program counts no decisions.
        scenario.until_ns = scenario.until_ns.min(10_000_000_000);
        let mut in_place = InPlace { student: &student, teacher: teacher(), flows: Vec::new() };
        let asked =
            counts(run(&scenario, &asking, seed, usize::MAX, &mut in_place, &mut NoObserver).unwrap());
        let mut silent = InPlace { student: &student, teacher: teacher(), flows: Vec::new() };
        let alone = counts(run(&scenario, &written, seed, usize::MAX, &mut silent, &mut NoObserver).unwrap());
        assert_eq!(asked, alone, "seed {seed}");
        delivered += asked[0].0;
    }
    assert!(delivered > 10_000, "{delivered}");
}
