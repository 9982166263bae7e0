//! Decoding draws from the law that the model states, whichever way it goes: chi-square tests against
//! exact probabilities, and log-probabilities against scoring along the same order.

mod common;

use ao_core::rng::{Domain, Stream};
use ao_torch::decode::args::Method;
use ao_torch::decode::filter::Filter;
use ao_torch::decode::generate::{Generator, Request, Sample};
use ao_torch::decode::law::Sampler;
use ao_torch::decode::session::{Ask, Line, Session};
use ao_torch::network::{Batch, Conditioning, Decoder};
use ao_torch::tch::{Kind, Tensor};
use common::{assert_law, max_difference, tiny};

/// Requests for samples `ids` along `order`, one token a step.
fn requests(ids: std::ops::Range<u64>, order: &[u32]) -> Vec<Request> {
    ids.map(|i| Request {
        order: order.to_vec(),
        given: Vec::new(),
        groups: vec![1; order.len()],
        stream: Stream::new(11, Domain::Sample, i),
    })
    .collect()
}

/// Draws `count` samples along `order` and counts the texts.
fn frequencies(
    model: &dyn Decoder,
    filter: &Filter,
    order: &[u32],
    method: Method,
    count: u64,
) -> Vec<f64> {
    let conditioning = model.conditioning();
    let vocab = filter.vocab_used;
    let mut generator = Generator::new(model, &conditioning, filter.clone(), 1);
    let mut counts = vec![0.0; vocab.pow(order.len() as u32)];
    for start in (0..count).step_by(500) {
        let batch = requests(start..count.min(start + 500), order);
        for sample in method.generate(&mut generator, batch).unwrap() {
            let code = sample.tokens.iter().fold(0, |code, &t| code * vocab + t as usize);
            counts[code] += 1.0;
        }
    }
    counts
}

/// The filtered law of the next token of `known` along `order`.
fn next_law(
    model: &dyn Decoder,
    conditioning: &Conditioning,
    filter: &Filter,
    order: &[u32],
    known: &[u32],
) -> Vec<f64> {
    let line = Line::new(order.to_vec(), known.to_vec());
    let mut session = Session::new(model, conditioning, vec![line]);
    let hidden = session.advance(&[1]).unwrap();
    let logits: Vec<f32> =
        Vec::try_from(model.head().logits(&hidden).to_kind(Kind::Float).view([-1])).unwrap();
    let mut law = vec![0.0; filter.vocab_used];
    for (id, p) in Sampler::default().probabilities(filter, &logits, known) {
        law[id as usize] = p;
    }
    law
}

/// The exact probability of every text under one token a step along `order`.
fn exact(model: &dyn Decoder, filter: &Filter, order: &[u32]) -> Vec<f64> {
    let conditioning = model.conditioning();
    let (vocab, length) = (filter.vocab_used, order.len());
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
        let law = next_law(model, &conditioning, filter, order, &known);
        for (token, q) in law.into_iter().enumerate().filter(|(_, q)| *q > 0.0) {
            stack.push(([known.as_slice(), &[token as u32]].concat(), p * q));
        }
    }
    texts
}

#[test]
fn one_token_a_step_draws_from_the_law_of_exact_nll() {
    let model = tiny(3, 4, Kind::Float);
    let (filter, order) = (Filter::plain(4), [2, 0, 1]);
    let law = exact(model.as_ref(), &filter, &order);
    let conditioning = model.conditioning();
    for (code, p) in law.iter().enumerate() {
        let text = [code / 16, code / 4 % 4, code % 4].map(|t| t as u32);
        let batch = Batch::new(&[&text], &[&order]).unwrap();
        let nll: f64 = model.nll(&batch, &conditioning).iter().sum();
        assert!((p.ln() + nll).abs() < 1e-4, "{text:?}");
    }
    assert!(law.iter().cloned().fold(0.0, f64::max) > 1.5 / 64.0, "the law is too flat to test");
    assert_law(&frequencies(model.as_ref(), &filter, &order, Method::Groups, 20_000), &law);
}

#[test]
fn tested_drafts_have_the_law_of_one_token_a_step() {
    let model = tiny(4, 4, Kind::Float);
    let order = [2, 0, 3, 1];
    let plain = Filter::plain(4);
    // A filter that looks at the tokens before: drafts and the test see different ones.
    let bent = Filter { temperature: 0.8, top_k: 3, repetition_penalty: 1.7, ..Filter::plain(4) };
    for (filter, depth) in [(&plain, 1), (&plain, 2), (&plain, 4), (&bent, 3)] {
        let law = exact(model.as_ref(), filter, &order);
        let method = Method::Speculative(depth);
        assert_law(&frequencies(model.as_ref(), filter, &order, method, 20_000), &law);
    }
}

#[test]
fn groups_of_independent_draws_fail_the_same_test() {
    let model = tiny(3, 4, Kind::Float);
    let (filter, order) = (Filter::plain(4), [2, 0, 1]);
    let law = exact(model.as_ref(), &filter, &order);
    let conditioning = model.conditioning();
    let mut generator = Generator::new(model.as_ref(), &conditioning, filter, 1);
    let mut counts = vec![0.0; 64];
    for start in (0..20_000).step_by(500) {
        let mut batch = requests(start..start + 500, &order);
        batch.iter_mut().for_each(|r| r.groups = vec![3]);
        for sample in generator.generate(batch).unwrap() {
            counts[sample.tokens.iter().fold(0, |code, &t| code * 4 + t as usize)] += 1.0;
        }
    }
    assert!(std::panic::catch_unwind(|| assert_law(&counts, &law)).is_err());
}

#[test]
fn greedy_drafts_give_the_greedy_text() {
    let model = tiny(12, 9, Kind::Float);
    let conditioning = model.conditioning();
    let filter = Filter { temperature: 0.0, ..Filter::plain(9) };
    let mut generator = Generator::new(model.as_ref(), &conditioning, filter, 1);
    let order: Vec<u32> = [5, 2, 9, 0, 11, 3, 7, 1, 10, 4, 8, 6].into();
    let plain = generator.generate(requests(0..1, &order)).unwrap().remove(0);
    let passes = generator.tally.passes;
    for depth in [1, 3, 20] {
        let method = Method::Speculative(depth);
        let drafted = method.generate(&mut generator, requests(0..1, &order)).unwrap().remove(0);
        assert_eq!(drafted.tokens, plain.tokens);
        assert!(drafted.steps <= plain.steps);
    }
    assert_eq!(passes, 12);
}

/// The ways to decode, for a model of six positions.
fn methods() -> Vec<Method> {
    let adaptive = |text: &str| Method::Adaptive(text.parse().unwrap());
    vec![
        Method::Groups,
        Method::Speculative(3),
        Method::Rejection(3),
        adaptive("adaptive:margin"),
        adaptive("adaptive:top-prob:window=2"),
        adaptive("adaptive:entropy"),
    ]
}

#[test]
fn the_log_probability_is_that_of_scoring_along_the_recorded_order() {
    let model = tiny(6, 9, Kind::Float);
    let conditioning = model.conditioning();
    // Three rows of the head are padding: never drawn, but part of the norm.
    let filter = Filter { temperature: 0.7, top_p: 0.8, ..Filter::plain(6) };
    let mut generator = Generator::new(model.as_ref(), &conditioning, filter, 2);
    let batch: Vec<Request> = (0..40)
        .map(|i| {
            let mut stream = Stream::new(5, Domain::Sample, i);
            let mut order: Vec<u32> = (0..6).collect();
            stream.shuffle(&mut order);
            let given = [0, 1, 2, 3, 4, 5, 5][..(i % 7) as usize].to_vec();
            Request { groups: vec![1; 6 - given.len()], order, given, stream }
        })
        .collect();
    for method in methods() {
        for (i, sample) in
            method.generate(&mut generator, batch.clone()).unwrap().into_iter().enumerate()
        {
            assert!(sample.tokens.iter().all(|&t| t < 6));
            assert_eq!(sample.order[..i % 7], batch[i].order[..i % 7]);
            let mut sorted = sample.order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4, 5]);
            let scored = Batch::new(&[&sample.tokens], &[&sample.order]).unwrap();
            let nll = model.nll(&scored, &conditioning);
            assert_eq!(sample.nll.len(), 6 - i % 7);
            if !sample.nll.is_empty() {
                let difference = max_difference(&sample.nll, &nll[i % 7..]);
                assert!(difference < 2e-5, "{method:?}, sample {i}: {difference}");
            }
        }
    }
}

#[test]
fn a_sample_does_not_depend_on_its_neighbours() {
    let model = tiny(6, 9, Kind::Float);
    let conditioning = model.conditioning();
    let batch: Vec<Request> = (0..6)
        .map(|i| Request {
            order: vec![5, 4, 3, 2, 1, 0],
            given: vec![1; i as usize],
            groups: if i % 2 == 0 { vec![1; 6 - i as usize] } else { vec![6 - i as usize] },
            stream: Stream::new(2, Domain::Sample, i),
        })
        .collect();
    let mut generator = Generator::new(model.as_ref(), &conditioning, Filter::plain(9), 2);
    for method in methods() {
        let together = method.generate(&mut generator, batch.clone()).unwrap();
        for (request, expected) in batch.iter().zip(together) {
            let alone = method.generate(&mut generator, vec![request.clone()]).unwrap().remove(0);
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
fn laws_of_free(
    model: &dyn Decoder,
    conditioning: &Conditioning,
    sample: &Sample,
    known: usize,
) -> Vec<(u32, Vec<f64>)> {
    let filter = Filter::plain(9);
    let tokens: Vec<u32> = sample.order.iter().map(|&p| sample.tokens[p as usize]).collect();
    let mut free = sample.order[known..].to_vec();
    free.sort_unstable();
    free.iter()
        .map(|&position| {
            let mut order = sample.order.clone();
            let at = order.iter().position(|&p| p == position).unwrap();
            order[known..=at].rotate_right(1);
            (position, next_law(model, conditioning, &filter, &order, &tokens[..known]))
        })
        .collect()
}

#[test]
fn an_adaptive_order_takes_the_surest_position_of_every_step() {
    let n = 6;
    let model = tiny(n, 9, Kind::Float);
    let conditioning = model.conditioning();
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
            let method =
                Method::Adaptive(format!("adaptive:{name}:window={window}").parse().unwrap());
            // Confidence is that of the model, not of the filter.
            let filter = Filter { temperature: 0.3, ..Filter::plain(9) };
            let mut generator = Generator::new(model.as_ref(), &conditioning, filter, 1);
            let order: Vec<u32> = (0..n as u32).collect();
            let samples = method.generate(&mut generator, requests(0..8, &order)).unwrap();
            for sample in &samples {
                for known in 0..n {
                    let laws = laws_of_free(model.as_ref(), &conditioning, sample, known);
                    let laws = &laws[..window.min(laws.len())];
                    let chosen = sample.order[known];
                    let of =
                        |position| laws.iter().find(|l| l.0 == position).map(|l| measure(&l.1));
                    let best = laws.iter().map(|l| measure(&l.1)).fold(f64::MIN, f64::max);
                    let own = of(chosen).expect("a position of the window");
                    assert!(own > best - 1e-6, "{name}, step {known}: {own}, not {best}");
                }
            }
            // n(n+1)/2 rows, or w a step until fewer are free.
            let rows: usize = (1..=n).map(|free| free.min(window)).sum();
            assert_eq!(generator.tally.rows_forwarded, 8 * rows as u64);
        }
    }
}

#[test]
fn an_adaptive_step_of_two_tokens_takes_the_two_surest_positions() {
    let model = tiny(6, 9, Kind::Float);
    let conditioning = model.conditioning();
    let mut generator = Generator::new(model.as_ref(), &conditioning, Filter::plain(9), 1);
    let mut batch = requests(0..8, &[0, 1, 2, 3, 4, 5]);
    batch.iter_mut().for_each(|r| r.groups = vec![2, 2, 2]);
    let method = Method::Adaptive("adaptive:top-prob".parse().unwrap());
    for sample in method.generate(&mut generator, batch).unwrap() {
        assert_eq!(sample.steps, 3);
        for known in [0, 2, 4] {
            let laws = laws_of_free(model.as_ref(), &conditioning, &sample, known);
            let top = |law: &[f64]| law.iter().cloned().fold(0.0, f64::max);
            let mut ranked: Vec<(f64, u32)> = laws.iter().map(|l| (top(&l.1), l.0)).collect();
            ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
            assert_eq!(sample.order[known..known + 2], [ranked[0].1, ranked[1].1]);
        }
    }
}

#[test]
fn rejection_keeps_at_least_one_token_a_round_and_each_sequence_goes_at_its_own_pace() {
    let model = tiny(12, 9, Kind::Float);
    let conditioning = model.conditioning();
    let mut generator = Generator::new(model.as_ref(), &conditioning, Filter::plain(9), 1);
    let order: Vec<u32> = (0..12).collect();
    let samples = Method::Rejection(2).generate(&mut generator, requests(0..30, &order)).unwrap();
    let steps: Vec<usize> = samples.iter().map(|s| s.steps).collect();
    // A round of two orders is three passes; the last token needs only the first.
    assert!(steps.iter().all(|&s| (3..=34).contains(&s)), "{steps:?}");
    assert!(steps.iter().any(|s| *s != steps[0]), "all {} passes", steps[0]);
}

#[test]
fn candidates_are_the_likeliest_tokens_of_the_unfiltered_model() {
    let model = tiny(6, 9, Kind::Float);
    let conditioning = model.conditioning();
    let filter = Filter { temperature: 0.5, banned: vec![3], ..Filter::plain(7) };
    for method in methods() {
        let mut generator =
            Generator::new(model.as_ref(), &conditioning, filter.clone(), 1).with_candidates(4);
        let batch = requests(0..4, &[3, 1, 0, 5, 4, 2]);
        for sample in method.generate(&mut generator, batch).unwrap() {
            let tokens: Vec<u32> =
                sample.order.iter().map(|&p| sample.tokens[p as usize]).collect();
            assert_eq!(sample.candidates.len(), 6);
            for (k, listed) in sample.candidates.iter().enumerate() {
                let line = Line::new(sample.order.clone(), tokens[..k].to_vec());
                let mut session = Session::new(model.as_ref(), &conditioning, vec![line]);
                let ask = Ask { until: k + 1, copies: &[], wanted: 1 };
                let logits = model.head().logits(&session.pass(&[ask]).unwrap());
                let law: Tensor = logits.log_softmax(-1, Kind::Double).view([-1]);
                let law: Vec<f64> = Vec::try_from(law).unwrap();
                let mut ids: Vec<u32> = (0..7).collect();
                ids.sort_by(|&a, &b| law[b as usize].total_cmp(&law[a as usize]));
                assert_eq!(listed.iter().map(|c| c.0).collect::<Vec<_>>(), ids[..4]);
                for &(id, logprob) in listed {
                    assert!((logprob - law[id as usize]).abs() < 1e-5);
                }
            }
        }
    }
}
