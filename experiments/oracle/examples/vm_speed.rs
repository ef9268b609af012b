//! Nanoseconds per ACK of our VM and of libccp's, on the same programs, in turns.
//!
//! `cargo run --release -p ccplane-oracle --example vm_speed`

use std::hint::black_box;
use std::time::Instant;

use ccplane_oracle::generate::ack;
use ccplane_oracle::libccp::Libccp;
use ccplane_oracle::rng::Rng;
use ccplane_program::compile;
use ccplane_program::ir::MAX_REGS;
use ccplane_program::stock::lower;
use ccplane_program::vm::ProgramState;

const ACKS: usize = 200_000;
const ROUNDS: usize = 9;
const CWND: u32 = 14480;

fn main() {
    for count in [5, 20, 50] {
        // libccp runs two instructions for each of these statements, we run one.
        let statements = [
            "(:= Report.a (+ Report.a Ack.bytes_acked))\n",
            "(:= Report.b (min Report.b Flow.rtt_sample_us))\n",
        ];
        let body: String = statements.into_iter().cycle().take(count / 2).collect();
        let source = format!("(def (Report (volatile a 0) (b +infinity)))\n(when true {body})");
        let program = match compile(&source) {
            Ok(p) => p,
            Err(d) => return eprintln!("{}", d[0].render("vm_speed", &source)),
        };
        let Ok(stock) = lower(&program) else { return eprintln!("not for stock datapaths") };
        let acks: Vec<_> = (0..1024u64).map(|n| ack(&mut Rng::new(n), n * 10)).collect();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut flow = ProgramState::new(&program, i64::from(CWND), 0);
            let mut report = [0; MAX_REGS];
            ours.push(time(|n| flow.invoke(&program, &acks[n % acks.len()], &mut report).report));
            let mut libccp = Libccp::new();
            libccp.install(7, &stock);
            libccp.change_program(7, &[]);
            theirs.push(time(|n| libccp.invoke(&acks[n % acks.len()], CWND, 0).report.is_some()));
        }
        let (ours, theirs) = (median(ours), median(theirs));
        println!(
            "{} stock instructions, {} of ours: {ours:.1} ns, libccp {theirs:.1} ns, ratio {:.3}",
            stock.num_instructions(),
            program.insts().len(),
            ours / theirs
        );
    }
}

fn time(mut ack: impl FnMut(usize) -> bool) -> f64 {
    let start = Instant::now();
    for n in 0..ACKS {
        black_box(ack(n));
    }
    start.elapsed().as_nanos() as f64 / ACKS as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
