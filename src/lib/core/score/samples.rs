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
    /// Tokens that it reads at once; longer texts are read in chunks, each on its own.
    pub context: usize,
    /// Leading tokens of a chunk that it says nothing of.
    pub given: usize,
}

impl Judge<'_> {
    /// The chunks of a text that have a token that counts, with the positions of these.
    pub fn chunks<'a>(&self, tokens: &'a [u32]) -> Vec<(&'a [u32], Vec<u32>)> {
        let end = self.tokenizer.and_then(Tokenizer::eos_id);
        let counted = |chunk| (chunk, self.protocol.counted(chunk, self.given, end));
        tokens.chunks(self.context).map(counted).filter(|(_, c)| !c.is_empty()).collect()
    }
}

/// One sample as the reference sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleTokens {
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
    /// By which rules.
    pub judge: Judge<'a>,
    next: u64,
    /// How many were left out, by reason.
    pub excluded: BTreeMap<&'static str, u64>,
    /// The run record of the program that drew them.
    pub run: Option<Map<String, Value>>,
    /// Whether that program says that it was stopped before it had drawn all.
    pub stopped: bool,
}

impl<'a> Samples<'a> {
    /// Opens `path`; `-` is stdin.
    ///
    /// # Errors
    /// When it cannot be opened, or the protocol needs a tokenizer and there is none.
    pub fn open(path: &Path, judge: Judge<'a>) -> Result<Samples<'a>> {
        if judge.protocol.retokenizes() && judge.tokenizer.is_none() {
            return Err(Error::usage(format!(
                "--protocol {}: texts are tokenized for the reference, and no tokenizer.json lies \
                 beside it; give --tokenizer",
                judge.protocol
            )));
        }
        let reader = jsonl::Reader::open(path)?;
        Ok(Samples { reader, judge, next: 0, excluded: BTreeMap::new(), run: None, stopped: false })
    }

    /// The next sample; records of other types are passed over.
    ///
    /// # Errors
    /// When a line is no JSON object, a sample has neither `text` nor `tokens`, or its tokens are
    /// plainly of another tokenizer; the error names the line.
    pub fn next_sample(&mut self) -> Result<Option<SampleTokens>> {
        while let Some(mut object) = self.reader.next_object()? {
            match object.get("type").and_then(Value::as_str) {
                None | Some("sample") => {}
                Some("run") => {
                    self.run = Some(object);
                    continue;
                }
                Some(_) => {
                    self.stopped |= object.get("complete").is_some_and(|known| known == false);
                    continue;
                }
            }
            let tokens = self.tokens(&object)?;
            let tokens = self.check(tokens);
            if let Err(reason) = &tokens {
                *self.excluded.entry(reason).or_default() += 1;
            }
            let index = self.next;
            self.next += 1;
            return Ok(Some(SampleTokens { index, id: object.remove("id"), tokens }));
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
            (_, Some(tokens), None, Some(tokenizer)) => {
                self.again(tokenizer, &tokenizer.decode_lossy(&tokens), Some(tokens.len()))
            }
            (_, tokens, Some(text), Some(tokenizer)) => {
                self.again(tokenizer, text, tokens.map(|t| t.len()))
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

    /// A text's ids: all of them, but no more than the sampler's `length`; or up to the first end.
    fn again(&self, tokenizer: &Tokenizer, text: &str, length: Option<usize>) -> Result<Vec<u32>> {
        let mut ids = tokenizer.encode(text)?;
        if self.judge.protocol == Protocol::MdlmFirst {
            return Ok(cut_behind_end(&ids, tokenizer.eos_id()).to_vec());
        }
        ids.truncate(length.unwrap_or(usize::MAX));
        Ok(ids)
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
            _ if self.judge.chunks(&tokens).is_empty() => Err("nothing_counts"),
            _ => Ok(tokens),
        }
    }
}
