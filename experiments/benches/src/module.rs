//! `ack.module.reno` and `nn.module.aurora`: the kernel module's interpreter and networks, which run here as a process compiled as the
//! kernel compiles them.

use ccplane_contract::Field;
use ccplane_ebpf::testrun::Bench;
use ccplane_infer::Model;
use ccplane_module::user::{Build, Interpreter, UserError};
use ccplane_program::ir::Program;
use ccplane_program::vm::ProgramState;

use crate::ack::{self, ACKS, FLIGHT, GAP_US, LIBCCP};
use crate::error::BenchError;
use crate::figure::Figure;
use crate::nn::{BATCH, Networks, time};
use crate::oracle::{self, Stream};
use crate::proof::{self, Proof};
use crate::steer;

const ROUNDS: usize = 9;
const NETWORK_ROUNDS: usize = 99;

fn interpreter() -> Result<Interpreter, BenchError> {
    Interpreter::start(Build::Kernel).map_err(missing)
}

fn missing(error: UserError) -> BenchError {
    BenchError::Missing(error.to_string())
}

/// Measures `ack.module.reno`: Reno's program on made-up ACKs, beside libccp's VM and the same program as BPF.
pub fn reno() -> Result<Vec<Figure>, BenchError> {
    let (program, fields) = ack::reno()?;
    let nothing = Program::new(Vec::new(), Vec::new(), Vec::new(), Vec::new())
        .map_err(|e| BenchError::Program(vec![e.to_string()]))?;
    let acks = ack::acks();
    let mut interpreter = interpreter()?;
    let baseline = Stream::new(steer::source(&ccplane_algs::RENO), &program, &fields, &acks, GAP_US, ACKS)?;
    let bench = Bench::new()?;
    let (loaded, empty) = (bench.load(&program, 1)?, bench.load(&nothing, 2)?);
    let counter = usize::from(ack::register(&program, "Report.acked")?);
    let (mut libccp, mut bpf, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut run = |program: &Program, fields: &[(Field, i64)]| {
            let timed = interpreter.time_program(program, fields, FLIGHT, &acks, GAP_US, ACKS.into());
            timed.map(|timed| (timed.ns as f64 / f64::from(ACKS), timed.end)).map_err(missing)
        };
        let (nothing_ns, _) = run(&nothing, &[])?;
        let (ns, end) = run(&program, &fields)?;
        let idle = bench.time(&empty, &acks, GAP_US, ACKS)?;
        bench.set(&ProgramState::new(&program, FLIGHT, 0));
        bench.stage(&loaded, true, &fields);
        let busy = bench.time(&loaded, &acks, GAP_US, ACKS)?;
        let flow = bench.get();
        // A figure of a program that did something else would be worth nothing.
        let regs = program.regs().len();
        if (&flow.regs[..regs], flow.cwnd_bytes, flow.faults) != (&end.regs[..], end.cwnd_bytes, end.faults) {
            return Err(BenchError::Missing("the module's interpreter and the BPF program disagree".into()));
        }
        let (theirs, ran) = oracle::time_libccp(&baseline)?;
        let counted = end.regs.get(counter).map_or(0, |bytes| (*bytes).max(0) as u64) / (2 * ack::MSS as u64);
        proofs.push(Proof::exactly("ACKs", counted, ACKS.into())?.and(&ran));
        libccp.push((ns, theirs));
        bpf.push((ns - nothing_ns, f64::from(busy) - f64::from(idle)));
    }
    let proof = proof::all(&proofs)?;
    Ok(vec![
        Figure::paired("ack.module.reno", "ns", LIBCCP, &libccp, &proof).with_note(
            "the interpreter in user space, on made-up ACKs; the flow ends as the BPF program's does",
        ),
        Figure::paired(
            "ack.module.reno.ebpf",
            "ns",
            "the same program as BPF, run by the kernel",
            &bpf,
            &proof,
        )
        .with_note("both above an empty program"),
    ])
}

/// Measures `nn.module.aurora`: Aurora's network beside plain loops.
pub fn aurora() -> Result<Vec<Figure>, BenchError> {
    let networks = Networks::new()?;
    let mut interpreter = interpreter()?;
    let (mut narrow, mut wide) = (Vec::new(), Vec::new());
    let mut proofs = Vec::new();
    // The first round warms up.
    for round in 0..=NETWORK_ROUNDS {
        let mut ns = [0.0; 2];
        for (ns, (shape, image)) in ns.iter_mut().zip(&networks.images) {
            let timed = interpreter.network(shape, image, &networks.states, BATCH as u64).map_err(missing)?;
            *ns = timed.ns as f64 / BATCH as f64;
            let model = Model::new(shape, image)
                .ok_or_else(|| BenchError::Missing("an image of its own shape".to_owned()))?;
            let expected = networks.states.iter().map(|cells| model.infer(cells));
            let same = expected.zip(&timed.results).filter(|(expected, found)| expected == *found).count();
            let all = networks.states.len() as u64;
            proofs.push(Proof::exactly("states with the oracle's bits", same as u64, all)?);
        }
        let plain = time(&networks.states, |cells| networks.plain.infer(cells));
        let float = time(&networks.states, |cells| networks.float.infer(cells));
        if round > 0 {
            narrow.push((ns[0], plain));
            wide.push((ns[1], float));
        }
    }
    let proof = proof::all(&proofs)?;
    let same = "no vectors, as in a kernel; the same bits as the oracle on every state";
    Ok(vec![
        Figure::paired("nn.module.aurora", "ns", "a plain int8 loop", &narrow, &proof).with_note(same),
        Figure::paired("nn.module.aurora.w16", "ns", "a float32 loop, tanh as a fraction", &wide, &proof)
            .with_note(same),
    ])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// No compiler, no figure; with one, both networks give the oracle's bits or there is an error.
    #[test]
    fn the_modules_networks_give_the_bits_of_the_reference() {
        if let Err(why) = interpreter() {
            ccplane_testing::skipped("the module's networks as figures", why);
            return;
        }
        let figures = aurora().unwrap();
        assert_eq!(figures.len(), 2);
        figures.iter().for_each(|figure| figure.check().unwrap());
    }
}
