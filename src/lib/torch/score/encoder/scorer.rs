//! An encoder in `ao-score`: chains along orders, or bounds.

use ao_core::config::{Family, ModelConfig};
use ao_core::score::{Cost, GivenMasks, Manner};
use ao_core::{Error, Result};
use serde::Serialize;
use serde_json::Value;

use super::Asker;
use super::bound::{Draw, Form, Strata};
use super::chain::{Line, chain_nll};
use crate::model::Encoder;
use crate::score::args::ScoreArgs;
use crate::score::{Scored, Work};

/// The value of `--elbo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Elbo {
    /// k, or for SEDD score-entropy
    Auto,
    /// t-DCE: t uniform, weight 1/t
    #[value(alias = "t-dce")]
    T,
    /// λ-DCE: each token masked with probability λ, weight 1/λ
    #[value(alias = "lambda-dce")]
    Lambda,
    /// k-DCE: k tokens masked, weight n/k; the least noise
    #[value(alias = "k-dce")]
    K,
    /// SEDD's own
    ScoreEntropy,
}

/// The bound that `args` asks for; `None` where sequences are scored along orders.
///
/// # Errors
/// A bound of a decoder, one that the family has not, and flags that a bound has no use for.
pub fn form(args: &ScoreArgs, config: &ModelConfig) -> Result<Option<Form>> {
    let arch = config.arch();
    let elbo = match (args.elbo, &args.orders, config.family()) {
        (Some(_), _, family) if family != Family::Encoder => {
            return Err(Error::usage(format!(
                "--elbo: {arch} is a decoder, whose bound is the mean over --orders uniform; leave \
                 it out"
            )));
        }
        (Some(_), _, _) if args.cloze.is_some() => {
            return Err(Error::usage("--elbo: --cloze scores along an order; leave one out"));
        }
        (None, Some(_), _) => return Ok(None),
        (None, _, _) if args.cloze.is_some() => return Ok(None),
        (None, None, family) if family != Family::Encoder => return Ok(None),
        (Some(_), Some(_), _) => {
            return Err(Error::usage("--elbo: a bound has no --orders; leave one of them out"));
        }
        (elbo, None, _) => elbo.unwrap_or(Elbo::Auto),
    };
    if args.per_token {
        return Err(Error::usage(
            "--per-token: a bound has no NLL of each token; give --orders, or leave it out",
        ));
    }
    let form = match elbo {
        Elbo::Auto => Form::default_of(config),
        Elbo::T => Form::T,
        Elbo::Lambda => Form::Lambda,
        Elbo::K => Form::K,
        Elbo::ScoreEntropy => Form::ScoreEntropy,
    };
    if form == Form::ScoreEntropy && !matches!(config, ModelConfig::Sedd(_)) {
        return Err(Error::usage(format!(
            "--elbo score-entropy: is of sedd, and this is {arch}; take k"
        )));
    }
    Ok(Some(form))
}

/// Which time a network that is told it is told along an order.
const TIME_OF_CHAIN: &str = "t = k/n with k of n tokens masked";

/// An encoder, and what it has cost so far.
pub struct EncoderScorer {
    encoder: Encoder,
    /// Masked copies in one pass.
    at_once: usize,
    /// The bound; `None` along orders.
    form: Option<Form>,
    seed: u64,
    strata: Strata,
    /// The draws, where a file gives them.
    masks: Option<GivenMasks>,
    /// Rows forwarded, padding not counted.
    pub cost: Cost,
}

impl EncoderScorer {
    /// A scorer along orders, or where there is a `form`, by `draws` draws a sequence; `at_once`
    /// masked copies go through the network in one pass.
    pub fn new(
        encoder: Encoder,
        at_once: usize,
        form: Option<Form>,
        seed: u64,
        draws: u64,
    ) -> EncoderScorer {
        let strata = Strata::new(seed, draws);
        let (masks, cost) = (None, Cost::default());
        EncoderScorer { encoder, at_once, form, seed, strata, masks, cost }
    }

    /// The same by given masks.
    pub fn with_masks(self, masks: Option<GivenMasks>) -> EncoderScorer {
        EncoderScorer { masks, ..self }
    }

    /// Scores a batch of works: each along its order, or by one draw of masks.
    ///
    /// # Errors
    /// When a text holds the mask's own id, whose mass is nothing, and when the given masks end or
    /// do not fit.
    pub fn score(&mut self, works: &[Work]) -> Result<Vec<Scored>> {
        let mask = self.encoder.mask();
        if works.iter().any(|work| work.tokens.contains(&mask)) {
            return Err(Error::usage(format!(
                "--shards: the text holds id {mask}, which is the model's mask_id; tokenize it \
                 without that token"
            )));
        }
        let mut asker = Asker::new(&self.encoder, self.at_once);
        let nll: Vec<Vec<f64>> = match self.form {
            None => {
                let lines: Vec<Line> = works.iter().map(line).collect();
                chain_nll(&mut asker, &lines)
            }
            Some(form) => {
                let draws: Vec<Draw> = works
                    .iter()
                    .map(|work| {
                        if let Some(masks) = &self.masks {
                            let given = masks.of(work.row, work.tokens.len())?;
                            return Ok(form.given(&self.encoder, &work.tokens, given));
                        }
                        let (share, mut stream) = self.strata.of(work.row);
                        Ok(form.draw(&self.encoder, &work.tokens, share, &mut stream))
                    })
                    .collect::<Result<_>>()?;
                form.values(&mut asker, &draws).into_iter().map(|value| vec![value]).collect()
            }
        };
        self.cost.rows_forwarded += asker.rows_forwarded;
        self.cost.rows_through_head += asker.rows_through_head;
        let scored = works.iter().zip(nll).map(|(work, nll)| Scored {
            nth: work.nth,
            sum: nll.iter().sum(),
            curve: None,
            subset: None,
            nll,
        });
        Ok(scored.collect())
    }

    /// How it scores, for the summary.
    pub fn manner(&self) -> Manner {
        let told = self.encoder.is_told_the_time() && self.form.is_none();
        Manner {
            bound: self.form.map(|form| form.name().to_owned()),
            time: told.then(|| TIME_OF_CHAIN.to_owned()),
        }
    }

    /// What stands for the orders of a bound.
    pub fn draws(&self) -> Option<Value> {
        let given = self.masks.as_ref().map(GivenMasks::place);
        self.form.map(|form| form.describe(self.seed, given))
    }
}

/// A work as the chain's line.
fn line(work: &Work) -> Line<'_> {
    Line { tokens: &work.tokens, order: &work.order, held: work.held.as_deref() }
}
