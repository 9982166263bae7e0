//! What one JSON line holds: the text of a field, or ids.
//!
//! Only what is asked for is looked at closely. Elsewhere in the line numbers too large for a float,
//! lone surrogates and the words NaN, Infinity and -Infinity (which JSON forbids, and which Python's
//! json and pandas write) do no harm.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// What to give where a line is no JSON object.
const AS_TEXT: &str = "or give --as text if the input is text";

/// The text of `field` in the object on `line`, and how many lone surrogates in it became U+FFFD.
/// A name with dots is looked for as it is, then as the path to a nested field.
///
/// # Errors
/// When the line is no JSON object, has no such field, the field is no text, or, unless `lossy`, the
/// text has a lone surrogate.
pub fn text_of(line: &str, field: &str, lossy: bool) -> Result<(String, u64), String> {
    let found = strictly(line, |line| {
        object(line)?;
        let raw = find(line, field).map_err(|e| reason(line, &e))?;
        Ok(raw.map(|raw| raw.get().to_owned()))
    })?;
    let raw =
        found.ok_or_else(|| format!("no field '{field}'; name the text's field with --field"))?;
    if !raw.starts_with('"') {
        return Err(format!("field '{field}' is no text"));
    }
    let bytes = unescape(&raw).map_err(|e| reason(&raw, &e))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok((text, 0)),
        Err(_) if !lossy => Err(format!(
            "field '{field}' has half of a surrogate pair, which is no character; repair it, or \
             give --lossy to replace it"
        )),
        Err(error) => Ok(replace_surrogates(error.as_bytes())),
    }
}

/// The ids of a line: an array, or the `tokens` of an object; none of a record of another type.
///
/// # Errors
/// When the line is neither, or an entry is no id.
pub fn ids_of(line: &str) -> Result<Option<Vec<u32>>, String> {
    let value = strictly(line, |line| {
        serde_json::from_str::<Value>(line).map_err(|e| format!("not JSON: {e}"))
    })?;
    let items = match value {
        Value::Array(items) => items,
        Value::Object(mut object) => match object.remove("tokens") {
            Some(Value::Array(items)) => items,
            // Records of other types may stand between samples.
            None if object.contains_key("type") => return Ok(None),
            _ => return Err("no array 'tokens' in this object".into()),
        },
        _ => return Err("not an array of ids; give one JSON array a line".into()),
    };
    let id = |(i, item): (usize, &Value)| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| format!("entry {i}, {item}, is no id"))
    };
    items.iter().enumerate().map(id).collect::<Result<_, _>>().map(Some)
}

/// Whether a text that begins with this line is JSON rather than text: an object or a list of things
/// in quotes, brackets or braces, or a whole array. `[1] a note` and `{ not json }` are text.
pub fn looks_like_json(line: &[u8]) -> bool {
    let Some((open @ (b'{' | b'['), rest)) = line.split_first() else { return false };
    match rest.trim_ascii_start().first() {
        None => true, // JSON over several lines
        Some(b'"') => true,
        Some(b'}') => *open == b'{',
        Some(b'{' | b'[' | b']') => *open == b'[',
        _ => *open == b'[' && rest.iter().all(|b| b"0123456789+-.eE, \t\r]".contains(b)),
    }
}

/// Reads `line`, and where that fails once more with forbidden numbers replaced.
fn strictly<T>(line: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    read(line).or_else(|error| match without_forbidden_numbers(line) {
        Cow::Borrowed(_) => Err(error),
        Cow::Owned(line) => read(&line),
    })
}

fn object(line: &str) -> Result<(), String> {
    match line.trim_start().as_bytes() {
        [b'{', ..] => Ok(()),
        [b'[', ..] => Err(format!(
            "not a JSON object but an array; give one object a line (jq -c '.[]' makes them), or \
             --ids if these are ids, {AS_TEXT}"
        )),
        _ => Err(format!(
            "not JSON: it does not begin with {{; give one JSON object a line, {AS_TEXT}"
        )),
    }
}

fn reason(line: &str, error: &serde_json::Error) -> String {
    if error.is_eof() && matches!(line.trim(), "{" | "[") {
        return format!(
            "not JSON lines: an object over several lines; give one object a line (jq -c . makes \
             them), {AS_TEXT}"
        );
    }
    format!("not JSON: {error}; give one JSON object a line, {AS_TEXT}")
}

/// NaN, Infinity and -Infinity outside of strings as 0 and blanks.
fn without_forbidden_numbers(line: &str) -> Cow<'_, str> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let mut out = String::new();
    let (mut at, mut copied, mut quoted) = (0, 0, false);
    let bytes = line.as_bytes();
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => at += 1,
            b'-' | b'I' | b'N' if !quoted => {
                let rest = &line[at - 1..];
                if let Some(word) = WORDS.iter().find(|word| rest.starts_with(**word)) {
                    out.push_str(&line[copied..at - 1]);
                    out.push('0');
                    out.extend(std::iter::repeat_n(' ', word.len() - 1));
                    at += word.len() - 1;
                    copied = at;
                }
            }
            _ => {}
        }
    }
    if copied == 0 {
        return Cow::Borrowed(line);
    }
    out.push_str(&line[copied..]);
    Cow::Owned(out)
}

/// The value of the field at `path` in the object `json`.
fn find<'j>(json: &'j str, path: &str) -> Result<Option<&'j RawValue>, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let (exact, nested) = reader.deserialize_map(Fields(path))?;
    reader.end()?;
    match (exact, nested) {
        (Some(value), _) => Ok(Some(value)),
        (None, Some((value, rest))) if value.get().starts_with('{') => find(value.get(), rest),
        _ => Ok(None),
    }
}

/// Looks for a field by its name, and for one that the name leads into.
struct Fields<'p>(&'p str);

/// The value of this name, and the value and rest of the path of a first part of the name.
type Fielded<'j, 'p> = (Option<&'j RawValue>, Option<(&'j RawValue, &'p str)>);

impl<'j, 'p> Visitor<'j> for Fields<'p> {
    type Value = Fielded<'j, 'p>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'j>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut exact, mut nested) = (None, None);
        while let Some(Bytes(key)) = map.next_key()? {
            let rest = self.0.as_bytes().strip_prefix(key.as_slice());
            let inner = rest.and_then(|rest| rest.strip_prefix(b"."));
            match (rest, inner) {
                (Some([]), _) => exact = Some(map.next_value()?),
                (_, Some(inner)) => {
                    // What follows a whole key and a dot begins a character.
                    let path = self.0.get(self.0.len() - inner.len()..).unwrap_or_default();
                    nested = Some((map.next_value()?, path));
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok((exact, nested))
    }
}

/// A JSON string as bytes: UTF-8, but for lone surrogates, which stand as their three bytes.
struct Bytes(Vec<u8>);

impl<'de> serde::Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BytesVisitor;
        impl Visitor<'_> for BytesVisitor {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.into()))
            }
            fn visit_str<E>(self, text: &str) -> Result<Bytes, E> {
                Ok(Bytes(text.into()))
            }
        }
        deserializer.deserialize_bytes(BytesVisitor)
    }
}

fn unescape(raw: &str) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::from_str::<Bytes>(raw).map(|bytes| bytes.0)
}

/// Each lone surrogate (0xED, then 0xA0 or above, then one more) as U+FFFD, and how many there were.
fn replace_surrogates(bytes: &[u8]) -> (String, u64) {
    let (mut out, mut replaced) = (String::with_capacity(bytes.len()), 0);
    let mut rest = bytes;
    while !rest.is_empty() {
        let valid = match std::str::from_utf8(rest) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        out.push_str(&String::from_utf8_lossy(&rest[..valid]));
        rest = &rest[valid..];
        if !rest.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            replaced += 1;
            rest = &rest[rest.len().min(3)..];
        }
    }
    (out, replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &str, field: &str) -> Result<String, String> {
        text_of(line, field, false).map(|(text, _)| text)
    }

    #[test]
    fn what_nobody_asked_for_does_no_harm() {
        for line in [
            r#"{"text":"a","score":NaN}"#,
            r#"{"score":-Infinity,"x":[Infinity,{"y":NaN}],"text":"a"}"#,
            r#"{"big":1e999,"text":"a"}"#,
            r#"{"odd":"\ud83d","\udc00":1,"text":"a"}"#,
            r#"{"text":"first","text":"a"}"#,
            r#" {"text":"a"} "#,
        ] {
            assert_eq!(text(line, "text").as_deref(), Ok("a"), "{line}");
        }
        assert_eq!(
            text(r#"{"text":"NaN, \"-Infinity\"","n":NaN}"#, "text").unwrap(),
            "NaN, \"-Infinity\""
        );
        assert!(text(r#"{"text":NaN}"#, "text").unwrap_err().contains("is no text"));
        assert!(text(r#"{"text":NaNa}"#, "text").is_err());
    }

    #[test]
    fn nested_fields_are_read_and_a_literal_name_comes_first() {
        let line = r#"{"data":{"body":"in","x":{"y":"deep"}},"a.b":"dotted","a":{"b":"other"}}"#;
        assert_eq!(text(line, "data.body").unwrap(), "in");
        assert_eq!(text(line, "data.x.y").unwrap(), "deep");
        assert_eq!(text(line, "a.b").unwrap(), "dotted");
        for field in ["data", "data.z", "data.body.z", "b", ""] {
            assert!(text(line, field).is_err(), "{field}");
        }
        assert_eq!(text(r#"{"日":{"本":"x"}}"#, "日.本").unwrap(), "x");
    }

    #[test]
    fn lone_surrogates_are_named_or_replaced_one_by_one() {
        let line = r#"{"text":"a \ud83d\ud83d\ude00 \udc00é"}"#;
        assert!(text(line, "text").unwrap_err().contains("--lossy"));
        let replaced = text_of(line, "text", true).unwrap();
        assert_eq!(replaced, ("a \u{fffd}😀 \u{fffd}é".into(), 2));
    }

    #[test]
    fn what_is_no_json_line_says_so() {
        for (line, word) in [
            (r#"[{"text":"one"}]"#, "array"),
            (r#"{"text":"a"},"#, "trailing"),
            (r#"{"text":"a""#, "EOF"),
            ("{", "several lines"),
            ("rubbish", "not JSON"),
        ] {
            let error = text(line, "text").unwrap_err();
            assert!(error.contains(word) && error.contains("--as text"), "{line}: {error}");
        }
    }

    #[test]
    fn json_is_told_from_text() {
        for line in [r#"{"text": 1"#, "{}", "{", "[", "[1, 2]", r#"[ "a"#, "[[", "[{", "[]", "[1]"]
        {
            assert!(looks_like_json(line.as_bytes()), "{line}");
        }
        for line in
            ["{ not json }", "[1] a note", "[Intro]", "", "text", "{{template}}", "\"quoted\""]
        {
            assert!(!looks_like_json(line.as_bytes()), "{line}");
        }
    }
}
