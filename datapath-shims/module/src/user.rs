//! The module's C half as a process in user space: it runs scripts, and tells times and verdicts.
//!
//! The sources come with the crate and are compiled at run time, so that a build of the crate needs no C
//! compiler. Requests and answers are words; `user/main.c` is the other end.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ccplane_contract::suite::{
    Executor, ExecutorError, Observation, PolicyObservation, Script, ScriptStep, Sending,
};
use ccplane_contract::{Field, Part};
use ccplane_infer::{FlowPolicy, Inference, Level, Noise, Shape};
use ccplane_program::ir::{ACK_PRIM_COUNT, INFINITY, Prim, Program};
use ccplane_program::vm::Prims;
use ccplane_wire::EncodeError;
use ccplane_wire::v2::encode_program;

const SOURCES: [(&str, &str); 9] = [
    ("main.c", include_str!("user/main.c")),
    ("platform.h", include_str!("../kernel/platform.h")),
    ("policy.h", include_str!("../kernel/policy.h")),
    ("steps.h", include_str!("../kernel/steps.h")),
    ("vm.h", include_str!("../kernel/vm.h")),
    ("vm.c", include_str!("../kernel/vm.c")),
    ("program.c", include_str!("../kernel/program.c")),
    ("infer.c", include_str!("../kernel/infer.c")),
    ("slots.c", include_str!("../kernel/slots.c")),
];
const COMPILERS: [&str; 3] = ["gcc", "clang", "cc"];
const STRICT: [&str; 5] = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wdeclaration-after-statement"];
/// Words of a flow's policy state in an answer.
const POLICY_WORDS: usize = 13;

const VERIFY: u64 = 0;
const SCRIPT: u64 = 1;
const TIME_PROGRAM: u64 = 2;
const NETWORK: u64 = 3;
const CHECK_IMAGE: u64 = 4;
const TABLES: u64 = 5;
const LIMITS: u64 = 6;
const SLOTS: u64 = 7;

const REPORTED: u64 = 1;
const ASKED: u64 = 2;

/// The flags that the C half is compiled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Build {
    /// With AddressSanitizer and UndefinedBehaviorSanitizer, each finding of which ends the process.
    Sanitized,
    /// Built as a kernel module is: optimised, without vectors, without jump tables.
    Kernel,
}

impl Build {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Build::Sanitized => &[
                "-O1",
                "-g",
                "-fsanitize=address,undefined",
                "-fno-sanitize-recover=all",
                "-fno-omit-frame-pointer",
            ],
            Build::Kernel => &["-O2", "-mgeneral-regs-only", "-fno-strict-aliasing", "-fno-jump-tables"],
        }
    }
}

/// Reasons why the C half did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UserError {
    /// No compiler here can build it, or not with its sanitizers.
    #[error("no C compiler builds the interpreter: {said}")]
    NoCompiler {
        /// The last compiler's messages.
        said: String,
    },
    #[error("{doing}: {error}")]
    Io { doing: &'static str, error: std::io::Error },
    /// The process ended, or answered less than it was asked: its standard error says why.
    #[error("the interpreter ended early")]
    Ended,
    /// A program has no wire form.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// The C half's verdict on bytes: codes as in `vm.h`, 0 where they were accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CVerdict {
    pub code: u32,
    pub place: u32,
    pub index: u32,
}

/// One of the agent's commands on a slot of the C half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotCommand {
    Define {
        slot: u8,
        code: u64,
    },
    /// Pushes a head of an image: no more of it is looked at.
    Push {
        slot: u8,
        uid: u32,
        code: u64,
        part: Part,
    },
    Share {
        slot: u8,
        share: u16,
    },
    Promote(u8),
    Rollback(u8),
}

/// The C half's answer to a command on a slot, and the slot's parts after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotAnswer {
    /// The refusal as in `vm.h`, or 0.
    pub code: u32,
    /// The uids of the active snapshot, the canary, the last good one; 0 for none.
    pub uids: [u32; 3],
    pub canary_share: u16,
}

/// A program on a stream of ACKs against the clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimedProgram {
    /// Time of all invocations, nanoseconds.
    pub ns: u64,
    /// The flow after the last one.
    pub end: Observation,
}

/// A network on rows of inputs, against the clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimedNetwork {
    /// Time of all inferences, nanoseconds.
    pub ns: u64,
    /// The result of each row.
    pub results: Vec<Inference>,
}

/// The C half as a program, from which any number of processes start.
#[derive(Debug)]
pub struct Compiled {
    // Its folder is gone, so nothing is left of it when this is.
    program: File,
}

impl Compiled {
    /// Compiles the C half.
    ///
    /// # Errors
    /// `NoCompiler`, `Io`.
    pub fn new(build: Build) -> Result<Compiled, UserError> {
        let io = |doing| move |error| UserError::Io { doing, error };
        let dir = tempfile::tempdir().map_err(io("make a folder for the interpreter"))?;
        for (name, text) in SOURCES {
            std::fs::write(dir.path().join(name), text).map_err(io("write the interpreter's sources"))?;
        }
        let program = compile(dir.path(), build)?;
        Ok(Compiled { program: File::open(program).map_err(io("open the interpreter"))? })
    }

    /// Starts a process of it.
    ///
    /// # Errors
    /// `Io`.
    pub fn start(&self) -> Result<Interpreter, UserError> {
        let mut child = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()))
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| UserError::Io { doing: "start the interpreter", error })?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(Interpreter { child, to, from: BufReader::new(from) }),
            _ => Err(UserError::Ended),
        }
    }
}

/// A running process of the C half.
#[derive(Debug)]
pub struct Interpreter {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Interpreter {
    /// Compiles the C half and starts it.
    ///
    /// # Errors
    /// `NoCompiler`, `Io`.
    pub fn start(build: Build) -> Result<Interpreter, UserError> {
        Compiled::new(build)?.start()
    }

    /// Sends requests and returns the answers' words. The other end reads all before it answers.
    fn ask(&mut self, request: &[u64]) -> Result<Answer, UserError> {
        let mut bytes = Vec::with_capacity(8 * (request.len() + 1));
        bytes.extend((request.len() as u64).to_le_bytes());
        request.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        let ended = |_| UserError::Ended;
        self.to.write_all(&bytes).and_then(|()| self.to.flush()).map_err(ended)?;
        let mut count = [0; 8];
        self.from.read_exact(&mut count).map_err(ended)?;
        let mut answer = Vec::new();
        let wanted = u64::from_le_bytes(count).saturating_mul(8);
        let got = self.from.by_ref().take(wanted).read_to_end(&mut answer).map_err(ended)?;
        if got as u64 != wanted {
            return Err(UserError::Ended);
        }
        let (words, _) = answer.as_chunks();
        Ok(Answer(words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>().into_iter()))
    }

    /// Has bytes verified as programs; one that is accepted runs `runs` times on random numbers drawn from `seed`.
    ///
    /// # Errors
    /// `Ended`.
    pub fn verify(&mut self, all: &[Vec<u8>], runs: u64, seed: u64) -> Result<Vec<CVerdict>, UserError> {
        let mut request = Vec::new();
        for bytes in all {
            request.extend([VERIFY, runs, seed]);
            put_bytes(&mut request, bytes);
        }
        let mut answer = self.ask(&request)?;
        all.iter().map(|_| answer.verdict()).collect()
    }

    /// Runs scripts, each from a fresh flow.
    ///
    /// # Errors
    /// `Ended` where one was refused, too; `Encode`.
    pub fn run(&mut self, scripts: &[Script]) -> Result<Vec<Vec<Observation>>, UserError> {
        let mut request = Vec::new();
        scripts.iter().try_for_each(|script| put_script(&mut request, script))?;
        let mut answer = self.ask(&request)?;
        scripts.iter().map(|script| answer.observations(script)).collect()
    }

    /// Times a program that starts with `fields` on `times` ACKs, which come round again and lie `gap_us` apart.
    ///
    /// # Errors
    /// `Ended`, `Encode`.
    pub fn time_program(
        &mut self,
        program: &Program,
        fields: &[(Field, i64)],
        cwnd_bytes: i64,
        acks: &[Prims],
        gap_us: u64,
        times: u64,
    ) -> Result<TimedProgram, UserError> {
        let mut request = vec![TIME_PROGRAM, cwnd_bytes as u64, gap_us, times];
        put_program(&mut request, program)?;
        put_fields(&mut request, fields);
        request.push(acks.len() as u64);
        acks.iter().for_each(|prims| put_prims(&mut request, prims));
        let mut answer = self.ask(&request)?;
        Ok(TimedProgram { ns: answer.word()?, end: answer.observation(program, None, 0, 0)? })
    }

    /// Runs the network in `image` on each row, then `times` more against the clock.
    ///
    /// # Errors
    /// `Ended`.
    pub fn network(
        &mut self,
        shape: &Shape,
        image: &[u64],
        rows: &[Vec<i32>],
        times: u64,
    ) -> Result<TimedNetwork, UserError> {
        let mut request = vec![NETWORK, times, shape.code()];
        put_words(&mut request, image);
        request.push(rows.len() as u64);
        for row in rows {
            // Missing inputs count as 0.
            let all = row.iter().copied().chain(std::iter::repeat(0)).take(shape.inputs());
            request.extend(all.map(|cell| u64::from(cell as u32)));
        }
        let mut answer = self.ask(&request)?;
        let results = rows.iter().map(|_| {
            let action_q16 = answer.word()? as i64;
            Ok(Inference { action_q16, clipped_inputs: answer.word()? as u32 })
        });
        let results = results.collect::<Result<_, UserError>>()?;
        Ok(TimedNetwork { ns: answer.word()?, results })
    }

    /// Has words checked as an image of the shape with this code. Returns the verdict, the image size that the shape has
    /// (bytes; 0 where it is none), and the image's action on inputs of 0.
    ///
    /// # Errors
    /// `Ended`.
    pub fn check_image(&mut self, code: u64, image: &[u64]) -> Result<(CVerdict, usize, i64), UserError> {
        let mut request = vec![CHECK_IMAGE, code];
        put_words(&mut request, image);
        let mut answer = self.ask(&request)?;
        Ok((answer.verdict()?, answer.word()? as usize, answer.word()? as i64))
    }

    /// Carries out commands on slots that start empty.
    ///
    /// # Errors
    /// `Ended`.
    pub fn command_slots(&mut self, commands: &[SlotCommand]) -> Result<Vec<SlotAnswer>, UserError> {
        let mut request = vec![SLOTS, commands.len() as u64];
        for command in commands {
            let (slot, words) = match *command {
                SlotCommand::Define { slot, code } => (slot, [0, code, 0, 0]),
                SlotCommand::Push { slot, uid, part, .. } => {
                    let (canary, share) = part_words(part);
                    (slot, [1, uid.into(), canary, share])
                }
                SlotCommand::Share { slot, share } => (slot, [2, 0, 0, share.into()]),
                SlotCommand::Promote(slot) => (slot, [3, 0, 0, 0]),
                SlotCommand::Rollback(slot) => (slot, [4, 0, 0, 0]),
            };
            let [command_number, rest @ ..] = words;
            request.extend([command_number, slot.into()]);
            request.extend(rest);
            if let SlotCommand::Push { code, .. } = command {
                request.push(*code);
            }
        }
        let mut answer = self.ask(&request)?;
        let one = |_: &SlotCommand| {
            let code = answer.word()? as u32;
            let uids = [answer.word()? as u32, answer.word()? as u32, answer.word()? as u32];
            Ok(SlotAnswer { code, uids, canary_share: answer.word()? as u16 })
        };
        commands.iter().map(one).collect()
    }

    /// The activation tables of both widths, one behind the other.
    ///
    /// # Errors
    /// `Ended`.
    pub fn tables(&mut self) -> Result<Vec<i64>, UserError> {
        Ok(self.ask(&[TABLES])?.0.map(|entry| entry as i64).collect())
    }

    /// The limits in `vm.h`, in the order of `main.c`.
    ///
    /// # Errors
    /// `Ended`.
    pub fn limits(&mut self) -> Result<Vec<i64>, UserError> {
        Ok(self.ask(&[LIMITS])?.0.map(|limit| limit as i64).collect())
    }
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        // Its input ends when the struct does; it must not outlive that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The C half as an executor of the contract's suite.
impl Executor for Interpreter {
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
        Ok(self.run(std::slice::from_ref(script))?.pop().unwrap_or_default())
    }
    fn policies(&self) -> bool {
        true
    }
}

fn compile(dir: &Path, build: Build) -> Result<std::path::PathBuf, UserError> {
    let sources = SOURCES.iter().map(|(name, _)| *name).filter(|name| name.ends_with(".c"));
    let sources: Vec<_> = sources.collect();
    let program = dir.join("interpreter");
    let mut said = String::new();
    for compiler in COMPILERS {
        let made = Command::new(compiler)
            .args(STRICT)
            .args(build.flags())
            .args(&sources)
            .arg("-o")
            .arg(&program)
            .current_dir(dir)
            .output();
        match made {
            Ok(made) if made.status.success() => return Ok(program),
            Ok(made) => said = String::from_utf8_lossy(&made.stderr).into_owned(),
            Err(error) => said = format!("{compiler}: {error}"),
        }
    }
    Err(UserError::NoCompiler { said })
}

fn put_words(to: &mut Vec<u64>, words: &[u64]) {
    to.push(words.len() as u64);
    to.extend(words);
}

fn put_bytes(to: &mut Vec<u64>, bytes: &[u8]) {
    to.push(bytes.len() as u64);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        to.push(u64::from_le_bytes(word));
    }
}

fn put_program(to: &mut Vec<u64>, program: &Program) -> Result<(), UserError> {
    let mut bytes = Vec::new();
    encode_program(program, &mut bytes)?;
    put_bytes(to, &bytes);
    Ok(())
}

fn put_fields(to: &mut Vec<u64>, fields: &[(Field, i64)]) {
    to.push(fields.len() as u64);
    for (field, value) in fields {
        let (kind, reg) = match field {
            Field::Cwnd => (0, 0),
            Field::Rate => (1, 0),
            Field::Reg(reg) => (2, u64::from(*reg)),
        };
        to.extend([kind, reg, *value as u64]);
    }
}

/// Appends primitives as raw as a transport has them: no RTT sample is 0 or less, a timeout is any number but 0.
fn put_prims(to: &mut Vec<u64>, prims: &Prims) {
    const _: () = assert!(Prim::ACK.len() == ACK_PRIM_COUNT);
    let raw = |prim| match (prim, prims.get(prim)) {
        (Prim::FlowRttSampleUs, INFINITY) => -(prims.get(Prim::AckNow) & 1),
        (Prim::FlowWasTimeout, 1) => 1 << 32,
        (_, value) => value,
    };
    to.extend(Prim::ACK.map(|prim| raw(prim) as u64));
}

fn part_words(part: Part) -> (u64, u64) {
    match part {
        Part::Active => (0, 0),
        Part::Canary { share } => (1, share.into()),
    }
}

fn put_script(to: &mut Vec<u64>, script: &Script) -> Result<(), UserError> {
    to.extend([SCRIPT, script.flow.0, script.cwnd_bytes as u64, script.mss_bytes.into()]);
    to.push(script.slots.len() as u64);
    script.slots.iter().for_each(|(slot, shape)| to.extend([u64::from(*slot), shape.code()]));
    to.push(script.programs.len() as u64);
    script.programs.iter().try_for_each(|program| put_program(to, program))?;
    to.push(script.images.len() as u64);
    script.images.iter().for_each(|image| put_words(to, image));
    script.steps.iter().for_each(|step| put_step(to, step));
    to.push(0);
    Ok(())
}

fn put_step(to: &mut Vec<u64>, step: &ScriptStep) {
    match step {
        ScriptStep::Invoke(prims) => {
            to.push(1);
            put_prims(to, prims);
        }
        // The module decides on ACKs alone, and refuses other programs.
        ScriptStep::Decide(_) => {}
        ScriptStep::Update(fields) => {
            to.push(2);
            put_fields(to, fields);
        }
        ScriptStep::SetProgram { program, fields } => {
            to.extend([3, *program as u64]);
            put_fields(to, fields);
        }
        ScriptStep::Push { slot, image, part } => {
            let (canary, share) = part_words(*part);
            to.extend([4, u64::from(*slot), *image as u64, canary, share]);
        }
        ScriptStep::Promote(slot) => to.extend([5, u64::from(*slot)]),
        ScriptStep::Rollback(slot) => to.extend([6, u64::from(*slot)]),
        ScriptStep::SegmentSize { mss_bytes } => to.extend([7, u64::from(*mss_bytes)]),
    }
}

/// The words of an answer that are still to be read.
struct Answer(std::vec::IntoIter<u64>);

impl Answer {
    fn word(&mut self) -> Result<u64, UserError> {
        self.0.next().ok_or(UserError::Ended)
    }

    fn words<T>(&mut self, n: usize, of: impl Fn(u64) -> T) -> Result<Vec<T>, UserError> {
        (0..n).map(|_| self.word().map(&of)).collect()
    }

    fn verdict(&mut self) -> Result<CVerdict, UserError> {
        Ok(CVerdict { code: self.word()? as u32, place: self.word()? as u32, index: self.word()? as u32 })
    }

    fn observations(&mut self, script: &Script) -> Result<Vec<Observation>, UserError> {
        let (mut running, mut seen) = (0, Vec::new());
        for step in &script.steps {
            match step {
                ScriptStep::SetProgram { program, .. } => running = *program,
                ScriptStep::Invoke(_) => {
                    let program = script.programs.get(running).ok_or(UserError::Ended)?;
                    let (outcome, native) = (self.word()?, self.word()?);
                    let report = match outcome & REPORTED {
                        0 => None,
                        _ => Some(self.words(program.report_len(), |word| word as i64)?),
                    };
                    seen.push(self.observation(program, report, outcome, native)?);
                }
                _ => {}
            }
        }
        Ok(seen)
    }

    fn observation(
        &mut self,
        program: &Program,
        report: Option<Vec<i64>>,
        outcome: u64,
        native: u64,
    ) -> Result<Observation, UserError> {
        let regs = self.words(program.regs().len(), |word| word as i64)?;
        let (cwnd_bytes, rate_bytes_per_s) = (self.word()? as i64, self.word()? as i64);
        let faults = self.word()?;
        let histories = self.words(program.policy_inputs(), |word| word as u32 as i32)?;
        let state: [u64; POLICY_WORDS] =
            self.words(POLICY_WORDS, |word| word)?.try_into().map_err(|_| UserError::Ended)?;
        let [action, snapshot, noise, uid, buffer, level, level_uid, penalty, counts @ ..] = state;
        let [decisions, saturated, clipped, collapsed, trips] = counts.map(|count| count as u32);
        let level = [Level::Chosen, Level::LastGood, Level::Native]
            .into_iter()
            .find(|known| *known as u64 == level)
            .ok_or(UserError::Ended)?;
        let flow = FlowPolicy {
            noise: Noise(noise),
            uid: uid as u32,
            buffer: buffer as u32,
            level,
            level_uid: level_uid as u32,
            penalty: penalty as u32,
            decisions,
            saturated,
            clipped,
            collapsed,
            trips,
        };
        let policy = PolicyObservation {
            histories,
            action_q16: action as i64,
            snapshot: snapshot as u32,
            flow,
            asked: outcome & ASKED != 0,
            native: native != 0,
        };
        Ok(Observation {
            regs,
            cwnd_bytes,
            rate_bytes_per_s,
            faults,
            report,
            sending: Sending::default(),
            policy: Some(policy),
        })
    }
}
