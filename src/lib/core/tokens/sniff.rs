//! Whether an input is text or JSON lines: what looks like JSON is never taken for text unless the user
//! says that it is.

use super::json_line;
use super::packed::Stream;
use crate::{Error, Result};

/// The byte-order mark of UTF-8.
pub(super) const MARK: &[u8] = b"\xef\xbb\xbf";

/// What inputs are taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InputFormat {
    /// Parquet by its first bytes, JSON lines by a field or name that says so or a first line that
    /// looks like JSON, else text.
    Auto,
    /// Text, whatever it looks like.
    Text,
    /// One JSON object a line.
    Jsonl,
}

/// Whether a stream is JSON lines, or else text; `named` says that the user named a field.
pub(super) fn is_json_lines(stream: &Stream, format: InputFormat, named: bool) -> Result<bool> {
    let prefix = stream.prefix();
    match format {
        InputFormat::Text => return Ok(false),
        InputFormat::Jsonl => return Ok(true),
        InputFormat::Auto => {}
    }
    if prefix.starts_with(b"%PDF-") {
        return Err(Error::input(
            &stream.place,
            "PDF data, which is not read here; take the text out of it first",
        ));
    }
    let by_name = named || names_json_lines(&stream.place);
    let line = first_line(prefix.strip_prefix(MARK).unwrap_or(prefix));
    Ok(by_name || json_line::looks_like_json(line))
}

/// Whether a file is called `.jsonl` or `.ndjson`, packed or not.
fn names_json_lines(place: &str) -> bool {
    let name = place.to_ascii_lowercase();
    let name =
        [".gz", ".zst", ".zstd"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
    name.ends_with("jsonl") || name.ends_with(".ndjson")
}

/// The first line that is not blank, as far as it is seen.
fn first_line(prefix: &[u8]) -> &[u8] {
    let text = prefix.trim_ascii_start();
    &text[..memchr::memchr(b'\n', text).unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_first_lines_tell_json_lines() {
        for name in ["a.jsonl", "b/A.JSONL.gz", "t.tar:x.jsonl.zst", "x.ndjson"] {
            assert!(names_json_lines(name), "{name}");
        }
        assert!(!names_json_lines("a.json.txt") && !names_json_lines("jsonl/a.txt"));
        assert_eq!(first_line(b"\n \r\n{\"text\"\nx"), b"{\"text\"");
        assert_eq!(first_line(b""), b"");
    }
}
