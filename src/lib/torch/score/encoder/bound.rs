//! Bounds on −log p by random masks (papers 0.3, 4b, 5b, 6b; [`ao_core::masking`] has the draws).
//!
//! A bound is the mean over draws of weight · Σ over the masked positions of a loss. λ- and k-form
//! have the same expectation, which is that of the chain over random orders too. The forms over the
//! time follow their published code, which leaves out a sliver of the integral at either end.

use ao_core::config::ModelConfig;
use ao_core::masking::{Level, draw_at};
use ao_core::objective::Objective;
use ao_core::rng::{Domain, Stream};
use ao_core::score::{GivenMask, Levels};
use serde_json::{Value, json};

use super::{Asker, Question};
use crate::model::Encoder;

/// How masks are drawn and weighted, and the loss at a masked position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The time t is uniform; −log p, weight 1/t.
    T,
    /// The mask probability λ is uniform; −log p, weight 1/λ.
    Lambda,
    /// The number k of masks is uniform; −log p, weight n/k: the least noise.
    K,
    /// The time t is uniform; SEDD's score entropy, weight σ̄'(t).
    ScoreEntropy,
}

/// One draw of masks.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// The masked copy; all masked positions are asked for.
    pub question: Question,
    /// What the sum over them is multiplied by.
    pub weight: f64,
}

impl Form {
    /// The family's own: SEDD's is the score entropy, the others' the form of least noise.
    pub fn default_of(config: &ModelConfig) -> Form {
        match config {
            ModelConfig::Sedd(_) => Form::ScoreEntropy,
            _ => Form::K,
        }
    }

    /// The name in records: that of the objective.
    pub fn name(self) -> &'static str {
        let objective = match self {
            Form::T => Objective::TDce,
            Form::Lambda => Objective::LambdaDce,
            Form::K => Objective::KDce,
            Form::ScoreEntropy => Objective::ScoreEntropy,
        };
        objective.name()
    }

    /// What stands for the orders in records: the seed of the draws, or the file that gives them.
    pub fn describe(self, seed: u64, given: Option<&str>) -> Value {
        match given {
            Some(file) => json!({ "draws": self.name(), "masks": file }),
            None => json!({ "draws": self.name(), "seed": seed }),
        }
    }

    /// Masks for `tokens`: how many, or with what probability, by `share` in [0, 1); which, by
    /// `stream`.
    pub fn draw(self, encoder: &Encoder, tokens: &[u32], share: f64, stream: &mut Stream) -> Draw {
        let level = match self {
            Form::T | Form::ScoreEntropy => Level::Time,
            Form::Lambda => Level::Probability,
            Form::K => Level::Count,
        };
        let draw = draw_at(level, encoder.noise(), share, tokens.len(), stream);
        let hidden: Vec<u32> = draw.masked.iter().map(|&p| p as u32).collect();
        let sigma = encoder.sigma_at(draw.time);
        let question = Question::new(encoder, tokens, &hidden, &hidden, sigma);
        Draw { question, weight: draw.weight }
    }

    /// Whether a draw has a level of its own (t or λ), besides which positions are masked.
    pub fn has_levels(self) -> bool {
        self != Form::K
    }

    /// The draw that a file gives for `tokens`.
    pub fn given(self, encoder: &Encoder, tokens: &[u32], given: &GivenMask) -> Draw {
        let share = given.masked.len() as f64 / tokens.len().max(1) as f64;
        let level = given.level.unwrap_or(share);
        // Of nothing masked the sum is 0, whatever its weight.
        let weight = if given.masked.is_empty() { 0.0 } else { 1.0 / level };
        let sigma = encoder.sigma_at(level);
        let question = Question::new(encoder, tokens, &given.masked, &given.masked, sigma);
        Draw { question, weight }
    }

    /// The value of each draw, nats a sequence.
    pub fn values(self, asker: &mut Asker, draws: &[Draw]) -> Vec<f64> {
        let questions: Vec<Question> = draws.iter().map(|d| d.question.clone()).collect();
        let losses = match self {
            // σ̄'(t)·a is the weight 1/t, and entropies are in units of a.
            Form::ScoreEntropy => asker.score_entropy(&questions),
            _ => asker.nll(&questions),
        };
        draws.iter().zip(losses).map(|(d, l)| d.weight * l.iter().sum::<f64>()).collect()
    }
}

/// The draws of a run: where the level of each lies, and the streams of their masks.
#[derive(Debug, Clone, Copy)]
pub struct Strata {
    seed: u64,
    /// Draws of a sequence.
    per_sequence: u64,
}

impl Strata {
    /// `per_sequence` draws K for each sequence.
    pub fn new(seed: u64, per_sequence: u64) -> Strata {
        Strata { seed, per_sequence: per_sequence.max(1) }
    }

    /// Draw number `row` = s·K + j, the j-th of sequence s: its share in [0, 1), spread over
    /// sequences by [`Levels`], and the stream of its masks, which has that number.
    pub fn of(&self, row: u64) -> (f64, Stream) {
        let mut stream = Stream::new(self.seed, Domain::Masking, row);
        let (sequence, draw) = (row / self.per_sequence, row % self.per_sequence);
        (Levels::new(self.seed).share(sequence, draw, &mut stream), stream)
    }
}
