//! TensorBoard's event files, scalars only.
//!
//! **The file** is a sequence of TFRecords: the length of the data as u64 LE, the masked CRC-32C of
//! those eight bytes as u32 LE, the data, the masked CRC-32C of the data. Masked means rotated right
//! by 15 bits, plus 0xa282ead8.
//!
//! **The data** is one protocol buffer, an `Event`: field 1 `wall_time` (f64, seconds since 1970),
//! field 2 `step` (varint), and either field 3 `file_version` ("brain.Event:2", the first record of
//! a file) or field 5 `summary`, in which each field 1 is a value with field 1 `tag` and field 2
//! `simple_value` (f32).
//!
//! ([TFRecord](https://www.tensorflow.org/tutorials/load_data/tfrecord),
//! `tensorflow/core/util/event.proto` and `framework/summary.proto` define both.)
//!
//! It is our own: the crates `tfrecord` 0.15 and `tensorboard-rs` 0.5 bring 29 and 32 others,
//! a protocol buffer compiler among them, for the five fields above.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::IoContext;
use crate::{Error, Result};

/// The file's name: TensorBoard looks for names that hold "tfevents".
const NAME: &str = "events.out.tfevents.ao-train";

const VERSION: &str = "brain.Event:2";

/// One event: scalars by tag, at a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Event {
    /// Seconds since 1970.
    pub wall_time: f64,
    /// Optimizer steps done.
    pub step: u64,
    /// The format, in the first event of a file alone.
    pub file_version: Option<String>,
    /// Tags and values.
    pub scalars: Vec<(String, f32)>,
}

/// A file of events that grows, an event at a time.
#[derive(Debug)]
pub struct EventWriter {
    file: File,
    path: PathBuf,
}

impl EventWriter {
    /// Refuses a folder that already holds a run's events.
    ///
    /// # Errors
    /// [`Error::Usage`] that names the flag.
    pub fn refuse_used(folder: &Path, force: bool) -> Result<()> {
        if !force && folder.join(NAME).exists() {
            return Err(Error::usage(format!(
                "--tensorboard {}: holds a run's events already; give another folder or --force",
                folder.display()
            )));
        }
        Ok(())
    }

    /// Starts the folder's event file, empty.
    ///
    /// # Errors
    /// When the folder or the file cannot be written.
    pub fn create(folder: &Path) -> Result<EventWriter> {
        fs::create_dir_all(folder).writing(folder)?;
        let path = folder.join(NAME);
        let file = File::create(&path).writing(&path)?;
        let mut writer = EventWriter { file, path };
        writer.append(&Event {
            wall_time: now(),
            file_version: Some(VERSION.into()),
            ..Event::default()
        })?;
        Ok(writer)
    }

    /// Goes on behind the events of steps up to `step`; what comes after them, and what a killed
    /// run left half written, is cut off. A folder without events is started.
    ///
    /// # Errors
    /// When the file is no event file, or cannot be written.
    pub fn resume(folder: &Path, step: u64) -> Result<EventWriter> {
        let path = folder.join(NAME);
        if !path.exists() {
            return EventWriter::create(folder);
        }
        let bytes = fs::read(&path).reading(&path)?;
        let mut reader = EventReader::new(&bytes, &path);
        let first = reader.next_event()?;
        if first.is_none_or(|e| e.file_version.is_none()) {
            return Err(Error::input_at(&path, "is no event file; give another --tensorboard"));
        }
        let mut end = reader.at;
        while let Ok(Some(event)) = reader.next_event() {
            if event.step > step {
                break;
            }
            end = reader.at;
        }
        let file = File::options().append(true).open(&path).writing(&path)?;
        file.set_len(end as u64).writing(&path)?;
        Ok(EventWriter { file, path })
    }

    /// Appends scalars; the system has them when this returns. Values that are not finite are left
    /// out.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn scalars(&mut self, step: u64, scalars: &[(&str, f64)]) -> Result<()> {
        let finite = scalars.iter().filter(|(_, value)| value.is_finite());
        let scalars = finite.map(|&(tag, value)| (tag.to_owned(), value as f32)).collect();
        self.append(&Event { wall_time: now(), step, file_version: None, scalars })
    }

    fn append(&mut self, event: &Event) -> Result<()> {
        self.file.write_all(&record(&encode(event))).writing(&self.path)
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// One TFRecord.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut out = length.to_vec();
    out.extend(masked_crc(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked_crc(data).to_le_bytes());
    out
}

fn encode(event: &Event) -> Vec<u8> {
    let mut out = vec![1 << 3 | 1];
    out.extend(event.wall_time.to_le_bytes());
    out.push(2 << 3);
    put_varint(&mut out, event.step);
    if let Some(version) = &event.file_version {
        put_bytes(&mut out, 3, version.as_bytes());
    }
    if !event.scalars.is_empty() {
        let mut summary = Vec::new();
        for (tag, value) in &event.scalars {
            let mut scalar = Vec::new();
            put_bytes(&mut scalar, 1, tag.as_bytes());
            scalar.push(2 << 3 | 5);
            scalar.extend(value.to_le_bytes());
            put_bytes(&mut summary, 1, &scalar);
        }
        put_bytes(&mut out, 5, &summary);
    }
    out
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// Reads an event file.
#[derive(Debug)]
pub struct EventReader<'a> {
    bytes: &'a [u8],
    at: usize,
    path: &'a Path,
}

impl<'a> EventReader<'a> {
    /// Reads `bytes`; `path` is named in errors.
    pub fn new(bytes: &'a [u8], path: &'a Path) -> EventReader<'a> {
        EventReader { bytes, at: 0, path }
    }

    /// The event file of a folder.
    pub fn path_in(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    /// The next event; `None` at the end.
    ///
    /// # Errors
    /// With the byte at which a record is cut short or does not match its checksums.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let wrong = |what: &str| {
            Error::input(
                format!("{}, byte {}", self.path.display(), self.at),
                format!("{what} in a record of events"),
            )
        };
        let rest = &self.bytes[self.at..];
        let (head, rest) = rest.split_at_checked(12).ok_or_else(|| wrong("the end"))?;
        let (length, crc) = head.split_at(8);
        if masked_crc(length).to_le_bytes() != crc {
            return Err(wrong("a wrong checksum of the length"));
        }
        let length = length.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        let length = usize::try_from(length).map_err(|_| wrong("an impossible length"))?;
        let (data, rest) = rest.split_at_checked(length).ok_or_else(|| wrong("the end"))?;
        let crc = rest.get(..4).ok_or_else(|| wrong("the end"))?;
        if masked_crc(data).to_le_bytes() != crc {
            return Err(wrong("a wrong checksum of the data"));
        }
        let event = decode(data).ok_or_else(|| wrong("no event"))?;
        self.at += 12 + length + 4;
        Ok(Some(event))
    }
}

/// A field of a protocol buffer.
enum Field<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

/// The next field's number and content; the rest stays in `bytes`.
fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let key = take_varint(bytes)?;
    let content = match key & 7 {
        0 => Field::Varint(take_varint(bytes)?),
        1 => Field::Fixed64(take(bytes, 8)?.try_into().ok()?),
        2 => {
            let length = usize::try_from(take_varint(bytes)?).ok()?;
            Field::Bytes(take(bytes, length)?)
        }
        5 => Field::Fixed32(take(bytes, 4)?.try_into().ok()?),
        _ => return None,
    };
    Some((key >> 3, content))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(head)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for i in 0..10 {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn decode(mut data: &[u8]) -> Option<Event> {
    let mut event = Event::default();
    while !data.is_empty() {
        match field(&mut data)? {
            (1, Field::Fixed64(bytes)) => event.wall_time = f64::from_le_bytes(bytes),
            (2, Field::Varint(step)) => event.step = step,
            (3, Field::Bytes(text)) => {
                event.file_version = Some(String::from_utf8(text.to_vec()).ok()?);
            }
            (5, Field::Bytes(mut summary)) => {
                while !summary.is_empty() {
                    if let (1, Field::Bytes(value)) = field(&mut summary)? {
                        event.scalars.push(scalar(value)?);
                    }
                }
            }
            _ => {} // fields of other kinds of events
        }
    }
    Some(event)
}

fn scalar(mut bytes: &[u8]) -> Option<(String, f32)> {
    let (mut tag, mut value) = (String::new(), 0.0);
    while !bytes.is_empty() {
        match field(&mut bytes)? {
            (1, Field::Bytes(text)) => tag = String::from_utf8(text.to_vec()).ok()?,
            (2, Field::Fixed32(bits)) => value = f32::from_le_bytes(bits),
            _ => {}
        }
    }
    Some((tag, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(bytes: &[u8]) -> Vec<Event> {
        let mut reader = EventReader::new(bytes, Path::new("events"));
        std::iter::from_fn(|| reader.next_event().unwrap()).collect()
    }

    #[test]
    fn a_record_has_the_bytes_of_the_published_format() {
        // Written by hand from event.proto; the checksums by the reference CRC-32C of RFC 3720.
        let event = Event {
            wall_time: 1.5,
            step: 300,
            file_version: None,
            scalars: vec![("a".into(), 2.0)],
        };
        let data = [
            0x09, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, // wall_time 1.5
            0x10, 0xac, 0x02, // step 300
            0x2a, 10, 0x0a, 8, 0x0a, 1, b'a', 0x15, 0, 0, 0, 0x40, // a = 2.0
        ];
        assert_eq!(encode(&event), data);
        assert_eq!(decode(&data), Some(event));
        // RFC 3720, B.4: 32 bytes of zeros.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked_crc(&[0; 32]), 0x8a91_36aau32.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn a_resumed_file_has_each_step_once_and_no_half_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(dir.path()).unwrap();
        for step in 1..=4 {
            writer.scalars(step, &[("loss", step as f64), ("bad", f64::NAN)]).unwrap();
        }
        let path = EventReader::path_in(dir.path());
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 3);
        fs::write(&path, &bytes).unwrap();
        let mut writer = EventWriter::resume(dir.path(), 2).unwrap();
        writer.scalars(3, &[("loss", 30.0)]).unwrap();
        let found = events(&fs::read(&path).unwrap());
        assert_eq!(found[0].file_version.as_deref(), Some(VERSION));
        let steps: Vec<(u64, f32)> = found[1..].iter().map(|e| (e.step, e.scalars[0].1)).collect();
        assert_eq!(steps, [(1, 1.0), (2, 2.0), (3, 30.0)]);
        assert!(EventWriter::refuse_used(dir.path(), false).is_err());
    }

    #[test]
    fn damaged_files_are_refused_with_the_byte() {
        let good = record(&encode(&Event { step: 7, ..Event::default() }));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            let mut reader = EventReader::new(&bad, Path::new("events"));
            let text = reader.next_event().unwrap_err().to_string();
            assert!(text.contains("byte 0"), "{text}");
        }
        for length in 1..good.len() {
            assert!(EventReader::new(&good[..length], Path::new("e")).next_event().is_err());
        }
    }
}
