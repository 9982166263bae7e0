//! A model of either kind in `ao-score`.

use ao_core::Result;
use ao_core::config::Family;
use ao_core::score::{Cost, GivenMasks, Manner};
use serde_json::Value;

use super::ScoreArgs;
use super::encoder::EncoderScorer;
use super::encoder::bound::Form;
use super::ensemble::Ensemble;
use super::scorer::{Scored, Scorer};
use super::set::Work;
use crate::device::Place;
use crate::model::Loaded;

/// What scores works.
pub enum Engine {
    /// Along orders, or over orderings of contexts.
    Decoder(Scorer),
    /// Along orders, or by masks.
    Encoder(Box<EncoderScorer>),
}

impl Engine {
    /// The model that `loaded` holds, for `mc` orders or draws a sequence: an any-order
    /// decoder's contexts ordered as `ensemble` says, an encoder's bound of the form `form`.
    ///
    /// # Errors
    /// When the weights are of no family that can be scored.
    pub fn open(
        args: &ScoreArgs,
        loaded: &Loaded,
        place: &Place,
        (ensemble, form): (Option<Ensemble>, Option<Form>),
        mc: u64,
    ) -> Result<Engine> {
        if loaded.config.family() == Family::Encoder {
            let at_once = if loaded.alone { 1 } else { args.batch_size as usize };
            let model = loaded.encoder(place)?;
            let masks = args.masks.as_deref().zip(form);
            let masks =
                masks.map(|(path, form)| GivenMasks::open(path, form.has_levels())).transpose()?;
            let scorer = EncoderScorer::new(model, at_once, form, args.seed.seed, mc);
            let scorer = scorer.with_masks(masks);
            return Ok(Engine::Encoder(Box::new(scorer)));
        }
        let model = loaded.decoder(place)?;
        Ok(Engine::Decoder(Scorer {
            conditioning: tch::no_grad(|| model.conditioning()),
            model,
            alone: loaded.alone,
            ensemble,
            cost: Cost::default(),
        }))
    }

    /// Scores a batch of works.
    ///
    /// # Errors
    /// When an order does not fit its tokens, or a text holds an encoder's mask.
    pub fn score(&mut self, works: &[Work]) -> Result<Vec<Scored>> {
        match self {
            Engine::Decoder(scorer) => scorer.score(works),
            Engine::Encoder(scorer) => scorer.score(works),
        }
    }

    /// Leading tokens of an order that are given and not scored.
    pub fn given(&self) -> usize {
        match self {
            Engine::Decoder(scorer) => scorer.model.given(),
            Engine::Encoder(_) => 0,
        }
    }

    /// What it has cost so far.
    pub fn cost(&self) -> Cost {
        match self {
            Engine::Decoder(scorer) => scorer.cost,
            Engine::Encoder(scorer) => scorer.cost,
        }
    }

    /// Orderings of each context, where it is not the given one alone.
    pub fn ensemble(&self) -> Option<&Ensemble> {
        match self {
            Engine::Decoder(scorer) => scorer.ensemble.as_ref(),
            Engine::Encoder(_) => None,
        }
    }

    /// How an encoder scores, for the summary.
    pub fn manner(&self) -> Manner {
        match self {
            Engine::Decoder(_) => Manner::default(),
            Engine::Encoder(scorer) => scorer.manner(),
        }
    }

    /// What a bound has in place of orders.
    pub fn draws(&self) -> Option<Value> {
        match self {
            Engine::Decoder(_) => None,
            Engine::Encoder(scorer) => scorer.draws(),
        }
    }
}
