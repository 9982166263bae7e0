//! What the drivers ask a family for.

use std::path::PathBuf;

use ao_core::Result;
use ao_core::family::ModelConfig;
use ao_core::orders::OrderSource;
use ao_core::process::Objective;
use ao_core::score::{Contexts, Cost, Estimate, Manner};
use ao_core::tokens::Dataset;
use serde_json::Value;

use crate::clock::Clock;
use crate::decode::{Request, Sample, SampleSettings, Tally, Template};
use crate::device::Runtime;
use crate::network::{Loaded, Network, Weights};

/// Builds a network over views of weights.
pub type Build = fn(&ModelConfig, &Weights, &Runtime) -> Box<dyn Network>;

/// What a family does with a model.
pub trait Family: Sync {
    /// How a model is trained.
    ///
    /// # Errors
    /// Settings that the family or the objective does not take.
    fn training(
        &self,
        config: &ModelConfig,
        settings: &TrainingSettings,
    ) -> Result<Box<dyn Training>>;

    /// What scores texts.
    ///
    /// # Errors
    /// Settings that the family does not take.
    fn scorer(&self, model: Model, settings: &ScoreSettings) -> Result<Box<dyn Scorer>>;

    /// What draws samples.
    ///
    /// # Errors
    /// Settings that the family does not take.
    fn sampler(&self, model: Model, settings: &SampleSettings) -> Result<Box<dyn Sampler>>;
}

/// A model to score or to draw from.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    /// Architecture and sizes.
    pub config: &'a ModelConfig,
    /// The parameters.
    pub weights: &'a Weights,
    /// Device, precision, threads.
    pub runtime: &'a Runtime,
}

impl<'a> Model<'a> {
    /// The model that was read from disk.
    pub fn of(loaded: &'a Loaded, runtime: &'a Runtime) -> Model<'a> {
        Model { config: &loaded.config, weights: &loaded.weights, runtime }
    }

    /// The network, without gradients.
    pub fn network(&self, build: Build) -> Box<dyn Network> {
        let mut network = build(self.config, self.weights, self.runtime);
        network.freeze();
        network
    }
}

/// What a run is to be trained on.
#[derive(Debug, Clone)]
pub struct TrainingSettings {
    /// What is minimised.
    pub objective: Objective,
    /// The orders as named, where they are.
    pub orders: Option<String>,
    /// Sequences of the whole run; `None` where a budget may end it earlier.
    pub sequences: Option<u64>,
    /// The run's seed.
    pub seed: u64,
}

/// How a model is trained: checked, before any weights are read.
pub trait Training {
    /// What the loss of a step is.
    fn estimate(&self) -> Estimate;

    /// The orders that texts are read along, as named; `None` where there are none.
    fn orders(&self) -> Option<&str>;

    /// The orders, for the run record; null where there are none.
    fn describe(&self) -> Value;

    /// Whether the orders come through a pipe, which a resumed run reads again from its start.
    fn is_piped(&self) -> bool;

    /// Refuses shards that hold what the model cannot be trained on.
    ///
    /// # Errors
    /// By the place in the shards; or when they cannot be read.
    fn check(&self, dataset: &Dataset) -> Result<()>;

    /// How the checkpoints are validated where the flags do not say.
    fn validation(&self) -> ScoreSettings;

    /// The model over `weights`, as it learns, and the buffer that its gradients gather in.
    ///
    /// # Errors
    /// When the orders cannot be opened.
    fn learner(
        self: Box<Self>,
        weights: &Weights,
        runtime: &Runtime,
    ) -> Result<(Box<dyn Learner>, Weights)>;
}

/// One micro-batch and where it stands in the run.
#[derive(Clone, Copy)]
pub struct Micro<'a> {
    /// The texts: token ids.
    pub texts: &'a [Vec<u32>],
    /// Number of the first one, counted over the whole run.
    pub index: u64,
    /// Number of the first one of the optimizer step.
    pub first: u64,
    /// Sequences of the step, over all micro-batches.
    pub count: u64,
    /// What the loss is multiplied by: one over the scored targets of the step.
    pub scale: f64,
    /// Dropout.
    pub dropout: f64,
}

/// A model over its weights, as it learns.
pub trait Learner {
    /// Adds the gradients of `scale · loss` to `gradients`; returns the loss, nats, summed over the
    /// sequences: their NLL along the orders, or the estimate of the bound on it.
    ///
    /// # Errors
    /// Data that the family cannot be trained on, and orders that end.
    fn accumulate(&mut self, micro: Micro, gradients: &Weights, clock: &mut Clock) -> Result<f64>;
}

/// How texts are scored: what the flags came to.
#[derive(Debug, Clone, Default)]
pub struct ScoreSettings {
    /// Orders as named; `None` for the family's own way.
    pub orders: Option<String>,
    /// A bound by random masks: `Some(None)` for the family's own.
    pub bound: Option<Option<Objective>>,
    /// Whether that is as its published code has it, where that is no bound.
    pub published: bool,
    /// Orders or draws of masks a sequence.
    pub mc: u64,
    /// Orderings of each context, where more than the given one are wanted.
    pub ensemble: Option<EnsembleSettings>,
    /// Whether held-out spans are scored, and not whole texts.
    pub spans: bool,
    /// A file of masks, in place of drawn ones.
    pub masks: Option<PathBuf>,
    /// Whether each token's NLL is wanted.
    pub per_token: bool,
    /// Texts that go through the network together.
    pub batch_size: usize,
    /// Seed of orderings, masks and subsets.
    pub seed: u64,
}

/// How an ensemble over orderings of the context is made.
#[derive(Debug, Clone)]
pub struct EnsembleSettings {
    /// Orderings of each context M.
    pub size: usize,
    /// Whether M = 1, 2, 4, … are wanted too.
    pub curve: bool,
    /// Steps of each sequence that are scored, a random subset; all if `None`.
    pub positions: Option<usize>,
}

/// What scores texts.
pub trait Scorer {
    /// The orders that works are to have, as named; `None` where it needs none.
    fn orders(&self) -> Option<&str>;

    /// Leading tokens of an order that are given and not scored.
    fn given(&self) -> usize;

    /// Scores a batch of works; each is what it would be alone.
    ///
    /// # Errors
    /// When an order does not fit its tokens, or a text holds what the model cannot read.
    fn score(&mut self, works: &[Work]) -> Result<Vec<Scored>>;

    /// What it has cost so far.
    fn cost(&self) -> Cost;

    /// What its numbers are where it is more than the mean along the works' orders.
    fn estimate(&self) -> Option<Estimate>;

    /// How it scores, for the summary.
    fn manner(&self) -> Manner;

    /// What stands for the orders in records, where there are none.
    fn draws(&self) -> Option<Value>;

    /// Sizes of the ensembles in [`Scored::curve`].
    fn curve_sizes(&self) -> Option<Vec<usize>>;
}

/// What draws samples.
pub trait Sampler {
    /// The orders that requests are to have, as named; `None` where it finds them itself.
    fn orders(&self) -> Option<&str>;

    /// What stands for the orders in the run record, given the source of those of the requests.
    fn describe(&self, orders: &OrderSource) -> Value;

    /// Makes a template one that the family can fill, or refuses it.
    ///
    /// # Errors
    /// One line: what is given that cannot be.
    fn suit(&self, template: &mut Template, eos: Option<u32>) -> Result<()>;

    /// Draws a batch of samples. Each is what it would be alone.
    ///
    /// # Errors
    /// When the model's logits are not finite.
    fn draw(&mut self, requests: Vec<Request>) -> Result<Vec<Sample>>;

    /// What distribution a sample has whose `drawn` tokens took `steps` passes: `exact`,
    /// `factorised`, `timed` or `approximate`.
    fn distribution(&self, drawn: usize, steps: usize) -> &'static str;

    /// The sampler's name in records, where it has one.
    fn name(&self) -> Option<&'static str>;

    /// What was done so far; [`Tally::default`] starts it anew.
    fn tally(&mut self) -> &mut Tally;
}

/// One sequence along one order.
#[derive(Debug, Clone)]
pub struct Work {
    /// Which of the scored sequences it is, from 0; those left out do not count.
    pub nth: usize,
    /// Row of the orders: the sequence's number times K, plus k.
    pub row: u64,
    /// Token ids in text order.
    pub tokens: Vec<u32>,
    /// The order, a permutation of their positions.
    pub order: Vec<u32>,
    /// Their positions, ascending, where they are not all behind those given.
    pub held: Option<Vec<u32>>,
    /// The orderings of its contexts, where they are given and not drawn.
    pub contexts: Option<Contexts>,
}

impl Work {
    /// A whole text along an order; `nth` is its number among those scored.
    pub fn whole(nth: u64, row: u64, tokens: &[u32], order: Vec<u32>) -> Work {
        let (nth, tokens) = (nth as usize, tokens.to_vec());
        Work { nth, row, tokens, order, held: None, contexts: None }
    }
}

/// What a piece of work came to.
#[derive(Debug, Clone)]
pub struct Scored {
    /// Which of the scored sequences it is of.
    pub nth: usize,
    /// Its NLL, nats: the sum, or what a random subset says of it.
    pub sum: f64,
    /// The same for each size of the ensemble.
    pub curve: Option<Vec<f64>>,
    /// Where a random subset was scored: how many tokens, and the standard error of the sum.
    pub subset: Option<(u64, f64)>,
    /// NLL of the scored tokens, nats, in generation order.
    pub nll: Vec<f64>,
}
