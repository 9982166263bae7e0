//! Ensembled scoring: published numbers under given orderings, the published procedure step by step
//! under drawn ones, and the laws that a mean of probabilities obeys.

mod common;

use std::path::Path;

use ao_core::format::checkpoint::CheckpointFile;
use ao_core::score::Cost;
use ao_core::score::orderings::{all_orderings, distinct, mean_probability, orderings};
use ao_torch::decode::few_row::FewRow;
use ao_torch::family::by_order::ensemble::Ensemble;
use ao_torch::family::by_order::prefixes::{Orderings, Prefix, predict};
use ao_torch::family::{Scored, Work};
use ao_torch::network::Network;
use common::scoring::{numbers, records, score, tiny, write_model, write_orders, write_shards};
use common::{floats, golden, golden_config, golden_network, integers, max_difference, nll};
use serde_json::{Value, json};

/// Stated for f32 by the oracle.
const TOLERANCE: f64 = 2e-5;

fn open(folder: &str) -> Box<dyn Network> {
    golden_network(folder).0
}

/// Of M orderings each, of all positions, no curve.
fn ensemble(size: usize, seed: u64) -> Ensemble {
    Ensemble { size, curve: false, positions: None, seed, given: 0 }
}

#[test]
fn given_orderings_give_the_published_ensemble() {
    for folder in ["ao-gpt", "ao-gpt-short"] {
        let model = open(folder);
        let (_, figures) = golden_config(folder);
        let cases = CheckpointFile::open(&golden(folder).join("cases.safetensors")).unwrap();
        let (shape, tokens) = integers(&cases, "tokens");
        let (_, orders) = integers(&cases, "orders");
        let (sizes, ensembles) = integers(&cases, "ensemble_orders");
        let (_, expected) = floats(&cases, "ensemble_nll");
        let [b, t, m] = [sizes[0], sizes[1], sizes[2]];
        assert_eq!((shape[0], shape[1], sizes[3]), (b, t, t));
        let steps: Vec<usize> = (0..t).collect();
        let mut prefixes: Vec<Prefix> = (0..b * m)
            .map(|i| {
                let (s, line) = (i / m, i % m);
                let contexts: Vec<Vec<u32>> = (0..t)
                    .map(|step| ensembles[((s * t + step) * m + line) * t..][..step].to_vec())
                    .collect();
                Prefix {
                    tokens: &tokens[s * t..(s + 1) * t],
                    order: &orders[s * t..(s + 1) * t],
                    steps: &steps,
                    orderings: Orderings::Given(contexts.into_iter()),
                }
            })
            .collect();
        let mut cost = Cost::default();
        let found = predict((model.as_ref(), None), &mut prefixes, &mut cost).unwrap();
        // From (sequence, line, step) to (sequence, step, line).
        let found: Vec<f64> =
            (0..b * t * m).map(|i| found[i / (t * m) * m + i % m][i / m % t]).collect();
        let difference = max_difference(&found, &expected);
        assert!(difference <= TOLERANCE, "{folder}: differs by {difference}");
        // Neighbouring prefixes share rows: fewer than each on its own.
        assert!(cost.rows_forwarded < (b * m * t * (t + 1) / 2) as u64);
        assert_eq!(cost.rows_through_head, (b * t * m) as u64);
        for (key, value) in figures["ensemble_ppl"].as_object().unwrap() {
            let size: usize = key.parse().unwrap();
            let sum: f64 =
                found.chunks(m).map(|nll| mean_probability(nll[..size].iter().copied())).sum();
            let perplexity = (sum / (b * t) as f64).exp();
            let published = value.as_f64().unwrap();
            assert!((perplexity / published - 1.0).abs() < TOLERANCE, "{folder}, M {size}");
        }
    }
}

/// NLL of step `step` after the steps of `ordering`, by a full pass: the published procedure.
fn full_pass(model: &dyn Network, work: &Work, ordering: &[u32], step: usize) -> f64 {
    let mut order: Vec<u32> = ordering.iter().map(|&s| work.order[s as usize]).collect();
    order.extend(&work.order[ordering.len()..]);
    nll(model, &[&work.tokens], &[&order])[step]
}

fn score_works(model: &dyn Network, works: &[Work], ensemble: &Ensemble) -> (Vec<Scored>, Cost) {
    let mut cost = Cost::default();
    let few_row = FewRow::new(model);
    let scored = ensemble.score((model, few_row.as_ref()), works, &mut cost).unwrap();
    (scored, cost)
}

/// Sequences of the golden file, some cut short, along their golden orders.
fn works(folder: &str) -> Vec<Work> {
    let cases = CheckpointFile::open(&golden(folder).join("cases.safetensors")).unwrap();
    let (shape, tokens) = integers(&cases, "tokens");
    let (_, orders) = integers(&cases, "orders");
    (0..shape[0])
        .map(|s| {
            let length = shape[1] - 2 * s;
            let order = orders[s * shape[1]..(s + 1) * shape[1]].iter().copied();
            Work {
                nth: s,
                row: 10 + s as u64,
                tokens: tokens[s * shape[1]..][..length].to_vec(),
                order: order.filter(|&p| (p as usize) < length).collect(),
                held: None,
                contexts: None,
            }
        })
        .collect()
}

#[test]
fn drawn_orderings_score_as_one_full_pass_for_each_position_and_ordering_does() {
    let model = open("ao-gpt");
    let works = works("ao-gpt");
    for size in [2, 5, 8] {
        let ensemble = Ensemble { curve: true, ..ensemble(size, 3) };
        let (scored, _) = score_works(model.as_ref(), &works, &ensemble);
        for (work, scored) in works.iter().zip(&scored) {
            let mut lines = orderings(3, work.row, size, work.tokens.len());
            let expected: Vec<f64> = (0..work.tokens.len())
                .map(|step| {
                    // A context of at most M orderings takes each of them once.
                    let chosen: Vec<Vec<u32>> = match distinct(step, size) {
                        Some(_) => all_orderings(step),
                        None => lines.iter_mut().map(|l| l.of(step).to_vec()).collect(),
                    };
                    let nll: Vec<f64> =
                        chosen.iter().map(|o| full_pass(model.as_ref(), work, o, step)).collect();
                    mean_probability(nll.into_iter())
                })
                .collect();
            let difference = max_difference(&scored.nll, &expected);
            assert!(difference <= TOLERANCE, "M {size}: differs by {difference}");
            assert!((scored.sum - scored.nll.iter().sum::<f64>()).abs() < 1e-9);
        }
    }
}

#[test]
fn the_curve_is_what_each_size_gives_alone() {
    let model = open("ao-gpt-short");
    let works = works("ao-gpt-short");
    let run = |size, curve| {
        let ensemble = Ensemble { curve, ..ensemble(size, 8) };
        score_works(model.as_ref(), &works, &ensemble).0
    };
    let curve = run(8, true);
    for (at, size) in [1, 2, 4, 8].into_iter().enumerate() {
        for (a, b) in curve.iter().zip(run(size, false)) {
            let difference = (a.curve.as_ref().unwrap()[at] - b.sum).abs();
            assert!(difference < 1e-4, "M {size}: {difference}");
        }
    }
    // One ordering is the chain itself.
    let chain: f64 = nll(model.as_ref(), &[&works[0].tokens], &[&works[0].order]).iter().sum();
    assert!((curve[0].curve.as_ref().unwrap()[0] - chain).abs() < 1e-4);
}

#[test]
fn a_subset_of_positions_is_scored_as_the_whole_scores_them_and_is_unbiased() {
    let model = open("ao-gpt");
    let works = works("ao-gpt");
    let whole = score_works(model.as_ref(), &works[..1], &ensemble(4, 1)).0.remove(0);
    let work = &works[0];
    let mut sums = Vec::new();
    let mut errors = Vec::new();
    for row in 0..300 {
        // Another row has another subset, and other orderings that matter far less here.
        let work = Work { row, ..work.clone() };
        let ensemble = Ensemble { positions: Some(5), ..ensemble(1, 1) };
        let scored = score_works(model.as_ref(), &[work], &ensemble).0.remove(0);
        let (count, error) = scored.subset.unwrap();
        assert_eq!((count, scored.nll.len()), (5, 5));
        sums.push(scored.sum);
        errors.push(error * error);
    }
    let chain = score_works(model.as_ref(), &works[..1], &ensemble(1, 1)).0.remove(0).sum;
    let n = sums.len() as f64;
    let mean = sums.iter().sum::<f64>() / n;
    let variance = sums.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0);
    assert!((mean - chain).abs() < 4.0 * (variance / n).sqrt(), "{mean} {chain}");
    // The error that each states is right on average.
    let stated = errors.iter().sum::<f64>() / n;
    assert!((stated / variance - 1.0).abs() < 0.35, "{stated} {variance}");
    // All positions: the whole, without an error.
    let ensemble = Ensemble { positions: Some(1000), ..ensemble(4, 1) };
    let all = score_works(model.as_ref(), &works[..1], &ensemble).0.remove(0);
    assert!((all.sum - whole.sum).abs() < 1e-4);
    assert_eq!(all.subset, Some((work.tokens.len() as u64, 0.0)));
}

fn run(folder: &Path, extra: &[&str]) -> Vec<Value> {
    records(&score(folder, &[&["--ckpt", "m.st", "--shards", "data"][..], extra].concat()))
}

#[test]
fn the_ensembles_probabilities_of_all_sequences_sum_to_one() {
    let dir = tempfile::tempdir().unwrap();
    write_model(&dir.path().join("m.st"), &tiny(3, 4), true);
    let all: Vec<Vec<u32>> = (0..64u32).map(|n| vec![n / 16, n / 4 % 4, n % 4]).collect();
    write_shards(dir.path(), 4, &all);
    // Two orderings are all that contexts of at most two tokens have: nothing is drawn.
    for orders in ["l2r", "fixed:3"] {
        let found = run(dir.path(), &["--orders", orders, "--ensemble", "2", "--per-token"]);
        let sequences: Vec<&Value> = found.iter().filter(|r| r["type"] == "sequence").collect();
        let sum: f64 = sequences.iter().map(|r| (-r["nll_nats"].as_f64().unwrap()).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{orders}: {sum}");
        assert!(sequences.iter().all(|r| r["estimate"] == "ensemble"));
        let nll = numbers(&sequences[5]["token_nll_nats"]);
        assert_eq!(nll.len(), 3);
        let chain = run(dir.path(), &["--orders", orders, "--per-token"]);
        let chain = numbers(&chain[6]["token_nll_nats"]);
        // Contexts of one ordering are the chain's; that of two is not.
        assert!(max_difference(&nll[..2], &chain[..2]) < 1e-5);
        assert!((nll[2] - chain[2]).abs() > 1e-4);
    }
}

#[test]
fn an_ensemble_is_scored_alike_whatever_the_batch_and_the_curve_stands_in_the_summary() {
    let dir = tempfile::tempdir().unwrap();
    write_model(&dir.path().join("m.st"), &tiny(8, 50), true);
    let documents: Vec<Vec<u32>> =
        (1..=17).map(|n| (0..n).map(|i| (i * 7 + n) % 50).collect()).collect();
    write_shards(dir.path(), 50, &documents);
    let options = ["--ensemble", "4", "--ensemble-curve", "--mc", "2"];
    let sequences = |records: &[Value]| -> Vec<Value> {
        records.iter().filter(|r| r["type"] == "sequence").cloned().collect()
    };
    let whole = run(dir.path(), &options);
    for batch in ["1", "5"] {
        let other = run(dir.path(), &[&options[..], &["--batch-size", batch]].concat());
        assert_eq!(sequences(&other), sequences(&whole));
    }
    let summary = whole.last().unwrap();
    assert_eq!((&summary["ensemble"], &summary["estimate"]), (&4.into(), &"ensemble".into()));
    let curve = summary["ensemble_curve"].as_array().unwrap();
    let sizes: Vec<u64> = curve.iter().map(|p| p["ensemble"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [1, 2, 4]);
    assert_eq!(curve[2]["nll_nats_per_token"], summary["nll_nats_per_token"]);
    let error = |r: &Value| r["std_error"].as_f64().unwrap();
    assert!((error(&curve[2]) - error(summary)).abs() < 1e-12);
    let chain = run(dir.path(), &["--mc", "2"]);
    let (a, b) = (&curve[0], chain.last().unwrap());
    let number = |r: &Value| r["nll_nats_per_token"].as_f64().unwrap();
    assert!((number(a) - number(b)).abs() < 1e-5);
    assert_eq!(b["estimate"], "bound");

    let subset = run(dir.path(), &["--ensemble", "4", "--positions", "3"]);
    let summary = subset.last().unwrap();
    assert_eq!(summary["token_count"], whole.last().unwrap()["token_count"]);
    assert!(summary["std_error_positions"].as_f64().unwrap() > 0.0);
    assert!(sequences(&subset).iter().all(|r| r["positions_scored"].as_u64().unwrap() <= 3));
    // Of one position nothing says how far it is from the others.
    let one = run(dir.path(), &["--ensemble", "4", "--positions", "1"]);
    let summary = one.last().unwrap();
    assert_eq!(summary["std_error_positions"], Value::Null);
    assert!(summary.get("std_error_positions").is_some(), "{summary}");
    assert!(summary["note"].as_str().unwrap().contains("--positions"));
    let of_two = |r: &&Value| r["token_count"].as_u64().unwrap() > 1;
    for record in sequences(&one).iter().filter(of_two) {
        assert_eq!(record.get("std_error_positions_nats"), Some(&Value::Null), "{record}");
    }
}

#[test]
fn orderings_of_a_file_give_the_published_perplexities_through_the_binary() {
    let dir = tempfile::tempdir().unwrap();
    let (config, figures) = golden_config("ao-gpt");
    let cases = CheckpointFile::open(&golden("ao-gpt").join("cases.safetensors")).unwrap();
    let (shape, tokens) = integers(&cases, "tokens");
    let (_, orders) = integers(&cases, "orders");
    let (sizes, ensembles) = integers(&cases, "ensemble_orders");
    let [b, t, m] = [sizes[0], sizes[1], sizes[2]];
    let rows = |values: &[u32]| values.chunks(shape[1]).map(<[u32]>::to_vec).collect::<Vec<_>>();
    write_shards(dir.path(), config.vocab_size(), &rows(&tokens));
    write_orders(dir.path(), &rows(&orders));
    std::fs::write(dir.path().join("config.json"), config.to_json().to_string()).unwrap();
    let line = |s: usize| -> Vec<Vec<&[u32]>> {
        let at = |step, line| &ensembles[((s * t + step) * m + line) * t..][..step];
        (0..t).map(|step| (0..m).map(|line| at(step, line)).collect()).collect()
    };
    let text: Vec<String> = (0..b).map(|s| format!("{}\n", json!(line(s)))).collect();
    std::fs::write(dir.path().join("e.jsonl"), text.concat()).unwrap();
    let model = golden("ao-gpt").join("model.safetensors");
    let size = m.to_string();
    let base = [
        "--ckpt",
        model.to_str().unwrap(),
        "--model-config",
        "config.json",
        "--shards",
        "data",
        "--orders",
        "orders.jsonl",
        "--ensemble-curve",
        "--ensemble-orders",
        "e.jsonl",
    ];
    let found = records(&score(dir.path(), &[&base[..], &["--ensemble", &size]].concat()));
    let curve = found.last().unwrap()["ensemble_curve"].as_array().unwrap();
    let published = figures["ensemble_ppl"].as_object().unwrap();
    assert_eq!(curve.len(), published.len());
    for point in curve {
        let perplexity = point["perplexity"].as_f64().unwrap();
        let published = published[&point["ensemble"].to_string()].as_f64().unwrap();
        assert!((perplexity / published - 1.0).abs() < TOLERANCE, "{point} {published}");
    }
    // Orderings that are none, or too few, are named by line.
    for (text, size, words) in [
        (text[0].clone(), &size, "line 1: ends before sequence 1"),
        (text.concat(), &"3".to_owned(), "line 1: step 0 has"),
        (text.concat().replacen("[0", "[1", 40), &size, "line 1: step "),
    ] {
        std::fs::write(dir.path().join("e.jsonl"), text).unwrap();
        let out = score(dir.path(), &[&base[..], &["--ensemble", size]].concat());
        let error = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{error}");
        assert!(error.lines().count() == 1 && error.contains(words), "{error}");
    }
}
