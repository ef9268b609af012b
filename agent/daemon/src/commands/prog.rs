//! `ccplane prog check|show`: a program, without running it.

use super::{print, print_json};
use crate::cli::{ProgArgs, ProgCommand};
use crate::failure::Failure;
use ccplane_alg::{Algorithm, PolicySource};
use ccplane_files::{Bound, ReadError};
use ccplane_infer::Shape;
use ccplane_program::ir::{Program, RegKind};
use ccplane_program::lang::{Diagnostic, MAX_SOURCE_BYTES};
use ccplane_program::stock::{self, Stock};
use ccplane_program::{compile, disasm};
use ccplane_snapshot::Snapshot;
use ccplane_wire::v1::{Bytecode, Inst, Op, Reg};
use serde::Serialize;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The bound of a program.
const SOURCE: Bound = Bound { what: "a program", bytes: MAX_SOURCE_BYTES as u64 };

/// Why a program is refused: exit code 2.
#[derive(Debug, thiserror::Error)]
enum ProgramError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{file}: {} in the program\n{}", count(diagnostics.len()), render(file, text, diagnostics))]
    Refused { file: String, text: String, diagnostics: Vec<Diagnostic> },
    #[error("{file}: {refusal}")]
    NotStock { file: String, refusal: stock::Refusal },
    #[error("{file}: the lowered bytecode is not valid: {error}")]
    BadStock { file: String, error: ccplane_wire::DecodeError },
}

fn count(errors: usize) -> String {
    if errors == 1 { "1 error".to_owned() } else { format!("{errors} errors") }
}

fn render(file: &str, text: &str, diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(|d| d.render(file, text)).collect::<String>().trim_end().to_owned()
}

/// `ccplane prog`
pub(crate) fn prog(args: &ProgArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    match &args.command {
        ProgCommand::Check { file, json } => check(file, *json),
        ProgCommand::Show { file, ir: _, stock, bpf } => {
            let (name, program) = load(file).map_err(Failure::input)?;
            let text = if *stock {
                show_stock(&name, &program).map_err(Failure::input)?
            } else if *bpf {
                let shapes = shapes(&program, algorithms);
                ccplane_ebpf::listing(&program, &shapes).map_err(Failure::runtime)?
            } else {
                disasm::disassemble(&program)
            };
            print(&text)
        }
    }
}

/// The slots that algorithms have policies for, as far as these could decide by the program's histories.
fn shapes(program: &Program, algorithms: &[Arc<dyn Algorithm>]) -> Vec<(u8, Shape)> {
    let shape =
        |policy: &PolicySource| Some((policy.slot, *Snapshot::built_in(policy.snapshot).ok()?.shape()));
    let policies = algorithms.iter().flat_map(|a| a.policies());
    let shapes = policies.filter_map(|policy| shape(&policy));
    shapes.filter(|(_, shape)| shape.inputs() == program.policy_inputs()).collect()
}

fn load(path: &Path) -> Result<(String, Program), ProgramError> {
    let (name, bytes) = if path == Path::new("-") {
        let name = Path::new("<stdin>");
        (name, ccplane_files::read_from(io::stdin().lock(), name, SOURCE)?)
    } else {
        (path, ccplane_files::read(path, SOURCE)?)
    };
    let (file, text) = (name.display().to_string(), ccplane_files::text(bytes, name)?);
    match compile(&text) {
        Ok(program) => Ok((file, program)),
        Err(diagnostics) => Err(ProgramError::Refused { file, text, diagnostics }),
    }
}

/// What `prog check` finds.
#[derive(Serialize)]
struct Summary {
    file: String,
    instructions: usize,
    clauses: usize,
    report_registers: usize,
    control_registers: usize,
    local_registers: usize,
    /// Absent if stock CCP datapaths can run it.
    stock_refusal: Option<String>,
    stock_instructions: Option<u32>,
}

fn check(path: &Path, json: bool) -> Result<(), Failure> {
    let (file, program) = load(path).map_err(Failure::input)?;
    let registers = |kind| program.regs().iter().filter(|r| r.kind == kind).count();
    let lowered = stock::lower(&program);
    let summary = Summary {
        file,
        instructions: program.insts().len(),
        clauses: program.clauses().len(),
        report_registers: registers(RegKind::Report),
        control_registers: registers(RegKind::Control),
        local_registers: registers(RegKind::Local),
        stock_refusal: lowered.as_ref().err().map(ToString::to_string),
        stock_instructions: lowered.as_ref().ok().map(Stock::num_instructions),
    };
    if json { print_json(&summary) } else { print(&summary_text(&summary)) }
}

fn summary_text(s: &Summary) -> String {
    let stock = match (&s.stock_refusal, s.stock_instructions) {
        (None, Some(n)) => format!("stock CCP datapaths can run it, as {n} instructions"),
        (refusal, _) => refusal.clone().unwrap_or_default(),
    };
    format!(
        "{}: ok\n  {} instructions in {} clauses; registers: {} report, {} control, {} local\n  {stock}\n",
        s.file, s.instructions, s.clauses, s.report_registers, s.control_registers, s.local_registers
    )
}

fn show_stock(file: &str, program: &Program) -> Result<String, ProgramError> {
    let file = || file.to_owned();
    let stock = stock::lower(program).map_err(|refusal| ProgramError::NotStock { file: file(), refusal })?;
    let code = Bytecode::from_bytes(stock.num_expressions() as usize, stock.bytes())
        .map_err(|error| ProgramError::BadStock { file: file(), error })?;
    let mut out = String::new();
    for (n, e) in code.events().iter().enumerate() {
        let (flag_end, body_end) = (e.flag_start + e.flag_insts, e.body_start + e.body_insts);
        let _ = writeln!(out, "event {n}: when {}..{flag_end} do {}..{body_end}", e.flag_start, e.body_start);
    }
    for (n, inst) in code.insts().iter().enumerate() {
        let _ = writeln!(out, "{n:4}  {}", stock_inst(&inst));
    }
    Ok(out)
}

fn stock_inst(inst: &Inst) -> String {
    let [dst, left, right] = [inst.dst, inst.left, inst.right].map(stock_reg);
    match inst.op {
        Op::Def | Op::Bind => format!("{:<7} {dst} <- {right}", mnemonic(inst.op)),
        op => format!("{:<7} {dst} <- {left}, {right}", mnemonic(op)),
    }
}

/// libccp's name of the opcode (machine.c).
fn mnemonic(op: Op) -> String {
    format!("{op:?}").to_uppercase()
}

fn stock_reg(reg: Reg) -> String {
    let volatile = |v| if v { "volatile " } else { "" };
    match reg {
        Reg::Control { index, volatile: v } => format!("{}control[{}]", volatile(v), index.get()),
        Reg::Report { index, volatile: v } => format!("{}report[{}]", volatile(v), index.get()),
        Reg::Imm(n) => n.to_string(),
        Reg::Special(s) => format!("{s:?}"),
        Reg::Local(index) => format!("local[{}]", index.get()),
        Reg::Tmp(index) => format!("tmp[{}]", index.get()),
        Reg::Prim(prim) => prim.name().to_owned(),
    }
}
