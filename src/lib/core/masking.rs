//! Masks of masked diffusion: which tokens of a sequence are hidden, and what the loss of the
//! hidden ones weighs. Frozen: `docs/formats.md` states the draws.
//!
//! The bound on a text's NLL is an expectation over noise levels. It can be taken over the time t,
//! over the mask probability λ or over the number k of masked tokens; for a model that is not told
//! the level all three are the same number, that of the any-order NLL (arXiv 2406.03736; 2506.19935,
//! equation 5). A [`Draw`] is one term of any of them: Σ over masked tokens of −log p, times
//! `weight`, has the bound of the whole sequence, in nats, as its expectation.

use crate::config::LogLinear;
use crate::rng::{Domain, Stream};

/// The smallest time that is drawn: 1/t would blow up at 0. The bound's part below it is left out.
pub const TIME_FLOOR: f64 = 1e-3;

/// What is drawn first, and decides how much is masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The time t, from [`TIME_FLOOR`] to 1: tokens are masked as the noise schedule says.
    Time,
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
pub struct Draw {
    /// The time that a model which is told it is told: t, λ, or k/T.
    pub time: f64,
    /// What the sum over masked tokens is multiplied by: 1/t, 1/λ, or T/k.
    pub weight: f64,
    /// Masked positions, ascending.
    pub masked: Vec<usize>,
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

/// The mask of a training sequence of `length` tokens.
///
/// It does not depend on how the step was cut into micro-batches.
pub fn training_draw(
    (level, spread): (Level, Spread),
    noise: LogLinear,
    place: Place,
    length: usize,
) -> Draw {
    let mut stream = Stream::new(place.seed, Domain::Masking, place.index);
    let own = stream.uniform();
    let (i, count) = ((place.index - place.first) as f64, place.count as f64);
    let share = match spread {
        Spread::Shifted => {
            let common = Stream::new(place.seed, Domain::Masking, place.first).uniform();
            (common + i / count).fract()
        }
        Spread::Stratified => (own + i) / count,
        Spread::Independent => own,
    };
    draw_at(level, noise, share, length, &mut stream)
}

/// `count` masks of a sequence whose levels are stratified: that of mask m lies in the m-th of
/// `count` equal parts, all at one place within theirs. Their mean is the bound's estimate.
pub fn stratified_draws(
    level: Level,
    noise: LogLinear,
    count: usize,
    length: usize,
    stream: &mut Stream,
) -> Vec<Draw> {
    let own = stream.uniform();
    (0..count)
        .map(|m| draw_at(level, noise, (own + m as f64) / count as f64, length, stream))
        .collect()
}

/// The mask at `share`, in [0, 1), of the levels' range.
pub fn draw_at(
    level: Level,
    noise: LogLinear,
    share: f64,
    length: usize,
    stream: &mut Stream,
) -> Draw {
    match level {
        Level::Time => {
            let t = TIME_FLOOR + (1.0 - TIME_FLOOR) * share;
            let masked = bernoulli(noise.masked(t), length, stream);
            Draw { time: t, weight: noise.weight(t), masked }
        }
        Level::Probability => {
            let lambda = 1.0 - share; // in (0, 1]: its inverse stays finite
            Draw { time: lambda, weight: 1.0 / lambda, masked: bernoulli(lambda, length, stream) }
        }
        Level::Count => {
            let k = ((share * length as f64) as usize + 1).min(length);
            let mut positions: Vec<usize> = (0..length).collect();
            stream.shuffle(&mut positions);
            positions.truncate(k);
            positions.sort_unstable();
            let n = length as f64;
            Draw { time: time_of_count(k, length), weight: n / k as f64, masked: positions }
        }
    }
}

/// The time that a model which is told it is told where `masked` of `length` tokens are masked and
/// no time was drawn: in training by count, and in scoring and sampling along an order.
pub fn time_of_count(masked: usize, length: usize) -> f64 {
    masked as f64 / length as f64
}

/// Each position with this probability.
fn bernoulli(probability: f64, length: usize, stream: &mut Stream) -> Vec<usize> {
    (0..length).filter(|_| stream.uniform() < probability).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOISE: LogLinear = LogLinear { eps: 1e-3 };
    const T_DCE: (Level, Spread) = (Level::Time, Spread::Shifted);
    const LAMBDA_DCE: (Level, Spread) = (Level::Probability, Spread::Stratified);
    const K_DCE: (Level, Spread) = (Level::Count, Spread::Independent);
    const SCORE_ENTROPY: (Level, Spread) = (Level::Time, Spread::Independent);

    fn place(index: u64) -> Place {
        Place { seed: 5, index, first: 24, count: 12 }
    }

    fn draws(objective: (Level, Spread), length: usize) -> Vec<Draw> {
        (24..36).map(|n| training_draw(objective, NOISE, place(n), length)).collect()
    }

    #[test]
    fn the_times_of_a_step_cover_every_part_once() {
        for objective in [T_DCE, LAMBDA_DCE] {
            let mut parts: Vec<usize> = draws(objective, 7)
                .iter()
                .map(|d| {
                    let floor = if objective == T_DCE { TIME_FLOOR } else { 0.0 };
                    ((d.time - floor) / (1.0 - floor) * 12.0).ceil() as usize
                })
                .collect();
            parts.sort_unstable();
            // A shifted grid may have one point on either side of a boundary, never two in a part.
            assert_eq!(parts, (1..=12).collect::<Vec<_>>(), "{objective:?}");
        }
    }

    #[test]
    fn as_many_are_masked_as_the_count_says_and_weights_are_inverse_levels() {
        for draw in draws(K_DCE, 9) {
            let k = draw.masked.len() as f64;
            assert!(draw.masked.windows(2).all(|w| w[0] < w[1]) && (1.0..=9.0).contains(&k));
            assert_eq!((draw.weight, draw.time), (9.0 / k, k / 9.0));
        }
        for draw in draws(SCORE_ENTROPY, 9) {
            assert!(draw.time >= TIME_FLOOR && (draw.weight * draw.time - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn a_mask_is_a_function_of_the_sequences_number_alone() {
        for objective in [LAMBDA_DCE, K_DCE, SCORE_ENTROPY] {
            let once = draws(objective, 40);
            let again = training_draw(objective, NOISE, place(30), 40);
            assert_eq!(once[6], again);
            assert_ne!(once[5].masked, again.masked);
        }
    }

    /// A conditional law by table: −log p of position i given the positions in `seen`.
    fn nll(table: &[f64], i: usize, seen: usize, n: usize) -> f64 {
        assert_eq!(seen >> i & 1, 0);
        table[seen * n + i]
    }

    fn table(n: usize) -> Vec<f64> {
        let mut stream = Stream::new(3, Domain::Init, n as u64);
        (0..n << n).map(|_| -stream.uniform().ln()).collect()
    }

    /// Σ over the positions outside `seen` of their NLL.
    fn hidden_sum(table: &[f64], seen: usize, n: usize) -> f64 {
        (0..n).filter(|i| seen >> i & 1 == 0).map(|i| nll(table, i, seen, n)).sum()
    }

    fn over_counts(table: &[f64], n: usize) -> f64 {
        let binomial = |k: usize| (0..k).fold(1.0, |b, j| b * (n - j) as f64 / (j + 1) as f64);
        (0..(1usize << n) - 1)
            .map(|seen| {
                let k = n - seen.count_ones() as usize;
                hidden_sum(table, seen, n) / (binomial(k) * k as f64)
            })
            .sum()
    }

    /// ∫ over λ by Gauss and Legendre's rule of three points: exact for polynomials of degree 5.
    fn over_probabilities(table: &[f64], n: usize) -> f64 {
        let root = 0.15f64.sqrt();
        [(0.5 - root, 5.0 / 18.0), (0.5, 4.0 / 9.0), (0.5 + root, 5.0 / 18.0)]
            .iter()
            .map(|&(lambda, share)| {
                let sum: f64 = (0..1usize << n)
                    .map(|seen| {
                        let k = n as i32 - seen.count_ones() as i32;
                        let chance = lambda.powi(k) * (1.0 - lambda).powi(n as i32 - k);
                        chance / lambda * hidden_sum(table, seen, n)
                    })
                    .sum();
                share * sum
            })
            .sum()
    }

    fn over_orders(table: &[f64], n: usize) -> f64 {
        fn rest(table: &[f64], seen: usize, n: usize) -> f64 {
            let left: Vec<usize> = (0..n).filter(|i| seen >> i & 1 == 0).collect();
            let each = left.iter().map(|&i| nll(table, i, seen, n) + rest(table, seen | 1 << i, n));
            if left.is_empty() { 0.0 } else { each.sum::<f64>() / left.len() as f64 }
        }
        rest(table, 0, n)
    }

    #[test]
    fn the_bound_over_probabilities_over_counts_and_over_orders_is_one_number() {
        for n in 1..=5 {
            let table = table(n);
            let orders = over_orders(&table, n);
            for other in [over_counts(&table, n), over_probabilities(&table, n)] {
                assert!((other / orders - 1.0).abs() < 1e-12, "n {n}: {other} and {orders}");
            }
        }
    }

    #[test]
    fn what_training_draws_has_that_number_as_its_mean() {
        let n = 4;
        let table = table(n);
        let exact = over_orders(&table, n);
        let steps = 20_000;
        for objective in [T_DCE, LAMBDA_DCE, K_DCE] {
            let values: Vec<f64> = (0..steps)
                .map(|step| {
                    let first = step * 4;
                    (first..first + 4)
                        .map(|index| {
                            let place = Place { seed: 1, index, first, count: 4 };
                            let draw = training_draw(objective, NOISE, place, n);
                            let hidden: usize = draw.masked.iter().map(|i| 1 << i).sum();
                            draw.weight * hidden_sum(&table, (1 << n) - 1 - hidden, n) / 4.0
                        })
                        .sum()
                })
                .collect();
            let mean = values.iter().sum::<f64>() / steps as f64;
            let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / steps as f64;
            let error = (variance / steps as f64).sqrt();
            // The time's floor and the schedule's ε leave out a thousandth each.
            let slack = if objective == T_DCE { 2e-3 * exact } else { 0.0 };
            let off = (mean - exact).abs();
            assert!(off < 4.0 * error + slack, "{objective:?}: {mean} ± {error}, exactly {exact}");
            assert!(error < 0.02 * exact, "{objective:?}: the mean is too coarse to tell, {error}");
        }
    }

    #[test]
    fn stratified_masks_have_that_number_as_their_mean_too() {
        let n = 5;
        let table = table(n);
        let exact = over_orders(&table, n);
        let count = 20_000;
        let values: Vec<f64> = (0..count)
            .map(|index| {
                let mut stream = Stream::new(2, Domain::Masking, index);
                let draws = stratified_draws(Level::Count, NOISE, 4, n, &mut stream);
                let sum: f64 = draws
                    .iter()
                    .map(|d| {
                        let hidden: usize = d.masked.iter().map(|i| 1 << i).sum();
                        d.weight * hidden_sum(&table, (1 << n) - 1 - hidden, n)
                    })
                    .sum();
                sum / 4.0
            })
            .collect();
        let mean = values.iter().sum::<f64>() / count as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count as f64;
        let error = (variance / count as f64).sqrt();
        assert!((mean - exact).abs() < 4.0 * error, "{mean} ± {error}, exactly {exact}");
    }
}
