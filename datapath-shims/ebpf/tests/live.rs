//! Real flows in a network namespace of our own.
use std::io::{Read, Write};
use std::time::{Duration, Instant};
use ccplane_contract::{Datapath, Event, ProgramUid};
use ccplane_ebpf::{EbpfDatapath, Options};

#[test]
fn smoke() {
    let dir = tempfile::tempdir().unwrap();
    let opts = Options { run_dir: dir.path().into(), name: format!("cct{}", std::process::id()), ..Options::default() };
    let mut dp = match EbpfDatapath::attach(opts.clone()) { Ok(d) => d, Err(e) => panic!("{e}") };
    let program = ccplane_program::compile("(def (Report (volatile acked 0)) (mss 1448)) (when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (:= Cwnd (+ Cwnd (/ (* mss Ack.bytes_acked) Cwnd))) (fallthrough)) (when (> Micros 10000) (report) (:= Micros 0))").unwrap();
    let t = Instant::now();
    dp.install(ProgramUid(1), &program).unwrap();
    eprintln!("install {:?}", t.elapsed());
    let l = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let s = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    s.set_tcp_congestion(opts.name.as_bytes()).unwrap();
    s.connect(&l.local_addr().unwrap().into()).unwrap();
    let mut c: std::net::TcpStream = s.into();
    let (mut a, _) = l.accept().unwrap();
    let h = std::thread::spawn(move || { let mut b = vec![0; 1 << 16]; let mut n = 0; while let Ok(k) = a.read(&mut b) { if k == 0 { break } n += k; } n });
    let mut ev = vec![];
    let t = Instant::now();
    let buf = vec![0; 1 << 16];
    let mut reports = 0;
    while t.elapsed() < Duration::from_millis(500) {
        c.write_all(&buf).unwrap();
        ev.clear();
        dp.heartbeat();
        dp.poll(100, &mut ev);
        for e in &ev {
            match e {
                Event::Created { flow, info } => { eprintln!("{flow:?} {info:?}"); dp.set_program(*flow, ProgramUid(1), &[]).unwrap(); }
                Event::Report { .. } => { reports += 1; if reports < 4 { eprintln!("{e:?}") } }
                e => eprintln!("{e:?}"),
            }
        }
    }
    eprintln!("{:?}", dp.flows());
    drop(c);
    eprintln!("bytes {} reports {reports}", h.join().unwrap());
    eprintln!("moved {}", dp.detach().unwrap());
}
