//! `ccplane prog check|show`: a program, without running it.

use super::output::{print, print_json};
use crate::cli::{ProgArgs, ProgCommand};
use ccplane_agent::control::to_hex;
use ccplane_agent::failure::Failure;
use ccplane_alg::{Algorithm, PolicySource};
use ccplane_files::{Bound, ReadError};
use ccplane_infer::Shape;
use ccplane_program::ir::{Program, RegDecl, RegKind};
use ccplane_program::lang::{self, Diagnostic, MAX_SOURCE_BYTES};
use ccplane_program::stock::{self, Limits, Stock, StockReg};
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

/// Reasons why a program is refused: exit code 2.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{file}: {} in the program\n{}", count(diagnostics.len()), render(file, text, diagnostics))]
    Refused { file: String, text: String, diagnostics: Vec<Diagnostic> },
    #[error("{}: {reason}", place(file, *line))]
    NotStock { file: String, line: Option<u32>, reason: stock::Refusal },
    #[error("{file}: the lowered bytecode is not valid: {error}")]
    BadStock { file: String, error: ccplane_wire::DecodeError },
}

/// A file, and a line of it where there is one.
fn place(file: &str, line: Option<u32>) -> String {
    line.map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"))
}

fn count(errors: usize) -> String {
    if errors == 1 { "1 error".to_owned() } else { format!("{errors} errors") }
}

fn render(file: &str, text: &str, diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(|d| d.render(file, text)).collect::<String>().trim_end().to_owned()
}

pub(crate) fn prog(args: &ProgArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    match &args.command {
        ProgCommand::Check { file, as_portus, json } => check(file, *as_portus, *json),
        ProgCommand::Show { file, ir: _, stock, bpf, json } => {
            let (name, program) = load(file, compile).map_err(Failure::input)?;
            let text = if *stock {
                let stock = Lowered::new(&name, &program).map_err(Failure::input)?;
                if *json {
                    return print_json(&stock.record(name, &program));
                }
                stock.listing()
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

/// Reads and compiles a program.
fn load(
    path: &Path,
    compile: fn(&str) -> Result<Program, Vec<Diagnostic>>,
) -> Result<(String, Program), ProgramError> {
    source(path, compile).map(|source| (source.file, source.program))
}

/// A program with its text.
pub(super) struct Compiled {
    file: String,
    pub(super) text: String,
    pub(super) program: Program,
}

/// Reads and compiles a program, and keeps its text.
pub(super) fn source(
    path: &Path,
    compile: fn(&str) -> Result<Program, Vec<Diagnostic>>,
) -> Result<Compiled, ProgramError> {
    let (name, bytes) = if path == Path::new("-") {
        let name = Path::new("<stdin>");
        (name, ccplane_files::read_from(io::stdin().lock(), name, SOURCE)?)
    } else {
        (path, ccplane_files::read(path, SOURCE)?)
    };
    let (file, text) = (name.display().to_string(), ccplane_files::text(bytes, name)?);
    match compile(&text) {
        Ok(program) => Ok(Compiled { file, text, program }),
        Err(diagnostics) => Err(ProgramError::Refused { file, text, diagnostics }),
    }
}

/// The findings of `prog check`.
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
    /// The line of the program that they cannot run.
    stock_refusal_line: Option<u32>,
    stock_instructions: Option<u32>,
}

fn check(path: &Path, as_portus: bool, json: bool) -> Result<(), Failure> {
    let limits = if as_portus { Limits::PORTUS } else { Limits::LIBCCP };
    let compile: fn(&str) -> _ = if as_portus { lang::compile_as_portus } else { compile };
    let (file, program) = load(path, compile).map_err(Failure::input)?;
    let registers = |kind| program.regs().iter().filter(|r| r.kind == kind).count();
    let lowered = stock::lower_within(&program, &limits);
    let summary = Summary {
        file,
        instructions: program.insts().len(),
        clauses: program.clauses().len(),
        report_registers: registers(RegKind::Report),
        control_registers: registers(RegKind::Control),
        local_registers: registers(RegKind::Local),
        stock_refusal: lowered.as_ref().err().map(ToString::to_string),
        stock_refusal_line: lowered.as_ref().err().and_then(|refusal| refusal.line(&program)),
        stock_instructions: lowered.as_ref().ok().map(Stock::num_instructions),
    };
    if json { print_json(&summary) } else { print(&summary_text(&summary)) }
}

fn summary_text(s: &Summary) -> String {
    let stock = match (&s.stock_refusal, s.stock_instructions) {
        (None, Some(n)) => format!("stock CCP datapaths can run it, as {n} instructions"),
        (refusal, _) => {
            let line = s.stock_refusal_line.map(|line| format!(" (line {line})")).unwrap_or_default();
            format!("{}{line}", refusal.as_deref().unwrap_or_default())
        }
    };
    format!(
        "{}: ok\n  {} instructions in {} clauses; registers: {} report, {} control, {} local\n  {stock}\n",
        s.file, s.instructions, s.clauses, s.report_registers, s.control_registers, s.local_registers
    )
}

/// A program in stock bytecode, which parses.
struct Lowered {
    stock: Stock,
}

/// A program as an INSTALL message carries it, and the places of its registers.
#[derive(Serialize)]
struct StockRecord {
    file: String,
    /// The counts of an INSTALL message.
    expressions: u32,
    instructions: u32,
    /// The bytes that follow the counts, in hexadecimal digits.
    bytes: String,
    /// The values of a MEASURE message, in order.
    report: Vec<String>,
    registers: Vec<RegisterRecord>,
}

/// A register of a program and its place in libccp.
#[derive(Serialize)]
struct RegisterRecord {
    name: String,
    volatile: bool,
    initial: i64,
    /// The register type of libccp, by number and in words.
    #[serde(rename = "type")]
    kind: u8,
    type_name: &'static str,
    index: u32,
    /// Whether UPDATE_FIELD and CHANGE_PROG may set it.
    settable: bool,
}

impl Lowered {
    fn new(file: &str, program: &Program) -> Result<Lowered, ProgramError> {
        let not_stock = |reason: stock::Refusal| ProgramError::NotStock {
            file: file.to_owned(),
            line: reason.line(program),
            reason,
        };
        let lowered = Lowered { stock: stock::lower(program).map_err(not_stock)? };
        lowered.code().map_err(|error| ProgramError::BadStock { file: file.to_owned(), error })?;
        Ok(lowered)
    }

    fn code(&self) -> Result<Bytecode<'_>, ccplane_wire::DecodeError> {
        Bytecode::from_bytes(self.stock.num_expressions() as usize, self.stock.bytes())
    }

    fn listing(&self) -> String {
        let mut out = String::new();
        let Ok(code) = self.code() else { return out };
        for (n, e) in code.events().iter().enumerate() {
            let (flag_end, body_end) = (e.flag_start + e.flag_insts, e.body_start + e.body_insts);
            let _ =
                writeln!(out, "event {n}: when {}..{flag_end} do {}..{body_end}", e.flag_start, e.body_start);
        }
        for (n, inst) in code.insts().iter().enumerate() {
            let _ = writeln!(out, "{n:4}  {}", stock_inst(&inst));
        }
        out
    }

    fn record(&self, file: String, program: &Program) -> StockRecord {
        let register = |(n, decl): (u8, &RegDecl)| {
            let StockReg { kind, index } = self.stock.reg(n)?;
            Some(RegisterRecord {
                name: decl.name.clone(),
                volatile: decl.volatile,
                initial: decl.init,
                kind,
                type_name: stock::kind_name(kind),
                index,
                settable: decl.kind == RegKind::Control && self.stock.update_reg(n).is_some(),
            })
        };
        let reported = program.regs().iter().take(self.stock.report_len());
        StockRecord {
            file,
            expressions: self.stock.num_expressions(),
            instructions: self.stock.num_instructions(),
            bytes: to_hex(self.stock.bytes()),
            report: reported.map(|decl| decl.name.clone()).collect(),
            registers: (0..).zip(program.regs()).filter_map(register).collect(),
        }
    }
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
