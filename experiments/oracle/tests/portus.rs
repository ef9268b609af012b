//! Our compiler and stock lowering against portus's.

use ccplane_oracle::cases;
use ccplane_oracle::generate::{Dialect, program};
use ccplane_oracle::portus::{Verdict, compile as portus};
use ccplane_oracle::rng::Rng;
use ccplane_program::ir::{Program, RegKind};
use ccplane_program::lang::{Problem, compile_as_portus};
use ccplane_program::stock::{ENTRY_BYTES, MAX_TMPS, Stock, lower};
use ccplane_program::{Diagnostic, compile};

/// libccp's numbers that the comparison needs (ccp_priv.h).
const ADD: u8 = 0;
const MAX: u8 = 9;
const TMP_REG: u8 = 7;

/// The relation of our bytes to portus's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    /// The same, up to `||` that is kept as MAX instead of ADD.
    Same,
    /// The same, with temporaries numbered anew after a nested bind.
    Renumbered,
    /// Portus needs more temporaries than libccp has; ours had to differ.
    TheirsOverflows,
    /// A local is read before it is bound; ours keeps it in a control register.
    Carried,
}

fn relate(program: &Program, stock: &Stock, theirs: &[u8]) -> Result<Relation, String> {
    let carried = |r: usize| program.regs()[r].kind == RegKind::Local && stock.update_reg(r as u8).is_some();
    if (0..program.regs().len()).any(carried) {
        return Ok(Relation::Carried);
    }
    let expressions = program.clauses().len();
    let uses_tmp = |inst: &[u8]| {
        [1, 6, 11].into_iter().any(|at| inst[at] == TMP_REG && usize::from(inst[at + 1]) >= MAX_TMPS)
    };
    let (theirs, ours) = (theirs.chunks(ENTRY_BYTES), stock.bytes().chunks(ENTRY_BYTES));
    if theirs.clone().skip(expressions).any(uses_tmp) {
        return Ok(Relation::TheirsOverflows);
    }
    if theirs.len() != ours.len() {
        return Err(format!("{} entries, portus has {}", ours.len(), theirs.len()));
    }
    let mut relation = Relation::Same;
    let (mut our_names, mut their_names) = (TmpNames::default(), TmpNames::default());
    for (n, (ours, theirs)) in ours.zip(theirs).enumerate() {
        if n < expressions {
            if ours != theirs {
                return Err(format!("expression {n}: {ours:?}, portus has {theirs:?}"));
            }
            continue;
        }
        let (ours_canonical, theirs_canonical) =
            (our_names.canonical(n, ours), their_names.canonical(n, theirs));
        let same_op = ours[0] == theirs[0] || (ours[0], theirs[0]) == (MAX, ADD);
        if !same_op || ours_canonical[1..] != theirs_canonical[1..] {
            return Err(format!("entry {n}: {ours:?}, portus has {theirs:?}"));
        }
        if ours[1..] != theirs[1..] {
            relation = Relation::Renumbered;
        }
    }
    Ok(relation)
}

/// Names each temporary after the instruction that wrote it.
#[derive(Default)]
struct TmpNames([u8; 16]);

impl TmpNames {
    fn canonical(&mut self, n: usize, inst: &[u8]) -> Vec<u8> {
        let mut inst = inst.to_vec();
        for at in [6, 11] {
            if inst[at] == TMP_REG {
                inst[at + 1] = self.0[usize::from(inst[at + 1])];
            }
        }
        if inst[1] == TMP_REG {
            self.0[usize::from(inst[2])] = n as u8;
            inst[2] = n as u8;
        }
        inst
    }
}

#[test]
fn stock_bytes_are_those_of_portus() {
    let (mut same, mut other, mut not_portus) = (0, 0, 0);
    let total = cases(4000);
    for seed in 0..total {
        let rng = &mut Rng::new(seed);
        let source = program(rng, Dialect::Portus);
        let Verdict::Bytes(theirs) = portus(&source) else {
            // A nested bind as the whole condition.
            not_portus += 1;
            continue;
        };
        let program =
            compile(&source).unwrap_or_else(|d| panic!("seed {seed}: {}", d[0].render("x", &source)));
        let stock = lower(&program).unwrap_or_else(|r| panic!("seed {seed}: {r}\n{source}"));
        match relate(&program, &stock, &theirs) {
            Ok(Relation::Same) => same += 1,
            Ok(_) => other += 1,
            Err(difference) => panic!("seed {seed}: {difference}\n{source}"),
        }
    }
    println!("same {same}, other {other}, refused by portus {not_portus}");
    assert!(same * 3 > total && not_portus * 4 < total, "{same} {other} {not_portus}");
}

/// Whether a refusal is on the list of `ccplane_program::lang`: what portus accepts and we do not.
fn is_listed(diagnostic: &Diagnostic) -> bool {
    match &diagnostic.problem {
        Problem::UnknownName { .. }
        | Problem::ReadBeforeBind(_)
        | Problem::NeverRead { .. }
        | Problem::WrongType { .. }
        | Problem::UnusedValue
        | Problem::NotAValue(_)
        | Problem::BindInConditional
        | Problem::Duplicate { .. }
        | Problem::Shadows(_)
        | Problem::BadName { .. }
        | Problem::UnknownOperator { .. }
        | Problem::BadNumber(_)
        | Problem::Unseparated(_)
        | Problem::BadChar(_)
        | Problem::NumberTooLarge(_)
        | Problem::TooDeep { .. }
        | Problem::TooMany { .. } => true,
        Problem::Expected { expected, .. } => {
            expected.starts_with("the name of what is bound")
                || expected.starts_with("an initial value")
                || expected.starts_with("a name")
                || expected.starts_with("an operator")
                // `(whentrue ...)` and `(def(Report))`: portus looks at prefixes only.
                || expected.starts_with("a clause")
                // `(Report 0)`
                || expected.starts_with("a declaration")
        }
        _ => false,
    }
}

const WORDS: [&str; 40] = [
    "(",
    ")",
    "+",
    "-",
    "*",
    "/",
    ":=",
    "bind",
    "if",
    "!if",
    "ewma",
    "min",
    "report",
    "(report)",
    "fallthrough",
    "when",
    "def",
    "Report",
    "Report.num",
    "Report.flag",
    "num",
    "volatile",
    "true",
    "false",
    "+infinity",
    "0",
    "1",
    "4294967296",
    "Cwnd",
    "Rate",
    "Micros",
    "Ack.now",
    "Flow.was_timeout",
    "foo",
    "__x",
    "#",
    "\n",
    "max",
    "wrapped_max",
    "&&",
];

/// A few random edits of tokens or characters.
fn mutate(rng: &mut Rng, source: &str) -> String {
    let spaced = source.replace('(', " ( ").replace(')', " ) ");
    let mut tokens: Vec<String> = spaced.split_whitespace().map(String::from).collect();
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(tokens.len());
        match rng.below(6) {
            0 => drop(tokens.remove(at)),
            1 => tokens.insert(at, rng.pick(&WORDS).to_string()),
            2 => tokens[at] = rng.pick(&WORDS).to_string(),
            3 => {
                let other = rng.below(tokens.len());
                tokens.swap(at, other);
            }
            4 => {
                // Glues two tokens.
                let next = if at + 1 < tokens.len() { tokens.remove(at + 1) } else { String::new() };
                tokens[at].push_str(&next);
            }
            _ => {
                // The parser of portus looks at prefixes.
                let word = rng.pick(&WORDS);
                tokens[at].push_str(word);
            }
        }
        if tokens.is_empty() {
            return String::new();
        }
    }
    // portus wants `(def` and `(when` without a space.
    tokens.join(" ").replace("( ", "(")
}

/// Whether what is compiled as portus does may be refused for this.
fn is_listed_as_portus(diagnostic: &Diagnostic) -> bool {
    is_listed(diagnostic) && !matches!(diagnostic.problem, Problem::NeverRead { .. })
}

/// A program in portus's dialect, changed in places.
fn mutated(seed: u64) -> String {
    let rng = &mut Rng::new(seed ^ 0xacce);
    let source = program(rng, Dialect::Portus);
    mutate(rng, &source)
}

/// `prog check --as-portus` takes what portus takes, as the same bytes, or refuses it for what is listed, which unread locals are not.
#[test]
fn as_portus_takes_what_portus_takes() {
    let (mut taken, mut taken_so_alone, mut refused) = (0, 0, 0);
    for seed in 0..cases(6000) {
        let source = mutated(seed);
        let Verdict::Bytes(theirs) = portus(&source) else { continue };
        let program = match compile_as_portus(&source) {
            Ok(program) => program,
            Err(diags) => {
                refused += 1;
                let text: String = diags.iter().map(|d| d.render("x", &source)).collect();
                assert!(diags.iter().any(is_listed_as_portus), "seed {seed}:\n{text}");
                let never_read = |d: &&Diagnostic| matches!(d.problem, Problem::NeverRead { .. });
                assert_eq!(diags.iter().find(never_read), None, "seed {seed}:\n{text}");
                continue;
            }
        };
        taken += 1;
        taken_so_alone += usize::from(compile(&source).is_err());
        let Ok(stock) = lower(&program) else { continue };
        if let Err(difference) = relate(&program, &stock, &theirs) {
            panic!("seed {seed}: {difference}\n{source}");
        }
    }
    println!("taken {taken}, {taken_so_alone} of them as portus alone, refused {refused}");
    assert!(taken > 100 && taken_so_alone > 5 && refused > 50, "{taken} {taken_so_alone} {refused}");
}

#[test]
fn what_portus_accepts_we_accept_or_refuse_as_listed() {
    let (mut both, mut stricter, mut wider) = (0, 0, 0);
    for seed in 0..cases(6000) {
        let source = mutated(seed);
        match (portus(&source), compile(&source)) {
            (Verdict::Bytes(theirs), Ok(program)) => {
                both += 1;
                let Ok(stock) = lower(&program) else { continue };
                if let Err(difference) = relate(&program, &stock, &theirs) {
                    panic!("seed {seed}: {difference}\n{source}");
                }
            }
            (Verdict::Bytes(_), Err(diags)) => {
                stricter += 1;
                let text: String = diags.iter().map(|d| d.render("x", &source)).collect();
                assert!(
                    diags.iter().any(is_listed),
                    "seed {seed}: refused for a reason that is not listed\n{text}"
                );
            }
            (_, Ok(_)) => wider += 1,
            (_, Err(_)) => {}
        }
    }
    println!("both {both}, stricter {stricter}, wider {wider}");
    assert!(both > 100 && stricter > 100, "{both} {stricter} {wider}");
}

/// The idioms of published CCP algorithms: each compiles to portus's very bytes.
#[test]
fn published_idioms_compile_to_the_same_bytes() {
    for source in [
        // Reno and Cubic: count, report at once on loss or timeout, else at an interval that the agent sets.
        "(def (Report (volatile acked 0) (volatile loss 0) (volatile timeout false)) (interval 0))
         (when true
            (:= Report.acked (+ Report.acked Ack.bytes_acked))
            (:= Report.loss Ack.lost_pkts_sample)
            (:= Report.timeout Flow.was_timeout)
            (fallthrough))
         (when (|| Report.timeout (> Report.loss 0)) (report) (:= Micros 0))
         (when (> Micros interval) (report) (:= Micros 0))",
        // Copa: a number takes the timeout flag, half of a base RTT that is kept.
        "(def (Report (volatile timeout 0) (volatile now 0) (volatile minrtt +infinity)) (basertt +infinity))
         (when true
            (:= basertt (min basertt Flow.rtt_sample_us))
            (:= Report.timeout Flow.was_timeout)
            (:= Report.now Ack.now)
            (fallthrough))
         (when (|| Flow.was_timeout (> Micros (/ basertt 2))) (:= Micros 0) (report))",
        // BBR: a cycle of rates, one name both reported and private.
        "(def (Report (volatile minrtt +infinity) (phase 0)) (phase 0) (low 0) (high 0) (cap 0))
         (when true (:= Report.minrtt (min Report.minrtt Flow.rtt_sample_us)) (:= Report.phase phase) (fallthrough))
         (when (&& (> Micros Report.minrtt) (== phase 0)) (:= Rate low) (:= phase 1) (report))
         (when (&& (> Micros (* Report.minrtt 8)) (== phase 1))
            (:= phase 0) (:= Cwnd cap) (:= Rate high) (:= Micros 0) (report))",
        // Averages and conditions on registers.
        "(def (Report.rtt 0) (Report.urgent false))
         (when true
            (bind Report.rtt (ewma 2 Flow.rtt_sample_us))
            (bind Report.urgent (!if Report.urgent (> Ack.lost_pkts_sample 0)))
            (report))",
    ] {
        let Verdict::Bytes(theirs) = portus(source) else { panic!("portus refuses {source}") };
        let program = compile(source).unwrap_or_else(|d| panic!("{}", d[0].render("x", source)));
        let stock = lower(&program).unwrap_or_else(|r| panic!("{r}\n{source}"));
        assert_eq!(stock.bytes(), theirs, "{source}");
    }
}

/// Programs that say what stock CCP has no words or room for.
const BEYOND_STOCK: [&str; 11] = [
    "bbr",
    "nimbus",
    "dual",
    "neural",
    "neural-agent",
    "aurora",
    "mocc",
    "aurora-agent",
    "mocc-agent",
    "aurora-still",
    "aurora-fold",
];

/// Programs that stock CCP has room for and portus refuses, by a defect of its own: a condition that is one register.
const REFUSED_BY_PORTUS: [(&str, &str); 1] = [("copa", "Flag expression must result in bool")];

/// Every program that ships with ccplane and keeps to stock CCP: portus's bytes, up to `||` that is kept.
#[test]
fn shipped_programs_compile_to_the_bytes_of_portus() {
    let sources: Vec<_> = ccplane_algs::all().iter().flat_map(|a| a.programs()).collect();
    assert!(sources.len() >= 3);
    for ccplane_alg::ProgramSource { name, source } in sources {
        if BEYOND_STOCK.contains(&name) {
            let program = compile(source).unwrap_or_else(|d| panic!("{}", d[0].render(name, source)));
            assert!(lower(&program).is_err(), "{name} keeps to stock CCP");
            continue;
        }
        let program = compile(source).unwrap_or_else(|d| panic!("{}", d[0].render(name, source)));
        let stock = lower(&program).unwrap_or_else(|r| panic!("{name}: {r}"));
        let theirs = match (portus(source), REFUSED_BY_PORTUS.iter().find(|(refused, _)| *refused == name)) {
            (Verdict::Bytes(bytes), None) => bytes,
            (Verdict::Refused(error), Some((_, reason))) if error.contains(reason) => continue,
            (verdict, _) => panic!("{name}: {verdict:?}"),
        };
        assert_eq!(relate(&program, &stock, &theirs), Ok(Relation::Same), "{name}");
        let kept = stock.bytes().iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs).count();
        println!("{name}: {} instructions, {kept} kept `||`", stock.num_instructions());
    }
}
