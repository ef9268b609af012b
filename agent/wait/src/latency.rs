//! Keeps cores from going into idle states while there is work: a core that sleeps deeply, or a guest's that has halted,
//! takes tens of microseconds to wake.
//!
//! The kernel's quality of service for processors (Documentation/power/pm_qos_interface.rst) has a latency limit for as
//! long as a file is held open. It forgets the limit when the process that opened the file ends, however it ends. A
//! limit of 0 has idle cores poll, which in a guest is what haltpoll does, too, but for a bounded time.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The file whose holders limit the latency.
pub const CPU_DMA_LATENCY: &str = "/dev/cpu_dma_latency";
/// Latency that is as good as none: the kernel's default, microseconds.
const NO_LIMIT_US: i32 = 2_000_000_000;
/// The time for which cores stay awake after the last event, nanoseconds: a load with shorter gaps
/// changes nothing.
pub const LINGER_NS: u64 = 100_000_000;

/// A limit of the latency of idle cores, which holds while there are events and goes with the process.
#[derive(Debug)]
pub struct AwakeCores {
    file: File,
    event_ns: u64,
    is_held: bool,
}

impl AwakeCores {
    /// Opens the kernel's file; no limit holds yet.
    ///
    /// # Errors
    /// The kernel has no such file, or only root may open it.
    pub fn open() -> io::Result<AwakeCores> {
        AwakeCores::at(Path::new(CPU_DMA_LATENCY))
    }

    fn at(path: &Path) -> io::Result<AwakeCores> {
        let file = File::options().write(true).open(path)?;
        Ok(AwakeCores { file, event_ns: 0, is_held: false })
    }

    /// Notes an event: idle cores stay awake from now on.
    ///
    /// # Errors
    /// The error of write(2).
    pub fn event(&mut self, now_ns: u64) -> io::Result<()> {
        self.event_ns = now_ns;
        if !self.is_held {
            self.limit(0)?;
            self.is_held = true;
        }
        Ok(())
    }

    /// Lets cores go to sleep where the last event is [`LINGER_NS`] ago.
    ///
    /// # Errors
    /// The error of write(2).
    pub fn idle(&mut self, now_ns: u64) -> io::Result<()> {
        if self.is_held && now_ns.saturating_sub(self.event_ns) >= LINGER_NS {
            self.limit(NO_LIMIT_US)?;
            self.is_held = false;
        }
        Ok(())
    }

    /// Whether cores are kept awake now.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    fn limit(&mut self, us: i32) -> io::Result<()> {
        self.file.write_all(&us.to_ne_bytes())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn cores_stay_awake_while_there_are_events() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut cores = AwakeCores::at(file.path()).unwrap();
        let mut now_ns = 1;
        for _ in 0..3 {
            cores.event(now_ns).unwrap();
            now_ns += LINGER_NS - 1;
            cores.idle(now_ns).unwrap();
            assert!(cores.is_held());
        }
        now_ns += 1;
        cores.idle(now_ns).unwrap();
        assert!(!cores.is_held());
        // A plain file keeps all that was written.
        let written = std::fs::read(file.path()).unwrap();
        let values: Vec<i32> = written.chunks(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect();
        assert_eq!(values, [0, NO_LIMIT_US]);
    }
}
