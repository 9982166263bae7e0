//! From streams of bytes to batches of documents. The reader only finds where documents end; what
//! they hold is left to the workers.
//!
//! | stream | a document is |
//! |---|---|
//! | lines of text | a line without its line feed, and without a carriage return before it |
//! | a file as one document | all of its bytes |
//! | JSON lines | the text of one field of the object on a line |
//! | ids | the array on a line, or the `tokens` of the object there |
//! | tokens of a shard or raw file | what ends with the end-of-document id |
//! | rows of a table | the text of one column |
//!
//! A byte-order mark at the start of a stream is taken off. Everything else, NUL too, is text.
//! What looks like JSON is read as JSON lines unless the user says that it is text, so that keys and
//! brackets never end up as tokens without a word.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::choice::PassedOver;
use super::packed::Stream;
use super::sniff::{InputFormat, MARK, is_json_lines};
use super::source::Source;
use crate::format::manifest::Totals;
use crate::{Error, Result};

/// A batch ends at the first document end past this many bytes …
const BATCH_BYTES: usize = 1 << 18;
/// … or with this many documents.
const BATCH_DOCUMENTS: usize = 1 << 14;
/// The longest document, in bytes: it is held in memory as a whole.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 30;
const READ_BYTES: usize = 1 << 17;
/// The field of JSON lines, or column of a table, that holds the text where none is named.
pub const DEFAULT_FIELD: &str = "text";

/// What a document of a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DocumentUnit {
    /// One line.
    Line,
    /// One file.
    File,
}

/// What the bytes of a batch are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Lines of text with their line ends.
    Lines,
    /// Text as it is.
    Whole,
    /// JSON lines of text.
    Jsonl,
    /// JSON lines of ids.
    Ids,
    /// Ids as u32 LE.
    Tokens,
}

/// Consecutive documents of one stream.
#[derive(Debug)]
pub struct Batch {
    /// Its number, from 0.
    pub sequence: u64,
    /// What the bytes are.
    pub kind: Kind,
    /// The stream, for errors.
    pub place: Arc<str>,
    /// The documents' bytes, one after another.
    pub bytes: Vec<u8>,
    /// Where each document ends in `bytes`.
    pub ends: Vec<u32>,
    /// The place of the first document in its stream: line or row, from 1, and byte.
    pub first_line: u64,
    /// The byte at which the first document starts.
    pub first_byte: u64,
    /// Marks taken off and files passed over since the batch before.
    pub repairs: Totals,
    /// How far the inputs are read with the end of this batch.
    pub progress: Cursor,
}

/// How to read.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// What the inputs are.
    pub format: InputFormat,
    /// What a document is.
    pub unit: DocumentUnit,
    /// The field or column that holds the text, where it was named.
    pub field: Option<String>,
    /// Inputs are ids, and the id that ends a document in shards.
    pub ids: bool,
    /// The end-of-document id, for token files.
    pub eos: Option<u32>,
    /// Token files are raw u16.
    pub raw_u16: bool,
}

/// Reads all of `source` and gives its batches to `give`, in order, from the document after those
/// of `after` on.
///
/// # Errors
/// When an input cannot be read, holds a document that is too long, or `give` fails.
pub fn read_batches(
    source: &Source,
    options: &ReadOptions,
    after: Cursor,
    count: &AtomicU64,
    give: &mut dyn FnMut(Batch) -> Result<()>,
) -> Result<()> {
    let done = Cursor::default();
    let pending = Totals::default();
    let mut batcher = Batcher { give, sequence: 0, done, after, batch: None, pending };
    let rest = source.visit(count, &mut |stream| {
        batcher.pass_over(stream.passed_over);
        batcher.stream(stream, options)?;
        batcher.flush()
    })?;
    batcher.pass_over(rest);
    batcher.open(Kind::Lines, &Arc::from("end of the inputs"), 1, 0);
    batcher.flush()?;
    if batcher.done.documents < after.documents {
        return Err(changed());
    }
    Ok(())
}

fn changed() -> Error {
    Error::usage("--resume: the inputs are not those of the stopped run; start over with --force")
}

/// How far the inputs were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cursor {
    /// Documents read, over all streams and whatever became of them.
    pub documents: u64,
    /// Digest of these documents, in order.
    pub digest: u64,
}

struct Batcher<'a> {
    give: &'a mut dyn FnMut(Batch) -> Result<()>,
    sequence: u64,
    done: Cursor,
    /// What an earlier run has done; batches up to there are not given.
    after: Cursor,
    batch: Option<Batch>,
    /// Marks and files that no batch has told of yet.
    pending: Totals,
}

/// The digest after one more document: order matters, and it costs little beside reading.
fn extend_digest(digest: u64, document: &[u8]) -> u64 {
    (digest.rotate_left(5) ^ xxhash_rust::xxh3::xxh3_64(document))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Batcher<'_> {
    fn stream(&mut self, stream: Stream, options: &ReadOptions) -> Result<()> {
        let prefix = stream.prefix();
        if options.ids {
            if options.raw_u16
                || prefix.starts_with(&20240520i32.to_le_bytes())
                || prefix.starts_with(&20240801i32.to_le_bytes())
            {
                return self.token_file(&stream, options);
            }
            return self.lines(stream, Kind::Ids);
        }
        if prefix.starts_with(b"PAR1") && options.format == InputFormat::Auto {
            return self.table(&stream, options);
        }
        if is_json_lines(&stream, options.format, options.field.is_some())? {
            return self.lines(stream, Kind::Jsonl);
        }
        match options.unit {
            DocumentUnit::File => self.whole(stream),
            DocumentUnit::Line => self.lines(stream, Kind::Lines),
        }
    }

    fn pass_over(&mut self, files: PassedOver) {
        self.pending.files_excluded += files.excluded;
        self.pending.files_skipped += files.skipped;
    }

    /// The batch to add to.
    fn open(&mut self, kind: Kind, place: &Arc<str>, line: u64, byte: u64) -> &mut Batch {
        self.batch.get_or_insert_with(|| Batch {
            sequence: self.sequence,
            kind,
            place: Arc::clone(place),
            bytes: Vec::new(),
            ends: Vec::new(),
            first_line: line,
            first_byte: byte,
            repairs: Totals::default(),
            progress: Cursor::default(),
        })
    }

    /// Ends a document at `end` of the batch's bytes, and the batch if it is full.
    fn close_document(&mut self, end: usize) {
        let Some(batch) = self.batch.as_mut() else { return };
        let start = batch.ends.last().map_or(0, |&e| e as usize);
        self.done.digest = extend_digest(self.done.digest, &batch.bytes[start..end]);
        self.done.documents += 1;
        batch.ends.push(end as u32); // below 2^32: MAX_DOCUMENT_BYTES + BATCH_BYTES + READ_BYTES
    }

    fn is_full(&self) -> bool {
        // A batch ends where the earlier run did, so that none has to be split.
        let resumes_here = self.done.documents == self.after.documents;
        self.batch.as_ref().is_some_and(|b| {
            resumes_here
                || b.ends.len() >= BATCH_DOCUMENTS
                || b.ends.last().is_some_and(|&e| e as usize >= BATCH_BYTES)
        })
    }

    /// Hands on the documents so far.
    fn flush(&mut self) -> Result<()> {
        let Some(mut batch) = self.batch.take() else { return Ok(()) };
        batch.repairs = std::mem::take(&mut self.pending);
        if batch.ends.is_empty() && batch.repairs == Totals::default() {
            return Ok(());
        }
        batch.progress = self.done;
        if self.done.documents <= self.after.documents && self.after.documents > 0 {
            let at_end = self.done.documents == self.after.documents;
            return if at_end && self.done != self.after { Err(changed()) } else { Ok(()) };
        }
        self.sequence += 1;
        (self.give)(batch)
    }

    fn lines(&mut self, mut stream: Stream, kind: Kind) -> Result<()> {
        let place = Arc::clone(&stream.place);
        let mut line = 1;
        let mut byte = self.take_byte_order_mark(&mut stream);
        loop {
            let batch = self.open(kind, &place, line, byte);
            let mut scanned = batch.bytes.len();
            let got = stream.read_into(READ_BYTES, &mut batch.bytes)?;
            while let Some(at) = self.batch.as_ref().and_then(|b| find_newline(&b.bytes, scanned)) {
                scanned = at + 1;
                self.close_document(scanned);
                line += 1;
                if self.is_full() {
                    byte += scanned as u64;
                    self.flush_before(scanned, kind, &place, line, byte)?;
                    scanned = 0;
                }
            }
            let Some(batch) = self.batch.as_ref() else { return Ok(()) };
            let start = batch.ends.last().map_or(0, |&e| e as usize);
            let (open, end) = (batch.bytes.len() - start, batch.bytes.len());
            if open > MAX_DOCUMENT_BYTES {
                return Err(too_long(&place, line));
            }
            if got == 0 {
                if open > 0 {
                    self.close_document(end);
                }
                return Ok(());
            }
            // A long document grows in a batch of its own, so that its bytes move only once.
            if open > BATCH_BYTES && start > 0 {
                byte += start as u64;
                self.flush_before(start, kind, &place, line, byte)?;
            }
        }
    }

    /// Hands on what lies before `at` and opens a batch with the rest.
    fn flush_before(
        &mut self,
        at: usize,
        kind: Kind,
        place: &Arc<str>,
        line: u64,
        byte: u64,
    ) -> Result<()> {
        let rest = self.batch.as_mut().map(|b| b.bytes.split_off(at)).unwrap_or_default();
        self.flush()?;
        self.open(kind, place, line, byte).bytes = rest;
        Ok(())
    }

    /// Takes a byte-order mark off the start of the stream; the byte at which the text starts.
    fn take_byte_order_mark(&mut self, stream: &mut Stream) -> u64 {
        if !stream.prefix().starts_with(MARK) {
            return 0;
        }
        stream.skip_in_prefix(MARK.len());
        self.pending.byte_order_marks_removed += 1;
        MARK.len() as u64
    }

    fn whole(&mut self, mut stream: Stream) -> Result<()> {
        let place = Arc::clone(&stream.place);
        let byte = self.take_byte_order_mark(&mut stream);
        let batch = self.open(Kind::Whole, &place, 1, byte);
        while stream.read_into(READ_BYTES, &mut batch.bytes)? > 0 {
            if batch.bytes.len() > MAX_DOCUMENT_BYTES {
                return Err(too_long(&place, 1));
            }
        }
        let end = batch.bytes.len();
        self.close_document(end);
        Ok(())
    }

    /// Documents of a file of tokens: what ends with the end-of-document id.
    fn token_file(&mut self, stream: &Stream, options: &ReadOptions) -> Result<()> {
        use crate::format::shard::Shard;
        let place = Arc::clone(&stream.place);
        let (Some(path), Some(eos)) = (stream.path, options.eos) else {
            return Err(Error::input(
                &place,
                "token files need --eos ID, the id that ends a document, and lie on the disk as \
                 they are",
            ));
        };
        let shard = if options.raw_u16 { Shard::open_raw_u16(path)? } else { Shard::open(path)? };
        let mut ids = Vec::new();
        let (mut at, mut documents) = (0, 0u64);
        while at < shard.len() {
            let part = (shard.len() - at).min(1 << 14) as usize;
            ids.clear();
            shard.read(at, part, usize::MAX, &mut ids)?;
            at += part as u64;
            for &id in &ids {
                let batch = self.open(Kind::Tokens, &place, documents + 1, 0);
                if id != eos {
                    batch.bytes.extend(id.to_le_bytes());
                }
                let end = batch.bytes.len();
                if end > MAX_DOCUMENT_BYTES {
                    return Err(too_long(&place, documents + 1));
                }
                if id == eos {
                    self.close_document(end);
                    documents += 1;
                    if self.is_full() {
                        self.flush()?;
                    }
                }
            }
        }
        if let Some(batch) = &self.batch {
            let end = batch.bytes.len();
            if end > batch.ends.last().map_or(0, |&e| e as usize) {
                self.close_document(end);
            }
        }
        Ok(())
    }

    #[cfg(not(feature = "parquet"))]
    fn table(&mut self, stream: &Stream, _: &ReadOptions) -> Result<()> {
        Err(Error::input(
            &stream.place,
            "a Parquet file, which this build does not read; build with --features parquet",
        ))
    }

    #[cfg(feature = "parquet")]
    fn table(&mut self, stream: &Stream, options: &ReadOptions) -> Result<()> {
        let place = Arc::clone(&stream.place);
        let Some(path) = stream.path else {
            return Err(Error::input(&place, "a Parquet file is read only as a file on the disk"));
        };
        let mut row = 0;
        let field = options.field.as_deref().unwrap_or(DEFAULT_FIELD);
        super::table::text_column(path, field, &mut |text| {
            row += 1;
            let batch = self.open(Kind::Whole, &place, row, 0);
            batch.bytes.extend_from_slice(text);
            let end = batch.bytes.len();
            self.close_document(end);
            if self.is_full() { self.flush() } else { Ok(()) }
        })
    }
}

fn too_long(place: &str, line: u64) -> Error {
    Error::input(
        place,
        format!(
            "document {line} has more than {MAX_DOCUMENT_BYTES} bytes, the most that is held in \
             memory; split it into several"
        ),
    )
}

fn find_newline(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memchr(b'\n', &bytes[from..]).map(|i| from + i)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(bytes: &[u8], unit: DocumentUnit) -> Vec<(u64, u64, Vec<u8>)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        std::fs::write(&path, bytes).unwrap();
        let source = Source::new(vec![path], &[], &[]).unwrap();
        let options = ReadOptions {
            format: InputFormat::Text,
            unit,
            field: None,
            ids: false,
            eos: None,
            raw_u16: false,
        };
        let mut found = Vec::new();
        read_batches(&source, &options, Cursor::default(), &AtomicU64::new(0), &mut |batch| {
            let mut start = 0;
            for (i, &end) in batch.ends.iter().enumerate() {
                let bytes = batch.bytes[start..end as usize].to_vec();
                found.push((batch.first_line + i as u64, batch.first_byte + start as u64, bytes));
                start = end as usize;
            }
            assert_eq!(batch.progress.documents, found.len() as u64);
            Ok(())
        })
        .unwrap();
        found
    }

    #[test]
    fn lines_keep_their_bytes_places_and_numbers_over_batch_ends() {
        // Lines of many lengths, one of them longer than a batch.
        let mut text = Vec::new();
        for i in 0..40_000 {
            text.extend(std::iter::repeat_n(b'x', i % 23));
            text.push(b'\n');
            if i == 20_000 {
                text.extend(std::iter::repeat_n(b'y', 3 * BATCH_BYTES));
                text.push(b'\n');
            }
        }
        text.extend(b"no end");
        let found = documents(&text, DocumentUnit::Line);
        assert_eq!(found.len(), 40_002);
        let mut byte = 0;
        for (i, (line, start, bytes)) in found.iter().enumerate() {
            assert_eq!((*line, *start), (i as u64 + 1, byte), "{i}");
            byte += bytes.len() as u64;
        }
        assert_eq!(found.into_iter().flat_map(|(_, _, b)| b).collect::<Vec<_>>(), text);
    }

    #[test]
    fn a_byte_order_mark_is_taken_off_and_nothing_else() {
        let found = documents(b"\xef\xbb\xbfa\0b\r\n\n\xef\xbb\xbf", DocumentUnit::Line);
        let bytes: Vec<&[u8]> = found.iter().map(|(_, _, b)| b.as_slice()).collect();
        assert_eq!(bytes, [&b"a\0b\r\n"[..], b"\n", b"\xef\xbb\xbf"]);
        assert_eq!(found[1].1, 8);
        assert_eq!(documents(b"\xef\xbb\xbf", DocumentUnit::Line).len(), 0);
        assert_eq!(documents(b"\xef\xbb\xbfa\nb", DocumentUnit::File)[0].2, b"a\nb");
    }
}
