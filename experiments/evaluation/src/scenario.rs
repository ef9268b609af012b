//! Scenario sets, and the ranges that their members are drawn from.

use ccplane_league::{Draw, with_rivals};
use std::fmt::Write as _;

const PACKET_BITS: f64 = 12_000.0;
/// Times of the general-purpose sets, seconds: a run, and what of it is left out.
const PLAIN_S: (u32, u32) = (25, 5);

ccplane_league::drawn! {
    /// A set of scenarios that are drawn from the same ranges.
    enum ScenarioSet {
        /// A wired link that loses 40 to 90 % of all packets.
        HeavyLoss "heavy-loss" Alone,
        /// A wired link that loses everything from 10 s on; figures count from 12 s on.
        Blackout "blackout" Alone,
        /// 32 to 64 flows on a link that holds fewer packets than there are flows.
        Crowd "crowd" Own,
        /// One flow, and a queue of 4 to 16 bandwidth-delay products.
        Deep "deep" Alone,
        /// One to eight flows, and a queue of 0.1 to 0.5 bandwidth-delay products.
        Shallow "shallow" Own,
        /// Two to eight flows of one kind, together or one after the other.
        Own "own" Own,
        /// Two to eight flows of one kind, whose round trips differ by a factor to four.
        OwnRtts "own-rtts" Own,
        /// Flows of sizes as of web search, at 20 to 60 % load.
        Short "short" Alone,
        /// A long flow beside short ones of its own kind, at 10 to 40 % load.
        ShortOwn "short-beside" Alone,
        /// Beside one, two or four flows of Reno, which come before, after or together.
        BesideReno "beside-reno" Beside,
        /// Beside flows of CUBIC.
        BesideCubic "beside-cubic" Beside,
        /// Beside flows of BBR.
        BesideBbr "beside-bbr" Beside,
        /// Beside datagrams at 0.3 to 2.5 Mb/s, such as those of a call, constant or in talk spurts.
        RealTime "real-time" Alone,
        /// A long flow beside short flows of CUBIC, at 10 to 40 % load.
        ShortCubic "short-cubic" Alone,
        /// Short flows, at 10 to 40 % load, beside one or two long ones of CUBIC.
        LongCubic "long-cubic" Beside,
        /// A wired link that stays as it is: 0.5 to 500 Mb/s, 2 to 300 ms, queues of half to four bandwidth-delay products.
        Wired "wired" Alone,
        /// Acknowledgements come back slowly, in lumps, or are lost.
        Asymmetric "asymmetric" Alone,
        /// Losses of radio to 2 %, independent or in bursts.
        RadioLoss "radio-loss" Alone,
        /// A rate that wanders to a quarter and to four times its mean, with outages.
        Fading "fading" Alone,
        /// Frame aggregation and contention as on Wi-Fi.
        Wifi "wifi" Alone,
        /// A queue that CoDel manages.
        Codel "codel" Alone,
        /// A queue that PIE manages.
        Pie "pie" Alone,
        /// A queue that drops its oldest packets.
        DropHead "drop-head" Alone,
        /// A token bucket drops what comes faster than 0.2 to 0.8 of the link's rate.
        Policer "policer" Alone,
        /// The delay steps up and down each 4 to 8 s, to four times its least.
        DelaySteps "delay-steps" Alone,
        /// Delay that varies by packet, to as much as the propagation delay.
        Jitter "jitter" Alone,
        /// Two flows, of which the packets of one are delayed by up to two round trips more.
        JitterOne "jitter-one" Own,
        /// Two flows, of which the acknowledgements of one are released together, each half to two round trips.
        AcksOne "acks-one" Own,
        /// A slow link with a long delay: 0.02 to 0.25 Mb/s, 100 to 1000 ms, a queue of 4 to 12 packets.
        Constrained "constrained" Alone,
        /// A link over a geostationary satellite: 500 to 700 ms, 2 to 50 Mb/s, losses to 0.2 %.
        Satellite "satellite" Alone,
        /// Beside senders that respond to nothing and take 30 to 90 % of the link.
        Unresponsive "unresponsive" Alone,
        /// Receivers that acknowledge each 8th to 64th segment, and a path that loses acknowledgements.
        RareAcks "rare-acks" Alone,
        /// A receiver that conceals losses, beside one or two flows of CUBIC with honest ones.
        LyingReceiver "lying-receiver" Beside,
        /// A router that delivers 1 to 20 % of packets twice.
        Copies "copies" Alone,
        /// 1 to 20 % of packets are held back for up to two round trips.
        Reordered "reordered" Alone,
        /// A link of which unresponsive traffic takes 50 to 80 % all at once, for eight seconds.
        Onset "onset" Alone,
        /// A link that is gone for 0.2 to 3 s, again and again.
        Outages "outages" Alone,
        /// Rate and delay change together, each 5 to 10 s, to another path's.
        PathChanges "path-changes" Alone,
        /// 8 to 48 senders answer at once over 1 or 10 Gb/s, 0.1 to 1 ms, again and again.
        Incast "incast" Alone,
        /// A link that is switched between a packet network and a circuit of four to ten times its rate.
        Circuits "circuits" Alone,
        /// One, two or four flows that set ECT, and a queue of CoDel's that marks them.
        CodelEcn "codel-ecn" Own,
        /// One, two or four flows that set ECT, and a queue of PIE's that marks them.
        PieEcn "pie-ecn" Own,
        /// Flows that set ECT beside one or two of CUBIC that do not: the queue marks those and drops packets of these.
        EcnBeside "ecn-beside" Beside,
    }
}

/// The parts of a plan beside title and algorithms.
pub(crate) struct Spec {
    pub(crate) duration_s: f64,
    pub(crate) warmup_s: f64,
    pub(crate) tables: String,
}

impl Spec {
    fn new((duration_s, warmup_s): (u32, u32), tables: String) -> Spec {
        Spec { duration_s: duration_s.into(), warmup_s: warmup_s.into(), tables }
    }
}

/// A wired link's numbers.
struct Wire {
    mbit: f64,
    rtt_ms: f64,
    queue_packets: u32,
}

/// Ranges of rate in megabits per second, round trip in milliseconds, queue in bandwidth-delay products.
struct Ranges {
    mbit: (f64, f64),
    rtt_ms: (f64, f64),
    bdp: (f64, f64),
    least_packets: u32,
}

/// Packets of the path for each flow where losses have an absolute limit.
const LEAST_WINDOW_PACKETS: u32 = 8;

/// Links of the general Internet whose runs are long or have many flows.
const SHARED: Ranges =
    Ranges { mbit: (4.0, 60.0), rtt_ms: (10.0, 100.0), bdp: (0.5, 4.0), least_packets: 16 };
/// Those of one flow.
const SINGLE: Ranges = Ranges { mbit: (2.0, 100.0), rtt_ms: (5.0, 150.0), bdp: (0.5, 4.0), least_packets: 8 };
/// Those of all rates and round trips.
const WIDE: Ranges = Ranges { mbit: (0.5, 500.0), rtt_ms: (2.0, 300.0), bdp: (0.5, 4.0), least_packets: 4 };

impl Wire {
    fn draw(draw: &mut Draw, ranges: &Ranges) -> Wire {
        let mbit = draw.scaled(ranges.mbit.0, ranges.mbit.1);
        let rtt_ms = draw.scaled(ranges.rtt_ms.0, ranges.rtt_ms.1);
        let packets = (draw.scaled(ranges.bdp.0, ranges.bdp.1) * bdp_packets(mbit, rtt_ms)).round() as u32;
        Wire { mbit, rtt_ms, queue_packets: packets.max(ranges.least_packets) }
    }

    /// The keys of a link with these in front.
    fn text(&self) -> String {
        format!("[[link]]\nrate_mbit = {}\n{}", self.mbit, self.rest())
    }

    fn rest(&self) -> String {
        format!("delay_ms = {:.3}\nqueue_packets = {}\n", self.rtt_ms / 2.0, self.queue_packets)
    }

    /// The room for packets that leaves a queue to what manages it: it is full for no one who responds.
    fn managed_packets(&self) -> u32 {
        (4.0 * bdp_packets(self.mbit, self.rtt_ms)).max(200.0) as u32
    }
}

fn bdp_packets(mbit: f64, rtt_ms: f64) -> f64 {
    mbit * rtt_ms * 1000.0 / PACKET_BITS
}

impl ScenarioSet {
    /// Draws the next scenario, for a contender of this name.
    pub(crate) fn draw(self, draw: &mut Draw, contender: &str) -> Spec {
        match self {
            ScenarioSet::HeavyLoss | ScenarioSet::Blackout | ScenarioSet::Crowd => self.collapse(draw),
            ScenarioSet::Deep | ScenarioSet::Shallow | ScenarioSet::Own | ScenarioSet::OwnRtts => {
                self.own(draw)
            }
            ScenarioSet::Short | ScenarioSet::ShortOwn | ScenarioSet::ShortCubic | ScenarioSet::LongCubic => {
                self.short(draw, contender)
            }
            ScenarioSet::BesideReno => beside(draw, "reno"),
            ScenarioSet::BesideCubic => beside(draw, "cubic"),
            ScenarioSet::BesideBbr => beside(draw, "bbr"),
            ScenarioSet::RealTime | ScenarioSet::Unresponsive | ScenarioSet::Onset => self.datagrams(draw),
            ScenarioSet::RadioLoss | ScenarioSet::Fading | ScenarioSet::Wifi | ScenarioSet::Circuits => {
                self.radio(draw)
            }
            ScenarioSet::JitterOne
            | ScenarioSet::AcksOne
            | ScenarioSet::RareAcks
            | ScenarioSet::LyingReceiver => self.ends(draw),
            ScenarioSet::DelaySteps | ScenarioSet::Outages | ScenarioSet::PathChanges => self.changes(draw),
            ScenarioSet::Incast => incast(draw),
            ScenarioSet::CodelEcn | ScenarioSet::PieEcn | ScenarioSet::EcnBeside => self.marks(draw),
            _ => Spec::new(PLAIN_S, self.link(draw)),
        }
    }

    /// A link with one property more than a wired one.
    fn link(self, draw: &mut Draw) -> String {
        let ranges = match self {
            ScenarioSet::Wired => WIDE,
            ScenarioSet::Satellite => {
                Ranges { mbit: (2.0, 50.0), rtt_ms: (500.0, 700.0), bdp: (0.25, 2.0), least_packets: 8 }
            }
            // A policed rate that has room for a window.
            ScenarioSet::Policer => {
                Ranges { mbit: (10.0, 100.0), rtt_ms: (30.0, 150.0), bdp: (1.0, 4.0), least_packets: 16 }
            }
            ScenarioSet::Constrained => Ranges { mbit: (0.02, 0.25), rtt_ms: (100.0, 1000.0), ..SINGLE },
            _ => SINGLE,
        };
        let mut wire = Wire::draw(draw, &ranges);
        let key = match self {
            ScenarioSet::Asymmetric => way_back(draw, &wire),
            ScenarioSet::Codel => "queue = \"codel\"\n".to_owned(),
            ScenarioSet::Pie => "queue = \"pie\"\n".to_owned(),
            ScenarioSet::DropHead => "queue = \"drophead\"\n".to_owned(),
            ScenarioSet::Policer => {
                let mbit = draw.between(0.2, 0.8) * wire.mbit;
                let bytes = (draw.scaled(10.0, 300.0) * mbit * 125.0).max(15_000.0) as u64;
                format!("policer_mbit = {mbit:.3}\npolicer_bytes = {bytes}\n")
            }
            ScenarioSet::Jitter => format!("jitter_ms = {:.3}\n", draw.scaled(0.1, 1.0) * wire.rtt_ms / 2.0),
            ScenarioSet::Satellite => format!("loss = {:.6}\n", draw.scaled(0.00002, 0.002)),
            ScenarioSet::Copies => format!("duplicate = {:.4}\n", draw.scaled(0.01, 0.2)),
            ScenarioSet::Reordered => {
                let (share, ms) = (draw.scaled(0.01, 0.2), draw.scaled(0.1, 2.0) * wire.rtt_ms);
                format!("reorder = {share:.4}\nreorder_ms = {ms:.3}\n")
            }
            _ => String::new(),
        };
        if matches!(self, ScenarioSet::Codel | ScenarioSet::Pie) {
            wire.queue_packets = wire.managed_packets();
        }
        if self == ScenarioSet::Constrained {
            wire.queue_packets = draw.between(4.0, 12.0) as u32;
        }
        wire.text() + &key
    }

    fn collapse(self, draw: &mut Draw) -> Spec {
        let ranges = Ranges { mbit: (2.0, 50.0), rtt_ms: (20.0, 200.0), bdp: (0.5, 2.0), least_packets: 8 };
        match self {
            ScenarioSet::HeavyLoss => {
                let link = Wire::draw(draw, &ranges).text();
                Spec::new(PLAIN_S, format!("{link}loss = {:.3}\n", draw.between(0.4, 0.9)))
            }
            ScenarioSet::Blackout => {
                let link = Wire::draw(draw, &ranges).text();
                Spec::new((20, 12), format!("{link}change = [{{ at_s = 10, loss = 1.0 }}]\n"))
            }
            _ => {
                let flows = draw.of(&[32u32, 48, 64]);
                let mut wire = Wire::draw(draw, &Ranges { mbit: (0.5, 4.0), rtt_ms: (20.0, 60.0), ..ranges });
                // As many packets as a third of the flows, on the way and in the queue.
                wire.queue_packets = wire.queue_packets.min(flows / 6).max(4);
                Spec::new((40, 10), format!("{}\n[traffic]\nflows = {flows}\n", wire.text()))
            }
        }
    }

    fn own(self, draw: &mut Draw) -> Spec {
        match self {
            ScenarioSet::Deep => {
                let ranges = Ranges { mbit: (1.0, 60.0), bdp: (4.0, 16.0), least_packets: 32, ..SINGLE };
                Spec::new((40, 5), Wire::draw(draw, &ranges).text())
            }
            ScenarioSet::Shallow => {
                let ranges =
                    Ranges { mbit: (5.0, 100.0), rtt_ms: (10.0, 150.0), bdp: (0.1, 0.5), least_packets: 8 };
                let (wire, flows) = (Wire::draw(draw, &ranges), draw.of(&[1u32, 2, 4, 8]));
                // With fewer packets of the path to a flow, a loss of one in ten is what any window has.
                let most = bdp_packets(wire.mbit, wire.rtt_ms) / f64::from(LEAST_WINDOW_PACKETS);
                let flows = flows.min(most as u32).max(1);
                Spec::new((30, 5), format!("{}\n[traffic]\nflows = {flows}\n", wire.text()))
            }
            _ => {
                let wire = Wire::draw(draw, &SHARED);
                let flows = draw.of(&[2u32, 3, 4, 8]);
                let stagger_s = if draw.coin() { 0.0 } else { 12.0 / f64::from(flows) };
                let mut tables =
                    format!("{}\n[traffic]\nflows = {flows}\nstagger_s = {stagger_s:.1}\n", wire.text());
                if self == ScenarioSet::OwnRtts {
                    let most = draw.scaled(1.5, 4.0) - 1.0;
                    let further = |n: u32| wire.rtt_ms * most * f64::from(n) / f64::from(flows - 1);
                    let further: Vec<String> = (0..flows).map(|n| format!("{:.3}", further(n))).collect();
                    let _ = writeln!(tables, "extra_delay_ms = [{}]", further.join(", "));
                }
                Spec::new((60, 25), tables)
            }
        }
    }

    fn short(self, draw: &mut Draw, contender: &str) -> Spec {
        let wire = Wire::draw(draw, &SHARED).text();
        let load = draw.between(0.1, 0.4);
        let background = |algorithm: &str| {
            format!("\n[[background]]\nkind = \"short-flows\"\nalgorithm = \"{algorithm}\"\nload = {load}\n")
        };
        let traffic = |load: f64| format!("\n[traffic]\nkind = \"short-flows\"\nload = {load}\n");
        match self {
            ScenarioSet::Short => Spec::new((20, 0), wire + &traffic(1.5 * load + 0.05)),
            ScenarioSet::ShortOwn => Spec::new((40, 5), wire + &background(contender)),
            ScenarioSet::ShortCubic => Spec::new((40, 5), wire + &background("cubic")),
            _ => {
                let flows = draw.of(&[1u32, 2]);
                let long = format!(
                    "\n[[background]]\nalgorithm = \"cubic\"\ndatapath = \"kernel\"\nflows = {flows}\n"
                );
                Spec::new((30, 5), wire + &traffic(load) + &long)
            }
        }
    }

    fn datagrams(self, draw: &mut Draw) -> Spec {
        let wire = Wire::draw(draw, &Ranges { bdp: (1.0, 4.0), ..SHARED });
        let udp = |mbit: f64| format!("\n[[background]]\nkind = \"udp\"\nrate_mbit = {mbit:.3}\n");
        match self {
            ScenarioSet::RealTime => {
                let flows = draw.of(&[1u32, 2]);
                let mbit = draw.scaled(0.3, 2.5).min(0.3 * wire.mbit);
                let spurts = if draw.coin() { "on_ms = 1200\noff_ms = 1800\n" } else { "" };
                let tables = format!("{}\n[traffic]\nflows = {flows}\n{}{spurts}", wire.text(), udp(mbit));
                Spec::new((30, 5), tables)
            }
            ScenarioSet::Onset => {
                let mbit = draw.between(0.5, 0.8) * wire.mbit;
                Spec::new((30, 5), format!("{}{}start_s = 12\nstop_s = 20\n", wire.text(), udp(mbit)))
            }
            _ => {
                let mbit = draw.between(0.3, 0.9) * wire.mbit;
                Spec::new(PLAIN_S, wire.text() + &udp(mbit))
            }
        }
    }

    fn radio(self, draw: &mut Draw) -> Spec {
        let seed = draw.seed();
        let trace = |name: String, rtt_ms: f64, packets: f64| {
            let packets = packets.max(30.0) as u32;
            format!(
                "[[link]]\ntrace = \"{name}\"\ndelay_ms = {:.3}\nqueue_packets = {packets}\n",
                rtt_ms / 2.0
            )
        };
        match self {
            ScenarioSet::RadioLoss => {
                let (wire, loss) = (Wire::draw(draw, &SINGLE).text(), draw.scaled(0.001, 0.02));
                let keys = match draw.coin() {
                    true => format!("loss = {loss:.5}\n"),
                    false => {
                        format!("burst_loss = {loss:.5}\nburst_packets = {}\n", draw.scaled(2.0, 30.0) as u32)
                    }
                };
                Spec::new(PLAIN_S, wire + &keys)
            }
            ScenarioSet::Fading => {
                let (kbit, every_ms) =
                    (draw.scaled(1000.0, 40_000.0) as u32, draw.scaled(20.0, 1000.0) as u32);
                let (rtt_ms, bdps) = (draw.scaled(20.0, 150.0), draw.scaled(1.0, 8.0));
                let packets = bdps * bdp_packets(f64::from(kbit) / 1000.0, rtt_ms);
                Spec::new((40, 5), trace(format!("fading:{kbit}:{every_ms}:{seed}"), rtt_ms, packets))
            }
            ScenarioSet::Wifi => {
                let kbit = draw.scaled(10_000.0, 300_000.0) as u32;
                let (most, gap_ms) = (draw.of(&[4u32, 8, 16, 32]), draw.of(&[1u32, 2, 4, 8]));
                let (rtt_ms, packets) = (draw.scaled(5.0, 120.0), draw.scaled(50.0, 1000.0));
                Spec::new(PLAIN_S, trace(format!("wifi:{kbit}:{most}:{gap_ms}:{seed}"), rtt_ms, packets))
            }
            _ => {
                let (kbit, times) = (draw.scaled(10_000.0, 40_000.0), draw.between(4.0, 10.0));
                let (day_ms, night_ms) = (draw.scaled(10.0, 200.0) as u32, draw.of(&[1u32, 2, 5]));
                let (rtt_ms, bdps) = (draw.scaled(1.0, 10.0), draw.scaled(1.0, 4.0));
                let packets = bdps * bdp_packets(times * kbit / 1000.0, rtt_ms);
                let (kbit, circuit_kbit) = (kbit as u32, (times * kbit) as u32);
                Spec::new(
                    (20, 5),
                    trace(format!("circuit:{kbit}:{circuit_kbit}:{day_ms}:{night_ms}"), rtt_ms, packets),
                )
            }
        }
    }

    /// Flows whose own ways or receivers are peculiar.
    fn ends(self, draw: &mut Draw) -> Spec {
        let wire = Wire::draw(draw, &Ranges { bdp: (1.0, 8.0), ..SHARED });
        let own = |keys: String| format!("{}\n[traffic]\n{keys}", wire.text());
        let ms = |draw: &mut Draw| draw.scaled(0.5, 2.0) * wire.rtt_ms;
        match self {
            ScenarioSet::JitterOne => {
                Spec::new((60, 20), own(format!("flows = 2\nextra_jitter_ms = [0, {:.3}]\n", ms(draw))))
            }
            ScenarioSet::AcksOne => {
                Spec::new((60, 20), own(format!("flows = 2\naggregate_acks_ms = [0, {:.3}]\n", ms(draw))))
            }
            ScenarioSet::RareAcks => {
                let every = draw.of(&[8u32, 16, 32, 64]);
                let loss = draw.scaled(0.02, 0.3);
                let link = format!("{}return_loss = {loss:.3}\n", wire.text());
                Spec::new(PLAIN_S, format!("{link}\n[traffic]\nack_every = {every}\n"))
            }
            _ => {
                let flows = draw.of(&[1u32, 2]);
                let rivals = format!(
                    "\n[[background]]\nalgorithm = \"cubic\"\ndatapath = \"kernel\"\nflows = {flows}\n"
                );
                Spec::new((40, 10), own("conceal_losses = true\n".to_owned()) + &rivals)
            }
        }
    }

    /// Flows that set ECT on a queue that marks them where it would drop others' packets.
    fn marks(self, draw: &mut Draw) -> Spec {
        let mut wire = Wire::draw(draw, &SHARED);
        wire.queue_packets = wire.managed_packets();
        let queue = match self {
            ScenarioSet::CodelEcn => "codel",
            ScenarioSet::PieEcn => "pie",
            _ => draw.of(&["codel", "pie"]),
        };
        let flows = draw.of(&[1u32, 2, 4]);
        let tables = format!(
            "{}queue = \"{queue}\"\nqueue_ecn = true\n\n[traffic]\nflows = {flows}\necn = true\n",
            wire.text()
        );
        if self != ScenarioSet::EcnBeside {
            return Spec::new(PLAIN_S, tables);
        }
        let flows = draw.of(&[1u32, 2]);
        let rivals =
            format!("\n[[background]]\nalgorithm = \"cubic\"\ndatapath = \"kernel\"\nflows = {flows}\n");
        Spec::new((50, 15), tables + &rivals)
    }

    fn changes(self, draw: &mut Draw) -> Spec {
        let wire = Wire::draw(draw, &SINGLE);
        let mut changes = Vec::new();
        let mut at_s = draw.between(6.0, 10.0);
        while at_s < 36.0 {
            match self {
                ScenarioSet::DelaySteps => {
                    let delay_ms = wire.rtt_ms / 2.0 * draw.scaled(1.0, 4.0);
                    changes.push(format!("{{ at_s = {at_s:.1}, delay_ms = {delay_ms:.3} }}"));
                    at_s += draw.between(4.0, 8.0);
                }
                ScenarioSet::Outages => {
                    let until_s = at_s + draw.scaled(0.2, 3.0);
                    changes.push(format!("{{ at_s = {at_s:.2}, loss = 1.0 }}"));
                    changes.push(format!("{{ at_s = {until_s:.2}, loss = 0.0 }}"));
                    at_s = until_s + draw.between(5.0, 9.0);
                }
                _ => {
                    let (mbit, delay_ms) =
                        (wire.mbit * draw.scaled(0.25, 4.0), wire.rtt_ms / 2.0 * draw.scaled(0.5, 3.0));
                    changes.push(format!(
                        "{{ at_s = {at_s:.1}, rate_mbit = {mbit:.3}, delay_ms = {delay_ms:.3} }}"
                    ));
                    at_s += draw.between(5.0, 10.0);
                }
            }
        }
        Spec::new((40, 5), format!("{}change = [{}]\n", wire.text(), changes.join(", ")))
    }
}

/// A way back that is slow, comes in lumps, or loses.
fn way_back(draw: &mut Draw, wire: &Wire) -> String {
    match draw.of(&[0u8, 1, 2]) {
        0 => {
            // An acknowledgement for two packets takes 0.019 of their rate.
            let mbit = (draw.scaled(0.01, 0.05) * wire.mbit).max(0.03);
            format!("return_rate_mbit = {mbit:.4}\nreturn_queue = \"drophead\"\nreturn_queue_packets = 32\n")
        }
        1 => {
            let every_ms = draw.of(&[5u32, 10, 20, 40]);
            let asked = wire.mbit * 1000.0 / PACKET_BITS * f64::from(every_ms) / 2.0;
            let count = (draw.scaled(1.0, 3.0) * asked).ceil() as u32;
            format!("return_trace = \"lumps:{every_ms}:{count}\"\n")
        }
        _ => format!("return_loss = {:.3}\n", draw.scaled(0.01, 0.5)),
    }
}

fn beside(draw: &mut Draw, rival: &str) -> Spec {
    let wire = Wire::draw(draw, &SHARED);
    Spec::new((50, 15), with_rivals(draw, &wire.text(), rival))
}

fn incast(draw: &mut Draw) -> Spec {
    let (mbit, rtt_ms) = (draw.of(&[1_000u32, 10_000]), draw.scaled(0.1, 1.0));
    let (senders, bytes) = (draw.of(&[8u32, 16, 32, 48]), draw.scaled(10_000.0, 200_000.0) as u32);
    let packets = draw.scaled(100.0, 400.0) as u32;
    let tables = format!(
        "[[link]]\nrate_mbit = {mbit}\ndelay_ms = {:.3}\nqueue_packets = {packets}\n\n[traffic]\nkind = \"incast\"\n\
         senders = {senders}\nbytes = {bytes}\nevery_ms = 500\n",
        rtt_ms / 2.0
    );
    Spec { duration_s: 3.0, warmup_s: 0.0, tables }
}
