//! GPT-2's cutting of text into pieces, within which merges happen.
//!
//! The rule is the pattern
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
//! (openai/gpt-2, `encoder.py`), written out as one pass over the text: a backtracking engine is
//! several times slower. Classes come from the same Unicode tables as the `regex` crate's.

use std::sync::OnceLock;

/// What a character is to the pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Class {
    Other = 0,
    Letter = 1,
    Number = 2,
    Space = 3,
}

/// The class of each character up to U+FFFF, and ranges beyond.
struct Classes {
    low: Vec<Class>,
    high: Vec<(u32, u32, Class)>,
}

impl Classes {
    fn get() -> &'static Classes {
        static CLASSES: OnceLock<Classes> = OnceLock::new();
        CLASSES.get_or_init(|| {
            let mut classes = Classes { low: vec![Class::Other; 0x1_0000], high: Vec::new() };
            for (pattern, class) in
                [(r"\p{L}", Class::Letter), (r"\p{N}", Class::Number), (r"\s", Class::Space)]
            {
                for (first, last) in ranges(pattern) {
                    for c in first..=last.min(0xffff) {
                        classes.low[c as usize] = class;
                    }
                    if last > 0xffff {
                        classes.high.push((first.max(0x1_0000), last, class));
                    }
                }
            }
            classes.high.sort_unstable_by_key(|&(first, _, _)| first);
            classes
        })
    }

    #[inline]
    fn of(&self, c: char) -> Class {
        let c = c as u32;
        if let Some(&class) = self.low.get(c as usize) {
            return class;
        }
        let after = self.high.partition_point(|&(first, _, _)| first <= c);
        match after.checked_sub(1).map(|i| self.high[i]) {
            Some((_, last, class)) if c <= last => class,
            _ => Class::Other,
        }
    }
}

/// The ranges of code points of a class in the regex crate's own tables.
fn ranges(pattern: &str) -> Vec<(u32, u32)> {
    use regex_syntax::hir::{Class as HirClass, HirKind};
    let hir = regex_syntax::parse(pattern).map(regex_syntax::hir::Hir::into_kind);
    match hir {
        Ok(HirKind::Class(HirClass::Unicode(class))) => {
            class.iter().map(|r| (u32::from(r.start()), u32::from(r.end()))).collect()
        }
        // The three patterns above are constants that parse to classes.
        _ => unreachable!("{pattern} is a class"),
    }
}

/// The pieces of a text, in order; together they are the text.
pub struct Pieces<'a> {
    text: &'a str,
    at: usize,
    classes: &'static Classes,
}

impl<'a> Pieces<'a> {
    /// Cuts `text`.
    pub fn new(text: &'a str) -> Self {
        Pieces { text, at: 0, classes: Classes::get() }
    }

    /// The character at `at`, its length in bytes and its class; `None` at the end.
    #[inline]
    fn char_at(&self, at: usize) -> Option<(usize, Class)> {
        let byte = *self.text.as_bytes().get(at)?;
        if byte < 0x80 {
            return Some((1, self.classes.low[usize::from(byte)]));
        }
        let c = self.text[at..].chars().next()?;
        Some((c.len_utf8(), self.classes.of(c)))
    }

    /// The end of the run of `class` that starts at `at`.
    #[inline]
    fn run(&self, mut at: usize, class: Class) -> usize {
        while let Some((len, found)) = self.char_at(at) {
            if found != class {
                break;
            }
            at += len;
        }
        at
    }

    /// The end of a run of space that starts at `start`: all of it at the end of the text, else
    /// without its last character, which may open the next piece.
    fn space_run(&self, start: usize) -> usize {
        let (mut at, mut last) = (start, start);
        while let Some((len, Class::Space)) = self.char_at(at) {
            last = at;
            at += len;
        }
        if at == self.text.len() || last == start { at } else { last }
    }

    /// The length of the contraction at `at`, or 0.
    fn contraction(&self, at: usize) -> usize {
        let bytes = &self.text.as_bytes()[at..];
        match bytes {
            [b'\'', b's' | b't' | b'm' | b'd', ..] => 2,
            [b'\'', b'r', b'e', ..] | [b'\'', b'v', b'e', ..] | [b'\'', b'l', b'l', ..] => 3,
            _ => 0,
        }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    #[inline]
    fn next(&mut self) -> Option<&'a str> {
        let start = self.at;
        let (len, class) = self.char_at(start)?;
        let contraction = self.contraction(start);
        let end = if contraction > 0 {
            start + contraction
        } else if class != Class::Space {
            self.run(start + len, class)
        } else {
            match self.char_at(start + len) {
                Some((next, class))
                    if class != Class::Space && self.text.as_bytes()[start] == b' ' =>
                {
                    self.run(start + len + next, class)
                }
                _ => self.space_run(start),
            }
        };
        self.at = end;
        Some(&self.text[start..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_take_the_space_before_them_and_runs_of_space_keep_their_last_one() {
        let cut = |text| Pieces::new(text).collect::<Vec<_>>();
        assert_eq!(
            cut("I'll see  3 cats\n\nok "),
            ["I", "'ll", " see", " ", " 3", " cats", "\n", "\n", "ok", " "]
        );
        assert_eq!(cut("a\u{a0}b \t "), ["a", "\u{a0}", "b", " \t "]);
        assert!(cut("").is_empty());
    }

    proptest! {
        #[test]
        fn the_pass_cuts_where_the_pattern_cuts(text in "[a-c'stl0-9 \\n\\u{a0}é日!😀\\u{3000}½]{0,40}") {
            let pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
            let regex = tokenizers::utils::SysRegex::new(pattern).unwrap();
            let expected: Vec<&str> = regex.find_iter(&text).map(|(a, b)| &text[a..b]).collect();
            prop_assert_eq!(Pieces::new(&text).collect::<Vec<_>>(), expected);
        }
    }
}
