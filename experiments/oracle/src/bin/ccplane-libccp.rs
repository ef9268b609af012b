//! Times libccp's VM: reads a program, fields and ACKs as JSON from standard input (see the benchmarks' `oracle`
//! module), writes `{"ns_per_ack": x, "acks": n, "cwnd_before": n, "cwnd_after": n}`.

use std::process::ExitCode;

use ccplane_oracle::libccp::Libccp;
use ccplane_program::ir::Prim;
use ccplane_program::stock::{self, StockReg};
use ccplane_program::vm::Prims;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Stream {
    source: String,
    fields: Vec<(String, i64)>,
    acks: Vec<Vec<i64>>,
    gap_us: u64,
    times: u32,
}

const UID: u32 = 7;
/// Invocations before the clock starts.
const WARM_UP: u32 = 10_000;

fn run() -> Result<Value, String> {
    let stream: Stream = serde_json::from_reader(std::io::stdin()).map_err(|e| e.to_string())?;
    let program = ccplane_program::compile(&stream.source).map_err(|e| format!("{e:?}"))?;
    let stock = stock::lower(&program).map_err(|e| e.to_string())?;
    let mut cwnd = 14_480;
    let mut fields: Vec<(StockReg, u64)> = Vec::new();
    for (name, value) in &stream.fields {
        if name == "Cwnd" {
            cwnd = *value as u32;
        } else {
            let reg = program.reg(name).and_then(|r| stock.update_reg(r));
            fields.push((reg.ok_or_else(|| format!("no control register {name}"))?, *value as u64));
        }
    }
    let acks: Vec<Prims> = stream
        .acks
        .iter()
        .map(|values| {
            let mut prims = Prims::default();
            for (prim, value) in Prim::ACK.iter().zip(values) {
                prims.set(*prim, *value);
            }
            prims
        })
        .collect();
    if acks.is_empty() {
        return Err("no ACKs".into());
    }
    let mut libccp = Libccp::new();
    let installed = libccp.install(UID, &stock);
    let changed = libccp.change_program(UID, &fields);
    if installed != 0 || changed < 0 {
        return Err(format!("libccp refused the program: {installed}, {changed}"));
    }
    libccp.time(&acks, stream.gap_us, WARM_UP, cwnd);
    match libccp.time(&acks, stream.gap_us, stream.times, cwnd) {
        (ns, 0, after) => Ok(json!({
            "ns_per_ack": ns, "acks": stream.times, "cwnd_before": cwnd, "cwnd_after": after,
        })),
        (_, code, _) => Err(format!("libccp aborted the program with code {code}")),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(timed) => {
            println!("{timed}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("ccplane-libccp: {e}");
            ExitCode::FAILURE
        }
    }
}
