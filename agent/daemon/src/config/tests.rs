use super::*;

const ALGORITHMS: [&str; 2] = ["cubic", "reno"];

fn parse(text: &str) -> Result<Config, DocumentError> {
    Config::parse(Path::new("agent.toml"), text, Some(&ALGORITHMS))
}

#[test]
fn the_printed_defaults_are_the_defaults() {
    assert_eq!(parse(DEFAULT_TOML).unwrap(), Config::default());
    assert_eq!(parse("").unwrap(), Config::default());
}

/// Walks every key that the code knows and looks for it, below its comment, in the printed text.
#[test]
fn every_key_is_printed_with_its_documentation() {
    let mut config = Config::default();
    config.control.socket = Some("/run/ccplane/control.sock".into());
    config.agent.cores_file = Some("/var/lib/ccplane/host.cores".into());
    config.datapath.unix.socket = Some("/run/ccplane/ccp.sock".into());
    config.datapath.unix.wake = Some(Mode::Sleep);
    config.datapath.unix.spin_us = Some(Bounded::new(50));
    config.datapath.unix.wake_cpu_percent = Some(Bounded::new(10));
    config.datapath.packets.cgroup = Some("/".into());
    config.datapath.packets.dscp = Some([0; 8]);
    config.portus.own = Some("/run/ccplane".into());
    config.metrics.listen = Some("127.0.0.1:9090".parse().unwrap());
    let tree = toml::Table::try_from(&config).unwrap();
    let mut keys = Vec::new();
    walk("", &tree, &mut keys);
    assert!(keys.len() > 12, "{keys:?}");
    for (section, key) in keys {
        let header = format!("[{section}]\n");
        let from = if section.is_empty() { 0 } else { DEFAULT_TOML.find(&header).unwrap() + header.len() };
        let rest = &DEFAULT_TOML[from..];
        let body = &rest[..rest.find("\n[").unwrap_or(rest.len())];
        let lines: Vec<&str> = body.lines().collect();
        let at = lines
            .iter()
            .position(|l| l.trim_start_matches("# ").starts_with(&format!("{key} = ")))
            .unwrap_or_else(|| panic!("{section}.{key} is not printed"));
        assert!(at > 0 && lines[at - 1].starts_with("# "), "{section}.{key} has no comment");
    }
}

fn walk(section: &str, table: &toml::Table, keys: &mut Vec<(String, String)>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(inner) => {
                let inner_section = if section.is_empty() { key.clone() } else { format!("{section}.{key}") };
                walk(&inner_section, inner, keys);
            }
            _ => keys.push((section.to_owned(), key.clone())),
        }
    }
}

#[test]
fn the_printed_example_rule_parses() {
    let start = DEFAULT_TOML.find("# [[rule]]").unwrap();
    let example: String =
        DEFAULT_TOML[start..].lines().map(|l| format!("{}\n", l.trim_start_matches("# "))).collect();
    let rule = &parse(&example).unwrap().rules[0];
    assert_eq!(rule.remote.unwrap().get().to_string(), "10.0.0.0/8");
    assert_eq!(rule.local_port.as_ref().unwrap().range(), 5201..=5210);
    assert_eq!(rule.remote_port.as_ref().unwrap().range(), 443..=443);
    assert_eq!(rule.parameters["report_us"], 10_000);
}

/// (text, line, column, field, part of the message)
const REFUSED: [(&str, usize, usize, &str, &str); 38] = [
    ("[datapath.packets]\nmode = \"on\"", 1, 1, "datapath.packets.devices", "at least one device"),
    (
        "[datapath.packets]\nalgorithm = \"pia\"",
        2,
        13,
        "datapath.packets.algorithm",
        "no algorithm is called `pia`",
    ),
    (
        "[datapath.packets]\nmarks = [1, 0, 0, 0, 0, 0, 0, 0]",
        2,
        9,
        "datapath.packets.marks",
        "beyond mark_mask = 0",
    ),
    ("[datapath.packets]\ndscp = [64, 0, 0, 0, 0, 0, 0, 0]", 2, 8, "datapath.packets.dscp", "no code point"),
    ("[datapath.packets]\ncgroup = \"/../x\"", 2, 10, "datapath.packets.cgroup", "not a path below"),
    (
        "default_algorithm = \"portus\"\n[datapath.unix]\nsocket = \"/tmp/ccp/portus\"",
        3,
        10,
        "datapath.unix.socket",
        "its own flows for ever",
    ),
    ("[learn]\npin = true", 2, 7, "learn.pin", "cannot try what is learned"),
    ("x y", 1, 3, "", "expected"),
    ("colour = 1", 1, 1, "colour", "unknown field"),
    ("\n[control]\nmax_client = 1", 3, 1, "control.max_client", "expected one of `socket`, `max_clients`"),
    ("[control]\nmax_clients = 0", 2, 15, "control.max_clients", "1 to 1024"),
    ("[control]\nmax_clients = -1", 2, 15, "control.max_clients", "-1 is out of range: 1 to 1024"),
    ("[control]\nmax_clients = \"many\"", 2, 15, "control.max_clients", "invalid type: string"),
    ("[agent]\nwake = \"often\"", 2, 8, "agent.wake", "`sleep`, `spin`, `busy`"),
    (
        "[agent]\ncores = [1023]",
        2,
        9,
        "agent.cores",
        "core 1023 is none of those that this process may run on",
    ),
    ("[agent]\ncores = [0, 0]", 2, 9, "agent.cores", "core 0 is named twice"),
    ("[datapath.ebpf]\nmode = true", 2, 8, "datapath.ebpf.mode", ""),
    ("default_algorithm = \"renoo\"", 1, 21, "default_algorithm", "there are: native, cubic, reno"),
    ("log = \"a=b=c=d\"", 1, 7, "log", "not a log filter"),
    ("[[rule]]\nalgorithm = \"reno\"\nlocal_port = 70000", 3, 14, "rule[0].local_port", "a range such as"),
    ("[[rule]]\nalgorithm = \"reno\"\ncgroup = \"/../etc\"", 3, 10, "rule[0].cgroup", "not a path below"),
    ("[[rule]]\nalgorithm = \"reno\"\ncgroup = \"/ccp-none\"", 3, 10, "rule[0].cgroup", "No such file"),
    ("[datapath]\nebpf.mode = \"off\"\nunix.mode = \"off\"", 1, 1, "datapath", "at least one"),
    ("[[rule]]\nalgorithm = \"reno\"", 1, 1, "rule[0]", "needs a condition"),
    ("[[rule]]\nlocal_port = 1", 1, 1, "rule[0]", "missing field `algorithm`"),
    ("[learn]\nbatch_ms = 50", 2, 12, "learn.batch_ms", "100 to 1000"),
    ("[learn]\nkeys = [\"ab\"]", 2, 8, "learn.keys[0]", "64"),
    ("[learn]\nrequire_signed = true", 1, 1, "learn.keys", "at least one key"),
    (
        "[[rule]]\nalgorithm = \"reno\"\nlocal_port = 1\n[[rule]]\nremote_port = 2\nalgorithm = \"bbr9\"",
        6,
        13,
        "rule[1].algorithm",
        "no algorithm is called `bbr9`",
    ),
    (
        "[[rule]]\nalgorithm = \"reno\"\nremote = \"10.0.0.1/8\"",
        3,
        10,
        "rule[0].remote",
        "the network is 10.0.0.0/8",
    ),
    (
        "[[rule]]\nalgorithm = \"reno\"\nremote = \"10.0.0.0/33\"",
        3,
        10,
        "rule[0].remote",
        "is not address/length",
    ),
    ("[[rule]]\nalgorithm = \"reno\"\nremote_port = 0", 3, 15, "rule[0].remote_port", "a port, 1 to 65535"),
    (
        "[[rule]]\nalgorithm = \"reno\"\nremote_port = \"9-8\"",
        3,
        15,
        "rule[0].remote_port",
        "a range such as",
    ),
    ("[metrics]\nlisten = \"127.0.0.1\"", 2, 10, "metrics.listen", "invalid socket address"),
    ("[metrics]\nlisten = \"[::1]:65536\"", 2, 10, "metrics.listen", "invalid socket address"),
    ("[metrics]\nlisten = \"0.0.0.0:9090\"", 2, 10, "metrics.listen", "not a loopback address"),
    ("[datapath.ebpf]\nname = \"my cc\"", 2, 8, "datapath.ebpf.name", "1 to 15 letters"),
    ("[datapath.ebpf]\nhandback = \"\"", 2, 12, "datapath.ebpf.handback", "1 to 15 letters"),
];

#[test]
fn refusals_say_where_and_what_would_be_right() {
    for (text, line, column, field, message) in REFUSED {
        match parse(text) {
            Err(DocumentError::Invalid { line: l, column: c, problem, .. }) => {
                assert_eq!((l, c, problem.field.as_str()), (line, column, field), "{text:?}: {problem}");
                assert!(problem.message.contains(message), "{text:?}: {problem}");
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[test]
fn more_rules_or_arms_than_there_may_be_are_refused() {
    let rules = |count| "[[rule]]\nalgorithm = \"reno\"\nremote_port = 1\n".repeat(count);
    let arms = |count| format!("[portfolio]\narms = [{}]\n", "\"reno\", ".repeat(count));
    for (allowed, refused, field, said) in [
        (rules(MAX_RULES), rules(MAX_RULES + 1), "rule", "1025 rules, at most 1024 are allowed"),
        (arms(MAX_ARMS), arms(MAX_ARMS + 1), "portfolio.arms", "17 arms, 1 to 16 are allowed"),
    ] {
        assert!(parse(&allowed).is_ok(), "{field}: {:?}", parse(&allowed));
        let Err(DocumentError::Invalid { problem, .. }) = parse(&refused) else { panic!("{field}") };
        assert_eq!((problem.field.as_str(), problem.message.as_str()), (field, said));
    }
}

#[test]
fn a_refusal_reads_like_a_compilers() {
    let error = parse("[agent]\nspin_us = 0").unwrap_err().to_string();
    assert_eq!(
        error,
        "agent.toml:2:11: agent.spin_us: 0 is out of range: 1 to 1000000 are allowed\n   |\n 2 | spin_us = 0\n   |           ^"
    );
}

#[test]
fn the_agent_waits_in_any_way() {
    for mode in [Mode::Sleep, Mode::Spin, Mode::Busy, Mode::Dispatch, Mode::Auto] {
        let text = format!("[agent]\nwake = \"{0}\"\n[datapath.unix]\nwake = \"{0}\"", mode.name());
        let config = parse(&text).unwrap();
        assert_eq!((config.agent.wake, config.datapath.unix.wake), (mode, Some(mode)));
    }
    assert!(parse("[agent]\nwake_cpu_percent = 101").is_err());
}

/// Commands that only ask the agent read its configuration, too, and may be kept to other cores.
#[test]
fn cores_concern_the_agent_alone() {
    let first = affinity::cores().unwrap()[0];
    let text = format!("[agent]\ncores = [{first}]");
    assert_eq!(parse(&text).unwrap().agent.cores.get(), [first]);
    let elsewhere = "[agent]\ncores = [1023]";
    assert!(Config::parse(Path::new("agent.toml"), elsewhere, None).is_ok());
}

#[test]
fn cores_come_from_a_file_where_it_exists() {
    let (folder, first) = (tempfile::tempdir().unwrap(), affinity::cores().unwrap()[0]);
    let file = folder.path().join("host.cores");
    let text = format!("[agent]\ncores = [{first}]\ncores_file = {file:?}");
    assert_eq!(parse(&text).unwrap().agent.cores.get(), [first], "there is no file");
    std::fs::write(&file, "[]\n").unwrap();
    assert!(parse(&text).unwrap().agent.cores.get().is_empty());
    let others = Config::parse(Path::new("agent.toml"), &text, None).unwrap();
    assert_eq!(others.agent.cores.get(), [first], "who only asks the agent does not read it");
    for (content, why) in [
        ("[0, 0]", "core 0 is named twice"),
        ("0-3", "expected a sequence"),
        ("[1023]", "core 1023 is none of those that this process may run on"),
        ("\u{0}", "expected value"),
    ] {
        std::fs::write(&file, content).unwrap();
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains("agent.toml:3:14: agent.cores_file: ") && error.contains(why), "{error}");
    }
    std::fs::write(&file, vec![b' '; 10_000]).unwrap();
    assert!(parse(&text).unwrap_err().to_string().contains("a list of cores"));
}

#[test]
fn what_is_asked_to_learn_learns() {
    let learn = |text: &str| parse(&format!("[learn]\n{text}")).unwrap().learn.on();
    let on = learn("mode = \"off\"\npin = true\nbatch_ms = 500");
    assert_eq!((on.mode, on.pin, on.batch_ms.get()), (LearnMode::Twin, false, 500));
    assert_eq!(learn("mode = \"live\"").mode, LearnMode::Live);
}

#[test]
fn a_file_of_another_version_is_refused_before_its_keys() {
    let newer = parse("no_such_key = 1\nversion = 2\n").unwrap_err().to_string();
    assert!(
        newer.contains("agent.toml:2:11: version: the file is of version 2, this program reads version 1"),
        "{newer}"
    );
    assert!(parse("version = 0").is_err());
    assert!(parse("version = \"1\"").unwrap_err().to_string().contains("version"));
    assert_eq!(parse("version = 1").unwrap(), Config::default());
}
