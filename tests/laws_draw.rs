//! Decoding draws from the distribution that the model states, whichever way it goes: chi-square tests against
//! exact probabilities, and log-probabilities against scoring along the same order.

mod common;

use ao_core::rng::{Domain, Stream};
use ao_torch::decode::causal::CausalPredictor;
use ao_torch::decode::distribution::Drawer;
use ao_torch::decode::filter::Filter;
use ao_torch::decode::predictor::Predictor;
use ao_torch::decode::settings::Drafts;
use ao_torch::decode::{Request, Sample, SampleSettings};
use ao_torch::family::Sampler;
use ao_torch::tch::{Kind, Tensor};
use common::{
    assert_distribution, max_difference, next, nll, noisy_sampler, sequence, tiny, tiny_config,
};

/// What draws from the network that [`tiny`] makes.
fn sampler(block_size: usize, vocab_size: usize, settings: &SampleSettings) -> Box<dyn Sampler> {
    noisy_sampler(&tiny_config(block_size, vocab_size), Kind::Float, settings)
}

/// The network that [`tiny`] makes, as decoding asks it.
fn predictor(block_size: usize, vocab_size: usize) -> CausalPredictor {
    CausalPredictor::new(tiny(block_size, vocab_size, Kind::Float))
}

/// Requests for samples `ids` along `order`.
fn requests(ids: std::ops::Range<u64>, order: &[u32]) -> Vec<Request> {
    ids.map(|i| Request {
        order: order.to_vec(),
        given: Vec::new(),
        stream: Stream::new(11, Domain::Sample, i),
    })
    .collect()
}

/// Draws 20 000 samples of a vocabulary of four along `order` and counts the texts.
fn frequencies(settings: &SampleSettings, order: &[u32]) -> Vec<f64> {
    let mut sampler = sampler(order.len(), 4, settings);
    let mut counts = vec![0.0; 4usize.pow(order.len() as u32)];
    for start in (0..20_000).step_by(500) {
        for sample in sampler.draw(requests(start..start + 500, order)).unwrap() {
            counts[sample.tokens.iter().fold(0, |code, &t| code * 4 + t as usize)] += 1.0;
        }
    }
    counts
}

/// The logits of the token after `known` along `order`.
fn next_logits(model: &mut CausalPredictor, order: &[u32], known: &[u32]) -> Tensor {
    let sequences = [sequence(order, known)];
    model.start(&sequences);
    let hidden = model.predict(&sequences, &next(&sequences, &[1])).unwrap();
    model.network().base().head.logits(&hidden).view([-1])
}

/// The filtered distribution of the next token of `known` along `order`.
fn next_distribution(
    model: &mut CausalPredictor,
    filter: &Filter,
    order: &[u32],
    known: &[u32],
) -> Vec<f64> {
    let logits: Vec<f32> = Vec::try_from(next_logits(model, order, known)).unwrap();
    let mut distribution = vec![0.0; filter.vocab_used];
    for (id, p) in Drawer::default().probabilities(filter, &logits, known) {
        distribution[id as usize] = p;
    }
    distribution
}

/// The exact probability of every text under one token a step along `order`.
fn exact(filter: &Filter, order: &[u32]) -> Vec<f64> {
    let (vocab, length) = (filter.vocab_used, order.len());
    let mut model = predictor(length, vocab);
    let mut texts = vec![0.0; vocab.pow(length as u32)];
    let mut stack = vec![(Vec::new(), 1.0)];
    while let Some((known, p)) = stack.pop() {
        if known.len() == length {
            let place = |position: u32| vocab.pow((length - 1) as u32 - position);
            let code: usize =
                order.iter().zip(&known).map(|(&at, &t): (_, &u32)| place(at) * t as usize).sum();
            texts[code] += p;
            continue;
        }
        let distribution = next_distribution(&mut model, filter, order, &known);
        for (token, q) in distribution.into_iter().enumerate().filter(|(_, q)| *q > 0.0) {
            stack.push(([known.as_slice(), &[token as u32]].concat(), p * q));
        }
    }
    texts
}

#[test]
fn one_token_a_step_draws_from_the_distribution_of_exact_nll() {
    let model = tiny(3, 4, Kind::Float);
    let (filter, order) = (Filter::plain(4), [2, 0, 1]);
    let expected = exact(&filter, &order);
    for (code, p) in expected.iter().enumerate() {
        let text = [code / 16, code / 4 % 4, code % 4].map(|t| t as u32);
        let nll: f64 = nll(model.as_ref(), &[&text], &[&order]).iter().sum();
        assert!((p.ln() + nll).abs() < 1e-4, "{text:?}");
    }
    assert!(expected.iter().cloned().fold(0.0, f64::max) > 1.5 / 64.0, "too flat to test");
    assert_distribution(&frequencies(&SampleSettings::plain(filter), &order), &expected);
}

#[test]
fn tested_drafts_have_the_distribution_of_one_token_a_step() {
    let order = [2, 0, 3, 1];
    let plain = Filter::plain(4);
    // A filter that looks at the tokens before: drafts and the test see different ones.
    let bent = Filter { temperature: 0.8, top_k: 3, repetition_penalty: 1.7, ..Filter::plain(4) };
    for (filter, depth) in [(&plain, 1), (&plain, 2), (&plain, 4), (&bent, 3)] {
        let expected = exact(filter, &order);
        let drafts = Some(Drafts::Speculative(depth));
        let settings = SampleSettings { drafts, ..SampleSettings::plain(filter.clone()) };
        assert_distribution(&frequencies(&settings, &order), &expected);
    }
}

#[test]
fn groups_of_independent_draws_fail_the_same_test() {
    let (filter, order) = (Filter::plain(4), [2, 0, 1]);
    let expected = exact(&filter, &order);
    let settings = SampleSettings { steps: Some(1), ..SampleSettings::plain(filter) };
    let counts = frequencies(&settings, &order);
    assert!(std::panic::catch_unwind(|| assert_distribution(&counts, &expected)).is_err());
}

#[test]
fn greedy_drafts_give_the_greedy_text() {
    let filter = Filter { temperature: 0.0, ..Filter::plain(9) };
    let settings = SampleSettings::plain(filter);
    let order: Vec<u32> = [5, 2, 9, 0, 11, 3, 7, 1, 10, 4, 8, 6].into();
    let mut one_a_step = sampler(12, 9, &settings);
    let plain = one_a_step.draw(requests(0..1, &order)).unwrap().remove(0);
    assert_eq!(one_a_step.tally().passes, 12);
    for depth in [1, 3, 20] {
        let drafts = Some(Drafts::Speculative(depth));
        let mut sampler = sampler(12, 9, &SampleSettings { drafts, ..settings.clone() });
        let drafted = sampler.draw(requests(0..1, &order)).unwrap().remove(0);
        assert_eq!(drafted.tokens, plain.tokens);
        assert!(drafted.steps <= plain.steps);
    }
}

/// The ways to decode, for a model of six positions.
fn ways(filter: &Filter) -> Vec<SampleSettings> {
    let plain = SampleSettings::plain(filter.clone());
    let adaptive = |text: &str| {
        let adaptive = Some(text.parse().unwrap());
        SampleSettings { adaptive, ..plain.clone() }
    };
    vec![
        plain.clone(),
        SampleSettings { drafts: Some(Drafts::Speculative(3)), ..plain.clone() },
        SampleSettings { drafts: Some(Drafts::Rejection(3)), ..plain.clone() },
        adaptive("adaptive:margin"),
        adaptive("adaptive:top-prob:window=2"),
        adaptive("adaptive:entropy"),
    ]
}

#[test]
fn the_log_probability_is_that_of_scoring_along_the_recorded_order() {
    let model = tiny(6, 9, Kind::Float);
    // Three rows of the head are padding: never drawn, but part of the norm.
    let filter = Filter { temperature: 0.7, top_p: 0.8, ..Filter::plain(6) };
    let batch: Vec<Request> = (0..40)
        .map(|i| {
            let mut stream = Stream::new(5, Domain::Sample, i);
            let mut order: Vec<u32> = (0..6).collect();
            stream.shuffle(&mut order);
            let given = [0, 1, 2, 3, 4, 5, 5][..(i % 7) as usize].to_vec();
            Request { order, given, stream }
        })
        .collect();
    for settings in ways(&filter) {
        let samples = sampler(6, 9, &settings).draw(batch.clone()).unwrap();
        for (i, sample) in samples.into_iter().enumerate() {
            assert!(sample.tokens.iter().all(|&t| t < 6));
            let order = sample.order.unwrap();
            assert_eq!(order[..i % 7], batch[i].order[..i % 7]);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4, 5]);
            let nll = nll(model.as_ref(), &[&sample.tokens], &[&order]);
            assert_eq!(sample.nll.len(), 6 - i % 7);
            if !sample.nll.is_empty() {
                let difference = max_difference(&sample.nll, &nll[i % 7..]);
                assert!(difference < 2e-5, "{settings:?}, sample {i}: {difference}");
            }
        }
    }
}

#[test]
fn a_sample_does_not_depend_on_its_neighbours() {
    let batch: Vec<Request> = (0..6)
        .map(|i| Request {
            order: vec![5, 4, 3, 2, 1, 0],
            given: vec![1; i as usize],
            stream: Stream::new(2, Domain::Sample, i),
        })
        .collect();
    let grouped = ways(&Filter::plain(9)).into_iter().filter(|s| s.drafts.is_none());
    let grouped = grouped
        .flat_map(|s| [1, 2, 4].map(|steps| SampleSettings { steps: Some(steps), ..s.clone() }));
    for settings in ways(&Filter::plain(9)).into_iter().chain(grouped) {
        let mut sampler = sampler(6, 9, &settings);
        let together = sampler.draw(batch.clone()).unwrap();
        for (request, expected) in batch.iter().zip(together) {
            let alone = sampler.draw(vec![request.clone()]).unwrap().remove(0);
            assert_eq!((alone.tokens, alone.order), (expected.tokens, expected.order));
            assert!(
                max_difference(
                    &[&[0.0], &alone.nll[..]].concat(),
                    &[&[0.0], &expected.nll[..]].concat()
                ) < 1e-5
            );
        }
    }
}

/// What the unfiltered model gives each free position after the known ones, by passes of its own.
fn distributions_of_free(
    model: &mut CausalPredictor,
    sample: &Sample,
    known: usize,
) -> Vec<(u32, Vec<f64>)> {
    let filter = Filter::plain(9);
    let all = sample.order.as_ref().unwrap();
    let tokens: Vec<u32> = all.iter().map(|&p| sample.tokens[p as usize]).collect();
    let mut free = all[known..].to_vec();
    free.sort_unstable();
    free.iter()
        .map(|&position| {
            let mut order = all.clone();
            let at = order.iter().position(|&p| p == position).unwrap();
            order[known..=at].rotate_right(1);
            (position, next_distribution(model, &filter, &order, &tokens[..known]))
        })
        .collect()
}

#[test]
fn an_adaptive_order_takes_the_surest_position_of_every_step() {
    let n = 6;
    let mut model = predictor(n, 9);
    type Measure = fn(&[f64]) -> f64;
    let measures: [(&str, Measure); 3] = [
        ("top-prob", |p| p.iter().cloned().fold(0.0, f64::max)),
        ("margin", |p| {
            let mut p = p.to_vec();
            p.sort_by(|a, b| b.total_cmp(a));
            p[0] - p[1]
        }),
        ("entropy", |p| p.iter().map(|x| x * x.ln()).sum()),
    ];
    for (name, measure) in measures {
        for window in [n, 3] {
            let adaptive = Some(format!("adaptive:{name}:window={window}").parse().unwrap());
            // Confidence is that of the model, not of the filter.
            let filter = Filter { temperature: 0.3, ..Filter::plain(9) };
            let settings = SampleSettings { adaptive, ..SampleSettings::plain(filter) };
            let mut sampler = sampler(n, 9, &settings);
            let order: Vec<u32> = (0..n as u32).collect();
            let samples = sampler.draw(requests(0..8, &order)).unwrap();
            for sample in &samples {
                for known in 0..n {
                    let all = distributions_of_free(&mut model, sample, known);
                    let all = &all[..window.min(all.len())];
                    let chosen = sample.order.as_ref().unwrap()[known];
                    let of = |position| all.iter().find(|d| d.0 == position).map(|d| measure(&d.1));
                    let best = all.iter().map(|d| measure(&d.1)).fold(f64::MIN, f64::max);
                    let own = of(chosen).expect("a position of the window");
                    assert!(own > best - 1e-6, "{name}, step {known}: {own}, not {best}");
                }
            }
            // n(n+1)/2 rows, or w a step until fewer are free.
            let rows: usize = (1..=n).map(|free| free.min(window)).sum();
            assert_eq!(sampler.tally().rows_forwarded, 8 * rows as u64);
        }
    }
}

#[test]
fn an_adaptive_step_of_two_tokens_takes_the_two_surest_positions() {
    let mut model = predictor(6, 9);
    let adaptive = Some("adaptive:top-prob".parse().unwrap());
    let plain = SampleSettings::plain(Filter::plain(9));
    let settings = SampleSettings { adaptive, steps: Some(3), ..plain };
    let batch = requests(0..8, &[0, 1, 2, 3, 4, 5]);
    for sample in sampler(6, 9, &settings).draw(batch).unwrap() {
        assert_eq!(sample.steps, 3);
        for known in [0, 2, 4] {
            let all = distributions_of_free(&mut model, &sample, known);
            let top = |p: &[f64]| p.iter().cloned().fold(0.0, f64::max);
            let mut ranked: Vec<(f64, u32)> = all.iter().map(|d| (top(&d.1), d.0)).collect();
            ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
            let order = sample.order.as_ref().unwrap();
            assert_eq!(order[known..known + 2], [ranked[0].1, ranked[1].1]);
        }
    }
}

#[test]
fn rejection_keeps_at_least_one_token_a_round_and_each_sequence_goes_at_its_own_pace() {
    let drafts = Some(Drafts::Rejection(2));
    let settings = SampleSettings { drafts, ..SampleSettings::plain(Filter::plain(9)) };
    let order: Vec<u32> = (0..12).collect();
    let samples = sampler(12, 9, &settings).draw(requests(0..30, &order)).unwrap();
    let steps: Vec<usize> = samples.iter().map(|s| s.steps).collect();
    // A round of two orders is three passes; the last token needs only the first.
    assert!(steps.iter().all(|&s| (3..=34).contains(&s)), "{steps:?}");
    assert!(steps.iter().any(|s| *s != steps[0]), "all {} passes", steps[0]);
}

#[test]
fn candidates_are_the_likeliest_tokens_of_the_unfiltered_model() {
    let mut model = predictor(6, 9);
    let filter = Filter { temperature: 0.5, banned: vec![3], ..Filter::plain(7) };
    for settings in ways(&filter) {
        let settings = SampleSettings { candidates: 4, ..settings };
        let batch = requests(0..4, &[3, 1, 0, 5, 4, 2]);
        for sample in sampler(6, 9, &settings).draw(batch).unwrap() {
            let order = sample.order.unwrap();
            let tokens: Vec<u32> = order.iter().map(|&p| sample.tokens[p as usize]).collect();
            assert_eq!(sample.candidates.len(), 6);
            for (k, listed) in sample.candidates.iter().enumerate() {
                let logits = next_logits(&mut model, &order, &tokens[..k]);
                let logprobs: Vec<f64> =
                    Vec::try_from(logits.log_softmax(-1, Kind::Double)).unwrap();
                let mut ids: Vec<u32> = (0..7).collect();
                ids.sort_by(|&a, &b| logprobs[b as usize].total_cmp(&logprobs[a as usize]));
                assert_eq!(listed.iter().map(|c| c.0).collect::<Vec<_>>(), ids[..4]);
                for &(id, logprob) in listed {
                    assert!((logprob - logprobs[id as usize]).abs() < 1e-5);
                }
            }
        }
    }
}
