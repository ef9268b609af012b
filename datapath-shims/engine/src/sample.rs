//! A flow's statistics, as its thread leaves them for the agent.

use crate::sequence::SequenceCell;
use ccplane_contract::{FlowId, FlowInfo, FlowStats, Mode, ProgramUid, TransportStats};
use ccplane_infer::{FlowPolicy, Level, Noise};

/// Words of a policy's state.
const POLICY_WORDS: usize = 7;
/// Words before the policy's state: mode and time, and the statistics.
const HEAD_WORDS: usize = 2;
const POLICY_AT: usize = HEAD_WORDS + TransportStats::COUNT;
const WORDS: usize = POLICY_AT + POLICY_WORDS;

/// A flow's statistics as its own thread last wrote them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sample {
    pub(crate) mode: Mode,
    pub(crate) at_us: u64,
    pub(crate) transport: TransportStats,
    pub(crate) policy: FlowPolicy,
}

impl Sample {
    fn to_words(self) -> [u64; WORDS] {
        let (p, mut words) = (&self.policy, [0; WORDS]);
        words[..HEAD_WORDS].copy_from_slice(&[mode_word(self.mode), self.at_us]);
        words[HEAD_WORDS..POLICY_AT].copy_from_slice(&self.transport.to_words());
        words[POLICY_AT..].copy_from_slice(&[
            p.noise.0,
            pair(p.uid, p.buffer),
            pair(p.level as u32, p.level_uid),
            pair(p.penalty, p.decisions),
            pair(p.saturated, p.clipped),
            p.collapsed.into(),
            p.trips.into(),
        ]);
        words
    }

    fn from_words(words: [u64; WORDS]) -> Sample {
        let [mode, at_us, ..] = words;
        let [.., noise, by, level, watch, counts, collapsed, trips] = words;
        let ((uid, buffer), (level, level_uid)) = (halves(by), halves(level));
        let ((penalty, decisions), (saturated, clipped)) = (halves(watch), halves(counts));
        Sample {
            mode: mode_of(mode),
            at_us,
            transport: TransportStats::from_words(std::array::from_fn(|n| words[HEAD_WORDS + n])),
            policy: FlowPolicy {
                noise: Noise(noise),
                uid,
                buffer,
                level: level_of(level),
                level_uid,
                penalty,
                decisions,
                saturated,
                clipped,
                collapsed: collapsed as u32,
                trips: trips as u32,
            },
        }
    }

    /// Converts to the contract's type, with the facts that are stored elsewhere.
    pub(crate) fn stats(
        &self,
        flow: FlowId,
        info: &FlowInfo,
        program: Option<ProgramUid>,
        asks_policy: bool,
    ) -> FlowStats {
        FlowStats {
            flow,
            info: info.clone(),
            mode: self.mode,
            program,
            transport: self.transport,
            policy: asks_policy.then_some(self.policy),
            sampled_at_us: self.at_us,
        }
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn mode_word(mode: Mode) -> u64 {
    match mode {
        Mode::Program => 0,
        Mode::NativeNoProgram => 1,
        Mode::NativeAgentSilent => 2,
        Mode::NativePolicy => 3,
    }
}

fn mode_of(word: u64) -> Mode {
    match word {
        0 => Mode::Program,
        1 => Mode::NativeNoProgram,
        2 => Mode::NativeAgentSilent,
        _ => Mode::NativePolicy,
    }
}

fn level_of(word: u32) -> Level {
    match word {
        0 => Level::Chosen,
        1 => Level::LastGood,
        _ => Level::Native,
    }
}

/// The cell in which a flow leaves its samples.
#[derive(Debug)]
pub(crate) struct SampleCell(SequenceCell<WORDS>);

impl SampleCell {
    pub(crate) fn new(sample: Sample) -> SampleCell {
        SampleCell(SequenceCell::new(sample.to_words()))
    }

    /// Leaves a sample. Only the flow itself may.
    pub(crate) fn write(&self, sample: Sample) {
        self.0.write(sample.to_words());
    }

    /// The last sample, whole.
    pub(crate) fn read(&self) -> Sample {
        Sample::from_words(self.0.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::{Duration, Instant};

    /// Every field a function of `n`.
    fn numbered(n: u32) -> Sample {
        let wide = u64::from(n) << 20;
        Sample {
            mode: mode_of(u64::from(n % 4)),
            at_us: wide,
            transport: TransportStats {
                snd_cwnd: n + 1,
                snd_ssthresh: Some(n + 2),
                mss_bytes: n + 3,
                srtt_us: n + 4,
                min_rtt_us: n + 5,
                pacing_rate: wide + 6,
                bytes_acked: wide + 7,
                delivered: wide + 8,
                lost: wide + 9,
                unacked: n + 10,
                faults: wide + 11,
                reports: wide + 12,
            },
            policy: FlowPolicy {
                noise: Noise(wide + 13),
                uid: n + 14,
                buffer: n + 15,
                level: level_of(n % 3),
                level_uid: n + 16,
                penalty: n + 17,
                decisions: n + 18,
                saturated: n + 19,
                clipped: n + 20,
                collapsed: n + 21,
                trips: n + 22,
            },
        }
    }

    #[test]
    fn a_sample_is_what_was_written() {
        for n in 0..12 {
            let cell = SampleCell::new(numbered(n));
            assert_eq!(cell.read(), numbered(n));
            cell.write(numbered(n + 1));
            assert_eq!(cell.read(), numbered(n + 1));
        }
    }

    #[test]
    fn no_reader_sees_half_a_sample() {
        let (cell, stop) = (SampleCell::new(numbered(0)), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0;
                while !stop.load(Relaxed) {
                    n = (n + 1) % 1_000_000;
                    cell.write(numbered(n));
                }
            });
            let _stop = Stop(&stop);
            let (mut different, mut last, began) = (0, 0, Instant::now());
            while different < 10_000 && began.elapsed() < PATIENCE {
                let sample = cell.read();
                let n = sample.transport.srtt_us - 4;
                assert_eq!(sample, numbered(n));
                if n == last {
                    // Perhaps both share a processor.
                    std::thread::yield_now();
                }
                different += u32::from(n != last);
                last = n;
            }
            assert!(different > 1, "the writer ran beside the reader");
        });
    }

    /// For both threads to get a processor.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// Stops the other thread, also where this one panics.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
}
