//! The demo with the kernel's own algorithms only: no agent, no BPF. Needs root.
//!
//! `cargo run -p ccplane-runner --example kernel_flows -- TRACE DIRECTORY` writes `DIRECTORY/kernel_flows.html`.

use std::path::Path;

use ccplane_emulator::Shape;
use ccplane_report::{Datapath, write_to};
use ccplane_runner::demo::{DemoConfig, Hooks, run};
use ccplane_runner::table::Table;

struct NoAgent;

impl Hooks for NoAgent {}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [trace, directory] = arguments.as_slice() else {
        return Err("usage: kernel_flows TRACE DIRECTORY".into());
    };
    ccplane_emulator::netns::clean_on_signals()?;
    let shape = Shape::load(Path::new(trace))?;
    let mut config =
        DemoConfig::standard(format!("kernel_flows {}", arguments.join(" ")), shape, "cellular trace");
    config.title = "The kernel’s own Reno and Cubic".into();
    config.flows.retain(|flow| flow.datapath == Datapath::KernelNative);
    let report = run(&config, &mut NoAgent, &mut Table::stdout(config.flows.len()))?;
    for note in &report.notes {
        eprintln!("{note}");
    }
    println!("{}", write_to(&report, Path::new(directory), "kernel_flows")?.html.display());
    Ok(())
}
