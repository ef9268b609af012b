//! A learner that hangs, as the loops that post to it see it; what its thread is to the scheduler; and of what it learns.

use super::mailbox::{LoopId, Mailbox, Poster};
use super::{DecisionLog, Learn, LearnerView, Learning, Post, Running, Shares, thread};
use crate::config;
use ccplane_alg::{Algorithm, Control, FlowInfo, Row, configure};
use ccplane_contract::FlowId;
use ccplane_core::{Batch, Candidate, DatapathId, Decision, MAX_ROWS, Origin, Rule, Rules, Verdict};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// For what must happen at once.
const PATIENCE: Duration = Duration::from_secs(60);
const SHARES: Shares = Shares { steady_percent: 10, burst_percent: 90 };

/// Says when it is given rows, and goes on when it is told to.
struct Hung {
    entered: Sender<()>,
    go_on: Receiver<()>,
}

impl Learn for Hung {
    fn take(&mut self, _: LoopId, _: &Batch) {
        let _ = self.entered.send(());
        let _ = self.go_on.recv();
    }
    fn on_decision(&mut self, _: &Decision) {}
    fn not_asked(&mut self) {}
    fn step(&mut self, _: Duration) -> Option<Candidate> {
        None
    }
}

/// Rows of one flow, all alike.
pub(super) fn batch(algorithm: &'static str, datapath: u32, rows: usize) -> Batch {
    let row = Row {
        at_us: 0,
        slot: 0,
        snapshot: 1,
        inputs: Vec::new(),
        action_q16: 0,
        reward: 0.0,
        follows: true,
        target_q16: None,
    };
    let (rows, datapath) = (vec![(FlowId(1), row); rows], DatapathId(datapath));
    Batch { datapath, algorithm, slot: 0, rows, dropped: 0, measures: Vec::new() }
}

fn decision() -> Decision {
    Decision {
        at_us: 0,
        datapath: Some(DatapathId(0)),
        slot: 0,
        algorithm: "hung",
        snapshot: None,
        uid: None,
        origin: Origin::Shipped,
        comparison: None,
        verdict: Verdict::Pushed,
    }
}

#[test]
fn nobody_waits_for_a_learner_that_hangs() {
    const BATCHES: usize = 100;
    const DECISIONS: usize = 10_000;
    let view = LearnerView::new("hung");
    let (entered, has_entered) = channel();
    let (release, go_on) = channel::<()>();
    let make = move || Some(Box::new(Hung { entered, go_on }) as Box<dyn Learn>);
    let mailbox = view.mailbox.clone();
    let learner =
        thread::spawn("hung", mailbox.clone(), SHARES, view.gauges.clone(), make, |_| true).unwrap();
    let running = Running { mailboxes: vec![mailbox.clone()] };
    let learners = BTreeMap::from([("hung", Poster::new(mailbox, LoopId(0)))]);
    let mut post = Post { learners, log: DecisionLog::default() };
    post.batch(batch("hung", 0, 1));
    has_entered.recv_timeout(PATIENCE).unwrap();

    // What a loop does, and what the control socket asks; on a thread of its own, so that a wait fails the test.
    let (done, ended) = channel();
    let seen = view.clone();
    std::thread::spawn(move || {
        (0..BATCHES).for_each(|_| post.batch(batch("hung", 0, MAX_ROWS)));
        (0..DECISIONS).for_each(|_| post.decision("ebpf", decision()));
        let figures = (seen.gauges.rows.load(Relaxed), seen.dropped_rows());
        // As at the agent's end.
        drop(running);
        done.send(figures).unwrap();
    });
    let (taken, dropped) = ended.recv_timeout(PATIENCE).expect("posting waits for nobody");
    assert_eq!(taken, 1, "it hangs in its first batch");
    let posted = (BATCHES * MAX_ROWS) as u64;
    let kept = posted - dropped;
    assert!(
        kept > 0 && kept <= 4 * MAX_ROWS as u64,
        "{kept} of {posted} rows wait, {dropped} are counted as dropped"
    );

    drop(release);
    learner.join().unwrap();
    assert!(!view.gauges.failed.load(Relaxed));
}

#[test]
fn a_learner_runs_on_idle_processors_only() {
    /// `SCHED_IDLE` of sched(7), and the place of the policy in proc_pid_stat(5), counted from the state.
    const IDLE: &str = "5";
    const POLICY: usize = 41 - 3;
    let mailbox = Mailbox::default();
    let (tell, told) = channel();
    let make = move || {
        tell.send(std::fs::read_to_string("/proc/thread-self/stat").unwrap()).unwrap();
        None
    };
    let view = LearnerView::new("idle");
    thread::spawn("idle", mailbox, SHARES, view.gauges, make, |_| true).unwrap().join().unwrap();
    let stat = told.recv().unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    assert_eq!(fields.split(' ').nth(POLICY), Some(IDLE), "{stat}");
}

#[test]
fn learning_is_of_the_variant_that_the_first_rule_configures() {
    let aurora: Arc<dyn Algorithm> = Arc::new(ccplane_algs::Aurora::default());
    let rule = |algorithm: &str, slack_us: i64| {
        let parameters = vec![("slack_us".to_owned(), slack_us)];
        Rule { parameters, ..Rule::any(algorithm) }
    };
    let first = |rules: &[(&str, i64)], default: &str| {
        let rules = rules.iter().map(|(algorithm, slack_us)| rule(algorithm, *slack_us)).collect();
        let learning = Learning::new(
            &config::Learn::default(),
            std::slice::from_ref(&aurora),
            &Rules { rules, default: default.to_owned() },
            None,
            None,
            Vec::new(),
        );
        fields(&*learning.unwrap().pending[0].algorithm)
    };
    let of = |slack_us: i64| fields(&*configure(&aurora, [("slack_us", slack_us)]).unwrap());
    let default = fields(&*aurora);
    assert_ne!(of(700), default);
    assert_eq!(first(&[("cubic", 900), ("aurora", 700), ("aurora", 800)], "aurora"), of(700));
    assert_eq!(first(&[("cubic", 900)], "aurora"), default);
    assert_eq!(first(&[], "native"), default);
    assert_eq!(
        first(&[("aurora", i64::MAX)], "native"),
        default,
        "what it does not take is refused elsewhere"
    );
}

/// Returns the fields that a flow's program begins with.
fn fields(algorithm: &dyn Algorithm) -> Vec<(&'static str, i64)> {
    let info = FlowInfo::example(1448, 14_480);
    let mut control = Control::default();
    algorithm.flow(&info, &mut control);
    control.requests().flat_map(|request| request.fields.to_vec()).collect()
}
