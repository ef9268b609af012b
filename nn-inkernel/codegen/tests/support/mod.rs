//! Generated C, compiled and run as a process.
#![allow(dead_code)]

use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ccplane_infer::{Control, FlowPolicy, Inference, Knobs, Level, Noise, Shape, Verdict};
use ccplane_nn_codegen::c;

const STRICT: [&str; 5] = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"];
const SANITIZE: [&str; 2] = ["-fsanitize=undefined", "-fno-sanitize-recover=all"];

/// The compilers on this machine, each with whether it can check for undefined behaviour.
pub fn compilers() -> Vec<(&'static str, bool)> {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let works = |cc: &str, flags: &[&str]| {
        let made = Command::new(cc).args(flags).arg(&source).arg("-o").arg(dir.path().join("empty")).output();
        made.is_ok_and(|o| o.status.success())
    };
    let all = ["gcc", "clang", "clang-19"];
    all.into_iter().filter(|cc| works(cc, &[])).map(|cc| (cc, works(cc, &SANITIZE))).collect()
}

/// A process that runs the generated code of one shape.
pub struct Process {
    child: Child,
    to: BufWriter<ChildStdin>,
    from: BufReader<ChildStdout>,
    inputs: usize,
    words: usize,
}

impl Process {
    pub fn new(cc: &str, sanitize: bool, shape: &Shape) -> Process {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("infer.c", &c::inference("test", shape));
        write("policy.h", &c::policy_header());
        write("main.c", include_str!("main.c"));
        let program = dir.path().join("run");
        let words = shape.image_bytes() / 8;
        let made = Command::new(cc)
            .args(STRICT)
            .args(SANITIZE.iter().filter(|_| sanitize))
            .arg(format!("-DINPUTS={}", shape.inputs()))
            .arg(format!("-DWORDS={words}"))
            .args(["infer.c", "main.c", "-o"].map(Path::new))
            .arg(&program)
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{cc}: {}", String::from_utf8_lossy(&made.stderr));
        let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let to = BufWriter::new(child.stdin.take().unwrap());
        let from = BufReader::new(child.stdout.take().unwrap());
        Process { child, to, from, inputs: shape.inputs(), words }
    }

    fn put(&mut self, words: &[u64]) {
        words.iter().for_each(|w| self.to.write_all(&w.to_le_bytes()).unwrap());
    }
    fn put_inputs(&mut self, inputs: &[i32]) {
        // Missing inputs count as 0.
        let all = inputs.iter().copied().chain(std::iter::repeat(0)).take(self.inputs);
        all.for_each(|v| self.to.write_all(&v.to_le_bytes()).unwrap());
    }
    fn get(&mut self) -> u64 {
        let mut word = [0; 8];
        self.from.read_exact(&mut word).expect("the process ended early");
        u64::from_le_bytes(word)
    }

    /// Puts an image into a buffer; an image shorter than the shape's is filled up with zeros.
    pub fn set_image(&mut self, buffer: u64, image: &[u64]) {
        self.put(&[0, buffer]);
        let all: Vec<u64> = image.iter().copied().chain(std::iter::repeat(0)).take(self.words).collect();
        self.put(&all);
    }

    /// Runs the network in buffer 0 on each row.
    pub fn infer(&mut self, rows: &[Vec<i32>]) -> Vec<Inference> {
        // Few enough rows at once for the pipes to hold the answers.
        const ROWS: usize = 1024;
        let mut all = Vec::new();
        for rows in rows.chunks(ROWS) {
            self.put(&[1, rows.len() as u64]);
            rows.iter().for_each(|row| self.put_inputs(row));
            self.to.flush().unwrap();
            for _ in rows {
                let (action, clipped) = (self.get(), self.get());
                all.push(Inference { action_q16: action as i64, clipped_inputs: clipped as u32 });
            }
        }
        all
    }

    /// Makes one policy decision.
    pub fn decide(
        &mut self,
        shape: &Shape,
        control: Control,
        key: u64,
        inputs: &[i32],
        knobs: &mut Knobs,
    ) -> (Verdict, FlowPolicy) {
        self.put(&[2, shape.code(), control.to_word(), key]);
        self.put(&[knobs.cwnd_bytes as u64, knobs.rate_bytes_per_s as u64]);
        self.put_inputs(inputs);
        self.to.flush().unwrap();
        let (decided, action_q16) = (self.get() != 0, self.get() as i64);
        *knobs = Knobs { cwnd_bytes: self.get() as i64, rate_bytes_per_s: self.get() as i64 };
        let noise = Noise(self.get());
        let mut half = Vec::new();
        for _ in 0..5 {
            let word = self.get();
            half.extend([word as u32, (word >> 32) as u32]);
        }
        let flow = FlowPolicy {
            noise,
            uid: half[0],
            buffer: half[1],
            level: [Level::Chosen, Level::LastGood, Level::Native][half[2] as usize],
            level_uid: half[3],
            penalty: half[4],
            decisions: half[5],
            saturated: half[6],
            clipped: half[7],
            collapsed: half[8],
            trips: half[9],
        };
        let verdict = match decided {
            true => Verdict::Decided { action_q16, uid: flow.uid },
            false => Verdict::Native,
        };
        (verdict, flow)
    }

    /// Resets the flow's state.
    pub fn reset(&mut self) {
        self.put(&[3]);
    }

    /// Ends the process and asserts that it reported no error.
    pub fn end(self) {
        let Process { mut child, to, .. } = self;
        drop(to);
        assert!(child.wait().unwrap().success());
    }
}
