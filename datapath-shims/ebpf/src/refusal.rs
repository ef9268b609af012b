//! Refusals by the kernel's verifier, in terms of the refused program.

use ccplane_contract::DatapathError;

use crate::codegen::Compiled;
use ccplane_bpf::LoadError;

/// Lines of the verifier's log that a refusal quotes.
const LOG_LINES: usize = 6;

/// The last lines of a log.
pub fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|l| !l.is_empty() && !l.starts_with("processed ")).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// The BPF instruction at which the verifier stopped.
///
/// The log's last lines name it where checks of the program's shape fail; else it is the last instruction walked
/// through.
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

/// Makes an error of the refusal of a compiled program.
pub fn refusal(compiled: &Compiled, e: &LoadError) -> DatapathError {
    let words = last_lines(&e.log);
    let reason = if words.is_empty() { e.errno.to_string() } else { format!("{}: {words}", e.errno) };
    DatapathError::Refused { at: refused_at(&e.log).and_then(|at| compiled.ir_at(at)), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::{self, Host};
    use crate::frame::REC;
    use crate::layout::rec;
    use crate::policy::Slots;
    use ccplane_bpf::{self as sys, AttachTo, MapType, ProgType};
    use ccplane_nn_codegen::asm::{Asm, R, Size};
    use ccplane_program::ir::Prim;
    use std::os::fd::AsRawFd;

    /// Recorded on Linux 6.18: a store outside of a map's value.
    const OUT_OF_BOUNDS: &str = "0: R1=ctx() R10=fp0
0: (18) r7 = 0xffff8881e3113938       ; R7=map_value(map=ccplane_small,ks=4,vs=784)
2: (b7) r1 = 0                        ; R1=0
3: (7b) *(u64 *)(r10 -48) = r1        ; R1=0 R10=fp0 fp-48=0
4: (61) r1 = *(u32 *)(r7 +16)         ; R1=scalar(smin=0,smax=umax=0xffffffff,var_off=(0x0; 0xffffffff)) R7=map_value(map=ccplane_small,ks=4,vs=784)
5: (15) if r1 == 0x3 goto pc+8        ; R1=scalar(smin=0,smax=umax=0xffffffff,var_off=(0x0; 0xffffffff))
6: (b7) r9 = 0                        ; R9=0
7: (7a) *(u64 *)(r7 +768) = 1         ; R7=map_value(map=ccplane_small,ks=4,vs=784)
8: (7a) *(u64 *)(r7 +776) = 2         ; R7=map_value(map=ccplane_small,ks=4,vs=784)
9: (7a) *(u64 *)(r7 +784) = 3
invalid access to map value, value_size=784 off=784 size=8
R7 min value is outside of the allowed memory range
processed 9 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
";
    /// Recorded on Linux 6.18: a refusal before the walk begins.
    const SHAPE: &str = "jump out of range from insn 1 to 42
processed 0 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
";

    #[test]
    fn the_log_names_the_instruction_where_it_stopped() {
        assert_eq!(refused_at(OUT_OF_BOUNDS), Some(9));
        assert_eq!(refused_at(SHAPE), Some(1));
        assert_eq!(refused_at(""), None);
        assert_eq!(refused_at("processed 0 insns"), None);
        let words = last_lines(OUT_OF_BOUNDS);
        assert!(words.ends_with("R7 min value is outside of the allowed memory range"), "{words}");
        assert_eq!(words.lines().count(), LOG_LINES);
    }

    /// A host whose record has room for two registers only.
    struct SmallRecord(i32);

    impl Host for SmallRecord {
        fn enter(&self, asm: &mut Asm) {
            asm.map_value(REC, self.0, 0);
        }
        fn load_prim(&self, asm: &mut Asm, _: Prim) {
            asm.mov_imm(R::R1, 0);
        }
        fn load_mss(&self, asm: &mut Asm) {
            asm.mov_imm(R::R1, 0);
        }
        fn apply(&self, asm: &mut Asm) {
            asm.load(Size::B8, R::R1, REC, rec::CWND as i16);
        }
        fn report(&self, _: &mut Asm, _: usize, _: bool) {}
        fn give_up(&self, _: &mut Asm) {}
        fn leave(&self, asm: &mut Asm) {
            asm.exit0();
        }
    }

    #[test]
    fn a_real_refusal_names_the_instruction_of_the_program() {
        let source = "(def (Report (a 0)) (b 0) (c 0)) (when true (:= Report.a 1) (:= b 2) (:= c 3))";
        let program = ccplane_program::compile(source).unwrap();
        let map = match sys::map_create(MapType::Array, "ccplane_small", 4, rec::REGS + 16, 1, 0) {
            Ok(map) => map,
            Err(e) => {
                let check = "a_real_refusal_names_the_instruction_of_the_program";
                return ccplane_testing::skipped(check, format_args!("cannot create a BPF map: {e}"));
            }
        };
        let compiled = codegen::compile(&program, 1, &SmallRecord(map.as_raw_fd()), &Slots::NONE).unwrap();
        let refused =
            sys::prog_load(ProgType::SchedCls, "ccplane_test", &compiled.insns, AttachTo::default());
        let third = program.insts().iter().position(|i| i.dst == ccplane_program::ir::Dst::Reg(2));
        match refusal(&compiled, &refused.unwrap_err()) {
            DatapathError::Refused { at, reason } => {
                assert_eq!(at, third, "{reason}");
                assert!(third.is_some() && reason.contains("invalid access to map value"), "{reason}");
            }
            other => panic!("{other}"),
        }
    }
}
