//! Masks: which tokens of a text are hidden, what the loss of the hidden ones weighs, and when each
//! mask is taken away in sampling. The draws are frozen: `docs/formats.md` states them.
//!
//! The bound on a text's NLL is an expectation over noise levels. It can be taken over the time t,
//! over the mask probability λ or over the number k of masked tokens; for a model that is not
//! conditioned on the level all three are the same number, that of the any-order NLL (arXiv
//! 2406.03736; 2506.19935, equation 5). A [`MaskDraw`] is one term of any of them: the sum of the losses
//! of masked tokens, times `weight`, has the bound of the whole sequence, in nats, as its
//! expectation.
//!
//! The published forms over the time draw t from δ = [`TIME_FLOOR`] to 1 and mask with probability
//! (1 − ε)t, so that they leave out both ends of the mask probability. With g(λ) the mean NLL of a
//! masked token where each is masked with probability λ, the bound is L = ∫₀¹ g(λ) dλ nats a token,
//! and they estimate (L − ∫ g over λ below (1 − ε)δ − ∫ g over λ above 1 − ε) / (1 − δ). A constant
//! g = c gives (1 − ε)c, so that is no bound. [`Level::WholeTime`] puts the ends back.
//! Of the chain that goes from all masks to time 1, by continuous steps to δ, and to the text at
//! once, −log p is bounded by
//!
//! ε·g(1) + ∫ from (1 − ε)δ to 1 − ε of g(λ) dλ + (1 − ε)δ·g((1 − ε)δ)   nats a token.
//!
//! It is one expectation over λ uniform in (0, 1]: a λ above 1 − ε masks everything, one below
//! (1 − ε)δ counts as (1 − ε)δ, and the weight is 1/λ. A constant g = c gives c. A network that is
//! conditioned on the time gets t = λ/(1 − ε), which stays in [δ, 1]. Score entropy is no less than
//! the normalised NLL, so that the same holds of it.

use super::noise::LogLinear;
use super::objective::Objective;
use super::score_entropy::Scores;
use crate::rng::{Domain, Stream};

/// The smallest time that is drawn: 1/t would blow up at 0. The bound's part below it is left out.
pub const TIME_FLOOR: f64 = 1e-3;

/// The largest time that a network is conditioned on whose schedule leaves no text at 1: σ̄ is
/// infinite there.
const LATEST: f64 = 1.0 - 1e-3;

/// What is drawn first, and decides how much is masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The time t, from [`TIME_FLOOR`] to 1: tokens are masked as the noise schedule says. So the
    /// published code draws; what it leaves out makes its estimate no bound.
    Time,
    /// The same with the ends of the mask probability, a bound.
    WholeTime,
    /// The mask probability λ itself.
    Probability,
    /// The number k of masked tokens, 1 to all.
    Count,
}

/// How training spreads the levels of a step's sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// One draw for the step, and the sequences evenly spaced from it on.
    Shifted,
    /// Each sequence of the step within a stratum of its own.
    Stratified,
    /// Each sequence on its own.
    Independent,
}

/// One mask of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskDraw {
    /// The time that a network is conditioned on, where it is: t, λ, or k/T.
    pub time: f64,
    /// What the sum over masked tokens is multiplied by: 1/t, 1/λ, or T/k.
    pub weight: f64,
    /// Masked positions, ascending.
    pub masked: Vec<u32>,
}

/// Where a training sequence stands: everything that its mask depends on.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The run's seed.
    pub seed: u64,
    /// Its number, counted over the whole run.
    pub index: u64,
    /// The number of the first sequence of its optimizer step.
    pub first: u64,
    /// Sequences of that step, over all micro-batches.
    pub count: u64,
}

/// How masks destroy a text, for models that restore it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Masks {
    /// The id that stands for a masked token.
    pub id: usize,
    /// The noise schedule.
    pub schedule: LogLinear,
    /// Whether the network is conditioned on the time.
    pub time_conditioned: bool,
    /// How its output is a concrete score; `None` where it is a log-probability.
    pub scores: Option<Scores>,
}

/// How texts are masked for one objective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Masking {
    /// The objective.
    pub objective: Objective,
    /// What the noise level is.
    pub level: Level,
    /// How training spreads it.
    pub spread: Spread,
    /// How the noise grows with the time.
    pub schedule: LogLinear,
}

impl Masking {
    /// The masks of `objective` for a model whose masks are `masks`; `None` where the objective has
    /// none.
    pub fn of(objective: Objective, masks: &Masks) -> Option<Masking> {
        let (level, spread) = match objective {
            Objective::Ao | Objective::L2r => return None,
            Objective::TDce => (Level::Time, Spread::Shifted),
            Objective::LambdaDce => (Level::Probability, Spread::Stratified),
            Objective::KDce => (Level::Count, Spread::Independent),
            Objective::ScoreEntropy => (Level::Time, Spread::Independent),
        };
        Some(Masking { objective, level, spread, schedule: masks.schedule })
    }

    /// The same, with what the published form leaves out: a bound.
    pub fn whole(self) -> Masking {
        let level = if self.level == Level::Time { Level::WholeTime } else { self.level };
        Masking { level, ..self }
    }

    /// The name in records: that of the objective, with `:published` where the published form is no
    /// bound.
    pub fn name(&self) -> String {
        let published = if self.level == Level::Time { ":published" } else { "" };
        format!("{}{published}", self.objective.name())
    }

    /// Of forms over the time the smallest one δ, and the schedule's ε; of the others 0 and 0, as
    /// they draw from the whole range.
    pub fn ends(&self) -> (f64, f64) {
        match self.level {
            Level::Time | Level::WholeTime => (TIME_FLOOR, self.schedule.eps),
            Level::Probability | Level::Count => (0.0, 0.0),
        }
    }

    /// The mask of a training sequence of `length` tokens.
    ///
    /// It does not depend on how the step was cut into micro-batches.
    pub fn training_draw(&self, place: Place, length: usize) -> MaskDraw {
        let mut stream = Stream::new(place.seed, Domain::Masking, place.index);
        let own = stream.uniform();
        let (i, count) = ((place.index - place.first) as f64, place.count as f64);
        let fraction = match self.spread {
            Spread::Shifted => {
                let common = Stream::new(place.seed, Domain::Masking, place.first).uniform();
                (common + i / count).fract()
            }
            Spread::Stratified => (own + i) / count,
            Spread::Independent => own,
        };
        self.draw_at(fraction, length, &mut stream)
    }

    /// The mask at `fraction`, in [0, 1), of the levels' range; which tokens, by `stream`.
    pub fn draw_at(&self, fraction: f64, length: usize, stream: &mut Stream) -> MaskDraw {
        match self.level {
            Level::Time => {
                let t = TIME_FLOOR + (1.0 - TIME_FLOOR) * fraction;
                let masked = bernoulli(self.schedule.masked(t), length, stream);
                MaskDraw { time: t, weight: self.schedule.weight(t), masked }
            }
            Level::WholeTime => {
                let (least, most) = (self.schedule.masked(TIME_FLOOR), self.schedule.masked(1.0));
                let drawn = 1.0 - fraction;
                let lambda = if drawn > most { 1.0 } else { drawn.max(least) };
                let masked = bernoulli(lambda, length, stream);
                MaskDraw { time: (lambda / most).min(1.0), weight: 1.0 / lambda, masked }
            }
            Level::Probability => {
                let lambda = 1.0 - fraction; // in (0, 1]: its inverse stays finite
                let masked = bernoulli(lambda, length, stream);
                MaskDraw { time: lambda, weight: 1.0 / lambda, masked }
            }
            Level::Count => {
                let k = ((fraction * length as f64) as usize + 1).min(length);
                let mut positions: Vec<u32> = (0..length as u32).collect();
                stream.shuffle(&mut positions);
                positions.truncate(k);
                positions.sort_unstable();
                let weight = length as f64 / k as f64;
                MaskDraw { time: time_of_count(k, length), weight, masked: positions }
            }
        }
    }

    /// The draw of given masks, at a given level or else that of their number.
    pub fn given(&self, masked: &[u32], level: Option<f64>, length: usize) -> MaskDraw {
        let level = level.unwrap_or(masked.len() as f64 / length.max(1) as f64);
        // Of nothing masked the sum is 0, whatever its weight.
        let weight = if masked.is_empty() { 0.0 } else { 1.0 / level };
        MaskDraw { time: level, weight, masked: masked.to_vec() }
    }

    /// Whether a draw has a level of its own (t or λ), besides which positions are masked.
    pub fn has_levels(&self) -> bool {
        self.level != Level::Count
    }
}

impl Masks {
    /// σ̄(t), finite for every t up to 1; 0 for networks that are not conditioned on the time.
    pub fn sigma_at(&self, t: f64) -> f64 {
        if !self.time_conditioned {
            return 0.0;
        }
        self.schedule.sigma(if self.schedule.eps > 0.0 { t.min(1.0) } else { t.min(LATEST) })
    }

    /// σ̄ where `masked` of `length` tokens are masked and no time is known, as along an order.
    pub fn sigma_of_count(&self, masked: usize, length: usize) -> f64 {
        self.sigma_at(time_of_count(masked, length))
    }
}

/// The time that a network is conditioned on where `masked` of `length` tokens are masked and no
/// time was drawn: in training by count, and in scoring and sampling along an order.
pub fn time_of_count(masked: usize, length: usize) -> f64 {
    masked as f64 / length as f64
}

/// Each position with this probability.
fn bernoulli(probability: f64, length: usize, stream: &mut Stream) -> Vec<u32> {
    (0..length as u32).filter(|_| stream.uniform() < probability).collect()
}

#[cfg(test)]
#[path = "masking_tests.rs"]
mod tests;
