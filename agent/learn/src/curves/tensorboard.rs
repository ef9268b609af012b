//! TensorBoard's event files, as far as scalars need them.
//!
//! A file is a sequence of records (TensorFlow's `lib/io/record_writer.cc`): length as u64, masked CRC-32C of those 8
//! bytes, data, masked CRC-32C of the data, all little-endian. Data is a protobuf `Event` (`util/event.proto`):
//! `wall_time` = 1 (double), `step` = 2 (int64), `file_version` = 3 (string), `summary` = 5; a `Summary` has `value` = 1,
//! each with `tag` = 1 (string) and `simple_value` = 2 (float).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The bound of an earlier training's file of events.
const EVENTS: ccplane_files::Bound = ccplane_files::Bound { what: "a file of events", bytes: 256 << 20 };
/// What the first event says.
const VERSION: &str = "brain.Event:2";
/// What the files' names begin and end with.
const PREFIX: &str = "events.out.tfevents.";
const SUFFIX: &str = ".ccplane";
/// Bytes of a record that is read, at most.
const MAX_RECORD: usize = 1 << 20;

/// Writes scalars to an event file.
pub struct EventWriter {
    to: BufWriter<File>,
}

impl EventWriter {
    /// A file in `directory`, which TensorBoard shows as a run, in the place of those of an earlier training.
    ///
    /// # Errors
    /// It cannot be created, or an earlier one removed.
    pub fn create(directory: &Path) -> std::io::Result<EventWriter> {
        std::fs::create_dir_all(directory)?;
        earlier(directory)?.iter().try_for_each(std::fs::remove_file)?;
        EventWriter::another(directory)
    }

    /// Another file in `directory`, `steps` decisions into a training that goes on: what the earlier ones have of later
    /// decisions goes, as they will be learned from again.
    ///
    /// # Errors
    /// It cannot be created, or an earlier one changed.
    pub fn resume(directory: &Path, steps: u64) -> std::io::Result<EventWriter> {
        std::fs::create_dir_all(directory)?;
        for path in earlier(directory)? {
            let bytes =
                ccplane_files::read(&path, EVENTS).map_err(|e| std::io::Error::other(e.to_string()))?;
            let kept = len_until(&bytes, steps);
            File::options().write(true).open(&path)?.set_len(kept as u64)?;
        }
        EventWriter::another(directory)
    }

    fn another(directory: &Path) -> std::io::Result<EventWriter> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{PREFIX}{}.{:09}{SUFFIX}", now.as_secs(), now.subsec_nanos());
        let mut writer = EventWriter { to: BufWriter::new(File::create_new(directory.join(name))?) };
        writer.record(&event(now.as_secs_f64(), None, &bytes(3, VERSION.as_bytes())))?;
        Ok(writer)
    }

    /// Writes these scalars at `step`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, step: u64, scalars: &[(String, f32)]) -> std::io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.record(&event(now.as_secs_f64(), Some(step), &bytes(5, &summary(scalars))))
    }

    fn record(&mut self, data: &[u8]) -> std::io::Result<()> {
        self.to.write_all(&record(data))?;
        self.to.flush()
    }
}

/// The files that are there of ours.
fn earlier(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX)) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

/// How many bytes come before the first record that is not sound or of a later step.
fn len_until(file: &[u8], steps: u64) -> usize {
    let mut at = 0;
    while let Ok(Some((data, next))) = record_at(file, at) {
        if step_of(data).is_none_or(|step| step > steps) {
            break;
        }
        at = next;
    }
    at
}

/// An event's step; 0 where it has none, `None` where it is no event.
fn step_of(data: &[u8]) -> Option<u64> {
    fields(data).try_fold(0, |step, field| {
        Some(match field? {
            (2, Wire::Varint(value)) => value,
            _ => step,
        })
    })
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length, &masked_crc(&length).to_le_bytes()[..], data, &masked_crc(data).to_le_bytes()].concat()
}

/// CRC-32C, masked so that a CRC over data with CRCs in it stays sound (TensorFlow's `lib/hash/crc32c.h`).
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn event(wall_time_s: f64, step: Option<u64>, what: &[u8]) -> Vec<u8> {
    let mut event = vec![1 << 3 | 1];
    event.extend(wall_time_s.to_le_bytes());
    if let Some(step) = step {
        event.push(2 << 3);
        varint(&mut event, step);
    }
    event.extend(what);
    event
}

fn summary(scalars: &[(String, f32)]) -> Vec<u8> {
    let value = |(tag, value): &(String, f32)| {
        let mut field = bytes(1, tag.as_bytes());
        field.push(2 << 3 | 5);
        field.extend(value.to_le_bytes());
        bytes(1, &field)
    };
    scalars.iter().flat_map(value).collect()
}

/// A field of bytes, with its length.
fn bytes(field: u8, data: &[u8]) -> Vec<u8> {
    let mut all = vec![field << 3 | 2];
    varint(&mut all, data.len() as u64);
    all.extend(data);
    all
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// A scalar of an event file.
#[derive(Clone, PartialEq, Debug)]
pub struct Scalar {
    /// The curve.
    pub tag: String,
    /// Where on it.
    pub step: u64,
    /// What it is there.
    pub value: f32,
}

/// Why something is no event file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EventError {
    /// It ends within a record.
    #[error("cut off within the record at byte {at}")]
    CutOff {
        /// The record's start.
        at: usize,
    },
    /// A checksum does not fit.
    #[error("the record at byte {at} has a wrong checksum")]
    Checksum {
        /// The record's start.
        at: usize,
    },
    /// Too large a record.
    #[error("the record at byte {at} has {found} bytes, at most {MAX_RECORD} are allowed")]
    Size {
        /// The record's start.
        at: usize,
        /// Its length.
        found: u64,
    },
    /// Not an event.
    #[error("the record at byte {at} is no event")]
    Event {
        /// The record's start.
        at: usize,
    },
}

/// All scalars of an event file, in order; other events are passed over.
///
/// # Errors
/// The first record that is not sound.
pub fn read_events(file: &[u8]) -> Result<Vec<Scalar>, EventError> {
    let (mut scalars, mut at) = (Vec::new(), 0);
    while let Some((data, next)) = record_at(file, at)? {
        read_event(data, &mut scalars).ok_or(EventError::Event { at })?;
        at = next;
    }
    Ok(scalars)
}

/// The data of the record at byte `at`, and where the next one is; `None` at the end.
fn record_at(file: &[u8], at: usize) -> Result<Option<(&[u8], usize)>, EventError> {
    let rest = match file.get(at..) {
        None | Some([]) => return Ok(None),
        Some(rest) => rest,
    };
    let cut_off = EventError::CutOff { at };
    let (length, rest) = rest.split_first_chunk::<8>().ok_or(cut_off)?;
    let (length_crc, rest) = rest.split_first_chunk().ok_or(cut_off)?;
    if u32::from_le_bytes(*length_crc) != masked_crc(length) {
        return Err(EventError::Checksum { at });
    }
    let found = u64::from_le_bytes(*length);
    let length = usize::try_from(found).ok().filter(|length| *length <= MAX_RECORD);
    let length = length.ok_or(EventError::Size { at, found })?;
    let (data, rest) = rest.split_at_checked(length).ok_or(cut_off)?;
    let (data_crc, _) = rest.split_first_chunk().ok_or(cut_off)?;
    if u32::from_le_bytes(*data_crc) != masked_crc(data) {
        return Err(EventError::Checksum { at });
    }
    Ok(Some((data, at + 16 + length)))
}

fn read_event(data: &[u8], to: &mut Vec<Scalar>) -> Option<()> {
    let (mut step, mut summary) = (0, None);
    for field in fields(data) {
        match field? {
            (2, Wire::Varint(value)) => step = value,
            (5, Wire::Bytes(bytes)) => summary = Some(bytes),
            _ => {}
        }
    }
    for field in fields(summary.unwrap_or_default()) {
        let (1, Wire::Bytes(value)) = field? else { continue };
        let (mut tag, mut simple) = (None, None);
        for field in fields(value) {
            match field? {
                (1, Wire::Bytes(bytes)) => tag = Some(str::from_utf8(bytes).ok()?.to_owned()),
                (2, Wire::Fixed32(bytes)) => simple = Some(f32::from_le_bytes(bytes)),
                _ => {}
            }
        }
        if let (Some(tag), Some(value)) = (tag, simple) {
            to.push(Scalar { tag, step, value });
        }
    }
    Some(())
}

/// A protobuf field's content.
enum Wire<'a> {
    Varint(u64),
    Fixed64,
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

/// The fields of a message; `None` where it is malformed, which ends it.
fn fields(mut data: &[u8]) -> impl Iterator<Item = Option<(u64, Wire<'_>)>> {
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let field = read_field(&mut data);
        if field.is_none() {
            data = &[];
        }
        Some(field)
    })
}

fn read_field<'a>(data: &mut &'a [u8]) -> Option<(u64, Wire<'a>)> {
    let key = read_varint(data)?;
    let wire = match key & 7 {
        0 => Wire::Varint(read_varint(data)?),
        1 => {
            *data = data.get(8..)?;
            Wire::Fixed64
        }
        2 => {
            let length = usize::try_from(read_varint(data)?).ok()?;
            let (bytes, rest) = data.split_at_checked(length)?;
            *data = rest;
            Wire::Bytes(bytes)
        }
        5 => {
            let (bytes, rest) = data.split_first_chunk()?;
            *data = rest;
            Wire::Fixed32(*bytes)
        }
        _ => return None,
    };
    Some((key >> 3, wire))
}

fn read_varint(data: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = data.split_first()?;
        *data = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What TensorBoard's own writer makes of `Event(wall_time=1, step=300)` with the scalar `a` = 2.5.
    const GOLDEN: [u8; 40] = [
        24, 0, 0, 0, 0, 0, 0, 0, 163, 127, 75, 34, 9, 0, 0, 0, 0, 0, 0, 240, 63, 16, 172, 2, 42, 10, 10, 8,
        10, 1, 97, 21, 0, 0, 32, 64, 73, 64, 7, 55,
    ];

    #[test]
    fn known_bytes() {
        let data = event(1.0, Some(300), &bytes(5, &summary(&[("a".to_owned(), 2.5)])));
        assert_eq!(record(&data), GOLDEN);
        let scalar = Scalar { tag: "a".to_owned(), step: 300, value: 2.5 };
        assert_eq!(read_events(&GOLDEN), Ok(vec![scalar]));
    }

    #[test]
    fn whole_files() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(directory.path()).unwrap();
        let scalars = [("x/y".to_owned(), 1.5), ("z".to_owned(), -0.0)];
        for step in [0, 1, u64::from(u32::MAX) * 3] {
            writer.write(step, &scalars).unwrap();
        }
        drop(writer);
        let path = std::fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
        let file = std::fs::read(path).unwrap();
        let read = read_events(&file).unwrap();
        assert_eq!(read.len(), 6);
        assert_eq!(read[5], Scalar { tag: "z".to_owned(), step: u64::from(u32::MAX) * 3, value: -0.0 });
        assert!(file[..64].windows(VERSION.len()).any(|bytes| bytes == VERSION.as_bytes()));
    }

    #[test]
    fn a_training_that_goes_on_leaves_each_step_once() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("events.out.tfevents.1.theirs");
        std::fs::write(&other, GOLDEN).unwrap();
        let write = |mut writer: EventWriter, steps: &[u64]| {
            steps.iter().for_each(|step| writer.write(*step, &[("x".to_owned(), *step as f32)]).unwrap());
        };
        write(EventWriter::create(directory.path()).unwrap(), &[99]);
        write(EventWriter::create(directory.path()).unwrap(), &[10, 20, 30]);
        // Killed while it wrote.
        let [path] = &earlier(directory.path()).unwrap()[..] else { panic!("the first one's file stays") };
        let whole = std::fs::read(path).unwrap();
        std::fs::write(path, &whole[..whole.len() - 5]).unwrap();
        write(EventWriter::resume(directory.path(), 20).unwrap(), &[30, 40]);
        write(EventWriter::resume(directory.path(), 30).unwrap(), &[40, 50]);
        let files = earlier(directory.path()).unwrap();
        let events = files.iter().flat_map(|path| read_events(&std::fs::read(path).unwrap()).unwrap());
        let mut steps: Vec<u64> = events.map(|scalar| scalar.step).collect();
        steps.sort_unstable();
        assert_eq!((files.len(), steps), (3, vec![10, 20, 30, 40, 50]));
        assert_eq!(std::fs::read(&other).unwrap(), GOLDEN);
    }

    #[test]
    fn unsound_files_are_refused() {
        let two = [GOLDEN, GOLDEN].concat();
        for cut in 41..two.len() {
            assert_eq!(read_events(&two[..cut]), Err(EventError::CutOff { at: 40 }));
        }
        for at in 40..two.len() {
            let mut bad = two.clone();
            bad[at] ^= 1;
            assert_eq!(read_events(&bad), Err(EventError::Checksum { at: 40 }), "byte {at}");
        }
        assert_eq!(read_events(&record(&[0x0f])), Err(EventError::Event { at: 0 }));
        let length = u64::MAX.to_le_bytes();
        let large = [&length[..], &masked_crc(&length).to_le_bytes()].concat();
        assert_eq!(read_events(&large), Err(EventError::Size { at: 0, found: u64::MAX }));
    }
}
