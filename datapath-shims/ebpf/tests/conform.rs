//! The contract's conformance suite on compiled programs, run by the kernel.

use ccplane_contract::Field;
use ccplane_contract::suite::{Executor, ExecutorError, Observation, Script, Step, conform};
use ccplane_ebpf::testrun::Bench;
use ccplane_program::ir::MAX_REGS;
use ccplane_program::vm::Flow;

struct Kernel(Bench);

impl Executor for Kernel {
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
        let bench = &self.0;
        let mut loaded = Vec::new();
        for (n, program) in script.programs.iter().enumerate() {
            loaded.push(bench.load(program, n as u32 + 1)?);
        }
        let mut current = 0;
        bench.set(&Flow {
            regs: [0; MAX_REGS],
            cwnd_bytes: script.cwnd_bytes,
            rate_bytes_per_s: 0,
            micros_zero_us: 0,
            faults: 0,
        });
        let stage = |program: usize, start: bool, fields: &[(Field, i64)]| {
            if bench.stage(&loaded[program], start, fields) {
                Ok(())
            } else {
                Err("the record was not claimed")
            }
        };
        stage(0, true, &[])?;
        let mut seen = Vec::new();
        for step in &script.steps {
            match step {
                Step::Update(fields) => stage(current, false, fields)?,
                Step::SetProgram { program, fields } => {
                    current = *program;
                    stage(current, true, fields)?;
                }
                Step::Invoke(prims) => {
                    let program = &script.programs[current];
                    let mut report = [0; MAX_REGS];
                    let outcome = bench.invoke(&loaded[current], prims, &mut report)?;
                    let flow = bench.get();
                    seen.push(Observation {
                        regs: flow.regs[..program.regs().len()].to_vec(),
                        cwnd_bytes: flow.cwnd_bytes,
                        rate_bytes_per_s: flow.rate_bytes_per_s,
                        faults: flow.faults,
                        report: outcome.report.then(|| report[..program.report_len()].to_vec()),
                    });
                }
            }
        }
        Ok(seen)
    }
}

#[test]
fn conforms() {
    let bench = match Bench::new() {
        Ok(bench) => bench,
        Err(e) => {
            eprintln!("SKIPPED: compiled programs were not run in the kernel: {e}");
            return;
        }
    };
    let scripts = std::env::var("CCPLANE_CASES").ok().and_then(|v| v.parse().ok()).unwrap_or(1000);
    let result = conform(&mut Kernel(bench), scripts, 1);
    for (name, why) in result.failed.iter().take(3) {
        eprintln!("{name}: {why}");
    }
    assert!(
        result.failed.is_empty(),
        "{} of {} failed",
        result.failed.len(),
        result.failed.len() + result.passed.len()
    );
    assert!(result.passed.len() >= scripts as usize);
}
