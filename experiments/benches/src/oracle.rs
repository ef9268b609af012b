//! The baselines that are other people's code: libccp and portus, in processes of their own.
//!
//! libccp exports symbols (`log`, `now`) that clash with libc's, so that no process of ours links it. The
//! programs `ccplane-libccp` and `ccplane-portus` are built beside ccplane by `make bench`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ccplane_contract::Field;
use ccplane_program::ir::{Prim, Program};
use ccplane_program::stock;
use ccplane_program::vm::Prims;
use serde::{Deserialize, Serialize};

use crate::error::{BenchError, context};
use crate::proof::{Proof, Unproven};

/// The input of `ccplane-libccp`: a program's source, fields by name, ACKs, and the number of repetitions.
#[derive(Serialize)]
pub struct Stream {
    source: String,
    fields: Vec<(String, i64)>,
    acks: Vec<Vec<i64>>,
    gap_us: u64,
    times: u32,
}

impl Stream {
    /// # Errors
    /// The program needs more than stock CCP has.
    pub fn new(
        source: &str,
        program: &Program,
        fields: &[(Field, i64)],
        acks: &[Prims],
        gap_us: u64,
        times: u32,
    ) -> Result<Stream, BenchError> {
        stock::lower(program).map_err(|e| BenchError::Program(vec![e.to_string()]))?;
        let named = fields.iter().map(|(field, value)| {
            let name = match field {
                Field::Reg(r) => {
                    program.regs().get(usize::from(*r)).map(|d| d.name.clone()).unwrap_or_default()
                }
                Field::Cwnd => "Cwnd".into(),
                Field::Rate => "Rate".into(),
            };
            (name, *value)
        });
        Ok(Stream {
            source: source.into(),
            fields: named.collect(),
            acks: acks.iter().map(|p| Prim::ACK.iter().map(|prim| p.get(*prim)).collect()).collect(),
            gap_us,
            times,
        })
    }
}

#[derive(Deserialize)]
struct Timed {
    ns_per_ack: f64,
    acks: u64,
    cwnd_before: u64,
    cwnd_after: u64,
}

impl Timed {
    /// Proves that libccp ran the program on all ACKs, by their number and by the growth of the window.
    fn proof(&self, wanted: u32) -> Result<Proof, Unproven> {
        let acks = Proof::exactly("ACKs of libccp", self.acks, wanted.into())?;
        Ok(acks.and(&Proof::grown("bytes of libccp's window", self.cwnd_before, self.cwnd_after)?))
    }
}

/// The program of this name beside ours, or in the folder above (a test's or an example's).
pub fn find(name: &str) -> Result<PathBuf, BenchError> {
    let own = context("find the running program", std::env::current_exe())?;
    let found = own.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        BenchError::Missing(format!("no baseline: {name} is not built; `make bench` builds it"))
    })
}

/// Nanoseconds per ACK of libccp's VM, whose window must grow.
///
/// # Errors
/// The baseline is not built, or failed, or did something else.
pub fn time_libccp(stream: &Stream) -> Result<(f64, Proof), BenchError> {
    let path = find("ccplane-libccp")?;
    let mut child = context(
        "start ccplane-libccp",
        Command::new(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn(),
    )?;
    if let Some(mut stdin) = child.stdin.take() {
        let text = serde_json::to_vec(stream).unwrap_or_default();
        context("write to ccplane-libccp", stdin.write_all(&text))?;
    }
    let output = context("wait for ccplane-libccp", child.wait_with_output())?;
    let timed: Timed = serde_json::from_slice(&output.stdout).map_err(|e| {
        BenchError::Missing(format!("no baseline: ccplane-libccp ended with {}: {e}", output.status))
    })?;
    Ok((timed.ns_per_ack, timed.proof(stream.times)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_that_did_not_run_is_none() {
        let timed = |acks, cwnd_after| Timed { ns_per_ack: 1.0, acks, cwnd_before: 10, cwnd_after };
        assert!(timed(5, 11).proof(5).is_ok());
        assert_eq!(
            timed(4, 11).proof(5),
            Err(Unproven::Count { what: "ACKs of libccp", counted: 4, wanted: 5 })
        );
        let idle = Unproven::Idle { what: "bytes of libccp's window", before: 10, after: 10 };
        assert_eq!(timed(5, 10).proof(5), Err(idle));
        assert!(timed(0, 11).proof(0).is_err());
    }
}
