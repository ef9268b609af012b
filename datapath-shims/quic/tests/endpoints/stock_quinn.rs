//! The engine as a controller under quinn's own driver.

use crate::common::{Agent, live_engine};
use crate::example::transfer;
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report};
use ccplane_quic::WindowOnly;
use quinn::TransportConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A window that no controller of quinn's would choose.
const WINDOW_BYTES: u64 = 77_777;
/// quinn sends while less than its window is in flight: our window is the amount that may be.
const SHOWN_BYTES: u64 = WINDOW_BYTES + 1;
/// Bytes of one transfer at least; it is repeated until the window is as expected.
const BYTES: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// An algorithm that holds [`WINDOW_BYTES`].
struct Held;

impl Algorithm for Held {
    fn name(&self) -> &'static str {
        "held"
    }
    fn programs(&self) -> Vec<ProgramSource> {
        let source = "(def (Report (acked 0))) (when true (:= Cwnd 77777))";
        vec![ProgramSource { name: "main", source }]
    }
    fn flow(&self, _: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("main", &[]);
        Box::new(Held)
    }
}

impl Flow for Held {
    fn on_report(&mut self, _: u64, _: &Report<'_>, _: &mut Control) {}
}

/// Moves bytes to a server; returns the sender's last window.
async fn window_of_transfer(transport: TransportConfig) -> u64 {
    let done = transfer(transport, |sent, path| sent < BYTES || path.cwnd != SHOWN_BYTES).await;
    assert_eq!(done.received_bytes, done.bytes);
    done.path.cwnd
}

#[test]
fn a_program_decides_the_window_of_stock_quinn() {
    let (engine, handle) = live_engine();
    let ended = AtomicBool::new(false);
    let window = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut agent, began) = (Agent::of(handle, Arc::new(Held)), Instant::now());
            while !ended.load(Relaxed) && began.elapsed() < PATIENCE {
                agent.turn(began.elapsed().as_micros() as u64);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut transport = TransportConfig::default();
        transport.congestion_controller_factory(Arc::new(WindowOnly::new(engine)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let window =
            runtime.block_on(async { tokio::time::timeout(PATIENCE, window_of_transfer(transport)).await });
        ended.store(true, Relaxed);
        window.expect("the program's window")
    });
    assert_eq!(window, SHOWN_BYTES);
}
