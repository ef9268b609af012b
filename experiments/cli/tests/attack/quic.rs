//! `ccplane quic` under attack: by clients that strangers wrote, by servers that lie, by a full disk, by being killed.

use crate::common::serve::{Serve, content, endless, unfinished, wait_for_some};
use crate::common::{Home, as_nobody, stderr, taken, wait_for};
use ccplane_emulator::netns;
use ccplane_quic::files::{PROTOCOL, Transfer};
use ccplane_quic::quinn_proto::ClientConfig;
use ccplane_quic::quinn_proto::congestion::NewRenoConfig;
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{Config, Control, Dir, Endpoint, Event, StreamEvent, Tune, UdpWire, Wire};
use ccplane_testing::{attack_scale, skipped};
use nix::unistd::{Uid, User};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65_534;

fn control() -> Control {
    Control::Quinn(Arc::new(NewRenoConfig::default()))
}

fn loopback() -> UdpWire {
    UdpWire::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

/// The endpoint of many clients with large receive windows.
fn crowd() -> Endpoint<UdpWire> {
    let tune: Tune = Arc::new(|transport| {
        transport.receive_window((64_u32 << 20).into());
    });
    let config = Config { memory_bytes: 4 << 30, tune: Some(tune), ..Config::default() };
    Endpoint::new(loopback(), control(), config)
}

fn trust(serve: &Serve) -> ClientConfig {
    tls::client(Trust::Pinned(serve.fingerprint.parse().unwrap()), PROTOCOL).unwrap()
}

/// Resident memory of a process, bytes.
fn rss(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// A server that takes files from clients with its token, and the file of that token.
fn writable(home: &Home, more: &[&str]) -> (Serve, String) {
    let token = home.path("token").to_str().unwrap().to_owned();
    let flags = ["--algorithm", "reno", "--writable", "--token", &token];
    (Serve::start(home, &[&flags, more].concat()), token)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn only_writers_put_and_each_hears_why_not() {
    let home = Home::new("");
    let sent = content(&home.path("file"), 100_000);
    let file = home.path("file");
    let file = file.to_str().unwrap();
    let (serve, token) = writable(&home, &["--max-file", "150k", "--quota", "250k", "--quota-files", "3"]);
    let refused = |more: &[&str], words: &str| {
        let output = serve.client(&home, "put", &[&[file], more].concat());
        assert_eq!(output.status.code(), Some(1), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{more:?}: {}", stderr(&output));
    };
    refused(&[], "only writers that the server knows may put: give its token with --token");
    let wrong = home.path("wrong");
    fs::write(&wrong, "x".repeat(64)).unwrap();
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o600)).unwrap();
    refused(&["--token", wrong.to_str().unwrap()], "the token is not the server's");
    for name in [".hidden", "../out", "in/../../out", ".ccplane-partial-0/content", "/abs", "a\u{1b}[2Jb"] {
        refused(&["--as", name, "--token", &token], "not a name of a file in the folder");
    }
    let put = |name: &str| serve.client(&home, "put", &[file, "--as", name, "--token", &token]);
    assert!(put("one").status.success());
    assert!(put("one").status.success(), "in its own place");
    assert!(put("two").status.success());
    refused(
        &["--as", "three", "--token", &token],
        "the folder has room for 1 more files and 50000 more bytes",
    );
    content(&home.path("file"), 150_001);
    refused(&["--as", "large", "--token", &token], "the server takes files of at most 150000");
    assert_eq!(names(&home.path("served")), ["one", "two"]);
    assert!(fs::read(home.path("served/two")).unwrap() == sent);

    // A token that others may know authorises nobody.
    fs::set_permissions(&token, fs::Permissions::from_mode(0o640)).unwrap();
    let served = home.path("served");
    let served = served.to_str().unwrap();
    for (mode, words) in [(0o640, "its mode is 0640"), (0o602, "its mode is 0602")] {
        fs::set_permissions(&token, fs::Permissions::from_mode(mode)).unwrap();
        let output = home.run(&["quic", "serve", served, "--writable", "--token", &token]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    let output = home.run(&["quic", "serve", served, "--writable"]);
    assert_eq!(output.status.code(), Some(2), "whom to let write must be said: {}", stderr(&output));
}

#[test]
fn a_certificate_that_is_known_may_put() {
    let home = Home::new("");
    content(&home.path("file"), 1000);
    let key = |name: &str| {
        let [cert, key] =
            ["cert", "key"].map(|kind| home.path(&format!("{name}.{kind}")).to_str().unwrap().to_owned());
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-subj",
                "/CN=w",
            ])
            .args(["-keyout", &key, "-out", &cert])
            .output();
        made.ok().filter(|made| made.status.success()).map(|_| (cert, key))
    };
    let (Some((cert, own_key)), Some((other, other_key))) = (key("known"), key("unknown")) else {
        return skipped("a client's certificate", "no openssl to make one with");
    };
    let fingerprint = Identity::load(cert.as_ref(), own_key.as_ref()).unwrap().fingerprint().to_string();
    let serve = Serve::start(&home, &["--algorithm", "reno", "--writable", "--writer", &fingerprint]);
    let file = home.path("file");
    let put = |cert: &str, key: &str| {
        serve.client(&home, "put", &[file.to_str().unwrap(), "--cert", cert, "--key", key])
    };
    let output = put(&other, &other_key);
    assert!(stderr(&output).contains("only writers that the server knows"), "{}", stderr(&output));
    let output = put(&cert, &own_key);
    assert!(output.status.success(), "{}", stderr(&output));
    let got = serve.client(&home, "get", &["file", "-o", "-"]);
    assert!(got.status.success(), "who fetches needs none: {}", stderr(&got));
}

/// An attacker who takes the server over has a process that can serve and nothing else.
#[test]
fn a_server_that_is_taken_over_can_do_little() {
    let home = Home::new("default_algorithm = \"reno\"\n");
    let sent = content(&home.path("served/file"), 1_000_000);
    let agent = home.agent();
    let gets = |serve: &Serve, when: &str| {
        let got = serve.client(&home, "get", &["file", "-o", "-", "--algorithm", "reno"]);
        assert!(got.status.success() && got.stdout == sent, "{when}: {}", stderr(&got));
    };
    // With an agent of its own, and learners; with the machine's.
    for flags in [&["--algorithm", "aurora", "--learn"][..], &[]] {
        let serve = Serve::start(&home, flags);
        gets(&serve, "before");
        let pid = serve.child.id();
        taken::assert_confined(pid, 0);
        #[cfg(target_arch = "x86_64")]
        taken::assert_can_do_little(pid);
        #[cfg(not(target_arch = "x86_64"))]
        skipped("system calls of a server that is taken over", "they are made on x86-64 only");
        gets(&serve, "afterwards");
    }
    drop(agent);
}

/// The user that is asked for has the last word on what is read and written.
#[test]
fn a_server_serves_as_the_user_that_it_is_told_to_be() {
    let nobody = User::from_uid(Uid::from_raw(NOBODY)).unwrap();
    let Some(nobody) = nobody.filter(|_| Uid::effective().is_root()) else {
        return skipped("serving as another user", "needs root, and a user with the number 65534");
    };
    let home = Home::new("");
    fs::set_permissions(home.dir(), fs::Permissions::from_mode(0o711)).unwrap();
    let sent = content(&home.path("served/file"), 10_000);
    content(&home.path("served/secret"), 10);
    fs::set_permissions(home.path("served/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(home.path("served/in")).unwrap();
    chown(home.path("served/in"), Some(NOBODY), None).unwrap();
    for name in [nobody.name.as_str(), "65534"] {
        let (mut serve, token) = writable(&home, &["--user", name]);
        taken::assert_confined(serve.child.id(), 0);
        for thread in taken::threads(serve.child.id()) {
            assert_eq!(taken::field(&thread, "Uid"), ["65534"; 4].join("\t"));
            assert_eq!(taken::field(&thread, "Gid"), [nobody.gid.to_string().as_str(); 4].join("\t"));
        }
        #[cfg(target_arch = "x86_64")]
        {
            taken::assert_can_do_little(serve.child.id());
            taken::assert_refusals_are_logged(serve.child.id(), NOBODY);
        }
        let got = serve.client(&home, "get", &["file", "-o", "-"]);
        assert!(got.status.success() && got.stdout == sent, "{}", stderr(&got));
        let got = serve.client(&home, "get", &["secret", "-o", "-"]);
        assert!(stderr(&got).contains("the server cannot: Permission denied"), "{}", stderr(&got));
        let put = |to: &str| {
            let file = home.path("served/file");
            serve.client(&home, "put", &[file.to_str().unwrap(), "--as", to, "--token", &token])
        };
        assert!(stderr(&put("new")).contains("the server cannot: Permission denied"));
        assert!(put("in/new").status.success());
        assert_eq!(fs::metadata(home.path("served/in/new")).unwrap().uid(), NOBODY);
        assert_eq!(serve.interrupt(), Some(0));
    }
    let served = home.path("served");
    let as_user = |user: &str| {
        let arguments =
            ["quic", "serve", served.to_str().unwrap(), "--listen", "127.0.0.1:0", "--user", user];
        home.command(&arguments)
    };
    let unknown = as_user("no-such-user").output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("no user `no-such-user`"), "{}", stderr(&unknown));
    // A user who is not root cannot.
    let other = as_nobody(|| as_user("root").output().unwrap());
    assert_eq!(other.status.code(), Some(2));
    assert!(stderr(&other).contains("cannot become user root, which only root can"), "{}", stderr(&other));
}

/// Words of the line that says that a server stays root.
const STAYS_ROOT: &str = "the server stays root";

/// Two users to become: one who may own a folder, and `nobody`.
fn owner_and_nobody() -> Option<[User; 2]> {
    let owner = User::from_uid(Uid::from_raw(1)).unwrap()?;
    let nobody = User::from_name("nobody").unwrap()?;
    Uid::effective().is_root().then_some([owner, nobody])
}

/// A home that others may pass through, with a folder and a file that they may read.
fn open_home() -> Home {
    let home = Home::new("");
    content(&home.path("served/file"), 10_000);
    for (path, mode) in [("", 0o711), ("served", 0o755), ("served/file", 0o644)] {
        fs::set_permissions(home.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    home
}

/// The user of a server's threads, which is the same for all.
fn user_of(serve: &Serve) -> u32 {
    let threads = taken::threads(serve.child.id());
    let mut users: Vec<_> = threads.iter().map(|thread| taken::field(thread, "Uid")).collect();
    users.dedup();
    let [one] = &users[..] else { panic!("{users:?}") };
    let uid = one.split_whitespace().next().unwrap();
    assert_eq!(*one, [uid; 4].join("\t"));
    uid.parse().unwrap()
}

/// Ends a server; returns what it said on standard error.
fn last_words(mut serve: Serve) -> String {
    let mut pipe = serve.child.stderr.take().unwrap();
    assert_eq!(serve.interrupt(), Some(0));
    let mut said = String::new();
    pipe.read_to_string(&mut said).unwrap();
    said
}

/// Asserts that it says once that it stays root, and why.
#[track_caller]
fn stays_root(serve: Serve, why: &str) {
    assert_eq!(user_of(&serve), 0, "{why}");
    taken::assert_confined(serve.child.id(), 0);
    let said = last_words(serve);
    assert!(said.lines().count() == 1 && said.contains(STAYS_ROOT) && said.contains(why), "{why}: {said}");
}

#[test]
fn a_server_that_root_starts_takes_a_user_with_fewer_rights() {
    let Some([owner, nobody]) = owner_and_nobody() else {
        return skipped(
            "the user that a server of root's takes",
            "needs root, `nobody` and a user with the number 1",
        );
    };
    let home = open_home();
    let start = |more: &[&str]| Serve::start(&home, &[&["--algorithm", "reno"], more].concat());
    let own = |path: &str, uid: u32| chown(home.path(path), Some(uid), None).unwrap();
    let became = |user: &User, more: &[&str]| {
        let serve = start(more);
        assert_eq!(user_of(&serve), user.uid.as_raw(), "{more:?}");
        taken::assert_confined(serve.child.id(), 0);
        let got = serve.client(&home, "get", &["file", "-o", "-"]);
        assert!(got.status.success() && got.stdout.len() == 10_000, "{more:?}: {}", stderr(&got));
        let said = last_words(serve);
        assert!(said.is_empty(), "{more:?}: {said}");
    };
    // Root's folder, which all may read.
    became(&nobody, &[]);
    became(&User::from_uid(Uid::from_raw(0)).unwrap().unwrap(), &["--user", "root"]);
    let token = home.path("token").to_str().unwrap().to_owned();
    let writes = ["--writable", "--token", &token];
    stays_root(start(&writes), "clients may write to");
    // A file that only root may read.
    content(&home.path("served/secret"), 10);
    fs::set_permissions(home.path("served/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    stays_root(start(&[]), "cannot read all of");
    // Another's folder, with a key that only root may read: it is read before.
    own("served", owner.uid.as_raw());
    became(&owner, &[]);
    became(&owner, &writes);
    let serve = start(&writes);
    let file = home.path("served/file");
    let put = serve.client(&home, "put", &[file.to_str().unwrap(), "--as", "new", "--token", &token]);
    assert!(put.status.success(), "{}", stderr(&put));
    assert_eq!(fs::metadata(home.path("served/new")).unwrap().uid(), owner.uid.as_raw());
    drop(serve);
    // A place that the owner may not write to, and one that is not reached.
    let trace = home.path("trace.qlog");
    stays_root(start(&["--qlog", trace.to_str().unwrap()]), "trace.qlog does not belong to user");
    fs::set_permissions(home.dir(), fs::Permissions::from_mode(0o700)).unwrap();
    stays_root(start(&[]), "cannot read all of");
}

/// Its loop opens the kernel's file for that once it runs.
#[test]
fn a_server_whose_own_agent_is_to_keep_cores_awake_stays_root() {
    if owner_and_nobody().is_none() {
        return skipped(
            "the user of a server that keeps cores awake",
            "needs root, `nobody` and a user with the number 1",
        );
    }
    let home = open_home();
    home.configure("datapath.ebpf.mode = \"off\"\nagent.keep_cores_awake = true\n");
    stays_root(Serve::start(&home, &["--algorithm", "reno"]), "[agent] keep_cores_awake");
}

/// Root finds it by a link in a folder of root's alone.
#[test]
fn a_server_serves_a_folder_whose_path_its_user_cannot_take() {
    let Some([owner, _]) = owner_and_nobody() else {
        return skipped("a folder behind a link", "needs root, `nobody` and a user with the number 1");
    };
    let home = open_home();
    fs::rename(home.path("served"), home.path("open")).unwrap();
    chown(home.path("open"), Some(owner.uid.as_raw()), None).unwrap();
    fs::create_dir(home.path("closed")).unwrap();
    fs::set_permissions(home.path("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("../open", home.path("closed/link")).unwrap();
    symlink("closed/link", home.path("served")).unwrap();
    let serve = Serve::start(&home, &["--algorithm", "reno"]);
    assert_eq!(user_of(&serve), owner.uid.as_raw());
    let got = serve.client(&home, "get", &["file", "-o", "-"]);
    assert!(got.status.success() && got.stdout.len() == 10_000, "{}", stderr(&got));
}

/// An agent of root's hears no other user's datapath.
#[test]
fn a_server_that_the_machines_agent_steers_keeps_the_agents_user() {
    let Some([owner, _]) = owner_and_nobody() else {
        return skipped(
            "the user of a server that an agent steers",
            "needs root, `nobody` and a user with the number 1",
        );
    };
    for flags in [&[] as &[&str], &["--agent"]] {
        let home = Home::new("default_algorithm = \"reno\"\n");
        fs::create_dir(home.path("served")).unwrap();
        chown(home.path("served"), Some(owner.uid.as_raw()), None).unwrap();
        let _agent = home.agent();
        // The agent runs in it already; the next one would not trust it.
        fs::set_permissions(home.dir(), fs::Permissions::from_mode(0o711)).unwrap();
        let serve = Serve::start(&home, flags);
        wait_for("the agent has the datapath", || {
            home.json(&["status"])["datapaths"].to_string().contains("quic").then_some(())
        });
        stays_root(serve, "does not belong to user");
    }
}

/// In a network namespace of its own, where nobody else has the default port.
#[test]
fn by_default_only_this_machine_reaches_it() {
    if !netns::available() {
        return skipped("the default address of a QUIC server", "needs root, for a network of its own");
    }
    let home = Home::new("");
    fs::create_dir(home.path("served")).unwrap();
    let alone = netns::Namespace::anonymous().unwrap();
    let mut command = home.command(&["quic", "serve", "--json"]);
    command.arg(home.path("served")).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = alone.enter(&mut command).unwrap().spawn().unwrap();
    let mut first = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let sockets = ["udp", "udp6"].map(|table| {
        let table = fs::read_to_string(format!("/proc/{}/net/{table}", server.id())).unwrap();
        let local = |line: &str| line.split_whitespace().nth(1).unwrap().to_owned();
        table.lines().skip(1).map(local).collect::<Vec<_>>()
    });
    server.kill().unwrap();
    server.wait().unwrap();
    let said: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(said["address"], "127.0.0.1:4433");
    // As the kernel prints it: the address in the machine's order of bytes, then the port.
    let loopback = format!("{:08X}:{:04X}", u32::from_ne_bytes([127, 0, 0, 1]), 4433);
    assert_eq!(sockets, [vec![loopback], Vec::new()]);
}

#[test]
fn unfinished_files_cannot_be_named_and_do_not_survive() {
    let home = Home::new("");
    endless(&home.path("endless"));
    let (mut serve, token) = writable(&home, &["--max-file", "2T", "--quota", "3T"]);
    let served = home.path("served");
    let client = |home: &Home, serve: &Serve| {
        let trust = ["--fingerprint", &serve.fingerprint, "--token", &token, "--as", "file"];
        let endless = home.path("endless");
        let arguments = [&["quic", "put", &serve.address, endless.to_str().unwrap()], &trust[..]].concat();
        let mut command = home.command(&arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut sending = client(&home, &serve);
    wait_for_some(&serve.child, &served);
    assert_eq!(names(&served), [""; 0], "nothing to guess, and nothing to serve");
    // Killed in the midst of it.
    serve.child.kill().unwrap();
    serve.child.wait().unwrap();
    assert_eq!(names(&served), [""; 0], "nothing is left");
    let _ = sending.kill();
    let _ = sending.wait();
    drop(serve);

    // What is left where files cannot be without a name is removed by the next server, but not what another one writes.
    let stage = |name: &str| {
        let stage = served.join("in").join(format!(".ccplane-partial-{name}"));
        fs::create_dir_all(&stage).unwrap();
        fs::write(stage.join("content"), "half").unwrap();
        stage
    };
    let (dead, live) = (stage("0"), stage("1"));
    let lock = fs::File::open(&live).unwrap();
    lock.lock().unwrap();
    let (mut serve, _) = writable(&home, &[]);
    assert!(!dead.exists() && live.join("content").exists());
    for name in ["in/.ccplane-partial-1/content", ".ccplane-partial-1", "in/.ccplane-partial-1"] {
        let got = serve.client(&home, "get", &[name, "-o", "-"]);
        assert!(stderr(&got).contains("hidden"), "{name}: {}", stderr(&got));
    }
    assert_eq!(serve.interrupt(), Some(0));
}

#[test]
fn a_client_that_is_killed_leaves_nothing() {
    let home = Home::new("");
    endless(&home.path("served/endless"));
    fs::create_dir(home.path("fetched")).unwrap();
    let serve = Serve::start(&home, &["--algorithm", "reno"]);
    let output = home.path("fetched/new");
    let trust = ["--fingerprint", &serve.fingerprint, "-o", output.to_str().unwrap()];
    let arguments = [&["quic", "get", &serve.address, "endless"], &trust[..]].concat();
    let mut client = home.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_some(&client, &home.path("fetched"));
    assert_eq!(names(&home.path("fetched")), [""; 0]);
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(names(&home.path("fetched")), [""; 0]);
    assert!(unfinished(&serve.child, &home.path("fetched")).is_empty());
}

#[test]
fn symbolic_links_in_the_served_folder_are_not_followed() {
    let home = Home::new("");
    content(&home.path("secret"), 100);
    let (serve, token) = writable(&home, &[]);
    symlink(home.path("secret"), home.path("served/file")).unwrap();
    symlink(home.dir(), home.path("served/folder")).unwrap();
    for name in ["file", "folder/secret"] {
        let got = serve.client(&home, "get", &[name, "-o", "-"]);
        assert!(!got.status.success() && stderr(&got).contains("not a name of a file"), "{}", stderr(&got));
    }
    content(&home.path("mine"), 50);
    let mine = home.path("mine");
    let put =
        |name: &str| serve.client(&home, "put", &[mine.to_str().unwrap(), "--as", name, "--token", &token]);
    assert!(!put("folder/new").status.success());
    assert!(put("file").status.success(), "the link is replaced");
    assert_eq!(fs::read(home.path("secret")).unwrap().len(), 100);
    assert!(!home.path("new").exists());
}

#[test]
fn a_full_disk_is_said() {
    let home = Home::new("");
    content(&home.path("file"), 3_000_000);
    let token = home.path("token");
    let token = token.to_str().unwrap();
    let put = |serve: &Serve| {
        let output = serve.client(&home, "put", &[home.path("file").to_str().unwrap(), "--token", token]);
        assert_eq!(output.status.code(), Some(1));
        stderr(&output)
    };
    let flags = ["--algorithm", "reno", "--writable", "--token", token];
    // The same words for a process that may not write so much.
    let mut limited = Serve::start_as(&home, &flags, |command| {
        shell(command, "ulimit -f 1024 && exec \"$0\" \"$@\"").stderr(Stdio::piped())
    });
    let said = put(&limited);
    assert!(said.contains("the server cannot: File too large"), "{said}");
    assert_eq!(limited.interrupt(), Some(0), "it goes on");
    drop(limited);
    if !netns::available() {
        return skipped("a full disk", "mounting needs root");
    }
    fs::create_dir_all(home.path("served")).unwrap();
    let mount = format!("mount -t tmpfs -o size=1m tmpfs {:?} && exec \"$0\" \"$@\"", home.path("served"));
    let mut full = Serve::start_as(&home, &flags, |command| {
        let script = format!("exec unshare --mount sh -c '{mount}' \"$0\" \"$@\"");
        shell(command, &script).stderr(Stdio::piped())
    });
    let said = put(&full);
    assert!(said.contains("the server cannot: No space left on device"), "{said}");
    content(&home.path("file"), 100_000);
    let small = serve_put(&full, &home, token);
    assert!(small.is_empty(), "what fits still comes: {small}");
    assert_eq!(full.interrupt(), Some(0));
}

fn serve_put(serve: &Serve, home: &Home, token: &str) -> String {
    stderr(&serve.client(home, "put", &[home.path("file").to_str().unwrap(), "--token", token]))
}

/// Makes a command run under a shell script, which gets it as its arguments.
fn shell<'c>(command: &'c mut Command, script: &str) -> &'c mut Command {
    let program = command.get_program().to_owned();
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let set: Vec<_> = command.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
    *command = Command::new("sh");
    command.arg("-c").arg(script).arg(program).args(arguments);
    for (key, value) in set {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command
}

/// Clears a screen, sets a title, in 7 and in 8 bits.
const ESCAPES: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}2J";

fn has_control_bytes(text: &[u8]) -> bool {
    String::from_utf8_lossy(text).chars().any(|c| c.is_control() && c != '\n')
}

#[test]
fn terminals_obey_no_stranger() {
    let home = Home::new("");
    content(&home.path("served/file"), 10);
    let name = format!("x{ESCAPES}");
    for json in [true, false] {
        let out = home.path("out");
        let folder = home.path("served");
        let mut flags =
            vec!["quic", "serve", folder.to_str().unwrap(), "--listen", "127.0.0.1:0", "--algorithm", "reno"];
        flags.extend(json.then_some("--json"));
        let mut command = home.command(&flags);
        let child = command.stdout(fs::File::create(&out).unwrap()).stderr(Stdio::null()).spawn().unwrap();
        let said = || fs::read_to_string(&out).unwrap();
        let address = wait_for("where it listens", || {
            let text = said();
            let from = text.find("127.0.0.1:")?;
            let end = text[from..].find(['"', ',', ' '])?;
            text.contains('\n').then(|| text[from..from + end].to_owned())
        });
        let got = home.run(&["quic", "get", &address, &name, "--insecure", "-o", "-"]);
        assert!(!got.status.success() && !has_control_bytes(&got.stderr), "{:?}", stderr(&got));
        wait_for("the request is said", || said().contains("owned").then_some(()));
        assert!(!has_control_bytes(&fs::read(&out).unwrap()), "{:?}", said());
        let mut child = child;
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // A server's words, in an answer and as it closes.
    for closes in [false, true] {
        let mut server = Endpoint::new(loopback(), control(), Config::default());
        server.serve(Some(tls::server(Identity::self_signed(&["localhost"]).unwrap(), PROTOCOL).unwrap()));
        let address = server.wire().local_addr().to_string();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Relaxed) {
                    server.turn(Duration::from_millis(10)).unwrap();
                    while let Some((id, event)) = server.poll() {
                        let Some(mut connection) = server.connection(id) else { continue };
                        if let Event::Stream(StreamEvent::Opened { .. }) = event {
                            let stream = connection.accept(Dir::Bi).unwrap();
                            if closes {
                                connection.close(7, ESCAPES);
                            } else {
                                connection.write(stream, format!("no {ESCAPES}\n").as_bytes()).unwrap();
                            }
                        }
                    }
                }
            });
            let got = home.run(&["quic", "get", &address, "file", "--insecure", "-o", "-"]);
            ended.store(true, Relaxed);
            assert!(stderr(&got).contains("owned") && !has_control_bytes(&got.stderr), "{:?}", stderr(&got));
        });
    }
}

/// Clients that ask for a file and then read nothing of it.
struct SlowReaders {
    endpoint: Endpoint<UdpWire>,
    transfers: Vec<Transfer>,
}

impl SlowReaders {
    fn start(serve: &Serve, count: usize) -> SlowReaders {
        let (mut endpoint, trust) = (crowd(), trust(serve));
        let to = serve.address.parse().unwrap();
        for _ in 0..count {
            endpoint.connect(trust.clone(), to, "localhost").unwrap();
        }
        let (mut transfers, began) = (Vec::new(), Instant::now());
        while transfers.len() < count {
            assert!(began.elapsed() < crate::common::PATIENCE, "{} of {count} connected", transfers.len());
            endpoint.turn(Duration::from_millis(10)).unwrap();
            while let Some((id, event)) = endpoint.poll() {
                match event {
                    Event::Connected => {
                        let mut connection = endpoint.connection(id).unwrap();
                        let mut get = Transfer::get(&mut connection, "large", std::io::sink()).unwrap();
                        get.advance(&mut connection).unwrap();
                        transfers.push(get);
                    }
                    Event::Closed(reason) => panic!("{reason}"),
                    Event::Stream(_) => {}
                }
            }
        }
        SlowReaders { endpoint, transfers }
    }

    /// Keeps the clients alive for a while without continuing their transfers.
    fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.endpoint.turn(Duration::from_millis(10)).unwrap();
            while self.endpoint.poll().is_some() {}
        }
    }
}

#[test]
fn slow_readers_do_not_take_the_memory() {
    const MIB: u64 = 1 << 20;
    /// Looks in a row without growth after which no more comes.
    const STEADY_SAMPLES: u32 = 100;
    let readers: usize = attack_scale(120, 1000);
    let memory = readers as u64 * MIB / 2;
    let home = Home::new("");
    fs::create_dir(home.path("served")).unwrap();
    fs::File::create(home.path("served/large")).unwrap().set_len(100_000_000).unwrap();
    let sent = content(&home.path("served/file"), 2_000_000);
    let flags = ["--algorithm", "reno", "--memory", &memory.to_string()];
    // As before: 120 of them under 1.5 GiB of address space ended the process.
    let serve = Serve::start_as(&home, &flags, |command| {
        shell(command, "ulimit -v 1572864 && exec \"$0\" \"$@\"").stderr(Stdio::piped())
    });
    let before = rss(&serve.child);
    // The memory of those who left serves the next ones, who would not fit beside it; what the allocator keeps is its own choice.
    for crowd in ["the first", "the next"] {
        let mut slow = SlowReaders::start(&serve, readers);
        // They acknowledge nothing from here on, so that nothing of it goes: it has all that it will hold when it holds no more.
        let (mut held, mut steady) = (0, 0);
        wait_for("the server holds what it may", || {
            let now = rss(&serve.child).saturating_sub(before);
            steady = if now > held { 0 } else { steady + 1 };
            held = held.max(now);
            assert!(held < memory, "{crowd}: {} MiB of {} MiB", held / MIB, memory / MIB);
            (steady >= STEADY_SAMPLES).then_some(())
        });
        // The server still drains connections of those who left, and may have as many from this network as it takes.
        let got = wait_for("a file beside them", || {
            let got = serve.client(&home, "get", &["file", "-o", "-"]);
            let said = stderr(&got);
            if said.contains("from your network as it takes") {
                eprintln!("{crowd}: told to come again");
                return None;
            }
            assert!(got.status.success(), "{crowd}: {said}");
            Some(got.stdout)
        });
        assert!(got == sent, "{crowd}");
        assert_eq!(slow.transfers.len(), readers);
        slow.endpoint.close(0, "done");
        // Each connection drains for three timeouts and is gone then.
        let began = Instant::now();
        while !slow.endpoint.is_empty() {
            assert!(
                began.elapsed() < crate::common::PATIENCE,
                "{} connections are left",
                slow.endpoint.len()
            );
            slow.pass(Duration::from_millis(10));
        }
        eprintln!("{crowd}: {held} held of {memory}");
    }
}

#[test]
fn who_does_not_fit_is_told_why() {
    let home = Home::new("");
    fs::create_dir(home.path("served")).unwrap();
    fs::File::create(home.path("served/large")).unwrap().set_len(100_000_000).unwrap();
    let serve = Serve::start(&home, &["--algorithm", "reno", "--memory", "1Mi"]);
    let mut slow = SlowReaders::start(&serve, 8);
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| serve.client(&home, "get", &["large", "-o", "-"]));
        while !refused.is_finished() {
            slow.pass(Duration::from_millis(20));
        }
        let output = refused.join().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let words = "the server has as many connections";
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    });
}

#[test]
fn lone_initials_keep_nobody_out() {
    /// Honest clients are served within this time while the initials arrive.
    const HONEST_WITHIN: Duration = Duration::from_secs(5);
    let initials: usize = attack_scale(2000, 20_000);
    let home = Home::new("");
    let sent = content(&home.path("served/file"), 100_000);
    let serve = Serve::start(&home, &["--algorithm", "reno"]);
    let (trust, to) = (trust(&serve), serve.address.parse().unwrap());
    let lone = |n: usize| {
        // From another port each: of one address that all have, and of another network each, for which loopback has 65,536.
        let ip = if n.is_multiple_of(2) {
            Ipv4Addr::LOCALHOST
        } else {
            [127, (n >> 9) as u8, (n >> 1) as u8, 9].into()
        };
        let wire = UdpWire::bind((ip, 0).into()).unwrap();
        let mut client = Endpoint::new(wire, control(), Config::default());
        client.connect(trust.clone(), to, "localhost").unwrap();
        client.turn(Duration::ZERO).unwrap();
    };
    (0..initials).for_each(lone);
    let mut more = initials;
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| {
            let began = Instant::now();
            (serve.client(&home, "get", &["file", "-o", "-"]), began.elapsed())
        });
        while !honest.is_finished() {
            lone(more);
            more += 1;
        }
        let (got, took) = honest.join().unwrap();
        assert!(got.status.success() && got.stdout == sent, "{}", stderr(&got));
        assert!(took < HONEST_WITHIN, "{took:?}");
    });
}
