//! Kinds of links, and the ranges that their members are drawn from.

use std::fmt::Write as _;
use std::str::FromStr;

use crate::draw::Draw;
use crate::error::LeagueError;
use crate::set::Set;
use crate::traces::recordings;

/// Rates of links, megabits per second.
const MBIT: (f64, f64) = (0.5, 1000.0);
/// Those of links whose runs are long or have many flows.
const CROWDED_MBIT: (f64, f64) = (4.0, 200.0);
/// The range of round trips, milliseconds.
const RTT_MS: (f64, f64) = (2.0, 300.0);
const PACKET_BITS: f64 = 12_000.0;
/// Between two hand-overs of a satellite link, seconds.
const HANDOVER_S: u32 = 15;

/// Declares a set of ranges that links are drawn from, as an enum: of each variant a sentence, a name, and its [goal](crate::Goal).
#[macro_export]
macro_rules! drawn {
    (
        $(#[doc = $of:literal])+
        enum $set:ident {
            $(#[doc = $about:literal] $variant:ident $name:literal $goal:ident,)*
        }
    ) => {
        $(#[doc = $of])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum $set {
            $(#[doc = $about] $variant,)*
        }

        impl $set {
            /// All of them, in the tables' order.
            pub const ALL: &[$set] = &[$($set::$variant),*];

            /// Returns the name in commands and in names.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($set::$variant => $name,)*
                }
            }

            /// A sentence that describes what is drawn.
            #[must_use]
            pub fn about(self) -> &'static str {
                match self {
                    $($set::$variant => $about.trim_ascii(),)*
                }
            }

            pub(crate) fn goal(self) -> $crate::Goal {
                match self {
                    $($set::$variant => $crate::Goal::$goal,)*
                }
            }
        }
    };
}

drawn! {
    /// A kind of link.
    enum Family {
        /// A wired link that stays as it is, with half to four bandwidth-delay products of queue.
        Steady "steady" Alone,
        /// The rate steps by 2 to 4, up and down, each 5 to 20 s.
        Steps "steps" Alone,
        /// Queues of 0.05 to 0.5 bandwidth-delay products.
        Shallow "shallow" Alone,
        /// Queues of 4 to 16 bandwidth-delay products.
        Deep "deep" Alone,
        /// Independent loss to 5 %.
        Loss "loss" Alone,
        /// Losses in bursts.
        Burst "burst" Alone,
        /// A token bucket drops what comes faster than 0.2 to 0.8 of the link's rate.
        Policer "policer" Alone,
        /// A rate that wanders as on cellular links, drawn by models of recorded drives.
        Cellular "cellular" Alone,
        /// Delay that varies by packet.
        Jitter "jitter" Alone,
        /// Frame aggregation and contention as on Wi-Fi.
        Wifi "wifi" Alone,
        /// Acknowledgements come back slowly.
        SlowReturn "slow-return" Alone,
        /// Acknowledgements come back in lumps.
        LumpyReturn "lumpy-return" Alone,
        /// Acknowledgements are lost.
        LossyReturn "lossy-return" Alone,
        /// Delay and rate jump each 15 s, as on links over satellites.
        Handover "handover" Alone,
        /// Beside 1, 2 or 4 flows of CUBIC, which come before or after.
        BesideCubic "beside-cubic" Beside,
        /// Beside flows of Reno.
        BesideReno "beside-reno" Beside,
        /// Beside flows of BBR.
        BesideBbr "beside-bbr" Beside,
        /// 2 to 16 flows of its own kind.
        Own "own" Own,
        /// 2 to 16 flows of its own kind with unequal round trips, to 8 times as long.
        OwnRtts "own-rtts" Own,
        /// Beside traffic that does not respond.
        Unresponsive "unresponsive" Alone,
        /// Beside short flows.
        ShortFlows "short-flows" Alone,
        /// Minutes of recorded cellular drives.
        Recorded "recorded" Alone,
    }
}

impl FromStr for Family {
    type Err = LeagueError;

    fn from_str(text: &str) -> Result<Family, LeagueError> {
        let known = || Family::ALL.iter().map(|f| f.name()).collect();
        let found = Family::ALL.iter().find(|f| f.name() == text).copied();
        found.ok_or_else(|| LeagueError::NoFamily { found: text.to_owned(), known: known() })
    }
}

/// The parts of a plan beside title and algorithms.
pub(crate) struct Spec {
    pub(crate) duration_s: u32,
    pub(crate) warmup_s: u32,
    pub(crate) tables: String,
}

/// A wired link's numbers.
struct Wire {
    mbit: f64,
    /// The delay of each direction, milliseconds.
    delay_ms: f64,
    queue_packets: u32,
}

impl Wire {
    fn draw(draw: &mut Draw, mbit: (f64, f64), bdp: (f64, f64), least_packets: u32) -> Wire {
        let mbit = draw.scaled(mbit.0, mbit.1);
        let rtt_ms = draw.scaled(RTT_MS.0, RTT_MS.1);
        let bdp_packets = mbit * rtt_ms * 1000.0 / PACKET_BITS;
        let packets = (draw.scaled(bdp.0, bdp.1) * bdp_packets).round() as u32;
        Wire { mbit, delay_ms: rtt_ms / 2.0, queue_packets: packets.max(least_packets) }
    }

    fn text(&self) -> String {
        format!("[[link]]\nrate_mbit = {}\n{}", self.mbit, self.rest())
    }

    fn rest(&self) -> String {
        format!("delay_ms = {:.3}\nqueue_packets = {}\n", self.delay_ms, self.queue_packets)
    }
}

fn trace_link(name: &str, delay_ms: f64, queue_packets: u32) -> String {
    format!("[[link]]\ntrace = \"{name}\"\ndelay_ms = {delay_ms:.3}\nqueue_packets = {queue_packets}\n")
}

impl Family {
    /// Draws the next link of the family; recorded drives are those of the set.
    pub(crate) fn draw(self, draw: &mut Draw, set: Set) -> Spec {
        let plain = |tables: String| Spec { duration_s: 20, warmup_s: 0, tables };
        let wire = |draw: &mut Draw| Wire::draw(draw, MBIT, (0.5, 4.0), 4).text();
        match self {
            Family::Steady => plain(wire(draw)),
            Family::Shallow => plain(Wire::draw(draw, MBIT, (0.05, 0.5), 1).text()),
            Family::Deep => plain(Wire::draw(draw, (0.5, 200.0), (4.0, 16.0), 16).text()),
            Family::Loss => {
                let loss = draw.scaled(0.0005, 0.05);
                plain(format!("{}loss = {loss}\n", wire(draw)))
            }
            Family::Burst => {
                let (loss, packets) = (draw.scaled(0.0005, 0.02), draw.scaled(2.0, 40.0) as u32);
                plain(format!("{}burst_loss = {loss}\nburst_packets = {packets}\n", wire(draw)))
            }
            Family::Jitter => {
                let wire = Wire::draw(draw, MBIT, (0.5, 4.0), 4);
                let jitter_ms = draw.scaled(0.02, 1.0) * wire.delay_ms;
                plain(format!("{}jitter_ms = {jitter_ms:.3}\n", wire.text()))
            }
            Family::Policer => plain(policed(draw)),
            Family::Cellular => Spec { duration_s: 40, warmup_s: 0, tables: cellular(draw, set) },
            Family::Recorded => Spec { duration_s: 40, warmup_s: 0, tables: recorded(draw, set) },
            Family::Wifi => plain(wifi(draw)),
            Family::SlowReturn | Family::LumpyReturn | Family::LossyReturn => plain(self.way_back(draw)),
            Family::Steps => Spec { duration_s: 40, warmup_s: 0, tables: steps(draw) },
            Family::Handover => Spec { duration_s: 4 * HANDOVER_S, warmup_s: 0, tables: handover(draw) },
            Family::BesideCubic => beside(draw, "cubic"),
            Family::BesideReno => beside(draw, "reno"),
            Family::BesideBbr => beside(draw, "bbr"),
            Family::Own | Family::OwnRtts => self.own(draw),
            Family::Unresponsive => plain(unresponsive(draw)),
            Family::ShortFlows => {
                let link = Wire::draw(draw, CROWDED_MBIT, (0.5, 4.0), 4).text();
                let load = draw.between(0.05, 0.5);
                let kind = "[[background]]\nkind = \"short-flows\"\nalgorithm = \"cubic\"\n";
                plain(format!("{link}\n{kind}load = {load}\n"))
            }
        }
    }

    fn way_back(self, draw: &mut Draw) -> String {
        let wire = Wire::draw(draw, (2.0, 200.0), (0.5, 4.0), 4);
        let key = match self {
            Family::LossyReturn => format!("return_loss = {}\n", draw.scaled(0.01, 0.6)),
            Family::LumpyReturn => {
                // So many acknowledgements at a time as the link asks for, or fewer.
                let every_ms = draw.of(&[5u32, 10, 20, 40, 100, 200]);
                let asked = wire.mbit * 1000.0 / PACKET_BITS * f64::from(every_ms) / 2.0;
                let count = (draw.scaled(0.3, 3.0) * asked).ceil() as u32;
                format!("return_trace = \"lumps:{every_ms}:{count}\"\n{}", thinned(draw))
            }
            _ => {
                // An acknowledgement for two packets takes 0.019 of their rate.
                let mbit = (draw.scaled(0.002, 0.05) * wire.mbit).max(0.02);
                format!("return_rate_mbit = {mbit:.4}\n{}", thinned(draw))
            }
        };
        wire.text() + &key
    }

    fn own(self, draw: &mut Draw) -> Spec {
        let wire = Wire::draw(draw, CROWDED_MBIT, (0.5, 8.0), 8);
        let flows = draw.of(&[2u32, 3, 4, 8, 16]);
        let stagger_s = if draw.coin() { 0.0 } else { 16.0 / f64::from(flows) };
        let mut tables = format!("{}\n[traffic]\nflows = {flows}\nstagger_s = {stagger_s:.1}\n", wire.text());
        if self == Family::OwnRtts {
            let most = draw.scaled(2.0, 8.0) - 1.0;
            let extra: Vec<String> = (0..flows)
                .map(|n| 2.0 * wire.delay_ms * most * f64::from(n) / f64::from(flows - 1))
                .map(|ms| format!("{ms:.3}"))
                .collect();
            let _ = writeln!(tables, "extra_delay_ms = [{}]", extra.join(", "));
        }
        Spec { duration_s: 50, warmup_s: 20, tables }
    }
}

/// A queue that keeps the newest acknowledgements only, or none.
fn thinned(draw: &mut Draw) -> String {
    if draw.coin() {
        return String::new();
    }
    format!("return_queue = \"drophead\"\nreturn_queue_packets = {}\n", draw.scaled(2.0, 64.0) as u32)
}

fn policed(draw: &mut Draw) -> String {
    let wire = Wire::draw(draw, (2.0, 400.0), (1.0, 4.0), 16);
    let mbit = draw.between(0.2, 0.8) * wire.mbit;
    // 5 to 500 ms of the policed rate.
    let bytes = (draw.scaled(5.0, 500.0) * mbit * 125.0).max(6000.0) as u64;
    format!("{}policer_mbit = {mbit:.3}\npolicer_bytes = {bytes}\n", wire.text())
}

/// One of the recorded drives that the set has.
fn recording(draw: &mut Draw, set: Set) -> String {
    let names = recordings(set);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    draw.of(&names).to_owned()
}

fn cellular(draw: &mut Draw, set: Set) -> String {
    let (of, percent) = (recording(draw, set), draw.scaled(50.0, 200.0) as u32);
    radio(draw, |draw| format!("fitted:{of}:{percent}:{}", draw.seed()))
}

fn recorded(draw: &mut Draw, set: Set) -> String {
    let of = recording(draw, set);
    // From anywhere but the last tenth, which may be shorter than a run.
    radio(draw, |draw| format!("recorded:{of}:{}", draw.seed() % 900_000))
}

fn radio(draw: &mut Draw, name: impl Fn(&mut Draw) -> String) -> String {
    let name = name(draw);
    trace_link(&name, draw.between(10.0, 60.0), draw.scaled(30.0, 1000.0) as u32)
}

fn wifi(draw: &mut Draw) -> String {
    let kbit = draw.scaled(10_000.0, 600_000.0) as u32;
    let (most, gap_ms) = (draw.of(&[4u32, 8, 16, 32, 64]), draw.of(&[1u32, 2, 4, 8]));
    let name = format!("wifi:{kbit}:{most}:{gap_ms}:{}", draw.seed());
    trace_link(&name, draw.scaled(1.0, 60.0), draw.scaled(50.0, 1000.0) as u32)
}

fn steps(draw: &mut Draw) -> String {
    let wire = Wire::draw(draw, (2.0, 250.0), (0.5, 4.0), 4);
    let (mut at_s, mut mbit) = (draw.between(5.0, 20.0), wire.mbit);
    let mut changes = Vec::new();
    while at_s < 36.0 {
        let factor = draw.between(2.0, 4.0);
        let up = if mbit * factor > MBIT.1 { false } else { mbit / factor < MBIT.0 || draw.coin() };
        mbit = if up { mbit * factor } else { mbit / factor };
        changes.push(format!("{{ at_s = {at_s:.1}, rate_mbit = {mbit:.3} }}"));
        at_s += draw.between(5.0, 20.0);
    }
    format!("{}change = [{}]\n", wire.text(), changes.join(", "))
}

fn handover(draw: &mut Draw) -> String {
    let wire = Wire::draw(draw, (5.0, 300.0), (0.5, 2.0), 16);
    let delay_ms = draw.between(10.0, 30.0);
    let link = Wire { delay_ms, ..wire };
    let changes: Vec<String> = (1..4)
        .map(|n| {
            let (mbit, delay_ms) = (link.mbit * draw.scaled(0.4, 2.0), delay_ms * draw.scaled(0.6, 2.0));
            let at_s = n * HANDOVER_S;
            format!("{{ at_s = {at_s}, rate_mbit = {mbit:.3}, delay_ms = {delay_ms:.3} }}")
        })
        .collect();
    format!("{}change = [{}]\n", link.text(), changes.join(", "))
}

fn beside(draw: &mut Draw, rival: &str) -> Spec {
    let wire = Wire::draw(draw, CROWDED_MBIT, (0.5, 8.0), 8);
    Spec { duration_s: 60, warmup_s: 15, tables: with_rivals(draw, &wire.text(), rival) }
}

/// Draws 1, 2 or 4 flows of a rival, which come before, after or together with what is beside them.
///
/// Returns the tables of a plan that has them on this link.
pub fn with_rivals(draw: &mut Draw, link: &str, rival: &str) -> String {
    let flows = draw.of(&[1u32, 2, 4]);
    let (own_s, rival_s) = draw.of(&[(0, 5), (5, 0), (0, 0)]);
    format!(
        "{link}\n[traffic]\nstart_s = {own_s}\n\n[[background]]\nalgorithm = \"{rival}\"\ndatapath = \"kernel\"\n\
         flows = {flows}\nstart_s = {rival_s}\n"
    )
}

fn unresponsive(draw: &mut Draw) -> String {
    let wire = Wire::draw(draw, CROWDED_MBIT, (0.5, 4.0), 4);
    let mbit = draw.between(0.1, 0.7) * wire.mbit;
    let mut tables = format!("{}\n[[background]]\nkind = \"udp\"\nrate_mbit = {mbit:.3}\n", wire.text());
    if draw.coin() {
        let (on_ms, off_ms) = (draw.scaled(100.0, 3000.0), draw.scaled(100.0, 3000.0));
        let _ = writeln!(tables, "on_ms = {on_ms}\noff_ms = {off_ms}");
    }
    tables
}
