//! What the kernel's verifier says, in terms of the program that it refused.

use ccplane_contract::DatapathError;

use crate::codegen::Compiled;
use crate::sys::LoadError;

/// Lines of the verifier's log that a refusal quotes.
const LOG_LINES: usize = 6;

/// The last words of a log.
pub fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|l| !l.is_empty() && !l.starts_with("processed ")).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// The BPF instruction at which the verifier stopped: the one that its last words name (checks of the program's
/// shape do), or else the last one that it walked through.
fn refused_at(log: &str) -> Option<usize> {
    for line in log.lines().rev().filter(|l| !l.starts_with("processed ")) {
        if let Some((number, rest)) = line.trim_start().split_once(':')
            && rest.trim_start().starts_with('(')
        {
            return number.parse().ok();
        }
        let named =
            line.split_once("insn ").map(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next());
        if let Some(number) = named.flatten().and_then(|n| n.parse().ok()) {
            return Some(number);
        }
    }
    None
}

/// The refusal of a compiled program.
pub fn refusal(compiled: &Compiled, e: &LoadError) -> DatapathError {
    let words = last_lines(&e.log);
    let reason = if words.is_empty() { e.errno.to_string() } else { format!("{}: {words}", e.errno) };
    DatapathError::Refused { at: refused_at(&e.log).and_then(|at| compiled.ir_at(at)), reason }
}
