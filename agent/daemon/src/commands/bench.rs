//! `ccplane bench`: figures beside their baselines.

use super::{print, print_json, table};
use crate::cli::BenchArgs;
use crate::failure::Failure;
use ccplane_benches::{ALL, BenchError, Figure};
use std::process::ExitCode;

/// `ccplane bench`
pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode, Failure> {
    if args.list {
        let rows: Vec<Vec<String>> = ALL
            .iter()
            .map(|b| vec![b.name.to_owned(), format!("{} s", b.seconds), b.what.to_owned()])
            .collect();
        return print(&table(&["name", "takes", "measures"], &rows)).map(|()| ExitCode::SUCCESS);
    }
    let names: Vec<&str> = if args.all {
        ALL.iter().map(|b| b.name).collect()
    } else {
        args.names.iter().map(String::as_str).collect()
    };
    if let Some(unknown) = names.iter().find(|n| ALL.iter().all(|b| b.name != **n)) {
        return Err(Failure::input(BenchError::Unknown((*unknown).to_owned())));
    }
    let mut failed = false;
    for name in names {
        match ccplane_benches::run(name) {
            Ok(figures) => show(&figures, args.json)?,
            // The others are still worth having.
            Err(error) => {
                failed = true;
                eprintln!("ccplane: {name}: {error}");
            }
        }
    }
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn show(figures: &[Figure], json: bool) -> Result<(), Failure> {
    for figure in figures {
        if json { print_json(figure)? } else { print(&text(figure))? }
    }
    Ok(())
}

/// `ack.ebpf.reno  35.1 ns  (29 to 41)  0.18 of 195 ns, libccp's VM`
fn text(f: &Figure) -> String {
    let mut line = format!(
        "{}  {:.3} {}  ({:.3} to {:.3}, {} samples)",
        f.name, f.value, f.unit, f.spread[0], f.spread[1], f.samples
    );
    if let (Some(baseline), Some(ratio)) = (f.baseline, f.ratio) {
        let name = f.baseline_name.as_deref().unwrap_or("the baseline");
        line.push_str(&format!("  {ratio:.3} of {baseline:.3} {}, {name}", f.unit));
    }
    if let Some(note) = &f.note {
        line.push_str(&format!("\n    {note}"));
    }
    line.push('\n');
    line
}
