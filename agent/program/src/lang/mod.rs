//! The fold language: source text to [`Program`].
//!
//! ```text
//! program   = [(hook ack | send | connect)] (def decl* [(Report decl+)] decl*) clause+
//! decl      = ([volatile] name value)              value     = number | +infinity | true | false
//! clause    = (when expr statement*)
//! statement = (:= name expr) | (report) | (fallthrough) | (history k name+) | (policy slot)
//! expr      = value | name | (op expr expr) | (:= name expr)
//! op        = + - * / == < > <= >= && || min max wrapped_max; right of a bind also ewma if !if
//! ```
//! `add sub mul div eq lt gt and or bind` spell the same operators. `#` starts a comment that ends with its
//! line. A register declared in `(Report ...)` as `x` is `Report.x`; `Report.x` may also be declared directly.
//! A name first bound inside a clause is a local. A boolean bound to a register that holds numbers is 0 or 1. A nested
//! bind runs before its operator, and both operands are read when the operator runs: `(+ x (:= x 3))` is 6.
//!
//! # Histories and policies
//! `(history k a b)` appends what `a` and `b` hold now, each saturated to 32 bits. It keeps those of the last `k` times
//! that it ran; before that they count as 0. Two statements that keep the same registers for as many intervals append
//! to one history. `(policy s)` has policy slot `s` of the datapath decide: a network gets all histories of the
//! program, in the order in which the source first names them, each oldest interval first. Its action changes `Rate` or
//! `Cwnd`, which the statements after it see, or only stands in `Policy.action`. `Policy.action` is the last action, in
//! 2^-16, and `Policy.snapshot` names what decided it; both are 0 before the first. A program that starts begins with
//! histories of
//! 0. If the slot has no answer, both are 0 again and the invocation ends as it would. The datapath's native
//!    algorithm then has the flow until the agent sets a program again.
//!
//! A program that measures intervals of a round trip and lets slot 0 set the rate after each of them:
//!
//! ```
//! let program = ccplane_program::compile("
//!     (def (Report (volatile acked 0) (volatile lost 0) (action 0) (snapshot 0)))
//!     (when true
//!         (:= Report.acked (+ Report.acked Ack.packets_acked))
//!         (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
//!         (fallthrough))
//!     (when (&& (> Micros Flow.rtt_sample_us) (> Report.acked 10))
//!         (history 10 Report.acked Report.lost)
//!         (policy 0)
//!         (:= Report.action Policy.action)
//!         (:= Report.snapshot Policy.snapshot)
//!         (:= Micros 0)
//!         (report))
//! ")?;
//! assert_eq!((program.policy_slots(), program.policy_inputs()), (vec![0], 20));
//! # Ok::<(), Vec<ccplane_program::Diagnostic>>(())
//! ```
//!
//! # Hooks
//! `(hook ack)`, which is also meant where nothing is said, runs on each ACK, reads `Ack.` and `Flow.` primitives, and
//! sets `Cwnd` and `Rate`. `(hook send)` runs on a flow's packets on their way out, `(hook connect)` when a flow
//! starts; both set `Priority` (0, served first, to 7), `Path` (the number of one of up to eight) and `DecideAt`. The
//! latter is the count of sent bytes from which on the program runs again (none, where it is not above 0: the program
//! then runs on the first packet and after pauses). What they can read is listed by
//! [`Hook::prims`](crate::ir::Hook::prims). A priority or path out of range is no decision: the one before stays.
//! Registers, reports, histories and policies are the same at all hooks.
//!
//! # Beyond portus 0.9
//! `(hook ...)`, `>=`, `<=`, negative literals (not in operator position: `(-1 2)` subtracts), `(history ...)`,
//! `(policy ...)`, `Policy.action`, `Policy.snapshot`; comments anywhere, a comment that ends the file, a clause
//! without statements, white space before `def`; `ewma`/`if`/`!if` bound to `Cwnd`, `Rate`, `Micros` and locals, any
//! boolean as a condition, [`MAX_REGS`](crate::ir::MAX_REGS) registers, 63-bit literals.
//!
//! # Stricter than portus 0.9
//! What portus accepts and we refuse, because it does not do what it says:
//! 1. a name that is read but neither declared nor bound before: portus makes it a new local;
//! 2. binding an undeclared `Report.x`, `Flow.x` or `Ack.x`: a new local, never reported;
//! 3. a local that is never read;
//! 4. a number bound to a boolean, a boolean bound to `Cwnd`, `Rate` or `Micros`, and a number as the condition
//!    of `if` and `!if`: never checked;
//! 5. an `ewma`, `if` or `!if` elsewhere than right of a bind, or bound to a local that has no value yet:
//!    portus panics when it serialises the program;
//! 6. a statement whose value is dropped, such as `(+ 3 4)` or `(== a b)`;
//! 7. `(report)` and `(fallthrough)` as values;
//! 8. a bind to anything but a name, such as `(:= (+ 1 2) 3)`;
//! 9. a bind inside an operand of `if` or `!if`: it runs in both cases;
//! 10. registers declared twice, or named as a primitive, `Cwnd`, `Rate` or `Micros`: one hides the other;
//! 11. a declaration initialised with a name: the register is neither initialised nor reported;
//! 12. `Report.` inside `(Report ...)`, which becomes `Report.Report.x`, and `(Report 0)`;
//! 13. tokens that run together where portus matches a prefix: `(addx 3)`, `(whentrue ...)`, `4foo`,
//!     `(volatilefoo 0)`, `truefoo`; so names start neither with a digit nor with `true`, `false`, `volatile`;
//! 14. letters outside ASCII: portus looks at their lowest byte only;
//! 15. numbers from 2^63 on, of which portus can serialise only 2^64-1;
//! 16. more than [`MAX_DEPTH`] nested parentheses, names of more than [`MAX_NAME_BYTES`], sources of more than
//!     [`MAX_SOURCE_BYTES`], and the limits of [`crate::ir`]: portus has no limits of its own.

pub mod ast;
mod check;
pub mod diag;
mod lex;
mod parse;
mod print;
pub(crate) mod words;

use alloc::vec::Vec;

use crate::ir::Program;
pub use check::{check, check_as_portus};
pub use diag::{Diagnostic, Problem, Span};
pub use parse::parse;

/// Size of a source text.
pub const MAX_SOURCE_BYTES: usize = 1 << 18;
/// The deepest nesting of parentheses that the parser accepts.
pub const MAX_DEPTH: usize = 64;
/// Diagnostics of one compilation; further ones are left out.
pub const MAX_DIAGNOSTICS: usize = 100;
/// Size of a name.
pub const MAX_NAME_BYTES: usize = 64;

/// Compiles the text of a program into verified IR.
///
/// # Errors
/// Everything that is wrong with it, in source order; at least one diagnostic.
pub fn compile(source: &str) -> Result<Program, Vec<Diagnostic>> {
    check(source, &parse(source)?)
}

/// Compiles as [`compile`] does, and takes locals that nothing reads, as portus does.
///
/// # Errors
/// Everything else that is wrong with it, in source order.
pub fn compile_as_portus(source: &str) -> Result<Program, Vec<Diagnostic>> {
    check_as_portus(source, &parse(source)?)
}
