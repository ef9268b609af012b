//! The programs of algorithms that choose paths: where a flow runs, and where it starts.

use super::{
    FLIGHT_LARGE_BYTES, FLIGHT_SMALL_BYTES, LOST, PATH_FEATURES, RTT_LONG_US, RTT_SHORT_US, SLOT, SPREAD,
    WAITING_BYTES,
};
use ccplane_program::ir::MAX_PATHS;
use std::fmt::Write as _;

/// Bytes that wait when a flow starts, at most: what its application may write at once.
const START_BYTES: i64 = 16_384;

/// The beginning of all programs that report: what a flowlet does between its first packets, and the outcome of the
/// decision before.
const BEGIN: &str = "
(when (&& (>= decided_us 0) (&& (< Flow.gap_us flowlet_us) (> Packet.bytes 0))) (:= DecideAt +infinity))
(when true
    (:= Report.elapsed_us (if (>= decided_us 0) (- Now decided_us)))
    (:= Report.bytes (if (>= decided_us 0) (- Flow.bytes_sent decided_bytes)))
    (:= decided_us Now)
    (:= decided_bytes Flow.bytes_sent)
    (:= DecideAt +infinity)
    (:= pick (- Flow.hash (* (/ Flow.hash Path.count) Path.count)))
    (fallthrough)
)
(when (== Packet.bytes 0) (:= Report.ended 1) (report))
";

/// The beginning of programs of a flow's start: a number that is the flow's own, 32 bits. Its hash alone may not be,
/// before it has a port.
const DRAW: &str = "
(when true
    (:= draw (- Now (* (/ Now 65536) 65536)))
    (:= draw (+ Flow.hash (* draw 2654435761)))
    (:= draw (- draw (* (/ draw 4294967296) 4294967296)))
    (:= pick (- draw (* (/ draw Path.count) Path.count)))
    (fallthrough)
)
";

/// Times at which a program chooses among the paths.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chooses {
    /// Wherever a flowlet begins.
    Flowlets,
    /// Nowhere: the flow keeps the path that it started on, and the program says what that was worth.
    Nothing,
    /// At the flow's start, when it has no name yet to report under.
    Starts,
}

impl Chooses {
    /// The number that random parts of scores follow from.
    fn draw(self) -> &'static str {
        if self == Chooses::Starts { "draw" } else { "Flow.hash" }
    }

    /// The condition under which a path is scored.
    fn candidate(self, path: usize) -> String {
        match self {
            Chooses::Nothing => format!("(== Path {path})"),
            Chooses::Flowlets | Chooses::Starts => format!("(< {path} Path.count)"),
        }
    }
}

/// The program that asks the network.
pub(super) fn source() -> String {
    scoring(Chooses::Flowlets)
}

/// The same, which leaves the flow where it is.
pub(super) fn source_that_stays() -> String {
    scoring(Chooses::Nothing)
}

/// The same where a flow starts. How much it has to send follows from what the one before it sent.
pub(super) fn source_at_start() -> String {
    scoring(Chooses::Starts)
}

fn scoring(chooses: Chooses) -> String {
    let (report, candidates) = (PATH_FEATURES.join(" 0) ("), PATH_FEATURES.map(|name| format!("c_{name}")));
    let reports = chooses != Chooses::Starts;
    let (hook, registers, begin, waiting) = if reports {
        let registers = format!(
            "(Report ({report} 0) (elapsed_us 0) (bytes 0) (ended 0) (action 0) (snapshot 0))
    (flowlet_us 500) (decided_us -1) (decided_bytes 0)"
        );
        ("send", registers, BEGIN, "(+ Packet.bytes Flow.bytes_waiting)".to_owned())
    } else {
        ("connect", "(draw 0)".to_owned(), DRAW, format!("(min Peer.size_1 {START_BYTES})"))
    };
    let mut text = format!(
        "# A network scores each path; the flow takes the one of the least score. path.rs says what the registers are.
(hook {hook})
(def {registers}
    (explore 0) (jitter 0) (pick 0) (exploring 0) (score 0) (best 0) (least +infinity) ({} 0))
{begin}
(when true
    (:= least +infinity)
    (:= score (/ (* {draw} 40503) 4294967296))
    (:= score (- score (* (/ score 65536) 65536)))
    (:= exploring 0)
    (:= exploring (if (< score explore) 1))
    (:= c_waiting (/ (* {waiting} 65536) (+ {waiting} {WAITING_BYTES})))
    (fallthrough)
)",
        candidates.join(" 0) ("),
        draw = chooses.draw(),
    );
    for (path, spread) in SPREAD.into_iter().enumerate() {
        candidate(&mut text, chooses, (path, spread), &candidates.join(" "));
    }
    text.push_str(if reports {
        "\n(when true (:= Report.snapshot Policy.snapshot) (:= Path best) (report))\n"
    } else {
        "\n(when true (:= Path best))\n"
    });
    text
}

/// Appends the score of one path, which the flow takes if it is the least so far.
fn candidate(text: &mut String, chooses: Chooses, (path, spread): (usize, i64), history: &str) {
    let share = |name: &str, prim: &str, scale: i64| {
        format!("(:= c_{name} (/ (* Path{path}.{prim} 65536) (+ Path{path}.{prim} {scale})))")
    };
    let mut kept: Vec<String> = Vec::new();
    if chooses != Chooses::Starts {
        kept.extend(PATH_FEATURES.map(|name| format!("(:= Report.{name} (if (< score least) c_{name}))")));
        kept.push("(:= Report.action (if (< score least) Policy.action))".to_owned());
    }
    kept.push(format!("(:= best (if (< score least) {path}))"));
    let measures = [
        share("rtt_short", "rtt_us", RTT_SHORT_US),
        share("rtt_long", "rtt_us", RTT_LONG_US),
        "(:= c_known 0)".to_owned(),
        format!("(:= c_known (if (> Path{path}.rtt_us 0) 65536))"),
        format!("(:= c_marked Path{path}.marked)"),
        share("lost", "lost", LOST),
        share("flight_small", "bytes_in_flight", FLIGHT_SMALL_BYTES),
        share("flight_large", "bytes_in_flight", FLIGHT_LARGE_BYTES),
    ];
    // Writing to a text cannot fail.
    let _ = write!(
        text,
        "
(when {condition}
    {}
    (history 1 {history})
    (policy {SLOT})
    (:= score (/ (* {draw} {spread}) 65536))
    (:= score (- score (* (/ score 65536) 65536)))
    (:= score (+ Policy.action (/ (* score jitter) 65536)))
    (:= score (if (&& (> exploring 0) (== pick {path})) -1099511627776))
    {}
    (:= least (min least score))
    (fallthrough)
)",
        measures.join("\n    "),
        kept.join("\n    "),
        condition = chooses.candidate(path),
        draw = chooses.draw(),
    );
}

/// The program that asks the agent.
pub(super) fn source_of_agent() -> String {
    let paths = |what: &str| (0..MAX_PATHS).map(|path| format!("({what}{path} 0)")).collect::<String>();
    let measures = ["rtt", "marked", "lost", "flight"];
    let prims = ["rtt_us", "marked", "lost", "bytes_in_flight"];
    let mut copies = String::new();
    for (what, prim) in measures.into_iter().zip(prims) {
        for path in 0..MAX_PATHS {
            let _ = writeln!(copies, "    (:= Report.{what}{path} Path{path}.{prim})");
        }
    }
    let registers = measures.map(paths).concat();
    format!(
        "# What the host measured of each path goes to the agent, which says which one it wants. path.rs says what the registers are.
(hook send)
(def (Report {registers} (elapsed_us 0) (bytes 0) (ended 0) (waiting 0) (hash 0) (count 0) (path 0))
    (wanted -1) (flowlet_us 500) (decided_us -1) (decided_bytes 0) (pick 0) (taken -1))
# An answer of the agent is taken where the next flowlet begins.
(when (&& (>= wanted 0) (|| (< wanted taken) (> wanted taken))) (:= taken wanted) (:= Path wanted) (fallthrough))
{BEGIN}
(when true
{copies}    (:= Report.waiting (+ Packet.bytes Flow.bytes_waiting))
    (:= Report.hash Flow.hash)
    (:= Report.count Path.count)
    (:= Report.path (if (< taken 0) pick))
    (:= Report.path (if (>= taken 0) taken))
    (report)
)
"
    )
}

/// Chooses as Linux's tcp_plb does (Qureshi et al., SIGCOMM 2022): a flow whose path marks or loses much takes another
/// one at random, where a flowlet begins.
pub(super) fn source_of_plb() -> String {
    format!(
        "# A flow whose path marks half of its packets, or loses some, goes on with the next one of a random order.
(hook send)
(def (flowlet_us 500) (decided_us -1) (own -1) (bad 0))
(when (< decided_us 0)
    (:= decided_us Now)
    (:= own (- Flow.hash (* (/ Flow.hash Path.count) Path.count)))
    (:= DecideAt +infinity)
)
(when (|| (< Flow.gap_us flowlet_us) (== Packet.bytes 0)) (:= DecideAt +infinity))
(when true (:= bad 0) (fallthrough))
{}(when (> bad 0)
    {}
    (:= Path own)
    (:= DecideAt +infinity)
)
(when true (:= DecideAt +infinity))
",
        own_is_bad(),
        next_of_order("Flow.hash"),
    )
}

/// The same where a flow starts: it takes a path at random, or another one where that marks or loses much.
pub(super) fn source_of_plb_at_start() -> String {
    format!(
        "# A flow takes a path at random, but none that marks half of its packets, or loses some, where another one can be drawn.
(hook connect)
(def (draw 0) (pick 0) (own 0) (bad 0))
{DRAW}
(when true (:= own pick) (:= bad 0) (fallthrough))
{}(when (> bad 0)
    {}
    (fallthrough)
)
(when true (:= Path own))
",
        own_is_bad(),
        next_of_order("draw"),
    )
}

/// The program of a flow that keeps the path that it started on.
pub(super) const STAYS: &str = "# The flow keeps the path that it started on.
(hook send)
(def)
(when true (:= DecideAt +infinity))
";

/// Sets `bad` where the path `own` marks half of its packets, or loses some.
fn own_is_bad() -> String {
    let mut text = String::new();
    for path in 0..MAX_PATHS {
        let _ = writeln!(
            text,
            "(when (== own {path}) (:= bad (if (|| (> Path{path}.marked 32768) (> Path{path}.lost 1024)) 1)) (fallthrough))"
        );
    }
    text
}

/// Sets `own` to another path, which follows from a number of 32 bits.
fn next_of_order(draw: &str) -> String {
    format!(
        "(:= own (+ own (+ 1 (/ (* (- Path.count 1) (- {draw} (* (/ {draw} 65536) 65536))) 65536))))
    (:= own (- own (* (/ own Path.count) Path.count)))"
    )
}
