//! The real libccp as an executor of the contract's scripts, for programs that stock bytecode expresses.

use crate::libccp::{Invocation, Libccp};
use ccplane_contract::Field;
use ccplane_contract::suite::{
    Executor, ExecutorError, NO_PACKETS, Observation, Script, ScriptStep, Sending,
};
use ccplane_program::ir::{INFINITY, Program, RegId, Type};
use ccplane_program::stock::{STOCK_INFINITY, Stock, StockReg, lower, reported};

/// Runs scripts on a fresh libccp each. What libccp shows in 32 bits must fit them, and it must abort nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct StockExecutor;

struct Lowered<'a> {
    uid: u32,
    program: &'a Program,
    stock: Stock,
}

impl Lowered<'_> {
    fn fields(&self, fields: &[(Field, i64)]) -> Result<Vec<(StockReg, u64)>, ExecutorError> {
        let named = |(field, value): &(Field, i64)| {
            let reg = match field {
                Field::Cwnd => StockReg::CWND,
                Field::Rate => StockReg::RATE,
                Field::Reg(r) => self.stock.update_reg(*r).ok_or("a field that stock CCP cannot update")?,
            };
            let value = if *value == INFINITY { STOCK_INFINITY.into() } else { *value as u64 };
            Ok((reg, value))
        };
        fields.iter().map(named).collect()
    }

    /// Returns the value of a register, as our VM represents it.
    fn register(&self, libccp: &Libccp, reg: RegId, ty: Type) -> Result<i64, ExecutorError> {
        let value =
            self.stock.reg(reg).and_then(|r| libccp.register(r)).ok_or("a register that libccp lacks")?;
        Ok(match ty {
            Type::Bool => i64::from(value != 0),
            Type::Num if value == u64::from(STOCK_INFINITY) => INFINITY,
            Type::Num => value as i64,
        })
    }
}

impl Executor for StockExecutor {
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
        let mut libccp = Libccp::new();
        let mut programs = Vec::new();
        for (program, uid) in script.programs.iter().zip(1..) {
            let stock = lower(program)?;
            accepted("INSTALL", libccp.install(uid, &stock))?;
            programs.push(Lowered { uid, program, stock });
        }
        let get = |n: usize| programs.get(n).ok_or("the script names a program that it does not hold");
        let mut current = get(0)?;
        accepted("CHANGE_PROG", libccp.change_program(current.uid, &[]))?;
        let (mut cwnd, mut rate) = (u32::try_from(script.cwnd_bytes)?, 0);
        let mut seen = Vec::new();
        for step in &script.steps {
            match step {
                ScriptStep::Update(fields) => {
                    accepted("UPDATE_FIELD", libccp.update(&current.fields(fields)?))?
                }
                ScriptStep::SetProgram { program, fields } => {
                    current = get(*program)?;
                    let code = libccp.change_program(current.uid, &current.fields(fields)?);
                    accepted("CHANGE_PROG", code)?;
                }
                ScriptStep::Push { .. } | ScriptStep::Promote(_) | ScriptStep::Rollback(_) => {
                    return Err("libccp has no policies".into());
                }
                // What the primitives say of it is all that libccp's programs know.
                ScriptStep::SegmentSize { .. } => {}
                ScriptStep::Decide(_) => return Err(NO_PACKETS.into()),
                ScriptStep::Invoke(prims) => {
                    let Invocation { code, cwnd: new_cwnd, rate: new_rate, report } =
                        libccp.invoke(prims, cwnd, rate);
                    if code != 0 {
                        return Err(format!("libccp aborted invocation {} with {code}", seen.len()).into());
                    }
                    cwnd = new_cwnd.unwrap_or(cwnd);
                    rate = new_rate.map_or(0, u64::from);
                    let regs = current.program.regs().iter().zip(0..);
                    seen.push(Observation {
                        regs: regs
                            .map(|(decl, reg)| current.register(&libccp, reg, decl.ty))
                            .collect::<Result<_, _>>()?,
                        cwnd_bytes: cwnd.into(),
                        rate_bytes_per_s: rate as i64,
                        faults: 0,
                        report: report.map(|values| values.into_iter().map(reported).collect()),
                        sending: Sending::default(),
                        policy: None,
                    });
                }
            }
        }
        Ok(seen)
    }
}

fn accepted(message: &str, code: i32) -> Result<(), ExecutorError> {
    if code < 0 { Err(format!("libccp refused {message} with {code}").into()) } else { Ok(()) }
}
