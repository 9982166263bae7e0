//! Bounds on −log p by random masks (papers 0.3, 4b, 5b, 6b; [`ao_core::process::masking`] has the
//! draws). A bound is the mean over draws of weight · Σ over the masked positions of a loss. λ- and
//! k-form have the same expectation, which is that of the chain over random orders too. The forms
//! over the time have both ends of it, or, where they are asked for as published, leave them out.

use ao_core::process::{Level, MaskDraw, Masking, Objective};
use ao_core::rng::{Domain, Stream};
use ao_core::score::{Estimate, Levels, Manner};
use serde_json::{Value, json};

use super::questions::{Asker, Question};
use crate::network::{Network, masks};

/// The bound of a network in one form.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// How texts are masked.
    pub masking: Masking,
}

impl Bound {
    /// The form that `objective` names, or else the family's own: that of least noise; as its
    /// published code has it, or as a bound.
    ///
    /// `None` where the family's output does not allow it.
    pub fn of(
        network: &dyn Network,
        objective: Option<Objective>,
        published: bool,
    ) -> Option<Bound> {
        let capabilities = network.base().config.capabilities();
        let takes = capabilities.objectives;
        let least = if takes.contains(&Objective::KDce) { Objective::KDce } else { takes[0] };
        let chosen = objective.unwrap_or(least);
        let masks = capabilities.masks?;
        let masking = Masking::of(chosen, &masks)?;
        let masking = if published { masking } else { masking.whole() };
        // Scores are normalised to probabilities too, so that any family has the NLL of a token.
        let of_scores = chosen == Objective::ScoreEntropy;
        (!of_scores || masks.scores.is_some()).then_some(Bound { masking })
    }

    /// What its mean is.
    pub fn estimate(&self) -> Estimate {
        if self.masking.level == Level::Time { Estimate::Surrogate } else { Estimate::Bound }
    }

    /// What records say of it: form, δ and ε.
    pub fn manner(&self) -> Manner {
        let (floor, eps) = self.masking.ends();
        let (time_floor, noise_eps) = (Some(floor), Some(eps));
        Manner { bound: Some(self.masking.name()), time_floor, noise_eps, time: None }
    }

    /// What stands for the orders in records: the form, and the seed of the draws or the file that
    /// gives them.
    pub fn describe(&self, seed: u64, given: Option<&str>) -> Value {
        let (floor, eps) = self.masking.ends();
        let mut described = json!({ "draws": self.masking.name() });
        if floor > 0.0 {
            (described["time_floor"], described["noise_eps"]) = (floor.into(), eps.into());
        }
        match given {
            Some(file) => described["masks"] = file.into(),
            None => described["seed"] = seed.into(),
        }
        described
    }

    /// The value of each draw for its text, nats a sequence.
    pub fn values(&self, asker: &mut Asker, texts: &[&[u32]], draws: &[MaskDraw]) -> Vec<f64> {
        let masks = masks(asker.network);
        let questions: Vec<Question> = texts
            .iter()
            .zip(draws)
            .map(|(tokens, draw)| {
                let sigma = masks.sigma_at(draw.time);
                Question::new(asker.network, tokens, &draw.masked, &draw.masked, sigma)
            })
            .collect();
        let losses = match self.masking.objective {
            // σ̄'(t)·a·dt is dλ/λ, λ = (1 − ε)t, and entropies are in units of a.
            Objective::ScoreEntropy => asker.score_entropy(&questions),
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
