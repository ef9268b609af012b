//! `ccplane top` in a terminal and `ccplane web` in a browser, beside a real agent with a QUIC flow.

use crate::common::serve::{Serve, endless};
use crate::common::{Agent, Home, PATIENCE, ccplane, failed, stderr, wait_for};
use ccplane_testing::{Ended, skipped};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The size of the terminal, in characters.
const ROWS: u16 = 40;
const COLUMNS: u16 = 150;

/// An agent that steers one QUIC flow, which goes on for ever.
struct Scene {
    home: Home,
    agent: Agent,
    _serve: Serve,
    _client: Ended,
}

impl Scene {
    fn new() -> Scene {
        let home = Home::new("default_algorithm = \"reno\"\n");
        endless(&home.path("served/file"));
        let agent = home.agent();
        let serve = Serve::start(&home, &["--agent"]);
        wait_for("the agent has the datapath", || {
            home.json(&["status"])["datapaths"].to_string().contains("quic").then_some(())
        });
        let trust = ["--fingerprint", &serve.fingerprint];
        let arguments = [&["quic", "get", &serve.address, "file", "-o", "-"], &trust[..]].concat();
        let mut client =
            home.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut output = client.stdout.take().unwrap();
        // A slow reader: the test is to have processor time, too.
        std::thread::spawn(move || {
            let mut chunk = vec![0; 64 << 10];
            while output.read(&mut chunk).is_ok_and(|count| count > 0) {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        wait_for("a flow that the agent steers", || {
            home.json(&["flows"]).to_string().contains("\"program\"").then_some(())
        });
        Scene { home, agent, _serve: serve, _client: Ended(client) }
    }

    /// Starts `ccplane web`; its address and token.
    fn web(&self) -> (Ended, String, String) {
        self.web_at(&self.home.path("control.sock"))
    }

    /// The same, of the agent at this socket.
    fn web_at(&self, socket: &Path) -> (Ended, String, String) {
        let mut command = self.home.command(&["web", "--listen", "127.0.0.1:0", "--every", "0.2"]);
        let mut child = Ended(command.env("CCPLANE_SOCKET", socket).stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (address, token) = line.trim().strip_prefix("http://").unwrap().split_once("/?token=").unwrap();
        (child, address.to_owned(), token.to_owned())
    }
}

/// Sends a GET with these headers and reads the answer.
fn get(address: &str, target: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_web_page_is_for_whoever_has_the_token() {
    let scene = Scene::new();
    let (mut web, address, token) = scene.web();
    let host = format!("Host: {address}\r\n");
    let bearer = format!("{host}Authorization: Bearer {token}\r\n");

    assert!(get(&address, "/", &host).starts_with("HTTP/1.1 401 "));
    assert!(
        get(&address, "/state", &format!("{host}Authorization: Bearer 00\r\n")).starts_with("HTTP/1.1 401 ")
    );
    let rebound = format!("Host: evil.example\r\nAuthorization: Bearer {token}\r\n");
    assert!(get(&address, "/", &rebound).starts_with("HTTP/1.1 421 "));
    assert!(get(&address, "/", "").starts_with("HTTP/1.1 4"), "a request of HTTP/1.1 names its host");

    let welcome = get(&address, &format!("/?token={token}"), &host);
    assert!(welcome.starts_with("HTTP/1.1 303 ") && welcome.contains("\r\nlocation: /\r\n"), "{welcome}");
    let cookie = welcome.split("set-cookie: ").nth(1).unwrap().split("\r\n").next().unwrap();
    assert!(cookie.ends_with("; HttpOnly; SameSite=Strict"), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    let page = get(&address, "/", &format!("{host}Cookie: {pair}\r\n"));
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("<title>ccplane</title>"), "{page}");
    assert!(page.contains("\r\ncontent-security-policy: default-src 'none'; script-src 'nonce-"), "{page}");

    let state: Value = wait_for("two samples", || {
        let answer = get(&address, "/state", &bearer);
        let state: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        state["flows"][0]["rate"].as_f64().is_some_and(|rate| rate > 0.0).then_some(state)
    });
    assert_eq!(state["status"]["pid"], scene.agent.pid());
    assert_eq!(
        (&state["flows"][0]["datapath"], &state["flows"][0]["algorithm"]),
        (&"quic".into(), &"reno".into())
    );

    scene.agent.signal(Signal::SIGSTOP);
    wait_for("the agent's silence is shown", || {
        get(&address, "/state", &bearer).contains("has not answered").then_some(())
    });
    scene.agent.signal(Signal::SIGCONT);

    kill(Pid::from_raw(web.0.id() as i32), Signal::SIGINT).unwrap();
    let status = wait_for("it ends", || web.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_web_page_is_served_to_this_machine_only() {
    let home = Home::new("");
    let refused = home.run(&["web", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("0.0.0.0:0 is not an address of this machine alone"),
        "{}",
        stderr(&refused)
    );
}

/// The browser of this machine; without one the check is skipped.
fn browser(check: &str) -> Option<&'static str> {
    const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
    let is_there =
        |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    let found = BROWSERS.into_iter().find(is_there);
    if found.is_none() {
        skipped(check, "needs chromium (Debian: chromium)");
    }
    found
}

/// Has a browser draw a page for a few samples, in the page's own time; returns what it prints where `output` asks for that.
fn browse(browser: &str, home: &Home, page: &str, output: &str) -> String {
    let mut command = Command::new(browser);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
    ]);
    command.args(["--virtual-time-budget=8000", "--window-size=1200,1400"]);
    command.arg(format!("--user-data-dir={}", home.path("browser").display()));
    let output = command.arg(output).arg(page).output().unwrap();
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("Content Security Policy") && !said.contains("Uncaught"), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

/// The page in a real browser: what it says comes from the agent, and its own policy blocks nothing of it.
#[test]
fn a_browser_draws_the_page() {
    let Some(browser) = browser("a browser draws `ccplane web`") else { return };
    let scene = Scene::new();
    let (_web, address, token) = scene.web();
    let picture = scene.home.path("page.png");
    let browse =
        |output: &str| browse(browser, &scene.home, &format!("http://{address}/?token={token}"), output);
    let page = browse("--dump-dom");
    assert!(page.contains(&format!("agent pid {}, up ", scene.agent.pid())), "{page}");
    for part in ["<td>quic</td>", "<td>reno</td>", "b/s</td>", "Smoothed RTT", "<polyline", "All flows: "] {
        assert!(page.contains(part), "no {part}: {page}");
    }
    browse(&format!("--screenshot={}", picture.display()));
    let png = fs::read(&picture).unwrap();
    assert!(png.starts_with(b"\x89PNG") && png.len() > 20_000, "{} bytes", png.len());
    if let Some(keep) = std::env::var_os("CCPLANE_KEEP_SCREENSHOT") {
        fs::copy(&picture, keep).unwrap();
    }
}

/// A socket of the agent that adds decisions to those that it tells: a trial takes minutes, and what a page shows of it need not.
fn with_decisions(home: &Home, more: Vec<Value>) -> PathBuf {
    let (agent, socket) = (home.path("control.sock"), home.path("more.sock"));
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for asker in listener.incoming().map_while(Result::ok) {
            // Who asked may have gone.
            let _ = pass_on(&asker, &agent, &more);
        }
    });
    socket
}

fn pass_on(mut asker: &UnixStream, agent: &Path, more: &[Value]) -> std::io::Result<()> {
    let mut request = String::new();
    BufReader::new(asker).read_line(&mut request)?;
    let mut asked = UnixStream::connect(agent)?;
    asked.write_all(request.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(asked).read_line(&mut answer)?;
    let mut answer: Value = serde_json::from_str(&answer)?;
    if let Some(decisions) = answer["decisions"].as_array_mut() {
        decisions.extend_from_slice(more);
    }
    asker.write_all(format!("{answer}\n").as_bytes())
}

/// A decision at the end of a trial, as the agent tells it.
fn trial(snapshot: &str, (verdict, text): (&str, &str), difference: f64, uncertainty: f64) -> Value {
    json!({
        "time_s": 1.0, "datapath": "quic", "algorithm": "aurora", "slot": 1, "snapshot": snapshot, "uid": 7,
        "origin": "learned", "verdict": verdict, "text": text,
        "evidence": {
            "converged": true, "stability": 0.25, "fidelity_min": 0.0, "fidelity_mean": 0.125, "safe": true,
            "quantisation_error": 0.001, "gain": null, "states": 2048,
        },
        "comparison": {
            "pairs": 4, "flows": 1, "controls": 0, "canary_mean": 1.0 + difference, "active_mean": 1.0,
            "difference": difference, "t": 5.5, "uncertainty": uncertainty, "margin": 0.0625, "finding": "open",
        },
    })
}

/// The page draws what a trial was decided on: the rewards, their difference with its interval, and the margin.
#[test]
fn a_browser_shows_the_evidence_of_trials() {
    let Some(browser) = browser("a browser shows the evidence of trials") else { return };
    let scene = Scene::new();
    let socket = with_decisions(
        &scene.home,
        vec![
            trial("0123456789abcdef", ("rolled-back", "rolled back: worse"), -0.75, 0.25),
            trial("fedcba9876543210", ("promoted", "promoted"), 0.5, 0.375),
        ],
    );
    let (_web, address, token) = scene.web_at(&socket);
    let page = browse(browser, &scene.home, &format!("http://{address}/?token={token}"), "--dump-dom");
    assert!(page.contains(&format!("agent pid {}, up ", scene.agent.pid())), "{page}");
    // The table after its heading, newest first.
    let table = page.split_once("id=\"decisions\"").unwrap().1;
    let (head, rows) = table.split_once("<tbody>").unwrap();
    let rows: Vec<&str> = rows.split_once("</tbody>").unwrap().0.split("<tr").skip(1).collect();
    assert!(head.contains("evidence") && rows.len() >= 2, "{table}");
    let promoted = [
        "fedcba987654<",
        "12.5 %",
        "1.000 \u{2192} 1.500",
        "0.500 \u{b1} 0.375",
        "difference 0.5, interval \u{b1}0.375, margin 0.0625",
        "class=\"interval\"",
        "class=\"mean\"",
        ">promoted<",
    ];
    let rolled_back = [
        "0123456789ab<",
        "1.000 \u{2192} 0.250",
        "-0.750 \u{b1} 0.250",
        "difference -0.75, interval \u{b1}0.25, margin 0.0625",
        ">rolled back: worse<",
    ];
    for (row, parts) in rows.iter().zip([&promoted[..], &rolled_back]) {
        for part in parts {
            assert!(row.contains(part), "no {part}: {row}");
        }
    }
}

/// A terminal of our own with `ccplane top` in it.
struct Terminal {
    child: Ended,
    keys: File,
    written: Receiver<Vec<u8>>,
    screen: vt100::Parser,
}

impl Terminal {
    fn start(home: &Home) -> Terminal {
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let mut command = home.command(&["top", "--every", "0.2"]);
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm-256color");
        let child = Ended(command.spawn().unwrap());
        let keys = File::from(pty.master);
        let mut output = keys.try_clone().unwrap();
        let (to, written) = channel();
        // It ends when the last process with the other end has.
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut chunk) {
                if to.send(chunk[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Terminal { child, keys, written, screen: vt100::Parser::new(ROWS, COLUMNS, 0) }
    }

    /// Returns the screen as it is by now.
    fn shown(&mut self) -> String {
        while let Ok(bytes) = self.written.try_recv() {
            self.screen.process(&bytes);
        }
        self.screen.screen().contents()
    }

    fn wait_for(&mut self, words: &str) -> String {
        wait_for(&format!("the terminal shows {words}"), || {
            let shown = self.shown();
            shown.contains(words).then_some(shown)
        })
    }
}

#[test]
fn a_terminal_shows_flows_that_move() {
    let scene = Scene::new();
    let mut terminal = Terminal::start(&scene.home);
    let shown = terminal.wait_for(&format!("agent pid {}", scene.agent.pid()));
    assert!(shown.contains("default reno"), "{shown}");
    wait_for("the flow has a rate", || {
        let shown = terminal.shown();
        let row = shown.lines().find(|line| line.starts_with("quic ") && line.contains("reno"))?;
        (row.contains("program") && row.contains("bps")).then_some(())
    });
    assert!(terminal.screen.screen().alternate_screen());
    terminal.keys.write_all(b"2").unwrap();
    terminal.wait_for("aurora: steady, reward -, 0 rows");
    terminal.keys.write_all(b"1").unwrap();
    terminal.wait_for("program reno");
    terminal.keys.write_all(b"q").unwrap();
    let status = wait_for("it ends", || terminal.child.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    wait_for("the terminal is as before", || {
        terminal.shown();
        (!terminal.screen.screen().alternate_screen() && !terminal.screen.screen().hide_cursor())
            .then_some(())
    });
}

#[test]
fn a_page_without_a_terminal_is_refused() {
    failed(&ccplane(&["top"]), 2, "no terminal");
}
