//! A reference model's opinion of texts, and the figures of a set of them: what `ao-score --ref`
//! and `ao-bench --ref` share.

use std::path::Path;

use ao_core::score::{Judge, Protocol, SetVariety, Variety};
use ao_core::tokens::Tokenizer;
use ao_core::{Error, Result, stats};

use crate::device::Runtime;
use crate::family::{self, Model, ScoreSettings, Scorer, Work};
use crate::network::{CheckpointArgs, Loaded};

/// Texts that go through the model together.
const BATCH: usize = 16;

/// A model that judges, from left to right.
pub(crate) struct Reference {
    /// The model, and what it has cost so far.
    pub scorer: Box<dyn Scorer>,
    /// Ids from here on are none of its own.
    pub vocab_used: usize,
    block_size: usize,
}

impl Reference {
    /// The model of `loaded`, from left to right.
    ///
    /// # Errors
    /// When it does not score so.
    pub fn new(loaded: &Loaded, runtime: &Runtime) -> Result<Reference> {
        let settings = ScoreSettings {
            orders: Some("l2r".into()),
            mc: 1,
            batch_size: BATCH,
            ..ScoreSettings::default()
        };
        let scorer = family::of(&loaded.config)?.scorer(Model::of(loaded, runtime), &settings)?;
        let block_size = loaded.config.block_size();
        Ok(Reference { scorer, vocab_used: loaded.vocab_used(), block_size })
    }

    /// Reads the model that a name means, the weights that it would be scored with.
    ///
    /// # Errors
    /// As [`Loaded::open`], and [`Reference::new`].
    pub fn open(name: &Path, runtime: &Runtime) -> Result<Reference> {
        Reference::new(&Loaded::open(&CheckpointArgs::of(name), runtime)?, runtime)
    }

    /// Tokens of each block that are given and not scored.
    pub fn given(&self) -> usize {
        self.scorer.given()
    }

    /// What a protocol needs to know of it, with the tokenizer of its vocabulary.
    pub fn judge<'a>(&self, protocol: Protocol, tokenizer: Option<&'a Tokenizer>) -> Judge<'a> {
        let (vocab_used, given) = (self.vocab_used, self.given());
        Judge { protocol, tokenizer, vocab_used, context: self.block_size, given }
    }

    /// NLL of each text's tokens that count by `judge`, nats, and how many these are. A text longer
    /// than the model's block is scored in consecutive chunks, each on its own.
    ///
    /// # Errors
    /// As the scorer's.
    pub fn score(&mut self, judge: &Judge, texts: &[Option<&[u32]>]) -> Result<Vec<(f64, u64)>> {
        let mut works = Vec::new();
        for (nth, tokens) in texts.iter().enumerate() {
            for (chunk, counted) in judge.chunks(tokens.unwrap_or_default()) {
                works.push(Work {
                    held: Some(counted),
                    ..Work::whole(nth as u64, 0, chunk, (0..chunk.len() as u32).collect())
                });
            }
        }
        let mut sums = vec![(0.0, 0); texts.len()];
        for part in works.chunks(texts.len().max(1)) {
            for scored in self.scorer.score(part)? {
                sums[scored.nth].0 += scored.sum;
                sums[scored.nth].1 += scored.nll.len() as u64;
            }
        }
        Ok(sums)
    }
}

/// The figures of the texts so far.
#[derive(Default)]
pub(crate) struct Judged {
    sums: Vec<f64>,
    tokens: Vec<u64>,
    perplexities: Vec<f64>,
    /// How varied they are.
    pub variety: SetVariety,
}

impl Judged {
    /// Adds a text of NLL `nll_nats` over `token_count` tokens; its perplexity and variety.
    ///
    /// # Errors
    /// [`Error::NonFinite`], which names the text by `index`.
    pub fn add(
        &mut self,
        index: u64,
        tokens: &[u32],
        nll_nats: f64,
        token_count: u64,
    ) -> Result<(f64, Variety)> {
        if !nll_nats.is_finite() {
            return Err(Error::NonFinite(format!(
                "sample {index}: its NLL is {nll_nats}; check the reference's weights, or score in \
                 f32"
            )));
        }
        let perplexity = (nll_nats / token_count as f64).exp();
        let variety = Variety::of(tokens);
        self.sums.push(nll_nats);
        self.tokens.push(token_count);
        self.perplexities.push(perplexity);
        self.variety.add(tokens, &variety);
        Ok((perplexity, variety))
    }

    /// Texts so far.
    pub fn count(&self) -> usize {
        self.sums.len()
    }

    /// NLL per token over the tokens of all texts.
    pub fn pooled(&self) -> stats::Mean {
        stats::mean_per_token(&self.sums, &self.tokens)
    }

    /// The mean of the texts' perplexities.
    pub fn mean(&self) -> stats::Mean {
        stats::mean_per_token(&self.perplexities, &vec![1; self.perplexities.len()])
    }
}
