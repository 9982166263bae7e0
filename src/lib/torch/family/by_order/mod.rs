//! Causal networks along orders: AO-GPT, the σ-GPTs, GPT-2, and whatever else reads rows one after
//! the other.
//!
//! | file | owns |
//! |---|---|
//! | `learner` | training along orders |
//! | `scorer` | NLL along orders |
//! | [`ensemble`], [`prefixes`] | the mean probability over orderings of each context |
//! | `sampler` | what `ao-sample` can ask for |

pub mod ensemble;
mod learner;
pub mod prefixes;
mod sampler;
mod scorer;

use ao_core::Result;
use ao_core::family::ModelConfig;

use super::traits::{
    Build, Family, Model, Sampler, ScoreSettings, Scorer, Training, TrainingSettings,
};
use crate::decode::SampleSettings;

pub use learner::accumulate;
pub use scorer::{OrderScorer, nll};

/// A causal network along orders.
pub struct ByOrder(pub Build);

impl Family for ByOrder {
    fn training(
        &self,
        config: &ModelConfig,
        settings: &TrainingSettings,
    ) -> Result<Box<dyn Training>> {
        Ok(Box::new(learner::OrderTraining::new(self.0, config, settings)?))
    }

    fn scorer(&self, model: Model, settings: &ScoreSettings) -> Result<Box<dyn Scorer>> {
        Ok(Box::new(OrderScorer::new(model.network(self.0), settings)?))
    }

    fn sampler(&self, model: Model, settings: &SampleSettings) -> Result<Box<dyn Sampler>> {
        sampler::open(model.network(self.0), settings)
    }
}
