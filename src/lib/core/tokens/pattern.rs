//! Patterns of a `tokenizer.json` in the sense of the published library.
//!
//! Its wheels compile them with Oniguruma, this build with fancy-regex. Texts show three differences:
//! a joiner (U+200C, U+200D) is `\w` only here, superscripts and fractions of Latin-1 are `\w` only
//! there (outside of brackets), and `^` and `$` are those of any line only there.
//! `testdata/golden/tokenizer/patterns.json` keeps cuts of the published library.

/// Word characters of Oniguruma: by themselves, and as one of the signs of a bracket.
const WORD: [&str; 2] =
    [r"[[\w--[\x{200c}\x{200d}]]\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}]", r"[\w--[\x{200c}\x{200d}]]"];
/// Everything else.
const NO_WORD: [&str; 2] =
    [r"[[\W--[\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}]]\x{200c}\x{200d}]", r"[\W\x{200c}\x{200d}]"];

/// The pattern with its word characters, word bounds and line ends spelt out.
pub fn from_oniguruma(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let w = WORD[0];
    let mut depth = 0; // of brackets
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, depth) {
            ('\\', _) => match (chars.next(), depth) {
                (Some('w'), _) => out.push_str(WORD[usize::from(depth > 0)]),
                (Some('W'), _) => out.push_str(NO_WORD[usize::from(depth > 0)]),
                (Some('b'), 0) => out.push_str(&format!("(?:(?<={w})(?!{w})|(?<!{w})(?={w}))")),
                (Some('B'), 0) => out.push_str(&format!("(?:(?<={w})(?={w})|(?<!{w})(?!{w}))")),
                (Some(other), _) => out.extend(['\\', other]),
                (None, _) => out.push('\\'),
            },
            ('[', _) => {
                depth += 1;
                out.push('[');
                // A bracket or caret that opens a class is one of its signs.
                if chars.peek() == Some(&'^') {
                    out.extend(chars.next());
                }
                if chars.peek() == Some(&']') {
                    out.push('\\');
                    out.extend(chars.next());
                }
            }
            (']', 1..) => {
                depth -= 1;
                out.push(']');
            }
            ('^', 0) => out.push_str("(?m:^)"),
            ('$', 0) => out.push_str("(?m:$)"),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_those_of_the_published_library() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../testdata/golden/tokenizer/patterns.json"
        );
        let golden: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for case in golden.as_array().unwrap() {
            let pattern = case["pattern"].as_str().unwrap();
            let regex = tokenizers::utils::SysRegex::new(&from_oniguruma(pattern))
                .unwrap_or_else(|e| panic!("{pattern}: {e}"));
            for text in case["texts"].as_array().unwrap() {
                let whole = text["text"].as_str().unwrap();
                let found: Vec<&str> =
                    regex.find_iter(whole).map(|(start, end)| &whole[start..end]).collect();
                assert_eq!(serde_json::json!(found), text["found"], "{pattern} on {whole:?}");
            }
        }
    }
}
