//! What files of scores are of: rows of one table score the same tokens, and sets have names by which
//! they are told apart.

use std::path::Path;

use crate::score::ScoreFile;
use crate::{Error, Result};

/// Refuses files that score the same shards, but not the same of their tokens. A model that is given
/// the first token of a block may leave out blocks of one token, which it cannot score.
///
/// # Errors
/// When one was interrupted, or two differ; the text names both.
pub(super) fn check_same_tokens(files: &[ScoreFile]) -> Result<()> {
    for (i, file) in files.iter().enumerate() {
        let summary = file.summary()?;
        let earlier = files[..i].iter().find(|other| shards_of(other) == shards_of(file));
        let Some(other) = earlier.filter(|other| spans(other) == spans(file)) else { continue };
        let of_other = other.summary()?;
        let slack = |s: &crate::score::Summary| s.sequences_left_out.unwrap_or(0) * s.given_tokens;
        let (here, there) = (tokens_read(file)?, tokens_read(other)?);
        let first = |f: &ScoreFile| f.sequences.first().map(|r| r.index);
        let begins_alike = first(file) == first(other) || slack(summary) + slack(of_other) > 0;
        if here.abs_diff(there) > slack(summary) + slack(of_other) || !begins_alike {
            return Err(Error::input_at(
                &file.path,
                format!(
                    "reads {here} tokens in {} sequences from number {}, {} reads {there} in {} \
                     from number {}; rows of one set score the same tokens (--skip, \
                     --max-sequences)",
                    summary.sequences,
                    first(file).unwrap_or(0),
                    other.path.display(),
                    of_other.sequences,
                    first(other).unwrap_or(0),
                ),
            ));
        }
    }
    Ok(())
}

/// Tokens that are scored or given, where whole blocks are scored.
fn tokens_read(file: &ScoreFile) -> Result<u64> {
    let summary = file.summary()?;
    let given = if spans(file).is_some() { 0 } else { summary.given_tokens };
    Ok(summary.token_count + summary.sequences * given)
}

/// What is held out, where that is not everything.
fn spans(file: &ScoreFile) -> Option<String> {
    file.option("cloze")
}

/// The shards: their hash, or their path.
fn shards_of(file: &ScoreFile) -> Option<String> {
    file.shards_hash().map(str::to_owned).or_else(|| file.option("shards"))
}

/// A name for the set of each file: the end of its path, as long as it takes to tell sets apart.
pub(super) fn set_names(files: &[ScoreFile]) -> Vec<String> {
    let path = |file: &ScoreFile| file.option("shards").unwrap_or_else(|| "not recorded".into());
    let end = |path: &str, parts: usize| {
        let all: Vec<_> = Path::new(path).components().collect();
        let end = all[all.len().saturating_sub(parts)..].iter();
        end.collect::<std::path::PathBuf>().display().to_string()
    };
    files
        .iter()
        .map(|file| {
            let others = files.iter().filter(|other| shards_of(other) != shards_of(file));
            let others: Vec<String> = others.map(path).collect();
            let own = path(file);
            let longest = Path::new(&own).components().count().max(1);
            let alone = |parts: &usize| others.iter().all(|o| end(o, *parts) != end(&own, *parts));
            match (1..=longest).find(alone) {
                Some(parts) => end(&own, parts),
                // One path that held two sets in turn.
                None => format!("{own} ({})", file.shards_hash().unwrap_or("no hash")),
            }
        })
        .collect()
}

/// Refuses scores in which a sequence comes twice, as when two programs wrote one file.
///
/// # Errors
/// Names the first such sequence.
pub(super) fn refuse_repeats(file: &ScoreFile) -> Result<()> {
    let mut numbers: Vec<u64> = file.sequences.iter().map(|record| record.index).collect();
    numbers.sort_unstable();
    match numbers.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            let what = format!("sequence {} stands there twice; score the set again", pair[0]);
            Err(Error::input_at(&file.path, what))
        }
    }
}
