//! `tokenizer.json` of byte-level BPE vocabularies, read and written (Hugging Face's format).
//!
//! Only what the fast path encodes exactly is read here: a BPE model over the byte alphabet, the
//! ByteLevel pre-tokenizer with GPT-2's pattern, nothing that rewrites the text. Everything else is
//! left to the tokenizers crate, after [`settle`] has settled what would make it differ from one run
//! to the next or from the published library.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::added::AddedToken;
use super::bpe::ByteBpe;
use super::pattern;

/// The character that stands for each byte in a vocabulary (GPT-2's `bytes_to_unicode`): printable
/// Latin-1 stands for itself, the rest is numbered from U+0100 on.
pub fn byte_chars() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        table[usize::from(byte)] = if printable {
            char::from(byte)
        } else {
            next += 1;
            // 68 numbers from U+0100 on, all of them characters.
            char::from_u32(next - 1).unwrap_or('\0')
        };
    }
    table
}

/// A vocabulary's text for `bytes`.
pub fn bytes_to_text(bytes: &[u8], table: &[char; 256]) -> String {
    bytes.iter().map(|&b| table[usize::from(b)]).collect()
}

/// The bytes of a vocabulary's text; `None` where it has characters outside the byte alphabet.
pub fn text_to_bytes(text: &str, chars: &HashMap<char, u8>) -> Option<Box<[u8]>> {
    text.chars().map(|c| chars.get(&c).copied()).collect()
}

/// The byte of each character of [`byte_chars`].
pub fn char_bytes() -> HashMap<char, u8> {
    byte_chars().into_iter().zip(0..=255u8).collect()
}

/// Settles what encoding must not depend on: dropout is turned off, and the patterns of `Split` and
/// `Replace` mean what they mean to the published library, whose regular expressions are Oniguruma's.
/// Returns what was changed of the tokenizer's law, for people.
pub fn settle(json: &mut Value) -> Vec<String> {
    let mut notes = Vec::new();
    let dropout = json["model"]["dropout"].as_f64().filter(|&p| p > 0.0);
    if let (Some(dropout), Some(model)) = (dropout, json["model"].as_object_mut()) {
        model.insert("dropout".into(), Value::Null);
        notes.push(format!("its dropout of {dropout} is off: a text has one encoding"));
    }
    for part in ["normalizer", "pre_tokenizer", "decoder"] {
        if json[part].is_object() {
            settle_patterns(&mut json[part]);
        }
    }
    notes
}

fn settle_patterns(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match value {
                    Value::String(text) if key == "Regex" => *text = pattern::from_oniguruma(text),
                    _ => settle_patterns(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle_patterns),
        _ => {}
    }
}

/// Reads a vocabulary that [`ByteBpe`] encodes exactly; `None` for any other kind.
///
/// # Errors
/// When it claims to be of this kind but is not whole.
pub fn read(json: &Value) -> Result<Option<ByteBpe>, String> {
    if !is_plain_byte_level(json) {
        return Ok(None);
    }
    let model = &json["model"];
    let chars = char_bytes();
    let Some(vocab) = model["vocab"].as_object() else {
        return Err("model.vocab is missing".into());
    };
    let added = AddedToken::listed(json);
    if !numbered_as_listed(&added, vocab) {
        return Ok(None);
    }
    // Ids are dense in practice; a hostile one must not size an allocation.
    let limit = 4 * (vocab.len() + added.len()) + 1024;
    let mut tokens: Vec<Option<Box<[u8]>>> = Vec::with_capacity(vocab.len());
    let mut ids: HashMap<&str, u32> = HashMap::with_capacity(vocab.len());
    for (text, id) in vocab {
        let id = id
            .as_u64()
            .filter(|&id| id < limit as u64)
            .ok_or_else(|| format!("the id {id} of token {text:?} is no id of this vocabulary"))?;
        let at = id as usize;
        if tokens.len() <= at {
            tokens.resize(at + 1, None);
        }
        tokens[at] = text_to_bytes(text, &chars);
        // An added token may have any text: nothing but itself makes it.
        if tokens[at].is_none() && added.iter().all(|t| u64::from(t.id) != id) {
            return Ok(None);
        }
        ids.insert(text, id as u32);
    }
    if let Some(token) = added.iter().find(|t| t.id as usize >= limit) {
        return Err(format!("the id {} of token {:?} is too large", token.id, token.content));
    }
    let mut merges = Vec::new();
    for merge in model["merges"].as_array().ok_or("model.merges is missing")? {
        let pair = match merge {
            Value::String(s) => s.split_once(' '),
            Value::Array(a) => match a.as_slice() {
                [Value::String(l), Value::String(r)] => Some((l.as_str(), r.as_str())),
                _ => None,
            },
            _ => None,
        };
        let pair = pair.and_then(|(l, r)| Some((*ids.get(l)?, *ids.get(r)?)));
        merges.push(pair.ok_or_else(|| format!("the merge {merge} is no pair of tokens"))?);
    }
    let bpe = ByteBpe::new(tokens, merges)?;
    // The library has an unknown token for bytes without one of their own; here they are an error.
    let unknown = model["unk_token"].is_string()
        && bpe.missing_byte(&(0..=255).collect::<Vec<_>>()).is_some();
    Ok(if unknown { None } else { Some(bpe) })
}

/// Whether the library gives added tokens the ids that are listed: those of the vocabulary for the
/// words in it, then the next free ones in turn.
fn numbered_as_listed(added: &[AddedToken], vocab: &serde_json::Map<String, Value>) -> bool {
    let mut next = vocab.len() as u64;
    let mut seen = std::collections::HashSet::new();
    added.iter().filter(|t| !t.content.is_empty()).all(|token| {
        let id = vocab.get(&token.content).and_then(Value::as_u64).unwrap_or_else(|| {
            next += 1;
            next - 1
        });
        seen.insert(&token.content) && id == u64::from(token.id)
    })
}

/// Whether everything beside vocabulary and merges is as GPT-2 has it.
fn is_plain_byte_level(json: &Value) -> bool {
    let model = &json["model"];
    let unset = |v: &Value| v.is_null() || *v == json!("") || *v == json!(false);
    let byte_level = |v: &Value| {
        v["type"] == "ByteLevel" && v["add_prefix_space"] == false && v["use_regex"] != false
    };
    let post = &json["post_processor"];
    (model["type"] == "BPE" || (model["type"].is_null() && model["merges"].is_array()))
        && ["dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"]
            .iter()
            .all(|key| unset(&model[*key]) || (*key == "unk_token" && model[*key].is_string()))
        && unset(&model["byte_fallback"])
        && unset(&model["ignore_merges"])
        && json["normalizer"].is_null()
        && json["truncation"].is_null()
        && json["padding"].is_null()
        && byte_level(&json["pre_tokenizer"])
        && (post.is_null() || post["type"] == "ByteLevel")
        && json["decoder"]["type"] == "ByteLevel"
}

/// Writes a vocabulary with one special token, the end of text.
pub fn write(bpe: &ByteBpe, end_of_text: (&str, u32)) -> Vec<u8> {
    let table = byte_chars();
    let text = |id: u32| bytes_to_text(bpe.bytes(id).unwrap_or_default(), &table);
    let (end_text, end_id) = end_of_text;
    let mut vocab = serde_json::Map::new();
    for id in 0..bpe.size().max(end_id as usize + 1) as u32 {
        let token = if id == end_id { end_text.to_owned() } else { text(id) };
        vocab.insert(token, id.into());
    }
    let merges: Vec<Value> = bpe.merges().iter().map(|&(l, r)| json!([text(l), text(r)])).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let json = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [{
            "id": end_id, "content": end_text, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true
        }],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocab, "merges": merges
        }
    });
    let mut bytes = json.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}
