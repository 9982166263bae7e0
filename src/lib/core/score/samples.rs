//! Samples to be judged by a reference model, read from `ao-sample` or from any other program.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::texts::{Protocol, cut_behind_end};
use crate::format::jsonl;
use crate::tokens::Tokenizer;
use crate::{Error, Result};

/// What a protocol needs to know of the reference.
pub struct Judge<'a> {
    /// Whose tokens count.
    pub protocol: Protocol,
    /// The reference's own vocabulary.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Its real ids.
    pub vocab_used: usize,
}

/// One sample as the reference sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its number among the samples, from 0.
    pub index: u64,
    /// Its `id`, where it has one.
    pub id: Option<Value>,
    /// Its tokens, or why it is not scored.
    pub tokens: Result<Vec<u32>, &'static str>,
}

/// Samples from a stream of JSON lines, one after the other.
pub struct Samples<'a> {
    reader: jsonl::Reader<Box<dyn std::io::BufRead + Send>>,
    judge: Judge<'a>,
    next: u64,
    /// How many were left out, by reason.
    pub excluded: BTreeMap<&'static str, u64>,
    /// The run record of the program that drew them.
    pub run: Option<Map<String, Value>>,
}

impl<'a> Samples<'a> {
    /// Opens `path`; `-` is stdin.
    ///
    /// # Errors
    /// When it cannot be opened, or the protocol needs a tokenizer and there is none.
    pub fn open(path: &Path, judge: Judge<'a>) -> Result<Samples<'a>> {
        if judge.protocol == Protocol::Mdlm && judge.tokenizer.is_none() {
            return Err(Error::usage(
                "--protocol mdlm: texts are tokenized for the reference, and no tokenizer.json \
                 lies beside it; give --tokenizer",
            ));
        }
        let reader = jsonl::Reader::open(path)?;
        Ok(Samples { reader, judge, next: 0, excluded: BTreeMap::new(), run: None })
    }

    /// The next sample; records of other types are passed over.
    ///
    /// # Errors
    /// When a line is no JSON object, a sample has neither `text` nor `tokens`, or its tokens are
    /// plainly of another tokenizer; the error names the line.
    pub fn next_sample(&mut self) -> Result<Option<Sample>> {
        while let Some(mut object) = self.reader.next_object()? {
            match object.get("type").and_then(Value::as_str) {
                None | Some("sample") => {}
                Some("run") => {
                    self.run = Some(object);
                    continue;
                }
                Some(_) => continue,
            }
            let tokens = self.tokens(&object)?;
            let tokens = self.check(tokens);
            if let Err(reason) = &tokens {
                *self.excluded.entry(reason).or_default() += 1;
            }
            let index = self.next;
            self.next += 1;
            return Ok(Some(Sample { index, id: object.remove("id"), tokens }));
        }
        Ok(None)
    }

    /// The tokens by the protocol.
    fn tokens(&self, object: &Map<String, Value>) -> Result<Vec<u32>> {
        let text = object.get("text").and_then(Value::as_str);
        let tokens = match object.get("tokens") {
            None | Some(Value::Null) => None,
            Some(value) => {
                Some(serde_json::from_value::<Vec<u32>>(value.clone()).map_err(|e| {
                    Error::input(self.reader.place(), format!("'tokens' is no list of ids: {e}"))
                })?)
            }
        };
        match (self.judge.protocol, tokens, text, self.judge.tokenizer) {
            (Protocol::Sedd, Some(tokens), text, tokenizer) => {
                self.check_vocabulary(&tokens, text, tokenizer)?;
                Ok(tokens)
            }
            (Protocol::Sedd, None, Some(text), Some(tokenizer)) => tokenizer.encode(text),
            (Protocol::Mdlm, _, Some(text), Some(tokenizer)) => self.again(tokenizer, text),
            (Protocol::Mdlm, Some(tokens), None, Some(tokenizer)) => {
                self.again(tokenizer, &tokenizer.decode_lossy(&tokens))
            }
            (_, None, Some(_), None) => Err(Error::input(
                self.reader.place(),
                "has a text and no tokens, and no tokenizer.json lies beside the reference; give \
                 --tokenizer",
            )),
            _ => Err(Error::input(
                self.reader.place(),
                "has neither 'text' nor 'tokens'; give one of them in each object",
            )),
        }
    }

    /// A text's ids up to the first end of text.
    fn again(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
        let ids = tokenizer.encode(text)?;
        Ok(cut_behind_end(&ids, tokenizer.eos_id()).to_vec())
    }

    /// Refuses tokens whose text, in the reference's vocabulary, is another one than beside them.
    fn check_vocabulary(
        &self,
        tokens: &[u32],
        text: Option<&str>,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<()> {
        let (Some(text), Some(tokenizer)) = (text, tokenizer) else { return Ok(()) };
        // A text may end where its tokens hold the first end of text.
        if tokens.iter().any(|&t| t as usize >= self.judge.vocab_used)
            || tokenizer.decode_lossy(tokens).starts_with(text)
        {
            return Ok(());
        }
        Err(Error::input(
            self.reader.place(),
            "its tokens are not those of its text in the reference's vocabulary; judge the text \
             (--protocol mdlm)",
        ))
    }

    /// Refuses what a reference can say nothing of.
    fn check(&self, tokens: Vec<u32>) -> Result<Vec<u32>, &'static str> {
        match tokens.len() {
            0 => Err("empty"),
            1 => Err("one_token"),
            _ if tokens.iter().any(|&t| t as usize >= self.judge.vocab_used) => {
                Err("id_beyond_vocabulary")
            }
            _ => Ok(tokens),
        }
    }
}
