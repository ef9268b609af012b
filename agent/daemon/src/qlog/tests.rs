use super::*;
use ccplane_contract::fake::FakeDatapath;
use ccplane_contract::{Datapath, Event as Happened, FlowId, FlowInfo, TransportStats};
use ccplane_core::{Catalog, Config, Core, DatapathId, NATIVE, Rule, Rules};
use serde_json::Value;

const DP: DatapathId = DatapathId(0);

struct Lab {
    core: Core,
    fake: FakeDatapath,
    taps: Taps,
    now_us: u64,
    reports: u32,
}

const FLOW: FlowId = FlowId(7);

fn info() -> FlowInfo {
    FlowInfo::example(1000, 10_000)
}

impl Lab {
    fn new() -> Lab {
        Lab::with(Rules::all("ccp-reno"))
    }

    /// A flow whose start a reader hears.
    fn subscribed() -> (Lab, Subscription) {
        let mut lab = Lab::new();
        let (subscriber, subscription) = channel(&Filter::default(), lab.now_us);
        assert!(lab.taps.subscribe(subscriber));
        lab.start();
        (lab, subscription)
    }

    fn with(rules: Rules) -> Lab {
        let catalog = Catalog::new(ccplane_algs::all(), 1).unwrap();
        let mut core = Core::new(catalog, rules, Config::default()).unwrap();
        let fake = FakeDatapath::default();
        core.attach(DP, fake.capabilities(), 0).unwrap();
        Lab { core, fake, taps: Taps::default(), now_us: 1_000_000, reports: 0 }
    }

    fn turn(&mut self, events: Vec<Happened>) {
        self.now_us += 30_000;
        self.fake.events.extend(events);
        self.taps.drive(&mut self.core, DP, &mut self.fake, self.now_us);
    }

    fn start(&mut self) {
        let flow = self.fake.start(FLOW, info());
        flow.transport = TransportStats {
            snd_cwnd: 10,
            mss_bytes: 1000,
            srtt_us: 20_500,
            min_rtt_us: 20_000,
            pacing_rate: 500_000,
            unacked: 4,
            ..TransportStats::default()
        };
        self.turn(vec![]);
    }

    fn report(&mut self, count: u32) {
        let uid = self.core.flow(DP, FLOW).unwrap().program().unwrap().uid();
        let report = |seq| Happened::Report {
            flow: FLOW,
            program: uid,
            seq,
            at_us: 77,
            values: vec![1000, 0, 0, 20_500].into(),
        };
        let events = (self.reports + 1..=self.reports + count).map(report).collect();
        self.reports += count;
        self.turn(events);
    }
}

/// The records that wait, as JSON; each has what qlog asks for.
fn records(subscription: &mut Subscription) -> Vec<Value> {
    let mut all = Vec::new();
    while let Ok(record) = subscription.records.try_recv() {
        let value: Value = serde_json::from_str(&record.line(subscription.since_us)).unwrap();
        assert!(value["time"].is_f64() && value["name"].as_str().unwrap().contains(':'), "{value}");
        assert!(value["data"].is_object() && value["group_id"] == "fake/7", "{value}");
        all.push(value);
    }
    all
}

fn named(records: &[Value]) -> Vec<&str> {
    records.iter().map(|r| r["name"].as_str().unwrap()).collect()
}

#[test]
fn a_flows_life_in_order() {
    let (mut lab, mut subscription) = Lab::subscribed();
    lab.report(1);
    lab.fake.flows.get_mut(&FLOW).unwrap().transport.lost = 2;
    lab.turn(vec![]);
    lab.turn(vec![Happened::Closed { flow: FLOW }]);
    let seen = records(&mut subscription);
    let expected = [
        "ccplane:flow_started",
        "recovery:metrics_updated",
        "recovery:congestion_state_updated",
        "ccplane:program_changed",
        "ccplane:report",
        "ccplane:fields_updated",
        "recovery:congestion_state_updated",
        "recovery:congestion_state_updated",
        "ccplane:flow_ended",
    ];
    assert_eq!(named(&seen), expected, "{seen:#?}");
    let metrics = &seen[1]["data"];
    assert_eq!(
        *metrics,
        serde_json::json!({
            "congestion_window": 10_000, "bytes_in_flight": 4000, "packets_in_flight": 4, "smoothed_rtt": 20.5,
            "min_rtt": 20.0, "pacing_rate": 4_000_000,
        })
    );
    assert_eq!(seen[2]["data"], serde_json::json!({ "new": "slow_start" }));
    assert_eq!(seen[3]["data"]["program"], "ccp-reno");
    assert!(seen[3]["data"]["fields"]["report_us"].is_i64(), "{seen:#?}");
    assert_eq!(seen[4]["data"]["registers"]["rtt_us"], 20_500);
    assert_eq!(seen[5]["data"]["fields"]["Cwnd"], 11_000);
    assert_eq!(seen[6]["data"], serde_json::json!({ "old": "slow_start", "new": "recovery" }));
    assert_eq!(seen[0]["time"], 30.0);
}

#[test]
fn a_reader_who_comes_late_hears_what_there_is_and_ends_with_its_flow() {
    let mut lab = Lab::new();
    lab.start();
    lab.report(3);
    let filter = Filter { flow: Some(7), datapath: None };
    let (subscriber, mut subscription) = channel(&filter, lab.now_us);
    assert!(lab.taps.subscribe(subscriber.share()));
    drop(subscriber);
    lab.turn(vec![]);
    assert_eq!(named(&records(&mut subscription))[..2], ["ccplane:flow_started", "ccplane:program_changed"]);
    lab.turn(vec![Happened::Closed { flow: FLOW }]);
    assert_eq!(*named(&records(&mut subscription)).last().unwrap(), "ccplane:flow_ended");
    assert_eq!(subscription.records.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
}

/// Rules with `requested` hold while somebody reads, too.
#[test]
fn a_reader_changes_nothing_of_what_a_flow_asks_for() {
    for is_read in [false, true] {
        let rule = Rule { requested: Some("ours".to_owned()), ..Rule::any("ccp-reno") };
        let mut lab = Lab::with(Rules { rules: vec![rule], ..Rules::all(NATIVE) });
        let (subscriber, _subscription) = channel(&Filter::default(), lab.now_us);
        if is_read {
            assert!(lab.taps.subscribe(subscriber));
        }
        lab.fake.start(FLOW, info()).requested = Some("ours".to_owned());
        lab.turn(vec![]);
        assert_eq!(lab.core.flow(DP, FLOW).unwrap().algorithm(), "ccp-reno", "read: {is_read}");
    }
}

#[test]
fn other_flows_and_datapaths_are_not_told() {
    let mut lab = Lab::new();
    let others = [
        Filter { flow: Some(8), datapath: None },
        Filter { flow: Some(7), datapath: Some("ebpf".to_owned()) },
    ];
    let mut subscriptions = others.map(|filter| {
        let (subscriber, subscription) = channel(&filter, 0);
        assert!(lab.taps.subscribe(subscriber));
        subscription
    });
    lab.start();
    lab.report(5);
    assert!(subscriptions.iter_mut().all(|s| records(s).is_empty()));
}

#[test]
fn what_a_slow_reader_misses_is_counted() {
    let (mut lab, mut subscription) = Lab::subscribed();
    for _ in 0..10 {
        lab.report(1000);
    }
    let dropped = subscription.dropped.load(std::sync::atomic::Ordering::Relaxed);
    let seen = records(&mut subscription).len();
    assert_eq!(seen, MAX_QUEUED);
    // A report and its update each, and what there was at the start.
    assert!((20_000..20_100).contains(&(seen as u64 + dropped)), "{seen} {dropped}");
    let said: Value = serde_json::from_str(&dropped_line(dropped)).unwrap();
    assert_eq!((&said["name"], &said["data"]["count"]), (&"ccplane:events_dropped".into(), &dropped.into()));
}

fn dropped_line(count: u64) -> String {
    super::dropped(count, 2000, 1000)
}

#[test]
fn readers_are_bounded_and_those_who_left_make_room() {
    let mut lab = Lab::new();
    let mut all: Vec<_> = (0..MAX_SUBSCRIBERS).map(|_| channel(&Filter::default(), 0)).collect();
    let (subscribers, mut subscriptions): (Vec<_>, Vec<_>) = all.drain(..).unzip();
    assert!(subscribers.into_iter().all(|s| lab.taps.subscribe(s)));
    assert!(!lab.taps.subscribe(channel(&Filter::default(), 0).0));
    subscriptions.pop();
    let (next, _keep) = channel(&Filter::default(), 0);
    assert!(lab.taps.subscribe(next));
}

#[test]
fn the_first_record_says_what_it_is() {
    let head = header(Format::JsonSeq, 5.0, "TCP");
    assert_eq!((&head["qlog_format"], &head["qlog_version"]), (&"JSON-SEQ".into(), &"0.3".into()));
    assert_eq!(head["trace"]["common_fields"]["reference_time"], 5.0);
    assert_eq!(header(Format::Ndjson, 5.0, "QUIC")["qlog_format"], "NDJSON");
    assert_eq!(Format::JsonSeq.frame("{}"), "\u{1e}{}\n");
}
