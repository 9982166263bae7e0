//! Samples of encoders have the distribution that the model states.

mod common;

use ao_core::process::score_entropy::{LAST_TIME, reveal_probability};
use ao_core::rng::{Domain, Stream};
use ao_torch::decode::adaptive::AdaptiveOrder;
use ao_torch::decode::filter::Filter;
use ao_torch::decode::schedule::Schedule;
use ao_torch::decode::settings::DiffusionSampler;
use ao_torch::decode::{Request, Sample, SampleSettings};
use ao_torch::family::by_mask::chain::{Line, chain_nll};
use ao_torch::family::by_mask::questions::Asker;
use ao_torch::network::{MaskedText, Network, asked_rows, masks};
use ao_torch::tch::{IndexOp, Kind, Tensor};
use common::{assert_distribution, encoder_config, max_difference, narrow_encoder, noisy_sampler};

fn tiny(arch: &str, block_size: usize, vocab_size: usize) -> Box<dyn Network> {
    narrow_encoder(arch, block_size, vocab_size, Kind::Float)
}

fn settings(sampler: DiffusionSampler, steps: Option<usize>, vocab: usize) -> SampleSettings {
    let plain = SampleSettings::plain(Filter::plain(vocab), 1);
    SampleSettings { sampler: Some(sampler), steps, ..plain }
}

fn request(order: &[u32], given: &[u32], i: u64) -> Request {
    let stream = Stream::new(11, Domain::Sample, i);
    Request { order: order.to_vec(), given: given.to_vec(), stream }
}

/// Samples of the network that [`tiny`] makes.
fn draw(
    (arch, vocab): (&str, usize),
    settings: &SampleSettings,
    order: &[u32],
    count: u64,
) -> Vec<Sample> {
    let config = encoder_config(arch, order.len(), vocab);
    let mut sampler = noisy_sampler(&config, Kind::Float, settings);
    let starts = (0..count).step_by(2000);
    starts
        .flat_map(|start| {
            let requests = (start..count.min(start + 2000)).map(|i| request(order, &[], i));
            sampler.draw(requests.collect()).unwrap()
        })
        .collect()
}

/// Logits of the positions `asked` of a masked text.
fn logits(network: &dyn Network, tokens: &[u32], asked: &[u32], sigma: f64) -> Tensor {
    let masked = MaskedText { tokens: tokens.to_vec(), asked: asked.to_vec(), sigma };
    network.base().head.logits(&asked_rows(network, &[&masked]))
}

/// How often each text of three tokens below 4 was drawn.
fn counts(samples: &[Sample]) -> Vec<f64> {
    let mut counts = vec![0.0; 64];
    for sample in samples {
        counts[sample.tokens.iter().fold(0, |code, &t| code * 4 + t as usize)] += 1.0;
    }
    counts
}

fn text(code: usize) -> Vec<u32> {
    [code / 16, code / 4 % 4, code % 4].map(|t| t as u32).to_vec()
}

/// Exact probability of every text of three tokens along an order.
fn exact(encoder: &dyn Network, order: &[u32]) -> Vec<f64> {
    let texts: Vec<Vec<u32>> = (0..64).map(text).collect();
    let lines: Vec<Line> = texts.iter().map(|tokens| Line { tokens, order, held: None }).collect();
    let nll = chain_nll(&mut Asker::new(encoder, 64), &lines);
    nll.iter().map(|nll| (-nll.iter().sum::<f64>()).exp()).collect()
}

const ORDERS: [[u32; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// The same along a random order.
fn mean_of_orders(encoder: &dyn Network) -> Vec<f64> {
    let laws: Vec<Vec<f64>> = ORDERS.iter().map(|order| exact(encoder, order)).collect();
    (0..64).map(|code| laws.iter().map(|law| law[code]).sum::<f64>() / 6.0).collect()
}

#[test]
fn one_token_a_pass_along_an_order_draws_from_the_chain() {
    for arch in ["radd", "mdlm", "mdlm told the time", "sedd"] {
        let encoder = tiny(arch, 3, 4);
        let law = exact(encoder.as_ref(), &[2, 0, 1]);
        assert!(law.iter().cloned().fold(0.0, f64::max) > 1.5 / 64.0, "too flat to test");
        let settings = settings(DiffusionSampler::Ordered, None, 4);
        assert_distribution(&counts(&draw((arch, 4), &settings, &[2, 0, 1], 20_000)), &law);
    }
}

#[test]
fn first_hitting_draws_from_the_chain_along_a_random_order() {
    let encoder = tiny("radd", 3, 4);
    let settings = settings(DiffusionSampler::FirstHitting, None, 4);
    let samples = draw(("radd", 4), &settings, &[0, 1, 2], 20_000);
    assert_distribution(&counts(&samples), &mean_of_orders(encoder.as_ref()));
    // The times of three reveals are the order statistics of three uniforms: means 3/4, 1/2, 1/4.
    let mut means = [0.0; 3];
    for sample in &samples {
        assert_eq!((sample.network_calls, sample.times.len()), (3, 3));
        assert!(sample.times.is_sorted_by(|a, b| a >= b));
        means.iter_mut().zip(&sample.times).for_each(|(mean, t)| *mean += t / 20_000.0);
    }
    assert!(max_difference(&means, &[0.75, 0.5, 0.25]) < 0.006, "{means:?}");
}

#[test]
fn many_tweedie_steps_draw_from_the_chain_along_a_random_order_and_one_from_the_product() {
    let encoder = tiny("radd", 3, 4);
    let many = settings(DiffusionSampler::Tweedie, Some(4000), 4);
    assert_distribution(
        &counts(&draw(("radd", 4), &many, &[0, 1, 2], 20_000)),
        &mean_of_orders(encoder.as_ref()),
    );
    let one = settings(DiffusionSampler::Tweedie, Some(1), 4);
    let samples = draw(("radd", 4), &one, &[0, 1, 2], 20_000);
    assert!(samples.iter().all(|s| s.network_calls == 1));
    let rows = logits(encoder.as_ref(), &[4; 3], &[0, 1, 2], 0.0).softmax(-1, Kind::Double);
    let p = |position: usize, token: u32| rows.double_value(&[position as i64, i64::from(token)]);
    let law: Vec<f64> = (0..64)
        .map(|code| text(code).iter().enumerate().map(|(i, &t)| p(i, t)).product())
        .collect();
    assert_distribution(&counts(&samples), &law);
}

#[test]
fn the_number_of_network_calls_has_its_expectation() {
    for (schedule, steps) in [(Schedule::Linear, 8), (Schedule::Cosine, 5)] {
        let mut settings = settings(DiffusionSampler::Tweedie, Some(steps), 4);
        settings.schedule = schedule;
        let samples = draw(("radd", 4), &settings, &[0, 1, 2, 3, 4, 5], 4000);
        let calls: Vec<f64> = samples.iter().map(|s| s.network_calls as f64).collect();
        let mean = calls.iter().sum::<f64>() / 4000.0;
        let variance = calls.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / 3999.0;
        // A step is idle when all six positions choose others; S(1 − (1 − 1/S)^L) if linear.
        let left = |i| schedule.left(i, steps);
        let expected: f64 = (0..steps).map(|i| 1.0 - (1.0 - (left(i) - left(i + 1))).powi(6)).sum();
        if schedule == Schedule::Linear {
            assert!((expected - 8.0 * (1.0 - (7f64 / 8.0).powi(6))).abs() < 1e-12);
        }
        assert!((mean - expected).abs() < 4.0 * (variance / 4000.0).sqrt(), "{mean} {expected}");
    }
}

#[test]
fn sedds_analytic_steps_have_the_distribution_of_their_transitions() {
    let encoder = tiny("sedd", 3, 4);
    let masks = masks(encoder.as_ref());
    let steps = 3;
    let time = |i: usize| LAST_TIME + (1.0 - LAST_TIME) * Schedule::Linear.left(i, steps);
    // The distribution over all states, digit 4 for a mask, step by step.
    let mut law = vec![0.0; 125];
    law[124] = 1.0;
    for step in 0..=steps {
        let sigma = masks.sigma_at(time(step));
        let mut next = vec![0.0; 125];
        for (state, p) in law.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            let tokens = [state / 25, state / 5 % 5, state % 5].map(|t| t as u32).to_vec();
            let logits = logits(encoder.as_ref(), &tokens, &[0, 1, 2], sigma);
            let of = |i: usize| -> Vec<f64> {
                let row = logits.i(i as i64).to_kind(Kind::Double);
                let mut to = vec![0.0; 5];
                if tokens[i] != 4 {
                    to[tokens[i] as usize] = 1.0;
                    return to;
                }
                let sum = row.logsumexp([0], false).double_value(&[]);
                let scores = sum - masks.scores.unwrap().offset(sigma);
                let reveal = match step < steps {
                    true => {
                        let dsigma = sigma - masks.sigma_at(time(step + 1));
                        reveal_probability(scores, dsigma).min(1.0)
                    }
                    false => 1.0,
                };
                for (y, to) in to.iter_mut().enumerate().take(4) {
                    *to = reveal * (row.double_value(&[y as i64]) - sum).exp();
                }
                to[4] = 1.0 - reveal;
                to
            };
            let [a, b, c] = [of(0), of(1), of(2)];
            for (code, next) in next.iter_mut().enumerate() {
                *next += p * a[code / 25] * b[code / 5 % 5] * c[code % 5];
            }
        }
        law = next;
    }
    let law: Vec<f64> = (0..64).map(|c| law[c / 16 * 25 + c / 4 % 4 * 5 + c % 4]).collect();
    let settings = settings(DiffusionSampler::Tweedie, Some(steps), 4);
    let samples = draw(("sedd", 4), &settings, &[0, 1, 2], 20_000);
    assert!(samples.iter().any(|s| s.network_calls == 4) && samples.iter().any(|s| s.steps == 1));
    assert_distribution(&counts(&samples), &law);
}

#[test]
fn a_sample_does_not_depend_on_its_neighbours_and_keeps_what_is_given() {
    for arch in ["radd", "mdlm", "sedd"] {
        for sampler in
            [DiffusionSampler::Tweedie, DiffusionSampler::FirstHitting, DiffusionSampler::Ordered]
        {
            let steps = (sampler != DiffusionSampler::FirstHitting).then_some(3);
            let mut settings = settings(sampler, steps, 9);
            settings.filter.top_p = 0.9;
            let requests: Vec<Request> = (0..6)
                .map(|i| request(&[5, 1, 3, 4, 2, 0], &[7, 8, 1, 2, 3, 4][..i as usize], i))
                .collect();
            let mut sampler = noisy_sampler(&encoder_config(arch, 6, 9), Kind::Float, &settings);
            let together = sampler.draw(requests.clone()).unwrap();
            let calls: usize = together.iter().map(|s| s.network_calls).sum();
            assert_eq!(sampler.tally().network_calls, calls as u64);
            for (i, (request, expected)) in requests.into_iter().zip(together).enumerate() {
                let alone = sampler.draw(vec![request.clone()]).unwrap().remove(0);
                assert_eq!((&alone.tokens, &alone.order), (&expected.tokens, &expected.order));
                assert!(max_difference(&alone.nll, &expected.nll) < 1e-5);
                for (&position, &token) in request.order.iter().zip(&request.given) {
                    assert_eq!(alone.tokens[position as usize], token);
                }
                assert_eq!(alone.order.unwrap()[..i], request.order[..i]);
                assert_eq!(alone.nll.len(), 6 - i);
            }
        }
    }
}

#[test]
fn the_log_probability_is_that_of_the_chain_along_the_recorded_order() {
    let encoder = tiny("radd", 6, 9);
    let mut settings = settings(DiffusionSampler::FirstHitting, None, 6);
    settings.filter = Filter { temperature: 0.7, top_p: 0.8, ..Filter::plain(6) };
    for sample in draw(("radd", 9), &settings, &[0, 1, 2, 3, 4, 5], 20) {
        let order = sample.order.unwrap();
        assert!(sample.tokens.iter().all(|&t| t < 6));
        let line = Line { tokens: &sample.tokens, order: &order, held: None };
        let nll = chain_nll(&mut Asker::new(encoder.as_ref(), 6), &[line]).remove(0);
        assert!(max_difference(&sample.nll, &nll) < 2e-5);
    }
}

#[test]
fn an_adaptive_step_reveals_what_the_network_is_surest_of() {
    let encoder = tiny("radd", 6, 9);
    for (rule, size) in [("top-prob", 1), ("margin", 2), ("entropy", 3)] {
        let mut settings = settings(DiffusionSampler::Ordered, Some(6 / size), 9);
        let order: AdaptiveOrder = format!("adaptive:{rule}").parse().unwrap();
        settings.adaptive = Some(order);
        let samples = draw(("radd", 9), &settings, &[0, 1, 2, 3, 4, 5], 20);
        assert!(samples.iter().any(|s| s.order != samples[0].order), "orders follow the tokens");
        for sample in samples {
            let drawn = sample.order.unwrap();
            assert_eq!((sample.steps, sample.network_calls), (6 / size, 6 / size));
            for step in 0..6 / size {
                let hidden: Vec<u32> =
                    (0..6).filter(|p| !drawn[..step * size].contains(p)).collect();
                let mut tokens = sample.tokens.clone();
                hidden.iter().for_each(|&p| tokens[p as usize] = 9);
                let logits = logits(encoder.as_ref(), &tokens, &hidden, 0.0);
                let mut ranked: Vec<(f64, u32)> = hidden
                    .iter()
                    .enumerate()
                    .map(|(row, &p)| {
                        let row: Vec<f32> = Vec::try_from(logits.i(row as i64)).unwrap();
                        (order.rule.confidence(&row), p)
                    })
                    .collect();
                ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
                let surest: Vec<u32> = ranked[..size].iter().map(|r| r.1).collect();
                assert_eq!(drawn[step * size..(step + 1) * size], surest, "{rule}");
            }
        }
    }
}
