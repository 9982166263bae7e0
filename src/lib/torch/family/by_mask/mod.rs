//! Bidirectional networks that restore masked texts: RADD, MDLM, SEDD.
//!
//! Two numbers come of such a network: the NLL of the chain along an order, exact, which needs a
//! pass for every token ([`chain`]); and a bound on −log p by a few random masks ([`bound`]).
//!
//! | file | owns |
//! |---|---|
//! | [`questions`] | masked copies, with the true tokens of what is asked |
//! | `learner` | training |
//! | [`bound`] | the bounds: draws and values |
//! | [`chain`] | NLL along orders and of held-out spans |
//! | `scorer` | both in `ao-score` |
//! | `sampler` | what `ao-sample` can ask for |

pub mod bound;
pub mod chain;
mod learner;
pub mod questions;
mod sampler;
mod scorer;

use ao_core::Result;
use ao_core::family::ModelConfig;

use super::traits::{
    Build, Family, Model, Sampler, ScoreSettings, Scorer, Training, TrainingSettings,
};
use crate::decode::SampleSettings;

pub use learner::{MaskedTexts, accumulate};

/// A bidirectional network that restores masked texts.
pub struct ByMask(pub Build);

impl Family for ByMask {
    fn training(
        &self,
        config: &ModelConfig,
        settings: &TrainingSettings,
    ) -> Result<Box<dyn Training>> {
        Ok(Box::new(learner::MaskTraining::new(self.0, config, settings)?))
    }

    fn scorer(&self, model: Model, settings: &ScoreSettings) -> Result<Box<dyn Scorer>> {
        Ok(Box::new(scorer::MaskScorer::new(model.network(self.0), settings)?))
    }

    fn sampler(&self, model: Model, settings: &SampleSettings) -> Result<Box<dyn Sampler>> {
        sampler::open(model.network(self.0), settings)
    }
}
