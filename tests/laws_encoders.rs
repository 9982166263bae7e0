//! What encoders' scores must be: chains are normalised, the bounds have the chain's expectation,
//! and neither batches nor padding show.

mod common;

use ao_core::process::{Level, MaskDraw, Masking, Objective};
use ao_core::rng::{Domain, Stream};
use ao_torch::family::by_mask::bound::{Bound, Strata};
use ao_torch::family::by_mask::chain::{Line, chain_nll, span_nll};
use ao_torch::family::by_mask::questions::{Asker, Question};
use ao_torch::network::{Network, masks};
use ao_torch::tch::Kind;
use common::{encoder_config, max_difference, narrow_encoder, untrained_network};

const ARCHS: [&str; 4] = ["radd", "mdlm", "mdlm told the time", "sedd"];

fn orders(n: usize) -> Vec<Vec<u32>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let longer = |order: Vec<u32>| {
        (0..n).map(move |at| {
            let mut order = order.clone();
            order.insert(at, n as u32 - 1);
            order
        })
    };
    orders(n - 1).into_iter().flat_map(longer).collect()
}

/// How texts are masked for a bound of `encoder`.
fn masking(encoder: &dyn Network, objective: Objective) -> Masking {
    Bound::of(encoder, Some(objective), false).unwrap().masking
}

fn chain(encoder: &dyn Network, tokens: &[u32], order: &[u32], at_once: usize) -> Vec<f64> {
    chain_nll(&mut Asker::new(encoder, at_once), &[Line { tokens, order, held: None }]).remove(0)
}

#[test]
fn the_probabilities_of_all_texts_add_up_to_one_along_every_order() {
    for arch in ARCHS {
        let encoder = narrow_encoder(arch, 3, 4, Kind::Double);
        let encoder = encoder.as_ref();
        let texts: Vec<Vec<u32>> =
            (0..64u32).map(|code| vec![code / 16, code / 4 % 4, code % 4]).collect();
        for order in orders(3) {
            let lines: Vec<Line> =
                texts.iter().map(|tokens| Line { tokens, order: &order, held: None }).collect();
            let nll = chain_nll(&mut Asker::new(encoder, 64), &lines);
            let sum: f64 = nll.iter().map(|nll| (-nll.iter().sum::<f64>()).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-10, "{arch} {order:?}: {sum}");
        }
    }
}

/// Nodes and weights of Gauss and Legendre's rule on [0, 1], exact up to degree 2n − 1.
fn gauss(n: usize) -> Vec<(f64, f64)> {
    (0..n)
        .map(|i| {
            let mut x = (std::f64::consts::PI * (i as f64 + 0.75) / (n as f64 + 0.5)).cos();
            let mut slope = 0.0;
            for _ in 0..100 {
                let (mut p, mut q) = (1.0, 0.0);
                for k in 0..n {
                    let k = k as f64;
                    (p, q) = (((2.0 * k + 1.0) * x * p - k * q) / (k + 1.0), p);
                }
                slope = n as f64 * (x * p - q) / (x * x - 1.0);
                x -= p / slope;
            }
            ((x + 1.0) / 2.0, 1.0 / ((1.0 - x * x) * slope * slope))
        })
        .collect()
}

#[test]
fn the_lambda_form_the_count_form_and_the_chain_have_one_expectation() {
    for arch in ["radd", "mdlm"] {
        let encoder = narrow_encoder(arch, 5, 6, Kind::Double);
        let encoder = encoder.as_ref();
        let (n, tokens) = (5, [3, 0, 5, 1, 3]);
        // Σ over the masked positions, for every set of them.
        let mut asker = Asker::new(encoder, 32);
        let sets: Vec<Vec<u32>> =
            (0..32u32).map(|set| (0..5).filter(|i| set >> i & 1 == 1).collect()).collect();
        let questions: Vec<Question> =
            sets.iter().map(|s| Question::new(encoder, &tokens, s, s, 0.0)).collect();
        let sums: Vec<f64> = asker.nll(&questions).iter().map(|nll| nll.iter().sum()).collect();
        let all = orders(5);
        let mean: f64 =
            all.iter().map(|o| chain(encoder, &tokens, o, 5).iter().sum::<f64>()).sum::<f64>()
                / all.len() as f64;
        let choose = [1.0, 5.0, 10.0, 10.0, 5.0, 1.0];
        let of_size = |k: usize| {
            let of = sets.iter().zip(&sums).filter(|(set, _)| set.len() == k);
            of.map(|(_, sum)| sum).sum::<f64>()
        };
        let mut any = Stream::new(0, Domain::Masking, 0);
        let by_count: f64 = (1..=n)
            .map(|k| {
                let masking = masking(encoder, Objective::KDce);
                let draw = masking.draw_at((k as f64 - 0.5) / 5.0, n, &mut any);
                assert_eq!(draw.masked.len(), k);
                draw.weight * of_size(k) / choose[k] / n as f64
            })
            .sum();
        assert!((by_count - mean).abs() < 1e-10, "{arch}: {by_count} against {mean}");
        let by_share: f64 = gauss(8)
            .iter()
            .map(|&(share, node)| {
                let masking = masking(encoder, Objective::LambdaDce);
                let weight = masking.draw_at(1.0 - share, n, &mut any).weight;
                let of = |k: usize| {
                    share.powi(k as i32) * (1.0 - share).powi((n - k) as i32) * of_size(k)
                };
                node * weight * (0..=n).map(of).sum::<f64>()
            })
            .sum();
        assert!((by_share - mean).abs() < 1e-10, "{arch}: {by_share} against {mean}");
    }
}

#[test]
fn drawn_bounds_have_the_chains_mean_within_their_error() {
    let encoder = narrow_encoder("radd", 5, 6, Kind::Double);
    let encoder = encoder.as_ref();
    let tokens = [3, 0, 5, 1, 3];
    let all = orders(5);
    let mean = all.iter().map(|o| chain(encoder, &tokens, o, 5).iter().sum::<f64>()).sum::<f64>()
        / all.len() as f64;
    let mut asker = Asker::new(encoder, 500);
    for objective in [Objective::KDce, Objective::LambdaDce, Objective::TDce] {
        let bound = Bound::of(encoder, Some(objective), false).unwrap();
        let strata = Strata::new(4, 500);
        let means: Vec<f64> = (0..40)
            .map(|s| {
                let draws: Vec<_> = (0..500)
                    .map(|j| {
                        let (share, mut stream) = strata.of(s * 500 + j);
                        bound.masking.draw_at(share, 5, &mut stream)
                    })
                    .collect();
                bound.values(&mut asker, &[&tokens[..]; 500], &draws).iter().sum::<f64>() / 500.0
            })
            .collect();
        let found = means.iter().sum::<f64>() / 40.0;
        let variance = means.iter().map(|m| (m - found).powi(2)).sum::<f64>() / 39.0;
        let error = (variance / 40.0).sqrt();
        let off = (found - mean).abs();
        assert!(off < 4.0 * error, "{objective:?}: {found} ± {error}, {mean}");
        assert!(error < 0.02 * mean, "{objective:?}: {error}");
    }
}

#[test]
fn draws_lie_evenly_over_sequences() {
    let strata = Strata::new(7, 400);
    for count in [64, 128, 256] {
        let mut shares: Vec<f64> = (1024..1024 + count).map(|s| strata.of(s * 400 + 3).0).collect();
        shares.sort_by(f64::total_cmp);
        // Random ones would leave gaps of ln(n)/n and more.
        let gap = shares.windows(2).map(|w| w[1] - w[0]).fold(0.0, f64::max);
        assert!(gap <= 2.0 / 64.0, "{count} sequences: {gap}");
    }
    assert_ne!(strata.of(3).0, Strata::new(8, 400).of(3).0);
}

#[test]
fn copies_and_padding_do_not_show() {
    for arch in ARCHS {
        let encoder = narrow_encoder(arch, 6, 7, Kind::Double);
        let encoder = encoder.as_ref();
        let long = [1, 6, 3, 3, 0, 2];
        let short = [5, 2, 4];
        let lines = [
            Line { tokens: &long, order: &[4, 0, 5, 1, 3, 2], held: None },
            Line { tokens: &short, order: &[2, 0, 1], held: Some(&[0, 1]) },
        ];
        let together = chain_nll(&mut Asker::new(encoder, 9), &lines);
        assert_eq!((together[0].len(), together[1].len()), (6, 2));
        for (line, expected) in lines.iter().zip(&together) {
            let alone = chain_nll(&mut Asker::new(encoder, 1), &[*line]).remove(0);
            assert!(max_difference(&alone, expected) < 1e-12, "{arch}");
        }
    }
}

#[test]
fn a_span_is_scored_given_both_sides() {
    let encoder = narrow_encoder("radd", 6, 7, Kind::Double);
    let encoder = encoder.as_ref();
    let tokens = [1, 6, 3, 3, 0, 2];
    let spans = [1..3, 4..5];
    let nll = span_nll(&mut Asker::new(encoder, 2), &tokens, &spans);
    // By hand: masks at 1, 2, 4, asked for 1; then at 2, 4; then at 4.
    let mut asker = Asker::new(encoder, 1);
    let expected: Vec<f64> = [vec![1u32, 2, 4], vec![2, 4], vec![4]]
        .iter()
        .map(|hidden| {
            asker.nll(&[Question::new(encoder, &tokens, hidden, &hidden[..1], 0.0)])[0][0]
        })
        .collect();
    assert_eq!(nll.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert!(max_difference(&nll.concat(), &expected) < 1e-12);
}

#[test]
fn sedds_score_entropy_is_no_less_than_its_normalised_cross_entropy() {
    let encoder = narrow_encoder("sedd", 6, 7, Kind::Double);
    let encoder = encoder.as_ref();
    let tokens = [1, 6, 3, 3, 0, 2];
    let mut asker = Asker::new(encoder, 8);
    for i in 0..20u64 {
        let mut stream = Stream::new(1, Domain::Masking, i);
        let masking = masking(encoder, Objective::ScoreEntropy);
        let draw = masking.draw_at((i as f64 + 0.5) / 20.0, 6, &mut stream);
        let sigma = masks(encoder).sigma_at(draw.time);
        let question = [Question::new(encoder, &tokens, &draw.masked, &draw.masked, sigma)];
        let entropy = asker.score_entropy(&question).concat();
        let nll = asker.nll(&question).concat();
        // Σ e^u − log Σ e^u − 1 is at least 0, and 0 where scores are normalised.
        assert_eq!(entropy.len(), nll.len());
        assert!(entropy.iter().zip(&nll).all(|(entropy, nll)| *entropy >= nll - 1e-9));
    }
}

#[test]
fn a_uniform_network_has_the_constant_as_its_bound_and_less_by_the_published_form() {
    let (n, tokens) = (3, [3, 0, 5]);
    for arch in ["radd", "mdlm", "mdlm told the time", "sedd"] {
        let mut config = encoder_config(arch, n, 6);
        if arch.starts_with("mdlm") {
            config["noise_eps"] = 1e-3.into();
        }
        let encoder = untrained_network(&config, Kind::Double);
        let encoder = encoder.as_ref();
        let own = masks(encoder).scores.map_or(Objective::TDce, |_| Objective::ScoreEntropy);
        let constant = n as f64 * 6f64.ln();
        let mut asker = Asker::new(encoder, 8);
        for (objective, published, expected) in [
            (None, false, constant),
            (Some(own), false, constant),
            (Some(own), true, 0.999 * constant),
            (Some(Objective::LambdaDce), false, constant),
            (Some(Objective::KDce), false, constant),
        ] {
            let bound = Bound::of(encoder, objective, published).unwrap();
            // Shares between the ends of the time, and each mask by its probability.
            let ends = [0.0, 1e-3, 1.0 - 0.999e-3, 1.0];
            let mut sum = 0.0;
            for piece in ends.windows(2) {
                for (at, node) in gauss(4) {
                    let share = piece[0] + (piece[1] - piece[0]) * at;
                    let mut stream = Stream::new(0, Domain::Masking, 0);
                    let draw = bound.masking.draw_at(share, n, &mut stream);
                    let lambda = if published { 0.999 * draw.time } else { 1.0 / draw.weight };
                    let by_count = bound.masking.level == Level::Count;
                    for set in 0..8u32 {
                        let hidden: Vec<u32> = (0..3).filter(|i| set >> i & 1 == 1).collect();
                        let (k, of) = (hidden.len() as i32, draw.masked.len() as i32);
                        let chance = match by_count {
                            true if k == of => [1.0, 1.0 / 3.0, 1.0 / 3.0, 1.0][k as usize],
                            true => 0.0,
                            false => lambda.powi(k) * (1.0 - lambda).powi(3 - k),
                        };
                        let draw = MaskDraw { masked: hidden, ..draw.clone() };
                        let value = bound.values(&mut asker, &[&tokens[..]], &[draw])[0];
                        sum += (piece[1] - piece[0]) * node * chance * value;
                    }
                }
            }
            let name = bound.masking.name();
            assert!((sum / expected - 1.0).abs() < 1e-9, "{arch} {name}: {sum}, {expected}");
        }
    }
}
