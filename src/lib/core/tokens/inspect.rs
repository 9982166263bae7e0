//! What a shard or a shard folder holds, for people.

use std::fmt::Write;
use std::path::Path;

use super::decode::folder_tokenizer;
use super::{Dataset, OpenOptions, Tokenizer};
use crate::Result;

/// Tokens shown as text.
const SHOWN: u64 = 64;

/// Describes `path` after checking it whole: header, sizes, hashes, ids.
///
/// # Errors
/// When anything is wrong with it; the error names the shard and the byte.
pub fn inspect(path: &Path, options: &OpenOptions, tokenizer: Option<&str>) -> Result<String> {
    let options = OpenOptions { verify: true, ..options.clone() };
    let data = Dataset::open(path, &options)?;
    let tokenizer = match tokenizer {
        None if path.is_file() && data.vocab_size() == 50_257 => Some(Tokenizer::gpt2()?),
        named => folder_tokenizer(path, data.manifest(), named)?,
    };
    let mut out = String::new();
    let manifest = data.manifest();
    let mut line = |key: &str, value: String| {
        let _ = writeln!(out, "{key:<14}{value}"); // a String takes everything
    };
    line("path", path.display().to_string());
    line("written by", manifest.created_by.clone());
    line("tokens", data.token_count().to_string());
    if manifest.totals.documents > 0 {
        line("documents", manifest.totals.documents.to_string());
        line("text bytes", manifest.totals.bytes_of_text.to_string());
    }
    line("vocabulary", manifest.vocab_size.to_string());
    line("end token", manifest.eos_id.map_or("none".into(), |id| id.to_string()));
    if let Some(entry) = &manifest.tokenizer {
        let lossy = if entry.lossy == Some(true) { ", may rewrite the text" } else { "" };
        line("tokenizer", format!("{} ({}{lossy})", entry.name, entry.hash));
    }
    line("packing", serde_json::to_string(&manifest.packing).unwrap_or_default());
    for (shard, entry) in data.shards().iter().zip(&manifest.shards) {
        check_ids(&data, shard)?;
        let kind = format!("{:?}", shard.width()).to_lowercase();
        line(
            "shard",
            format!("{} {} {kind} tokens, xxh3 {}", entry.file, entry.tokens, entry.xxh3),
        );
    }
    let mut ids = Vec::new();
    data.read(0, data.token_count().min(SHOWN) as usize, &mut ids)?;
    line("first ids", serde_json::to_string(&ids).unwrap_or_default());
    if let Some(tokenizer) = tokenizer {
        let text = tokenizer.decode_lossy(&ids);
        line("first text", serde_json::to_string(&text).unwrap_or_default());
    }
    line("check", "whole: sizes, hashes and ids are as they should be".into());
    Ok(out)
}

/// Reads every id once; reading checks it against the vocabulary.
fn check_ids(data: &Dataset, shard: &crate::format::shard::Shard) -> Result<()> {
    let mut ids = Vec::new();
    let mut at = 0;
    while at < shard.len() {
        let part = (shard.len() - at).min(1 << 16) as usize;
        ids.clear();
        shard.read(at, part, data.vocab_size(), &mut ids)?;
        at += part as u64;
    }
    Ok(())
}
