//! Prints a synthetic cellular trace: `cellular SEED SECONDS MIN_KBIT MAX_KBIT`.

use std::process::ExitCode;

use ccplane_emulator::generate::{Cellular, cellular};

fn main() -> ExitCode {
    let numbers: Option<Vec<u32>> = std::env::args().skip(1).map(|word| word.parse().ok()).collect();
    let Some([seed, seconds, min_kbit, max_kbit]) = numbers.as_deref() else {
        eprintln!("usage: cellular SEED SECONDS MIN_KBIT MAX_KBIT, all whole numbers");
        return ExitCode::from(2);
    };
    let duration_ms = seconds.saturating_mul(1000);
    let link = Cellular {
        seed: u64::from(*seed),
        duration_ms,
        min_kbit: *min_kbit,
        max_kbit: *max_kbit,
        step_ms: 200,
    };
    match cellular(&link) {
        Ok(trace) => {
            print!("{trace}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
