//! What a worker does with a batch: bytes to text, text to running text, running text to ids.

use std::borrow::Cow;

use super::detokenize::Detokenizer;
use super::json_line;
use super::reader::{Batch, Cursor, Kind};
use super::tokenizer::Encoder;
use crate::format::manifest::Totals;
use crate::{Error, Result};

/// Complaints kept of one batch.
const MAX_COMPLAINTS: usize = 5;

/// What a document's bytes become.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Field of JSON lines that holds the text.
    pub field: String,
    /// Keep the line feed at the end of a line; a line of white space alone is the empty document.
    pub keep_newline: bool,
    /// Take white space off both ends of a document's text.
    pub strip: bool,
    /// Keep documents of no text (as an end token alone) instead of leaving them out.
    pub keep_empty: bool,
    /// Replace bytes that are not UTF-8 by U+FFFD instead of stopping.
    pub lossy: bool,
    /// Leave out documents that are no text or no ids, and count them, instead of stopping.
    pub skip_bad: bool,
    /// What turns benchmark text into running text.
    pub detokenizer: Detokenizer,
    /// The id put before each document.
    pub bos: Option<u32>,
    /// The id put behind each document.
    pub eos: Option<u32>,
    /// Most ids of a document, these two included; what is behind is left out.
    pub most_ids: Option<usize>,
    /// Real ids, which given ids must be below.
    pub vocab_size: usize,
    /// Share of documents that go to the validation folder.
    pub val_share: f64,
}

/// A batch's ids.
#[derive(Debug, Default)]
pub struct Encoded {
    /// The batch's number.
    pub sequence: u64,
    /// The ids of its documents, one after another.
    pub ids: Vec<u32>,
    /// Its documents.
    pub documents: Vec<Document>,
    /// What was dropped and repaired in it; the counts of documents, tokens and bytes stay zero.
    pub repairs: Totals,
    /// What is wrong with documents that were left out.
    pub complaints: Vec<String>,
    /// How far the inputs are read with the end of this batch.
    pub progress: Cursor,
}

/// One document of [`Encoded::ids`].
#[derive(Debug, Clone, Copy)]
pub struct Document {
    /// How many ids, the end token among them.
    pub tokens: u32,
    /// How many bytes of text.
    pub bytes: u32,
    /// Whether it goes to the validation folder.
    pub val: bool,
}

impl Rule {
    /// Encodes a batch.
    ///
    /// # Errors
    /// At the first document that is no text or no ids; the error names line and byte.
    pub fn encode(&self, batch: &Batch, encoder: Option<&mut Encoder>) -> Result<Encoded> {
        let mut out =
            Encoded { sequence: batch.sequence, progress: batch.progress, ..Encoded::default() };
        out.repairs.add_repairs(&batch.repairs);
        let mut encoder = encoder;
        let complaints =
            self.for_each_document(batch, &mut out.repairs, &mut |repairs, content| {
                let first = out.ids.len();
                out.ids.extend(self.bos);
                let (mut bytes, hash) = match content {
                    Content::Text(text) => {
                        let text = if self.strip { text.trim() } else { &text };
                        let hash = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
                        let text = self.detokenizer.apply(text);
                        if text.is_empty() && !self.keep_empty {
                            repairs.empty_documents_dropped += 1;
                            out.ids.truncate(first);
                            return Ok(());
                        }
                        let Some(encoder) = encoder.as_deref_mut() else {
                            return Err(Error::usage("text needs a tokenizer; give --tokenizer"));
                        };
                        encoder.encode_into(&text, &mut out.ids)?;
                        (text.len(), hash)
                    }
                    Content::Ids(ids) => {
                        if ids.is_empty() && !self.keep_empty {
                            repairs.empty_documents_dropped += 1;
                            out.ids.truncate(first);
                            return Ok(());
                        }
                        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                        out.ids.extend_from_slice(&ids);
                        (0, xxhash_rust::xxh3::xxh3_64(&bytes))
                    }
                };
                let ends = usize::from(self.bos.is_some()) + usize::from(self.eos.is_some());
                let count = out.ids.len() - first - usize::from(self.bos.is_some());
                let kept = count.min(self.most_ids.map_or(count, |most| most.saturating_sub(ends)));
                if kept < count {
                    repairs.documents_cut += 1;
                    out.ids.truncate(out.ids.len() - (count - kept));
                    // The text's bytes, shared out over its ids.
                    bytes = (bytes as u128 * kept as u128 / count as u128) as usize;
                }
                out.ids.extend(self.eos);
                out.documents.push(Document {
                    // Both fit: a document has at most 2^30 bytes, and a token at least one of them.
                    tokens: (out.ids.len() - first) as u32,
                    bytes: bytes as u32,
                    val: self.is_val(hash),
                });
                Ok(())
            })?;
        out.complaints = complaints;
        Ok(out)
    }

    /// The running texts of a batch that go to training, for learning a vocabulary.
    ///
    /// # Errors
    /// As [`Rule::encode`].
    pub fn training_texts(&self, batch: &Batch) -> Result<Vec<String>> {
        let mut texts = Vec::new();
        self.for_each_document(batch, &mut Totals::default(), &mut |_, content| {
            if let Content::Text(text) = content {
                let text = if self.strip { text.trim() } else { &text };
                if !self.is_val(xxhash_rust::xxh3::xxh3_64(text.as_bytes())) {
                    texts.push(self.detokenizer.apply(text).into_owned());
                }
            }
            Ok(())
        })?;
        Ok(texts)
    }

    /// Whether the document of this hash is held out: its hash as a share of all hashes.
    fn is_val(&self, hash: u64) -> bool {
        (hash as f64) < self.val_share * (u64::MAX as f64)
    }

    /// Gives the content of each document of the batch; what is wrong with those left out.
    fn for_each_document(
        &self,
        batch: &Batch,
        repairs: &mut Totals,
        give: &mut dyn FnMut(&mut Totals, Content) -> Result<()>,
    ) -> Result<Vec<String>> {
        let mut complaints = Vec::new();
        let mut start = 0;
        for (document, &end) in batch.ends.iter().enumerate() {
            let place = Place { batch, document, start };
            match self.content(&batch.bytes[start..end as usize], &place, repairs) {
                Ok(Some(content)) => give(repairs, content)?,
                Ok(None) => {}
                Err(error) if self.skip_bad => {
                    repairs.bad_documents_skipped += 1;
                    if complaints.len() < MAX_COMPLAINTS {
                        complaints.push(error.to_string());
                    }
                }
                Err(error) => return Err(error),
            }
            start = end as usize;
        }
        Ok(complaints)
    }

    /// What the bytes of one document hold; `None`, counted, where that is nothing.
    fn content<'a>(
        &self,
        bytes: &'a [u8],
        place: &Place,
        repairs: &mut Totals,
    ) -> Result<Option<Content<'a>>> {
        Ok(Some(match place.batch.kind {
            Kind::Tokens => {
                let words = bytes.chunks_exact(4);
                let ids: Vec<u32> =
                    words.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                self.check_ids(&ids, place)?;
                Content::Ids(ids)
            }
            Kind::Ids => match self.ids_of_line(bytes, place)? {
                Some(ids) => Content::Ids(ids),
                None => {
                    repairs.records_skipped += 1;
                    return Ok(None);
                }
            },
            Kind::Jsonl => match self.field_of_line(bytes, place, repairs)? {
                Some(text) => Content::Text(Cow::Owned(text)),
                None => {
                    repairs.empty_documents_dropped += 1;
                    return Ok(None);
                }
            },
            Kind::Lines => {
                let text = self.text(self.without_line_end(bytes, repairs), place, repairs)?;
                let blank = self.keep_newline && text.chars().all(char::is_whitespace);
                Content::Text(if blank { Cow::Borrowed("") } else { text })
            }
            Kind::Whole => Content::Text(self.text(bytes, place, repairs)?),
        }))
    }

    fn without_line_end<'a>(&self, line: &'a [u8], repairs: &mut Totals) -> &'a [u8] {
        if self.keep_newline {
            return line;
        }
        let Some(line) = line.strip_suffix(b"\n") else { return line };
        match line.strip_suffix(b"\r") {
            Some(line) => {
                repairs.carriage_returns_removed += 1;
                line
            }
            None => line,
        }
    }

    fn text<'a>(
        &self,
        bytes: &'a [u8],
        place: &Place,
        repairs: &mut Totals,
    ) -> Result<Cow<'a, str>> {
        let error = match std::str::from_utf8(bytes) {
            Ok(text) => return Ok(Cow::Borrowed(text)),
            Err(error) => error,
        };
        if !self.lossy {
            let hint = if place.batch.first_byte == 0
                && place.start == 0
                && (bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff"))
            {
                "; it looks like UTF-16, convert it"
            } else {
                "; repair it, or give --lossy to replace such bytes"
            };
            let at = error.valid_up_to();
            return Err(Error::input(
                place.with_byte(at),
                format!("byte 0x{:02x} is not UTF-8{hint}", bytes[at]),
            ));
        }
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                repairs.invalid_utf8_replaced += 1;
            }
        }
        Ok(Cow::Owned(text))
    }

    /// The text of one JSON line; `None` for an empty line.
    fn field_of_line(
        &self,
        line: &[u8],
        place: &Place,
        repairs: &mut Totals,
    ) -> Result<Option<String>> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let line = self.text(line, place, repairs)?;
        let (text, replaced) = json_line::text_of(&line, &self.field, self.lossy)
            .map_err(|e| Error::input(place, e))?;
        repairs.invalid_utf8_replaced += replaced;
        Ok(Some(text))
    }

    /// The ids of one JSON line; `None` for an empty line and for records of another kind.
    fn ids_of_line(&self, line: &[u8], place: &Place) -> Result<Option<Vec<u32>>> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let line = self.text(line, place, &mut Totals::default())?;
        let ids = json_line::ids_of(&line).map_err(|e| Error::input(place, e))?;
        if let Some(ids) = &ids {
            self.check_ids(ids, place)?;
        }
        Ok(ids)
    }

    fn check_ids(&self, ids: &[u32], place: &Place) -> Result<()> {
        match ids.iter().position(|&id| id as usize >= self.vocab_size) {
            None => Ok(()),
            Some(i) => Err(Error::input(
                place,
                format!(
                    "entry {i}: id {} is not below the vocabulary's size {}; check --vocab-size",
                    ids[i], self.vocab_size
                ),
            )),
        }
    }
}

enum Content<'a> {
    Text(Cow<'a, str>),
    Ids(Vec<u32>),
}

/// A document of a batch, for errors.
struct Place<'a> {
    batch: &'a Batch,
    document: usize,
    start: usize,
}

impl Place<'_> {
    fn line(&self) -> u64 {
        self.batch.first_line + self.document as u64
    }

    fn with_byte(&self, within: usize) -> String {
        // Rows of a table have no byte of their own in the file.
        let byte = self.batch.first_byte + (self.start + within) as u64;
        format!("{}, line {}, byte {byte}", self.batch.place, self.line())
    }
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let unit = if self.batch.kind == Kind::Tokens { "document" } else { "line" };
        write!(f, "{}, {unit} {}", self.batch.place, self.line())
    }
}
