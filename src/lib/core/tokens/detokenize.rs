//! The published detokenizers: benchmark corpora come cut into words, models read running text.
//!
//! The rules are those of the SEDD loaders, which RADD, MDLM and AO-GPT share, faults included: a
//! figure compares with the papers' only if the text is theirs to the byte. `\s`, `\w` and `$`
//! mean what Python's `re` means by them.

use std::borrow::Cow;
use std::sync::OnceLock;

use regex::Regex;

/// Which corpus the text comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Detokenizer {
    /// The text as it is.
    None,
    /// One Billion Word.
    Lm1b,
    /// WikiText-2 and WikiText-103, raw.
    Wikitext,
    /// Penn Treebank.
    Ptb,
    /// LAMBADA, OpenAI's version.
    Lambada,
}

impl Detokenizer {
    /// The name on the command line and in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Detokenizer::None => "none",
            Detokenizer::Lm1b => "lm1b",
            Detokenizer::Wikitext => "wikitext",
            Detokenizer::Ptb => "ptb",
            Detokenizer::Lambada => "lambada",
        }
    }

    /// The running text of one document.
    pub fn apply(self, text: &str) -> Cow<'_, str> {
        match self {
            Detokenizer::None => Cow::Borrowed(text),
            Detokenizer::Lm1b => Cow::Owned(run(lm1b_rules(), text)),
            Detokenizer::Wikitext => Cow::Owned(run(wikitext_rules(), text)),
            Detokenizer::Ptb => Cow::Owned(run(ptb_rules(), text)),
            Detokenizer::Lambada => Cow::Owned(lambada(text)),
        }
    }
}

/// One rewrite over the whole text.
enum Rule {
    Literal(&'static str, &'static str),
    Pattern(Regex, &'static str),
}

fn run(rules: &[Rule], text: &str) -> String {
    let mut text = text.to_owned();
    for rule in rules {
        match rule {
            Rule::Literal(from, to) => {
                if text.contains(from) {
                    text = text.replace(from, to);
                }
            }
            Rule::Pattern(pattern, to) => {
                if let Cow::Owned(changed) = pattern.replace_all(&text, *to) {
                    text = changed;
                }
            }
        }
    }
    text
}

fn pattern(pattern: &str, to: &'static str) -> Rule {
    match Regex::new(pattern) {
        Ok(pattern) => Rule::Pattern(pattern, to),
        // The patterns below are constants, and the golden test compiles them all.
        Err(e) => unreachable!("{pattern}: {e}"),
    }
}

fn lm1b_rules() -> &'static [Rule] {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    RULES.get_or_init(|| {
        use Rule::Literal;
        vec![
            Literal("http : / / ", "http://"),
            Literal("https : / / ", "https://"),
            pattern(r" '([\p{L}\p{N}_]+)", "'$1"),
            pattern(r" ([\p{L}\p{N}_]+) \. ", " $1. "),
            pattern(r" ([\p{L}\p{N}_]+) \.(\n?)\z", " $1.$2"),
            Literal(" ? ", "? "),
            pattern(r" \?(\n?)\z", "?$1"),
            Literal(" ! ", "! "),
            pattern(r" !(\n?)\z", "!$1"),
            Literal(" , ", ", "),
            Literal(" : ", ": "),
            Literal(" ; ", "; "),
            Literal(" / ", "/"),
            pattern("\" ([^\"]+) \"", "\"$1\""),
            pattern("' ([^']+) '", "'$1'"),
            pattern(r"\( ([^()]+) \)", "($1)"),
            pattern(r"\[ ([^\[\]]+) \]", "[$1]"),
            Literal("$ ", "$"),
            Literal("£ ", "£"),
        ]
    })
}

fn wikitext_rules() -> &'static [Rule] {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    RULES.get_or_init(|| {
        use Rule::Literal;
        vec![
            Literal("s '", "s'"),
            // As published: the slashes are literal, so it fires on no normal text.
            pattern("/' [0-9]/", "/'[0-9]/"),
            Literal(" @-@ ", "-"),
            Literal(" @,@ ", ","),
            Literal(" @.@ ", "."),
            Literal(" : ", ": "),
            Literal(" ; ", "; "),
            Literal(" . ", ". "),
            Literal(" ! ", "! "),
            Literal(" ? ", "? "),
            Literal(" , ", ", "),
            pattern(r"\([\s\x1c-\x1f]*([^)]*?)[\s\x1c-\x1f]*\)", "($1)"),
            pattern(r"\[[\s\x1c-\x1f]*([^\]]*?)[\s\x1c-\x1f]*\]", "[$1]"),
            pattern(r"\{[\s\x1c-\x1f]*([^}]*?)[\s\x1c-\x1f]*\}", "{$1}"),
            pattern("\"[\\s\\x1c-\\x1f]*([^\"]*?)[\\s\\x1c-\\x1f]*\"", "\"$1\""),
            pattern(r"'[\s\x1c-\x1f]*([^']*?)[\s\x1c-\x1f]*'", "'$1'"),
            Literal("= = = =", "===="),
            Literal("= = =", "==="),
            Literal("= =", "=="),
            Literal(" ° ", "°"),
            Literal(" \n", "\n"),
            Literal("\n ", "\n"),
            Literal(" N ", " 1 "),
            Literal(" 's", "'s"),
        ]
    })
}

fn ptb_rules() -> &'static [Rule] {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    RULES.get_or_init(|| {
        use Rule::Literal;
        let mut rules = vec![
            Literal(" 's", "'s"),
            Literal("s ' ", "s' "),
            Literal(" n't", "n't"),
            Literal(" \n ", "\n"),
            Literal("\\/", "/"),
        ];
        // Matches overlap in " N N ", so one pass misses every second one.
        rules.extend((0..10).map(|_| Literal(" N ", " 1 ")));
        rules.extend([Literal("$ 1", "$1"), Literal("# 1", "#1"), Literal("<unk>", "?")]);
        rules
    })
}

fn lambada(text: &str) -> String {
    let straight = text.replace(['“', '”'], "\"");
    let python_space = |c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
    format!("\n{}", straight.trim_matches(python_space))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_four_give_the_published_text() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../testdata/golden/detok/detokenizers.json"
        );
        let golden: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let mut cases = 0;
        for detokenizer in
            [Detokenizer::Lm1b, Detokenizer::Wikitext, Detokenizer::Ptb, Detokenizer::Lambada]
        {
            for case in golden[detokenizer.name()].as_array().unwrap() {
                let input = case["input"].as_str().unwrap();
                assert_eq!(detokenizer.apply(input), case["output"].as_str().unwrap(), "{input:?}");
                cases += 1;
            }
        }
        assert_eq!(cases, 25);
    }
}
