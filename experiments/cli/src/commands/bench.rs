//! `ccplane bench`: figures beside their baselines.

use super::output::{print, print_json, table};
use crate::cli::BenchArgs;
use ccplane_agent::failure::Failure;
use ccplane_benches::{ALL, BenchError, Figure, Table};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The bench whose figures are cells of a table.
const TABULAR: &str = "wake";

pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode, Failure> {
    if args.sink {
        return ccplane_benches::run_sink().map(|()| ExitCode::SUCCESS).map_err(Failure::runtime);
    }
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
    if args.plot.is_some() && !names.contains(&TABULAR) {
        let why = format!("--plot draws the cells of `{TABULAR}`, which is not measured");
        return Err(Failure::input(BenchError::Missing(why)));
    }
    // Before minutes of measuring: a file that cannot be written is known at once.
    let create = |path: &PathBuf| {
        let refused = |error: std::io::Error| BenchError::Missing(format!("{}: {error}", path.display()));
        File::create(path).map_err(refused).map_err(Failure::runtime)
    };
    let plot = args.plot.as_ref().map(create).transpose()?;
    let (mut failed, mut measured) = (false, Vec::new());
    for name in names {
        match ccplane_benches::run(name) {
            Ok(figures) => {
                show(&figures, args.json)?;
                measured.extend(figures);
            }
            // The others are still worth having.
            Err(error) => {
                failed = true;
                eprintln!("ccplane: {name}: {error}");
            }
        }
    }
    if let Some(cells) = Table::of(&measured) {
        if !args.json {
            print(&table(&cells.header(), &cells.rows()))?;
        }
        if let Some(mut file) = plot {
            file.write_all(cells.svg().as_bytes()).map_err(Failure::runtime)?;
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

/// `ack.ebpf.reno  0.180 (0.170 to 0.190) of libccp's VM  35.1 ns (33.0 to 36.2) beside 195.0, 25 pairs`, and what was counted.
fn text(f: &Figure) -> String {
    let ratio = match f.ratio.zip(f.ratio_spread) {
        Some((ratio, [low, high])) => format!("{ratio:.3} ({low:.3} to {high:.3}) of {}", f.baseline_name),
        None => format!("beside {}", f.baseline_name),
    };
    let mut line = format!(
        "{}  {ratio}  {:.3} {} ({:.3} to {:.3}) beside {:.3}, {} pairs",
        f.name, f.value, f.unit, f.spread[0], f.spread[1], f.baseline, f.samples
    );
    let counts: Vec<String> = f.proof.counts().map(|(what, count)| format!("{count} {what}")).collect();
    line.push_str(&format!("\n    counted: {}", counts.join(", ")));
    if let Some(note) = &f.note {
        line.push_str(&format!("\n    {note}"));
    }
    line.push('\n');
    line
}
