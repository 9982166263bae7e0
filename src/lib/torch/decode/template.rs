//! What is given and what is to be filled in: prompts, and templates as JSON lines.
//!
//! A template is one object with one of
//! - `"text"`: a text in which each `___` is a gap of one token and `{"gap":k}` one of k; or a list
//!   of texts and `{"gap":k}` objects. Text beside a gap is tokenized as the whole text would be: a
//!   space that tokens carry in front of their word belongs to the gap.
//! - `"tokens"`: a list of ids, `null` (a gap of one token) and `{"gap":k}`.
//!
//! and may have `"given"`: the positions of the given tokens in the order in which they are to be
//! read, each once; without it they are read in text order. Other keys are refused.

use std::path::Path;

use ao_core::format::jsonl;
use ao_core::rng::Stream;
use ao_core::tokens::{GappedPart, Tokenizer};
use ao_core::{Error, Result};
use serde::Serialize;
use serde_json::{Map, Value};

/// In which order given tokens come before the drawn ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PromptOrder {
    /// As the template's "given" says, else in text order.
    #[default]
    Given,
    /// In text order.
    Ascending,
    /// Drawn for each sample.
    Random,
}

/// A sequence with gaps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Template {
    /// A token for each position, or none where one is to be drawn.
    pub tokens: Vec<Option<u32>>,
    /// The order of given positions that the template names.
    pub given: Option<Vec<u32>>,
}

/// What a template must fit.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// Longest sequence.
    pub block_size: usize,
    /// Ids must be below this.
    pub vocab_used: usize,
    /// For texts.
    pub tokenizer: Option<&'a Tokenizer>,
}

impl Template {
    /// `prompt`, then as many gaps as `length` leaves.
    ///
    /// # Errors
    /// When the prompt is longer than `length`, or its ids are beyond the vocabulary.
    pub fn prompt(prompt: &[u32], length: usize, limits: Limits) -> Result<Template> {
        if prompt.len() > length {
            return Err(Error::usage(format!(
                "--prompt has {} tokens, the sequence {length}; shorten it or give a larger --length",
                prompt.len()
            )));
        }
        let mut tokens: Vec<Option<u32>> = prompt.iter().copied().map(Some).collect();
        tokens.resize(length, None);
        let template = Template { tokens, given: None };
        template.check(limits).map_err(|e| Error::usage(format!("--prompt: {e}")))?;
        Ok(template)
    }

    /// Reads all templates of a file (`-` is stdin).
    ///
    /// # Errors
    /// The first template that is malformed, by its line; and a file without any.
    pub fn read_all(path: &Path, limits: Limits) -> Result<Vec<Template>> {
        let mut reader = jsonl::Reader::open(path)?;
        let mut templates = Vec::new();
        while let Some(object) = reader.next_object()? {
            let template = Template::from_json(&object, limits)
                .map_err(|e| Error::input(reader.place(), e))?;
            templates.push(template);
        }
        if templates.is_empty() {
            let path = path.display();
            return Err(Error::input(path, "holds no template; give {\"text\":\"The ___ sat\"}"));
        }
        Ok(templates)
    }

    fn from_json(object: &Map<String, Value>, limits: Limits) -> Result<Template, String> {
        let known = ["text", "tokens", "given"];
        if let Some(key) = object.keys().find(|k| !known.contains(&k.as_str())) {
            return Err(format!("key '{key}' is not known; allowed are text, tokens and given"));
        }
        let mut template = Template::default();
        match (object.get("text"), object.get("tokens")) {
            (Some(text), None) => template.add_text(text, limits)?,
            (None, Some(Value::Array(items))) => {
                for item in items {
                    match item {
                        Value::Null => template.add_gap(1, limits)?,
                        Value::Object(_) => template.add_gap(gap(item)?, limits)?,
                        _ => {
                            let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
                            template.add_token(
                                id.ok_or_else(|| {
                                    format!("'tokens' holds {item}; allowed are ids, null and gaps")
                                })?,
                                limits,
                            )?;
                        }
                    }
                }
            }
            (None, Some(_)) => return Err("'tokens' must be a list of ids and null".into()),
            (Some(_), Some(_)) => return Err("has both 'text' and 'tokens'; give one".into()),
            (None, None) => return Err("has neither 'text' nor 'tokens'; give one".into()),
        }
        if let Some(value) = object.get("given") {
            template.given = Some(template.read_given(value)?);
        }
        template.check(limits)?;
        Ok(template)
    }

    fn read_given(&self, value: &Value) -> Result<Vec<u32>, String> {
        let bad = || "'given' must list each position of a given token once".to_owned();
        let Value::Array(items) = value else { return Err(bad()) };
        let mut left: Vec<bool> = self.tokens.iter().map(Option::is_some).collect();
        let mut given = Vec::with_capacity(items.len().min(left.len()));
        for item in items {
            let at = item.as_u64().and_then(|at| usize::try_from(at).ok()).ok_or_else(bad)?;
            match left.get_mut(at) {
                Some(free) if *free => *free = false,
                _ => return Err(bad()),
            }
            given.push(at as u32);
        }
        if left.contains(&true) { Err(bad()) } else { Ok(given) }
    }

    fn add_text(&mut self, value: &Value, limits: Limits) -> Result<(), String> {
        let mut parts = Vec::new();
        match value {
            Value::String(text) => marked_text(text, &mut parts),
            Value::Array(items) => {
                for item in items {
                    match item {
                        Value::String(text) => marked_text(text, &mut parts),
                        Value::Object(_) => parts.push(GappedPart::Gap(gap(item)?)),
                        _ => {
                            return Err(format!(
                                "'text' holds {item}; allowed are texts and {{\"gap\":k}}"
                            ));
                        }
                    }
                }
            }
            _ => return Err("'text' must be a text, or a list of texts and {\"gap\":k}".into()),
        }
        let gaps = parts.iter().fold(0usize, |sum, part| match part {
            GappedPart::Gap(size) => sum.saturating_add(*size),
            GappedPart::Text(_) => sum,
        });
        self.add_gap(gaps, limits)?;
        if !parts.iter().any(|p| matches!(p, GappedPart::Text(text) if !text.is_empty())) {
            return Ok(());
        }
        let tokenizer = limits.tokenizer.ok_or(
            "text needs a tokenizer and none lies beside the checkpoint; give --tokenizer",
        )?;
        self.tokens = tokenizer.encode_with_gaps(&parts).map_err(|e| e.to_string())?;
        self.check_length(limits)
    }

    fn add_token(&mut self, id: u32, limits: Limits) -> Result<(), String> {
        self.tokens.push(Some(id));
        self.check_length(limits)
    }

    fn add_gap(&mut self, size: usize, limits: Limits) -> Result<(), String> {
        let room = limits.block_size.saturating_sub(self.tokens.len());
        // One more than fits is enough for the check to speak.
        self.tokens.resize(self.tokens.len() + size.min(room + 1), None);
        self.check_length(limits)
    }

    fn check_length(&self, limits: Limits) -> Result<(), String> {
        if self.tokens.len() > limits.block_size {
            return Err(format!(
                "has more tokens than the model's {}; shorten it",
                limits.block_size
            ));
        }
        Ok(())
    }

    fn check(&self, limits: Limits) -> Result<(), String> {
        if self.tokens.is_empty() {
            return Err("has no tokens and no gaps; give at least one".into());
        }
        self.check_length(limits)?;
        match self.tokens.iter().flatten().find(|&&id| id as usize >= limits.vocab_used) {
            Some(id) => Err(format!("id {id} is beyond the vocabulary of {}", limits.vocab_used)),
            None => Ok(()),
        }
    }

    /// How many positions are to be drawn.
    pub fn free(&self) -> usize {
        self.tokens.iter().filter(|t| t.is_none()).count()
    }

    /// The whole order, given positions first by `policy`, then the others as in `row`; and the
    /// given tokens in that order. Only `PromptOrder::Random` draws from `stream`.
    pub fn arrange(
        &self,
        row: &[u32],
        policy: PromptOrder,
        stream: &mut Stream,
    ) -> (Vec<u32>, Vec<u32>) {
        let is_given = |position: &u32| self.tokens[*position as usize].is_some();
        let mut order: Vec<u32> = match (&self.given, policy) {
            (Some(given), PromptOrder::Given) => given.clone(),
            _ => (0..self.tokens.len() as u32).filter(is_given).collect(),
        };
        if policy == PromptOrder::Random {
            stream.shuffle(&mut order);
        }
        let given = order.iter().filter_map(|&p| self.tokens[p as usize]).collect();
        order.extend(row.iter().filter(|p| !is_given(p)));
        (order, given)
    }
}

/// The parts of a text with `___` and `{"gap":k}` in it.
fn marked_text<'t>(mut text: &'t str, parts: &mut Vec<GappedPart<'t>>) {
    while !text.is_empty() {
        let blank = text.find("___").map(|at| (at, 3, 1));
        let first = [blank, next_counted_gap(text)].into_iter().flatten().min();
        let (at, length, size) = first.unwrap_or((text.len(), 0, 0));
        parts.extend([GappedPart::Text(&text[..at]), GappedPart::Gap(size)]);
        text = &text[at + length..];
    }
}

/// The size of `{"gap":k}`.
fn gap(value: &Value) -> Result<usize, String> {
    let only = value.as_object().filter(|o| o.len() == 1).and_then(|o| o.get("gap"));
    let size = only.and_then(Value::as_u64).and_then(|k| usize::try_from(k).ok());
    size.ok_or_else(|| format!("{value} is no gap; give {{\"gap\":k}} with a whole number k"))
}

/// Where in a text the next `{"gap":k}` is: its byte, length in bytes, and k.
fn next_counted_gap(text: &str) -> Option<(usize, usize, usize)> {
    let mut from = 0;
    while let Some(at) = text[from..].find("{\"gap\"").map(|at| from + at) {
        if let Some(end) = text[at..].find('}')
            && let Ok(value) = serde_json::from_str::<Value>(&text[at..=at + end])
            && let Ok(size) = gap(&value)
        {
            return Some((at, end + 1, size));
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use ao_core::rng::Domain;

    fn read(json: &str) -> Result<Template, String> {
        let tokenizer = Tokenizer::gpt2().unwrap();
        let limits = Limits { block_size: 12, vocab_used: 50_257, tokenizer: Some(&tokenizer) };
        Template::from_json(&serde_json::from_str(json).unwrap(), limits)
    }

    #[test]
    fn blanks_and_counted_gaps_are_the_same_in_every_form() {
        let (the, sat) = (Some(464), Some(3332));
        let expected = [the, None, None, sat];
        for json in [
            r#"{"text":"The______ sat"}"#,
            r#"{"text":"The{\"gap\":2} sat"}"#,
            r#"{"text":["The",{"gap":2}," sat"]}"#,
            r#"{"text":["The___","___ sat"]}"#,
            r#"{"tokens":[464,null,null,3332]}"#,
            r#"{"tokens":[464,{"gap":2},3332]}"#,
        ] {
            assert_eq!(read(json).unwrap().tokens, expected, "{json}");
        }
        assert_eq!(read(r#"{"text":"{\"gap\":x} _"}"#).unwrap().free(), 0, "not a gap: plain text");
    }

    #[test]
    fn a_blank_before_a_word_belongs_to_the_gap() {
        let tokens = |json: &str| read(json).unwrap().tokens;
        let spaced = tokens(r#"{"text":"The ___ sat"}"#);
        assert_eq!(spaced, [Some(464), None, Some(3332)]);
        assert_eq!(tokens(r#"{"text":["The ",{"gap":1}," sat"]}"#), spaced);
        assert_eq!(tokens(r#"{"text":"___ ___"}"#), [None, None]);
    }

    #[test]
    fn hostile_templates_are_one_line_each() {
        for json in [
            r#"{}"#,
            r#"{"text":""}"#,
            r#"{"text":5}"#,
            r#"{"text":"a","tokens":[1]}"#,
            r#"{"tokens":[]}"#,
            r#"{"tokens":[-1]}"#,
            r#"{"tokens":[1.5]}"#,
            r#"{"tokens":[50257]}"#,
            r#"{"tokens":[99999999999999999999]}"#,
            r#"{"tokens":[{"gap":-1}]}"#,
            r#"{"tokens":[{"gap":18446744073709551615}]}"#,
            r#"{"tokens":[{"gap":1,"x":2}]}"#,
            r#"{"tokens":[1,2,3,4,5,6,7,8,9,10,11,12,13]}"#,
            r#"{"tokens":[1,null],"given":[1]}"#,
            r#"{"tokens":[1,2],"given":[0,0]}"#,
            r#"{"tokens":[1,2],"given":[0]}"#,
            r#"{"text":"a","weight":1}"#,
        ] {
            let message = read(json).unwrap_err();
            assert!(!message.contains('\n'), "{json}: {message}");
        }
    }

    #[test]
    fn given_positions_come_first_in_the_order_of_the_policy() {
        let template = read(r#"{"tokens":[7,null,8,null,9],"given":[4,0,2]}"#).unwrap();
        let row = [3, 4, 1, 0, 2];
        let mut stream = Stream::new(0, Domain::Sample, 0);
        let mut arrange = |policy| template.arrange(&row, policy, &mut stream);
        assert_eq!(arrange(PromptOrder::Given), (vec![4, 0, 2, 3, 1], vec![9, 7, 8]));
        assert_eq!(arrange(PromptOrder::Ascending), (vec![0, 2, 4, 3, 1], vec![7, 8, 9]));
        let (order, given) = arrange(PromptOrder::Random);
        assert_eq!(order[3..], [3, 1]);
        for (position, token) in order.iter().zip(given) {
            assert_eq!(template.tokens[*position as usize], Some(token));
        }
    }
}
