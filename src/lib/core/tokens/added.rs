//! Added tokens: texts that are found ahead of the merges, in one pass over the text.
//!
//! The rules are those of Hugging Face's tokenizers 0.22 (`added_vocabulary.rs`), whose ids these
//! are: the leftmost match counts and of those the longest; what is marked as not normalized is
//! found first; `single_word`, `lstrip` and `rstrip` act on what was found; special tokens are found
//! too where they count as plain text, and then left in the text.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

/// A token that is found in the text before the merges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub content: String,
    /// Whether it steers (end of text) rather than being text.
    pub special: bool,
    /// Found only where no letter, digit or the like is beside it.
    pub single_word: bool,
    /// Takes the white space before it.
    pub lstrip: bool,
    /// Takes the white space behind it.
    pub rstrip: bool,
    /// Looked for in what the tokens without this mark have left.
    pub normalized: bool,
}

impl AddedToken {
    /// An end-of-text token.
    pub fn end_of_text(id: u32, content: &str) -> Self {
        AddedToken {
            id,
            content: content.into(),
            special: true,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
        }
    }

    /// The tokens that a `tokenizer.json` lists.
    pub fn listed(json: &Value) -> Vec<AddedToken> {
        let listed = json["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
        let token = |t: &Value| {
            let is = |key: &str| t[key].as_bool().unwrap_or(false);
            Some(AddedToken {
                id: u32::try_from(t["id"].as_u64()?).ok()?,
                content: t["content"].as_str()?.to_owned(),
                special: is("special"),
                single_word: is("single_word"),
                lstrip: is("lstrip"),
                rstrip: is("rstrip"),
                normalized: is("normalized"),
            })
        };
        listed.iter().filter_map(token).collect()
    }
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text between added tokens.
    Text(Range<usize>),
    /// The added token of this id, and the text that it takes the place of.
    Added(u32, Range<usize>),
}

/// Finds the added tokens of a tokenizer without a normalizer.
#[derive(Default)]
pub struct Finder {
    /// Those that are not normalized, then those that are.
    passes: Vec<Pass>,
}

struct Pass {
    automaton: AhoCorasick,
    tokens: Vec<AddedToken>,
    /// Whether all of them are special, so that nothing is found where those count as text.
    special: bool,
}

impl Finder {
    /// A finder of `tokens`.
    ///
    /// # Errors
    /// When they are too many for a search automaton.
    pub fn new(tokens: &[AddedToken]) -> Result<Finder, String> {
        let mut passes = Vec::new();
        for normalized in [false, true] {
            let tokens: Vec<AddedToken> = tokens
                .iter()
                .filter(|t| t.normalized == normalized && !t.content.is_empty())
                .cloned()
                .collect();
            if tokens.is_empty() {
                continue;
            }
            let automaton = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(tokens.iter().map(|t| &t.content))
                .map_err(|e| format!("the added tokens: {e}"))?;
            let special = tokens.iter().all(|t| t.special);
            passes.push(Pass { automaton, tokens, special });
        }
        Ok(Finder { passes })
    }

    /// Gives the parts of `text` in order. With `allow_special` special tokens are found too.
    ///
    /// # Errors
    /// Those of `give`.
    pub fn split<E>(
        &self,
        text: &str,
        allow_special: bool,
        give: &mut dyn FnMut(Part) -> Result<(), E>,
    ) -> Result<(), E> {
        split(&self.passes, text, 0, allow_special, give)
    }
}

/// Gives the parts of `text`, which begins at byte `start` of the whole.
fn split<E>(
    passes: &[Pass],
    text: &str,
    start: usize,
    allow_special: bool,
    give: &mut dyn FnMut(Part) -> Result<(), E>,
) -> Result<(), E> {
    let moved = |range: Range<usize>| start + range.start..start + range.end;
    match passes {
        [] => give(Part::Text(moved(0..text.len()))),
        [pass, others @ ..] if pass.special && !allow_special => {
            split(others, text, start, allow_special, give)
        }
        [pass, others @ ..] => pass.split(text, allow_special, &mut |part| match part {
            Part::Added(id, range) => give(Part::Added(id, moved(range))),
            Part::Text(range) => {
                split(others, &text[range.clone()], start + range.start, allow_special, give)
            }
        }),
    }
}

impl Pass {
    fn split<E>(
        &self,
        text: &str,
        allow_special: bool,
        give: &mut dyn FnMut(Part) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        let mut space = 0..0; // the last run of white space behind a token, looked through once
        for found in self.automaton.find_iter(text) {
            let token = &self.tokens[found.pattern().as_usize()];
            let (mut start, mut end) = (found.start(), found.end());
            let in_word = || {
                text[..start].chars().next_back().is_some_and(is_word)
                    || text[end..].chars().next().is_some_and(is_word)
            };
            if (token.special && !allow_special) || (token.single_word && in_word()) {
                continue;
            }
            if token.lstrip {
                // White space that the token before has taken is not taken twice.
                start = done + text.get(done..start).map_or(0, |t| t.trim_end().len());
            }
            if token.rstrip {
                if !(space.start..=space.end).contains(&end) {
                    space = end..text.len() - text[end..].trim_start().len();
                }
                end = end.max(space.end);
            }
            if done < start {
                give(Part::Text(done..start))?;
            }
            // Where others have taken all of its text it is none.
            if start < end {
                give(Part::Added(token.id, start..end))?;
            }
            done = end;
        }
        if done < text.len() { give(Part::Text(done..text.len())) } else { Ok(()) }
    }
}

/// Whether a character is `\w` to the regex crate, which the library asks here.
fn is_word(c: char) -> bool {
    regex_syntax::try_is_word_character(c).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Tokenizer;
    use proptest::prelude::*;
    use serde_json::json;

    /// GPT-2's vocabulary with these tokens added.
    fn with_added(added: Value) -> (Tokenizer, tokenizers::Tokenizer) {
        let gpt2 = Tokenizer::gpt2().unwrap();
        let mut json: Value = serde_json::from_slice(gpt2.json()).unwrap();
        json["added_tokens"] = added;
        let bytes = serde_json::to_vec(&json).unwrap();
        let library = tokenizers::Tokenizer::from_bytes(&bytes).unwrap();
        let own = Tokenizer::from_json("t", bytes).unwrap();
        assert!(own.has_own_engine());
        (own, library)
    }

    fn token(id: u32, content: &str, marks: &[&str]) -> Value {
        let is = |mark: &str| marks.contains(&mark);
        json!({"id": id, "content": content, "single_word": is("single_word"),
            "lstrip": is("lstrip"), "rstrip": is("rstrip"), "normalized": is("normalized"),
            "special": is("special")})
    }

    fn both_kinds() -> (Tokenizer, tokenizers::Tokenizer) {
        with_added(json!([
            token(9246, "cat", &["single_word", "normalized"]), // also a word of the vocabulary
            token(50_256, "<|endoftext|>", &["special"]),
            token(50_257, "<m>", &["lstrip", "normalized"]),
            token(50_258, "<r>", &["rstrip"]),
            token(397, "ab", &["normalized"]),
            token(50_259, "abq", &[]),
            token(50_260, " ", &["lstrip", "rstrip", "normalized"]),
            token(50_261, "<sp>", &["special", "lstrip", "rstrip"]),
            token(50_262, "é!", &["normalized", "single_word"]),
        ]))
    }

    #[test]
    fn single_words_and_stripped_blanks_are_those_of_the_library() {
        let (own, library) = both_kinds();
        let ids = own.encode("cat concatenate cat").unwrap();
        assert_eq!((ids[0], ids[ids.len() - 1], ids[1]), (9246, 9246, 50_260));
        for text in
            ["cat concatenate cat", "a  <m>  b <r>  \n<m> ab abq", "<r>   <m>", "cat\u{200d}cat"]
        {
            let expected = library.encode(text, false).unwrap();
            let own = Tokenizer::from_json("t", own.json().to_vec()).unwrap().allow_special(true);
            assert_eq!(own.encode(text).unwrap(), expected.get_ids(), "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        #[test]
        fn ids_are_those_of_the_library(
            parts in proptest::collection::vec(
                proptest::sample::select(vec!["cat", "<m>", "<r>", "ab", "q", " ", "  ", "\n", "é!", "<sp>",
                    "<|endoftext|>", "x", "\u{200d}", "日", "\u{a0}", ".", "7"]), 0..24),
            allow in any::<bool>(),
        ) {
            use std::sync::OnceLock;
            static ENGINES: OnceLock<[(Tokenizer, tokenizers::Tokenizer); 2]> = OnceLock::new();
            let engines = ENGINES.get_or_init(|| {
                let (plain, mut plain_library) = both_kinds();
                plain_library.set_encode_special_tokens(true);
                let (special, special_library) = both_kinds();
                [(plain, plain_library), (special.allow_special(true), special_library)]
            });
            let (own, library) = &engines[usize::from(allow)];
            let text = parts.concat();
            let expected = std::panic::catch_unwind(|| library.encode(text.as_str(), false));
            // Blanks that two tokens take make the library panic.
            if let Ok(expected) = expected {
                let expected = expected.unwrap();
                prop_assert_eq!(own.encode(&text).unwrap(), expected.get_ids(), "{:?}", text);
            }
        }
    }

    #[test]
    fn time_grows_as_the_text_does() {
        let (own, _) = with_added(json!([
            token(50_256, "<|endoftext|>", &["special"]),
            token(397, "ab", &["normalized"]),
            token(50_257, "zq!", &["normalized"]),
            token(50_258, " ", &["lstrip", "rstrip"]),
        ]));
        let seconds = |megabytes: usize| {
            let text = "ab cd zq!  \u{e9} ".repeat(megabytes << 16);
            let start = std::time::Instant::now();
            assert!(own.encode(&text).unwrap().len() > text.len() / 4);
            start.elapsed().as_secs_f64()
        };
        seconds(1);
        let (one, four) = (seconds(1), seconds(4));
        assert!(four < 12.0 * one, "{one} s, then {four} s for four times the text");
    }
}
