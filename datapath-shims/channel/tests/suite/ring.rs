//! Rings: what goes in comes out, whatever the other side writes does no harm, and nobody ever waits.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ccplane_channel::ring::{self, MAX_RECORD_BYTES, MIN_BYTES, ReadError, Reader, WriteError, Writer};
use ccplane_channel::{End, MemoryError, Parts, RING_BYTES, RecordBuffer, RingError, SharedWords};
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use proptest::prelude::*;

// Where a ring keeps the reader's position, whether that sleeps, and its data; words of a line, and lines of the smallest.
const HEAD: usize = 0;
const ASLEEP: usize = 8;
const DATA: usize = 16;
const LINE: usize = 8;
/// Far longer than a busy machine takes; what waits for ever takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
const LINES: u64 = (MIN_BYTES / 64) as u64;

/// Lines of a record of so many bytes.
fn lines(len: usize) -> usize {
    len.div_ceil(56).max(1)
}

/// A mark: a record of `len` bytes starts at the line of this number.
fn mark(number: u64, len: u64) -> u64 {
    (number << 17) | len
}

fn ends() -> (Writer, Reader, Arc<SharedWords>) {
    let (memory, _) = SharedWords::create(ring::words_of(MIN_BYTES)).unwrap();
    let memory = Arc::new(memory);
    let writer = Writer::new(Arc::clone(&memory), 0, MIN_BYTES).unwrap();
    (writer, Reader::new(Arc::clone(&memory), 0, MIN_BYTES).unwrap(), memory)
}

fn pair() -> (End, End) {
    let (agent, parts) = End::create(RING_BYTES).unwrap();
    (agent, End::open(parts, RING_BYTES).unwrap())
}

/// A record that tells where it comes from, and whether it is whole.
fn record(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| n.wrapping_mul(31).wrapping_add(at as u64) as u8).collect()
}

/// Whoever finds the reader asleep says from which core, and garbage there is no core.
#[test]
fn a_woken_reader_knows_from_which_core() {
    let (mut writer, mut reader, memory) = ends();
    let cores = ccplane_wait::affinity::cores().unwrap();
    assert!(!writer.write(&record(1, 8)).unwrap());
    assert_eq!(reader.waker_core(), None, "it was awake");
    assert!(reader.read(&mut RecordBuffer::default()).unwrap() && reader.doze());
    let pinned = ccplane_wait::affinity::pin(cores[cores.len() - 1]).unwrap();
    assert!(writer.write(&record(2, 8)).unwrap());
    assert_eq!(reader.waker_core(), cores.last().copied());
    drop(pinned);
    memory.words()[ASLEEP + 1].store(u64::MAX, Ordering::Relaxed);
    assert!(reader.waker_core().is_none_or(|core| !cores.contains(&core)));
}

/// Another thread sees a record that came after what it was shown, all the way round the ring.
#[test]
fn a_glance_sees_what_was_not_read() {
    let (mut writer, mut reader, _memory) = ends();
    let glance = reader.glance();
    let mut into = RecordBuffer::default();
    for n in 0..2 * LINES + 1 {
        assert!(!reader.show() && !glance.is_ready(), "record {n}");
        assert!(!writer.write(&record(n, 8)).unwrap());
        assert!(glance.is_ready() && reader.show(), "record {n}");
        assert!(reader.read(&mut into).unwrap());
        assert!(glance.is_ready(), "it was not shown that record {n} was read");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn what_goes_in_comes_out(ops in prop::collection::vec((any::<bool>(), 0_usize..=MAX_RECORD_BYTES), 1..200)) {
        let (mut writer, mut reader, _memory) = ends();
        let (mut wrote, mut read) = (Vec::new(), 0);
        let mut into = RecordBuffer::default();
        for (writes, len) in ops {
            // Most records are short.
            let len = if len % 4 == 0 { len } else { len % 300 };
            if writes {
                match writer.write(&record(wrote.len() as u64, len)) {
                    Ok(asleep) => {
                        prop_assert!(!asleep);
                        wrote.push(len);
                    }
                    Err(error) => {
                        prop_assert_eq!(error, WriteError::Full);
                        let waiting: usize = wrote[read..].iter().map(|len| lines(*len)).sum();
                        prop_assert!(waiting + lines(len) > LINES as usize, "room was left");
                    }
                }
            } else {
                prop_assert_eq!(reader.is_ready(), read < wrote.len());
                if reader.read(&mut into).unwrap() {
                    prop_assert_eq!(into.bytes(), &record(read as u64, wrote[read])[..]);
                    read += 1;
                }
            }
        }
        while reader.read(&mut into).unwrap() {
            prop_assert_eq!(into.bytes(), &record(read as u64, wrote[read])[..]);
            read += 1;
        }
        prop_assert_eq!(read, wrote.len());
    }

    /// Every word of the memory may be anything at any time.
    #[test]
    fn garbage_ends_a_ring_and_nothing_else(
        ops in prop::collection::vec((0_u8..4, any::<u32>(), any::<u64>()), 1..300),
    ) {
        let (mut writer, mut reader, memory) = ends();
        let mut into = RecordBuffer::default();
        let mut reads = 0;
        for (op, at, value) in ops {
            match op {
                0 => {
                    let _ = writer.write(&record(value, at as usize % 500));
                }
                1 => {
                    // Mostly where it hurts: the reader's position, and the first marks.
                    let words = memory.words();
                    let at = at as usize;
                    let at = if at.is_multiple_of(8) { at % words.len() } else { at % 20 * LINE };
                    let value = if value % 2 == 0 { value } else { mark(LINES + value % 20, value % 70_000) };
                    words[at].store(value, Ordering::Relaxed);
                }
                _ => {
                    match reader.read(&mut into) {
                        Ok(found) => reads += usize::from(found),
                        Err(_) => break,
                    }
                    prop_assert!(into.bytes().len() <= MAX_RECORD_BYTES);
                }
            }
        }
        prop_assert!(reads <= 300 * MIN_BYTES);
    }
}

#[test]
fn positions_that_cannot_be_are_refused() {
    let (mut writer, mut reader, memory) = ends();
    let mut into = RecordBuffer::default();
    writer.write(b"whole").unwrap();
    let first = &memory.words()[DATA];
    assert_eq!(first.load(Ordering::Relaxed), mark(LINES, 5));
    for found in [LINES + 1, 2 * LINES, 1 << 46] {
        first.store(mark(found, 5), Ordering::Relaxed);
        assert_eq!(reader.read(&mut into), Err(ReadError::Position { found, head: LINES }));
        assert!(reader.is_ready(), "somebody is to look");
    }
    for found in [MAX_RECORD_BYTES as u64 + 1, (1 << 17) - 1] {
        first.store(mark(LINES, found), Ordering::Relaxed);
        assert_eq!(reader.read(&mut into), Err(ReadError::Length { found }));
    }
    // What is not written yet, or was a lap ago: numbers behind, round the circle too.
    for old in [0, 5, mark(LINES - 1, 5), u64::MAX] {
        first.store(old, Ordering::Relaxed);
        assert!(!reader.is_ready());
        assert_eq!(reader.read(&mut into), Ok(false));
    }
    first.store(mark(LINES, 5), Ordering::Relaxed);
    assert_eq!(reader.read(&mut into), Ok(true));
    assert_eq!(into.bytes(), b"whole");
    assert_eq!(reader.read(&mut into), Ok(false));

    // A reader that claims to have read what was not written, or less than it had read before.
    let (mut writer, mut reader, memory) = ends();
    let full = vec![7; MAX_RECORD_BYTES];
    while writer.write(&full).is_ok() {}
    memory.words()[HEAD].store(u64::MAX, Ordering::Relaxed);
    assert!(matches!(writer.write(&full), Err(WriteError::Corrupt { found: u64::MAX, .. })));
    memory.words()[HEAD].store(0, Ordering::Relaxed);
    assert_eq!(reader.read(&mut into), Ok(true));
    writer.write(&full).unwrap();
    while writer.write(&full).is_ok() {}
    memory.words()[HEAD].store(1, Ordering::Relaxed);
    assert!(matches!(writer.write(&full), Err(WriteError::Corrupt { found: 1, .. })));
    assert_eq!(
        writer.write(&[0; MAX_RECORD_BYTES + 1]),
        Err(WriteError::TooLong { found: MAX_RECORD_BYTES + 1 })
    );
}

/// A writer that a reader leaves alone is told at once, and loses nothing that it has written.
#[test]
fn a_stalled_reader_holds_nobody_up() {
    let (mut writer, mut reader, _memory) = ends();
    let mut wrote = 0;
    let start = Instant::now();
    let mut refused = 0;
    for n in 0..1_000_000 {
        match writer.write(&record(n, 100)) {
            Ok(_) => wrote += 1,
            Err(error) => {
                assert_eq!(error, WriteError::Full);
                refused += 1;
            }
        }
    }
    assert!(start.elapsed() < PATIENCE);
    assert_eq!(wrote, LINES / lines(100) as u64, "what fits");
    assert_eq!(refused, 1_000_000 - wrote);
    let mut into = RecordBuffer::default();
    for n in 0..wrote {
        assert!(reader.read(&mut into).unwrap());
        assert_eq!(into.bytes(), record(n, 100));
    }
    assert!(!reader.read(&mut into).unwrap());
}

#[test]
fn memory_that_could_change_its_size_is_not_mapped() {
    let words = 1 << 16;
    let file = |seals: SealFlag, len: i64| -> OwnedFd {
        let file = memfd_create(c"test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&file, len).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file
    };
    let all = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    let len = words as i64 * 8;
    assert!(SharedWords::open(&file(all, len), words).is_ok());
    for seals in [SealFlag::empty(), SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW]
    {
        let refused = SharedWords::open(&file(seals, len), words);
        assert!(matches!(refused, Err(MemoryError::NotSealed { .. })), "{seals:?}");
    }
    for len in [0, len - 8, len + 8] {
        let refused = SharedWords::open(&file(all, len), words);
        assert!(matches!(refused, Err(MemoryError::Size { found, .. }) if found == len));
    }
    // What is no file in memory has no seals.
    let pipe = nix::unistd::pipe().unwrap().0;
    assert!(matches!(SharedWords::open(&pipe, words), Err(MemoryError::Io { .. })));

    for bytes in [0, MIN_BYTES / 2, MIN_BYTES + 8, 2 * ring::MAX_BYTES] {
        assert!(matches!(End::create(bytes), Err(RingError::Size { found }) if found == bytes));
    }
    // A size that is not the one that was made.
    let (_end, parts) = End::create(RING_BYTES).unwrap();
    assert!(matches!(End::open(parts, RING_BYTES * 2), Err(RingError::Memory(MemoryError::Size { .. }))));
    assert!(Parts::from_fds(Vec::new()).is_none());
}

/// An agent may hand over anything to sleep on.
#[test]
fn what_is_no_stream_socket_is_not_slept_on() {
    let file = tempfile::tempfile().unwrap();
    let (pipe, _writer) = nix::unistd::pipe().unwrap();
    let event = |flags| OwnedFd::from(EventFd::from_flags(flags).unwrap());
    let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let bells = [
        file.into(),
        pipe,
        event(EfdFlags::empty()),
        event(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE),
        datagrams.into(),
    ];
    for bell in bells {
        let (_agent, parts) = End::create(RING_BYTES).unwrap();
        let refused = End::open(Parts { bell, ..parts }, RING_BYTES);
        assert!(matches!(refused, Err(RingError::NoBell)), "{refused:?}");
    }
    // One that nobody is at the other end of.
    let bell = std::os::unix::net::UnixStream::pair().unwrap().0.into();
    let (_agent, parts) = End::create(RING_BYTES).unwrap();
    let end = End::open(Parts { bell, ..parts }, RING_BYTES).unwrap();
    assert!(is_woken(&end) && !end.take_wakes());
}

/// The other side neither takes its wake-ups nor leaves our socket's flags alone; it says without end that it sleeps.
#[test]
fn waking_never_waits() {
    let (mut agent, parts) = End::create(RING_BYTES).unwrap();
    let bell = parts.bell.try_clone().unwrap();
    let words = SharedWords::open(&parts.memory, 2 * ring::words_of(RING_BYTES)).unwrap();
    let mut datapath = End::open(parts, RING_BYTES).unwrap();
    for fd in [agent.as_fd(), datapath.as_fd(), bell.as_fd()] {
        let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).unwrap());
        fcntl(fd, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK)).unwrap();
    }
    let (done, is_done) = std::sync::mpsc::channel();
    let to_datapath = ring::words_of(RING_BYTES);
    std::thread::spawn(move || {
        let mut into = RecordBuffer::default();
        let mut woken = 0;
        for _ in 0..20_000 {
            words.words()[to_datapath + ASLEEP].store(1, Ordering::Relaxed);
            agent.send(b"command").unwrap();
            woken += u64::from(words.words()[to_datapath + ASLEEP].load(Ordering::Relaxed) == 0);
            assert!(datapath.receive(&mut into).unwrap());
            // Nobody has woken us.
            assert!(agent.take_wakes());
        }
        done.send(woken).unwrap();
    });
    assert_eq!(is_done.recv_timeout(PATIENCE), Ok(20_000), "it waits");
}

fn is_woken(end: &End) -> bool {
    poll(&mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
}

/// A wake-up costs a system call: only who sleeps gets one, and only one.
#[test]
fn only_who_sleeps_is_woken() {
    let (mut agent, mut datapath) = pair();
    datapath.send(b"one").unwrap();
    assert!(!is_woken(&agent), "it does not sleep");
    assert!(!agent.doze(), "there is something to read");
    let mut into = RecordBuffer::default();
    assert!(agent.receive(&mut into).unwrap());
    assert!(agent.doze());
    datapath.send(b"two").unwrap();
    datapath.send(b"three").unwrap();
    assert!(is_woken(&agent));
    agent.awake();
    assert!(agent.take_wakes());
    assert!(!is_woken(&agent), "taken");
    datapath.send(b"four").unwrap();
    assert!(!is_woken(&agent), "it is awake");
    for expected in ["two", "three", "four"] {
        assert!(agent.receive(&mut into).unwrap());
        assert_eq!(into.bytes(), expected.as_bytes());
    }
    assert!(!agent.receive(&mut into).unwrap());
    assert!(agent.doze());
    drop(datapath);
    assert!(is_woken(&agent), "nobody is there any more");
    assert!(!agent.take_wakes());
}

/// Two threads, each asleep whenever it has nothing to do: no wake-up is lost, nothing is torn.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: u64 = 20_000;
    let (mut agent, mut datapath) = pair();
    let wait = |end: &mut End, into: &mut RecordBuffer| {
        while !end.receive(into).unwrap() {
            if end.doze() {
                let fd = PollFd::new(end.as_fd(), PollFlags::POLLIN);
                let woken = poll(&mut [fd], PollTimeout::try_from(PATIENCE).unwrap()).unwrap();
                assert_eq!(woken, 1, "a wake-up was lost");
                end.awake();
                assert!(end.take_wakes());
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut into = RecordBuffer::default();
            for n in 0..ROUNDS {
                wait(&mut agent, &mut into);
                assert_eq!(into.bytes(), record(n, n as usize % 200));
                agent.send(&record(n + 1, n as usize % 150)).unwrap();
            }
        });
        let mut into = RecordBuffer::default();
        for n in 0..ROUNDS {
            datapath.send(&record(n, n as usize % 200)).unwrap();
            wait(&mut datapath, &mut into);
            assert_eq!(into.bytes(), record(n + 1, n as usize % 150));
        }
    });
}
