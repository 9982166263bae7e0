//! Texts with gaps: what stands left and right of a gap is tokenized as the whole text would be.
//!
//! Each stretch of text is encoded with a stand-in for the token of the gap beside it, and the ids
//! that stand for text of the stretch alone are kept. So a blank that tokens carry in front of their
//! word belongs to the gap, and text behind a gap goes on a word where no blank is between.

use super::tokenizer::Tokenizer;
use crate::Result;

/// Stand-ins for the token of a gap, tried in turn until the tokens keep it apart from the text.
const STAND_INS: [&str; 9] = ["q", "x", "k", "the", "j", "Q", "0", "!", "中"];

/// A part of a text with gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GappedPart<'a> {
    /// Text; neighbours are one text.
    Text(&'a str),
    /// A gap of so many tokens.
    Gap(usize),
}

impl Tokenizer {
    /// An id for each position of a text with gaps, or none in a gap.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with_gaps(&self, parts: &[GappedPart]) -> Result<Vec<Option<u32>>> {
        let mut out = Vec::new();
        let (mut text, mut behind_gap) = (String::new(), false);
        for part in parts {
            match *part {
                GappedPart::Text(more) => text.push_str(more),
                GappedPart::Gap(0) => {}
                GappedPart::Gap(size) => {
                    out.extend(self.stretch(behind_gap, &text, true)?.into_iter().map(Some));
                    out.resize(out.len() + size, None);
                    text.clear();
                    behind_gap = true;
                }
            }
        }
        out.extend(self.stretch(behind_gap, &text, false)?.into_iter().map(Some));
        Ok(out)
    }

    /// The ids of a text that follows a gap, or is followed by one, or both.
    fn stretch(&self, behind_gap: bool, text: &str, before_gap: bool) -> Result<Vec<u32>> {
        if text.is_empty() || !(behind_gap || before_gap) {
            return self.encode(text);
        }
        let mut second_best = None;
        for stand_in in STAND_INS {
            let left = if behind_gap { stand_in } else { "" };
            let right = if before_gap { stand_in } else { "" };
            let whole = format!("{left}{text}{right}");
            let (start, end) = (left.len(), left.len() + text.len());
            let mut ids = Vec::new();
            let (mut apart, mut lone_blank) = (true, false);
            for (id, span) in self.encode_spans(&whole)? {
                if span.start >= start && span.end <= end {
                    ids.push(id);
                    lone_blank = before_gap && span.end == end && whole.get(span) == Some(" ");
                } else if let Some(shared) = whole.get(span.start.max(start)..span.end.min(end)) {
                    apart &= shared.trim().is_empty();
                }
            }
            match (apart, lone_blank) {
                (true, false) => return Ok(ids),
                (true, true) => second_best = second_best.or(Some(ids)),
                (false, _) => {}
            }
        }
        // A vocabulary with tokens of every stand-in and what is beside it: the text by itself.
        second_best.map_or_else(|| self.encode(text), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::GappedPart::{Gap, Text};
    use super::*;
    use serde_json::{Value, json};

    /// The tokens of a gapped text, a gap as `_`.
    fn shown(tokenizer: &Tokenizer, parts: &[GappedPart]) -> Vec<String> {
        let ids = tokenizer.encode_with_gaps(parts).unwrap();
        ids.iter().map(|id| id.map_or("_".into(), |id| tokenizer.piece(id))).collect()
    }

    fn of(json: Value) -> Tokenizer {
        Tokenizer::from_json("t", serde_json::to_vec(&json).unwrap()).unwrap()
    }

    #[test]
    fn byte_level_bpe_gives_the_blank_before_a_word_to_the_gap() {
        let gpt2 = Tokenizer::gpt2().unwrap();
        let ids = |parts: &[GappedPart]| gpt2.encode_with_gaps(parts).unwrap();
        let words =
            |text: &str| gpt2.encode(text).unwrap().into_iter().map(Some).collect::<Vec<_>>();
        let one = [None];
        assert_eq!(
            ids(&[Text("She worked "), Gap(1), Text(" the")]),
            [&words("She worked")[..], &one, &words(" the")].concat()
        );
        assert_eq!(
            ids(&[Text("The "), Gap(1), Text(" "), Gap(2), Text("\n\nEnd ")]),
            [&words("The")[..], &one, &one, &one, &words("\n\nEnd ")].concat()
        );
        assert_eq!(ids(&[Text("a  "), Gap(1)]), [&words("a")[..], &words(" "), &one].concat());
        assert_eq!(
            ids(&[Text("("), Gap(1), Text(")")]),
            [&words("(")[..], &one, &words(")")].concat()
        );
        assert_eq!(ids(&[Text("a\n"), Gap(1)]), [&words("a")[..], &words("\n"), &one].concat());
        assert_eq!(ids(&[Text("wor"), Text("ked "), Gap(0), Text("the")]), words("worked the"));
        assert_eq!(ids(&[]), []);
    }

    #[test]
    fn a_whole_text_with_its_tokens_taken_out_keeps_the_others() {
        let gpt2 = Tokenizer::gpt2().unwrap();
        let text =
            "It was the best of times, it was (by far) the worst: 1789.\nA tale  of two cities";
        let spans = gpt2.encode_spans(text).unwrap();
        for (i, (_, span)) in spans.iter().enumerate() {
            let blank = text[span.clone()].len() - text[span.clone()].trim_start().len();
            let word = &text[span.clone()];
            if !word.trim().chars().all(char::is_alphabetic) || word.trim().is_empty() {
                continue; // the gap stands for a word
            }
            let parts = [Text(&text[..span.start + blank]), Gap(1), Text(&text[span.end..])];
            let mut expected: Vec<Option<u32>> = spans.iter().map(|(id, _)| Some(*id)).collect();
            expected[i] = None;
            assert_eq!(gpt2.encode_with_gaps(&parts).unwrap(), expected, "{word:?}");
        }
    }

    #[test]
    fn metaspace_puts_no_blank_into_the_middle_of_a_word() {
        let vocab: Vec<Value> = [
            "<unk>",
            "\u{2581}",
            "\u{2581}ab",
            "cd",
            "\u{2581}cd",
            "a",
            "b",
            "c",
            "d",
            "\u{2581}the",
            "q",
            "x",
        ]
        .iter()
        .enumerate()
        .map(|(i, text)| json!([text, -(i as f64) / 10.0 - 1.0]))
        .collect();
        let space = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always",
            "split": true});
        let tokenizer = of(json!({"version": "1.0", "added_tokens": [], "normalizer": null,
            "pre_tokenizer": space, "post_processor": null, "decoder": space,
            "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}}));
        assert_eq!(shown(&tokenizer, &[Text("ab"), Gap(1), Text("cd")]), ["\u{2581}ab", "_", "cd"]);
        assert_eq!(
            shown(&tokenizer, &[Text("ab "), Gap(1), Text(" cd")]),
            ["\u{2581}ab", "_", "\u{2581}cd"]
        );
        assert_eq!(shown(&tokenizer, &[Gap(1), Text("cd the")]), ["_", "cd", "\u{2581}the"]);
    }

    #[test]
    fn wordpiece_goes_on_a_word_behind_a_gap_without_a_blank() {
        let words = ["[UNK]", "ab", "cd", "##cd", "the", "q", "##q", "x", "##x"];
        let vocab: serde_json::Map<String, Value> =
            words.iter().enumerate().map(|(i, w)| ((*w).into(), i.into())).collect();
        let tokenizer = of(json!({"version": "1.0", "added_tokens": [],
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": vocab}}));
        assert_eq!(shown(&tokenizer, &[Text("Ab"), Gap(1), Text("CD")]), ["ab", "_", "##cd"]);
        assert_eq!(shown(&tokenizer, &[Text("ab "), Gap(1), Text(" cd")]), ["ab", "_", "cd"]);
    }
}
