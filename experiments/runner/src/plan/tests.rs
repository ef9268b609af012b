//! Tests of which plans are accepted, and of how the others are refused.

use std::path::Path;

use ccplane_netsim::trace::Trace;
use ccplane_results::{Comparison, Datapath, Metric};

use super::*;

const GOOD: &str = r#"title = "t"
duration_s = 10
[[link]]
rate_mbit = 24
delay_ms = 20
[[algorithm]]
algorithm = "reno"
datapath = "kernel"
[[algorithm]]
algorithm = "reno"
datapath = "ebpf"
"#;

fn parse_with(text: &str, overrides: Overrides) -> Result<Plan, PlanError> {
    let algorithms = ccplane_algs::all();
    let kernel = ["reno".to_owned(), "cubic".to_owned()];
    let traces = |name: &str| match name {
        "lte" => Trace::parse("1\n2\n").map_err(|e| e.to_string()),
        _ => Err(format!("no trace is called `{name}`")),
    };
    let known = Known { algorithms: &algorithms, kernel: Some(&kernel), traces: &traces, cellular: None };
    Plan::parse(Path::new("p.toml"), text, &known, overrides)
}

fn parse(text: &str) -> Result<Plan, PlanError> {
    parse_with(text, Overrides::default())
}

#[test]
fn ten_lines_make_a_plan() {
    let plan = parse(GOOD).unwrap();
    assert_eq!((plan.name.as_str(), plan.repeats, plan.duration_ms, plan.sample_ms), ("p", 5, 10_000, 100));
    let names: Vec<&str> = plan.contenders.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["reno kernel", "reno ebpf"]);
    let scenario = &plan.scenarios[0];
    assert_eq!(scenario.name, "24 Mb/s, 20 ms");
    assert_eq!(scenario.link.to_string(), "24 Mb/s, 20 ms each way, droptail queue of 80 packets");
    assert_eq!(scenario.traffic, Traffic::Bulk { flows: 1, stagger_ms: 0, tool: Tool::Native });
    assert_eq!(plan.runs(), 10);
}

#[test]
fn sweeps_multiply_scenarios() {
    let sweep = r#"[sweep]
"link.delay_ms" = [5, 10.5]
"link.queue_bdp" = { from = 0.5, to = 1.5, step = 0.5 }
"traffic.flows" = [1, 2]
"#;
    let plan = parse(&format!("{GOOD}{sweep}")).unwrap();
    assert_eq!(plan.scenarios.len(), 12);
    let last = &plan.scenarios[11];
    assert_eq!(last.name, "24 Mb/s, 10.5 ms, queue_bdp 1.5, flows 2");
    assert_eq!(last.parameters.get("link.delay_ms").map(String::as_str), Some("10.5"));
    assert_eq!(last.link.queue.packets, Some(63));
    assert_eq!(last.traffic, Traffic::Bulk { flows: 2, stagger_ms: 0, tool: Tool::Native });
}

#[test]
fn a_contender_is_compared_with_a_constant() {
    let compare =
        "[[compare]]\nmetric = \"short_queue_us\"\nof = \"reno ebpf\"\nconstant = 5_000_000\nat_most = 1\n";
    let mut plan = parse(&format!("{GOOD}{compare}")).unwrap();
    let expected = Comparison {
        constant: Some(5_000_000),
        at_most_ppm: Some(1_000_000),
        ..Comparison::new(Metric::ShortQueueUs, "reno ebpf", "")
    };
    assert_eq!(plan.comparisons, [expected]);
    plan.leave_out(Datapath::Kernel).unwrap();
    assert_eq!(plan.comparisons.len(), 1, "a constant is always there");
}

#[test]
fn a_list_of_datapaths_is_a_contender_each() {
    let many = "[[algorithm]]\nalgorithm = \"cubic\"\ndatapath = [\"ebpf\", \"quic\", \"sim\"]\n";
    let compare =
        "[[compare]]\nmetric = [\"throughput_bps\", \"mean_rtt_us\"]\nacross = \"quic\"\nwithin = 0.1\n";
    let plan = parse(&format!("{GOOD}{many}{compare}")).unwrap();
    let names: Vec<&str> = plan.contenders.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["reno kernel", "reno ebpf", "cubic ebpf", "cubic quic", "cubic sim"]);
    let compared: Vec<_> =
        plan.comparisons.iter().map(|c| (c.of.as_str(), c.against.as_str(), c.metric)).collect();
    let (rate, rtt) = (Metric::ThroughputBps, Metric::MeanRttUs);
    assert_eq!(
        compared,
        [
            ("cubic ebpf", "cubic quic", rate),
            ("cubic ebpf", "cubic quic", rtt),
            ("cubic sim", "cubic quic", rate),
            ("cubic sim", "cubic quic", rtt)
        ]
    );
    let named = many.replace("algorithm = \"cubic\"", "algorithm = \"cubic\"\nname = \"mine\"");
    let plan = parse(&format!("{GOOD}{named}")).unwrap();
    assert_eq!(plan.contenders[3].name, "mine quic");
    // The refusal names the table that cannot be simulated, for every contender of the plan.
    let wrong = format!("{GOOD}{many}").replace("rate_mbit = 24\ndelay_ms = 20", "medium = \"veth\"");
    let refused = parse(&wrong).unwrap_err().to_string();
    assert!(refused.contains("algorithm[2].datapath: a veth pair cannot be simulated"), "{refused}");
    for (compare, why) in [
        ("across = \"dpdk\"", "compare[0].across: no algorithm runs on `dpdk`"),
        ("across = \"quic\"\nof = \"reno ebpf\"", "compare[0].of: either"),
        ("of = \"reno ebpf\"", "compare[0].of: either"),
    ] {
        let text = format!("{GOOD}{many}[[compare]]\nmetric = \"throughput_bps\"\n{compare}\n");
        let refused = parse(&text).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let empty = GOOD.replace("datapath = \"ebpf\"", "datapath = []");
    assert!(parse(&empty).unwrap_err().to_string().contains("the list is empty"));
}

/// Contenders that are left out take their comparisons along.
#[test]
fn contenders_whose_datapath_is_not_there_are_left_out() {
    let two = "[[algorithm]]\nalgorithm = \"cubic\"\ndatapath = [\"module\", \"sim\"]\n\
               [[compare]]\nmetric = \"throughput_bps\"\nacross = \"module\"\n";
    let mut plan = parse(&format!("{GOOD}{two}")).unwrap();
    assert_eq!((plan.contenders.len(), plan.comparisons.len(), plan.left_out.len()), (4, 1, 0));
    plan.leave_out(Datapath::Module).unwrap();
    assert_eq!((plan.contenders.len(), plan.comparisons.len()), (3, 0));
    assert_eq!(plan.left_out[0].name, "cubic module");
    let only = GOOD.replace("\"kernel\"", "\"module\"").replace("\"ebpf\"", "\"module\"");
    let mut plan =
        parse(&only.replacen("algorithm = \"reno\"", "name = \"other\"\nalgorithm = \"reno\"", 1)).unwrap();
    let none = plan.leave_out(Datapath::Module).unwrap_err().to_string();
    assert_eq!(none, "nothing is left: the kernel module is not loaded (datapath-shims/module/README.md)");
}

/// One agent steers the kernel's flows, by one of the two.
#[test]
fn bpf_and_the_module_do_not_run_at_once() {
    let module = "[[algorithm]]\nalgorithm = \"cubic\"\ndatapath = \"module\"\n";
    let refused = parse(&format!("at_once = true\n{GOOD}{module}")).unwrap_err().to_string();
    assert!(refused.contains("algorithm[2].datapath: module and ebpf do not run at_once"), "{refused}");
    let background = format!("{GOOD}{module}[[background]]\nalgorithm = \"reno\"\ndatapath = \"ebpf\"\n");
    let refused = parse(&background).unwrap_err().to_string();
    assert!(refused.contains("algorithm[2].datapath: an agent steers one datapath in a run"), "{refused}");
}

#[test]
fn placement_chooses_the_version() {
    let text = GOOD.replace("datapath = \"ebpf\"", "datapath = \"ebpf\"\nplacement = \"agent\"");
    let plan = parse(&text).unwrap();
    assert_eq!(
        (plan.contenders[1].algorithm.as_str(), plan.contenders[1].datapath),
        ("ccp-reno", Datapath::Ebpf)
    );
}

#[test]
fn datagrams_cross_beside_flows() {
    let udp = "[[background]]\nkind = \"udp\"\nrate_mbit = 6\non_ms = 500\noff_ms = 1500\nstart_s = 2\n";
    let scenario = &parse(&format!("{GOOD}{udp}")).unwrap().scenarios[0];
    assert!(scenario.background.is_empty());
    let datagrams = scenario.datagrams[0];
    assert_eq!((datagrams.bit_per_s, datagrams.start_ms, datagrams.stop_ms), (6_000_000, 2_000, 10_000));
    let times: Vec<u64> = ccplane_netsim::CrossTimes::new(&datagrams.source(), 3, 0).unwrap().collect();
    // A quarter of eight seconds at a packet of 1500 bytes each 2 ms, give or take what chance does.
    assert!((300..2_500).contains(&times.len()), "{}", times.len());
    assert!(times.iter().all(|ns| (2_000_000_000..10_000_000_000).contains(ns)));
    assert!(times.windows(2).all(|w| w[1] - w[0] >= 2_000_000));
}

#[test]
fn flows_set_ect_and_queues_mark_them_where_a_plan_says_so() {
    let simulated = GOOD
        .replace("\"kernel\"", "\"sim\"")
        .replace("\"reno\"\ndatapath = \"ebpf\"", "\"cubic\"\ndatapath = \"sim\"");
    let incast = "kind = \"incast\"\nsenders = 2\nbytes = 9000\nevery_ms = 500\n";
    for traffic in ["", "kind = \"short-flows\"\n", incast] {
        let keys = format!(
            "delay_ms = 20\nqueue = \"codel\"\nqueue_packets = 300\nqueue_ecn = true\n[traffic]\n{traffic}ecn = true"
        );
        let plan = parse(&simulated.replace("delay_ms = 20", &keys)).unwrap();
        let scenario = &plan.scenarios[0];
        assert!(scenario.ecn && scenario.link.queue.marks, "{traffic}");
        let said = "24 Mb/s, 20 ms each way, CoDel 5 ms / 100 ms, marking, of 300 packets";
        assert_eq!(scenario.link.to_string(), said);
    }
    let plain = parse(&simulated).unwrap();
    let scenario = &plain.scenarios[0];
    assert!(!scenario.ecn && !scenario.link.queue.marks);
}

#[test]
fn a_recorded_trace_stands_in_for_the_synthetic_one() {
    let text = GOOD.replace("rate_mbit = 24", "trace = \"cellular.up\"\nqueue_packets = 100");
    assert!(text.contains("cellular.up"));
    let algorithms = ccplane_algs::all();
    let traces = |name: &str| match name {
        "/drives/lte.up" => Trace::parse("1\n2\n").map_err(|e| e.to_string()),
        _ => Err(format!("no trace is called `{name}`")),
    };
    let parse = |cellular| {
        let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular };
        Plan::parse(Path::new("p.toml"), &text, &known, Overrides::default())
    };
    assert!(parse(Some("/drives/lte.up")).unwrap().scenarios[0].name.starts_with("lte.up"));
    assert!(parse(None).unwrap_err().to_string().contains("no trace is called `cellular.up`"));
}

#[test]
fn overrides_keep_the_proportions() {
    let text = GOOD.replace("duration_s = 10", "duration_s = 10\nwarmup_s = 4")
        + "[traffic]\nflows = 3\nstagger_s = 2\n[[background]]\nalgorithm = \"cubic\"\nstart_s = 5\n";
    let overrides = Overrides { repeats: Some(2), duration_ms: None, at_most_ms: Some(5_000) };
    let plan = parse_with(&text, overrides).unwrap();
    assert_eq!((plan.repeats, plan.duration_ms, plan.warmup_ms), (2, 5_000, 2_000));
    assert_eq!(plan.scenarios[0].traffic, Traffic::Bulk { flows: 3, stagger_ms: 1_000, tool: Tool::Native });
    let background = &plan.scenarios[0].background[0];
    assert_eq!((background.start_ms, background.stop_ms), (2_500, 5_000));
    let changing =
        GOOD.replace("delay_ms = 20", "delay_ms = 20\nchange = [{ at_s = 4, rate_mbit = 6, delay_ms = 30 }]");
    let link = &parse_with(&changing, overrides).unwrap().scenarios[0].link;
    assert_eq!(link.changes[0].at_ms, 2_000);
    assert_eq!((link.at(1_999).delay_us, link.at(2_000).delay_us), (20_000, 30_000));
    assert_eq!(link.to_string().split("; ").last(), Some("from 2 s on 6 Mb/s, 30 ms each way"));
    let longer = Overrides { duration_ms: Some(20_000), at_most_ms: None, repeats: None };
    assert_eq!(parse_with(&text, longer).unwrap().warmup_ms, 8_000);
}

/// Changes of [`GOOD`] and what comes of each: line and column, then the problem.
const REFUSED: &[(&str, &str, &str)] = &[
    ("title = \"t\"", "title = ", "1:9: string values must be quoted, expected literal string"),
    ("title = \"t\"\n", "", "1:1: missing field `title`"),
    (
        "duration_s = 10",
        "duration_s = 0.05",
        "2:14: duration_s: 0.05 is out of range: 0.1 to 36000 are allowed",
    ),
    (
        "duration_s = 10",
        "duration_s = \"10\"",
        "2:14: duration_s: invalid type: string \"10\", expected a number from 0.1 to 36000",
    ),
    ("duration_s = 10", "duration_s = 10\nwarmup_s = 10", "3:12: warmup_s: must be shorter than duration_s"),
    (
        "duration_s = 10",
        "duration_s = 10\nrepeats = 1.5",
        "3:11: repeats: invalid type: floating point `1.5`, expected a whole number from 1 to 1000",
    ),
    ("duration_s = 10", "duration = 10", "2:1: duration: unknown field `duration`"),
    (
        "rate_mbit = 24",
        "rate_mbit = 24\ntrace = \"lte\"",
        "3:1: link[0]: one of rate_mbit = 24, trace = \"cellular.up\" and medium = \"veth\" is needed",
    ),
    ("rate_mbit = 24", "trace = \"5g\"", "4:9: link[0].trace: no trace is called `5g`"),
    ("rate_mbit = 24", "medium = \"veth\"", "5:12: link[0].delay_ms: a veth pair is not emulated"),
    ("delay_ms = 20", "", "3:1: link[0]: delay_ms, the delay of each direction, is needed"),
    ("delay_ms = 20", "delay_ms = -1", "5:12: link[0].delay_ms: -1 is out of range: 0 to 10000 are allowed"),
    (
        "delay_ms = 20",
        "delay_ms = 20\nqueue = \"red\"",
        "6:9: link[0].queue: unknown variant `red`, expected one of `infinite`, `droptail`, `drophead`, `codel`, `pie`",
    ),
    (
        "delay_ms = 20",
        "delay_ms = 20\nqueue = \"infinite\"\nqueue_packets = 5",
        "7:17: link[0].queue_packets: an infinite queue has no limit",
    ),
    (
        "delay_ms = 20",
        "delay_ms = 20\nqueue_bdp = 1\nqueue_bytes = 5",
        "6:13: link[0].queue_bdp: queue_packets or queue_bytes is set, too",
    ),
    (
        "delay_ms = 20",
        "delay_ms = 20\ncodel_target_ms = 5",
        "6:19: link[0].codel_target_ms: only with queue = \"codel\"",
    ),
    (
        "delay_ms = 20",
        "delay_ms = 20\nqueue_ecn = true",
        "6:13: link[0].queue_ecn: only with queue = \"codel\" or \"pie\"",
    ),
    (
        "delay_ms = 20",
        "delay_ms = 20\nqueue = \"codel\"\nqueue_ecn = true",
        "10:12: algorithm[0].datapath: link.queue_ecn: simulated only",
    ),
    (
        "[[algorithm]]",
        "[traffic]\necn = true\n[[algorithm]]",
        "10:12: algorithm[0].datapath: traffic.ecn: simulated only",
    ),
    (
        "delay_ms = 20",
        "delay_ms = 20\nchange = [{ at_s = 3 }]",
        "6:11: link[0].change[0]: one of rate_mbit, delay_ms and loss is needed",
    ),
    (
        "delay_ms = 20",
        "delay_ms = 20\nchange = [{ at_s = 3, loss = 0.1 }, { at_s = 2, loss = 0 }]",
        "6:46: link[0].change[1].at_s: changes follow each other, all before the run's end",
    ),
    (
        "rate_mbit = 24\ndelay_ms = 20",
        "trace = \"lte\"\ndelay_ms = 20\nchange = [{ at_s = 3, rate_mbit = 2 }]",
        "6:35: link[0].change[0].rate_mbit: the link has no rate_mbit that could change",
    ),
    (
        "\"ebpf\"",
        "\"ebpf\"\nlearning = true",
        "12:12: algorithm[1].learning: `reno` has no policy to improve",
    ),
    (
        "\"kernel\"",
        "\"kernel\"\nlearning = true",
        "9:12: algorithm[0].learning: nobody learns beside the kernel's own algorithms",
    ),
    (
        "\"ebpf\"",
        "\"ebpf\"\nplacement = \"snapshot\"",
        "12:13: algorithm[1].placement: `reno` asks no policy",
    ),
    (
        "delay_ms = 20",
        "delay_ms = 20\nburst_packets = 5",
        "6:17: link[0].burst_packets: `burst_loss`, the share",
    ),
    (
        "delay_ms = 20",
        "delay_ms = 20\nburst_loss = 0.6",
        "6:14: link[0].burst_loss: at most half of the packets",
    ),
    (
        "delay_ms = 20",
        "delay_ms = 20\nreturn_queue_packets = 5",
        "6:24: link[0].return_queue_packets: nothing waits on a way back without",
    ),
    (
        "delay_ms = 20",
        "delay_ms = 20\nreturn_rate_mbit = 1\nreturn_queue = \"drophead\"",
        "7:16: link[0].return_queue: return_queue_packets is needed, too",
    ),
    (
        "[[algorithm]]",
        "[traffic]\nextra_delay_ms = [5]\n[[algorithm]]",
        "10:12: algorithm[0].datapath: traffic.extra_delay_ms: simulated only",
    ),
    (
        "[[algorithm]]",
        "[traffic]\nextra_jitter_ms = [0, 5]\n[[algorithm]]",
        "10:12: algorithm[0].datapath: traffic.extra_jitter_ms: simulated only",
    ),
    (
        "[[algorithm]]",
        "[traffic]\nack_every = 65\n[[algorithm]]",
        "7:13: traffic.ack_every: 65 is out of range: 1 to 64 are allowed",
    ),
    (
        "[[algorithm]]",
        "[[background]]\nalgorithm = \"cubic\"\nload = 0.1\n[[algorithm]]",
        "8:8: background[0].load: only with kind = \"short-flows\"",
    ),
    ("delay_ms = 20", "delay_ms = 20\nreorder_ms = 5", "6:14: link[0].reorder_ms: `reorder`, the share"),
    (
        "delay_ms = 20",
        "delay_ms = 20\nloss = 1.1",
        "6:8: link[0].loss: 1.1 is out of range: 0 to 1 are allowed",
    ),
    (
        "[[algorithm]]",
        "[[link]]\nrate_mbit = 24\ndelay_ms = 20\n[[algorithm]]",
        "6:1: link[1]: two links are called `24 Mb/s, 20 ms`; give each a `name` of its own",
    ),
    (
        "[[algorithm]]",
        "[traffic]\nload = 0.5\n[[algorithm]]",
        "7:8: traffic.load: not of this kind of traffic, which takes flows, start_s, stagger_s, extra_delay_ms, \
         extra_jitter_ms, aggregate_acks_ms, ack_every, conceal_losses, tool, ecn",
    ),
    (
        "[[algorithm]]",
        "[traffic]\nflows = 0\n[[algorithm]]",
        "7:9: traffic.flows: 0 is out of range: 1 to 1024 are allowed",
    ),
    (
        "[[algorithm]]",
        "[traffic]\nflows = 3\nstagger_s = 5\n[[algorithm]]",
        "8:13: traffic.stagger_s: the last flow would start after the run's end",
    ),
    (
        "[[algorithm]]",
        "[traffic]\ntool = \"iperf3\"\nstagger_s = 1\n[[algorithm]]",
        "8:13: traffic.stagger_s: iperf3 starts its flows together",
    ),
    (
        "[[algorithm]]",
        "[traffic]\nkind = \"short-flows\"\ndistribution = \"web\"\n[[algorithm]]",
        "8:16: traffic.distribution: no distribution is called `web`; there are web-search, data-mining",
    ),
    (
        "[[algorithm]]",
        "[traffic]\nkind = \"incast\"\nsenders = 4\n[[algorithm]]",
        "6:1: traffic: incast needs senders, bytes (of each) and every_ms",
    ),
    (
        "\"kernel\"",
        "\"qemu\"",
        "8:12: algorithm[0].datapath: unknown variant `qemu`, expected one of `kernel`, `ebpf`, `module`",
    ),
    (
        "\"reno\"\ndatapath = \"kernel\"",
        "\"bic\"\ndatapath = \"kernel\"",
        "7:13: algorithm[0].algorithm: this kernel has no algorithm called `bic`; there are reno, cubic",
    ),
    (
        "\"reno\"\ndatapath = \"ebpf\"",
        "\"bic\"\ndatapath = \"ebpf\"",
        "10:13: algorithm[1].algorithm: no algorithm is called `bic`; there are reno, cubic, ccp-reno",
    ),
    (
        "\"ebpf\"",
        "\"ebpf\"\nparameters = { gain = 1 }",
        "12:23: algorithm[1].parameters.gain: no parameter `gain`; there are ",
    ),
    (
        "\"ebpf\"",
        "\"ebpf\"\nparameters = { report_us = -1 }",
        "12:28: algorithm[1].parameters.report_us: report_us is -1, allowed are 0..=",
    ),
    (
        "\"kernel\"",
        "\"kernel\"\nparameters = { gain = 1 }",
        "9:23: algorithm[0].parameters.gain: the kernel's own algorithms take no parameters",
    ),
    (
        "\"kernel\"",
        "\"kernel\"\nplacement = \"agent\"",
        "9:13: algorithm[0].placement: the kernel's own algorithms decide in the kernel",
    ),
    (
        "\"ebpf\"",
        "\"kernel\"",
        "9:1: algorithm[1]: two contenders are called `reno kernel`; give each a `name` of its own",
    ),
];

#[test]
fn refusals_say_where_and_what_would_be_right() {
    for (from, to, expected) in REFUSED {
        let text = GOOD.replacen(from, to, 1);
        let error = parse(&text).map(|_| ()).unwrap_err().to_string();
        let said = error.strip_prefix("p.toml:").unwrap_or(&error);
        assert!(said.starts_with(expected), "{to}\nexpected {expected}\nfound    {said}");
    }
}

#[test]
fn a_plan_may_say_its_version_and_one_of_another_is_refused_before_its_keys() {
    assert_eq!(parse(&format!("version = 1\n{GOOD}")).unwrap().scenarios, parse(GOOD).unwrap().scenarios);
    let newer = parse(&format!("no_such_key = 1\nversion = 2\n{GOOD}")).map(|_| ()).unwrap_err().to_string();
    let said = "p.toml:2:11: version: the file is of version 2, this program reads version 1";
    assert!(newer.starts_with(said), "{newer}");
}

#[test]
fn refusals_of_what_is_added() {
    let cases: &[(&str, &str)] = &[
        ("[sweep]\n\"algorithm.x\" = [1]", "13:1: sweep.\"algorithm.x\": swept can be \"link.KEY\""),
        (
            "[sweep]\n\"link.delay_ms\" = 5",
            "13:19: sweep.\"link.delay_ms\": values are needed: [10, 20] or { from, to, step }",
        ),
        (
            "[sweep]\n\"link.delay_ms\" = [[1]]",
            "13:20: sweep.\"link.delay_ms\": numbers, texts or truth values",
        ),
        ("[sweep]\n\"link.delay_ms\" = [5, -5]", "13:23: link[0].delay_ms: -5 is out of range"),
        ("[sweep]\n\"link.delay\" = [5]", "13:1: link[0].delay: unknown field `delay`"),
        (
            "[sweep]\n\"link.delay_ms\" = { from = 5, to = 1, step = 1 }",
            "13:19: sweep.\"link.delay_ms\": `from` lies above `to`",
        ),
        (
            "[sweep]\n\"link.delay_ms\" = { from = 5 }",
            "13:19: sweep.\"link.delay_ms\": missing field `to`; a range is",
        ),
        (
            "[sweep]\n\"link.delay_ms\" = { from = 0, to = 9999, step = 0.1 }",
            "13:19: sweep.\"link.delay_ms\": the range has more than 1024 values",
        ),
        (
            "[sweep]\n\"background.flows\" = [1]",
            "13:1: sweep.\"background.flows\": there is no [[background]] to set this in",
        ),
        (
            "[[background]]\nflows = 2",
            "12:1: background[0]: algorithm = \"cubic\", or kind = \"udp\", is needed",
        ),
        ("[[background]]\nkind = \"udp\"", "12:1: background[0]: rate_mbit, the datagrams' rate, is needed"),
        (
            "[[background]]\nkind = \"udp\"\nrate_mbit = 2\nflows = 3",
            "15:9: background[0].flows: not of datagrams, which take rate_mbit",
        ),
        (
            "[[background]]\nkind = \"udp\"\nrate_mbit = 2\non_ms = 3",
            "15:9: background[0].on_ms: off_ms is needed, too",
        ),
        (
            "[[background]]\nalgorithm = \"cubic\"\nrate_mbit = 3",
            "14:13: background[0].rate_mbit: only with kind = \"udp\"",
        ),
        (
            "[[background]]\nalgorithm = \"cubic\"\nstart_s = 10",
            "14:11: background[0].start_s: start_s, stop_s and duration_s must follow each other",
        ),
        (
            "[[background]]\nalgorithm = \"cubic\"\ndatapath = \"sim\"",
            "14:12: background[0].datapath: kernel or ebpf",
        ),
        (
            "[[background]]\nalgorithm = \"reno\"\ndatapath = \"ebpf\"\nparameters = { report_us = 5 }",
            "15:14: background[0].parameters: the contender `reno ebpf` has other parameters",
        ),
        (
            "[[compare]]\nmetric = \"speed\"",
            "13:10: compare[0].metric: unknown variant `speed`, expected one of `throughput_bps`",
        ),
        (
            "[[compare]]\nmetric = \"jain_ppm\"\nof = \"reno\"\nagainst = \"reno kernel\"",
            "14:6: compare[0].of: no contender is called `reno`; there are reno kernel, reno ebpf",
        ),
        (
            "[[compare]]\nmetric = \"jain_ppm\"\nof = \"reno kernel\"\nagainst = \"reno kernel\"",
            "15:11: compare[0].against: a contender is not compared with itself",
        ),
        (
            "[[compare]]\nmetric = \"jain_ppm\"\nof = \"reno\"\nconstant = 950000",
            "14:6: compare[0].of: no contender is called `reno`; there are reno kernel, reno ebpf",
        ),
        (
            "[[compare]]\nmetric = \"jain_ppm\"\nof = \"reno ebpf\"\nagainst = \"reno kernel\"\nconstant = 1",
            "14:6: compare[0].of: either",
        ),
        (
            "[[compare]]\nmetric = \"jain_ppm\"\nof = \"reno ebpf\"\nagainst = \"reno kernel\"\nscenario = \"x\"",
            "16:12: compare[0].scenario: no scenario is called `x`; there are 24 Mb/s, 20 ms",
        ),
    ];
    for (added, expected) in cases {
        let error = parse(&format!("{GOOD}{added}\n")).map(|_| ()).unwrap_err().to_string();
        let said = error.strip_prefix("p.toml:").unwrap_or(&error);
        assert!(said.starts_with(expected), "{added}\nexpected {expected}\nfound    {said}");
    }
}

#[test]
fn a_refusal_shows_the_line() {
    let error = parse(&GOOD.replace("24", "0")).map(|_| ()).unwrap_err().to_string();
    let golden = "p.toml:4:13: link[0].rate_mbit: 0 is out of range: 0.001 to 10000 are allowed
   |
 4 | rate_mbit = 0
   |             ^";
    assert_eq!(error, golden);
}

#[test]
fn shipped_plans_are_sound_and_take_their_time() {
    let algorithms = ccplane_algs::all();
    let traces = |_: &str| Err("not asked".to_owned());
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    let mut seconds = 0;
    for shipped in shipped::PLANS {
        let plan = shipped::load(shipped.name, &known, Overrides::default()).unwrap();
        assert_eq!(plan.name, shipped.name);
        let live = plan.contenders.iter().filter(|c| c.datapath != Datapath::Sim).count() as u64;
        let turns = if plan.at_once { live.min(1) } else { live };
        seconds += plan.scenarios.len() as u64 * turns * u64::from(plan.repeats) * plan.duration_ms / 1000;
        let without_paper = [
            "quickstart",
            "demo",
            "reno-cubic-bbr",
            "fairness",
            "share",
            "adapt-random",
            "agreement",
            "portfolio",
            "unshaped",
            "rival-leaves",
        ];
        assert_eq!(plan.paper.is_empty(), without_paper.contains(&shipped.name));
        // The demo names the best contender in its first picture.
        assert!(["quickstart", "demo"].contains(&shipped.name) || !plan.comparisons.is_empty());
    }
    assert!(seconds < 236 * 60, "{seconds}");
    assert!(shipped::PLANS[0].source.lines().count() <= 10);
    let unknown = shipped::load("nosuch", &known, Overrides::default()).map(|_| ()).unwrap_err().to_string();
    assert!(
        unknown.starts_with(
            "no file `nosuch`, and no plan of that name comes with ccplane; there are: quickstart"
        )
    );
}

#[test]
fn what_runs_at_once_has_links_of_its_own_and_bulk_flows() {
    let text = |tables: &str| GOOD.replace("duration_s = 10", "duration_s = 10\nat_once = true") + tables;
    assert!(parse(&text("")).unwrap().at_once && !parse(GOOD).unwrap().at_once);
    let refused = |text: &str| parse(text).unwrap_err().to_string();
    let short = refused(&text("[traffic]\nkind = \"short-flows\"\n"));
    assert!(short.contains("at_once: only bulk flows"), "{short}");
    let veth = refused(&text("").replace("rate_mbit = 24\ndelay_ms = 20\n", "medium = \"veth\"\n"));
    assert!(veth.contains("link[0].medium: at_once needs a link of their own"), "{veth}");
    let many: String = (0..=MAX_AT_ONCE)
        .map(|n| format!("[[algorithm]]\nname = \"{n}\"\nalgorithm = \"reno\"\ndatapath = \"ebpf\"\n"))
        .collect();
    let crowd = refused(&text(&many));
    assert!(crowd.contains("at_once: more than 8 contenders"), "{crowd}");
}

#[test]
fn random_links_are_drawn_from_their_seed() {
    let text = |seed: u64, links: u64| {
        let random = format!("[random]\nseed = {seed}\nlinks = {links}\nchanges = 3\n");
        GOOD.replace("[[link]]\nrate_mbit = 24\ndelay_ms = 20\n", &random)
            .replace("duration_s = 10", "duration_s = 80")
    };
    let links = |seed, count| parse(&text(seed, count)).unwrap().scenarios;
    let all = links(100, 50);
    assert_eq!(all[..10], links(100, 10), "more links change none");
    assert_ne!(all[0].link, links(101, 1)[0].link);
    for scenario in &all {
        let link = &scenario.link;
        assert_eq!(link.changes.iter().map(|c| c.at_ms).collect::<Vec<_>>(), [20_000, 40_000, 60_000]);
        for at_ms in [0, 20_000, 40_000, 60_000] {
            let now = link.at(at_ms);
            let rate = now.medium.rate_bit_per_s().unwrap();
            assert!((4_000_000..=60_000_000).contains(&rate) && now.loss_ppm <= 80_000, "{now}");
            assert!((5_000..=60_000).contains(&now.delay_us), "{now}");
        }
        assert!(link.changes.iter().all(|c| c.bit_per_s.or(c.delay_us).is_some() || c.loss_ppm.is_some()));
    }
    let share = |is: &dyn Fn(&Scenario) -> bool| all.iter().filter(|s| is(s)).count();
    let lossless = share(&|s| s.link.loss_ppm == 0);
    let alone = share(&|s| matches!(s.traffic, Traffic::Bulk { flows: 1, .. }));
    let slow = share(&|s| s.link.medium.rate_bit_per_s() < Some(15_500_000));
    assert!(
        [lossless, alone].iter().all(|n| (8..=26).contains(n)) && (15..=35).contains(&slow),
        "{lossless} {alone} {slow}"
    );
    let shipped = parse_shipped_seed("adapt-random");
    assert!(shipped >= 200, "seeds below are not for judging: {shipped}");
    let both = parse(
        &text(100, 2).replace("[random]", "[[link]]\nrate_mbit = 24\ndelay_ms = 20\nflows = 3\n[random]"),
    );
    let both = both.unwrap();
    assert_eq!(both.scenarios.len(), 3);
    assert!(matches!(both.scenarios[0].traffic, Traffic::Bulk { flows: 3, .. }));
}

fn parse_shipped_seed(name: &str) -> u64 {
    let plan = shipped::PLANS.iter().find(|p| p.name == name).unwrap();
    let table: toml::Table = plan.source.parse().unwrap();
    table["random"]["seed"].as_integer().unwrap() as u64
}
