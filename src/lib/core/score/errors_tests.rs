//! The printed errors against the truth, by table models whose scores are known functions of the
//! noise level, over a thousand seeds.

use super::*;
use crate::rng::{Domain, Stream};

/// Scores by a table: a sequence of difficulty a whose share z is masked has the loss
/// a·g(z) + ε a token, and its mean over levels is a times that of g.
struct Table {
    g: fn(f64) -> f64,
    mean: f64,
    /// Standard deviation of the difficulty around 1.
    spread: f64,
    /// Standard deviation of ε, the choice of masks.
    noise: f64,
}

const CURVE: Table = Table { g: |z| 1.5 + 6.0 * z * z, mean: 3.5, spread: 0.05, noise: 0.3 };
/// No noise but the levels': all that is not spread shows.
const STEEP: Table =
    Table { g: |z| 1.0 - (1.0 - 0.98 * z).ln(), mean: 1.920_167_892, spread: 0.1, noise: 0.0 };

/// Sequences in a file: how many, in documents of how many, and their lengths.
struct Shape {
    sequences: usize,
    draws: usize,
    document: usize,
    lengths: fn(usize) -> u64,
}

const EVEN: fn(usize) -> u64 = |_| 16;
const UNEVEN: fn(usize) -> u64 = |i| 4 + (i as u64 * 7) % 29;

/// One evaluation of a fresh sample of texts: its parts, its estimate, and the mean over levels of the
/// texts that were drawn.
fn evaluate(table: &Table, shape: &Shape, seed: u64) -> (Vec<Part>, f64, f64) {
    let levels = Levels::new(seed);
    let mut texts = Stream::new(seed, Domain::Sample, 0);
    let mut masks = Stream::new(seed, Domain::Masking, 0);
    let (mut own, mut shared) = (0.0, 0.0);
    let mut parts = Vec::new();
    for i in 0..shape.sequences {
        if i % shape.document == 0 {
            shared = texts.normal();
        }
        // Blocks of one document share half the variance of their difficulty.
        let alone = texts.normal();
        let mix = if shape.document > 1 { (shared + alone) / 2f64.sqrt() } else { alone };
        let difficulty = 1.0 + table.spread * mix;
        let tokens = (shape.lengths)(i);
        let draws = (0..shape.draws)
            .map(|j| {
                let z = levels.share(i as u64, j as u64, &mut masks);
                tokens as f64 * (difficulty * (table.g)(z) + table.noise * masks.normal())
            })
            .collect::<Vec<f64>>();
        own += tokens as f64 * difficulty * table.mean;
        let document = Some((i / shape.document) as u64);
        parts.push(Part { index: i as u64, document, tokens, draws });
    }
    let tokens: f64 = parts.iter().map(|p| p.tokens as f64).sum();
    let scores = parts.iter().map(|p| p.draws.iter().sum::<f64>() / shape.draws as f64);
    let mean = scores.sum::<f64>() / tokens;
    (parts, mean, own / tokens)
}

/// Over a thousand seeds: the share of intervals that hold the truth, and each part of the error,
/// root mean square, over what it is an estimate of.
fn trial(table: &Table, shape: &Shape) -> (f64, [f64; 3]) {
    const SEEDS: u64 = 1000;
    let (mut covered, mut said, mut true_) = (0.0, [0.0; 3], [0.0; 3]);
    for seed in 0..SEEDS {
        let (parts, mean, of_texts) = evaluate(table, shape, seed);
        let errors = Residuals::of(&parts, Some(Levels::new(seed))).errors(None);
        let (low, high) =
            crate::stats::interval(mean, errors.all, errors.degrees_of_freedom).unwrap();
        covered += f64::from(low <= table.mean && table.mean <= high) / SEEDS as f64;
        let parts = [errors.all, errors.draws, errors.sequences];
        let off = [mean - table.mean, mean - of_texts, of_texts - table.mean];
        for i in 0..3 {
            said[i] += parts[i].unwrap_or(f64::NAN).powi(2);
            true_[i] += off[i].powi(2);
        }
    }
    (covered, std::array::from_fn(|i| (said[i] / true_[i]).sqrt()))
}

/// Coverage is near 95 %, and the parts of the error are the true ones.
fn check(table: &Table, shape: &Shape) {
    let (covered, parts) = trial(table, shape);
    let of = format!("{} x {}: {covered} covered, {parts:?}", shape.sequences, shape.draws);
    assert!((0.93..=0.97).contains(&covered), "{of}");
    // Of one draw nothing tells the parts apart.
    let told = if shape.draws > 1 { 3 } else { 1 };
    assert!(parts[..told].iter().all(|ratio| (ratio - 1.0).abs() < 0.2), "{of}");
    assert!(parts[told..].iter().all(|ratio| ratio.is_nan()), "{of}");
}

#[test]
fn one_draw_of_each_of_many_sequences_has_its_true_error() {
    for table in [&CURVE, &STEEP] {
        check(table, &Shape { sequences: 1024, draws: 1, document: 1, lengths: EVEN });
    }
}

#[test]
fn several_draws_of_each_sequence_have_their_true_errors_in_both_parts() {
    check(&CURVE, &Shape { sequences: 200, draws: 16, document: 1, lengths: EVEN });
    for table in [&CURVE, &STEEP] {
        check(table, &Shape { sequences: 64, draws: 4, document: 1, lengths: EVEN });
    }
}

#[test]
fn sequences_of_unequal_length_have_their_true_errors() {
    check(&CURVE, &Shape { sequences: 200, draws: 4, document: 1, lengths: UNEVEN });
    check(&STEEP, &Shape { sequences: 1000, draws: 1, document: 1, lengths: UNEVEN });
}

#[test]
fn a_block_that_is_not_whole_brings_the_error_that_it_has() {
    check(&CURVE, &Shape { sequences: 65, draws: 1, document: 1, lengths: EVEN });
    check(&STEEP, &Shape { sequences: 20, draws: 4, document: 1, lengths: EVEN });
}

#[test]
fn blocks_of_one_document_have_the_error_of_documents() {
    check(&CURVE, &Shape { sequences: 300, draws: 2, document: 5, lengths: EVEN });
}

#[test]
fn the_spread_of_levels_takes_their_noise_out_of_the_mean() {
    // Independent levels would give 1.79/32 = 0.056.
    let shape = Shape { sequences: 1024, draws: 1, document: 1, lengths: EVEN };
    let off = |seed| evaluate(&CURVE, &shape, seed).1 - CURVE.mean;
    let squares: f64 = (0..200).map(|seed| off(seed).powi(2)).sum();
    let error = (squares / 200.0).sqrt();
    assert!(error < 0.013, "{error}");
}

/// The difference of two models whose scores share the texts, the levels and part of the masks'
/// noise: intervals of paired draws, and of two files whose draws are at levels of their own.
#[test]
fn differences_have_their_true_error_whether_levels_are_paired_or_not() {
    let shape = Shape { sequences: 200, draws: 4, document: 1, lengths: UNEVEN };
    for paired in [true, false] {
        let (mut covered, mut said, mut true_) = (0.0, 0.0, 0.0);
        for seed in 0..500u64 {
            let (a, mean_a, _) = evaluate(&CURVE, &shape, seed);
            // The other is 0.9 times as good on the same texts and levels, or at other levels.
            let (b, mean_b) = if paired {
                let scaled = |p: &Part| Part {
                    draws: p.draws.iter().map(|x| 0.9 * x).collect(),
                    ..p.clone()
                };
                (a.iter().map(scaled).collect::<Vec<_>>(), 0.9 * mean_a)
            } else {
                let (b, mean, _) = evaluate(&CURVE, &shape, seed + 5000);
                (b, mean)
            };
            let truth = if paired { 0.1 * CURVE.mean } else { 0.0 };
            let levels = |seed| Some(Levels::new(seed));
            let errors = if paired {
                let pairs = a.iter().zip(&b).map(|(a, b)| Part {
                    draws: a.draws.iter().zip(&b.draws).map(|(a, b)| a - b).collect(),
                    ..a.clone()
                });
                Residuals::of(&pairs.collect::<Vec<_>>(), levels(seed)).errors(None)
            } else {
                let other = Residuals::of(&b, levels(seed + 5000));
                Residuals::of(&a, levels(seed)).minus(&other).errors(None)
            };
            let difference = mean_a - mean_b;
            let (low, high) =
                crate::stats::interval(difference, errors.all, errors.degrees_of_freedom).unwrap();
            covered += f64::from(low <= truth && truth <= high) / 500.0;
            said += errors.all.unwrap().powi(2);
            true_ += (difference - truth).powi(2);
        }
        let ratio = (said / true_).sqrt();
        assert!((0.925..=0.975).contains(&covered), "paired {paired}: {covered}");
        assert!((ratio - 1.0).abs() < 0.1, "paired {paired}: {ratio}");
    }
}

#[test]
fn levels_are_uniform_and_each_dyadic_run_of_sequences_covers_the_range() {
    let levels = Levels::new(3);
    for draw in [0, 1, 5] {
        for run in [2usize, 8, 64] {
            for first in (0..256).step_by(run) {
                let mut parts: Vec<usize> = (first..first + run)
                    .map(|s| levels.stratum(s as u64, draw) * run / STRATA)
                    .collect();
                parts.sort_unstable();
                assert_eq!(parts, (0..run).collect::<Vec<_>>(), "from {first}");
            }
        }
    }
    assert_eq!(levels.strata(70, 6)[5], levels.stratum(70, 5));
    // Of one sequence, over seeds, and of two draws together: no stratum is preferred.
    let mut pairs = [0u32; 16];
    for seed in 0..16_000 {
        let strata = Levels::new(seed).strata(11, 2);
        pairs[strata[0] / 16 * 4 + strata[1] / 16] += 1;
    }
    let chi: f64 = pairs.iter().map(|&c| (f64::from(c) - 1e3).powi(2) / 1e3).sum();
    assert!(chi < 37.7, "chi-square with 15 degrees of freedom: {chi}"); // p = 0.001
}

#[test]
fn imbalance_is_the_variance_over_scrambles() {
    let values: [f64; STRATA] = std::array::from_fn(|z| (z as f64 / 9.0).sin() + (z as f64).sqrt());
    let curve = Curve { values, terms: 1 };
    for sequences in
        [vec![(7, 1.0)], (0..5).map(|i| (i, 1.0)).collect(), vec![(3, 2.0), (40, 1.0), (70, 3.0)]]
    {
        let sums: Vec<f64> = (0..20_000)
            .map(|seed| {
                let level =
                    |(s, tokens): &(u64, f64)| tokens * values[Levels::new(seed).stratum(*s, 0)];
                sequences.iter().map(level).sum()
            })
            .collect();
        let mean = sums.iter().sum::<f64>() / sums.len() as f64;
        let variance = sums.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / sums.len() as f64;
        let said = curve.imbalance(sequences.iter().copied());
        assert!((said / variance - 1.0).abs() < 0.05, "{sequences:?}: {said}, {variance}");
    }
    assert!(curve.imbalance((0..128).map(|s| (s, 2.0))) < 1e-20);
}
