//! Behaviour of a live datapath: promises 2 to 7 of the contract, and its refusals.
//!
//! Each case gets a fresh [`Harness`], which a shim provides around its datapath and some traffic.

mod harness;
mod policies;
mod session;

pub use harness::{Harness, HarnessError, RealFlows, Setup};
pub use session::Broken;

use super::conformance::Conformance;
use crate::command::Field;
use crate::error::DatapathError;
use crate::flow::Mode;
use crate::ids::{FlowId, ProgramUid};
use session::{
    A, A_SEEN, B, B_SEEN, CWND_SEEN, ECHO, FIRST, Outcome, PATIENCE_US, Run, SECOND_US, Session, X, Y, must,
    program, promise, refused, window_is,
};

/// The name and the function of each case.
const CASES: [(&str, Run); 12] = [
    ("a flow is announced and runs natively", announced),
    ("a program steers its flow", steered),
    ("a program and its fields start together", program_with_fields),
    ("fields are updated together", fields_together),
    ("a silent agent loses its flows, and gets them back", silent_agent),
    ("a released flow runs natively", released),
    ("a program that wants no window gets one segment", smallest_window),
    ("what does not exist is refused", unknown_names),
    ("a field that is no control register is refused", bad_fields),
    ("programs are counted, listed and removed", programs_bounded),
    ("events that do not fit are counted", events_bounded),
    ("a flow that ends is gone", closed),
];

/// Runs every case on a datapath of its own; those of policies where it runs policies.
pub fn behave(setup: &mut Setup<'_>) -> Conformance<Broken> {
    let mut result = Conformance::default();
    let mut runs_policies = false;
    let mut check = |name: &str, run: Run| {
        let outcome = setup().map_err(Broken::NotRun).and_then(|mut harness| {
            runs_policies = harness.datapath().capabilities().policy;
            let mut session =
                Session { harness, reports: Vec::new(), created: Vec::new(), closed: Vec::new() };
            run(&mut session)
        });
        result.note(name.to_owned(), outcome);
        runs_policies
    };
    let mut policies = false;
    for (name, run) in CASES {
        policies = check(name, run);
    }
    if policies {
        for (name, run) in policies::CASES {
            check(name, run);
        }
    }
    result
}

fn announced(s: &mut Session) -> Outcome {
    let flow = s.flow()?;
    let stats = s.stats(flow)?;
    promise(stats.mode == Mode::NativeNoProgram, "a flow without a program runs natively", &stats)?;
    promise(stats.info.mss_bytes > 0 && stats.info.init_cwnd_bytes > 0, "its info is known", &stats.info)?;
    s.progresses(flow, false)?;
    promise(s.created.len() == 1, "a flow is announced once", &s.created)
}

fn steered(s: &mut Session) -> Outcome {
    let flow = s.echo(&[(Field::Cwnd, 5 * 10_000)])?;
    s.progresses(flow, false)?;
    let stats = s.stats(flow)?;
    let steered = stats.mode == Mode::Program && stats.program == Some(A);
    promise(steered, "the program steers", &(stats.mode, stats.program))?;
    window_is(&stats, 50_000, "the window set is applied, rounded down to segments")?;
    let exact = s.reports.iter().all(|r| r.values[CWND_SEEN] == 50_000);
    promise(exact, "the program sees the window to the byte", &s.reports[0].values)?;
    let dense = s.reports.iter().zip(1..).all(|(r, n)| r.seq == n);
    promise(
        dense,
        "reports are counted from 1",
        &s.reports.iter().map(|r| r.seq).take(20).collect::<Vec<_>>(),
    )?;
    let in_time = s.reports.windows(2).all(|w| w[0].at_us <= w[1].at_us);
    promise(in_time, "the datapath's clock does not go back", &"a report before its predecessor")?;
    promise(
        s.reports.iter().all(|r| r.values.len() == 4),
        "a report has its registers",
        &s.reports[0].values,
    )?;
    let other = s.reports.iter().filter(|r| r.program != A).count();
    promise(other == 0, "reports name their program", &other)
}

fn program_with_fields(s: &mut Session) -> Outcome {
    let flow = s.echo(&[(X, 77), (Y, 78)])?;
    let first = &s.reports[0].values;
    promise(first[FIRST] == 77 && first[B_SEEN] == 78, "fields are set before the first ACK", first)?;
    let second = program(ECHO)?;
    must("install", s.datapath().install(B, &second))?;
    must("set_program", s.datapath().set_program(flow, B, &[(X, 79)]))?;
    s.wait_for("the second program reports", |s| s.reports.iter().any(|r| r.program == B))?;
    let first = s.reports.iter().find(|r| r.program == B).map(|r| r.values.clone()).unwrap_or_default();
    let fresh = first.get(..3) == Some(&[79, 79, 1]);
    promise(fresh, "a program starts from its initial state, then its fields", &first)?;
    let switched = s.reports.iter().skip_while(|r| r.program == A).all(|r| r.program == B);
    promise(switched, "programs change once", &s.reports.len())
}

fn fields_together(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    for n in 2..40 {
        must("update", s.datapath().update(flow, &[(X, n), (Y, n)]))?;
        let beat_us = s.beat_us();
        s.live(beat_us / 10);
    }
    s.wait_for("the last update arrives", |s| s.reports.iter().any(|r| r.values[A_SEEN] == 39))?;
    let torn = s.reports.iter().find(|r| r.values[A_SEEN] != r.values[B_SEEN]);
    promise(torn.is_none(), "no ACK sees half an update", &torn.map(|r| &r.values))
}

fn silent_agent(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    let timeout_us = s.harness.heartbeat_timeout_us();
    s.harness.pass(2 * timeout_us);
    s.drain();
    let before = s.reports.len();
    s.progresses(flow, true)?;
    let stats = s.stats(flow)?;
    promise(stats.mode == Mode::NativeAgentSilent, "a silent agent's flow runs natively", &stats.mode)?;
    promise(s.reports.len() == before, "its program does not run", &(s.reports.len() - before))?;
    let native_bytes = i64::from(stats.transport.snd_cwnd) * i64::from(stats.transport.mss_bytes);
    s.wait_for("the program resumes", |s| s.reports.len() > before)?;
    let resumed = s.reports[before].values[CWND_SEEN];
    let near = resumed <= 2 * native_bytes && 2 * resumed >= native_bytes;
    promise(near, "it resumes from the window that the flow has", &(resumed, native_bytes))?;
    let mode = s.stats(flow)?.mode;
    promise(mode == Mode::Program, "it is steered again", &mode)
}

fn released(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    must("release", s.datapath().release(flow))?;
    let beat_us = s.beat_us();
    s.live(beat_us);
    let before = s.reports.len();
    s.progresses(flow, false)?;
    promise(s.reports.len() == before, "a released flow's program does not run", &s.reports.len())?;
    let stats = s.stats(flow)?;
    let native = stats.mode == Mode::NativeNoProgram && stats.program.is_none();
    promise(native, "a released flow runs natively", &(stats.mode, stats.program))
}

fn smallest_window(s: &mut Session) -> Outcome {
    let flow = s.echo(&[(Field::Cwnd, 1)])?;
    s.progresses(flow, false)?;
    let last = s.reports.last().map(|r| r.values[CWND_SEEN]);
    promise(last == Some(1), "the register keeps its exact value", &last)?;
    let stats = s.stats(flow)?;
    // A transport may need a second segment against delayed ACKs.
    promise(
        (1..=2).contains(&stats.transport.snd_cwnd),
        "one or two segments are applied",
        &stats.transport.snd_cwnd,
    )
}

fn unknown_names(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    let nobody = FlowId(u64::MAX);
    let no_flow = |e: &DatapathError| matches!(e, DatapathError::NoFlow(FlowId(u64::MAX)));
    let no_program = |e: &DatapathError| matches!(e, DatapathError::NoProgram(B));
    refused("set_program names the missing flow", s.datapath().set_program(nobody, A, &[]), no_flow)?;
    refused("update names the missing flow", s.datapath().update(nobody, &[]), no_flow)?;
    refused("release names the missing flow", s.datapath().release(nobody), no_flow)?;
    refused("set_program names the missing program", s.datapath().set_program(flow, B, &[]), no_program)?;
    refused("remove names the missing program", s.datapath().remove(B), no_program)?;
    s.progresses(flow, false)
}

fn bad_fields(s: &mut Session) -> Outcome {
    let flow = s.echo(&[(X, 5)])?;
    let bad = |e: &DatapathError| matches!(e, DatapathError::BadField(Field::Reg(0 | 63)));
    for r in [0, 63] {
        let fields = [(X, 6), (Field::Reg(r), 1)];
        refused("update names the bad field", s.datapath().update(flow, &fields), bad)?;
        refused("set_program names the bad field", s.datapath().set_program(flow, A, &fields), bad)?;
    }
    let beat_us = s.beat_us();
    s.live(beat_us);
    let last = s.reports.last().map(|r| r.values.clone()).unwrap_or_default();
    promise(last.get(A_SEEN) == Some(&5), "a refused command changes nothing", &last)
}

fn programs_bounded(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    let echo = program(ECHO)?;
    refused("an installed uid is not replaced", s.datapath().install(A, &echo), |_| true)?;
    let in_use = |e: &DatapathError| matches!(e, DatapathError::ProgramInUse { uid: A, flows: 1 });
    refused("a program in use stays", s.datapath().remove(A), in_use)?;

    let limit = s.datapath().capabilities().max_programs;
    let first = 1000;
    for n in 1..limit as u32 {
        must("install", s.datapath().install(ProgramUid(first + n), &echo))?;
    }
    let full = s.datapath().install(B, &echo);
    let as_told = matches!(full, Err(DatapathError::ProgramsFull { limit: found }) if found == limit);
    promise(as_told, "the table of programs ends where the capabilities say", &full)?;
    must("release", s.datapath().release(flow))?;
    let beat_us = s.beat_us();
    s.live(beat_us);
    must("remove", s.datapath().remove(A))?;
    must("install", s.datapath().install(B, &echo))?;

    if !s.datapath().capabilities().policy {
        must("remove", s.datapath().remove(B))?;
        let history = program("(def (Report (x 0))) (when true (history 4 Report.x))")?;
        let unsupported = |e: &DatapathError| matches!(e, DatapathError::Unsupported { .. });
        refused("what it cannot run is refused", s.datapath().install(B, &history), unsupported)?;
        must("install", s.datapath().install(B, &echo))?;
    }
    Ok(())
}

fn events_bounded(s: &mut Session) -> Outcome {
    s.echo(&[])?;
    let mut dropped = s.drain();
    promise(dropped == 0, "an agent that polls loses nothing", &dropped)?;
    let mut waited_us = 0;
    while dropped == 0 && waited_us < PATIENCE_US {
        // The agent is alive and does not read; longer and longer.
        let pause_us = (waited_us + SECOND_US).min(PATIENCE_US);
        for _ in 0..pause_us.div_ceil(s.beat_us().max(1)) {
            s.datapath().heartbeat();
            let beat_us = s.beat_us();
            s.harness.pass(beat_us);
        }
        waited_us += pause_us;
        dropped += s.drain();
    }
    promise(dropped > 0, "what does not fit is counted", &"no drops; is the channel bounded?")?;
    // A report after the gap shows its size.
    for _ in 0..20 {
        let beat_us = s.beat_us();
        s.datapath().heartbeat();
        s.harness.pass(beat_us / 10);
        dropped += s.drain();
    }
    let missing: u64 = s.reports.windows(2).map(|w| u64::from(w[1].seq.wrapping_sub(w[0].seq)) - 1).sum();
    promise(missing == dropped, "gaps in the reports are as large as the drops told", &(missing, dropped))
}

fn closed(s: &mut Session) -> Outcome {
    let flow = s.echo(&[])?;
    s.harness.stop_flow(flow)?;
    s.wait_for("a flow that ends is announced", |s| !s.closed.is_empty())?;
    promise(s.closed == [flow], "the flow that ended is named", &s.closed)?;
    let flows = s.datapath().flows();
    promise(flows.iter().all(|f| f.flow != flow), "it is not listed any more", &flows)?;
    let gone = |e: &DatapathError| matches!(e, DatapathError::NoFlow(_));
    refused("it can't be set", s.datapath().update(flow, &[(X, 1)]), gone)?;
    must("remove", s.datapath().remove(A))
}
